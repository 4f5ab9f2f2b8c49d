//! The sum of the branches of native sparse attention, each weighed by its gate.
//!
//! ```text
//! out = sum over c of gates[.., c] out_c          dout_c = gates[.., c] dout          dgates[.., c] = dout . out_c
//! ```
//!
//! An operator of its own, so that nothing is kept for the backward pass but what is there anyway, and sums are held in f32, or f64 for f64.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, TensorMetadata, backend_extension};
use burn::tensor::{FloatDType, Slice};

use super::wide;

/// The axis of the gates' branches, and that of the outputs' vectors.
const LAST: usize = 3;

/// The gradients of [`GateOps::gate_forward`]'s inputs, each like its input.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct GateGradients<B: Backend> {
    pub compressed: FloatTensor<B>,
    pub selected: FloatTensor<B>,
    pub window: FloatTensor<B>,
    pub gates: FloatTensor<B>,
}

/// The operator, which is differentiable.
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

/// What only gradients need. Asked of the inner backend only: first derivatives.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait GateGradientOps: Backend {
    /// The gradients of all inputs, from that of the output.
    #[fusion(meta = meta::gradients)]
    fn gate_gradients(
        compressed: FloatTensor<Self>,
        selected: FloatTensor<Self>,
        window: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> GateGradients<Self> {
        gradients::<Self>([compressed, selected, window], gates, gradient)
    }
}

#[cfg(feature = "flex")]
impl GateOps for burn::backend::flex::Flex {}

#[cfg(feature = "flex")]
impl GateGradientOps for burn::backend::flex::Flex {}

/// The operator by tensor operations.
pub(crate) fn forward<B: Backend>(
    outs: [FloatTensor<B>; 3],
    gates: FloatTensor<B>,
) -> FloatTensor<B> {
    let dtype = gates.dtype();
    let [a, b, c] = outs;
    let part =
        |out: FloatTensor<B>, branch| B::float_mul(wide::<B>(out), gate::<B>(&gates, branch));
    let out = B::float_add(B::float_add(part(a, 0), part(b, 1)), part(c, 2));
    B::float_cast(out, dtype.into())
}

/// The gradients of [`forward`].
pub(crate) fn gradients<B: Backend>(
    outs: [FloatTensor<B>; 3],
    gates: FloatTensor<B>,
    gradient: FloatTensor<B>,
) -> GateGradients<B> {
    let dtype: FloatDType = gradient.dtype().into();
    let gradient = wide::<B>(gradient);
    let [compressed, selected, window] = [0, 1, 2].map(|branch| {
        B::float_cast(B::float_mul(gradient.clone(), gate::<B>(&gates, branch)), dtype)
    });
    let of_gate = |out| B::float_sum_dim(B::float_mul(wide::<B>(out), gradient.clone()), LAST);
    let gates = B::float_cat(outs.map(of_gate).into(), LAST);
    GateGradients { compressed, selected, window, gates: B::float_cast(gates, dtype) }
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

    impl<B: GateGradientOps> Product<B> for Gate {
        fn gradients(
            &self,
            inputs: [Option<FloatTensor<B>>; 4],
            gradient: FloatTensor<B>,
            _wanted: [bool; 4],
        ) -> [Option<FloatTensor<B>>; 4] {
            let [Some(a), Some(b), Some(c), Some(gates)] = inputs else {
                return [None, None, None, None];
            };
            let GateGradients { compressed, selected, window, gates } =
                B::gate_gradients(a, b, c, gates, gradient);
            [compressed, selected, window, gates].map(Some)
        }
    }

    impl<B: GateOps + GateGradientOps, C: CheckpointStrategy> GateOps for Autodiff<B, C> {
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

    use super::GateGradientsMetadata;

    pub fn gradients(
        compressed: &TensorSpec,
        selected: &TensorSpec,
        window: &TensorSpec,
        gates: &TensorSpec,
        _gradient: &TensorSpec,
    ) -> GateGradientsMetadata {
        let [compressed, selected, window, gates] =
            [compressed, selected, window, gates].map(TensorSpec::clone);
        GateGradientsMetadata { compressed, selected, window, gates }
    }

    pub fn gate(
        compressed: &TensorSpec,
        _selected: &TensorSpec,
        _window: &TensorSpec,
        _gates: &TensorSpec,
    ) -> TensorSpec {
        compressed.clone()
    }
}
