//! The Portable tier on Burn's CubeCL backend.

use burn_cubecl::CubeBackend;

use super::{AttentionBackwardOps, AttentionOps};

impl AttentionOps for CubeBackend {}
impl AttentionBackwardOps for CubeBackend {}
