//! Burn's own attention operator, on the problems that it has: dense ones of one axis.

use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, Tensor};
use burn_natten::AttentionError;
use burn_natten::profile::{Gradients, Inputs, Outputs, Pass, Repeats, Timing, Workload, time};
use burn_natten_kernels::{Axis, Problem};

use crate::verify::{Errors, Results};

/// Seeds of the inputs that are checked and of those that are timed.
const SEEDS: [u64; 2] = [7, 42];

/// Query, key and value, `[batch, heads, tokens, head_dim]` and contiguous, as the operator takes them.
struct Operands {
    tensors: [Tensor<4>; 3],
    problem: Problem,
}

/// Whether the operator computes a problem.
pub fn has(problem: &Problem) -> bool {
    let axis = problem.axes[2];
    let is_dense = axis == Axis::dense(axis.queries, axis.keys, axis.is_causal);
    problem.rank() == 1
        && is_dense
        && !problem.has_bias
        && problem.additional == 0
        && problem.group_size() == 1
}

impl Operands {
    fn new(inputs: &Inputs, problem: &Problem) -> Self {
        let tensors = [&inputs.query, &inputs.key, &inputs.value].map(heads_first);
        Self { tensors, problem: *problem }
    }

    /// The same with autodiff.
    fn tracked(&self) -> Self {
        let tensors = self.tensors.clone().map(|tensor| tensor.autodiff().require_grad());
        Self { tensors, problem: self.problem }
    }

    fn forward(&self) -> Tensor<4> {
        let [query, key, value] = self.tensors.clone();
        let options = AttentionModuleOptions {
            scale: Some(self.problem.scale),
            softcap: None,
            is_causal: self.problem.axes[2].is_causal,
        };
        attention(query, key, value, None, None, options)
    }

    /// The output's gradients of the three, and with them the forward pass, of tracked operands.
    fn forward_and_backward(&self, grad_out: &Tensor<4>) -> [Tensor<4>; 3] {
        let out = self.forward();
        let gradients = (out * grad_out.clone().autodiff()).sum().backward();
        let of = |tensor: &Tensor<4>| tensor.grad(&gradients).expect("it is tracked");
        [of(&self.tensors[0]), of(&self.tensors[1]), of(&self.tensors[2])]
    }
}

/// Compares output and gradients with float64. The operator has no logsumexp: the library's is in its place, and
/// its gradient zero.
pub fn verify(workload: &Workload, device: &Device) -> Result<Errors, AttentionError> {
    let inputs = workload.inputs(device, SEEDS[0]);
    let Outputs { out, logsumexp } = workload.upstream(device, SEEDS[0] + 1);
    let upstream = Outputs { out, logsumexp: logsumexp.zeros_like() };
    let operands = Operands::new(&inputs, &workload.problem);
    let logsumexp = workload.forward(&inputs)?.logsumexp;
    let outputs = Outputs { out: heads_last(operands.forward()), logsumexp };
    let grad_out = heads_first(&upstream.out);
    let [query, key, value] = operands.tracked().forward_and_backward(&grad_out).map(heads_last);
    let gradients = Some(Gradients { query, key, value, additional: None, bias: None });
    let results = Results { inputs, outputs, upstream, gradients };
    Ok(results.errors(&workload.problem))
}

/// Times a pass. The backward pass is both passes through autodiff, for the graph of one is used up by the other, and the
/// multiplication and sum that begin it.
pub fn time_pass(
    workload: &Workload,
    device: &Device,
    pass: Pass,
    repeats: &Repeats,
) -> Result<Timing, AttentionError> {
    let inputs = workload.inputs(device, SEEDS[1]);
    let operands = Operands::new(&inputs, &workload.problem);
    match pass {
        Pass::Forward => time(device, repeats, || Ok(vec![operands.forward().flatten(0, 3)])),
        Pass::Backward => {
            let grad_out = heads_first(&workload.upstream(device, SEEDS[1] + 1).out);
            let operands = operands.tracked();
            time(device, repeats, || {
                let gradients = operands.forward_and_backward(&grad_out);
                Ok(gradients.map(|gradient| gradient.flatten(0, 3)).into())
            })
        }
    }
}

fn heads_first(tensor: &Tensor<4>) -> Tensor<4> {
    let [batch, tokens, heads, dim] = tensor.dims();
    // A multiplication leaves its result contiguous.
    (tensor.clone().swap_dims(1, 2) * 1.0).reshape([batch, heads, tokens, dim])
}

fn heads_last(tensor: Tensor<4>) -> Tensor<4> {
    tensor.swap_dims(1, 2)
}
