//! What decoding reads and gives, in the form in which Burn can route it between backends.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, ExtensionType};

/// Tokens are compressed ones, all raw ones, and those that the window may see: `[batch, tokens, heads_kv, dim]`.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct DecodeInputs<B: Backend> {
    /// `[batch, 1, heads, head_dim]`
    pub query: FloatTensor<B>,
    /// `[batch, 1, heads, 3]`
    pub gates: FloatTensor<B>,
    pub compressed_key: FloatTensor<B>,
    pub compressed_value: FloatTensor<B>,
    pub key: FloatTensor<B>,
    pub value: FloatTensor<B>,
    pub window_key: FloatTensor<B>,
    pub window_value: FloatTensor<B>,
}

/// Outputs `[batch, 1, heads, head_dim_v]` and logsumexps `[batch, 1, heads]`.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct DecodeResults<B: Backend> {
    /// The branches' outputs, weighed by the gates.
    pub out: FloatTensor<B>,
    pub compressed: FloatTensor<B>,
    pub selected: FloatTensor<B>,
    pub window: FloatTensor<B>,
    pub compressed_logsumexp: FloatTensor<B>,
    pub selected_logsumexp: FloatTensor<B>,
    pub window_logsumexp: FloatTensor<B>,
    /// `[batch, 1, heads_kv, num_selected]`
    pub blocks: IntTensor<B>,
}
