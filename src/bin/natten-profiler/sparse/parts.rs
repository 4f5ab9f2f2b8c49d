//! The steps of native sparse attention, each timed by itself: what the whole has besides is the gates, and sums of gradients.

use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_natten::plan::SparsePlan;
use burn_natten::{
    AttentionError, AttentionOptions, BlockSparseOptions, NativeSparseAttentionOptions,
    NeighborhoodOptions, Pooling, try_attention, try_block_sparse1d, try_compress_tokens,
    try_compressed_attention, try_na1d, try_select_blocks,
};

use super::flags::{Job, window};
use crate::args::Args;
use crate::failure::Failure;
use crate::passes::{self, Measurement};

/// Times all steps that are not the gates, with these lists in place of selected ones where there are some.
pub fn run(
    job: &Job,
    options: &NativeSparseAttentionOptions,
    given: Option<&TensorData>,
    plan: &SparsePlan,
    args: &Args,
    device: &Device,
) -> Result<Vec<Measurement>, Failure> {
    let mut all = vec![];
    for step in Step::ALL {
        let costs = plan.steps.iter().find(|of| of.name == step.name());
        let flops = costs.map_or([0; 2], |of| [of.forward.flops, of.backward.flops]);
        // Such windows are no attention.
        if step == Step::Window && window(args) < 2 {
            continue;
        }
        if step == Step::Lists && given.is_some() {
            continue;
        }
        let part = Part { job, options, given, args, step };
        let measured = match step {
            // No gradient flows through a choice.
            Step::Lists => vec![passes::forward(&part, args, device, flops[0])?],
            _ => passes::times(&part, args, device, flops)?,
        };
        all.extend(measured.into_iter().map(|measured| measured.of(step.name())));
    }
    Ok(all)
}

#[derive(Clone, Copy, PartialEq)]
enum Step {
    Compress,
    Compressed,
    Lists,
    Selected,
    Window,
}

impl Step {
    const ALL: [Self; 5] =
        [Self::Compress, Self::Compressed, Self::Lists, Self::Selected, Self::Window];

    /// As plans call it.
    const fn name(self) -> &'static str {
        match self {
            Self::Compress => "compress",
            Self::Compressed => "compressed",
            Self::Lists => "scores and lists",
            Self::Selected => "selected",
            Self::Window => "window",
        }
    }
}

struct Part<'a> {
    job: &'a Job,
    options: &'a NativeSparseAttentionOptions,
    given: Option<&'a TensorData>,
    args: &'a Args,
    step: Step,
}

/// What a step takes.
struct Inputs {
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    blocks: Option<Tensor<4, Int>>,
}

impl Part<'_> {
    fn tokens(&self) -> usize {
        self.job.space[0]
    }

    fn compress(&self, tokens: Tensor<4>) -> Result<Tensor<4>, AttentionError> {
        try_compress_tokens(tokens, &Pooling::Mean, self.options)
    }
}

impl passes::Call for Part<'_> {
    type Inputs = Result<Inputs, AttentionError>;

    fn inputs(&self, device: &Device) -> Self::Inputs {
        let inputs = passes::tensors(self.args, [self.job.sizes.batch, self.tokens()], device);
        let [query, key, value] = inputs;
        // What an operation gives is no leaf.
        let leaf = |tensor: Tensor<4>| {
            let tensor = tensor.detach();
            if device.is_autodiff() { tensor.require_grad() } else { tensor }
        };
        let compressed = |tokens: Tensor<4>| self.compress(tokens.detach()).map(leaf);
        let inputs = match self.step {
            Step::Compress | Step::Window => Inputs { query, key, value, blocks: None },
            Step::Compressed | Step::Lists => {
                let (key, value) = (compressed(key)?, compressed(value)?);
                Inputs { query, key, value, blocks: None }
            }
            Step::Selected => {
                let blocks = match self.given {
                    Some(lists) => Tensor::from_data(lists.clone(), device),
                    None => {
                        let compressed = self.compress(key.clone().detach())?;
                        let from = query.clone().detach();
                        try_select_blocks(from, compressed, self.tokens(), self.options)?.blocks
                    }
                };
                Inputs { query, key, value, blocks: Some(blocks) }
            }
        };
        Ok(inputs)
    }

    fn call(&self, inputs: &Self::Inputs) -> Result<Vec<Tensor<1>>, AttentionError> {
        let Inputs { query, key, value, blocks } = inputs.as_ref().map_err(Clone::clone)?;
        let [q, k, v] = [query, key, value].map(Tensor::clone);
        let (tokens, options) = (self.tokens(), self.options);
        let sizes = &self.args.sparse;
        let strategy = self.args.strategy;
        let out = match (self.step, blocks) {
            (Step::Compress, _) => {
                let both = [self.compress(k)?, self.compress(v)?].map(|of| of.flatten(0, 3));
                Tensor::cat(both.to_vec(), 0)
            }
            (Step::Compressed, _) => {
                try_compressed_attention(q, k, v, tokens, options)?.out.flatten(0, 3)
            }
            (Step::Lists, _) => {
                let lists = try_select_blocks(q, k, tokens, options)?;
                return Ok(vec![lists.blocks.flatten::<1>(0, 3).float()]);
            }
            (Step::Selected, Some(blocks)) => {
                let options = BlockSparseOptions::<1>::new(sizes.query_tile, sizes.slc_block)
                    .with_causal(true)
                    .with_scale(self.args.scale)
                    .with_strategy(strategy);
                try_block_sparse1d(q, k, v, blocks.clone(), options)?.out.flatten(0, 3)
            }
            _ if window(self.args) >= tokens => {
                let options = AttentionOptions::new()
                    .with_causal(true)
                    .with_scale(self.args.scale)
                    .with_strategy(strategy);
                try_attention(q, k, v, options)?.out.flatten(0, 3)
            }
            _ => {
                let options = NeighborhoodOptions::<1>::new(window(self.args))
                    .with_causal(true)
                    .with_scale(self.args.scale)
                    .with_strategy(strategy);
                try_na1d(q, k, v, options)?.out.flatten(0, 3)
            }
        };
        Ok(passes::results(out, [query, key, value]))
    }
}
