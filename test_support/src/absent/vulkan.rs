//! SPIR-V and WGSL, as CubeCL's compilers for Vulkan and WebGPU write them.

use cubecl_core::{
    Compiler, CubeKernel, VulkanCompilationOptions, WgpuCompilationOptions, define_kernel,
};
use cubecl_spirv::SpirvCompiler;
use cubecl_wgpu::WgslCompiler;

/// What a device of Vulkan 1.3 has besides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extensions {
    /// `VK_KHR_workgroup_memory_explicit_layout`. Without it CubeCL 0.11.3 writes modules with shared memory that are not valid.
    pub explicit_layout: bool,
    /// `VK_KHR_shader_float_controls2`
    pub float_controls: bool,
}

fn options(extensions: Extensions) -> WgpuCompilationOptions {
    WgpuCompilationOptions {
        supports_u64: true,
        supports_vulkan_compiler: true,
        supports_msl_compiler: false,
        vulkan: VulkanCompilationOptions {
            supports_explicit_smem: extensions.explicit_layout,
            supports_fp_fast_math: extensions.float_controls,
            max_spirv_version: (1, 6),
            max_vector_size: 4,
            push_constant_size: 128,
            ..Default::default()
        },
    }
}

/// The words of a kernel in SPIR-V.
///
/// # Errors
///
/// What CubeCL says.
pub fn spirv(kernel: &dyn CubeKernel, extensions: Extensions) -> Result<Vec<u32>, String> {
    let definition = define_kernel(kernel).map_err(|error| error.to_string())?;
    let kernel = SpirvCompiler.compile(definition, &options(extensions));
    kernel.map(|kernel| kernel.assembled_module).map_err(|error| error.to_string())
}

/// A kernel in WGSL.
///
/// # Errors
///
/// What CubeCL says.
pub fn wgsl(kernel: &dyn CubeKernel) -> Result<String, String> {
    let definition = define_kernel(kernel).map_err(|error| error.to_string())?;
    let kernel = WgslCompiler.compile(definition, &options(Extensions::default()));
    kernel.map(|kernel| kernel.to_string()).map_err(|error| error.to_string())
}

/// Whether naga takes it, as wgpu asks it to.
///
/// # Errors
///
/// What naga says.
pub fn check_wgsl(text: &str) -> Result<(), String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))?;
    let flags = naga::valid::ValidationFlags::all();
    let mut validator = naga::valid::Validator::new(flags, naga::valid::Capabilities::all());
    validator.validate(&module).map(drop).map_err(|error| error.emit_to_string(text))
}
