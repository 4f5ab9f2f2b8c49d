//! The relative position bias: which entry belongs to a query and a key, and its gradient by selects and sums.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::Shape;
use burn_natten_kernels::{Axis, MAX_RANK, Problem};

use super::{IntTensor, Windows, keys_per_window};

/// Where the entry of an axis stands for a query and a key that it sees.
fn along(axis: &Axis, query: usize, key: usize) -> usize {
    // With a bias, queries stand among the keys.
    let query = query + axis.origin.unsigned_abs();
    (key + (axis.kernel_size - 1) * axis.dilation - query) / axis.dilation
}

/// Where the entry of a head stands for a query and a key that it sees.
pub(super) fn place(problem: &Problem, query: [usize; 3], key: [usize; 3]) -> usize {
    let extents = problem.bias_extents();
    (0..MAX_RANK).fold(0, |place, axis| {
        place * extents[axis] + along(&problem.axes[axis], query[axis], key[axis])
    })
}

/// For each distance along an axis, and each of its queries, the slot of the window with the key at this distance; as an index
/// into `[queries, slots]` and, where no key is there, behind the end.
fn slots_by_distance(axis: &Axis) -> Vec<i64> {
    let slots = axis.kernel_size;
    let none = (axis.queries * slots) as i64;
    let mut table = vec![none; (2 * slots - 1) * axis.queries];
    for query in 0..axis.queries {
        let (first, count) = axis.window(query);
        for slot in 0..count {
            let distance = along(axis, query, first + slot * axis.dilation);
            table[distance * axis.queries + query] = (query * slots + slot) as i64;
        }
    }
    table
}

impl<B: Backend> Windows<B> {
    /// The entries `[1, queries, slots, heads_kv, group, 1]` of a bias at `places`.
    pub(super) fn bias_of(
        &self,
        bias: FloatTensor<B>,
        places: IntTensor<B>,
        slots: usize,
    ) -> FloatTensor<B> {
        let problem = &self.problem;
        let (heads_kv, group) = (problem.heads_kv, problem.group_size());
        let entries = B::float_swap_dims(B::float_select(bias, 1, places), 0, 1);
        let shape = [1, problem.queries(), slots, heads_kv, group, 1];
        B::float_reshape(entries, Shape::new(shape))
    }

    /// The gradient `[heads, distances]` from that of all scores, `[1, queries, slots, heads_kv, group, 1]`.
    ///
    /// Axis by axis: for each distance the gradients of the queries' slots at this distance are selected, and summed over the
    /// queries. Nothing is added by index, so that the order of a sum is that of the backend's sums.
    pub(super) fn bias_gradient(&self, scores: FloatTensor<B>) -> FloatTensor<B> {
        let problem = &self.problem;
        let queries = problem.axes.map(|axis| axis.queries);
        let slots = problem.axes.map(|axis| axis.kernel_size);
        debug_assert_eq!(scores.shape().num_elements(), {
            problem.queries() * keys_per_window(problem) * problem.heads
        });
        // What is left to do: [queries.., slots.., done, heads], the axis at hand last among its kind.
        let mut sums = scores;
        let mut done = problem.heads;
        for axis in (0..MAX_RANK).rev() {
            let count = |of: [usize; MAX_RANK]| of[..axis].iter().product::<usize>();
            let (outer, inner) = (count(queries), count(slots));
            let (length, size) = (queries[axis], slots[axis]);
            let distances = 2 * size - 1;
            // [outer, length, inner, size, done] to [length, size, outer, inner, done]
            let shape = Shape::new([outer, length, inner, size, done]);
            sums = B::float_permute(B::float_reshape(sums, shape), &[1, 3, 0, 2, 4]);
            let flat = Shape::new([length * size, outer * inner * done]);
            sums = B::float_reshape(sums, flat);
            // A row of zeros behind the end, for what is not there.
            let zeros = Shape::new([1, outer * inner * done]);
            let zeros = B::float_zeros(zeros, &self.device, self.dtype);
            sums = B::float_cat(vec![sums, zeros], 0);
            let table = self.integers(slots_by_distance(&problem.axes[axis]));
            let shape = Shape::new([distances, length, outer * inner * done]);
            sums = B::float_reshape(B::float_select(sums, 0, table), shape);
            sums = B::float_sum_dim(sums, 1);
            // [distances, outer, inner, done] to [outer, inner, distances, done]
            let shape = Shape::new([distances, outer * inner, done]);
            sums = B::float_permute(B::float_reshape(sums, shape), &[1, 0, 2]);
            done *= distances;
        }
        let entries = done / problem.heads;
        let shape = Shape::new([entries, problem.heads]);
        B::float_swap_dims(B::float_reshape(sums, shape), 0, 1)
    }
}
