//! The native kernels on a Hopper GPU against brute force in `f64`.
//!
//! They run where `BURN_NATTEN_TEST_CUDA=1`; without it they pass with a line that says so.
//! `BURN_NATTEN_TEST_PROBLEMS` sets the number of random problems of each rank, 500 by default.
//! The filter `sample::` selects a few tiny launches of every kind, meant for compute-sanitizer.

mod backward;
mod bias;
mod blocks;
mod cublas;
mod decode;
mod edges;
mod graph;
mod host_time;
mod isolation;
mod large_scores;
mod layout;
mod origins;
mod packed;
mod random;
mod repeat;
mod run;
mod sample;
mod schedules;
mod selection;
mod ways;
