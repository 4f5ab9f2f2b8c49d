//! What is to be computed: sizes and parameters, no data.

use std::ops::Range;

use crate::window;

/// The largest number of spatial axes.
pub const MAX_RANK: usize = 3;

/// What the names of kernels call the axes, slowest first.
pub(crate) const NAMES: [&str; MAX_RANK] = ["z", "y", "x"];

/// What the names of kernels say of axes that are `what`; nothing where none is.
pub(crate) fn axes_suffix(what: &str, axes: [bool; MAX_RANK]) -> String {
    let those = axes.into_iter().zip(NAMES).filter(|(bit, _)| *bit);
    let names: String = those.map(|(_, name)| name).collect();
    if names.is_empty() { names } else { format!("_{what}_{names}") }
}

/// What the names of kernels say of those flags that are set.
pub(crate) fn flags_suffix<const N: usize>(flags: [(bool, &str); N]) -> String {
    flags.into_iter().filter(|(flag, _)| *flag).map(|(_, name)| name).collect()
}

/// What the names of kernels call a tile with these sides.
pub(crate) fn tile_name(sides: &[usize]) -> String {
    sides.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}

/// One spatial axis: which keys each query sees along it. The semantics are those of [`window`].
///
/// Fields are not checked: `1 <= stride <= kernel_size`, `kernel_size * dilation <= keys`; `origin` is a multiple of the
/// dilation, and only dense causal axes may have one that puts queries outside the keys.
///
/// ```rust
/// use burn_natten_kernels::Axis;
///
/// let axis = Axis::neighborhood(9, 3).with_dilation(2);
/// // Query 4 sees keys 2, 4 and 6; key 0 is seen by queries 0 and 2.
/// assert_eq!(axis.window(4), (2, 3));
/// assert_eq!(axis.visitors(0), (0, 2));
///
/// // The last of 9 keys belongs to the last of 2 queries.
/// let decoding = Axis::dense(2, 9, true);
/// assert_eq!((decoding.window(0), decoding.window(1)), ((0, 8), (0, 9)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Axis {
    /// Number of queries along the axis.
    pub queries: usize,
    /// Number of keys along the axis.
    pub keys: usize,
    /// Where query 0 stands among the keys. Query `i` stands at `i + origin`, which may be before the first key
    /// or behind the last one.
    pub origin: isize,
    /// Keys in a window.
    pub kernel_size: usize,
    /// Queries that share one window.
    pub stride: usize,
    /// Distance between neighboring keys of a window.
    pub dilation: usize,
    /// Whether a query sees only keys up to where it stands.
    pub is_causal: bool,
}

impl Axis {
    /// The axis of one element that pads a problem to [`MAX_RANK`].
    pub const UNIT: Self = Self::dense(1, 1, false);

    /// An axis of dense attention: every query sees every key, or every key up to where it stands, the last query
    /// at the last key.
    pub const fn dense(queries: usize, keys: usize, is_causal: bool) -> Self {
        let origin = if is_causal { keys as isize - queries as isize } else { 0 };
        Self { queries, keys, origin, kernel_size: keys, stride: 1, dilation: 1, is_causal }
    }

    /// An axis of as many queries as keys, of which each query sees the `kernel_size` nearest ones.
    pub const fn neighborhood(length: usize, kernel_size: usize) -> Self {
        Self { kernel_size, ..Self::dense(length, length, false) }
    }

    /// The same with this many queries that share a window.
    pub const fn with_stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// The same with this distance between neighboring keys of a window.
    pub const fn with_dilation(self, dilation: usize) -> Self {
        Self { dilation, ..self }
    }

    /// The same with queries that see only keys up to where they stand, or with ones that see their whole window.
    pub const fn with_causal(self, is_causal: bool) -> Self {
        Self { is_causal, ..self }
    }

    /// The same with query 0 at this key.
    pub const fn with_origin(self, origin: isize) -> Self {
        Self { origin, ..self }
    }

    /// Whether every query sees every key.
    pub fn is_full(&self) -> bool {
        !self.is_causal && self.kernel_size == self.keys
    }

    /// Whether every query stands where there is a key.
    pub fn is_among_keys(&self) -> bool {
        let first = usize::try_from(self.origin);
        first.is_ok_and(|first| first + self.queries <= self.keys)
    }

