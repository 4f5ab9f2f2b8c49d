use burn::tensor::Tensor;

use super::attention::{check, one_sequence};
use super::{BranchTokens, NativeSparseOutput, PerBranch, span};
use crate::functional::AttentionOutput;
use crate::problem::native_sparse::{lengths, must, offset};
use crate::{AttentionError, NativeSparseAttentionOptions};

/// [`native_sparse_attention`](crate::native_sparse_attention) of sequences that lie one behind the other, as a batch of one.
///
/// Every sequence is on its own: blocks and tiles begin with it. Sequences may be empty, or shorter than a block. They are computed one by one, and
/// each one's gradients pass through tensors of the size of them all.
///
/// # Shapes
///
/// - query, key, value, gates: those of one sequence of all tokens, with a batch of 1
/// - lengths: cumulative, from 0 to the number of tokens: sequence `i` is tokens `lengths[i]..lengths[i + 1]`
/// - lists and compressed tokens in the options: of all sequences, one behind the other
///
/// # Panics
///
/// With the text of the [`AttentionError`] that [`try_native_sparse_attention_packed`] returns.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::{
///     NativeSparseAttentionOptions, native_sparse_attention, native_sparse_attention_packed,
/// };
///
/// let device = Device::flex();
/// let x = Tensor::<4>::random([1, 150, 2, 8], Distribution::Default, &device);
/// let gates = Tensor::<4>::ones([1, 150, 2, 3], &device);
/// let options = NativeSparseAttentionOptions::new();
/// let out = native_sparse_attention_packed(
///     x.clone(), x.clone(), x.clone(), gates.clone(), &[0, 100, 150], options.clone(),
/// );
///
/// let second = |tensor: Tensor<4>| tensor.narrow(1, 100, 50);
/// let x = second(x);
/// let alone = native_sparse_attention(x.clone(), x.clone(), x, second(gates), options);
/// assert!(second(out).equal(alone).all().into_scalar::<bool>());
/// ```
#[track_caller]
pub fn native_sparse_attention_packed(
    query: Tensor<4>,
    key: impl Into<BranchTokens>,
    value: impl Into<BranchTokens>,
    gates: Tensor<4>,
    lengths: &[usize],
    options: NativeSparseAttentionOptions,
) -> Tensor<4> {
    match try_native_sparse_attention_packed(query, key, value, gates, lengths, options) {
        Ok(output) => output.out,
        Err(error) => panic!("{error}"),
    }
}

/// [`native_sparse_attention_packed`], with the branches and the lists of all sequences, one behind the other.
///
/// # Errors
///
/// An [`AttentionError`] names the argument or the option that does not fit, the value it got and the bound.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Tensor};
/// use burn_natten::{NativeSparseAttentionOptions, try_native_sparse_attention_packed};
///
/// let x = |dim| Tensor::<4>::zeros([1, 100, 2, dim], &Device::flex());
/// let call = |lengths: &[usize]| {
///     let options = NativeSparseAttentionOptions::new();
///     try_native_sparse_attention_packed(x(8), x(8), x(8), x(3), lengths, options)
/// };
/// let error = call(&[0, 60, 90]).expect_err("10 tokens are left");
/// assert_eq!(
///     error.to_string(),
///     "last cumulative length: is 90, must be 100 (tokens of query)"
/// );
/// ```
pub fn try_native_sparse_attention_packed(
    query: Tensor<4>,
    key: impl Into<BranchTokens>,
    value: impl Into<BranchTokens>,
    gates: Tensor<4>,
    lengths: &[usize],
    options: NativeSparseAttentionOptions,
) -> Result<NativeSparseOutput, AttentionError> {
    let (key, value) = (key.into(), value.into());
    check(&query, &key, &value, &gates, &options)?;
    let [batch, tokens, _, _] = query.dims();
    let keys = key.tokens.selected.dims()[1];
    must("tokens of packed query", tokens, tokens == keys, || format!("{keys} (tokens of key)"))?;
    self::lengths(lengths, batch, tokens)?;
    let mut sequences = Sequences::new(&options);
    let mut parts = vec![];
    for pair in lengths.windows(2) {
        let (start, count) = (pair[0], pair[1] - pair[0]);
        offset(count, count, &options)?;
        // An empty sequence has neither rows nor lists.
        if count == 0 {
            continue;
        }
        let of = |tensor: Tensor<4>| tensor.narrow(1, start, count);
        let options = sequences.next(count)?;
        let (key, value) = (key.clone().map(of), value.clone().map(of));
        parts.push(one_sequence(of(query.clone()), key, value, of(gates.clone()), options)?);
    }
    sequences.has_no_more()?;
    if parts.is_empty() {
        return one_sequence(query, key, value, gates, options);
    }
    Ok(joined(parts))
}

