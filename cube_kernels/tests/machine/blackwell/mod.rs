//! Blackwell's kernels, which have run nowhere else: problems of every kind, both passes, held to the oracle as on a device.
//!
//! `BURN_NATTEN_TEST_PROBLEMS` sets the number of random problems, 4 by default. All that there is, a rank at a time:
//!
//! ```sh
//! BURN_NATTEN_TEST_PROBLEMS=300 cargo test -p burn-natten-kernels --features cpu,cuda --test machine -- blackwell --include-ignored --nocapture
//! ```

mod edges;
mod golden;
mod isolation;
mod kinds;
mod random;
mod views;
pub mod ways;
