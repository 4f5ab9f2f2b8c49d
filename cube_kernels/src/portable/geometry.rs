//! Where the rows of a problem are: window arithmetic over up to three axes, inside a kernel.
//!
//! A *row* is the vector of one token and one head. Rows are numbered as they lie in memory, so the
//! row of sample `b`, token `t` and head `h` is `(b * tokens + t) * heads + h`; its elements begin
//! at `row * dim`. Whatever a kernel walks over is a [`Run`]: rows an even step apart, such as the
//! part of a window that lies along the fastest axis.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::plan::{Launch, RowPlan};
use crate::cube::{AXIS_WORDS, Cut, find};
use crate::window::{group_length, shifted, visitor_end, visitor_start, window_end, window_start};
use crate::{MAX_RANK, Problem};

/// One axis: lengths and parameters at run time, so that they do not cost a compilation.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct AxisGeometry {
    pub queries: usize,
    pub keys: usize,
    pub kernel_size: usize,
    pub stride: usize,
    pub dilation: usize,
    /// By how many positions queries stand ahead of keys of the same number. Read where there is an origin only.
    ahead: usize,
    /// By how many they stand behind them; one of both is 0.
    behind: usize,
    #[cube(comptime)]
    pub is_causal: bool,
    /// Whether queries stand elsewhere than keys of the same number.
    #[cube(comptime)]
    has_origin: bool,
}

/// Numbers of the first query and of the first key of a sequence, among those of the packed batch.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Firsts {
    query: usize,
    key: usize,
}

/// Sizes of a problem. The axes are padded at the front, so that `x` is the longest run.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Geometry {
    pub z: AxisGeometry,
    pub y: AxisGeometry,
    pub x: AxisGeometry,
    pub heads: usize,
    pub heads_kv: usize,
    pub additional: usize,
    /// Where it begins, if it is that of a sequence. Rows and tokens are those of the packed batch.
    firsts: ComptimeOption<Firsts>,
}

/// Indices along one axis: `count` of them from `first` on, a dilation apart.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Span {
    pub first: usize,
    pub count: usize,
}

/// Row-major coordinates of a token.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Position {
    pub z: usize,
    pub y: usize,
    pub x: usize,
}

/// What a unit works for: one slice of one row.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Owned {
    pub batch: usize,
    pub head: usize,
    pub token: usize,
    pub slice: usize,
    pub row: usize,
}

/// `count` rows from `row` on, `step` rows apart.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Run {
    pub row: usize,
    pub step: usize,
    pub count: usize,
}

#[cube]
impl AxisGeometry {
    /// Axis number `index` of a sequence, the axes of which begin at a word of the [table](crate::cube::find).
    fn of_sequence(
        table: &[u32],
        axes: usize,
        #[comptime] index: usize,
        #[comptime] cut: Cut,
    ) -> AxisGeometry {
        let (is_causal, has_origin) = comptime!((cut.is_causal[index], cut.has_origin));
        if comptime!(index + cut.rank < MAX_RANK) {
            // All sequences have one member along it.
            AxisGeometry {
                queries: 1usize,
                keys: 1usize,
                kernel_size: 1usize,
                stride: 1usize,
                dilation: 1usize,
                ahead: 0usize,
                behind: 0usize,
                is_causal,
                has_origin,
            }
        } else {
            let at = axes + comptime!((index + cut.rank - MAX_RANK) * AXIS_WORDS);
            let (queries, keys) = comptime!(if cut.is_inverse { (1, 0) } else { (0, 1) });
            AxisGeometry {
                queries: table[at + queries] as usize,
                keys: table[at + keys] as usize,
                kernel_size: table[at + 2] as usize,
                stride: table[at + 3] as usize,
                dilation: table[at + 4] as usize,
                ahead: table[at + 5] as usize,
                behind: table[at + 6] as usize,
                is_causal,
                has_origin,
            }
        }
    }

    /// The keys that `query` sees; there may be none.
    pub fn window(&self, query: usize) -> Span {
        let group = query % self.dilation;
        let position = query / self.dilation;
        let length = group_length(self.keys, self.dilation, group);
        let causal = comptime!(self.is_causal);
        let (at, next) = (self.key_at(position), self.key_at(position + 1));
        let start = window_start(at, length, self.kernel_size, self.stride, causal);
        let end = window_end(next, start, length, self.kernel_size, causal);
        Span { first: start * self.dilation + group, count: end - start }
    }

