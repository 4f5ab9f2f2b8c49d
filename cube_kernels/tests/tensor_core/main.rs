//! The tensor-core kernels on a GPU against brute force in `f64`.
//!
//! They run where `BURN_NATTEN_TEST_CUDA=1`, or on cooperative matrices where `BURN_NATTEN_TEST_WGPU=1`; without either they pass with a
//! line that says so.
//! `BURN_NATTEN_TEST_PROBLEMS` sets the number of random problems of each rank, 200 by default, and
//! `BURN_NATTEN_TEST_SEED` which they are. Which of CubeCL's compilers makes the kernels is up to the feature `cuda-cpp`.

mod attend;
mod backward;
mod bias;
mod choice;
mod edges;
mod isolation;
mod large_scores;
mod layout;
mod packed;
mod precision;
mod random;
mod visibility;
mod ways;
