//! Kernels as CubeCL's two compilers for CUDA leave them, made without a GPU.
//!
//! For a compile gate and for reading the code: what ptxas makes of it is up to the caller.

use std::ffi::CStr;
use std::sync::Arc;

use cubecl::ir::features::{Features, MmaConfig, Plane};
use cubecl::ir::{
    AddressType, DeviceIdentity, DeviceProperties, ElemType, FloatKind, HardwareProperties,
    MemoryDeviceProperties,
};
use cubecl::prelude::*;
use cubecl_core::Compiler as _;
use cubecl_core::ir::nvidia::SmArch;
use cubecl_cuda::compiler::CudaBackend;
use cubecl_cuda::{CudaCompilationOptions, CudaCompiler, CudaRepresentation, CudaRuntime};

use cubecl_server::runtime::Runtime;

use super::launch::stored;
use super::{Blueprint, Compiler, Pass, backward, forward};
use crate::{KernelError, Packed};

/// A kernel in the language that its compiler produces.
#[derive(Clone, Debug)]
pub struct Program {
    /// CUDA C++ or PTX, by the compiler.
    pub code: String,
    /// Bytes of dynamic shared memory.
    pub shared_memory: usize,
}

/// Translates the kernel of a blueprint for a type that it multiplies, and for compute capability `arch`, as 80
/// or 90.
///
/// # Errors
///
/// What CubeCL's compiler says.
pub fn translate(
    blueprint: &Blueprint,
    dtype: ElemType,
    arch: u32,
    compiler: Compiler,
) -> Result<Program, String> {
    let definition = match blueprint.pass {
        Pass::Forward => forward::definition,
        Pass::Queries | Pass::Keys => backward::definition,
    };
    let kernel =
        definition(blueprint, stored(dtype), settings(blueprint.units()), properties(), target());
    compile(kernel, arch, compiler)
}

/// The table from which the cubes of a kernel learn of which sequence they are, and how many cubes there are.
///
/// # Errors
///
/// [`KernelError`].
pub fn sequences(blueprint: &Blueprint, packed: &Packed) -> Result<(Vec<u32>, usize), KernelError> {
    crate::cube::sequences(packed, &blueprint.cut())
}

/// For cubes of as many units.
pub(crate) fn settings(units: usize) -> KernelSettings {
    let cube_dim = *CubeDim::new_1d(units as u32);
    KernelSettings::new(cube_dim, ExecutionMode::Unchecked, AddressType::U32)
}

pub(crate) fn target() -> Arc<TargetProperties> {
    Arc::new(<CudaRuntime as Runtime>::target_properties())
}

/// Compiles a kernel for compute capability `arch`.
pub(crate) fn compile(
    kernel: KernelDefinition,
    arch: u32,
    compiler: Compiler,
) -> Result<Program, String> {
    let mut options =
        CudaCompilationOptions { arch: Some(SmArch::new(arch, true)), ..Default::default() };
    options.cpp.supports_features.grid_constants = true;
    let mut translator = CudaCompiler::new(match compiler {
        Compiler::Cpp => CudaBackend::Cpp,
        Compiler::Llvm => CudaBackend::Llvm,
    });
    let result = translator.compile(kernel, &options).map_err(|error| format!("{error:?}"))?;
    let shared_memory = result.shared_memory_size();
    let code = match &result {
        CudaRepresentation::Cpp(kernel) => kernel.to_string(),
        CudaRepresentation::Llvm(module) => {
            // SAFETY: the module's PTX ends in a zero.
            let text = unsafe { CStr::from_ptr(module.ptx.as_ptr()) };
            text.to_string_lossy().into_owned()
        }
    };
    Ok(Program { code, shared_memory })
}

/// Some GPU with planes.
pub(crate) fn properties() -> Arc<DeviceProperties> {
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: 32,
        plane_size_max: 32,
        max_bindings: 32,
        max_shared_memory_size: 227 << 10,
        max_cube_count: (i32::MAX as u32, u32::from(u16::MAX), u32::from(u16::MAX)),
        max_units_per_cube: 1024,
        max_cube_dim: (1024, 1024, 64),
        num_streaming_multiprocessors: None,
        num_tensor_cores: None,
        min_tensor_cores_dim: None,
        num_cpu_cores: None,
        last_level_cache_size: None,
        max_vector_size: VectorSize::MAX,
        cube_mma_reserved_shared_memory: 0,
    };
    let mut properties = DeviceProperties::new(
        Features::default(),
        MemoryDeviceProperties::new(u64::MAX, 256),
        hardware,
        cubecl_common::profile::TimingMethod::Device,
        DeviceIdentity {
            name: "offline".to_string(),
            fingerprint: "offline".to_string(),
            physical: None,
        },
    );
    properties.features.plane.insert(Plane::Ops);
    for kind in [FloatKind::F16, FloatKind::BF16].map(ElemType::Float) {
        for size in [8, 16] {
            properties.features.matmul.cmma.insert(MmaConfig {
                a_type: kind,
                b_type: kind,
                cd_type: ElemType::Float(FloatKind::F32),
                m: size,
                n: size,
                k: size,
            });
        }
    }
    properties.features.copy_async = true;
    properties.features.memory_reinterpret = true;
    properties.features.alignment = true;
    Arc::new(properties)
}
