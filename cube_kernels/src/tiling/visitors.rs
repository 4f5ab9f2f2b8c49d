//! Tiles of keys, and the tiles of queries that see them.

use std::ops::Range;

use super::{TileCount, Tiling};
use crate::{Axis, Problem};

#[cfg(test)]
mod tests;

/// See [`Tiling::count_visitors`].
pub(super) fn count(tiling: &Tiling, problem: &Problem) -> TileCount {
    let axes = problem.axes.iter().enumerate();
    let counts = axes.map(|(index, axis)| {
        let (q_tile, kv_tile) = (tiling.q_tile[index], tiling.kv_tile[index]);
        assert!(q_tile > 0 && kv_tile > 0, "tiles along axis {index} must hold 1 or more");
        (0..axis.dilation)
            .map(|group| count_group(axis, group, q_tile, kv_tile))
            .fold(TileCount::default(), add)
    });
    counts.reduce(TileCount::times).unwrap_or_default()
}

/// See [`Tiling::axis_visitors`].
pub(super) fn of_axis(tiling: &Tiling, axis: &Axis, index: usize) -> Vec<u64> {
    let (q_tile, kv_tile) = (tiling.q_tile[index], tiling.kv_tile[index]);
    let of_group = |group: usize| {
        let starts = (0..axis.group(group).1).step_by(kv_tile);
        starts.map(move |start| visited(&seen(axis, group, start, kv_tile), q_tile))
    };
    (0..axis.dilation).flat_map(of_group).collect()
}

/// See [`Tiling::box_visitors`].
pub(super) fn boxes(tiling: &Tiling, axis: &Axis, index: usize) -> Option<Vec<Range<usize>>> {
    let (q_tile, kv_tile) = (tiling.q_tile[index], tiling.kv_tile[index]);
    let of = |start: usize| {
        let [first, last] = seen(axis, 0, start, kv_tile);
        let is_seen = !first.is_empty() && !last.is_empty();
        is_seen.then(|| first.start / q_tile..last.end.div_ceil(q_tile))
    };
    (0..axis.keys).step_by(kv_tile).map(of).collect()
}

/// The queries that see the first and the last key of a tile, which bound all others: starts and ends never decrease.
fn seen(axis: &Axis, group: usize, start: usize, kv_tile: usize) -> [Range<usize>; 2] {
    let (_, keys) = axis.group(group);
    [start, keys.min(start + kv_tile) - 1].map(|key| axis.seen_by(group, key))
}

/// A tile that nobody sees is visited all the same: its gradients are zeros.
fn visited([first, last]: &[Range<usize>; 2], q_tile: usize) -> u64 {
    last.end.saturating_sub(first.start).div_ceil(q_tile).max(1) as u64
}

fn add(a: TileCount, b: TileCount) -> TileCount {
    TileCount {
        q_tiles: a.q_tiles + b.q_tiles,
        visited: a.visited + b.visited,
        unmasked: a.unmasked + b.unmasked,
        possible: a.possible + b.possible,
    }
}

fn count_group(axis: &Axis, group: usize, q_tile: usize, kv_tile: usize) -> TileCount {
    let (queries, keys) = axis.group(group);
    let mut count = TileCount::default();
    for start in (0..keys).step_by(kv_tile) {
        let ends = seen(axis, group, start, kv_tile);
        let [first, last] = &ends;
        let begin = last.start.saturating_sub(first.start).div_ceil(q_tile);
        let end = first.end.saturating_sub(first.start) / q_tile;
        count.q_tiles += 1;
        count.visited += visited(&ends, q_tile);
        count.unmasked += end.saturating_sub(begin) as u64;
        count.possible += queries.div_ceil(q_tile) as u64;
    }
    count
}
