//! What native sparse attention selects.

use crate::{Axis, Problem, Shape};

/// Which blocks the queries of native sparse attention select: sizes and parameters, no data.
///
/// Compressed block `i` stands for tokens `i * cmp_stride .. i * cmp_stride + cmp_block`, and a query sees those that are
/// complete where it stands. Queries are the last `rows` of `tokens`, and each `query_tile` of them share a list, by the
/// first of them, which stands at `a`:
///
/// ```text
/// P[x]      sum over the heads of a group of softmax(scale * q kc)[x] over the compressed blocks that a sees
/// score[j]  sum over x of P[x] * (tokens of compressed block x in selection block j) / cmp_stride
/// list      the forced blocks, and of those before a's the best, higher score first, lower number first among equals
/// ```
///
/// Forced are the first `num_init` blocks, and the `num_local` ones that end with that of `a`, with those behind it up to the
/// tile's last query.
///
/// ```rust
/// use burn_natten_kernels::sparse::Selection;
///
/// let mut selection = Selection::new(1000, 8, 64);
/// selection.heads_kv = 2;
/// selection.query_tile = 64;
/// assert_eq!((selection.compressed(), selection.blocks(), selection.tiles()), (61, 16, 16));
/// assert_eq!(selection.check(), Ok(()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Selection {
    /// Samples.
    pub batch: usize,
    /// Tokens of a sequence.
    pub tokens: usize,
    /// The last tokens, which have queries.
    pub rows: usize,
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of the compressed keys, each of which has a list.
    pub heads_kv: usize,
    /// Length of a query.
    pub head_dim: usize,
    /// Factor on the scores of the softmax.
    pub scale: f64,
    /// Tokens of a compressed block.
    pub cmp_block: usize,
    /// Tokens from one compressed block to the next.
    pub cmp_stride: usize,
    /// Tokens of a block that is selected.
    pub slc_block: usize,
    /// Entries of a list, the forced ones among them.
    pub num_selected: usize,
    /// Forced blocks at the beginning.
    pub num_init: usize,
    /// Forced blocks at the query, its own and those before.
    pub num_local: usize,
    /// Queries that share a list.
    pub query_tile: usize,
    /// Super-blocks of compressed blocks that are listed as well, if any are.
    pub cmp_top: Option<usize>,
    /// Compressed blocks of a super-block.
    pub cmp_group: usize,
}

/// Something for each kind of list that is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selected<T> {
    /// For blocks of tokens, `[batch, tiles, heads_kv, num_selected]`.
    pub blocks: T,
    /// For super-blocks, `[batch, tiles, heads_kv, cmp_top]`: there if, and only if, [`Selection::cmp_top`] is.
    pub compressed: Option<T>,
}

impl Selection {
    /// One sequence that has queries everywhere, as many heads of keys as of queries, a scale of `head_dim^-0.5`, and the
    /// paper's sizes: compressed blocks of 32 tokens, one every 16, and 16 selected blocks of 64 for each query, of which 1 is
    /// the first and 2 end with its own.
    pub fn new(tokens: usize, heads: usize, head_dim: usize) -> Self {
        Self {
            batch: 1,
            tokens,
            rows: tokens,
            heads,
            heads_kv: heads,
            head_dim,
            scale: (head_dim as f64).powf(-0.5),
            cmp_block: 32,
            cmp_stride: 16,
            slc_block: 64,
            num_selected: 16,
            num_init: 1,
            num_local: 2,
            query_tile: 1,
            cmp_top: None,
            cmp_group: 128,
        }
    }

    /// Compressed blocks of a sequence.
    pub fn compressed(&self) -> usize {
        match self.tokens.checked_sub(self.cmp_block) {
            Some(rest) => rest / self.cmp_stride + 1,
            None => 0,
        }
    }

    /// Blocks of a sequence that can be selected.
    pub fn blocks(&self) -> usize {
        self.tokens.div_ceil(self.slc_block)
    }

