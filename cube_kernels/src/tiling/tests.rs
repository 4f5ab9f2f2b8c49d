//! Tiles counted from every single query and key.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

fn axis(length: usize, kernel_size: usize, stride: usize, dilation: usize, causal: bool) -> Axis {
    Axis::neighborhood(length, kernel_size)
        .with_stride(stride)
        .with_dilation(dilation)
        .with_causal(causal)
}

fn problem(axes: impl AsRef<[Axis]>, additional: usize) -> Problem {
    Problem::new(axes, 1, 8).with_additional(additional)
}

type Coordinates = [usize; MAX_RANK];

/// Group and position along each axis.
fn grouped(axes: &[Axis; MAX_RANK], index: Coordinates) -> (Coordinates, Coordinates) {
    let group = std::array::from_fn(|a| index[a] % axes[a].dilation);
    (group, std::array::from_fn(|a| index[a] / axes[a].dilation))
}

/// Counts by asking for every query and key, all axes at once, whether the one sees the other.
fn brute_force(problem: &Problem, tiling: &Tiling) -> TileCount {
    let axes = &problem.axes;
    let sees = |query: Coordinates, key: Coordinates| {
        (0..MAX_RANK).all(|a| {
            let (first, size) = axes[a].window(query[a]);
            (0..size).any(|i| first + i * axes[a].dilation == key[a])
        })
    };
    let keys: Vec<Coordinates> =
        (0..problem.keys()).map(|key| problem.key_coordinates(key)).collect();
    let mut tiles: BTreeMap<(Coordinates, Coordinates), Vec<Coordinates>> = BTreeMap::new();
    for query in 0..problem.queries() {
        let query = problem.query_coordinates(query);
        let (group, position) = grouped(axes, query);
        let tile = std::array::from_fn(|a| position[a] / tiling.q_tile[a]);
        tiles.entry((group, tile)).or_default().push(query);
    }

    let mut count = TileCount { q_tiles: tiles.len() as u64, ..TileCount::default() };
    for ((group, _), queries) in &tiles {
        let members: Vec<_> = keys.iter().filter(|key| grouped(axes, **key).0 == *group).collect();
        let seen: Vec<_> =
            members.iter().filter(|key| queries.iter().any(|query| sees(*query, ***key))).collect();
        let lengths: Coordinates = std::array::from_fn(|a| {
            members.iter().map(|key| grouped(axes, **key).1[a] + 1).max().unwrap_or(0)
        });
        count.possible +=
            (0..MAX_RANK).map(|a| lengths[a].div_ceil(tiling.kv_tile[a]) as u64).product::<u64>();
        let origin: Coordinates = std::array::from_fn(|a| {
            seen.iter().map(|key| grouped(axes, ***key).1[a]).min().unwrap_or(0)
        });
        let key_tile = |key: Coordinates| -> Option<Coordinates> {
            let position = grouped(axes, key).1;
            (0..MAX_RANK)
                .all(|a| position[a] >= origin[a])
                .then(|| std::array::from_fn(|a| (position[a] - origin[a]) / tiling.kv_tile[a]))
        };
        let visited: BTreeSet<_> = seen.iter().filter_map(|key| key_tile(***key)).collect();
        count.visited += visited.len() as u64;
        for tile in visited {
            let inside: Vec<_> =
                members.iter().filter(|key| key_tile(***key) == Some(tile)).collect();
            let whole = inside.len() == tiling.kv_volume();
            let all = || queries.iter().all(|query| inside.iter().all(|key| sees(*query, ***key)));
            count.unmasked += u64::from(whole && all());
        }
    }
    // Every tile of queries meets the additional tokens, cut in their order.
    for _ in 0..tiles.len() {
        for start in (0..problem.additional).step_by(tiling.kv_volume()) {
            count.visited += 1;
            count.possible += 1;
            count.unmasked += u64::from(start + tiling.kv_volume() <= problem.additional);
        }
    }
    count
}

fn check(problem: &Problem, tiling: Tiling) {
    let expected = brute_force(problem, &tiling);
    let count = tiling.count(problem);
    assert_eq!(count, expected, "{tiling:?} on {problem:?}");
    assert_eq!(count.mixed() + count.unmasked + count.skipped(), count.possible);
    assert!(tiling.work_ratio(problem) >= 1.0);
}

/// Every valid axis of the length, with kernel sizes from a few.
fn axes_of(length: usize) -> Vec<Axis> {
    let mut axes = Vec::new();
    for kernel_size in 2..=length {
        for stride in 1..=kernel_size {
            for dilation in 1..=length / kernel_size {
                for causal in [false, true] {
                    axes.push(axis(length, kernel_size, stride, dilation, causal));
                }
            }
        }
    }
    axes
}

#[test]
fn one_axis_matches_brute_force() {
    for length in [2, 5, 8, 11] {
        for axis in axes_of(length) {
            for (q, kv) in [(1, 1), (2, 3), (4, 4), (4, 2), (3, 5), (16, 16)] {
                let problem = problem([axis], 0);
                check(&problem, Tiling { q_tile: [1, 1, q], kv_tile: [1, 1, kv] });
            }
        }
    }
}

