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

#[cfg(feature = "autodiff")]
mod autodiff {
    use burn::backend::AutodiffBackend;
    use burn::backend::autodiff::Autodiff;
    use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
    use burn::backend::autodiff::grads::Gradients;
    use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};

    use super::*;
    use crate::backend::autodiff::{Slots, arrived, tap};
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

    /// A tensor for three branches, whose gradients are added up once all are there.
    #[derive(Debug)]
    struct Branches;

    impl<B: GateGradientOps> Backward<B, 1> for Branches {
        type State = Slots<B, 3>;

        fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
            // The token that the first tap registered for this node.
            drop(grads.consume::<B>(&ops.node));
            let [Some(parent)] = ops.parents else { return };
            let gradient = match arrived(&ops.state) {
                [Some(a), Some(b), Some(c)] => Some(B::gate_branches_gradient(a, b, c)),
                some => some.into_iter().flatten().reduce(B::float_add),
            };
            if let Some(gradient) = gradient {
                grads.register::<B>(parent.id, gradient);
            }
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

        fn gate_branches(input: FloatTensor<Self>) -> OfBranches<Self> {
            let OfBranches { compressed, selected, window } =
                B::gate_branches(input.primitive().clone());
            match Branches.prepare::<C>([input.node()]).compute_bound().stateful() {
                OpsKind::Tracked(prep) => {
                    let slots = Slots::<B, 3>::default();
                    let joint = prep.finish(slots.clone(), compressed.clone());
                    OfBranches {
                        compressed: tap::<B, C, 0, 3>(&joint, slots.clone(), compressed),
                        selected: tap::<B, C, 1, 3>(&joint, slots.clone(), selected),
                        window: tap::<B, C, 2, 3>(&joint, slots, window),
                    }
                }
                OpsKind::UnTracked(_) => {
                    let [compressed, selected, window] =
                        [compressed, selected, window].map(Self::from_inner);
                    OfBranches { compressed, selected, window }
                }
            }
        }
    }
}

/// What fusion must know of an output before it is computed.
#[cfg(feature = "fusion")]
mod meta {
    use burn::backend::fusion::custom::TensorSpec;

    use super::{GateGradientsMetadata, OfBranchesMetadata};

    pub fn branches(input: &TensorSpec) -> OfBranchesMetadata {
        let [compressed, selected, window] = [0; 3].map(|_| input.clone());
        OfBranchesMetadata { compressed, selected, window }
    }

    pub fn sum(
        compressed: &TensorSpec,
        _selected: &TensorSpec,
        _window: &TensorSpec,
    ) -> TensorSpec {
        compressed.clone()
    }

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
