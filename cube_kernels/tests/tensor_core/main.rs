//! The tensor-core kernels on a GPU against brute force in `f64`.
//!
//! They run where `BURN_NATTEN_TEST_CUDA=1`; without it they pass with a line that says so.
//! `BURN_NATTEN_TEST_PROBLEMS` sets the number of random problems of each rank, 200 by default, and
//! `BURN_NATTEN_TEST_SEED` which they are. Which of CubeCL's compilers makes the kernels is up to the feature `cuda-cpp`.

#[allow(unused_macros)]
#[macro_use]
#[allow(dead_code)]
#[path = "../native/problems.rs"]
mod problems;

mod attend;
mod backward;
mod choice;
mod edges;
#[path = "../support/element.rs"]
mod element;
#[path = "../native/isolation.rs"]
mod isolation;
#[path = "../native/large_scores.rs"]
mod large_scores;
mod layout;
mod precision;
mod random;
#[path = "../emulated/rounding.rs"]
mod rounding;
#[allow(dead_code)]
#[path = "../native/run.rs"]
mod run;
#[allow(dead_code)]
#[path = "../support/mod.rs"]
mod support;
#[allow(dead_code)]
#[path = "../../examples/tensor_core_tune.rs"]
mod tune;

mod visibility;
mod ways;

/// The example, so that one binary can be carried to a machine with a GPU: arguments in
/// `BURN_NATTEN_TUNE`.
#[test]
#[ignore = "measures"]
fn tune_candidates() {
    let arguments = std::env::var("BURN_NATTEN_TUNE").unwrap_or_default();
    tune::tune(arguments.split_whitespace().map(String::from));
}
