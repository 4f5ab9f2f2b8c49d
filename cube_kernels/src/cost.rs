//! What a problem costs: operations, bytes, and the least time a device needs for them.
//!
//! A pass is modelled as a kernel that keeps its arithmetic and its memory busy at once and meets
//! every byte of its tensors once: `max(operations / rate, bytes / bandwidth) + launch`. Real
//! kernels take longer; the model is there to rank tilings and to say what bounds a problem.

use crate::Problem;
use crate::tiling::Tiling;

/// Rates of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceModel {
    /// Name to print.
    pub name: &'static str,
    /// Operations per second of matrix multiplication in the element type of the problem, a
    /// multiply-add counted as two.
    pub matmul_flops: f64,
    /// Operations per second outside matrix units, in f32.
    pub vector_flops: f64,
    /// Bytes per second of a copy, those read and those written.
    pub bandwidth: f64,
    /// Bytes per second out of the last level of cache, which tiles of keys are read from again and
    /// again. For planners; [`Cost`] counts every byte once, at `bandwidth`.
    pub l2_bandwidth: f64,
    /// Seconds from the launch of a kernel to its first instruction.
    pub launch: f64,
}

impl DeviceModel {
    /// NVIDIA H200 (SXM) in f16 or bf16. Matrix multiplication and copy are measured, the rate of
    /// vectors is that of the data sheet, cache and launch are estimates.
    pub const H200: Self = Self {
        name: "NVIDIA H200",
        matmul_flops: 790e12,
        vector_flops: 67e12,
        bandwidth: 4.25e12,
        l2_bandwidth: 5.5e12,
        launch: 4e-6,
    };

    /// NVIDIA H100 (SXM) in f16 or bf16. It has the arithmetic of an [`H200`](Self::H200), whose
    /// rates are taken over; the copy rate is that of the data sheet, 3.35e12, less a tenth.
    pub const H100: Self = Self { name: "NVIDIA H100", bandwidth: 3.0e12, ..Self::H200 };

    /// NVIDIA B200 in f16 or bf16, which nothing has been measured on: matrix multiplication is 0.8 of the data sheet's 2,250
    /// TFLOP/s, as on an H200, and copy 0.9 of its 8 TB/s; the cache and the launch are estimates.
    pub const B200: Self = Self {
        name: "NVIDIA B200 (expected)",
        matmul_flops: 1800e12,
        vector_flops: 70e12,
        bandwidth: 7.2e12,
        l2_bandwidth: 10e12,
        launch: 4e-6,
    };

    /// Two cores of a server CPU in f32, measured; there are no matrix units. Cache and launch are
    /// estimates.
    pub const TWO_CORES: Self = Self {
        name: "two cores of an Intel Xeon (AVX-512)",
        matmul_flops: 262e9,
        vector_flops: 262e9,
        bandwidth: 19e9,
        l2_bandwidth: 200e9,
        launch: 10e-6,
    };

    /// A consumer GPU, in round numbers and not measured, for devices that nothing is known of.
    pub const SOME_GPU: Self = Self {
        name: "a GPU of 10 TFLOP/s and 0.5 TB/s",
        matmul_flops: 10e12,
        vector_flops: 10e12,
        bandwidth: 0.5e12,
        l2_bandwidth: 1e12,
        launch: 10e-6,
    };

    /// The device for kernels that do not use its matrix units.
    pub const fn without_matrix_units(self) -> Self {
        Self { matmul_flops: self.vector_flops, ..self }
    }
}

/// What bounds the time of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Arithmetic.
    Compute,
    /// Reading and writing the tensors.
    Memory,
    /// The launch of the kernel.
    Launch,
}

/// The cost of a pass over the whole problem, all samples and heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Operations that the windows and the additional tokens need, a multiply-add counted as two.
    pub flops: u64,
    /// Operations that are carried out, those on masked scores included.
    pub executed_flops: u64,
    /// Bytes of all tensors, inputs and outputs.
    pub bytes: u64,
    /// The least time on the device, in seconds.
    pub seconds: f64,
    /// What takes that time.
    pub limit: Limit,
}