/// What the options hold for each sequence.
struct Sequences<'a> {
    options: &'a NativeSparseAttentionOptions,
    tiles: usize,
    blocks: usize,
}

impl<'a> Sequences<'a> {
    fn new(options: &'a NativeSparseAttentionOptions) -> Self {
        Self { options, tiles: 0, blocks: 0 }
    }

    /// The options for the next sequence, of so many tokens.
    fn next(&mut self, tokens: usize) -> Result<NativeSparseAttentionOptions, AttentionError> {
        let tiles = tokens.div_ceil(self.options.sizes.query_tile);
        let blocks = self.options.compressed_blocks(tokens);
        let mut options = self.options.clone();
        for lists in [&mut options.blocks, &mut options.cmp_blocks].into_iter().flatten() {
            has(("tiles of blocks", lists.dims()[1]), self.tiles + tiles)?;
            *lists = lists.clone().narrow(1, self.tiles, tiles);
        }
        if let Some((key, value)) = &mut options.compressed {
            for tokens in [key, value] {
                has(("number of compressed tokens", tokens.dims()[1]), self.blocks + blocks)?;
                *tokens = span(tokens.clone(), self.blocks, blocks);
            }
        }
        (self.tiles, self.blocks) = (self.tiles + tiles, self.blocks + blocks);
        Ok(options)
    }

    /// Fails where there are more lists or compressed tokens than those of the sequences: they were made otherwise, such as across the
    /// ends of sequences.
    fn has_no_more(&self) -> Result<(), AttentionError> {
        let is = |what, got, expected: usize| {
            must(what, got, got == expected, || format!("{expected} (of all sequences)"))
        };
        for lists in [&self.options.blocks, &self.options.cmp_blocks].into_iter().flatten() {
            is("tiles of blocks", lists.dims()[1], self.tiles)?;
        }
        if let Some((key, value)) = &self.options.compressed {
            for tokens in [key, value] {
                is("number of compressed tokens", tokens.dims()[1], self.blocks)?;
            }
        }
        Ok(())
    }
}

fn has((what, got): (&'static str, usize), least: usize) -> Result<(), AttentionError> {
    must(what, got, got >= least, || format!("at least {least} (of the sequences so far)"))
}

/// The results of all sequences, one behind the other.
pub(super) fn joined(parts: Vec<NativeSparseOutput>) -> NativeSparseOutput {
    let outputs = |of: fn(&PerBranch<AttentionOutput>) -> &AttentionOutput| AttentionOutput {
        out: Tensor::cat(parts.iter().map(|part| of(&part.branches).out.clone()).collect(), 1),
        logsumexp: Tensor::cat(
            parts.iter().map(|part| of(&part.branches).logsumexp.clone()).collect(),
            1,
        ),
    };
    let branches = PerBranch {
        compressed: outputs(|branches| &branches.compressed),
        selected: outputs(|branches| &branches.selected),
        window: outputs(|branches| &branches.window),
    };
    let cmp_blocks: Vec<_> = parts.iter().filter_map(|part| part.cmp_blocks.clone()).collect();
    NativeSparseOutput {
        out: Tensor::cat(parts.iter().map(|part| part.out.clone()).collect(), 1),
        branches,
        blocks: Tensor::cat(parts.into_iter().map(|part| part.blocks).collect(), 1),
        cmp_blocks: (!cmp_blocks.is_empty()).then(|| Tensor::cat(cmp_blocks, 1)),
    }
}
