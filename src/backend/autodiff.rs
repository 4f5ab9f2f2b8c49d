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

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{AutodiffBackend, Backend, TensorMetadata};

use super::{AdditionalKv, AttentionBackwardOps, AttentionOps, Plan};

/// The gradients of `out` and `lse`, as far as they have arrived.
type Slots<B> = Arc<Mutex<[Option<FloatTensor<B>>; 2]>>;

/// A pair of outputs.
type Pair<B> = (FloatTensor<B>, FloatTensor<B>);

/// The backward pass of an operator with `N` inputs and the outputs `out` and `lse`.
trait PairBackward<B: Backend, const N: usize>: std::fmt::Debug + Send + 'static {
    fn gradients(
        &self,
        inputs: [FloatTensor<B>; N],
        outputs: Pair<B>,
        gradients: Pair<B>,
    ) -> [FloatTensor<B>; N];
}

#[derive(Debug)]
struct Joint<K>(K);

impl<B: Backend, K: PairBackward<B, N>, const N: usize> Backward<B, N> for Joint<K> {
    type State = ([NodeId; N], Pair<B>, Slots<B>);

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        // The token that the first tap registered for this node.
        drop(grads.consume::<B>(&ops.node));
        let (inputs, (out, lse), slots) = ops.state;
        let inputs = inputs.map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id));
        let [grad_out, grad_lse] =
            std::mem::take(&mut *slots.lock().unwrap_or_else(PoisonError::into_inner));
        let or_zeros = |gradient: Option<FloatTensor<B>>, like: &FloatTensor<B>| {
            gradient.unwrap_or_else(|| {
                B::float_zeros(like.shape(), &like.device(), like.dtype().into())
            })
        };
        let gradients = (or_zeros(grad_out, &out), or_zeros(grad_lse, &lse));
        let gradients = self.0.gradients(inputs, (out, lse), gradients);
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(parent) = parent {
                grads.register::<B>(parent.id, gradient);
            }
        }
    }
}

/// Output number `I` of a joint node.
#[derive(Debug)]
struct Tap<const I: usize>;

impl<B: Backend, const I: usize> Backward<B, 1> for Tap<I> {
    type State = Slots<B>;

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

/// Puts an operator on the tape: its `inputs`, and the `outputs` that were computed from them.
fn record<B, C, K, const N: usize>(
    kind: K,
    inputs: [&FloatTensor<Autodiff<B, C>>; N],
    (out, lse): Pair<B>,
) -> Pair<Autodiff<B, C>>
where
    B: Backend,
    C: CheckpointStrategy,
    K: PairBackward<B, N>,
{
    let nodes = inputs.map(|input| input.node());
    match Joint(kind).prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(mut prep) => {
            let ids = inputs.map(|input| prep.checkpoint(input));
            let slots = Slots::<B>::default();
            let state = (ids, (out.clone(), lse.clone()), slots.clone());
            let joint = prep.finish(state, lse.clone());
            (tap::<B, C, 0>(&joint, slots.clone(), out), tap::<B, C, 1>(&joint, slots, lse))
        }
        OpsKind::UnTracked(_) => {
            (Autodiff::<B, C>::from_inner(out), Autodiff::<B, C>::from_inner(lse))
        }
    }
}

fn tap<B: Backend, C: CheckpointStrategy, const I: usize>(
    joint: &FloatTensor<Autodiff<B, C>>,
    slots: Slots<B>,
    value: FloatTensor<B>,
) -> FloatTensor<Autodiff<B, C>> {
    match Backward::<B, 1>::prepare::<C>(Tap::<I>, [joint.node()]).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(slots, value),
        OpsKind::UnTracked(prep) => prep.finish(value),
    }
}

#[derive(Debug)]
struct Attention(Plan);

impl<B: AttentionBackwardOps> PairBackward<B, 3> for Attention {
    fn gradients(
        &self,
        [query, key, value]: [FloatTensor<B>; 3],
        (out, lse): Pair<B>,
        (grad_out, grad_lse): Pair<B>,
    ) -> [FloatTensor<B>; 3] {
        let none = AdditionalKv::None;
        let (query, key, value, _) =
            B::attention_backward(query, key, value, none, out, lse, grad_out, grad_lse, self.0);
        [query, key, value]
    }
}

impl<B: AttentionBackwardOps> PairBackward<B, 5> for Attention {
    fn gradients(
        &self,
        [query, key, value, more_keys, more_values]: [FloatTensor<B>; 5],
        (out, lse): Pair<B>,
        (grad_out, grad_lse): Pair<B>,
    ) -> [FloatTensor<B>; 5] {
        let tokens = AdditionalKv::Tokens { key: more_keys, value: more_values };
        let (query, key, value, tokens) =
            B::attention_backward(query, key, value, tokens, out, lse, grad_out, grad_lse, self.0);
        match tokens {
            AdditionalKv::Tokens { key: more_keys, value: more_values } => {
                [query, key, value, more_keys, more_values]
            }
            AdditionalKv::None => unreachable!("the backward pass returns what it was given"),
        }
    }
}

#[derive(Debug)]
struct Merge;

impl<B: AttentionBackwardOps> PairBackward<B, 2> for Merge {
    fn gradients(
        &self,
        [outs, lses]: [FloatTensor<B>; 2],
        (out, lse): Pair<B>,
        (grad_out, grad_lse): Pair<B>,
    ) -> [FloatTensor<B>; 2] {
        let (outs, lses) = B::merge_backward(outs, lses, out, lse, grad_out, grad_lse);
        [outs, lses]
    }
}

impl<B, C> AttentionOps for Autodiff<B, C>
where
    B: AttentionOps + AttentionBackwardOps,
    C: CheckpointStrategy,
{
    fn attention_forward(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        additional: AdditionalKv<Self>,
        plan: Plan,
    ) -> Pair<Self> {
        let inner = |tensor: &FloatTensor<Self>| tensor.primitive().clone();
        let tokens = additional.map(inner);
        let outputs = B::attention_forward(inner(&query), inner(&key), inner(&value), tokens, plan);
        match &additional {
            AdditionalKv::None => {
                record::<B, C, _, 3>(Attention(plan), [&query, &key, &value], outputs)
            }
            AdditionalKv::Tokens { key: more_keys, value: more_values } => {
                let inputs = [&query, &key, &value, more_keys, more_values];
                record::<B, C, _, 5>(Attention(plan), inputs, outputs)
            }
        }
    }

    fn merge_forward(outs: FloatTensor<Self>, lses: FloatTensor<Self>) -> Pair<Self> {
        let outputs = B::merge_forward(outs.primitive().clone(), lses.primitive().clone());
        record::<B, C, _, 2>(Merge, [&outs, &lses], outputs)
    }
}
