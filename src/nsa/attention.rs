use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};

use super::branches::{Branch, blind, compressed, selected};
use super::compress::{check_compressed, compress};
use super::select::select;
use super::window::window;
use super::{BranchTokens, PerBranch, Pooling, SelectedBlocks};
use crate::backend::gate::{GateOps, OfBranches};
use crate::functional::AttentionOutput;
use crate::functional::inputs::{is_float, is_on, matches};
use crate::problem::native_sparse::{offset, shapes};
use crate::{AttentionError, NativeSparseAttentionOptions};

/// What [`try_native_sparse_attention`] returns.
#[derive(Clone, Debug)]
pub struct NativeSparseOutput {
    /// The branches' outputs, weighed by the gates: `[batch, rows, heads, head_dim_v]`.
    pub out: Tensor<4>,
    /// Outputs and logsumexps of the branches. They are differentiable too.
    pub branches: PerBranch<AttentionOutput>,
    /// The selected blocks of each tile of queries, `[batch, tiles, heads_kv, entries]`. Another call takes them by
    /// [`with_blocks`](NativeSparseAttentionOptions::with_blocks).
    pub blocks: Tensor<4, Int>,
    /// The super-blocks that the compressed branch attended to, where it did not attend to all.
    pub cmp_blocks: Option<Tensor<4, Int>>,
}

/// Native sparse attention: a causal attention whose keys are compressed blocks of tokens, the raw tokens of those blocks that
/// matter most, and a window of the last tokens.
///
/// Each of the three is an attention with a softmax of its own, and gates weigh their outputs:
///
/// ```text
/// out = sum over the branches of gates[.., branch] * softmax(scale * query key^T) value
/// ```
///
/// The [guide](crate::guide::native_sparse_attention) describes the branches. A query that sees nothing in a branch, as the
/// first ones do where no block is complete, gets zero from it.
///
/// # Shapes
///
/// - query: `[batch, rows, heads, head_dim]`: as many as tokens, or those of the last ones, of which the first begins a tile
/// - key: `[batch, tokens, heads_kv, head_dim]`, where `heads` is a multiple of `heads_kv`; one tensor, or one for each branch
/// - value: `[batch, tokens, heads_kv, head_dim_v]`, likewise
/// - gates: `[batch, rows, heads, 3]`, of the compressed, the selected and the window branch, as they are: a layer puts them
///   through a sigmoid. Gradients take less time and memory
///   [where they are known not to be negative](NativeSparseAttentionOptions::with_nonnegative_gates)
/// - returns `[batch, rows, heads, head_dim_v]`
///
/// # Panics
///
/// With the text of the [`AttentionError`] that [`try_native_sparse_attention`] returns.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::{NativeSparseAttentionOptions, native_sparse_attention};
///
/// let device = Device::flex().autodiff();
/// let random = |heads, dim| {
///     Tensor::<4>::random([1, 300, heads, dim], Distribution::Default, &device)
/// };
/// let (query, key, value) = (random(4, 16).require_grad(), random(2, 16), random(2, 16));
/// let gates = random(4, 3);
/// let options = NativeSparseAttentionOptions::new().with_num_selected(4).with_window(64);
/// let out = native_sparse_attention(query.clone(), key, value, gates, options);
/// assert_eq!(out.dims(), [1, 300, 4, 16]);
/// assert!(query.grad(&out.sum().backward()).is_some());
/// ```
///
/// Reference: [Native Sparse Attention](https://arxiv.org/abs/2502.11089).
#[track_caller]
pub fn native_sparse_attention(
    query: Tensor<4>,
    key: impl Into<BranchTokens>,
    value: impl Into<BranchTokens>,
    gates: Tensor<4>,
    options: NativeSparseAttentionOptions,
) -> Tensor<4> {
    match try_native_sparse_attention(query, key, value, gates, options) {
        Ok(output) => output.out,
        Err(error) => panic!("{error}"),
    }
}

