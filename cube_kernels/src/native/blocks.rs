//! Launches of block-sparse attention: the kernels of attention, whose columns are those of listed blocks. What they walk over is made of
//! the lists by a kernel ahead of them, see `cuda/lists.cu` and `cuda/listed.cuh`.

#[cfg(feature = "cuda")]
mod launch;

#[cfg(feature = "cuda")]
pub(super) use launch::{
    Boxes, Makers, Walk, check_backward, check_forward, enqueue_backward, enqueue_forward,
};

/// Tokens of the fastest axis: positions have 26 bits, and what fills a step lies behind them.
pub(super) const LONGEST: usize = (1 << 26) - 128;
/// Tokens of the other axes, whose positions have 16 bits.
pub(super) const LONGEST_SLOW: usize = 1 << 16;
/// Tokens that the keys of a causal axis stand for.
pub(super) const LONGEST_STEPS: usize = 1 << 30;

/// Name and CUDA C++ of the kernel that makes what others walk over: of lists, or of lists that were turned around.
pub(super) fn source(architecture: &str, is_turned: bool) -> (String, String) {
    let code = concat!(
        include_str!("cuda/device.cuh"),
        include_str!("cuda/window.cuh"),
        include_str!("cuda/lists.cu"),
    );
    let suffix = if is_turned { "_turned" } else { "" };
    (
        format!("{architecture}_lists{suffix}"),
        format!("#define TURNED {}\n{code}", usize::from(is_turned)),
    )
}
