//! The selection of native sparse attention on CubeCL's devices.

use burn_cubecl::CubeBackend;

use crate::backend::select::SelectOps;

impl SelectOps for CubeBackend {}