    /// Whether it is an axis of dense attention, wherever its queries stand.
    pub fn is_dense(&self) -> bool {
        Self::dense(self.queries, self.keys, self.is_causal).with_origin(self.origin) == *self
    }

    /// Whether queries stand elsewhere than keys of the same number, and it makes a difference: where every query sees
    /// every key, it makes none.
    pub fn has_origin(&self) -> bool {
        self.origin != 0 && !self.is_full()
    }

    /// By how many positions of a dilation group queries stand ahead of keys of the same number, and by how many
    /// behind them: the arguments of [`shifted`](window::shifted()). None where it makes no difference.
    pub fn shift(&self) -> (usize, usize) {
        if !self.has_origin() {
            return (0, 0);
        }
        let distance = self.origin.unsigned_abs() / self.dilation;
        if self.origin < 0 { (0, distance) } else { (distance, 0) }
    }

    /// The keys that `query` sees: first index, number of keys; they are `dilation` apart.
    pub fn window(&self, query: usize) -> (usize, usize) {
        let group = query % self.dilation;
        let seen = self.keys_seen(group, query / self.dilation);
        (seen.start * self.dilation + group, seen.len())
    }

    /// The queries that see `key`: first index, number of queries; they are `dilation` apart.
    pub fn visitors(&self, key: usize) -> (usize, usize) {
        let group = key % self.dilation;
        let visitors = self.seen_by(group, key / self.dilation);
        (visitors.start * self.dilation + group, visitors.len())
    }

    /// Members of a dilation group: queries, keys.
    pub fn group(&self, group: usize) -> (usize, usize) {
        let members = |length| window::group_length(length, self.dilation, group);
        (members(self.queries), members(self.keys))
    }

    /// The positions of the keys that the query at a position of a dilation group sees. Starts and ends never
    /// decrease with the position.
    pub fn keys_seen(&self, group: usize, position: usize) -> Range<usize> {
        let (_, keys) = self.group(group);
        if keys == 0 {
            return 0..0;
        }
        let (size, causal) = (self.kernel_size, self.is_causal);
        let (ahead, behind) = self.shift();
        let at = window::shifted(position, ahead, behind);
        let next = window::shifted(position + 1, ahead, behind);
        let start = window::window_start(at, keys, size, self.stride, causal);
        start..window::window_end(next, start, keys, size, causal)
    }

    /// The positions of the queries that see the key at a position of a dilation group. Starts and ends never
    /// decrease with the position.
    pub fn seen_by(&self, group: usize, position: usize) -> Range<usize> {
        let (queries, keys) = self.group(group);
        if self.is_full() {
            return 0..queries;
        }
        let (size, stride, causal) = (self.kernel_size, self.stride, self.is_causal);
        let (ahead, behind) = self.shift();
        let past = window::shifted(queries, ahead, behind);
        let start = window::visitor_start(position, past, size, stride, causal);
        let end = window::visitor_end(position, past, keys, size, stride, causal);
        let [start, end] = [start, end].map(|at| window::shifted(at, behind, ahead).min(queries));
        start..end.max(start)
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
/// let side = Axis::neighborhood(56, 7);
/// let problem = Problem::new([side, side], 2, 64).with_batch(64);
/// assert_eq!((problem.axes, problem.scale), ([Axis::UNIT, side, side], 0.125));
/// // For one sample and head; FLOPs are for all of them.
/// assert_eq!(problem.pairs(), 56 * 56 * 49);
/// assert_eq!(problem.forward_flops(), 64 * 2 * problem.pairs() * 2 * (64 + 64));
/// assert_eq!(problem.query_coordinates(57), [0, 1, 1]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
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
    /// Whether there is a relative position bias, which is added to the scaled scores: that of `head`, `query` and `key`
    /// at `(key - query) / dilation + kernel_size - 1` along each axis. Additional tokens have none.
    pub has_bias: bool,
    /// The spatial axes, slowest first, padded at the front with [`Axis::UNIT`].
    pub axes: [Axis; MAX_RANK],
}

impl Problem {
    /// One sample with as many heads of keys and values as of queries, values as long as keys, no additional tokens,
    /// no bias and a scale of `head_dim^-0.5`. Axes are given slowest first.
    ///
    /// # Panics
    ///
    /// Without axes, or with more than [`MAX_RANK`].
    pub fn new(axes: impl AsRef<[Axis]>, heads: usize, head_dim: usize) -> Self {
        Self {
            batch: 1,
            heads,
            heads_kv: heads,
            head_dim,
            head_dim_v: head_dim,
            additional: 0,
            scale: (head_dim as f64).powf(-0.5),
            has_bias: false,
            axes: padded(axes.as_ref()),
        }
    }