impl Cost {
    /// The forward pass, with elements of `element_size` bytes: reads query, key and value, writes
    /// out and logsumexp. Without a tiling, no more than the windows is computed.
    ///
    /// ```rust
    /// use burn_natten_kernels::cost::{Cost, DeviceModel, Limit};
    /// use burn_natten_kernels::{Axis, Problem, tiling::Tiling};
    ///
    /// let problem = Problem::new([Axis::dense(4096, 4096, false)], 16, 128).with_batch(4);
    /// let tiling = Tiling { q_tile: [1, 1, 128], kv_tile: [1, 1, 128] };
    /// let cost = Cost::forward(&problem, Some(&tiling), 2, &DeviceModel::H200);
    /// assert_eq!(cost.flops, 4 * 16 * 4096 * 4096 * 2 * 256);
    /// assert_eq!((cost.executed_flops, cost.limit), (cost.flops, Limit::Compute));
    /// assert!((cost.seconds - 0.7e-3).abs() < 0.01e-3);
    /// ```
    ///
    /// # Panics
    ///
    /// If a tile has no extent along some axis.
    pub fn forward(
        problem: &Problem,
        tiling: Option<&Tiling>,
        element_size: usize,
        device: &DeviceModel,
    ) -> Self {
        let bytes = forward_bytes(problem, element_size);
        Self::new(problem.forward_flops(), executed(problem, tiling), bytes, device)
    }

    /// The backward pass, 2.5 times the operations of the forward pass: reads query, key, value, out,
    /// logsumexp and the gradients of both outputs, writes the gradients of query, key and value.
    ///
    /// # Panics
    ///
    /// If a tile has no extent along some axis.
    pub fn backward(
        problem: &Problem,
        tiling: Option<&Tiling>,
        element_size: usize,
        device: &DeviceModel,
    ) -> Self {
        let bytes = backward_bytes(problem, element_size);
        Self::new(problem.backward_flops(), executed(problem, tiling) / 2 * 5, bytes, device)
    }

    /// The cost of a kernel with these figures.
    pub fn new(flops: u64, executed_flops: u64, bytes: u64, device: &DeviceModel) -> Self {
        let compute = executed_flops as f64 / device.matmul_flops;
        let memory = bytes as f64 / device.bandwidth;
        let limit = if device.launch > compute.max(memory) {
            Limit::Launch
        } else if compute > memory {
            Limit::Compute
        } else {
            Limit::Memory
        };
        let seconds = compute.max(memory) + device.launch;
        Self { flops, executed_flops, bytes, seconds, limit }
    }
}

/// How much faster than dense attention over the same tokens a problem can be, by the scores that it
/// needs: 1 for dense attention, and for a problem without pairs.
pub fn flop_bound(problem: &Problem) -> f64 {
    bound(problem, problem.pairs())
}

/// How much faster than dense attention over the same tokens a tiling can be, by the scores that its
/// tiles hold.
///
/// # Panics
///
/// If a tile has no extent along some axis.
///
/// ```rust
/// use burn_natten_kernels::catalogue;
/// use burn_natten_kernels::cost::{flop_bound, tile_bound};
/// use burn_natten_kernels::tiling::Tiling;
///
/// let problem = catalogue::find("hunyuan").expect("is in the catalogue").problem;
/// let tiling = Tiling::square([4, 4, 4]);
/// // 11 times by the windows alone, less by what tiles compute besides.
/// assert_eq!(flop_bound(&problem).floor(), 11.0);
/// let bound = tile_bound(&problem, &tiling);
/// assert!((bound * tiling.work_ratio(&problem) / flop_bound(&problem) - 1.0).abs() < 1e-9);
/// ```
pub fn tile_bound(problem: &Problem, tiling: &Tiling) -> f64 {
    bound(problem, tiling.executed_pairs(problem))
}

/// Scores of dense attention, in which the additional tokens are further keys, for one of `pairs`.
fn bound(problem: &Problem, pairs: u64) -> f64 {
    let dense = problem.queries() as f64 * (problem.keys() + problem.additional) as f64;
    if pairs == 0 { 1.0 } else { dense / pairs as f64 }
}

/// Operations of a forward pass in whole tiles.
fn executed(problem: &Problem, tiling: Option<&Tiling>) -> u64 {
    let Some(tiling) = tiling else { return problem.forward_flops() };
    let heads = (problem.batch * problem.heads) as u64;
    let dims = (problem.head_dim + problem.head_dim_v) as u64;
    2 * heads * tiling.executed_pairs(problem) * dims
}

