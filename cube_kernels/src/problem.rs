//! What is to be computed: sizes and parameters, no data.

use crate::window;

/// The largest number of spatial axes.
pub const MAX_RANK: usize = 3;

/// One spatial axis. The semantics are those of [`window`].
///
/// Fields are not checked: `1 <= stride <= kernel_size`, `kernel_size * dilation <= keys`.
///
/// ```rust
/// use burn_natten_kernels::Axis;
///
/// let axis = Axis { kernel_size: 3, dilation: 2, ..Axis::dense(9, 9, false) };
/// // Query 4 sees keys 2, 4 and 6; key 0 is seen by queries 0 and 2.
/// assert_eq!(axis.window(4), (2, 3));
/// assert_eq!(axis.visitors(0), (0, 2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    /// Number of queries along the axis.
    pub queries: usize,
    /// Number of keys along the axis. Differs from `queries` only for dense attention.
    pub keys: usize,
    /// Keys in a window.
    pub kernel_size: usize,
    /// Queries that share one window.
    pub stride: usize,
    /// Distance between neighboring keys of a window.
    pub dilation: usize,
    /// Whether a query sees only keys up to its own index.
    pub is_causal: bool,
}

impl Axis {
    /// The axis of one element that pads a problem to [`MAX_RANK`].
    pub const UNIT: Self = Self::dense(1, 1, false);

    /// An axis of dense attention: every query sees every key, or every key up to its own index.
    pub const fn dense(queries: usize, keys: usize, is_causal: bool) -> Self {
        Self { queries, keys, kernel_size: keys, stride: 1, dilation: 1, is_causal }
    }

    /// Whether every query sees every key.
    pub fn is_full(&self) -> bool {
        !self.is_causal && self.kernel_size == self.keys
    }

    /// The keys that `query` sees: first index, number of keys; they are `dilation` apart.
    pub fn window(&self, query: usize) -> (usize, usize) {
        let (group, position) = (query % self.dilation, query / self.dilation);
        let keys = window::group_length(self.keys, self.dilation, group);
        if keys == 0 {
            return (group, 0);
        }
        let (size, causal) = (self.kernel_size, self.is_causal);
        let start = window::window_start(position, keys, size, self.stride, causal);
        let end = window::window_end(position, start, keys, size, causal);
        (start * self.dilation + group, end - start)
    }

    /// The queries that see `key`: first index, number of queries; they are `dilation` apart.
    pub fn visitors(&self, key: usize) -> (usize, usize) {
        let (group, position) = (key % self.dilation, key / self.dilation);
        let queries = window::group_length(self.queries, self.dilation, group);
        let keys = window::group_length(self.keys, self.dilation, group);
        let (size, stride, causal) = (self.kernel_size, self.stride, self.is_causal);
        let start = window::visitor_start(position, queries, size, stride, causal);
        let end = window::visitor_end(position, queries, keys, size, stride, causal);
        (start * self.dilation + group, end.saturating_sub(start))
    }
}

/// A validated attention problem.
///
/// Tensors are contiguous: query `[batch, queries, heads, head_dim]`, key
/// `[batch, keys, heads_kv, head_dim]`, value `[batch, keys, heads_kv, head_dim_v]`, with the
/// spatial axes flattened row-major; logsumexp `[batch, queries, heads]`. Query head `h` reads key
/// and value head `h / (heads / heads_kv)`. Every query also sees the `additional` tokens, stored
/// as `[batch, additional, heads_kv, head_dim(_v)]`.
///
/// ```rust
/// use burn_natten_kernels::{Axis, Problem};
///
/// let side = Axis { kernel_size: 7, ..Axis::dense(56, 56, false) };
/// let problem = Problem {
///     batch: 64,
///     heads: 2,
///     heads_kv: 2,
///     head_dim: 64,
///     head_dim_v: 64,
///     additional: 0,
///     scale: 0.125,
///     axes: [Axis::UNIT, side, side],
/// };
/// // For one sample and head; FLOPs are for all of them.
/// assert_eq!(problem.pairs(), 56 * 56 * 49);
/// assert_eq!(problem.forward_flops(), 64 * 2 * problem.pairs() * 2 * (64 + 64));
/// assert_eq!(problem.query_coordinates(57), [0, 1, 1]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// Number of independent samples.
    pub batch: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub heads_kv: usize,
    /// Length of a query or key vector.
    pub head_dim: usize,
    /// Length of a value or output vector.
    pub head_dim_v: usize,
    /// Number of additional key/value tokens.
    pub additional: usize,
    /// Factor on the scores.
    pub scale: f64,
    /// The spatial axes, slowest first, padded at the front with [`Axis::UNIT`].
    pub axes: [Axis; MAX_RANK],
}