    /// The same with this many samples.
    pub const fn with_batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    /// The same with this many heads of queries, and those of keys and values as they are.
    pub const fn with_heads(self, heads: usize) -> Self {
        Self { heads, ..self }
    }

    /// The same with this many heads of keys and values.
    pub const fn with_heads_kv(self, heads_kv: usize) -> Self {
        Self { heads_kv, ..self }
    }

    /// The same with values of this length.
    pub const fn with_head_dim_v(self, head_dim_v: usize) -> Self {
        Self { head_dim_v, ..self }
    }

    /// The same with this many additional tokens.
    pub const fn with_additional(self, additional: usize) -> Self {
        Self { additional, ..self }
    }

    /// The same with this factor on the scores.
    pub const fn with_scale(self, scale: f64) -> Self {
        Self { scale, ..self }
    }

    /// The same with a relative position bias, or without.
    pub const fn with_bias(self, has_bias: bool) -> Self {
        Self { has_bias, ..self }
    }

    /// The same over other axes, slowest first.
    ///
    /// # Panics
    ///
    /// Without axes, or with more than [`MAX_RANK`].
    pub fn with_axes(self, axes: impl AsRef<[Axis]>) -> Self {
        Self { axes: padded(axes.as_ref()), ..self }
    }

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

    /// Attention of all queries to the additional tokens alone, which are its keys along one axis. They have no bias.
    pub fn of_additional(&self) -> Self {
        let line = Axis::dense(self.queries(), self.additional, false);
        self.with_axes([line]).with_additional(0).with_bias(false)
    }

    /// Entries of a relative position bias along each axis: one for every distance of a key and a query that sees it.
    pub fn bias_extents(&self) -> [usize; MAX_RANK] {
        self.axes.map(|axis| (2 * axis.kernel_size).saturating_sub(1))
    }

    /// [`Axis::shift`] of each axis. Where every query sees every key, a relative position bias alone makes it matter where
    /// queries stand, which is among the keys.
    pub fn shifts(&self) -> [(usize, usize); MAX_RANK] {
        self.axes.map(|axis| match self.has_bias {
            true => (axis.origin.unsigned_abs() / axis.dilation, 0),
            false => axis.shift(),
        })
    }

    /// Whether [`Axis::has_origin`] holds for any axis.
    pub fn has_origin(&self) -> bool {
        self.axes.iter().any(Axis::has_origin)
    }

    /// The same problem with its axes as the portable kernels walk them: fastest last and as long as
    /// possible.
    #[cfg_attr(not(feature = "cube"), allow(dead_code))]
    pub(crate) fn normalized(&self) -> Self {
        if self.is_full() && !self.has_bias {
            // No axis restricts anything: one long axis saves the index arithmetic.
            let merged = Axis::dense(self.queries(), self.keys(), false);
            return self.with_axes([merged]);
        }
        let mut axes = self.axes;
        let padding = axes.iter().rev().take_while(|a| **a == Axis::UNIT).count();
        axes.rotate_right(padding);
        self.with_axes(axes)
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

    /// Elements of the largest tensor, or of the two numbers that kernels keep of each query row, with a position bias
    /// behind them.
    pub fn largest_tensor(&self) -> usize {
        let queries = self.queries() * self.heads;
        let keys = self.keys().max(self.additional) * self.heads_kv;
        let bias = match self.has_bias {
            true => self.heads * self.bias_entries(),
            false => 0,
        };
        let vectors = self.batch * queries.max(keys) * self.head_dim.max(self.head_dim_v).max(2);
        vectors.max(self.batch * queries * 2 + bias)
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

fn padded(axes: &[Axis]) -> [Axis; MAX_RANK] {
    let rank = axes.len();
    assert!((1..=MAX_RANK).contains(&rank), "{rank} axes; a problem has 1 to {MAX_RANK}");
    let mut padded = [Axis::UNIT; MAX_RANK];
    padded[MAX_RANK - rank..].copy_from_slice(axes);
    padded
}

fn coordinates(index: usize, [_, y, x]: [usize; MAX_RANK]) -> [usize; MAX_RANK] {
    [index / (y * x), index / x % y, index % x]
}

#[cfg(test)]
mod tests;
