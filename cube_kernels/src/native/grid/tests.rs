//! Launches and their tensor maps, without a device.

use std::collections::HashSet;

use cubecl::server::Handle;
use cubecl_common::device::{DeviceId, ServiceId};
use cubecl_environment::stream::StreamId;

use super::*;
use crate::native::sm90::{Gradients, Schedule, backward_candidates, candidates};

fn dilated(length: usize, dilation: usize) -> Axis {
    Axis::neighborhood(length, 3).with_dilation(dilation)
}

fn problem(axes: impl AsRef<[Axis]>) -> Problem {
    Problem::new(axes, 1, 64)
}

#[test]
fn dilations_up_to_8_are_one_launch() {
    let one = |dilation| problem([dilated(100, dilation)]);
    for dilation in 1..=20 {
        let problem = one(dilation);
        for schedule in candidates(&problem, Element::F16) {
            // A line of 64 tokens, four or eight apart, is 256 or more.
            let in_kernel = dilation <= 4;
            assert_eq!(
                schedule.cut().dilates_in_kernel(&problem.axes[2], 2),
                in_kernel,
                "{schedule}"
            );
            let count = if in_kernel { 1 } else { dilation };
            assert_eq!(launches(&schedule.cut(), &problem).len(), count, "{schedule}");
        }
    }
    let plane = |dilation| problem([dilated(100, dilation), dilated(100, 2)]);
    for (dilation, count) in [(7, 1), (8, 1), (9, 9)] {
        let problem = plane(dilation);
        for schedule in candidates(&problem, Element::F16) {
            assert_eq!(launches(&schedule.cut(), &problem).len(), count, "{schedule}");
        }
    }
}

/// Every combination of groups is covered by exactly one launch.
#[test]
fn launches_cover_every_group_once() {
    let problem = problem([dilated(40, 10), dilated(36, 9), dilated(30, 2)]);
    for schedule in candidates(&problem, Element::Bf16) {
        let launches = launches(&schedule.cut(), &problem);
        assert_eq!(launches.len(), 90, "{schedule}");
        let distinct: HashSet<_> = launches.iter().collect();
        assert_eq!(distinct.len(), 90, "{schedule}");
        for [z, y, x] in launches {
            assert!(z < 10 && y < 9 && x == 0, "{schedule}");
        }
    }
}

/// Problems of one to three axes with dilations that TMA steps over and others.
fn problems() -> Vec<Problem> {
    [
        [dilated(40, 10), dilated(36, 9), dilated(30, 2)],
        [dilated(40, 8), dilated(36, 8), dilated(30, 8)],
        [Axis::UNIT, Axis::UNIT, dilated(300, 4)],
        [Axis::UNIT, Axis::UNIT, dilated(301, 17)],
        [Axis::UNIT, dilated(31, 5), dilated(300, 1)],
        [Axis::UNIT, Axis::UNIT, Axis::dense(70, 300, true)],
        [Axis::UNIT, Axis::UNIT, Axis::dense(1, 1, false)],
    ]
    .map(problem)
    .into_iter()
    .flat_map(|problem| [problem, problem.with_batch(3).with_heads(4).with_heads_kv(2)])
    .collect()
}

/// The candidates of both passes.
fn schedules(problem: &Problem) -> Vec<Schedule> {
    let backward = [Pass::Queries, Pass::Keys].into_iter().flat_map(|pass| {
        let gradients = Gradients { width: 64, value: pass == Pass::Keys, ..Gradients::NONE };
        backward_candidates(problem, Element::Bf16, pass, gradients)
    });
    candidates(problem, Element::Bf16).into_iter().chain(backward).collect()
}

/// A tensor without memory.
fn tensor(tokens: [usize; MAX_RANK], heads: usize, dim: usize) -> Strided {
    let service = ServiceId::of::<()>(DeviceId::new(0, 0));
    let handle = Handle::new(service, StreamId { value: 0 }, 0);
    Strided::contiguous(handle, Shape { batch: 1, tokens, heads, dim })
}

