//! The sum of the branches of native sparse attention, each weighed by its gate.
//!
//! ```text
//! out = sum over c of gates[.., c] out_c          dout_c = gates[.., c] dout          dgates[.., c] = dout . out_c
//! ```
//!
//! An operator of its own, so that nothing is kept for the backward pass but what is there anyway, and sums are held in f32, or f64 for f64.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn::tensor::{FloatDType, Slice};

use super::wide;

/// The axis of the gates' branches, and that of the outputs' vectors.
const LAST: usize = 3;

/// The operator.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Autodiff: cfg(feature = "autodiff"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait GateOps: Backend {
    /// Outputs `[batch, rows, heads, head_dim_v]` and gates `[batch, rows, heads, 3]`, all of one type.
    #[fusion(meta = meta::gate)]
    fn gate_forward(
        compressed: FloatTensor<Self>,
        selected: FloatTensor<Self>,
        window: FloatTensor<Self>,
        gates: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        forward::<Self>([compressed, selected, window], gates)
    }
}

#[cfg(feature = "flex")]
impl GateOps for burn::backend::flex::Flex {}

#[cfg(feature = "cube")]
impl GateOps for burn_cubecl::CubeBackend {}

fn forward<B: Backend>(outs: [FloatTensor<B>; 3], gates: FloatTensor<B>) -> FloatTensor<B> {
    let dtype = gates.dtype();
    let [a, b, c] = outs;
    let part =
        |out: FloatTensor<B>, branch| B::float_mul(wide::<B>(out), gate::<B>(&gates, branch));
    let out = B::float_add(B::float_add(part(a, 0), part(b, 1)), part(c, 2));
    B::float_cast(out, dtype.into())
}

/// The gate of a branch.
fn gate<B: Backend>(gates: &FloatTensor<B>, branch: usize) -> FloatTensor<B> {
    let mut slices = vec![Slice::from(..); LAST + 1];
    slices[LAST] = Slice::from(branch..branch + 1);
    wide::<B>(B::float_slice(gates.clone(), &slices))
}

#[cfg(feature = "autodiff")]
mod autodiff {
    use burn::backend::autodiff::Autodiff;
    use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;

    use super::*;
    use crate::backend::unfused::{Product, record};

    #[derive(Debug)]
    struct Gate;

    impl<B: Backend> Product<B> for Gate {
        fn gradients(
            &self,
            [a, b, c, gates]: [Option<FloatTensor<B>>; 4],
            gradient: FloatTensor<B>,
            wanted: [bool; 4],
        ) -> [Option<FloatTensor<B>>; 4] {
            let dtype: FloatDType = gradient.dtype().into();
            let gradient = wide::<B>(gradient);
            let of_out = |branch: usize| {
                let gates = gates.as_ref().filter(|_| wanted[branch])?;
                let product = B::float_mul(gradient.clone(), gate::<B>(gates, branch));
                Some(B::float_cast(product, dtype))
            };
            let outs = [0, 1, 2].map(of_out);
            let of_gate = |out: FloatTensor<B>| {
                B::float_sum_dim(B::float_mul(wide::<B>(out), gradient.clone()), LAST)
            };
            let parts: Vec<_> = match wanted[3] {
                true => [a, b, c].into_iter().flatten().map(of_gate).collect(),
                false => vec![],
            };
            let of_gates =
                (!parts.is_empty()).then(|| B::float_cast(B::float_cat(parts, LAST), dtype));
            let [a, b, c] = outs;
            [a, b, c, of_gates]
        }
    }

    impl<B: GateOps, C: CheckpointStrategy> GateOps for Autodiff<B, C> {
        fn gate_forward(
            compressed: FloatTensor<Self>,
            selected: FloatTensor<Self>,
            window: FloatTensor<Self>,
            gates: FloatTensor<Self>,
        ) -> FloatTensor<Self> {
            let inner = |tensor: &FloatTensor<Self>| tensor.primitive().clone();
            let out = B::gate_forward(
                inner(&compressed),
                inner(&selected),
                inner(&window),
                inner(&gates),
            );
            let others = [Some(&selected), Some(&window), Some(&gates)];
            record::<B, C, _>(Gate, &compressed, others, out)
        }
    }
}

/// What fusion must know of an output before it is computed.
#[cfg(feature = "fusion")]
mod meta {
    use burn::backend::fusion::custom::TensorSpec;

    pub fn gate(
        compressed: &TensorSpec,
        _selected: &TensorSpec,
        _window: &TensorSpec,
        _gates: &TensorSpec,
    ) -> TensorSpec {
        compressed.clone()
    }
}
