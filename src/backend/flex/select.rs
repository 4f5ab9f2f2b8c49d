//! The selection of native sparse attention on Flex.

use burn::backend::flex::Flex;

use crate::backend::select::SelectOps;

impl SelectOps for Flex {}
