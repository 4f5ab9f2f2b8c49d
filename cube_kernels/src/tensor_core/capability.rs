//! What a device gives the kernels.

#[cfg(feature = "cube")]
use cubecl::{
    client::Client,
    ir::{DeviceProperties, ElemType, FloatKind, features::MmaConfig},
};

#[cfg(feature = "cube")]
use super::blueprint::{COLUMNS, DEPTH, PLANE, ROWS};
use super::{Exponential, Staging};

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
    /// What a CUDA device of compute capability `sm`, times ten, has under CubeCL's default compiler;
    /// `None` below 80.
    ///
    /// ```rust
    /// use burn_natten_kernels::tensor_core::Capability;
    ///
    /// assert_eq!(Capability::cuda(75), None);
    /// assert_eq!(Capability::cuda(89).map(|ada| ada.shared_memory), Some(99 << 10));
    /// ```
    pub fn cuda(sm: u32) -> Option<Self> {
        let kibibytes = match sm {
            ..80 => return None,
            80 | 87 => 163,
            81..90 | 120..130 => 99,
            _ => 227,
        };
        let (staging, exponential) = (Staging::Registers, Exponential::Library);
        Some(Self { staging, exponential, shared_memory: kibibytes << 10 })
    }

    /// What the device of a client has; `None` if the kernels cannot run there.
    #[cfg(feature = "cube")]
    pub fn of(client: &Client) -> Option<Self> {
        Self::of_properties(client.properties())
    }

    /// The same from the properties alone.
    ///
    /// Fragments are laid out as NVIDIA GPUs do, and read by an instruction that they alone have.
    #[cfg(feature = "cube")]
    pub fn of_properties(properties: &DeviceProperties) -> Option<Self> {
        let matmul = &properties.features.matmul;
        let has_matrices =
            [FloatKind::F16, FloatKind::BF16].map(ElemType::Float).iter().all(|kind| {
                let instruction = MmaConfig {
                    a_type: *kind,
                    b_type: *kind,
                    cd_type: ElemType::Float(FloatKind::F32),
                    m: ROWS as u32,
                    n: COLUMNS as u32,
                    k: DEPTH as u32,
                };
                matmul.mma.contains(&instruction) && matmul.ldmatrix.contains(kind)
            });
        let hardware = &properties.hardware;
        let has_planes =
            hardware.plane_size_min == PLANE as u32 && hardware.plane_size_max == PLANE as u32;
        if !has_planes || !has_matrices {
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
