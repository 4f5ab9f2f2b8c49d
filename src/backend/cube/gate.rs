//! The gated sum of branches by a kernel, or else by tensor operations.

use burn::backend::{DType, TensorMetadata};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use burn_natten_kernels::tokens::{
    self, GateInputs, branch_sum, gated_sum, gated_sum_backward, gated_sum_statistics,
};

use super::memory::empty;
use super::tokens::{is_empty, is_launched, matrix};
use crate::backend::AttentionResults;
use crate::backend::gate::{
    GateGradientOps, GateGradients, GateOps, GateStatistics, forward, gradients, statistics,
    statistics_shape, sum,
};

fn inputs<'a>(branches: [&'a CubeTensor; 3], gates: &'a CubeTensor) -> GateInputs<'a> {
    GateInputs { branches: branches.map(|branch| &branch.handle), gates: &gates.handle }
}

impl GateOps for CubeBackend {
    fn gate_forward(
        compressed: CubeTensor,
        selected: CubeTensor,
        window: CubeTensor,
        gates: CubeTensor,
    ) -> CubeTensor {
        if is_empty(&compressed) {
            return forward::<Self>([compressed, selected, window], gates);
        }
        let [a, b, c, gates] = [compressed, selected, window, gates].map(into_contiguous);
        let output = empty(&a, a.shape(), a.dtype);
        let result = gated_sum(&matrix(&a), &inputs([&a, &b, &c], &gates), &output.handle);
        if is_launched(result) { output } else { forward::<Self>([a, b, c], gates) }
    }
}

impl GateGradientOps for CubeBackend {
    fn gate_gradients(
        compressed: CubeTensor,
        selected: CubeTensor,
        window: CubeTensor,
        gates: CubeTensor,
        gradient: CubeTensor,
    ) -> GateGradients<Self> {
        if is_empty(&compressed) {
            return gradients::<Self>([compressed, selected, window], gates, gradient);
        }
        let [a, b, c, gates] = [compressed, selected, window, gates].map(into_contiguous);
        let gradient = into_contiguous(gradient);
        let like = |tensor: &CubeTensor| empty(tensor, tensor.shape(), tensor.dtype);
        let to = GateGradients::<Self> {
            compressed: like(&a),
            selected: like(&b),
            window: like(&c),
            gates: like(&gates),
        };
        let result = gated_sum_backward(
            &matrix(&a),
            &inputs([&a, &b, &c], &gates),
            &gradient.handle,
            &inputs([&to.compressed, &to.selected, &to.window], &to.gates),
        );
        if is_launched(result) { to } else { gradients::<Self>([a, b, c], gates, gradient) }
    }

    fn gate_statistics(
        compressed: AttentionResults<Self>,
        selected: AttentionResults<Self>,
        window: AttentionResults<Self>,
        gates: CubeTensor,
        gradient: CubeTensor,
    ) -> GateStatistics<Self> {
        let results = [compressed, selected, window];
        if is_empty(&results[0].out) {
            return statistics::<Self>(results, gates, gradient);
        }
        let results = results.map(|AttentionResults { out, lse }| AttentionResults::<Self> {
            out: into_contiguous(out),
            lse: into_contiguous(lse),
        });
        let [gates, gradient] = [gates, gradient].map(into_contiguous);
        let to = GateStatistics::<Self> {
            statistics: empty(&gates, statistics_shape(&gates.shape()), DType::F32),
            gates: empty(&gates, gates.shape(), gates.dtype),
        };
        let [a, b, c] = results.each_ref();
        let result = gated_sum_statistics(
            &matrix(&a.out),
            &inputs([&a.out, &b.out, &c.out], &gates),
            [&a.lse.handle, &b.lse.handle, &c.lse.handle],
            &gradient.handle,
            &tokens::GateStatistics { statistics: &to.statistics.handle, gates: &to.gates.handle },
        );
        if is_launched(result) { to } else { statistics::<Self>(results, gates, gradient) }
    }

    fn gate_branches_gradient(
        compressed: CubeTensor,
        selected: CubeTensor,
        window: CubeTensor,
    ) -> CubeTensor {
        if is_empty(&compressed) {
            return compressed;
        }
        let [a, b, c] = [compressed, selected, window].map(into_contiguous);
        let output = empty(&a, a.shape(), a.dtype);
        let result = branch_sum(&matrix(&a), [&a.handle, &b.handle, &c.handle], &output.handle);
        if is_launched(result) { output } else { sum::<Self>([a, b, c]) }
    }
}
