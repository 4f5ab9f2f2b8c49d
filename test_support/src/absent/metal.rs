//! Metal's shading language, as CubeCL's compiler for Apple writes it.

use cubecl_core::{Compiler as _, CubeKernel, define_kernel};
use cubecl_cpp::shared::{CompilationOptions, CppCompiler};
use cubecl_cpp::target::Metal;

use super::hip::Source;

/// Translates a kernel for planes of 32 units.
///
/// # Errors
///
/// What CubeCL says.
pub fn translate(kernel: &dyn CubeKernel) -> Result<Source, String> {
    let options = CompilationOptions { warp_size: 32, ..Default::default() };
    let definition = define_kernel(kernel).map_err(|error| error.to_string())?;
    let kernel = CppCompiler::<Metal>::default()
        .compile(definition, &options)
        .map_err(|error| error.to_string())?;
    Ok(Source { shared_memory: kernel.shared_memory_size, code: kernel.source })
}
