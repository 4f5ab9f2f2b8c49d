//! What a device gives the kernels.

use cubecl::client::Client;
use cubecl::ir::features::MmaConfig;
use cubecl::ir::{DeviceProperties, ElemType, FloatKind};

use super::blueprint::{COLUMNS, DEPTH, PLANE, ROWS};
use super::{Exponential, Staging, is_known};

/// What a device has that a blueprint may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capability {
    /// How tiles can get into shared memory.
    pub staging: Staging,
    /// How exponentials can be computed.
    pub exponential: Exponential,
    /// Bytes of shared memory that a cube can have.
    pub shared_memory: usize,
}

impl Capability {
    /// What the device of a client has for an element type; `None` if the kernels cannot run there.
    pub fn of(client: &Client, dtype: ElemType) -> Option<Self> {
        Self::of_properties(client.properties(), dtype)
    }

    /// The same from the properties alone.
    ///
    /// Fragments are laid out as NVIDIA GPUs do, and read by an instruction that they alone have.
    pub fn of_properties(properties: &DeviceProperties, dtype: ElemType) -> Option<Self> {
        let matmul = &properties.features.matmul;
        let instruction = MmaConfig {
            a_type: dtype,
            b_type: dtype,
            cd_type: ElemType::Float(FloatKind::F32),
            m: ROWS as u32,
            n: COLUMNS as u32,
            k: DEPTH as u32,
        };
        let hardware = &properties.hardware;
        let has_planes =
            hardware.plane_size_min == PLANE as u32 && hardware.plane_size_max == PLANE as u32;
        let has_matrices =
            matmul.mma.contains(&instruction) && matmul.ldmatrix.contains(&dtype);
        if !is_known(dtype) || !has_planes || !has_matrices {
            return None;
        }
        // Of CubeCL's compilers for CUDA, the one that has asynchronous copies has inline assembly.
        let (staging, exponential) = match properties.features.copy_async {
            true => (Staging::Async, Exponential::Instruction),
            false => (Staging::Registers, Exponential::Library),
        };
        Some(Self { staging, exponential, shared_memory: hardware.max_shared_memory_size })
    }
}
