//! Kernels for any CubeCL runtime.
