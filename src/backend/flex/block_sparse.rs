//! Block-sparse attention on Flex.

use burn::backend::flex::Flex;

use crate::backend::block_sparse::{BlockSparseBackwardOps, BlockSparseOps};

impl BlockSparseOps for Flex {}

impl BlockSparseBackwardOps for Flex {}
