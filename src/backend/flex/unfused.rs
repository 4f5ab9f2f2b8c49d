use burn::backend::flex::Flex;

use crate::backend::unfused::{UnfusedGradientOps, UnfusedOps};

impl UnfusedOps for Flex {}

impl UnfusedGradientOps for Flex {}