/// [`native_sparse_attention`], with the branches and the lists beside the output.
///
/// # Errors
///
/// An [`AttentionError`] names the argument or the option that does not fit, the value it got and the bound.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Tensor};
/// use burn_natten::{NativeSparseAttentionOptions, try_native_sparse_attention};
///
/// let x = |dim| Tensor::<4>::zeros([1, 100, 2, dim], &Device::flex());
/// let call = |options| try_native_sparse_attention(x(8), x(8), x(8), x(3), options);
/// let options = NativeSparseAttentionOptions::new();
/// let error = call(options.clone().with_cmp_stride(12)).expect_err("12 does not divide 32");
/// assert_eq!(error.to_string(), "cmp_block: is 32, must be a multiple of 12 (cmp_stride)");
///
/// // The lists of one call serve another.
/// # fn main() -> Result<(), burn_natten::AttentionError> {
/// # let x = |dim| Tensor::<4>::zeros([1, 100, 2, dim], &Device::flex());
/// # let call = |options| try_native_sparse_attention(x(8), x(8), x(8), x(3), options);
/// # let options = NativeSparseAttentionOptions::new();
/// let first = call(options.clone())?;
/// let second = call(options.with_blocks(first.blocks))?;
/// assert!(second.out.equal(first.out).all().into_scalar::<bool>());
/// # Ok(())
/// # }
/// ```
pub fn try_native_sparse_attention(
    query: Tensor<4>,
    key: impl Into<BranchTokens>,
    value: impl Into<BranchTokens>,
    gates: Tensor<4>,
    options: NativeSparseAttentionOptions,
) -> Result<NativeSparseOutput, AttentionError> {
    let (key, value) = (key.into(), value.into());
    check(&query, &key, &value, &gates, &options)?;
    let tokens = key.tokens.selected.dims()[1];
    offset(query.dims()[1], tokens, &options)?;
    one_sequence(query, key, value, gates, options)
}

/// Fails unless dtypes, devices, shapes and options fit.
pub(super) fn check(
    query: &Tensor<4>,
    key: &BranchTokens,
    value: &BranchTokens,
    gates: &Tensor<4>,
    options: &NativeSparseAttentionOptions,
) -> Result<(), AttentionError> {
    is_float("query", query)?;
    for tokens in key.tokens.as_ref().into_array() {
        matches(("key", tokens), ("query", query))?;
    }
    for tokens in value.tokens.as_ref().into_array() {
        matches(("value", tokens), ("query", query))?;
    }
    matches(("gates", gates), ("query", query))?;
    for lists in [&options.blocks, &options.cmp_blocks].into_iter().flatten() {
        is_on(("blocks", lists.device()), ("query", query.device()))?;
    }
    let dims = |tokens: &BranchTokens| tokens.tokens.as_ref().map(|tokens| tokens.dims());
    let (keys, values) = (dims(key).into_array(), dims(value).into_array());
    shapes(query.dims(), keys, values, gates.dims(), options)
}

/// The attention of a batch of sequences of one length, after the checks.
pub(super) fn one_sequence(
    query: Tensor<4>,
    key: BranchTokens,
    value: BranchTokens,
    gates: Tensor<4>,
    mut options: NativeSparseAttentionOptions,
) -> Result<NativeSparseOutput, AttentionError> {
    let (given_key, given_value) = options.compressed.take().unzip();
    let sizes = &options.sizes;
    for (name, tokens, pooling, given) in [
        ("key", &key, &options.pool_key, &given_key),
        ("value", &value, &options.pool_value, &given_value),
    ] {
        check_compressed((name, &tokens.tokens.compressed), pooling, given.as_ref(), sizes)?;
    }
    let (key, value) = (of_branches(key), of_branches(value));
    let pooled = |given: Option<Tensor<4>>, tokens: Tensor<4>, pooling: &Pooling| {
        given.unwrap_or_else(|| compress(tokens, pooling, sizes))
    };
    let pooled_key = pooled(given_key, key.compressed, &options.pool_key);
    let pooled_value = pooled(given_value, value.compressed, &options.pool_value);
    let tokens = PerBranch {
        compressed: [pooled_key, pooled_value],
        selected: [key.selected, value.selected],
        window: [key.window, value.window],
    };
    let count = tokens.selected[0].dims()[1];
    attend(query, tokens, count, gates, options)
}