#[test]
fn dense_attention_matches_brute_force() {
    for (queries, keys) in [(7, 7), (5, 12), (12, 5), (1, 9), (9, 1), (6, 0), (0, 6)] {
        for causal in [false, true] {
            for (q, kv) in [(1, 1), (4, 4), (2, 4), (4, 3), (16, 8)] {
                let axes = [Axis::dense(queries, keys, causal)];
                check(&problem(axes, 0), Tiling { q_tile: [1, 1, q], kv_tile: [1, 1, kv] });
            }
        }
    }
}

#[test]
fn two_axes_match_brute_force() {
    let slow = [axis(7, 3, 1, 1, false), axis(9, 4, 2, 2, false), axis(6, 6, 1, 1, true)];
    let fast = [axis(10, 5, 3, 2, true), axis(8, 3, 3, 1, false), axis(5, 2, 1, 2, false)];
    for y in slow {
        for x in fast {
            for (q_tile, kv_tile) in
                [([1, 2, 4], [1, 2, 4]), ([1, 4, 4], [1, 2, 3]), ([1, 3, 2], [1, 4, 4])]
            {
                check(&problem([y, x], 0), Tiling { q_tile, kv_tile });
            }
        }
    }
}

#[test]
fn three_axes_match_brute_force() {
    let cases = [
        [axis(4, 2, 1, 1, false), axis(5, 3, 2, 1, true), axis(6, 3, 1, 2, false)],
        [axis(5, 5, 4, 1, true), axis(4, 2, 2, 2, false), axis(5, 3, 1, 1, false)],
    ];
    for axes in cases {
        for (q_tile, kv_tile) in [([2, 2, 2], [2, 2, 2]), ([2, 4, 3], [1, 2, 4])] {
            check(&problem(axes, 0), Tiling { q_tile, kv_tile });
        }
    }
}

#[test]
fn additional_tokens_lie_in_tiles_of_their_own() {
    for additional in [1, 4, 7, 8] {
        let axes = [axis(5, 3, 1, 1, false), axis(6, 2, 1, 1, true)];
        let with = problem(axes, additional);
        let tiling = Tiling { q_tile: [1, 2, 3], kv_tile: [1, 2, 2] };
        check(&with, tiling);
        assert_eq!(tiling.work_ratio(&with), tiling.work_ratio(&problem(axes, 0)));
        let more = tiling.executed_pairs(&with) - tiling.executed_pairs(&problem(axes, 0));
        assert_eq!(more, 3 * 2 * 6 * 4 * additional.div_ceil(4) as u64);
    }
}

#[test]
fn tiles_of_one_query_and_key_execute_the_windows() {
    for axis in axes_of(9) {
        let problem = problem([axis], 0);
        let tiling = Tiling::square([1; MAX_RANK]);
        assert_eq!(tiling.executed_pairs(&problem), problem.pairs(), "{axis:?}");
        assert_eq!(tiling.count(&problem).mixed(), 0);
    }
}

/// The design's figures were counted with another rounding; these are exact.
#[test]
fn hunyuan_costs_what_the_design_says() {
    let axes = [axis(30, 18, 1, 1, false), axis(48, 24, 1, 1, false), axis(80, 24, 1, 1, false)];
    let problem = problem(axes, 0);
    for (tile, exact, design) in
        [([4, 4, 4], 1.505432, 1.50), ([2, 4, 8], 1.433210, 1.47), ([4, 4, 8], 1.707654, 1.78)]
    {
        let ratio = Tiling::square(tile).work_ratio(&problem);
        assert!((ratio - exact).abs() < 1e-6, "{tile:?}: {ratio}");
        assert!((ratio / design - 1.0).abs() < 0.05, "{tile:?}: {ratio}");
    }
}

#[test]
fn the_map_holds_what_was_counted() {
    let axes = [axis(7, 3, 1, 2, false), axis(10, 5, 3, 1, true)];
    let problem = problem(axes, 0);
    let tiling = Tiling { q_tile: [1, 2, 4], kv_tile: [1, 2, 3] };
    let (map, count) = (tiling.tile_map(&problem), tiling.count(&problem));
    let number = |kind| map.kinds().filter(|other| *other == kind).count() as u64;
    assert_eq!(map.q_tiles as u64, count.q_tiles);
    assert_eq!(number(TileKind::Unmasked), count.unmasked);
    assert_eq!(number(TileKind::Mixed), count.mixed());
    // Tiles of the other dilation group are in the map, and are never possible.
    assert_eq!(map.kinds().count() as u64 - count.visited, number(TileKind::Skipped));
    assert!(number(TileKind::Skipped) > count.skipped());
}

#[test]
fn the_map_of_a_causal_sequence_is_a_triangle() {
    let axes = [Axis::dense(12, 12, true)];
    let map = Tiling::square([1, 1, 4]).tile_map(&problem(axes, 0));
    for query in 0..3 {
        for key in 0..3 {
            let expected = match query.cmp(&key) {
                std::cmp::Ordering::Less => TileKind::Skipped,
                std::cmp::Ordering::Equal => TileKind::Mixed,
                std::cmp::Ordering::Greater => TileKind::Unmasked,
            };
            assert_eq!(map.kind(query, key), expected, "{query} {key}");
        }
    }
}
