//! Gradients of operators with two outputs, an `out` and an `lse`, in one backward call.
//!
//! A node of Burn's tape has one output. So the operator is a *joint* node, and each output is a
//! *tap* on it:
//!
//! ```text
//! inputs ──► joint ──┬─► tap ──► out
//!                    └─► tap ──► lse
//! ```
//!
//! A tap leaves the gradient of its output in a slot that it shares with the joint node. The tape
//! runs by decreasing depth, so the joint node runs after every tap that was reached, and finds in
//! the slots what arrived.
//!
//! # Weighed sums
//!
//! Where attentions are weighed row by row, and summed up, `out = sum over c of g_c out_c`, an attention's own gradient, `g_c dout`, need
//! not be written: with weights `p` of its keys, it is `dv = (g_c p)^T dout` and `ds = g_c p (dout v^T - dout . out_c)`. That is the
//! backward pass of an attention with the gradient `dout`, the logsumexp `lse_c - ln g_c`, whose weights are `g_c p`, and
//! `delta = dout . out_c`, which is also the gradient of `g_c`. So the joint node has three more taps, and what arrives by these are no
//! gradients of them, but `dout`, that logsumexp, and `-delta` in place of the gradient of `lse`, with no `out`.
//!
//! # Inputs
//!
//! An operator has as many places for inputs as it can have inputs, and some of them may be empty: a constant then stands
//! in for them on the tape. Integers, such as lists of blocks, are part of the operator itself.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{AutodiffBackend, Backend, TensorMetadata};
use burn_natten_kernels::{KeyValue, Operand, Operands, Outputs};

use super::{
    AttentionBackwardOps, AttentionGradients, AttentionInputs, AttentionOps, AttentionResults,
    Gradient, Plan, Weighed, WeighedResults,
};

/// The gradients of `N` outputs, as far as they have arrived.
pub(super) type Slots<B, const N: usize> = Arc<Mutex<[Option<FloatTensor<B>>; N]>>;

/// A pair of outputs.
pub(super) type Pair<B> = Outputs<FloatTensor<B>>;

/// The outputs of an attention that a weighed sum takes, see above: `out` and twice `lse`.
pub(super) const WEIGHED: usize = 3;

/// All taps of a joint node: the pair of outputs, and those of a weighed sum.
const TAPS: usize = 2 + WEIGHED;

/// The tensors, or gradients, of `N` places.
pub(super) type Places<B, const N: usize> = [Option<FloatTensor<B>>; N];

/// The backward pass of an operator with up to `N` inputs and the outputs `out` and `lse`.
pub(super) trait PairBackward<B: Backend, const N: usize>:
    std::fmt::Debug + Send + 'static
{
    /// The gradients of the inputs that are `wanted`, or of more of them, by outputs and whether `out` counts.
    fn gradients(
        &self,
        inputs: Places<B, N>,
        outputs: (Pair<B>, bool),
        gradients: Pair<B>,
        wanted: [bool; N],
    ) -> Places<B, N>;
}

#[derive(Debug)]
struct Joint<K>(K);

impl<B: Backend, K: PairBackward<B, N>, const N: usize> Backward<B, N> for Joint<K> {
    type State = ([Option<NodeId>; N], Pair<B>, Slots<B, TAPS>);

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        // The token that the first tap registered for this node.
        drop(grads.consume::<B>(&ops.node));
        let (ids, outputs, slots) = ops.state;
        let inputs = ids.map(|id: Option<NodeId>| {
            id.map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id))
        });
        let is_wanted = |place: usize| ops.parents[place].is_some() && ids[place].is_some();
        let wanted: [bool; N] = std::array::from_fn(is_wanted);
        let mut sum: Places<B, N> = std::array::from_fn(|_| None);
        let mut add = |gradients: Places<B, N>| {
            for (sum, gradient) in sum.iter_mut().zip(gradients) {
                *sum = sum.take().into_iter().chain(gradient).reduce(B::float_add);
            }
        };
        let [out, lse, weighed_out, weighed_lse, delta] = arrived(&slots);
        if let (Some(gradient), Some(lse), Some(delta)) = (weighed_out, weighed_lse, delta) {
            // Only its shape counts.
            let outputs = Outputs { out: outputs.out.clone(), lse };
            let gradients = Outputs { out: gradient, lse: delta };
            add(self.0.gradients(inputs.clone(), (outputs, false), gradients, wanted));
        }
        if out.is_some() || lse.is_some() {
            let or_zeros = |gradient: Option<FloatTensor<B>>, like: &FloatTensor<B>| {
                gradient.unwrap_or_else(|| {
                    B::float_zeros(like.shape(), &like.device(), like.dtype().into())
                })
            };
            let gradients =
                Outputs { out: or_zeros(out, &outputs.out), lse: or_zeros(lse, &outputs.lse) };
            add(self.0.gradients(inputs, (outputs, true), gradients, wanted));
        }
        // Each parent once: see `on_tape`.
        for ((parent, gradient), is_wanted) in ops.parents.into_iter().zip(sum).zip(wanted) {
            if let (Some(parent), Some(gradient), true) = (parent, gradient, is_wanted) {
                grads.register::<B>(parent.id, gradient);
            }
        }
    }
}

