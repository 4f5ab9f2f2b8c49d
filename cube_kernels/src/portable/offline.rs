//! Tiled kernels as CubeCL's compilers for CUDA leave them, made without a GPU.

use cubecl::ir::ElemType;

use super::blueprint::Blueprint;
use super::tiled;
use crate::tensor_core::offline::{compile, properties, settings, target};

use crate::tensor_core::Compiler;
pub use crate::tensor_core::offline::Program;
use crate::{KernelError, Packed};

/// The table from which the cubes of a kernel learn of which sequence they are, and how many cubes there are.
///
/// # Errors
///
/// [`KernelError`].
pub fn sequences(blueprint: &Blueprint, packed: &Packed) -> Result<(Vec<u32>, usize), KernelError> {
    crate::cube::sequences(packed, &blueprint.cut())
}

/// Translates the kernel of a blueprint for compute capability `arch`, as 80 or 90.
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
    let settings = settings(blueprint.units());
    let kernel = tiled::definition(blueprint, dtype, settings, properties(), target());
    compile(kernel, arch, compiler)
}
