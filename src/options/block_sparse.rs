use super::{AttentionOptions, CausalAlignment, PerAxis, Strategy};
use crate::Context;

/// Parameters of [`block_sparse1d`](crate::block_sparse1d), [`block_sparse2d`](crate::block_sparse2d) and
/// [`block_sparse3d`](crate::block_sparse3d) on `N` spatial axes.
///
/// ```rust
/// use burn_natten::BlockSparseOptions;
///
/// // Tiles of 8 x 8 queries see boxes of 8 x 16 keys.
/// let options = BlockSparseOptions::<2>::new(8, [8, 16]).with_scale(0.125);
/// ```
#[derive(Clone, Debug)]
pub struct BlockSparseOptions<const N: usize> {
    pub(crate) query_block: [usize; N],
    pub(crate) key_block: [usize; N],
    pub(crate) is_causal: [bool; N],
    /// Queries from one key to the next, along a single axis, and where query 0 stands: instead of the alignment.
    pub(crate) edge: Option<Edge>,
    pub(crate) common: AttentionOptions,
}

/// The slanted edge of compressed attention: query `i` sees the keys up to `(i + origin) / step`, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    pub origin: isize,
    pub step: usize,
}

impl<const N: usize> BlockSparseOptions<N> {
    /// Boxes of `query_block` queries that share a list, and of `key_block` keys that an entry names, at least 1 along each
    /// axis. They need not divide the lengths of the axes: the last boxes are short.
    ///
    /// No axis is causal, the scale is `head_dim^-0.5`.
    pub fn new(
        query_block: impl Into<PerAxis<N, usize>>,
        key_block: impl Into<PerAxis<N, usize>>,
    ) -> Self {
        Self {
            query_block: query_block.into().0,
            key_block: key_block.into().0,
            is_causal: [false; N],
            edge: None,
            common: AttentionOptions::new(),
        }
    }

    /// Whether a query sees only keys up to where it stands along an axis, token by token, also inside a block; `false` by
    /// default. Where there are other queries than keys, [`with_causal_alignment`](Self::with_causal_alignment) says where
    /// that is.
    pub fn with_causal(mut self, is_causal: impl Into<PerAxis<N, bool>>) -> Self {
        self.is_causal = is_causal.into().0;
        self
    }

    /// Where the queries of causal axes stand among the keys; [`CausalAlignment::End`] by default.
    pub fn with_causal_alignment(mut self, alignment: CausalAlignment) -> Self {
        self.common = self.common.with_causal_alignment(alignment);
        self
    }

    /// The edge of compressed attention along every axis, instead of an alignment.
    pub(crate) fn with_edge(mut self, edge: Edge) -> Self {
        self.is_causal = [true; N];
        self.edge = Some(edge);
        self
    }

    /// Factor on the scores; `head_dim^-0.5` by default. An explicit zero is zero.
    pub fn with_scale(mut self, scale: impl Into<Option<f64>>) -> Self {
        self.common = self.common.with_scale(scale);
        self
    }

    /// Which implementation runs; [`Strategy::Auto`] by default. There are kernels for [`Strategy::Portable`] and
    /// [`Strategy::Reference`].
    pub fn with_strategy(mut self, strategy: Strategy) -> Self {
        self.common = self.common.with_strategy(strategy);
        self
    }

    /// Settings for this call and its backward pass; [`Context::current`] by default.
    pub fn with_context(mut self, context: Context) -> Self {
        self.common = self.common.with_context(context);
        self
    }
}
