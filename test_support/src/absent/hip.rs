//! HIP's C++, as CubeCL's other compiler for AMD writes it.

use cubecl_core::{Compiler as _, CubeKernel, define_kernel};
use cubecl_cpp::shared::{CompilationOptions, CppCompiler, CppSupportedFeatures};
use cubecl_cpp::target::Hip;

/// A kernel in HIP C++.
pub struct Source {
    pub code: String,
    /// Bytes of shared memory, which a launch asks for.
    pub shared_memory: usize,
}

/// Translates a kernel for planes of so many units.
///
/// # Errors
///
/// What CubeCL says.
pub fn translate(kernel: &dyn CubeKernel, plane: u32) -> Result<Source, String> {
    let options = CompilationOptions {
        warp_size: plane as usize,
        // As CubeCL's runtime for AMD has it.
        supports_features: CppSupportedFeatures { fast_math: true, ..Default::default() },
        ..Default::default()
    };
    let definition = define_kernel(kernel).map_err(|error| error.to_string())?;
    let kernel = CppCompiler::<Hip>::default()
        .compile(definition, &options)
        .map_err(|error| error.to_string())?;
    Ok(Source { shared_memory: kernel.shared_memory_size, code: kernel.source })
}
