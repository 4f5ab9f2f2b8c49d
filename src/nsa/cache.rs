use burn::tensor::{Device, Int, Tensor};

use super::attention::{attend, check};
use super::memory::TokenMemory;
use super::packed::joined;
use super::{BranchTokens, NativeSparseOutput, PerBranch, span};
use crate::options::Sizes;
use crate::problem::native_sparse::{must, sizes, strategy};
use crate::problem::same;
use crate::{AttentionError, NativeSparseAttentionOptions};

/// What native sparse attention remembers of a sequence that is read, or written, token by token.
///
/// Keys and values of the tokens for the selected branch, and compressed ones, of all tokens; the last tokens for what is
/// not compressed yet, and for the window where it has keys of its own; the list of the tile of queries that is not complete. A step reads
/// `tokens / cmp_stride + num_selected * slc_block + window` keys of them, and writes its own: memory is taken ahead.
///
/// Its rows are those of [`native_sparse_attention`](crate::native_sparse_attention) of the whole sequence, whether they come one by one, or as
/// a prompt and then one by one. A batch grows together. On a device with autodiff it works as well, but then the tape holds the memory of every step: decode without.
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::{NativeSparseAttentionOptions, NativeSparseCache, native_sparse_attention};
///
/// let device = Device::flex();
/// let random = |heads, dim| {
///     Tensor::<4>::random([2, 90, heads, dim], Distribution::Default, &device)
/// };
/// let (query, key, value, gates) = (random(4, 8), random(2, 8), random(2, 8), random(4, 3));
/// let options = NativeSparseAttentionOptions::new().with_num_selected(4).with_window(20);
///
/// let mut cache = NativeSparseCache::new(options.clone());
/// let mut append = |start, count| {
///     let [query, key, value, gates] = [&query, &key, &value, &gates]
///         .map(|tensor| tensor.clone().narrow(1, start, count));
///     cache.append(query, key, value, gates)
/// };
/// let mut rows = vec![append(0, 80)];
/// rows.extend((80..90).map(|token| append(token, 1)));
///
/// let whole = native_sparse_attention(query, key, value, gates, options);
/// assert!(Tensor::cat(rows, 1).all_close(whole, None, Some(1e-5)));
/// ```
#[derive(Clone, Debug)]
pub struct NativeSparseCache {
    options: NativeSparseAttentionOptions,
    tokens: usize,
    like: Option<Like>,
    /// Of keys, and of values.
    memory: [TokenMemory; 2],
    /// The lists of a tile that is not complete.
    blocks: Option<Tensor<4, Int>>,
    cmp_blocks: Option<Tensor<4, Int>>,
}

/// What all tokens of a sequence share.
#[derive(Clone, Debug)]
struct Like {
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    is_shared: [bool; 2],
}

impl NativeSparseCache {
    /// A sequence without tokens.
    ///
    /// # Panics
    ///
    /// With the text of the [`AttentionError`] that [`try_new`](Self::try_new) returns.
    #[track_caller]
    pub fn new(options: NativeSparseAttentionOptions) -> Self {
        match Self::try_new(options) {
            Ok(cache) => cache,
            Err(error) => panic!("{error}"),
        }
    }

    /// [`new`](Self::new), with an error instead of a panic.
    ///
    /// # Errors
    ///
    /// An [`AttentionError`] if the options do not fit together, or hold what belongs to one call: lists, compressed tokens, MSLK's attention, which
    /// looks ahead.
    pub fn try_new(options: NativeSparseAttentionOptions) -> Result<Self, AttentionError> {
        sizes(&options)?;
        strategy(&options)?;
        let none = |what, is_none| must(what, 1, is_none, || "none where there is a cache".into());
        none("number of given lists", options.blocks.is_none() && options.cmp_blocks.is_none())?;
        none("number of given compressed tokens", options.compressed.is_none())?;
        none("number of MSLK's attentions", options.mslk.is_none())?;
        Ok(Self {
            options,
            tokens: 0,
            like: None,
            memory: Default::default(),
            blocks: None,
            cmp_blocks: None,
        })
    }

