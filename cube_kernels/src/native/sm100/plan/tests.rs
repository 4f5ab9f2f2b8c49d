//! The choice of schedules, without a device.

use std::fmt::Write;

use super::*;
use crate::{Axis, catalogue};

fn axis(
    length: usize,
    kernel_size: usize,
    stride: usize,
    dilation: usize,
    is_causal: bool,
) -> Axis {
    Axis::neighborhood(length, kernel_size)
        .with_stride(stride)
        .with_dilation(dilation)
        .with_causal(is_causal)
}

/// Every kind of axis, in one, two and three axes, with and without additional tokens.
fn sweep() -> Vec<Problem> {
    let mut problems = vec![];
    for (dim, dim_v) in [(8, 8), (64, 72), (128, 128), (8, 128), (128, 8)] {
        for line in
            [axis(512, 512, 1, 1, false), axis(300, 21, 1, 1, false), axis(300, 21, 3, 2, true)]
        {
            let side = axis(37, 9, line.stride, line.dilation, line.is_causal);
            for axes in [&[line][..], &[side, side], &[axis(16, 5, 1, 1, false), side, side]] {
                for additional in [0, 77] {
                    let problem = Problem::new(axes, 4, dim).with_batch(2).with_heads_kv(2);
                    problems.push(problem.with_head_dim_v(dim_v).with_additional(additional));
                }
            }
        }
    }
    problems
}

#[test]
fn the_catalogue_is_planned_as_ever() {
    let mut text = String::new();
    for entry in catalogue::all() {
        let problem = entry.problem;
        match plan(&problem, Element::Bf16) {
            Some(schedule) => {
                let milliseconds = 1e3 * estimate(&schedule, &problem);
                writeln!(text, "{:16} {milliseconds:8.3} ms  {schedule}", entry.name)
            }
            None => writeln!(text, "{:16} {}", entry.name, unsupported(&problem).expect("why")),
        }
        .expect("a string");
    }
    insta::assert_snapshot!(text);
}

#[test]
fn what_is_not_supported_is_said() {
    let whole = Problem::new([axis(100, 9, 1, 1, false)], 4, 64);
    assert_eq!(unsupported(&whole), None);
    let reason = |problem: Problem| {
        assert!(plan(&problem, Element::F16).is_none());
        assert!(plan_backward(&problem, Element::F16, None).is_none());
        planned(&problem, Element::F16, None).expect_err("a reason")
    };
    assert_eq!(reason(whole.with_bias(true)), "its kernels know no position bias");
    assert_eq!(
        reason(whole.with_head_dim_v(264)),
        "head_dim of value is 264, not a multiple of 8 up to 256"
    );
    assert_eq!(reason(whole.with_scale(0.0)), "scale is 0, below 1e-6");
}

#[test]
fn schedules_fit_into_a_multiprocessor() {
    for problem in sweep() {
        let forward = candidates(&problem, Element::Bf16);
        let backward = [Pass::Queries, Pass::Keys]
            .map(|pass| backward_candidates(&problem, Element::Bf16, pass));
        for all in [&forward, &backward[0], &backward[1]] {
            assert!(!all.is_empty(), "{problem:?}");
            for schedule in all {
                assert!(schedule.fits(&problem), "{schedule}");
                assert!(schedule.shared_memory() <= 227 * 1024, "{schedule}");
                assert!(schedule.stages >= 2, "{schedule}");
                for tile in [schedule.q_tile, schedule.kv_tile] {
                    assert_eq!(tile.iter().product::<usize>(), TILE, "{schedule}");
                }
            }
        }
    }
}

#[test]
fn tiles_that_are_asked_for_are_taken_where_there_are_some() {
    let problem = Problem::new([axis(64, 9, 1, 1, false), axis(64, 9, 1, 1, false)], 4, 64);
    let tiling = Tiling { q_tile: [1, 4, 32], kv_tile: [1, 16, 8] };
    let schedule = planned(&problem, Element::F16, Some(tiling)).expect("supported");
    assert_eq!(schedule.tiling(), tiling);
    let odd = Tiling { q_tile: [1, 4, 4], ..tiling };
    let schedule = planned(&problem, Element::F16, Some(odd)).expect("supported");
    assert_eq!(Some(schedule), plan(&problem, Element::F16));
}

#[test]
fn additional_tokens_have_a_kernel_of_their_own() {
    for problem in sweep() {
        let plan = plan_backward(&problem, Element::F16, None).expect("supported");
        assert_eq!(plan.additional.is_some(), problem.additional > 0);
        for (schedule, of) in plan.kernels(&problem) {
            assert!(schedule.fits(&of), "{schedule}");
        }
    }
}