/// Takes what has arrived.
pub(super) fn arrived<T, const N: usize>(slots: &Mutex<[Option<T>; N]>) -> [Option<T>; N] {
    slots.lock().unwrap_or_else(PoisonError::into_inner).each_mut().map(Option::take)
}

/// Output number `I` of a joint node that has `N`.
#[derive(Debug)]
struct Tap<const I: usize, const N: usize>;

impl<B: Backend, const I: usize, const N: usize> Backward<B, 1> for Tap<I, N> {
    type State = Slots<B, N>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        let [parent] = ops.parents;
        let mut slots = ops.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = slots.iter().all(Option::is_none);
        slots[I] = Some(gradient.clone());
        if is_first && let Some(parent) = parent {
            // The tape visits nodes for which a gradient is registered; any tensor will do.
            grads.register::<B>(parent.id, gradient);
        }
    }
}

/// An operator's inputs on the tape, of which there is a `first` one. A constant stands in for those that are not there.
///
/// Another input would be a parent once for each place, and have a gradient registered once: devices that train together wait until all
/// that a parameter's tape counts on have come.
pub(super) fn on_tape<B: Backend, C: CheckpointStrategy, const N: usize>(
    first: &FloatTensor<Autodiff<B, C>>,
    inputs: [Option<&FloatTensor<Autodiff<B, C>>>; N],
) -> [FloatTensor<Autodiff<B, C>>; N] {
    let constant = || Autodiff::<B, C>::from_inner(first.primitive().clone());
    inputs.map(|input| input.cloned().unwrap_or_else(constant))
}

/// An operator's outputs, and its joint node where it is tracked.
pub(super) struct Recorded<B: Backend, C: CheckpointStrategy> {
    outputs: Pair<B>,
    joint: Option<FloatTensor<Autodiff<B, C>>>,
    slots: Slots<B, TAPS>,
}

impl<B: Backend, C: CheckpointStrategy> Recorded<B, C> {
    /// The outputs.
    pub fn pair(&self) -> Pair<Autodiff<B, C>> {
        let Outputs { out, lse } = self.outputs.clone();
        Outputs { out: self.tap::<0>(out), lse: self.tap::<1>(lse) }
    }

    /// The same, and those for a weighed sum.
    pub fn weighed(&self) -> WeighedResults<Autodiff<B, C>> {
        let Outputs { out, lse } = self.outputs.clone();
        let weighed = Weighed {
            out: self.tap::<2>(out),
            lse: self.tap::<3>(lse.clone()),
            delta: self.tap::<4>(lse),
        };
        WeighedResults { results: AttentionResults::new(self.pair()), weighed }
    }

    fn tap<const I: usize>(&self, value: FloatTensor<B>) -> FloatTensor<Autodiff<B, C>> {
        match &self.joint {
            Some(joint) => tap::<B, C, I, TAPS>(joint, self.slots.clone(), value),
            None => Autodiff::<B, C>::from_inner(value),
        }
    }
}

/// Puts an operator on the tape: its inputs, of which there is a `first` one, and the outputs that were computed from
/// them.
pub(super) fn record<B, C, K, const N: usize>(
    kind: K,
    first: &FloatTensor<Autodiff<B, C>>,
    inputs: [Option<&FloatTensor<Autodiff<B, C>>>; N],
    outputs: Pair<B>,
) -> Recorded<B, C>
where
    B: Backend,
    C: CheckpointStrategy,
    K: PairBackward<B, N>,
{
    let nodes = on_tape::<B, C, N>(first, inputs).map(|input| input.node());
    let slots = Slots::<B, TAPS>::default();
    let joint = match Joint(kind).prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(mut prep) => {
            let ids = inputs.map(|input| input.map(|input| prep.checkpoint(input)));
            let state = (ids, outputs.clone(), slots.clone());
            Some(prep.finish(state, outputs.lse.clone()))
        }
        OpsKind::UnTracked(_) => None,
    };
    Recorded { outputs, joint, slots }
}