    /// Tokens so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Appends tokens and attends with their queries. One more token or many, as a prompt.
    ///
    /// # Shapes
    ///
    /// - query: `[batch, rows, heads, head_dim]`
    /// - key: `[batch, rows, heads_kv, head_dim]`, one tensor, or one for each branch; always the same
    /// - value: `[batch, rows, heads_kv, head_dim_v]`, likewise
    /// - gates: `[batch, rows, heads, 3]`
    /// - returns `[batch, rows, heads, head_dim_v]`
    ///
    /// # Panics
    ///
    /// With the text of the [`AttentionError`] that [`try_append`](Self::try_append) returns.
    #[track_caller]
    pub fn append(
        &mut self,
        query: Tensor<4>,
        key: impl Into<BranchTokens>,
        value: impl Into<BranchTokens>,
        gates: Tensor<4>,
    ) -> Tensor<4> {
        match self.try_append(query, key, value, gates) {
            Ok(output) => output.out,
            Err(error) => panic!("{error}"),
        }
    }

    /// [`append`](Self::append), with the branches and the lists of the tiles that the rows are in.
    ///
    /// # Errors
    ///
    /// An [`AttentionError`] names what does not fit. The cache is then as it was, unless a device fails on the way or does not have the
    /// strategy that was asked for by name: then it holds part of the tokens, and is of no more use.
    pub fn try_append(
        &mut self,
        query: Tensor<4>,
        key: impl Into<BranchTokens>,
        value: impl Into<BranchTokens>,
        gates: Tensor<4>,
    ) -> Result<NativeSparseOutput, AttentionError> {
        let (key, value) = (key.into(), value.into());
        check(&query, &key, &value, &gates, &self.options)?;
        let cmp_block = self.options.sizes.cmp_block;
        self.options.pool_key.check(("key", &key.tokens.compressed), cmp_block)?;
        self.options.pool_value.check(("value", &value.tokens.compressed), cmp_block)?;
        let (rows, got) = (query.dims()[1], key.tokens.selected.dims()[1]);
        must("tokens of key", got, got == rows, || format!("{rows} (tokens of query)"))?;
        self.fits(&query, &key, &value)?;
        // A tile that has begun goes on with its list.
        let tile = self.options.sizes.query_tile;
        let first = ((tile - self.tokens % tile) % tile).min(rows);
        if first == 0 || first == rows {
            return self.piece(query, key, value, gates);
        }
        let mut part = |start, count| {
            let of = |tensor: Tensor<4>| tensor.narrow(1, start, count);
            let (key, value) = (key.clone().map(of), value.clone().map(of));
            self.piece(of(query.clone()), key, value, of(gates.clone()))
        };
        Ok(joined(vec![part(0, first)?, part(first, rows - first)?]))
    }

    /// Fails unless tokens are like those before.
    fn fits(
        &mut self,
        query: &Tensor<4>,
        key: &BranchTokens,
        value: &BranchTokens,
    ) -> Result<(), AttentionError> {
        let is_shared = [key, value].map(BranchTokens::is_shared);
        let none = |tensor: &Tensor<4>| span(tensor.clone(), 0, 0);
        let like = self.like.get_or_insert_with(|| Like {
            query: none(query),
            key: none(&key.tokens.selected),
            value: none(&value.tokens.selected),
            is_shared,
        });
        const BEFORE: &str = "the cache";
        for (name, got, like) in [
            ("query", query, &like.query),
            ("key", &key.tokens.selected, &like.key),
            ("value", &value.tokens.selected, &like.value),
        ] {
            crate::functional::inputs::matches((name, got), (BEFORE, like))?;
            for (axis, what) in [(0, "batch"), (2, "heads"), (3, "head_dim")] {
                same(&got.dims(), name, &like.dims(), BEFORE, axis, what)?;
            }
        }
        let sets = |is_shared: bool| if is_shared { 1 } else { 3 };
        for ((name, got), expected) in
            ["tensors of key", "tensors of value"].into_iter().zip(is_shared).zip(like.is_shared)
        {
            must(name, sets(got), got == expected, || {
                format!("{} as in {BEFORE}", sets(expected))
            })?;
        }
        Ok(())
    }

