//! What a device gives the kernels.

#[cfg(feature = "cube")]
use cubecl::{
    client::Client,
    ir::{
        DeviceProperties, ElemType, FloatKind,
        features::{MatmulFeatures, MmaConfig},
    },
};

#[cfg(feature = "cube")]
use super::blueprint::PLANE;
use super::{Compiler, Exponential, Instruction, Staging};

/// Shapes of cooperative matrices that the kernels use, the best first: AMD and Vulkan, Apple.
#[cfg(feature = "cube")]
const CMMA_SHAPES: [[usize; 3]; 2] = [[16, 16, 16], [8, 8, 8]];

/// Elements of the widest vectors that the kernels know: 16 bytes of f16.
const MOST_ELEMENTS: usize = 8;

/// Compute capabilities, times ten, of devices on which kernels have run and were held to an oracle.
const RAN: [u32; 1] = [90];

/// What is known of kernels on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Evidence {
    /// They have run on such a device, and were right.
    Ran,
    /// They have been compiled for such devices, or for older ones with the same instructions, and have run on others.
    Compiled,
    /// Their instructions have run in emulation alone.
    Emulated,
}

/// What a device has that a blueprint may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capability {
    /// What multiplies matrices.
    pub instruction: Instruction,
    /// Whether it multiplies bf16, too, and not f16 alone.
    pub has_bf16: bool,
    /// Whether it multiplies f32 rounded to tf32, too: see [`Capability::with_tf32`].
    pub has_tf32: bool,
    /// How tiles can get into shared memory.
    pub staging: Staging,
    /// How exponentials can be computed.
    pub exponential: Exponential,
    /// Bytes of shared memory that a cube can have.
    pub shared_memory: usize,
    /// Elements of the widest vector: four in Vulkan, where CubeCL takes wider ones apart but cannot sum them.
    pub vector: usize,
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
        let instruction = Instruction::Mma;
        let shared_memory = kibibytes << 10;
        let of_cuda = Self {
            instruction,
            has_bf16: true,
            has_tf32: true,
            staging: Staging::Registers,
            exponential: Exponential::Library,
            shared_memory,
            vector: MOST_ELEMENTS,
        };
        Some(of_cuda.with_compiler(Compiler::Llvm))
    }

    /// What the device of a client has; `None` if the kernels cannot run there.
    #[cfg(feature = "cube")]
    pub fn of(client: &Client) -> Option<Self> {
        Self::of_properties(client.properties())
    }

    /// The same from the properties alone.
    ///
    /// The instruction whose fragments are laid out as on NVIDIA GPUs is taken where there is the one that
    /// reads such fragments, which those GPUs alone have.
    #[cfg(feature = "cube")]
    pub fn of_properties(properties: &DeviceProperties) -> Option<Self> {
        let hardware = &properties.hardware;
        let has_planes =
            hardware.plane_size_min == PLANE as u32 && hardware.plane_size_max == PLANE as u32;
        if !has_planes {
            return None;
        }
        let matmul = &properties.features.matmul;
        let (instruction, has_bf16) = instruction(matmul)?;
        let has_tf32 = instruction == Instruction::Mma
            && matmul.mma.contains(&config(FloatKind::TF32, Instruction::Tf32.shape()));
        let plain = Self {
            instruction,
            has_bf16,
            has_tf32,
            staging: Staging::Registers,
            exponential: Exponential::Library,
            shared_memory: hardware.max_shared_memory_size,
            vector: hardware.max_vector_size.min(MOST_ELEMENTS),
        };
        // Of CubeCL's compilers for CUDA, the one to C++ has asynchronous copies.
        Some(match (instruction, properties.features.copy_async) {
            (Instruction::Mma, true) => plain.with_compiler(Compiler::Cpp),
            (Instruction::Mma, false) => plain.with_compiler(Compiler::Llvm),
            _ => plain,
        })
    }

    /// The same of an NVIDIA GPU under this compiler.
    pub fn with_compiler(self, compiler: Compiler) -> Self {
        let staging = Staging::Async(compiler);
        Self { staging, exponential: Exponential::Instruction(compiler), ..self }
    }

    /// Whether kernels that use it have run on real hardware, of some architecture.
    pub fn has_run(&self) -> bool {
        self.instruction.is_mma()
    }

    /// What is known of the kernels on a device of compute capability `sm`, times ten, where it has one.
    ///
    /// ```rust
    /// use burn_natten_kernels::tensor_core::{Capability, Evidence};
    ///
    /// let ada = Capability::cuda(89).expect("compute capability 8.9 has matrix units");
    /// assert_eq!(ada.evidence(Some(89)), Evidence::Compiled);
    /// assert_eq!(ada.evidence(Some(90)), Evidence::Ran);
    /// assert_eq!(ada.with_cmma([16, 16, 16]).evidence(None), Evidence::Emulated);
    /// ```
    pub fn evidence(&self, sm: Option<u32>) -> Evidence {
        match (self.instruction.is_mma(), sm) {
            (true, Some(sm)) if RAN.contains(&sm) => Evidence::Ran,
            (true, _) => Evidence::Compiled,
            (false, _) => Evidence::Emulated,
        }
    }

    /// The same for f32 that is rounded to tf32 where it is multiplied; `None` where the device has no
    /// instruction for it.
    ///
    /// ```rust
    /// use burn_natten_kernels::tensor_core::{Capability, Instruction};
    ///
    /// let ampere = Capability::cuda(80).expect("compute capability 8.0 has matrix units");
    /// assert_eq!(ampere.with_tf32().map(|it| it.instruction), Some(Instruction::Tf32));
    /// assert_eq!(ampere.with_cmma([16, 16, 16]).with_tf32(), None);
    /// ```
    pub fn with_tf32(self) -> Option<Self> {
        self.has_tf32.then_some(Self { instruction: Instruction::Tf32, ..self })
    }

    /// The same with cooperative matrices, which has to be a shape that the device has.
    pub fn with_cmma(self, shape: [usize; 3]) -> Self {
        Self {
            instruction: Instruction::Cmma(shape),
            has_tf32: false,
            staging: Staging::Registers,
            exponential: Exponential::Library,
            ..self
        }
    }
}

/// The product of matrices of a type and shape, summed in f32.
#[cfg(feature = "cube")]
fn config(kind: FloatKind, [m, n, k]: [usize; 3]) -> MmaConfig {
    MmaConfig {
        a_type: ElemType::Float(kind),
        b_type: ElemType::Float(kind),
        cd_type: ElemType::Float(FloatKind::F32),
        m: m as u32,
        n: n as u32,
        k: k as u32,
    }
}

/// The instruction for f16, and whether there is the same for bf16.
#[cfg(feature = "cube")]
fn instruction(matmul: &MatmulFeatures) -> Option<(Instruction, bool)> {
    const F16: FloatKind = FloatKind::F16;
    const BF16: FloatKind = FloatKind::BF16;
    let has_mma = |kind| {
        matmul.mma.contains(&config(kind, Instruction::Mma.shape()))
            && matmul.ldmatrix.contains(&ElemType::Float(kind))
    };
    if has_mma(F16) && has_mma(BF16) {
        return Some((Instruction::Mma, true));
    }
    let has_cmma = |kind, shape: &[usize; 3]| matmul.cmma.contains(&config(kind, *shape));
    let shape = CMMA_SHAPES.into_iter().find(|shape| has_cmma(F16, shape))?;
    Some((Instruction::Cmma(shape), has_cmma(BF16, &shape)))
}
