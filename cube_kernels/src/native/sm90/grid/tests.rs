//! Launches and their tensor maps, without a device.

use super::*;
use crate::native::sm90::candidates;

fn dilated(length: usize, dilation: usize) -> Axis {
    Axis { kernel_size: 3, dilation, ..Axis::dense(length, length, false) }
}

fn problem(axes: [Axis; MAX_RANK]) -> Problem {
    Problem {
        batch: 1,
        heads: 1,
        heads_kv: 1,
        head_dim: 64,
        head_dim_v: 64,
        additional: 0,
        scale: 0.125,
        axes,
    }
}

#[test]
fn dilations_up_to_8_are_one_launch() {
    let one = |dilation| problem([Axis::UNIT, Axis::UNIT, dilated(100, dilation)]);
    for dilation in 1..=20 {
        let problem = one(dilation);
        for schedule in candidates(&problem, Element::F16) {
            // A line of 64 tokens, four or eight apart, is 256 or more.
            let in_kernel = dilation <= 4;
            assert_eq!(schedule.dilates_in_kernel(&problem.axes[2], 2), in_kernel, "{schedule}");
            let count = if in_kernel { 1 } else { dilation };
            assert_eq!(launches(&schedule, &problem).len(), count, "{schedule}");
        }
    }
    let plane = |dilation| problem([Axis::UNIT, dilated(100, dilation), dilated(100, 2)]);
    for (dilation, count) in [(7, 1), (8, 1), (9, 9)] {
        let problem = plane(dilation);
        for schedule in candidates(&problem, Element::F16) {
            assert_eq!(launches(&schedule, &problem).len(), count, "{schedule}");
        }
    }
}

/// Every combination of groups is covered by exactly one launch.
#[test]
fn launches_cover_every_group_once() {
    let problem = problem([dilated(40, 10), dilated(36, 9), dilated(30, 2)]);
    for schedule in candidates(&problem, Element::Bf16) {
        let launches = launches(&schedule, &problem);
        assert_eq!(launches.len(), 90, "{schedule}");
        let distinct: std::collections::HashSet<_> = launches.iter().collect();
        assert_eq!(distinct.len(), 90, "{schedule}");
        for [x, y, z] in launches {
            assert!(x < 10 && y < 9 && z == 0, "{schedule}");
        }
    }
}

/// What `cuTensorMapEncodeTiled` demands of a box.
#[test]
fn boxes_are_ones_that_tma_loads() {
    for axes in [
        [dilated(40, 10), dilated(36, 9), dilated(30, 2)],
        [dilated(40, 8), dilated(36, 8), dilated(30, 8)],
        [Axis::UNIT, Axis::UNIT, dilated(300, 4)],
        [Axis::UNIT, dilated(30, 5), dilated(300, 1)],
    ] {
        let problem = problem(axes);
        for schedule in candidates(&problem, Element::Bf16) {
            for (index, axis) in axes.iter().enumerate() {
                if schedule.dilates_in_kernel(axis, index) {
                    assert!(axis.dilation <= 8, "{schedule}");
                    let extent = schedule.q_tile[index].max(schedule.kv_tile[index]);
                    assert!(extent * axis.dilation <= 256, "{schedule}");
                }
            }
        }
    }
}