    /// Super-blocks of a sequence.
    pub fn super_blocks(&self) -> usize {
        self.compressed().div_ceil(self.cmp_group)
    }

    /// Tiles of the queries.
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(self.query_tile)
    }

    /// Lists of one kind.
    pub fn lists(&self) -> usize {
        self.batch * self.tiles() * self.heads_kv
    }

    /// The shapes of queries and compressed keys.
    pub fn shapes(&self) -> [Shape; 2] {
        let of = |tokens, heads| Shape {
            batch: self.batch,
            tokens: [1, 1, tokens],
            heads,
            dim: self.head_dim,
        };
        [of(self.rows, self.heads), of(self.compressed(), self.heads_kv)]
    }

    /// Fails, in words, where some number is out of its bounds.
    ///
    /// # Errors
    ///
    /// What has to hold, and the numbers for which it does not.
    pub fn check(&self) -> Result<(), String> {
        let Self { rows, tokens, heads, heads_kv, cmp_stride, query_tile, num_selected, .. } =
            *self;
        let (block, selected) = (self.cmp_block, self.slc_block);
        let must = |holds: bool, what: String| if holds { Ok(()) } else { Err(what) };
        must(
            heads_kv > 0 && heads.is_multiple_of(heads_kv) && heads > 0,
            format!("heads_kv has to divide heads, which are {heads}; got {heads_kv}"),
        )?;
        must(self.head_dim > 0, "head_dim has to be at least 1; got 0".into())?;
        must(
            cmp_stride > 0 && block.is_multiple_of(cmp_stride) && block > 0,
            format!("cmp_stride has to divide cmp_block, which is {block}; got {cmp_stride}"),
        )?;
        must(
            selected.is_multiple_of(cmp_stride) && selected > 0,
            format!("cmp_stride has to divide slc_block, which is {selected}; got {cmp_stride}"),
        )?;
        must(
            query_tile > 0
                && (query_tile.is_multiple_of(selected) || selected.is_multiple_of(query_tile)),
            format!(
                "query_tile has to divide slc_block, which is {selected}, or be a multiple of it; got {query_tile}"
            ),
        )?;
        must(
            rows <= tokens && (tokens - rows).is_multiple_of(query_tile),
            format!(
                "the first of the last {rows} of {tokens} rows has to start a tile of {query_tile}"
            ),
        )?;
        must(self.num_local > 0, "num_local has to be at least 1; got 0".into())?;
        let own = (query_tile / selected).max(1);
        let forced = self.num_init.saturating_add(self.num_local - 1).saturating_add(own);
        must(
            num_selected >= forced,
            format!("num_selected has to hold the {forced} forced blocks; got {num_selected}"),
        )?;
        let Some(top) = self.cmp_top else { return Ok(()) };
        must(self.cmp_group > 0, "cmp_group has to be at least 1; got 0".into())?;
        let forced = 1 + (query_tile - 1).div_ceil(cmp_stride).div_ceil(self.cmp_group);
        must(top >= forced, format!("cmp_top has to hold the {forced} forced ones; got {top}"))
    }

    /// Compressed blocks from one block, or super-block, to the next, and how many of them overlap a point.
    pub(crate) fn overlap(&self, is_super: bool) -> (usize, usize) {
        match is_super {
            true => (self.cmp_group, 1),
            false => (self.slc_block / self.cmp_stride, self.cmp_block / self.cmp_stride),
        }
    }

    /// Attention of the queries to all compressed keys, which has the same tensors.
    #[cfg_attr(not(feature = "cube"), allow(dead_code))]
    pub(crate) fn problem(&self) -> Problem {
        Problem::new([Axis::dense(self.rows, self.compressed(), false)], self.heads, self.head_dim)
            .with_batch(self.batch)
            .with_heads_kv(self.heads_kv)
            .with_scale(self.scale)
    }
}
