use burn_cubecl::CubeBackend;

use crate::backend::unfused::{UnfusedGradientOps, UnfusedOps};

impl UnfusedOps for CubeBackend {}

impl UnfusedGradientOps for CubeBackend {}
