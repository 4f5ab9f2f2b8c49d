//! Packed batches on any backend: each run of sequences of one shape is a batch, a view of the packed tensors where its memory allows one.

use std::ops::Range;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{FloatDType, Shape, Slice};
use burn_natten_kernels::{KeyValue, MAX_RANK, Operand, Operands, Outputs, Problem, Saved};

use super::{
    AttentionBackwardOps, AttentionGradients, AttentionInputs, AttentionOps, AttentionResults,
    Plan, accumulator,
};
use crate::problem::packed::Run;

/// The axis of the tokens of packed tensors, `[1, tokens, heads, head_dim]`.
const TOKENS: usize = 1;

/// A run of sequences, and how it is going to be computed.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub run: Run,
    pub plan: Plan,
}

impl Part {
    fn problem(&self) -> &Problem {
        &self.run.problem
    }

    /// Its queries among the packed ones.
    fn queries(&self) -> Range<usize> {
        let Run { problem, query, .. } = &self.run;
        *query..query + problem.batch * problem.queries()
    }

    /// Its keys among the packed ones.
    fn keys(&self) -> Range<usize> {
        let Run { problem, key, has_additional_alone, .. } = &self.run;
        let count = if *has_additional_alone { 0 } else { problem.batch * problem.keys() };
        *key..key + count
    }

    /// Its sequences.
    fn sequences(&self) -> Range<usize> {
        self.run.sequence..self.run.sequence + self.problem().batch
    }

    /// What it reads of a packed operand: `[batch, *space, heads, head_dim]`.
    fn operand<B: Backend>(&self, operand: Operand, packed: &FloatTensor<B>) -> FloatTensor<B> {
        let problem = self.problem();
        let (queries, keys) =
            (problem.axes.map(|axis| axis.queries), problem.axes.map(|axis| axis.keys));
        match operand {
            Operand::Query => self.tokens::<B>(packed, self.queries(), queries),
            Operand::Key | Operand::Value => self.tokens::<B>(packed, self.keys(), keys),
            Operand::AdditionalKey | Operand::AdditionalValue => {
                slice::<B>(packed, 0, self.sequences())
            }
            Operand::Bias => packed.clone(),
        }
    }

    fn operands<B: Backend>(&self, packed: &Operands<FloatTensor<B>>) -> Operands<FloatTensor<B>> {
        let alone = match &packed.additional {
            Some(KeyValue { key, value }) if self.run.has_additional_alone => {
                let of = |tensor| slice::<B>(tensor, 0, self.sequences());
                let query = self.operand::<B>(Operand::Query, &packed.query);
                Some(Operands::new(query, of(key), of(value)))
            }
            _ => None,
        };
        alone.unwrap_or_else(|| {
            packed.as_ref().map(|operand, tensor| self.operand::<B>(operand, tensor))
        })
    }

    /// What it reads of an output, or its gradient.
    fn outputs<B: Backend>(&self, packed: &Outputs<FloatTensor<B>>) -> Outputs<FloatTensor<B>> {
        let queries = self.problem().axes.map(|axis| axis.queries);
        packed.as_ref().map(|tensor| self.tokens::<B>(tensor, self.queries(), queries))
    }

    /// Some tokens `[1, tokens, ..]` as those of its samples, `[batch, *space, ..]`.
    fn tokens<B: Backend>(
        &self,
        packed: &FloatTensor<B>,
        tokens: Range<usize>,
        space: [usize; MAX_RANK],
    ) -> FloatTensor<B> {
        let problem = self.problem();
        let shape = packed.shape();
        let space = &space[MAX_RANK - problem.rank()..];
        let shape = [&[problem.batch], space, &shape.as_slice()[TOKENS + 1..]].concat();
        B::float_reshape(slice::<B>(packed, TOKENS, tokens), Shape::from(shape))
    }

    /// Which of its gradients are wanted, where these of the packed operands are.
    fn wanted(&self, wanted: Operands<bool>) -> Operands<bool> {
        match wanted.additional {
            Some(KeyValue { key, value }) if self.run.has_additional_alone => {
                Operands::new(wanted.query, key, value)
            }
            _ => wanted,
        }
    }
}

/// Part of an axis; the tensor itself where that is all of it.
fn slice<B: Backend>(tensor: &FloatTensor<B>, axis: usize, range: Range<usize>) -> FloatTensor<B> {
    let shape = tensor.shape();
    if range == (0..shape[axis]) {
        return tensor.clone();
    }
    let mut slices = vec![Slice::full(); shape.num_dims()];
    slices[axis] = Slice::from(range);
    B::float_slice(tensor.clone(), &slices)
}

