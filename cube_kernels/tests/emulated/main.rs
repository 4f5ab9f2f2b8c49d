//! The tensor-core kernels and the portable tiles on the CPU: what CubeCL's compiler to CUDA C++ makes of them, run by a small machine
//! (`machine.cpp`) that has planes, shared memory, asynchronous copies and matrix instructions, against brute
//! force in `f64`.
//!
//! Finds errors of indices, masks, barriers and waits without a GPU; times nothing. Needs a C++ compiler, and passes with
//! a line that says so where there is none, unless `BURN_NATTEN_REQUIRE_CXX=1`.

mod arguments;
mod assembly;
mod backward;
mod forward;
mod portable;
mod problems;
mod program;
#[allow(dead_code)]
#[path = "../native/run.rs"]
mod run;
#[allow(dead_code)]
#[path = "../support/mod.rs"]
mod support;

use burn_natten_kernels::tensor_core::{Capability, Exponential, Staging};

/// What the kernels may use under CubeCL's default compiler.
fn ampere() -> Capability {
    Capability::cuda(80).expect("compute capability 8.0 has matrix units")
}

/// What they may use with `cuda-cpp`.
fn asynchronous() -> Capability {
    Capability { staging: Staging::Async, exponential: Exponential::Instruction, ..ampere() }
}
