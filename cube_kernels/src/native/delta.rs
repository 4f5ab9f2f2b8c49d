//! The kernel that prepares a backward pass: what its kernels need of each query besides its vectors.

use super::Element;

/// Name and CUDA C++ of the program for values of which it reads so many elements, on an architecture.
pub(crate) fn source(
    architecture: &str,
    element: Element,
    head_dim_v: usize,
    is_packed: bool,
) -> (String, String) {
    let (bf16, packed) = (usize::from(element == Element::Bf16), usize::from(is_packed));
    let (lanes, rows) = (lanes(head_dim_v), rows(is_packed));
    let macros = format!(
        "#define BF16 {bf16}\n#define DIM_V {head_dim_v}\n#define LANES {lanes}\n#define ROWS {rows}\n#define PACKED {packed}\n"
    );
    let code = concat!(
        include_str!("cuda/device.cuh"),
        include_str!("cuda/sequences.cuh"),
        include_str!("cuda/divisor.cuh"),
        include_str!("cuda/query_statistics.cuh"),
        include_str!("cuda/delta.cu"),
    );
    let suffix = if is_packed { "_packed" } else { "" };
    let name = format!("{architecture}_delta_{}_v{head_dim_v}{suffix}", element.name());
    (name, macros + code)
}

/// Threads that share a row of it: each takes 8 elements at a time. One, where none is read.
pub(crate) fn lanes(head_dim_v: usize) -> usize {
    (head_dim_v / 8).next_power_of_two().min(32)
}

/// Rows that each of these groups of threads has.
pub(crate) fn rows(is_packed: bool) -> usize {
    if is_packed { 4 } else { 1 }
}
