//! Native sparse attention of one more token for each sequence by native kernels.

use burn::backend::DispatchDevice;
use burn::backend::ops::IntTensorOps;
use burn::tensor::{DType, Device, IntDType};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use burn_natten_kernels::native::Element;
use burn_natten_kernels::native::decode::{
    self, Branches, Decoding, Inputs, Outputs, is_available, prepare,
};
use burn_natten_kernels::{KernelError, KeyValue, Strided};

use super::as_they_lie;
use super::memory::{Lay, empty_together};
use crate::backend::decode::{DecodeInputs, DecodeOps, DecodePlan, DecodeResults};
use crate::backend::log_once;

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

/// The tensors as kernels take them.
fn views(inputs: &DecodeInputs<CubeBackend>, of: &Decoding, lay: Lay) -> Inputs<Strided> {
    let view =
        |tensor: &CubeTensor, tokens, heads, dim| lay.view(tensor, of.shape(tokens, heads, dim));
    let selection = &of.selection;
    let (heads, heads_kv) = (selection.heads, selection.heads_kv);
    let both = |key, value, tokens| KeyValue {
        key: view(key, tokens, heads_kv, selection.head_dim),
        value: view(value, tokens, heads_kv, of.head_dim_v),
    };
    Inputs {
        query: view(&inputs.query, 1, heads, selection.head_dim),
        gates: view(&inputs.gates, 1, heads, 3),
        tokens: Branches {
            compressed: both(
                &inputs.compressed_key,
                &inputs.compressed_value,
                selection.compressed(),
            ),
            selected: both(&inputs.key, &inputs.value, selection.tokens),
            window: both(&inputs.window_key, &inputs.window_value, of.window_tokens),
        },
    }
}

impl DecodeOps for CubeBackend {
    fn decode_attention(inputs: DecodeInputs<Self>, plan: DecodePlan) -> DecodeResults<Self> {
        let (of, like) = (&plan.decoding, &inputs.query);
        let out = || (plan.out(), like.dtype);
        let lse = || (plan.logsumexp(), DType::F32);
        let lists = (plan.lists(), DType::I32);
        let tensors = [out(), out(), out(), out(), lse(), lse(), lse(), lists];
        let [out, compressed, selected, window, lses @ .., blocks] = empty_together(like, tensors);
        let [compressed_logsumexp, selected_logsumexp, window_logsumexp] = lses;
        let results = DecodeResults::<Self> {
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
        let launched = as_they_lie(|lay| {
            let views = views(&inputs, of, lay);
            decode::decode(&like.client, of, plan.element, &views, &outputs)
        });
        if let Err(error) = launched {
            // Contiguous tensors are all that kernels ask for beyond what was asked before.
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
}
