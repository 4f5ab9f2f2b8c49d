//! The integration tests of burn-natten: one binary, whose modules are named after what they hold
//! the operators to.
//!
//! Flex is always under test; the features `cpu`, `cuda` and `wgpu` add devices, the last two only
//! when `BURN_NATTEN_TEST_CUDA=1` or `BURN_NATTEN_TEST_WGPU=1` says that the hardware is there.
#![recursion_limit = "256"]

mod suite;
mod support;
