//! Block-sparse attention on CubeCL's devices.

use burn_cubecl::CubeBackend;

use crate::backend::block_sparse::{BlockSparseBackwardOps, BlockSparseOps};

impl BlockSparseOps for CubeBackend {}

impl BlockSparseBackwardOps for CubeBackend {}
