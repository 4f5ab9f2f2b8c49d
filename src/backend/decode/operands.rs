//! What decoding reads and gives, in the form in which Burn can route it between backends.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, ExtensionType};

use crate::backend::unfused::Optional;

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

/// Keys, or values, of the new token, `[batch, 1, heads_kv, dim]`.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct NewTokens<B: Backend> {
    pub selected: FloatTensor<B>,
    /// For what is not compressed yet, and for the window, where these are not those of the selected branch.
    #[extension_type]
    pub compressed: Optional<B>,
    #[extension_type]
    pub window: Optional<B>,
}

/// Keys, or values, of a cache, `[batch, capacity, heads_kv, dim]`.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct Memory<B: Backend> {
    /// Compressed blocks.
    pub compressed: FloatTensor<B>,
    /// All tokens.
    pub selected: FloatTensor<B>,
    /// What is not compressed yet, and the window, where these are not among all tokens.
    #[extension_type]
    pub rest: Optional<B>,
    #[extension_type]
    pub window: Optional<B>,
}

/// The new token, and what came before it. Memory that nobody else holds is written in place.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct AppendInputs<B: Backend> {
    /// `[batch, 1, heads, head_dim]`
    pub query: FloatTensor<B>,
    /// `[batch, 1, heads, 3]`
    pub gates: FloatTensor<B>,
    #[extension_type]
    pub key: NewTokens<B>,
    #[extension_type]
    pub value: NewTokens<B>,
    #[extension_type]
    pub keys: Memory<B>,
    #[extension_type]
    pub values: Memory<B>,
}

/// What decoding gives, and the memory with the new token in it.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct AppendResults<B: Backend> {
    #[extension_type]
    pub results: DecodeResults<B>,
    #[extension_type]
    pub keys: Memory<B>,
    #[extension_type]
    pub values: Memory<B>,
}
