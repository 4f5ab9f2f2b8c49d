//! One more token for each sequence by kernels that compute all steps at once.

use burn::backend::Dispatch;
use burn::tensor::{DType, Tensor};
use burn_natten_kernels::native::Element;
use burn_natten_kernels::native::decode::Decoding;
use burn_natten_kernels::sparse::Selection;

use super::memory::{TokenMemory, in_windows};
use super::{BranchTokens, NativeSparseOutput, PerBranch, Pooling};
use crate::backend::decode::{
    AppendInputs, AppendPlan, AppendResults, DecodeInputs, DecodeOps, DecodePlan, DecodeResults,
};
use crate::backend::is_ready_to_decode;
use crate::functional::AttentionOutput;
use crate::{NativeSparseAttentionOptions, Strategy};

/// The last one of `count` tokens of each sequence; `None` where no kernels compute it, and steps are to. Arguments are
/// those of [`attend`](super::attention::attend).
pub(super) fn decode(
    query: &Tensor<4>,
    tokens: &PerBranch<[Tensor<4>; 2]>,
    count: usize,
    gates: &Tensor<4>,
    options: &NativeSparseAttentionOptions,
) -> Option<NativeSparseOutput> {
    let window_tokens = tokens.window[0].dims()[1];
    let plan = plan(query, &tokens.window[1], [count, window_tokens], options)?;
    let is_of = |of: &[Tensor<4>; 2], count| of.iter().all(|tensor| tensor.dims()[1] == count);
    let counts = [plan.decoding.selection.compressed(), count, window_tokens];
    if !tokens.as_ref().into_array().into_iter().zip(counts).all(|(of, count)| is_of(of, count)) {
        return None;
    }
    let PerBranch { compressed, selected, window } = tokens.as_ref();
    let of = |tensor: &Tensor<4>| tensor.clone().into_dispatch();
    let inputs = DecodeInputs {
        query: of(query),
        gates: of(gates),
        compressed_key: of(&compressed[0]),
        compressed_value: of(&compressed[1]),
        key: of(&selected[0]),
        value: of(&selected[1]),
        window_key: of(&window[0]),
        window_value: of(&window[1]),
    };
    Some(output(Dispatch::decode_attention(inputs, plan)))
}

/// One more token than those `before`, whose keys and values the kernels append to memory; `None`, and nothing has happened, where no kernels
/// compute it.
pub(super) fn append(
    memory: &mut [TokenMemory; 2],
    [query, gates]: [&Tensor<4>; 2],
    new: [&BranchTokens; 2],
    before: usize,
    options: &NativeSparseAttentionOptions,
) -> Option<NativeSparseOutput> {
    let sizes = &options.sizes;
    let is_mean = |pooling: &Pooling| matches!(pooling, Pooling::Mean);
    let are_means = is_mean(&options.pool_key) && is_mean(&options.pool_value);
    let is_complete = sizes.compressed(before + 1) > sizes.compressed(before);
    if is_complete && !are_means {
        return None;
    }
    let window_tokens = in_windows(1, before, sizes);
    let value = &new[1].tokens.selected;
    let decode = plan(query, value, [before + 1, window_tokens], options)?;
    let [keys, values] = memory;
    let key = keys.lend(new[0], sizes, before);
    let value = values.lend(new[1], sizes, before);
    let plan =
        AppendPlan { decode, rest: [key.rest, value.rest], window: [key.window, value.window] };
    let inputs = AppendInputs {
        query: query.clone().into_dispatch(),
        gates: gates.clone().into_dispatch(),
        key: key.new,
        value: value.new,
        keys: key.memory,
        values: value.memory,
    };
    let all: AppendResults<Dispatch> = Dispatch::decode_append(inputs, plan);
    keys.take_back(all.keys);
    values.take_back(all.values);
    Some(output(all.results))
}

fn output(results: DecodeResults<Dispatch>) -> NativeSparseOutput {
    let branch = |out, logsumexp| AttentionOutput {
        out: Tensor::from_dispatch(out),
        logsumexp: Tensor::from_dispatch(logsumexp),
    };
    NativeSparseOutput {
        out: Tensor::from_dispatch(results.out),
        branches: PerBranch {
            compressed: branch(results.compressed, results.compressed_logsumexp),
            selected: branch(results.selected, results.selected_logsumexp),
            window: branch(results.window, results.window_logsumexp),
        },
        blocks: Tensor::from_dispatch(results.blocks),
        cmp_blocks: None,
    }
}

/// What is to be decoded with values like these, all tokens and those of the window, if there are kernels for it.
fn plan(
    query: &Tensor<4>,
    value: &Tensor<4>,
    [count, window_tokens]: [usize; 2],
    options: &NativeSparseAttentionOptions,
) -> Option<DecodePlan> {
    let element = match query.dtype() {
        DType::F16 => Element::F16,
        DType::BF16 => Element::Bf16,
        _ => return None,
    };
    let [batch, rows, heads, head_dim] = query.dims();
    let sizes = options.sizes;
    let is_given = options.blocks.is_some() || options.cmp_blocks.is_some();
    let is_other = options.mslk.is_some() || sizes.cmp_top.is_some();
    if rows != 1 || batch * heads == 0 || is_given || is_other {
        return None;
    }
    let device = query.device();
    if options.common.strategy != Strategy::Auto || device.is_autodiff() {
        return None;
    }
    let mut selection = Selection::new(count, heads, head_dim);
    let [_, _, heads_kv, head_dim_v] = value.dims();
    (selection.batch, selection.rows, selection.heads_kv) = (batch, rows, heads_kv);
    selection.scale = options.scale(head_dim);
    (selection.cmp_block, selection.cmp_stride) = (sizes.cmp_block, sizes.cmp_stride);
    (selection.slc_block, selection.num_selected) = (sizes.slc_block, sizes.num_selected);
    (selection.num_init, selection.num_local) = (sizes.num_init, sizes.num_local);
    selection.query_tile = sizes.query_tile;
    let decoding = Decoding { selection, head_dim_v, window: sizes.window, window_tokens };
    let ints = device.settings().int_dtype;
    let is_ready = is_ready_to_decode(&device, &decoding, element);
    is_ready.then_some(DecodePlan { decoding, element, ints })
}
