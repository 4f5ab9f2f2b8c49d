//! Native sparse attention of one more token for each sequence by native kernels.

use burn::backend::DispatchDevice;
use burn::backend::ops::IntTensorOps;
use burn::tensor::{DType, Device, IntDType};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use burn_natten_kernels::native::Element;
use burn_natten_kernels::native::decode::{
    self, Branches, Decoding, Inputs, NewToken, Outputs, Rest, is_available, prepare,
};
use burn_natten_kernels::{KernelError, KeyValue, Strided};

use super::as_they_lie;
use super::memory::{Lay, empty_together};
use crate::backend::decode::{
    AppendInputs, AppendPlan, AppendResults, DecodeInputs, DecodeOps, DecodePlan, DecodeResults,
    Memory, NewTokens, Span,
};
use crate::backend::log_once;
use crate::backend::unfused::Optional;

/// Whether a device has kernels for it: then they are compiled, and nothing is left that they could refuse.
pub(crate) fn is_ready_to_decode(device: &Device, of: &Decoding, element: Element) -> bool {
    match device.as_dispatch() {
        DispatchDevice::Cube(device) => {
            let client = device.client();
            if !is_available(&client) {
                return false;
            }
            let result = prepare(&client, of, element);
            if let Err(error @ KernelError::Compile(_)) = &result {
                log_once(format!("tokens are decoded step by step, because {error}"));
            }
            result.is_ok()
        }
        #[allow(unreachable_patterns)]
        _ => false,
    }
}

/// The query and the gates as kernels take them.
fn rows([query, gates]: [&CubeTensor; 2], of: &Decoding, lay: Lay) -> [Strided; 2] {
    let view = |tensor, dim| lay.view(tensor, of.shape(1, of.selection.heads, dim));
    [view(query, of.selection.head_dim), view(gates, 3)]
}

/// The tensors as kernels take them.
fn views(inputs: &DecodeInputs<CubeBackend>, of: &Decoding, lay: Lay) -> Inputs<Strided> {
    let view = |tensor, tokens, heads, dim| lay.view(tensor, of.shape(tokens, heads, dim));
    let (selection, heads_kv) = (&of.selection, of.selection.heads_kv);
    let both = |key, value, tokens| KeyValue {
        key: view(key, tokens, heads_kv, selection.head_dim),
        value: view(value, tokens, heads_kv, of.head_dim_v),
    };
    let [query, gates] = rows([&inputs.query, &inputs.gates], of, lay);
    Inputs {
        query,
        gates,
        tokens: Branches {
            compressed: both(
                &inputs.compressed_key,
                &inputs.compressed_value,
                selection.compressed(),
            ),
            selected: both(&inputs.key, &inputs.value, selection.tokens),
            window: both(&inputs.window_key, &inputs.window_value, of.window_tokens),
        },
        new: None,
    }
}

/// Keys, or values: the new token, the memory it goes to, and where what has memory of its own is there.
struct Side<'a> {
    new: &'a NewTokens<CubeBackend>,
    memory: &'a Memory<CubeBackend>,
    rest: Span,
    window: Span,
    dim: usize,
}

impl Side<'_> {
    /// The tokens of each branch.
    fn tokens(&self, of: &Decoding) -> Branches<Strided> {
        let Memory { compressed, selected, window, .. } = self.memory;
        let window = match window.as_option() {
            Some(tensor) => from(tensor, self.window.start),
            None => from(selected, of.selection.tokens - of.window_tokens),
        };
        Branches { compressed: from(compressed, 0), selected: from(selected, 0), window }
    }

    fn new_token(&self, of: &Decoding, lay: Lay) -> NewToken<Strided> {
        let view =
            |token: &CubeTensor| lay.view(token, of.shape(1, of.selection.heads_kv, self.dim));
        let NewTokens { selected, compressed, window } = self.new;
        let rest = |(token, tokens)| Rest {
            token: view(token),
            tokens: from(tokens, self.rest.start),
            count: self.rest.count,
        };
        NewToken {
            selected: view(selected),
            window: window.as_option().map(view),
            compressed: compressed.as_option().zip(self.memory.rest.as_option()).map(rest),
        }
    }
}

/// The tokens of a memory, whose vectors have no gaps, from one of them on; they are written where they lie.
fn from(memory: &CubeTensor, token: usize) -> Strided {
    let strides = memory.meta.strides();
    let bytes = token * strides[1] * memory.dtype.size();
    Strided {
        handle: memory.handle.clone().offset_start(bytes as u64),
        strides: [strides[0], 0, 0, strides[1], strides[2]],
    }
}

