//! The Flex tier.

use burn::backend::flex::Flex;

use super::{AttentionBackwardOps, AttentionOps};

impl AttentionOps for Flex {}
impl AttentionBackwardOps for Flex {}
