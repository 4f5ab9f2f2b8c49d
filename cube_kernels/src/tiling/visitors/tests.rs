//! Tiles of keys counted from every single query and key.

use super::*;

fn problem(axes: impl AsRef<[Axis]>) -> Problem {
    Problem::new(axes, 1, 8).with_additional(5)
}

/// Along one axis, from [`Axis::window`]: in each dilation group, tiles of keys and the queries that see
/// some of them, or all.
fn brute_force_axis(axis: &Axis, q_tile: usize, kv_tile: usize) -> TileCount {
    let sees = |query: usize, key: usize| {
        let (first, size) = axis.window(query);
        (0..size).any(|i| first + i * axis.dilation == key)
    };
    let mut count = TileCount::default();
    for group in 0..axis.dilation {
        let queries: Vec<usize> = (group..axis.queries).step_by(axis.dilation).collect();
        let keys: Vec<usize> = (group..axis.keys).step_by(axis.dilation).collect();
        for keys in keys.chunks(kv_tile) {
            let seeing: Vec<usize> = (0..queries.len())
                .filter(|query| keys.iter().any(|key| sees(queries[*query], *key)))
                .collect();
            count.q_tiles += 1;
            count.possible += queries.len().div_ceil(q_tile) as u64;
            let (Some(first), Some(last)) = (seeing.first(), seeing.last()) else {
                count.visited += 1;
                continue;
            };
            for start in (*first..=*last).step_by(q_tile) {
                let tile = start..start + q_tile;
                let all = |query| keys.iter().all(|key| sees(queries[query], *key));
                count.visited += 1;
                count.unmasked += u64::from(tile.end <= queries.len() && tile.clone().all(all));
            }
        }
    }
    count
}

fn check(problem: &Problem, tiling: Tiling) {
    let axes = problem.axes.iter().enumerate();
    let counts = axes.map(|(a, axis)| brute_force_axis(axis, tiling.q_tile[a], tiling.kv_tile[a]));
    let expected = counts.reduce(TileCount::times).expect("three axes");
    assert_eq!(tiling.count_visitors(problem), expected, "{tiling:?} on {problem:?}");
}

/// Every valid axis of self attention over the length.
fn axes_of(length: usize) -> impl Iterator<Item = Axis> {
    (1..=length).flat_map(move |kernel_size| {
        (1..=kernel_size).flat_map(move |stride| {
            (1..=length / kernel_size).flat_map(move |dilation| {
                [false, true].map(|is_causal| {
                    Axis::neighborhood(length, kernel_size)
                        .with_stride(stride)
                        .with_dilation(dilation)
                        .with_causal(is_causal)
                })
            })
        })
    })
}

const TILES: [(usize, usize); 7] = [(1, 1), (2, 3), (4, 4), (4, 2), (3, 5), (8, 4), (16, 16)];

#[test]
fn one_axis_matches_brute_force() {
    for axis in [1, 2, 5, 8, 12].into_iter().flat_map(axes_of) {
        for (q, kv) in TILES {
            check(&problem([axis]), Tiling { q_tile: [1, 1, q], kv_tile: [1, 1, kv] });
        }
    }
}

#[test]
fn dense_attention_matches_brute_force() {
    for (queries, keys) in [(7, 7), (5, 12), (12, 5), (1, 9), (9, 1), (3, 17)] {
        for causal in [false, true] {
            for (q, kv) in TILES {
                let problem = problem([Axis::dense(queries, keys, causal)]);
                check(&problem, Tiling { q_tile: [1, 1, q], kv_tile: [1, 1, kv] });
            }
        }
    }
}

#[test]
fn axes_are_independent() {
    let x = [Axis::UNIT, Axis::dense(3, 5, true), Axis::dense(4, 4, false)];
    for x in x {
        for y in axes_of(6).step_by(5) {
            for z in axes_of(7).step_by(7) {
                for (q_tile, kv_tile) in [([1, 2, 4], [1, 4, 2]), ([2, 2, 2], [2, 1, 3])] {
                    check(&problem([x, y, z]), Tiling { q_tile, kv_tile });
                }
            }
        }
    }
}

/// Only fewer queries than keys leave a causal key unseen, not a stride.
#[test]
fn self_attention_sees_every_key() {
    for axis in (1..=14).flat_map(axes_of) {
        for key in 0..axis.keys {
            assert!(axis.visitors(key).1 > 0, "key {key} of {axis:?}");
        }
    }
}
