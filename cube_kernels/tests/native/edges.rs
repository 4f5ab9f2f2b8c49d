//! Sizes at which something begins, ends or does not happen at all.

use burn_natten_kernels::native::sm90::{Element, candidates};
use burn_natten_kernels::{Axis, Problem};

use crate::run::{check_all, device, problem};
use crate::support::axis;

/// Every candidate of one axis, which are few, and the best few of more.
fn check(problems: impl IntoIterator<Item = Problem>) {
    let Some(client) = device() else { return };
    let mut cases = vec![];
    for problem in problems {
        for element in [Element::F16, Element::Bf16] {
            let mut all = candidates(&problem, element);
            assert!(!all.is_empty(), "{problem:?}");
            let time =
                |schedule: &_| burn_natten_kernels::native::sm90::estimate(schedule, &problem);
            all.sort_by(|a, b| time(a).total_cmp(&time(b)));
            cases.extend(all.into_iter().take(4).map(|schedule| (problem, schedule)));
        }
    }
    check_all(&client, &cases);
}

const AROUND_TILES: [usize; 9] = [1, 2, 63, 64, 65, 127, 128, 129, 193];

#[test]
fn lengths_around_tiles() {
    check(AROUND_TILES.into_iter().flat_map(|length| {
        [
            problem(&[Axis::dense(length, length, false)], 64),
            problem(&[Axis::dense(length, length, true)], 128),
            problem(&[axis(length, length.div_ceil(2), 1, 1, false)], 64),
        ]
    }));
}

#[test]
fn single_queries_and_keys() {
    check([
        problem(&[Axis::dense(1, 1, false)], 64),
        problem(&[Axis::dense(1, 200, false)], 64),
        problem(&[Axis::dense(200, 1, false)], 64),
        problem(&[Axis::dense(200, 1, true)], 128),
        Problem { additional: 1, ..problem(&[Axis::dense(1, 1, false)], 64) },
    ]);
}

#[test]
fn queries_and_keys_of_different_number() {
    check([(300, 70), (70, 300), (129, 128), (128, 129)].into_iter().flat_map(
        |(queries, keys)| {
            [true, false].map(|is_causal| problem(&[Axis::dense(queries, keys, is_causal)], 64))
        },
    ));
}

#[test]
fn windows_of_a_whole_axis() {
    check([
        problem(&[axis(100, 50, 1, 2, false)], 64),
        problem(&[axis(12, 12, 1, 1, false), axis(20, 20, 1, 1, false)], 64),
        problem(&[axis(12, 12, 1, 1, true), axis(20, 5, 1, 1, false)], 128),
        problem(&[axis(4, 4, 4, 1, false), axis(9, 9, 1, 1, true), axis(8, 3, 1, 1, false)], 64),
        problem(&[axis(16, 16, 16, 1, false), axis(64, 8, 8, 1, false)], 128),
    ]);
}

#[test]
fn numbers_of_heads() {
    let plane = [axis(9, 5, 1, 1, false), axis(21, 7, 1, 1, false)];
    let heads = |heads, heads_kv| Problem { heads, heads_kv, ..problem(&plane, 64) };
    check([heads(1, 1), heads(48, 3), heads(48, 48), heads(7, 1)]);
    let line = problem(&[axis(150, 33, 1, 1, true)], 128);
    check([Problem { heads: 48, heads_kv: 3, ..line }]);
}

#[test]
fn numbers_of_samples() {
    let space = [axis(5, 3, 1, 1, false), axis(7, 4, 1, 1, false), axis(6, 3, 1, 1, true)];
    check([1, 3, 7].map(|batch| Problem { batch, ..problem(&space, 64) }));
    check([Problem { batch: 33, ..problem(&space[1..], 32) }]);
}

#[test]
fn vectors_of_every_length() {
    let plane = [axis(9, 5, 1, 1, false), axis(21, 7, 1, 1, false)];
    let dims = [(8, 8), (8, 256), (256, 8), (248, 248), (256, 256), (16, 24), (120, 136), (72, 8)];
    check(dims.into_iter().flat_map(|(head_dim, head_dim_v)| {
        [&plane[..], &plane[1..]].map(|axes| Problem { head_dim_v, ..problem(axes, head_dim) })
    }));
}

/// Dilations around what TMA steps over, along each axis; groups of unequal length.
#[test]
fn dilations() {
    check([2, 7, 8, 9].into_iter().flat_map(|dilation| {
        [
            problem(&[axis(8 * dilation + 3, 7, 1, dilation, false)], 64),
            problem(&[axis(9, 3, 1, 1, false), axis(3 * dilation + 1, 3, 1, dilation, true)], 64),
            problem(&[axis(3 * dilation + 1, 3, 1, dilation, false), axis(9, 3, 1, 1, false)], 64),
        ]
    }));
    // Samples of groups that are launched alone have to begin at a multiple of the dilation.
    let space =
        |length| [axis(length, 3, 1, 9, false), axis(5, 3, 1, 1, false), axis(9, 3, 1, 1, false)];
    check([problem(&space(36), 64), Problem { batch: 1, ..problem(&space(31), 64) }]);
    check([Problem { additional: 5, ..problem(&space(36), 64) }]);
}
