//! The tensor-core kernels and the portable tiles on the CPU: what CubeCL's compiler to CUDA C++ makes of them, run by a small machine
//! (`machine.cpp`) that has planes, shared memory, asynchronous copies and matrix instructions, against brute
//! force in `f64`.
//!
//! Finds errors of indices, masks, barriers and waits without a GPU; times nothing. Needs a C++ compiler, and passes with
//! a line that says so where there is none, unless `BURN_NATTEN_REQUIRE_CXX=1`.

mod arguments;
mod assembly;
mod backward;
mod bias;
mod forward;
mod packed;
mod portable;
mod precision;
mod problems;
mod program;

use burn_natten_kernels::tensor_core::{Capability, Compiler, Exponential, Staging};

/// What the kernels may use with `cuda-cpp`.
fn asynchronous() -> Capability {
    let ampere = Capability::cuda(80).expect("compute capability 8.0 has matrix units");
    ampere.with_compiler(Compiler::Cpp)
}

/// What they may use where a compiler is told of no instruction but that for matrices.
fn plain() -> Capability {
    let (staging, exponential) = (Staging::Registers, Exponential::Library);
    Capability { staging, exponential, ..asynchronous() }
}

/// What they may use where fragments are the runtime's.
fn cooperative(side: usize) -> Capability {
    plain().with_cmma([side; 3])
}

/// All of these.
fn ways() -> [Capability; 4] {
    [asynchronous(), plain(), cooperative(16), cooperative(8)]
}

/// The same for f32 that is rounded to tf32.
fn tf32(capability: Capability) -> Capability {
    capability.with_tf32().expect("compute capability 8.0 multiplies it")
}