/// Memory that nobody else holds, so that it can be written in place, as [`from`] takes it.
fn own(tensor: CubeTensor) -> CubeTensor {
    let is_plain = !tensor.meta.is_tiled() && tensor.meta.strides()[3] == 1;
    match is_plain && tensor.can_mut() && tensor.is_nonoverlapping() {
        true => tensor,
        false => tensor.copy(),
    }
}

impl Memory<CubeBackend> {
    fn own(self) -> Self {
        let own_one = |tensor: Optional<CubeBackend>| tensor.into_option().map(own).into();
        Self {
            compressed: own(self.compressed),
            selected: own(self.selected),
            rest: own_one(self.rest),
            window: own_one(self.window),
        }
    }
}

/// Has the kernels compute what there are views of.
fn launch(
    like: &CubeTensor,
    plan: &DecodePlan,
    inputs: impl Fn(Lay) -> Inputs<Strided>,
) -> DecodeResults<CubeBackend> {
    let of = &plan.decoding;
    let out = || (plan.out(), like.dtype);
    let lse = || (plan.logsumexp(), DType::F32);
    let lists = (plan.lists(), DType::I32);
    let tensors = [out(), out(), out(), out(), lse(), lse(), lse(), lists];
    let [out, compressed, selected, window, lses @ .., blocks] = empty_together(like, tensors);
    let [compressed_logsumexp, selected_logsumexp, window_logsumexp] = lses;
    let results = DecodeResults::<CubeBackend> {
        out,
        compressed,
        selected,
        window,
        compressed_logsumexp,
        selected_logsumexp,
        window_logsumexp,
        blocks,
    };
    let handle = |tensor: &CubeTensor| tensor.handle.clone();
    let outputs = Outputs {
        out: handle(&results.out),
        outs: Branches {
            compressed: handle(&results.compressed),
            selected: handle(&results.selected),
            window: handle(&results.window),
        },
        logsumexps: Branches {
            compressed: handle(&results.compressed_logsumexp),
            selected: handle(&results.selected_logsumexp),
            window: handle(&results.window_logsumexp),
        },
        lists: handle(&results.blocks),
    };
    let launched =
        as_they_lie(|lay| decode::decode(&like.client, of, plan.element, &inputs(lay), &outputs));
    if let Err(error) = launched {
        // Contiguous tensors are all that kernels ask for beyond what was asked before; memory of a cache is.
        panic!("decoding: {error}");
    }
    match plan.ints {
        IntDType::I32 => results,
        ints => {
            let blocks = CubeBackend::int_cast(results.blocks, ints);
            DecodeResults { blocks, ..results }
        }
    }
}

impl DecodeOps for CubeBackend {
    fn decode_attention(inputs: DecodeInputs<Self>, plan: DecodePlan) -> DecodeResults<Self> {
        launch(&inputs.query, &plan, |lay| views(&inputs, &plan.decoding, lay))
    }

    fn decode_append(inputs: AppendInputs<Self>, plan: AppendPlan) -> AppendResults<Self> {
        let AppendInputs { query, gates, key, value, keys, values } = inputs;
        let (keys, values) = (keys.own(), values.own());
        let of = &plan.decode.decoding;
        let side = |new, memory, number: usize, dim| {
            let (rest, window) = (plan.rest[number], plan.window[number]);
            Side { new, memory, rest, window, dim }
        };
        let sides = KeyValue {
            key: side(&key, &keys, 0, of.selection.head_dim),
            value: side(&value, &values, 1, of.head_dim_v),
        };
        let results = launch(&query, &plan.decode, |lay| {
            let both = |key, value| KeyValue { key, value };
            let [query, gates] = rows([&query, &gates], of, lay);
            let (of_keys, of_values) = (sides.key.tokens(of), sides.value.tokens(of));
            Inputs {
                query,
                gates,
                tokens: Branches {
                    compressed: both(of_keys.compressed, of_values.compressed),
                    selected: both(of_keys.selected, of_values.selected),
                    window: both(of_keys.window, of_values.window),
                },
                new: Some(KeyValue {
                    key: sides.key.new_token(of, lay),
                    value: sides.value.new_token(of, lay),
                }),
            }
        });
        AppendResults { results, keys, values }
    }
}