/// What `cuTensorMapEncodeTiled` demands, of a map with boxes of the tokens `tile`.
fn check_map(map: &TensorMap, tile: [usize; MAX_RANK], what: &str) {
    let bytes = match map.element {
        MapElement::F16 | MapElement::Bf16 => 2,
        MapElement::F32 => 4,
    };
    assert!(map.sizes.iter().all(|size| (1..=1 << 32).contains(size)), "{what}: {map:?}");
    let is_stride = |stride: &u64| stride.is_multiple_of(16) && *stride > 0 && *stride < 1 << 40;
    assert!(map.strides.iter().all(is_stride), "{what}: {map:?}");
    assert!(map.tile.iter().all(|extent| (1..=256).contains(extent)), "{what}: {map:?}");
    assert!(map.steps.iter().all(|step| (1..=8).contains(step)), "{what}: {map:?}");
    let inner = map.tile[0] * bytes;
    let is_swizzled = map.element != MapElement::F32;
    assert!(
        inner.is_multiple_of(16) && (!is_swizzled || [64, 128].contains(&inner)),
        "{what}: {map:?}"
    );
    assert_eq!(map.offset % 16, 0, "{what}: {map:?}");
    // Elements of a box: those that it steps on.
    let extents = map.tile.iter().zip(map.steps).map(|(extent, step)| extent.div_ceil(step));
    let row = if is_swizzled { map.swizzle() / 2 } else { STATISTICS as u32 };
    let tokens = tile.iter().product::<usize>();
    assert_eq!(extents.product::<u32>() as usize, tokens * row as usize, "{what}: {map:?}");
}

#[test]
fn boxes_are_ones_that_tma_loads() {
    for problem in problems() {
        let queries = tensor(problem.axes.map(|axis| axis.queries), problem.heads, 64);
        let keys = tensor(problem.axes.map(|axis| axis.keys), problem.heads_kv, 64);
        for schedule in schedules(&problem) {
            let what = format!("{schedule}: {problem:?}");
            for residues in launches(&schedule.cut(), &problem) {
                let grid = Grid::new(schedule.cut(), &problem, 132, residues);
                check_map(&grid.query_map(0, &queries, 64), schedule.q_tile, &what);
                check_map(&grid.key_map(0, &keys, 64), schedule.kv_tile, &what);
            }
            if schedule.pass == Pass::Keys {
                check_map(&statistics_map(0, &schedule.cut(), &problem), schedule.q_tile, &what);
            }
        }
    }
}

/// Places of different queries differ, and all lie in the map.
#[test]
fn every_query_has_its_own_place() {
    for problem in problems() {
        let places = places(&problem);
        let mut taken = HashSet::new();
        for query in 0..problem.queries() {
            let token = problem.query_coordinates(query);
            let place: [usize; MAX_RANK] = std::array::from_fn(|a| {
                let axis = &problem.axes[a];
                token[a] % axis.dilation * pitch(axis) + token[a] / axis.dilation
            });
            assert!(place.iter().zip(places).all(|(at, size)| *at < size), "{problem:?}");
            assert!(taken.insert(place), "{place:?} is taken: {problem:?}");
        }
        // Groups differ in length by one at most.
        for (axis, size) in problem.axes.iter().zip(places) {
            assert!((axis.queries..axis.queries + axis.dilation).contains(&size), "{axis:?}");
        }
    }
}

#[test]
fn statistics_are_four_floats_to_a_place() {
    for problem in problems() {
        let [z, y, x] = places(&problem).map(|places| places as u64);
        let gradients = Gradients { width: 64, value: true, ..Gradients::NONE };
        for schedule in backward_candidates(&problem, Element::F16, Pass::Keys, gradients) {
            let map = statistics_map(6, &schedule.cut(), &problem);
            let heads = (problem.batch * problem.heads) as u64;
            assert_eq!(map.sizes, [4, x, y, z, heads]);
            assert_eq!(map.strides, [16, 16 * x, 16 * x * y, 16 * x * y * z]);
            let [tile_z, tile_y, tile_x] = schedule.q_tile.map(|extent| extent as u32);
            assert_eq!(map.tile, [4, tile_x, tile_y, tile_z, 1]);
        }
    }
}