    /// The queries that see `key`.
    pub fn visitors(&self, key: usize) -> Span {
        let group = key % self.dilation;
        let position = key / self.dilation;
        let queries = group_length(self.queries, self.dilation, group);
        let keys = group_length(self.keys, self.dilation, group);
        let causal = comptime!(self.is_causal);
        let (kernel_size, stride) = (self.kernel_size, self.stride);
        let past = self.key_at(queries);
        let start = visitor_start(position, past, kernel_size, stride, causal);
        let end = visitor_end(position, past, keys, kernel_size, stride, causal);
        let (start, end) = (self.query_at(start, queries), self.query_at(end, queries));
        let mut count = 0usize;
        if end > start {
            count = end - start;
        }
        Span { first: start * self.dilation + group, count }
    }

    /// Entries of a relative position bias.
    pub fn offsets(&self) -> usize {
        2 * self.kernel_size - 1
    }

    /// The entry for a query and a key that it sees.
    pub fn offset(&self, query: usize, key: usize) -> usize {
        key / self.dilation + self.kernel_size - 1 - self.key_at(query / self.dilation)
    }

    /// The key at an offset from `query`, if the query sees it; no key otherwise.
    pub fn key_at_offset(&self, query: usize, offset: usize) -> Span {
        let seen = self.window(query);
        let group = query % self.dilation;
        // Both a window further on, so that nothing is below zero.
        let at = self.key_at(query / self.dilation) + offset;
        let start = seen.first / self.dilation + (self.kernel_size - 1);
        let mut key = Span { first: 0usize, count: 0usize };
        if at >= start && at < start + seen.count {
            key.first = (at - (self.kernel_size - 1)) * self.dilation + group;
            key.count = 1usize;
        }
        key
    }

    /// Where a query of a dilation group stands among its keys.
    fn key_at(&self, query: usize) -> usize {
        if comptime!(self.has_origin) { shifted(query, self.ahead, self.behind) } else { query }
    }

    /// The query that stands at a position among the keys of a dilation group, or the nearest of `queries`.
    fn query_at(&self, key: usize, queries: usize) -> usize {
        if comptime!(self.has_origin) {
            min(shifted(key, self.behind, self.ahead), queries)
        } else {
            key
        }
    }
}

#[cube]
impl Geometry {
    pub fn queries(&self) -> usize {
        self.z.queries * self.y.queries * self.x.queries
    }

    pub fn keys(&self) -> usize {
        self.z.keys * self.y.keys * self.x.keys
    }

    /// Number of a query in its sequence.
    fn own_query(&self, token: usize) -> usize {
        let own: ComptimeOption<usize> = self.firsts.map(|firsts| token - firsts.query);
        own.unwrap_or(token)
    }

    /// The same of a key.
    fn own_key(&self, token: usize) -> usize {
        let own: ComptimeOption<usize> = self.firsts.map(|firsts| token - firsts.key);
        own.unwrap_or(token)
    }

    /// Number of a query of its own among all.
    fn any_query(&self, own: usize) -> usize {
        let token: ComptimeOption<usize> = self.firsts.map(|firsts| firsts.query + own);
        token.unwrap_or(own)
    }

    /// The same of a key.
    fn any_key(&self, own: usize) -> usize {
        let token: ComptimeOption<usize> = self.firsts.map(|firsts| firsts.key + own);
        token.unwrap_or(own)
    }

    pub fn query_position(&self, token: usize) -> Position {
        let query = self.own_query(token);
        let line = query / self.x.queries;
        Position { z: line / self.y.queries, y: line % self.y.queries, x: query % self.x.queries }
    }

    pub fn key_position(&self, token: usize) -> Position {
        let key = self.own_key(token);
        let line = key / self.x.keys;
        Position { z: line / self.y.keys, y: line % self.y.keys, x: key % self.x.keys }
    }

    /// The keys of one kv head that lie in `span` of line `(z, y)`.
    pub fn key_run(&self, batch: usize, head: usize, z: usize, y: usize, span: Span) -> Run {
        let line = (batch * self.z.keys + z) * self.y.keys + y;
        Run {
            row: self.any_key(line * self.x.keys + span.first) * self.heads_kv + head,
            step: self.x.dilation * self.heads_kv,
            count: span.count,
        }
    }

    /// The queries of one head that lie in `span` of line `(z, y)`.
    pub fn query_run(&self, batch: usize, head: usize, z: usize, y: usize, span: Span) -> Run {
        let line = (batch * self.z.queries + z) * self.y.queries + y;
        Run {
            row: self.any_query(line * self.x.queries + span.first) * self.heads + head,
            step: self.x.dilation * self.heads,
            count: span.count,
        }
    }

    /// Entries of a head's relative position bias.
    pub fn offsets(&self) -> usize {
        self.z.offsets() * self.y.offsets() * self.x.offsets()
    }