    /// Appends rows that are within the tile that has begun, or begin one.
    fn piece(
        &mut self,
        query: Tensor<4>,
        key: BranchTokens,
        value: BranchTokens,
        gates: Tensor<4>,
    ) -> Result<NativeSparseOutput, AttentionError> {
        let (rows, before) = (query.dims()[1], self.tokens);
        let sizes = self.options.sizes;
        let mut options = self.options.clone();
        if !before.is_multiple_of(sizes.query_tile) {
            (options.blocks, options.cmp_blocks) = (self.blocks.clone(), self.cmp_blocks.clone());
        }
        self.tokens = before + rows;
        #[cfg(feature = "cuda")]
        let at_once = {
            let new = [&query, &gates];
            super::decode::append(&mut self.memory, new, [&key, &value], before, &options)
        };
        #[cfg(not(feature = "cuda"))]
        let at_once = None;
        let output = match at_once {
            Some(output) => output,
            None => {
                let [keys, values] = &mut self.memory;
                let keys = keys.append(key, &options.pool_key, &sizes, before);
                let values = values.append(value, &options.pool_value, &sizes, before);
                let tokens = PerBranch {
                    compressed: [keys.compressed, values.compressed],
                    selected: [keys.selected, values.selected],
                    window: [keys.window, values.window],
                };
                attend(query, tokens, self.tokens, gates, options)?
            }
        };
        if self.tokens.is_multiple_of(sizes.query_tile) {
            (self.blocks, self.cmp_blocks) = (None, None);
        } else if before.is_multiple_of(sizes.query_tile) {
            self.remember(before, &output);
        }
        Ok(output)
    }

    /// Keeps the lists of the last tile, which is not complete.
    fn remember(&mut self, before: usize, output: &NativeSparseOutput) {
        let (sizes, rows) = (self.options.sizes, self.tokens - before);
        let last = rows.div_ceil(sizes.query_tile) - 1;
        let tile = Tile { sizes, first: before + last * sizes.query_tile, tokens: self.tokens };
        let of_tile = |lists: &Tensor<4, Int>| lists.clone().narrow(1, last, 1);
        self.blocks = Some(tile.with_missing_blocks(of_tile(&output.blocks)));
        self.cmp_blocks =
            output.cmp_blocks.as_ref().map(|lists| tile.with_missing_super_blocks(of_tile(lists)));
    }

    /// Memory of raw and compressed tokens of all branches, in tokens of a head.
    #[doc(hidden)]
    pub fn capacity(&self) -> usize {
        self.memory.iter().map(TokenMemory::capacity).sum()
    }
}

/// A tile of queries of which not all are there yet.
struct Tile {
    sizes: Sizes,
    first: usize,
    tokens: usize,
}

impl Tile {
    /// Lists with the blocks of the tile that have no token yet: they are forced, and were dropped from the end.
    fn with_missing_blocks(&self, lists: Tensor<4, Int>) -> Tensor<4, Int> {
        let (own, last) = self.sizes.own(self.first);
        let Sizes { num_init, num_local, num_selected, slc_block, .. } = self.sizes;
        let is_forced = |block: &usize| *block < num_init || block + num_local > own;
        let forced = (0..=last).filter(is_forced).count();
        let free = own - (0..own).filter(is_forced).count();
        let count = forced + free.min(num_selected - forced);
        completed(lists, count, self.tokens.div_ceil(slc_block)..last + 1)
    }

    /// Lists with the super-blocks that have no block yet.
    fn with_missing_super_blocks(&self, lists: Tensor<4, Int>) -> Tensor<4, Int> {
        let (first, end) = self.sizes.filling(self.first);
        let Sizes { cmp_group, cmp_top, .. } = self.sizes;
        let forced = end - first;
        let count = forced + first.min(cmp_top.unwrap_or(forced) - forced);
        completed(lists, count, self.sizes.compressed(self.tokens).div_ceil(cmp_group)..end)
    }
}

/// Lists of `count` entries, the last of which are these.
fn completed(
    lists: Tensor<4, Int>,
    count: usize,
    missing: std::ops::Range<usize>,
) -> Tensor<4, Int> {
    if missing.is_empty() {
        return lists;
    }
    let [batch, tiles, heads, entries] = lists.dims();
    let (device, dtype): (Device, _) = (lists.device(), lists.dtype());
    let kept = count - missing.len();
    let numbers = missing.start as i64..missing.end as i64;
    let numbers = Tensor::<1, Int>::arange(numbers, (&device, dtype));
    let numbers = numbers.reshape([1, 1, 1, -1]).expand([batch, tiles, heads, missing.len()]);
    let mut parts = vec![numbers];
    if kept > 0 {
        parts.insert(0, lists.clone().narrow(3, 0, kept));
    }
    if count < entries {
        parts.push(lists.narrow(3, count, entries - count));
    }
    Tensor::cat(parts, 3)
}