impl Problem {
    /// Number of spatial axes, without the padding: at least 1.
    pub fn rank(&self) -> usize {
        let padding = self.axes.iter().take_while(|axis| **axis == Axis::UNIT).count();
        MAX_RANK - padding.min(MAX_RANK - 1)
    }

    /// Number of queries of a sample.
    pub fn queries(&self) -> usize {
        self.axes.iter().map(|axis| axis.queries).product()
    }

    /// Number of keys of a sample, without the additional ones.
    pub fn keys(&self) -> usize {
        self.axes.iter().map(|axis| axis.keys).product()
    }

    /// Query heads that share one key and value head.
    pub fn group_size(&self) -> usize {
        self.heads / self.heads_kv
    }

    /// Whether every query sees every key.
    pub fn is_full(&self) -> bool {
        self.axes.iter().all(Axis::is_full)
    }

    /// The same problem with its axes as the portable kernels walk them: fastest last and as long as
    /// possible.
    #[cfg_attr(not(feature = "cube"), allow(dead_code))]
    pub(crate) fn normalized(&self) -> Self {
        if self.is_full() {
            // No axis restricts anything: one long axis saves the index arithmetic.
            let merged = Axis::dense(self.queries(), self.keys(), false);
            return Self { axes: [Axis::UNIT, Axis::UNIT, merged], ..*self };
        }
        let mut axes = self.axes;
        let padding = axes.iter().rev().take_while(|a| **a == Axis::UNIT).count();
        axes.rotate_right(padding);
        Self { axes, ..*self }
    }

    /// Pairs of a query and a key it sees, for one sample and one head.
    pub fn pairs(&self) -> u64 {
        let windows: u64 = self
            .axes
            .iter()
            .map(|axis| (0..axis.queries).map(|query| axis.window(query).1 as u64).sum::<u64>())
            .product();
        windows + (self.queries() * self.additional) as u64
    }

    /// Floating-point operations of the forward pass, a multiply-add counted as two.
    pub fn forward_flops(&self) -> u64 {
        let pairs = (self.batch * self.heads) as u64 * self.pairs();
        2 * pairs * (self.head_dim + self.head_dim_v) as u64
    }

    /// Floating-point operations of the backward pass: 2.5 times the forward pass.
    pub fn backward_flops(&self) -> u64 {
        self.forward_flops() / 2 * 5
    }

    /// Elements of the largest tensor, or of the two numbers that kernels keep of each query row.
    pub fn largest_tensor(&self) -> usize {
        let queries = self.queries() * self.heads;
        let keys = self.keys().max(self.additional) * self.heads_kv;
        self.batch * queries.max(keys) * self.head_dim.max(self.head_dim_v).max(2)
    }

    /// Whether some tensor has too many elements for signed 32-bit indices.
    pub fn needs_wide_indices(&self) -> bool {
        self.largest_tensor() > i32::MAX as usize
    }

    /// Row-major coordinates of a query index.
    pub fn query_coordinates(&self, index: usize) -> [usize; MAX_RANK] {
        coordinates(index, self.axes.map(|axis| axis.queries))
    }

    /// Row-major coordinates of a key index.
    pub fn key_coordinates(&self, index: usize) -> [usize; MAX_RANK] {
        coordinates(index, self.axes.map(|axis| axis.keys))
    }
}

fn coordinates(index: usize, [_, y, x]: [usize; MAX_RANK]) -> [usize; MAX_RANK] {
    [index / (y * x), index / x % y, index % x]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_count_every_visible_key() {
        let axis = |length, kernel_size, stride, dilation, is_causal| Axis {
            queries: length,
            keys: length,
            kernel_size,
            stride,
            dilation,
            is_causal,
        };
        let problem = Problem {
            batch: 2,
            heads: 4,
            heads_kv: 2,
            head_dim: 8,
            head_dim_v: 4,
            additional: 3,
            scale: 1.0,
            axes: [Axis::UNIT, axis(9, 3, 2, 2, true), axis(7, 3, 1, 2, false)],
        };
        let mut count = 0;
        for query in 0..problem.queries() {
            let [_, y, x] = problem.query_coordinates(query);
            for key in 0..problem.keys() {
                let [_, ky, kx] = problem.key_coordinates(key);
                let visible = |axis: &Axis, query: usize, key: usize| {
                    let (first, size) = axis.window(query);
                    (0..size).any(|i| first + i * axis.dilation == key)
                };
                count +=
                    u64::from(visible(&problem.axes[1], y, ky) && visible(&problem.axes[2], x, kx));
            }
        }
        assert_eq!(problem.pairs(), count + 63 * 3);
    }
}