/// Bytes that a forward pass meets: query, key, value, out and logsumexp, additional tokens included.
pub fn forward_bytes(problem: &Problem, element_size: usize) -> u64 {
    let rows = problem.batch as u64 * problem.queries() as u64 * problem.heads as u64;
    // The logsumexp is f32, and f64 for f64 inputs.
    let logsumexp = element_size.max(size_of::<f32>());
    let row = (problem.head_dim + problem.head_dim_v) * element_size + logsumexp;
    rows * row as u64 + key_bytes(problem, element_size)
}

/// Bytes that a backward pass meets: those of the forward pass, and a gradient for each.
pub fn backward_bytes(problem: &Problem, element_size: usize) -> u64 {
    2 * forward_bytes(problem, element_size)
}

/// Bytes of keys and values, additional ones included.
fn key_bytes(problem: &Problem, element_size: usize) -> u64 {
    let tokens = (problem.keys() + problem.additional) as u64;
    let rows = problem.batch as u64 * tokens * problem.heads_kv as u64;
    rows * ((problem.head_dim + problem.head_dim_v) * element_size) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Axis;

    fn problem(axes: impl AsRef<[Axis]>) -> Problem {
        Problem::new(axes, 6, 64).with_batch(2).with_heads_kv(2).with_head_dim_v(32)
    }

    fn image() -> Problem {
        let axis = Axis::neighborhood(56, 7);
        problem([axis, axis])
    }

    #[test]
    fn bytes_are_those_of_every_tensor() {
        let problem = image().with_additional(5);
        let queries = 2 * 56 * 56 * 6;
        let keys = 2 * (56 * 56 + 5) * 2;
        for (size, statistics) in [(2, 4), (4, 4), (8, 8)] {
            let query = queries * 64 * size;
            let out = queries * 32 * size;
            let (key, value) = (keys * 64 * size, keys * 32 * size);
            let lse = queries * statistics;
            let forward = Cost::forward(&problem, None, size, &DeviceModel::H200);
            assert_eq!(forward.bytes, (query + key + value + out + lse) as u64);
            let backward = Cost::backward(&problem, None, size, &DeviceModel::H200);
            let read = query + key + value + 2 * out + 2 * lse;
            assert_eq!(backward.bytes, (read + query + key + value) as u64);
        }
    }

    #[test]
    fn operations_are_those_of_the_tiles() {
        let problem = image();
        let pairs = 56 * 56 * 49;
        let tiling = Tiling::square([1, 8, 8]);
        let cost = Cost::forward(&problem, Some(&tiling), 2, &DeviceModel::H200);
        assert_eq!(cost.flops, 2 * 2 * 6 * pairs * (64 + 32));
        let ratio = cost.executed_flops as f64 / cost.flops as f64;
        assert!((ratio - tiling.work_ratio(&problem)).abs() < 1e-12 && ratio > 2.0);
        let backward = Cost::backward(&problem, Some(&tiling), 2, &DeviceModel::H200);
        assert_eq!(backward.flops * 2, cost.flops * 5);
        assert_eq!(backward.executed_flops * 2, cost.executed_flops * 5);
        let exact = Cost::forward(&problem, None, 2, &DeviceModel::H200);
        assert_eq!(exact.executed_flops, cost.flops);
    }

    #[test]
    fn the_slowest_of_three_bounds_the_time() {
        let device =
            DeviceModel { matmul_flops: 100.0, bandwidth: 10.0, launch: 2.0, ..DeviceModel::H100 };
        let cost = |flops, bytes| Cost::new(flops, flops, bytes, &device);
        assert_eq!((cost(1000, 50).seconds, cost(1000, 50).limit), (12.0, Limit::Compute));
        assert_eq!((cost(300, 50).seconds, cost(300, 50).limit), (7.0, Limit::Memory));
        assert_eq!((cost(100, 10).seconds, cost(100, 10).limit), (3.0, Limit::Launch));
    }

    #[test]
    fn bounds_are_relative_to_dense_attention() {
        let dense = problem([Axis::dense(64, 64, false)]);
        assert_eq!(flop_bound(&dense), 1.0);
        assert_eq!(tile_bound(&dense, &Tiling::square([1, 1, 16])), 1.0);
        let windows = image();
        assert_eq!(flop_bound(&windows), 64.0);
        let tiling = Tiling::square([1, 4, 8]);
        let expected = 64.0 / tiling.work_ratio(&windows);
        assert!((tile_bound(&windows, &tiling) - expected).abs() < 1e-9);
        let none = problem([Axis::dense(0, 0, false)]);
        assert_eq!(flop_bound(&none), 1.0);
    }
}
