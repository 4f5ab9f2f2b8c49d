//! The tests, one module for each promise.

mod golden;
mod windows;