/// Tokens for each branch.
fn of_branches(tokens: BranchTokens) -> PerBranch<Tensor<4>> {
    match tokens.is_shared() {
        true => for_each_branch(tokens.tokens.selected),
        false => tokens.tokens,
    }
}

/// The three branches and their sum, of rows that are the last ones of `count` tokens: compressed tokens, raw ones, and those of the
/// window, which may be the last ones only.
pub(super) fn attend(
    query: Tensor<4>,
    tokens: PerBranch<[Tensor<4>; 2]>,
    count: usize,
    gates: Tensor<4>,
    mut options: NativeSparseAttentionOptions,
) -> Result<NativeSparseOutput, AttentionError> {
    #[cfg(feature = "cuda")]
    if let Some(output) = super::decode::decode(&query, &tokens, count, &gates, &options) {
        return Ok(output);
    }
    let rows = query.dims()[1];
    let queries = for_each_branch(query.clone());
    let is_thinned = options.sizes.cmp_top.is_some();
    let given = (options.blocks.take(), options.cmp_blocks.take());
    let with = |query: &Tensor<4>, [key, value]: [Tensor<4>; 2]| [query.clone(), key, value];
    let to_blocks = |lists| {
        compressed(with(&queries.compressed, tokens.compressed.clone()), count, lists, &options)
    };
    // Where it sees all blocks, its logsumexp is that of the scores, unless the mode has others.
    let unthinned = match rows > 0 && !is_thinned {
        true => Some(to_blocks(None)?),
        false => None,
    };
    let lists = match given {
        (Some(blocks), cmp_blocks) if cmp_blocks.is_some() || !is_thinned => {
            SelectedBlocks { blocks, cmp_blocks: cmp_blocks.filter(|_| is_thinned) }
        }
        (blocks, cmp_blocks) => {
            let known = unthinned.as_ref().filter(|_| options.mslk.is_none());
            let known = known.map(|branch| branch.output.logsumexp.clone().detach());
            let [query, key] = [query.clone(), tokens.compressed[0].clone()].map(Tensor::detach);
            let chosen = select(query, key, known, count, &options)?;
            SelectedBlocks {
                blocks: blocks.unwrap_or(chosen.blocks),
                cmp_blocks: cmp_blocks.filter(|_| is_thinned).or(chosen.cmp_blocks),
            }
        }
    };
    let SelectedBlocks { blocks, cmp_blocks } = lists;
    let branches = match rows {
        0 => PerBranch::of([(); 3]).map(|()| blind(&query, 0, tokens.selected[1].dims()[3]).into()),
        _ => PerBranch {
            compressed: match unthinned {
                Some(branch) => branch,
                None => to_blocks(cmp_blocks.clone())?,
            },
            selected: selected(with(&queries.selected, tokens.selected), blocks.clone(), &options)?,
            window: window(with(&queries.window, tokens.window), &options)?,
        },
    };
    let out = weigh(&branches, gates);
    let branches = branches.map(|branch| branch.output);
    Ok(NativeSparseOutput { out, branches, blocks, cmp_blocks })
}

/// A tensor that all branches read, whose gradients are summed in a wide type, and rounded once.
fn for_each_branch(tensor: Tensor<4>) -> PerBranch<Tensor<4>> {
    let OfBranches { compressed, selected, window } =
        Dispatch::gate_branches(tensor.into_dispatch());
    PerBranch { compressed, selected, window }.map(Tensor::from_dispatch)
}

/// The outputs of the branches, each times its gate.
fn weigh(branches: &PerBranch<Branch>, gates: Tensor<4>) -> Tensor<4> {
    let outs = branches.as_ref().map(|branch| branch.output.out.clone());
    if gates.shape().num_elements() == 0 {
        // No row: the outputs are all the same.
        return outs.compressed;
    }
    let gates = gates.into_dispatch();
    let weighed = branches.as_ref().map(Branch::weighed).into_array();
    let out = match weighed {
        [Some(compressed), Some(selected), Some(window)] => {
            Dispatch::gate_weighed(compressed, selected, window, gates)
        }
        _ => {
            let [compressed, selected, window] = outs.map(Tensor::into_dispatch).into_array();
            Dispatch::gate_forward(compressed, selected, window, gates)
        }
    };
    Tensor::from_dispatch(out)
}
