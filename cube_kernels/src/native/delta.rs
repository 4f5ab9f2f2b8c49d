//! The kernel that prepares a backward pass: what its kernels need of each query besides its vectors.

use super::Element;

/// Name and CUDA C++ of the program for values of this length, on an architecture.
pub(crate) fn source(architecture: &str, element: Element, head_dim_v: usize) -> (String, String) {
    let is_bf16 = usize::from(element == Element::Bf16);
    let lanes = lanes(head_dim_v);
    let macros =
        format!("#define BF16 {is_bf16}\n#define DIM_V {head_dim_v}\n#define LANES {lanes}\n");
    let code = concat!(include_str!("cuda/device.cuh"), include_str!("cuda/delta.cu"));
    (format!("{architecture}_delta_{}_v{head_dim_v}", element.name()), macros + code)
}

/// Threads that share a row of it: each takes 8 elements at a time.
pub(crate) fn lanes(head_dim_v: usize) -> usize {
    (head_dim_v / 8).next_power_of_two().min(32)
}
