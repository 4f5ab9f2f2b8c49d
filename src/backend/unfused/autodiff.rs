//! Gradients of the products, which are products again.

use burn::backend::Backend;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;

use super::{Optional, Tokens, UnfusedGradientOps, UnfusedOps, UnfusedPlan};
use crate::backend::autodiff::on_tape;

/// The inputs of either product: rows or weights, tokens, additional tokens, a bias. Where one is missing, a constant stands in for
/// it on the tape.
const INPUTS: usize = 4;

/// The node of an input that is kept, and whether there is such an input.
type Saved = [(Option<NodeId>, bool); INPUTS];

/// A product whose gradient is asked for.
pub(crate) trait Product<B: Backend>: std::fmt::Debug + Send + 'static {
    /// Which inputs are kept for the gradients of those that are tracked.
    fn kept(&self, _tracked: [bool; INPUTS]) -> [bool; INPUTS] {
        [true; INPUTS]
    }

    /// The gradients of those inputs that are wanted, from the inputs that are kept and the gradient of the result.
    fn gradients(
        &self,
        inputs: [Option<FloatTensor<B>>; INPUTS],
        gradient: FloatTensor<B>,
        wanted: [bool; INPUTS],
    ) -> [Option<FloatTensor<B>>; INPUTS];
}

#[derive(Debug)]
struct Dots(UnfusedPlan);

#[derive(Debug)]
struct Sums(UnfusedPlan);

impl<B: UnfusedOps + UnfusedGradientOps> Product<B> for Dots {
    fn gradients(
        &self,
        [rows, tokens, additional, bias]: [Option<FloatTensor<B>>; INPUTS],
        gradient: FloatTensor<B>,
        wanted: [bool; INPUTS],
    ) -> [Option<FloatTensor<B>>; INPUTS] {
        let (plan, tokens) = (self.0, tokens_of::<B>(tokens, additional));
        let d_bias = bias.filter(|_| wanted[3]);
        let d_bias = d_bias.map(|bias| B::unfused_offsets(gradient.clone(), bias, plan));
        let [d_tokens, d_additional] = spread::<B>(&gradient, rows, plan, wanted[1] || wanted[2]);
        let d_rows = tokens.filter(|_| wanted[0]);
        let d_rows = d_rows.map(|tokens| B::unfused_sums(gradient, tokens, plan));
        [d_rows, d_tokens, d_additional, d_bias]
    }
}

impl<B: UnfusedOps + UnfusedGradientOps> Product<B> for Sums {
    fn gradients(
        &self,
        [weights, tokens, additional, _]: [Option<FloatTensor<B>>; INPUTS],
        gradient: FloatTensor<B>,
        wanted: [bool; INPUTS],
    ) -> [Option<FloatTensor<B>>; INPUTS] {
        let (plan, tokens) = (self.0, tokens_of::<B>(tokens, additional));
        let d_weights = tokens.filter(|_| wanted[0]);
        let d_weights =
            d_weights.map(|tokens| B::unfused_dots(gradient.clone(), tokens, Optional::None, plan));
        let is_wanted = wanted[1] || wanted[2];
        let [d_tokens, d_additional] = match weights.filter(|_| is_wanted) {
            Some(weights) => spread::<B>(&weights, Some(gradient), plan, true),
            None => [None, None],
        };
        [d_weights, d_tokens, d_additional, None]
    }
}

fn tokens_of<B: Backend>(
    space: Option<FloatTensor<B>>,
    additional: Option<FloatTensor<B>>,
) -> Option<Tokens<B>> {
    space.map(|space| Tokens { space, additional: additional.into() })
}

fn spread<B: UnfusedGradientOps>(
    weights: &FloatTensor<B>,
    rows: Option<FloatTensor<B>>,
    plan: UnfusedPlan,
    is_wanted: bool,
) -> [Option<FloatTensor<B>>; 2] {
    match rows.filter(|_| is_wanted) {
        Some(rows) => {
            let Tokens { space, additional } = B::unfused_spread(weights.clone(), rows, plan);
            [Some(space), additional.into_option()]
        }
        None => [None, None],
    }
}

#[derive(Debug)]
struct Step<P>(P);

impl<B: Backend, P: Product<B>> Backward<B, INPUTS> for Step<P> {
    type State = Saved;

    fn backward(
        self,
        ops: Ops<Self::State, INPUTS>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<B>(&ops.node);
        let saved = ops.state;
        let inputs = saved
            .map(|(id, _)| id.map(|id| checkpointer.retrieve_node_output::<FloatTensor<B>>(id)));
        let wanted = std::array::from_fn(|i| ops.parents[i].is_some() && saved[i].1);
        let gradients = self.0.gradients(inputs, gradient, wanted);
        for ((parent, gradient), is_wanted) in ops.parents.into_iter().zip(gradients).zip(wanted) {
            if let (Some(parent), Some(gradient), true) = (parent, gradient, is_wanted) {
                grads.register::<B>(parent.id, gradient);
            }
        }
    }
}

/// A linear map of one tensor: its gradient needs no input.
pub(crate) trait LinearMap<B: Backend>: std::fmt::Debug + Send + 'static {
    /// The gradient of the input from that of the result.
    fn gradient(&self, gradient: FloatTensor<B>) -> FloatTensor<B>;
}