    /// The offset along each axis of entry number `entry` of a head's bias.
    pub fn offset_position(&self, entry: usize) -> Position {
        let line = entry / self.x.offsets();
        Position {
            z: line / self.y.offsets(),
            y: line % self.y.offsets(),
            x: entry % self.x.offsets(),
        }
    }

    /// Where the bias of a head, a query and a key that it sees stands.
    pub fn bias_place(&self, head: usize, query: Position, key: Position) -> usize {
        let z = self.z.offset(query.z, key.z);
        let y = self.y.offset(query.y, key.y);
        let x = self.x.offset(query.x, key.x);
        let line = (head * self.z.offsets() + z) * self.y.offsets() + y;
        line * self.x.offsets() + x
    }

    /// Query heads that read one kv head.
    pub fn group_size(&self) -> usize {
        self.heads / self.heads_kv
    }

    /// All additional tokens of one sample and kv head.
    pub fn additional_run(&self, batch: usize, head: usize) -> Run {
        Run {
            row: batch * self.additional * self.heads_kv + head,
            step: self.heads_kv,
            count: self.additional,
        }
    }
}

/// The sequence of a packed batch that a token of the rows is of, with the heads of the launch's geometry; that itself where
/// there is no table. Units of tokens that are no sequence's end here.
#[cube]
pub(super) fn of_token(
    launch: Geometry,
    sequences: ComptimeOption<&[u32]>,
    token: usize,
    #[comptime] plan: RowPlan,
) -> Geometry {
    if comptime!(sequences.is_some()) {
        of_sequence(launch, sequences.unwrap(), token, comptime!(plan.sequences.unwrap()))
    } else {
        launch
    }
}

#[cube]
fn of_sequence(launch: Geometry, table: &[u32], token: usize, #[comptime] cut: Cut) -> Geometry {
    let found = find(table, token, cut);
    let (row, column) = (found.firsts.row, found.firsts.column);
    let firsts = if comptime!(cut.is_inverse) {
        Firsts { query: column, key: row }
    } else {
        Firsts { query: row, key: column }
    };
    let geometry = Geometry {
        z: AxisGeometry::of_sequence(table, found.axes, 0usize, cut),
        y: AxisGeometry::of_sequence(table, found.axes, 1usize, cut),
        x: AxisGeometry::of_sequence(table, found.axes, 2usize, cut),
        heads: launch.heads,
        heads_kv: launch.heads_kv,
        additional: launch.additional,
        firsts: ComptimeOption::new_Some(firsts),
    };
    let rows = if comptime!(cut.is_inverse) { geometry.keys() } else { geometry.queries() };
    // In front of its first row the number wraps.
    if token - row >= rows {
        terminate!();
    }
    geometry
}

#[cube]
impl Run {
    /// The same from its row number `index` on.
    pub fn from(&self, index: usize) -> Run {
        Run { row: self.row + index * self.step, step: self.step, count: self.count - index }
    }
}

/// The work of unit `unit`, where neighboring units own neighboring tokens.
#[cube]
pub(super) fn owned(unit: usize, tokens: usize, heads: usize, #[comptime] slices: usize) -> Owned {
    let token = unit % tokens;
    let rest = unit / tokens;
    let slice = rest % slices;
    let head = rest / slices % heads;
    let batch = rest / slices / heads;
    Owned { batch, head, token, slice, row: (batch * tokens + token) * heads + head }
}

/// Launch argument for a launch's problem, with its axes as kernels walk them the fastest. Those of sequences are made of
/// a table by units.
pub(super) fn geometry(launch: &Launch) -> GeometryLaunch {
    geometry_as_is(&launch.problem.normalized())
}

/// Launch argument for `problem`, with the axes that it has.
pub(super) fn geometry_as_is(problem: &Problem) -> GeometryLaunch {
    let shifts = problem.shifts();
    let [z, y, x] = std::array::from_fn(|index| {
        let axis = problem.axes[index];
        let has_origin = axis.has_origin() || problem.has_bias && axis.origin != 0;
        let (ahead, behind) = shifts[index];
        AxisGeometryLaunch::new(
            axis.queries,
            axis.keys,
            axis.kernel_size,
            axis.stride,
            axis.dilation,
            ahead,
            behind,
            axis.is_causal,
            has_origin,
        )
    });
    let none = ComptimeOptionArgs::None;
    GeometryLaunch::new(z, y, x, problem.heads, problem.heads_kv, problem.additional, none)
}

/// Keys that a window holds along the fastest axis.
pub(super) fn window_run(problem: &Problem) -> usize {
    problem.normalized().axes[MAX_RANK - 1].kernel_size
}
