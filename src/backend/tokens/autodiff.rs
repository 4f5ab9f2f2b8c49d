//! Gradients of the operators.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{AutodiffBackend, TensorMetadata};
use burn::tensor::{Shape, Slice};

use super::{ConvolutionPlan, NormGradients, NormPlan, Thirds, TokenGradientOps, TokenOps};
use crate::backend::autodiff::{Slots, arrived, tap};
use crate::backend::unfused::{Optional, Product, record};

#[derive(Debug)]
struct Norm(NormPlan);

#[derive(Debug)]
struct Linear;

#[derive(Debug)]
struct Convolution(ConvolutionPlan);

#[derive(Debug)]
struct Gelu;

impl<B: TokenGradientOps> Product<B> for Norm {
    fn kept(&self, _tracked: [bool; 4]) -> [bool; 4] {
        [true, true, false, false]
    }

    fn gradients(
        &self,
        [input, gamma, _, _]: [Option<FloatTensor<B>>; 4],
        gradient: FloatTensor<B>,
        wanted: [bool; 4],
    ) -> [Option<FloatTensor<B>>; 4] {
        let (Some(input), Some(gamma)) = (input, gamma) else { return [None, None, None, None] };
        let NormGradients { input, parameters } =
            B::token_norm_gradients(input, gamma, gradient, self.0);
        let channels = parameters.shape()[1];
        let parameter = |row: usize| {
            let row = B::float_slice(parameters.clone(), &[Slice::from(row..row + 1)]);
            B::float_reshape(row, Shape::new([channels]))
        };
        let of_beta = wanted[2].then(|| parameter(1));
        [wanted[0].then_some(input), wanted[1].then(|| parameter(0)), of_beta, None]
    }
}

impl<B: TokenGradientOps> Product<B> for Linear {
    fn kept(&self, [input, weight, ..]: [bool; 4]) -> [bool; 4] {
        [weight, input, false, false]
    }

    fn gradients(
        &self,
        [input, weight, _, _]: [Option<FloatTensor<B>>; 4],
        gradient: FloatTensor<B>,
        wanted: [bool; 4],
    ) -> [Option<FloatTensor<B>>; 4] {
        let of_bias = wanted[2].then(|| B::token_sums(gradient.clone()));
        let of_weight = input.filter(|_| wanted[1]);
        let of_weight = of_weight.map(|input| B::token_outer(input, gradient.clone()));
        let of_input = weight.filter(|_| wanted[0]);
        let of_input = of_input.map(|weight| B::token_linear_input(weight, gradient));
        [of_input, of_weight, of_bias, None]
    }
}

impl<B: TokenGradientOps> Product<B> for Convolution {
    fn kept(&self, _tracked: [bool; 4]) -> [bool; 4] {
        [true, true, false, false]
    }

    fn gradients(
        &self,
        [input, weight, _, _]: [Option<FloatTensor<B>>; 4],
        gradient: FloatTensor<B>,
        wanted: [bool; 4],
    ) -> [Option<FloatTensor<B>>; 4] {
        let (Some(input), Some(weight)) = (input, weight) else { return [None, None, None, None] };
        let of_bias = wanted[2].then(|| B::token_sums(gradient.clone()));
        let of = |gradient_of: fn(_, _, _, _) -> _| {
            gradient_of(input.clone(), weight.clone(), gradient.clone(), self.0)
        };
        let of_weight = wanted[1].then(|| of(B::token_convolution_weight));
        let of_input = wanted[0].then(|| of(B::token_convolution_input));
        [of_input, of_weight, of_bias, None]
    }
}

impl<B: TokenGradientOps> Product<B> for Gelu {
    fn gradients(
        &self,
        [input, ..]: [Option<FloatTensor<B>>; 4],
        gradient: FloatTensor<B>,
        _wanted: [bool; 4],
    ) -> [Option<FloatTensor<B>>; 4] {
        [input.map(|input| B::token_gelu_gradient(input, gradient)), None, None, None]
    }
}

/// Three parts of a tensor, whose gradients are put side by side once all are there.
#[derive(Debug)]
struct Parts;

impl<B: TokenGradientOps> Backward<B, 1> for Parts {
    type State = Slots<B, 3>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        // The token that the first tap registered for this node.
        drop(grads.consume::<B>(&ops.node));
        let ([parent], parts) = (ops.parents, arrived(&ops.state));
        let like = parts.iter().flatten().next().cloned();
        if let (Some(parent), Some(like)) = (parent, like) {
            let zeros = || B::float_zeros(like.shape(), &like.device(), like.dtype().into());
            let [first, second, third] = parts.map(|part| part.unwrap_or_else(zeros));
            grads.register::<B>(parent.id, B::token_whole(first, second, third));
        }
    }
}

impl<B, C> TokenOps for Autodiff<B, C>
where
    B: TokenOps + TokenGradientOps,
    C: CheckpointStrategy,
{
    fn token_norm(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Optional<Self>,
        plan: NormPlan,
    ) -> FloatTensor<Self> {
        let beta = beta.into_option();
        let inner = beta.as_ref().map(|beta| beta.primitive().clone());
        let (rows, scale) = (input.primitive().clone(), gamma.primitive().clone());
        let output = B::token_norm(rows, scale, inner.into(), plan);
        record::<B, C, _>(Norm(plan), &input, [Some(&gamma), beta.as_ref(), None], output)
    }

    fn token_linear(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Optional<Self>,
    ) -> FloatTensor<Self> {
        let bias = bias.into_option();
        let inner = bias.as_ref().map(|bias| bias.primitive().clone());
        let (rows, matrix) = (input.primitive().clone(), weight.primitive().clone());
        let output = B::token_linear(rows, matrix, inner.into());
        record::<B, C, _>(Linear, &input, [Some(&weight), bias.as_ref(), None], output)
    }

    fn token_convolution(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Optional<Self>,
        plan: ConvolutionPlan,
    ) -> FloatTensor<Self> {
        let bias = bias.into_option();
        let inner = bias.as_ref().map(|bias| bias.primitive().clone());
        let (maps, matrix) = (input.primitive().clone(), weight.primitive().clone());
        let output = B::token_convolution(maps, matrix, inner.into(), plan);
        record::<B, C, _>(Convolution(plan), &input, [Some(&weight), bias.as_ref(), None], output)
    }

    fn token_thirds(input: FloatTensor<Self>) -> Thirds<Self> {
        let Thirds { first, second, third } = B::token_thirds(input.primitive().clone());
        match Parts.prepare::<C>([input.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let slots = Slots::<B, 3>::default();
                let joint = prep.finish(slots.clone(), first.clone());
                Thirds {
                    first: tap::<B, C, 0, 3>(&joint, slots.clone(), first),
                    second: tap::<B, C, 1, 3>(&joint, slots.clone(), second),
                    third: tap::<B, C, 2, 3>(&joint, slots, third),
                }
            }
            OpsKind::UnTracked(_) => {
                let [first, second, third] = [first, second, third].map(Self::from_inner);
                Thirds { first, second, third }
            }
        }
    }

    fn token_gelu(input: FloatTensor<Self>) -> FloatTensor<Self> {
        let output = B::token_gelu(input.primitive().clone());
        record::<B, C, _>(Gelu, &input, [None, None, None], output)
    }
}
