//! Lists in the form in which Burn can route them between backends.

use burn::backend::{Backend, ExtensionType, tensor::IntTensor};

/// The lists of a selection, ascending, with `-1` behind their ends.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct Selected<B: Backend> {
    /// Selection blocks, `[batch, tiles, heads_kv, num_selected]`.
    pub blocks: IntTensor<B>,
    /// Super-blocks of compressed blocks, `[batch, tiles, heads_kv, cmp_top]`.
    #[extension_type]
    pub super_blocks: OptionalLists<B>,
}

/// Lists that may be missing.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub enum OptionalLists<B: Backend> {
    /// There are none.
    None,
    /// There are some.
    Some {
        /// The lists.
        lists: IntTensor<B>,
    },
}
