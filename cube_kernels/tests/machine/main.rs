//! The native kernels on a CPU: their own C++, with the launches that they get, on a model of the machine that their instructions are
//! for (`cpp/machine.h`), held to the oracle as on a device.
//!
//! Finds what a device may hide: waits that are missing but were long over, races, fences, registers and tensor memory in use, memory outside
//! of buffers. Times nothing. Needs a C++ compiler, and passes with a line that says so where there is none, unless
//! `BURN_NATTEN_REQUIRE_CXX=1`. The few problems and faults that run by themselves take a minute of one core; `--ignored` runs
//! all of them in some ten.

mod bias;
mod blackwell;
mod blocks;
mod decode;
mod early;
mod faults;
mod golden;
mod packed;
mod program;
mod references;
mod repair;
mod run;
mod samples;
mod selection;
mod slopes;
mod splits;
mod teams;
mod text;
mod unfused;
mod unseen;
mod views;
mod ways;
