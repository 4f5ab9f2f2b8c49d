//! Exponentials.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::blueprint::{Compiler, Exponential};
use super::intrinsics::exp2_approximate;

/// The power of e, or of 2.
#[cube]
pub(super) fn power(argument: f32, #[comptime] exponential: Exponential) -> f32 {
    match comptime!(exponential) {
        Exponential::Library => argument.exp(),
        Exponential::Instruction(Compiler::Cpp) => exp2(argument),
        Exponential::Instruction(Compiler::Llvm) => exp2_approximate(argument),
    }
}

#[cube]
fn exp2(argument: f32) -> f32 {
    let result: f32;
    gpu_asm!(
        "ex2.approx.ftz.f32 {}, {};",
        out(_) result,
        in(_) argument,
        options(pure, nomem),
    );
    result
}
