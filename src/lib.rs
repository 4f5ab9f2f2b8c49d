//! Neighborhood attention, dense attention with logsumexp, and merging of partial attentions for
//! the [Burn](https://burn.dev) deep-learning framework.
//!
//! Neighborhood attention lets each token of a sequence, image or video attend to the `kernel_size`
//! nearest tokens along each axis, so its cost grows linearly with the number of tokens.
//!
//! ```rust
//! use burn::tensor::{Device, Distribution, Tensor};
//! use burn_natten::{NeighborhoodOptions, na2d};
//!
//! let device = Device::flex().autodiff();
//! // [batch, height, width, heads, head_dim]
//! let features = || Tensor::<5>::random([1, 16, 16, 4, 32], Distribution::Default, &device);
//! let query = features().require_grad();
//! let (key, value) = (features(), features());
//!
//! // Every pixel attends to 7 x 7 others: neighbors along the height, every second along the width.
//! let options = NeighborhoodOptions::<2>::new(7).with_dilation([1, 2]);
//! let out = na2d(query.clone(), key, value, options);
//! println!("output   {:?}", out.dims());
//!
//! let gradients = out.sum().backward();
//! let gradient = query.grad(&gradients).expect("the output depends on the query");
//! println!("gradient {:?}", gradient.dims());
//! ```
//!
//! # Operators
//!
//! [`na1d`], [`na2d`] and [`na3d`] (neighborhood attention), [`attention`] (dense) and
//! [`merge_attentions`]; the halves of the former, for whoever wants to see or to change attention weights:
//! [`na1d_qk`], [`na1d_av`] and so on; [`block_sparse1d`], [`block_sparse2d`] and [`block_sparse3d`], whose queries see the blocks
//! of keys in a list; [`attention_packed`], [`na1d_packed`] and so on for sequences of different sizes in one call; and
//! [`native_sparse_attention`] for long sequences. Each panics with the text of an [`AttentionError`] on bad input, as Burn's
//! own operators do; its `try_` twin returns the error, and the logsumexp beside the output. Every
//! output is differentiable on every backend, the logsumexp included.
//!
//! # Layout
//!
//! Tensors are heads-last: query, key and value `[batch, *space, heads, head_dim]`, logsumexp
//! `[batch, *space, heads]`. The logsumexp is the natural logarithm of the sum of the exponentials
//! of the scaled scores, with their bias, f32 (f64 for f64 inputs), and `-inf` where a query sees no key.
//!
//! # The window
//!
//! Along an axis of length `L`, with kernel size `K`, stride `S` and dilation `D`, index `i` is
//! number `q = i / D` of the `n` indices that share its remainder modulo `D`, and sees the `K` of
//! them around it:
//!
//! ```text
//! L = 9, K = 3, S = 1, D = 1          L = 9, K = 3, S = 1, D = 2       causal
//! query 0  ###......                  query 0  #.#.#....               query 0  #........
//! query 1  ###......                  query 1  .#.#.#...               query 1  ##.......
//! query 4  ...###...                  query 4  ..#.#.#..               query 4  ..###....
//! query 8  ......###                  query 8  ....#.#.#               query 8  ......###
//! ```
//!
//! Edges shift a window instead of shrinking it. A stride makes `S` neighboring queries share the
//! window of the one in their middle (`S == K` is blocked attention), and a causal axis hides keys
//! behind the query. Axes are independent: a key is visible when it is visible along all of them.
//!
//! # Tiers
//!
//! [`Strategy::Auto`] picks the fastest implementation that the device of the tensors has: a direct
//! SIMD kernel on Burn's Flex backend, CubeCL kernels on every CubeCL runtime (CUDA, ROCm, Metal,
//! Vulkan, WebGPU, CPU), CubeCL kernels on the tensor cores of NVIDIA GPUs from Ampere on in f16 and bf16, and
//! native CUDA kernels on Hopper and data-center Blackwell GPUs in the same types, which NVRTC compiles at
//! their first use ([`warm_up`] and [`warm_up_training`] do it beforehand). Those for Blackwell have never run on one, and are held to the
//! Portable kernels at their first use. [`Strategy::Reference`]
//! composes Burn's tensor operations and runs anywhere. [`plan::explain`] says which of them a problem would run on and what bounds it,
//! [`profile`] measures it, and the command-line tool `natten-profiler` (feature `profiler`) does both.
//!
//! # Determinism
//!
//! No tier sums by atomics: the same inputs on the same device give the same bits, forward and backward; from run to run too, unless the
//! TensorCore tier chooses its kernels by measurement ([`Context::with_autotune`]). The one atomic counter there is, of native backward
//! passes, says which multiprocessor takes the next tile, and not what comes out.
//!
//! # Guide
//!
//! [`guide`] has a page on each of these topics, and on memory, precision, errors and settings.
#![warn(missing_docs)]
#![recursion_limit = "256"]

mod backend;
pub mod block_lists;
mod context;
mod error;
mod functional;
#[cfg(doc)]
pub mod guide;
#[cfg(feature = "models")]
pub mod models;
mod names;
pub mod nn;
pub mod nsa;
#[cfg(feature = "optim")]
pub mod optim;
mod options;
pub mod packed;
pub mod parallel;
pub mod plan;
mod problem;
pub mod profile;
mod tier;
mod warm_up;

pub use burn_natten_kernels::{Axis, BlockSparse, Problem};
pub use context::{Context, ContextScope, MemoryPreference};
pub use error::AttentionError;
pub use functional::{
    AttentionOutput, BlockSparseOutput, NeighborhoodOutput, attention, attention_packed,
    block_sparse1d, block_sparse2d, block_sparse3d, merge_attentions, na1d, na1d_av, na1d_packed,
    na1d_qk, na2d, na2d_av, na2d_packed, na2d_qk, na3d, na3d_av, na3d_packed, na3d_qk,
    try_attention, try_attention_packed, try_block_sparse1d, try_block_sparse2d,
    try_block_sparse3d, try_merge_attentions, try_na1d, try_na1d_av, try_na1d_packed, try_na1d_qk,
    try_na2d, try_na2d_av, try_na2d_packed, try_na2d_qk, try_na3d, try_na3d_av, try_na3d_packed,
    try_na3d_qk,
};
pub use names::UnknownName;
pub use nn::{
    NeighborhoodAttention1d, NeighborhoodAttention1dConfig, NeighborhoodAttention2d,
    NeighborhoodAttention2dConfig, NeighborhoodAttention3d, NeighborhoodAttention3dConfig,
};
pub use nsa::{
    NativeSparseCache, NativeSparseOutput, Pooling, compress_tokens, compressed_attention,
    native_sparse_attention, native_sparse_attention_packed, select_blocks, try_compress_tokens,
    try_compressed_attention, try_native_sparse_attention, try_native_sparse_attention_packed,
    try_select_blocks,
};
pub use options::{
    AttentionOptions, BlockSparseOptions, CausalAlignment, Mslk, NativeSparseAttentionOptions,
    NeighborhoodOptions, PerAxis, Strategy,
};
pub use packed::{Lengths, Spaces, Window};
pub use tier::{Capabilities, TensorCores, Tier, select};
pub use warm_up::{warm_up, warm_up_training};

/// The README's code runs as tests.
#[cfg(all(doctest, feature = "flex", feature = "autodiff"))]
#[doc = include_str!("../README.md")]
struct Readme;
