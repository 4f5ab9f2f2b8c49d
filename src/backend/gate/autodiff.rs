//! Gradients of the sum, and of what branches read.

use burn::backend::AutodiffBackend;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn_natten_kernels::Outputs;

use super::*;
use crate::backend::autodiff::{Slots, WEIGHED, arrived, tap};
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

/// The outputs of the branches for a weighed sum, and the gates: those of one branch follow each other.
const PARENTS: usize = 3 * WEIGHED + 1;

/// A sum of attentions that are given what their backward passes read, not their gradients.
#[derive(Debug)]
struct WeighedSum;

/// What each of the branches gave, and the gates.
type Results<B> = ([Outputs<FloatTensor<B>>; 3], FloatTensor<B>);

impl<B: GateGradientOps> Backward<B, PARENTS> for WeighedSum {
    type State = Results<B>;

    fn backward(self, ops: Ops<Self::State, PARENTS>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        let (results, gates) = ops.state;
        let shape = gates.shape();
        let [a, b, c] = results.map(AttentionResults::new);
        let GateStatistics { statistics, gates } =
            B::gate_statistics(a, b, c, gates, gradient.clone());
        let of = |kind: usize, branch: usize| {
            let one = [Slice::from(kind..kind + 1), Slice::from(branch..branch + 1)];
            let of_rows = B::float_slice(statistics.clone(), &one);
            B::float_reshape(of_rows, Shape::new([shape[0], shape[1], shape[2]]))
        };
        for (place, parent) in ops.parents.into_iter().enumerate() {
            let Some(parent) = parent else { continue };
            let arriving = match (place / WEIGHED, place % WEIGHED) {
                (3, _) => gates.clone(),
                (_, 0) => gradient.clone(),
                (branch, 1) => of(0, branch),
                (branch, _) => of(1, branch),
            };
            grads.register::<B>(parent.id, arriving);
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
        let out =
            B::gate_forward(inner(&compressed), inner(&selected), inner(&window), inner(&gates));
        let others = [Some(&selected), Some(&window), Some(&gates)];
        record::<B, C, _>(Gate, &compressed, others, out)
    }

    fn gate_weighed(
        compressed: Weighed<Self>,
        selected: Weighed<Self>,
        window: Weighed<Self>,
        gates: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let branches = [compressed, selected, window];
        let inner = |tensor: &FloatTensor<Self>| tensor.primitive().clone();
        let results = branches
            .each_ref()
            .map(|branch| Outputs { out: inner(&branch.out), lse: inner(&branch.lse) });
        let [a, b, c] = branches.each_ref().map(|branch| inner(&branch.out));
        let out = B::gate_forward(a, b, c, inner(&gates));
        let [[a, b, c], [d, e, f], [g, h, i]] = branches
            .map(|Weighed { out, lse, delta }| [out, lse, delta].map(|tensor| tensor.node()));
        let nodes = [a, b, c, d, e, f, g, h, i, gates.node()];
        match WeighedSum.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((results, inner(&gates)), out),
            OpsKind::UnTracked(prep) => prep.finish(out),
        }
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
