//! How one plane of a pair waits for the other.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::blueprint::{Compiler, Staging};
use super::intrinsics::{arrive, meet};

/// Tells the other plane of pair number `pair` that what this one has written to shared memory is there. Where the compiler
/// has no barriers but that of the cube, all planes wait.
#[cube]
pub(super) fn tell(pair: usize, #[comptime] staging: Staging) {
    // Number 0 is the cube's own barrier.
    let barrier = pair as u32 + 1;
    match comptime!(staging) {
        Staging::Registers => sync_cube(),
        Staging::Async(Compiler::Cpp) => {
            gpu_asm!("bar.arrive {}, 64;", in(_) barrier);
        }
        Staging::Async(Compiler::Llvm) => arrive(barrier),
    }
}

/// Waits until the other plane of the pair has told.
#[cube]
pub(super) fn hear(pair: usize, #[comptime] staging: Staging) {
    let barrier = pair as u32 + 1;
    match comptime!(staging) {
        Staging::Registers => sync_cube(),
        Staging::Async(Compiler::Cpp) => {
            gpu_asm!("bar.sync {}, 64;", in(_) barrier);
        }
        Staging::Async(Compiler::Llvm) => meet(barrier),
    }
}