/// Tensors of parts `[batch, *space, ..]` as one of packed tokens `[1, tokens, ..]`, of the shape and type of `like`.
fn joined<B: Backend>(
    parts: Vec<FloatTensor<B>>,
    axis: usize,
    like: (&FloatTensor<B>, Shape, FloatDType),
) -> FloatTensor<B> {
    let (tensor, shape, dtype) = like;
    let line = |part: FloatTensor<B>| {
        let tail = &shape.as_slice()[axis + 1..];
        let each: usize = tail.iter().product();
        let length = part.shape().num_elements() / each.max(1);
        let line = [&shape.as_slice()[..axis], &[length], tail].concat();
        B::float_reshape(part, Shape::from(line))
    };
    let parts: Vec<_> =
        parts.into_iter().filter(|part| part.shape().num_elements() > 0).map(line).collect();
    match parts.len() {
        0 => B::float_zeros(shape, &tensor.device(), dtype),
        _ => B::float_cat(parts, axis),
    }
}

/// The forward pass.
pub(super) fn forward<B: AttentionOps>(
    operands: Operands<FloatTensor<B>>,
    parts: &[Part],
) -> Outputs<FloatTensor<B>> {
    let of = |part: &Part| {
        let inputs = AttentionInputs::new(part.operands::<B>(&operands));
        B::attention_forward(inputs, part.plan.clone()).outputs()
    };
    let (outs, lses) = parts.iter().map(of).map(|Outputs { out, lse }| (out, lse)).unzip();
    let (query, value) = (operands.query.shape(), operands.value.shape());
    let rows = &query.as_slice()[..query.num_dims() - 1];
    let out = [rows, &[value[value.num_dims() - 1]]].concat();
    let dtype = operands.query.dtype();
    let like = |shape, dtype| (&operands.query, Shape::from(shape), FloatDType::from(dtype));
    Outputs {
        out: joined::<B>(outs, TOKENS, like(out, dtype)),
        lse: joined::<B>(lses, TOKENS, like(rows.to_vec(), accumulator(dtype))),
    }
}

/// The backward pass: the gradients that are wanted.
pub(super) fn backward<B: AttentionBackwardOps>(
    saved: Saved<FloatTensor<B>>,
    wanted: Operands<bool>,
    parts: &[Part],
) -> Operands<Option<FloatTensor<B>>> {
    let Saved { operands, outputs, gradients, has_out } = saved;
    // Of each operand, what the parts give.
    let mut sums = operands.as_ref().map(|_, _| Vec::new());
    for part in parts {
        let wanted = part.wanted(wanted);
        if wanted.iter().all(|(_, is_wanted)| !is_wanted) {
            continue;
        }
        let given = B::attention_backward(
            AttentionInputs::new(part.operands::<B>(&operands)),
            AttentionResults::new(part.outputs::<B>(&outputs)),
            AttentionResults::new(part.outputs::<B>(&gradients)),
            has_out,
            wanted,
            part.plan.clone(),
        );
        let AttentionGradients { query, key, value, additional_key, additional_value, bias } =
            given;
        let [key, value] = [key.tensor(), value.tensor()];
        sums.query.extend(query.tensor());
        match &mut sums.additional {
            Some(more) if part.run.has_additional_alone => {
                more.key.extend(key);
                more.value.extend(value);
            }
            more => {
                sums.key.extend(key);
                sums.value.extend(value);
                if let Some(more) = more {
                    more.key.extend(additional_key.tensor());
                    more.value.extend(additional_value.tensor());
                }
            }
        }
        if let Some(sum) = &mut sums.bias {
            sum.extend(bias.tensor());
        }
    }
    let of = |operand: Operand, parts: Vec<FloatTensor<B>>, like: &FloatTensor<B>| {
        let dtype = FloatDType::from(like.dtype());
        match operand {
            Operand::Bias => summed::<B>(parts, like),
            Operand::AdditionalKey | Operand::AdditionalValue => {
                joined::<B>(parts, 0, (like, like.shape(), dtype))
            }
            _ => joined::<B>(parts, TOKENS, (like, like.shape(), dtype)),
        }
    };
    sums.zip(operands)
        .zip(wanted)
        .map(|operand, ((parts, like), is_wanted)| is_wanted.then(|| of(operand, parts, &like)))
}

/// The sum of gradients of the shape and type of `like`, in their order.
fn summed<B: Backend>(parts: Vec<FloatTensor<B>>, like: &FloatTensor<B>) -> FloatTensor<B> {
    let dtype: FloatDType = accumulator(like.dtype()).into();
    let zeros = || B::float_zeros(like.shape(), &like.device(), like.dtype().into());
    let wide = |part| B::float_cast(part, dtype);
    let sum = parts.into_iter().map(wide).reduce(B::float_add);
    sum.map_or_else(zeros, |sum| B::float_cast(sum, like.dtype().into()))
}