/// Output number `I` of a joint node that has `N`.
pub(super) fn tap<B: Backend, C: CheckpointStrategy, const I: usize, const N: usize>(
    joint: &FloatTensor<Autodiff<B, C>>,
    slots: Slots<B, N>,
    value: FloatTensor<B>,
) -> FloatTensor<Autodiff<B, C>> {
    match Backward::<B, 1>::prepare::<C>(Tap::<I, N>, [joint.node()]).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(slots, value),
        OpsKind::UnTracked(prep) => prep.finish(value),
    }
}

#[derive(Debug)]
struct Attention(Plan);

/// Places of the operands, in the order of [`Operand`].
pub(super) const OPERANDS: usize = Operand::ALL.len();

pub(super) fn places<T>(operands: Operands<T>) -> [Option<T>; OPERANDS] {
    let Operands { query, key, value, additional, bias } = operands;
    let (more_keys, more_values) = match additional {
        Some(KeyValue { key, value }) => (Some(key), Some(value)),
        None => (None, None),
    };
    [Some(query), Some(key), Some(value), more_keys, more_values, bias]
}

/// The operands in their places.
pub(super) fn operands_of<B: Backend>(places: Places<B, OPERANDS>) -> Operands<FloatTensor<B>> {
    let [Some(query), Some(key), Some(value), more_keys, more_values, bias] = places else {
        unreachable!("an attention has a query, a key and a value")
    };
    let additional = more_keys.zip(more_values).map(|(key, value)| KeyValue { key, value });
    Operands { additional, bias, ..Operands::new(query, key, value) }
}

/// Gradients in the places of what they are of.
pub(super) fn gradient_places<B: Backend>(gradients: AttentionGradients<B>) -> Places<B, OPERANDS> {
    let AttentionGradients { query, key, value, additional_key, additional_value, bias } =
        gradients;
    [query, key, value, additional_key, additional_value, bias].map(Gradient::tensor)
}

impl<B: AttentionBackwardOps> PairBackward<B, OPERANDS> for Attention {
    fn gradients(
        &self,
        inputs: Places<B, OPERANDS>,
        (outputs, has_out): (Pair<B>, bool),
        gradients: Pair<B>,
        wanted: [bool; OPERANDS],
    ) -> Places<B, OPERANDS> {
        let operands = operands_of::<B>(inputs);
        let wanted = operands.as_ref().map(|operand, _| wanted[operand as usize]);
        gradient_places(B::attention_backward(
            AttentionInputs::new(operands),
            AttentionResults::new(outputs),
            AttentionResults::new(gradients),
            has_out,
            wanted,
            self.0.clone(),
        ))
    }
}

#[derive(Debug)]
struct Merge;

impl<B: AttentionBackwardOps> PairBackward<B, 2> for Merge {
    fn gradients(
        &self,
        inputs: Places<B, 2>,
        (Outputs { out, lse }, _): (Pair<B>, bool),
        gradients: Pair<B>,
        _wanted: [bool; 2],
    ) -> Places<B, 2> {
        let [Some(outs), Some(lses)] = inputs else {
            unreachable!("a merge has outputs and logsumexps")
        };
        let (outs, lses) = B::merge_backward(outs, lses, out, lse, gradients.out, gradients.lse);
        [Some(outs), Some(lses)]
    }
}

fn attend<B, C>(inputs: AttentionInputs<Autodiff<B, C>>, plan: Plan) -> Recorded<B, C>
where
    B: AttentionOps + AttentionBackwardOps,
    C: CheckpointStrategy,
{
    let operands = inputs.operands();
    let inner = operands.as_ref().map(|_, tensor| tensor.primitive().clone());
    let results = B::attention_forward(AttentionInputs::new(inner), plan.clone());
    let inputs = places(operands.as_ref());
    record::<B, C, _, OPERANDS>(Attention(plan), &operands.query, inputs, results.outputs())
}

impl<B, C> AttentionOps for Autodiff<B, C>
where
    B: AttentionOps + AttentionBackwardOps,
    C: CheckpointStrategy,
{
    fn attention_forward(inputs: AttentionInputs<Self>, plan: Plan) -> AttentionResults<Self> {
        AttentionResults::new(attend(inputs, plan).pair())
    }

    fn attention_forward_weighed(
        inputs: AttentionInputs<Self>,
        plan: Plan,
    ) -> WeighedResults<Self> {
        attend(inputs, plan).weighed()
    }

    fn merge_forward(
        outs: FloatTensor<Self>,
        lses: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (out, lse) = B::merge_forward(outs.primitive().clone(), lses.primitive().clone());
        let inputs = [Some(&outs), Some(&lses)];
        let results = record::<B, C, _, 2>(Merge, &outs, inputs, Outputs { out, lse });
        let Outputs { out, lse } = results.pair();
        (out, lse)
    }
}