#[derive(Debug)]
struct OfOne<M>(M);

impl<B: Backend, M: LinearMap<B>> Product<B> for OfOne<M> {
    fn kept(&self, _tracked: [bool; INPUTS]) -> [bool; INPUTS] {
        [false; INPUTS]
    }

    fn gradients(
        &self,
        _inputs: [Option<FloatTensor<B>>; INPUTS],
        gradient: FloatTensor<B>,
        _wanted: [bool; INPUTS],
    ) -> [Option<FloatTensor<B>>; INPUTS] {
        [Some(self.0.gradient(gradient)), None, None, None]
    }
}

/// Puts a linear map on the tape: its input, and what was computed from it.
pub(crate) fn record_linear<B: Backend, C: CheckpointStrategy, M: LinearMap<B>>(
    map: M,
    input: &FloatTensor<Autodiff<B, C>>,
    output: FloatTensor<B>,
) -> FloatTensor<Autodiff<B, C>> {
    record::<B, C, _>(OfOne(map), input, [None; INPUTS - 1], output)
}

/// Puts a product on the tape: its inputs, of which there is a `first` one, and what was computed from them.
pub(crate) fn record<B: Backend, C: CheckpointStrategy, P: Product<B>>(
    product: P,
    first: &FloatTensor<Autodiff<B, C>>,
    others: [Option<&FloatTensor<Autodiff<B, C>>>; INPUTS - 1],
    output: FloatTensor<B>,
) -> FloatTensor<Autodiff<B, C>> {
    let [a, b, c] = others;
    let inputs = [Some(first), a, b, c];
    let nodes = on_tape::<B, C, INPUTS>(first, inputs).map(|input| input.node());
    let kept = product.kept(inputs.map(|input| input.is_some_and(|input| input.is_tracked())));
    match Step(product).prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(mut prep) => {
            let saved = std::array::from_fn(|i| {
                let input = inputs[i].filter(|_| kept[i]);
                (input.map(|input| prep.checkpoint(input)), inputs[i].is_some())
            });
            prep.finish(saved, output)
        }
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}

/// The inner tensors of tokens.
fn inner<B: Backend, C: CheckpointStrategy>(
    space: &FloatTensor<Autodiff<B, C>>,
    additional: &Option<FloatTensor<Autodiff<B, C>>>,
) -> Tokens<B> {
    let additional = additional.as_ref().map(|tensor| tensor.primitive().clone());
    Tokens { space: space.primitive().clone(), additional: additional.into() }
}

impl<B, C> UnfusedOps for Autodiff<B, C>
where
    B: UnfusedOps + UnfusedGradientOps,
    C: CheckpointStrategy,
{
    fn unfused_dots(
        rows: FloatTensor<Self>,
        tokens: Tokens<Self>,
        bias: Optional<Self>,
        plan: UnfusedPlan,
    ) -> FloatTensor<Self> {
        let Tokens { space, additional } = tokens;
        let (additional, bias) = (additional.into_option(), bias.into_option());
        let inner_bias = bias.as_ref().map(|bias| bias.primitive().clone());
        let tokens = inner::<B, C>(&space, &additional);
        let output = B::unfused_dots(rows.primitive().clone(), tokens, inner_bias.into(), plan);
        let others = [Some(&space), additional.as_ref(), bias.as_ref()];
        record::<B, C, _>(Dots(plan), &rows, others, output)
    }

    fn unfused_sums(
        weights: FloatTensor<Self>,
        tokens: Tokens<Self>,
        plan: UnfusedPlan,
    ) -> FloatTensor<Self> {
        let Tokens { space, additional } = tokens;
        let additional = additional.into_option();
        let tokens = inner::<B, C>(&space, &additional);
        let output = B::unfused_sums(weights.primitive().clone(), tokens, plan);
        let others = [Some(&space), additional.as_ref(), None];
        record::<B, C, _>(Sums(plan), &weights, others, output)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
    use burn::backend::flex::Flex;
    use burn::tensor::{FloatDType, Shape};

    use super::*;

    #[derive(Debug)]
    struct Nothing;

    impl<B: Backend> Product<B> for Nothing {
        fn gradients(
            &self,
            _inputs: [Option<FloatTensor<B>>; INPUTS],
            _gradient: FloatTensor<B>,
            _wanted: [bool; INPUTS],
        ) -> [Option<FloatTensor<B>>; INPUTS] {
            [None, None, None, None]
        }
    }

    fn ones<B: Backend>() -> FloatTensor<B> {
        B::float_ones(Shape::new([2]), &B::Device::default(), FloatDType::F32)
    }

    fn leaf<B: Backend>() -> FloatTensor<B> {
        B::float_set_require_grad(ones::<B>(), true)
    }

    /// As Burn waits for a gradient from every place where a node is a parent.
    #[test]
    fn an_input_is_a_parent_once() {
        let [first, other] = [leaf::<Autodiff<Flex>>(), leaf::<Autodiff<Flex>>()];
        for (others, expected) in [([None, None, None], 1), ([None, Some(&other), None], 2)] {
            let output =
                record::<Flex, NoCheckpointing, _>(Nothing, &first, others, ones::<Flex>());
            let node = format!("{:?}", output.node());
            assert_eq!(node.matches("Parent {").count(), expected, "{node}");
        }
    }
}
