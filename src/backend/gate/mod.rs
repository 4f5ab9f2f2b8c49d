//! Where the branches of native sparse attention part and where they meet: a tensor that all of them read, and the sum of their outputs,
//! each weighed by its gate.
//!
//! ```text
//! x_c = x                                         dx = sum over c of dx_c
//! out = sum over c of gates[.., c] out_c          dout_c = gates[.., c] dout          dgates[.., c] = dout . out_c
//! ```
//!
//! Operators of their own, so that nothing is kept for the backward pass but what is there anyway, and sums are held in f32, or f64 for
//! f64, and rounded once.
//!
//! Where gates are known not to be negative, `dout_c` is not written: attentions take `dout` and the gates' logarithms, see
//! [`autodiff`](super::autodiff).

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, TensorMetadata, backend_extension};
use burn::tensor::{FloatDType, Shape, Slice};

use super::{AttentionResults, Weighed, wide};

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "fusion")]
mod meta;

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

/// What attentions and gates get from the gradient of their sum.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct GateStatistics<B: Backend> {
    /// `[2, 3, batch, rows, heads]`: for each branch `lse - ln gate`, and `-dout . out`, in the type of sums.
    pub statistics: FloatTensor<B>,
    /// As the gates.
    pub gates: FloatTensor<B>,
}

/// A tensor for each branch.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct OfBranches<B: Backend> {
    pub compressed: FloatTensor<B>,
    pub selected: FloatTensor<B>,
    pub window: FloatTensor<B>,
}

/// The operators, which are differentiable.
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

    /// The same of gates that are not negative, and results of attentions that are there for such a sum. With negative gates, gradients
    /// of the attentions' inputs are NaN.
    #[fusion(meta = meta::weighed)]
    fn gate_weighed(
        #[extension_type] compressed: Weighed<Self>,
        #[extension_type] selected: Weighed<Self>,
        #[extension_type] window: Weighed<Self>,
        gates: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        Self::gate_forward(compressed.out, selected.out, window.out, gates)
    }

    /// What all branches read.
    #[fusion(meta = meta::branches)]
    fn gate_branches(input: FloatTensor<Self>) -> OfBranches<Self> {
        OfBranches { compressed: input.clone(), selected: input.clone(), window: input }
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

    /// The gradients of the gates of [`GateOps::gate_weighed`], and what the attentions' backward passes read.
    #[fusion(meta = meta::statistics)]
    fn gate_statistics(
        #[extension_type] compressed: AttentionResults<Self>,
        #[extension_type] selected: AttentionResults<Self>,
        #[extension_type] window: AttentionResults<Self>,
        gates: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> GateStatistics<Self> {
        statistics::<Self>([compressed, selected, window], gates, gradient)
    }

    /// The gradient of [`GateOps::gate_branches`]'s input: the sum of those of its outputs.
    #[fusion(meta = meta::sum)]
    fn gate_branches_gradient(
        compressed: FloatTensor<Self>,
        selected: FloatTensor<Self>,
        window: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        sum::<Self>([compressed, selected, window])
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

/// What a gate of zero counts as: weights come out as none.
const LEAST_GATE: f64 = f32::MIN_POSITIVE as f64;

/// What the operator's gradients begin with, by tensor operations.
pub(crate) fn statistics<B: Backend>(
    results: [AttentionResults<B>; 3],
    gates: FloatTensor<B>,
    gradient: FloatTensor<B>,
) -> GateStatistics<B> {
    let (dtype, shape): (FloatDType, _) = (gates.dtype().into(), gates.shape());
    let gradient = wide::<B>(gradient);
    let one = Shape::new([1, shape[0], shape[1], shape[2]]);
    let products = results.each_ref().map(|branch| {
        let product = B::float_mul(wide::<B>(branch.out.clone()), gradient.clone());
        B::float_sum_dim(product, LAST)
    });
    let of_gates = B::float_cast(B::float_cat(products.to_vec(), LAST), dtype);
    let by_branch: [usize; 3] = [0, 1, 2];
    let lses = by_branch.into_iter().zip(results).map(|(branch, results)| {
        let gate = gate::<B>(&gates, branch);
        let settings = burn::backend::get_device_settings::<B>(&gate.device());
        let is_none = B::float_equal_elem(gate.clone(), 0.0.into(), settings.bool_dtype);
        let logarithm = B::float_log(B::float_mask_fill(gate, is_none, LEAST_GATE.into()));
        let logarithm = B::float_reshape(logarithm, one.clone());
        B::float_sub(B::float_reshape(results.lse, one.clone()), logarithm)
    });
    let deltas = products.map(|product| B::float_neg(B::float_reshape(product, one.clone())));
    let statistics = B::float_cat(lses.chain(deltas.clone()).collect(), 0);
    let shape = statistics_shape(&shape);
    GateStatistics { statistics: B::float_reshape(statistics, shape), gates: of_gates }
}

/// The shape of [`GateStatistics::statistics`], from that of the gates.
pub(crate) fn statistics_shape(gates: &Shape) -> Shape {
    Shape::new([2, 3, gates[0], gates[1], gates[2]])
}

/// The sum of three tensors.
pub(crate) fn sum<B: Backend>(branches: [FloatTensor<B>; 3]) -> FloatTensor<B> {
    let [first, second, third] = branches;
    let dtype: FloatDType = first.dtype().into();
    let two = B::float_add(wide::<B>(first), wide::<B>(second));
    B::float_cast(B::float_add(two, wide::<B>(third)), dtype)
}

/// The gate of a branch.
fn gate<B: Backend>(gates: &FloatTensor<B>, branch: usize) -> FloatTensor<B> {
    let mut slices = vec![Slice::from(..); LAST + 1];
    slices[LAST] = Slice::from(branch..branch + 1);
    wide::<B>(B::float_slice(gates.clone(), &slices))
}
