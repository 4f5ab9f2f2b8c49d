//! Queries that stand elsewhere than keys of the same number, some of them in front of all keys or behind them.

use burn_natten_kernels::{Axis, Problem};

use crate::backward;
use crate::edges;
use test_support::{axis, problem};

/// Causal attention of unequal lengths: rows that see nothing, keys that nobody sees, tiles of nothing else.
fn causal() -> Vec<Problem> {
    let end = |(queries, keys)| problem(&[Axis::dense(queries, keys, true)], 64);
    let at = |origin| problem(&[Axis::dense(150, 90, true).with_origin(origin)], 128);
    let side = axis(11, 5, 2, 1, false);
    let [short, long] = [Axis::dense(21, 5, true), Axis::dense(5, 21, true)];
    let lengths = [(1, 300), (70, 300), (300, 70), (200, 1), (64, 128), (128, 64), (129, 65)];
    lengths
        .map(end)
        .into_iter()
        .chain([-200, -150, -149, -64, -1, 1, 64, 89, 200].map(at))
        .chain([
            problem(&[short, side], 64),
            problem(&[side, short], 128),
            problem(&[long, side], 128),
            problem(&[side, long], 64),
            problem(&[short, short], 64),
            problem(&[short, side, axis(13, 4, 1, 2, true)], 64).with_batch(1).with_heads(4),
            problem(&[side, side, short], 256).with_head_dim_v(40),
            problem(&[Axis::dense(300, 70, true)], 64).with_additional(70),
            problem(&[side, short], 128).with_heads(4).with_additional(9),
        ])
        .collect()
}

/// Some queries of an axis, with all of its keys.
fn parts() -> Vec<Problem> {
    let part = |whole: Axis, queries, origin| {
        let mut part = whole.with_origin(origin);
        part.queries = queries;
        part
    };
    let side = axis(11, 5, 2, 1, false);
    vec![
        problem(&[part(axis(300, 33, 1, 1, false), 100, 77)], 64),
        problem(&[part(axis(300, 33, 5, 1, true), 223, 77)], 128),
        problem(&[part(axis(300, 33, 1, 3, false), 100, 99)], 64),
        problem(&[part(axis(300, 21, 4, 11, true), 110, 121)], 64),
        problem(&[side, part(axis(40, 9, 1, 2, false), 13, 14)], 64),
        problem(&[part(axis(40, 9, 3, 1, true), 20, 20), side], 128).with_additional(20),
        problem(&[axis(5, 3, 1, 1, false), part(axis(20, 7, 1, 1, false), 7, 13), side], 64),
    ]
}

#[test]
fn forward_causal() {
    edges::check(causal());
}

#[test]
fn forward_parts() {
    edges::check(parts());
}

#[test]
fn backward_causal() {
    backward::edges::check(causal());
}

#[test]
fn backward_parts() {
    backward::edges::check(parts());
}
