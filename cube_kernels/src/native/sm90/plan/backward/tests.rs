//! The choice of a backward pass's schedules, without a device.

use std::collections::HashMap;
use std::fmt::Write;

use super::super::estimate;
use super::super::tests::{axis, check_resources, check_whole_blocks, problem, sweep};
use super::*;
use crate::{Axis, catalogue};

#[test]
fn the_catalogue_is_planned_as_ever() {
    let mut text = String::new();
    for entry in catalogue::all() {
        let plan = plan_backward(&entry.problem, Element::Bf16, None).expect("supported");
        for schedule in plan.schedules() {
            let milliseconds = 1e3 * estimate(schedule, &entry.problem);
            writeln!(text, "{:16} {milliseconds:8.3} ms  {schedule}", entry.name)
                .expect("a string");
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn what_nobody_wants_is_not_launched() {
    let side = axis(40, 7, 1, 1, false);
    for head_dim in [64, 256] {
        let problem = problem(&[side, side], head_dim).with_additional(5);
        let plan = plan_backward(&problem, Element::Bf16, None).expect("supported");
        let writes = |[query, key, value, more_key, more_value]: [bool; 5]| {
            let wanted = Operands {
                additional: Some(KeyValue { key: more_key, value: more_value }),
                ..Operands::new(query, key, value)
            };
            let BackwardPlan { queries, keys, additional, .. } = plan.wanted(&wanted);
            [queries, keys, additional]
                .map(|kernels| kernels.iter().map(Schedule::writes).collect::<Vec<_>>())
        };
        let none: Vec<String> = vec![];
        let [queries, keys, additional] = writes([true; 5]);
        assert_eq!(plan.wanted(&Operands::new(true, true, true)).additional, []);
        assert_eq!(writes([false; 5]), [&none, &none, &none].map(Clone::clone));
        assert_eq!(
            writes([true, false, false, false, false]),
            [queries.clone(), none.clone(), none.clone()]
        );
        assert_eq!(
            writes([false, false, false, true, true]),
            [none.clone(), none.clone(), additional]
        );
        let [_, of_key, _] = writes([false, true, false, false, false]);
        let [_, of_value, _] = writes([false, false, true, false, false]);
        match head_dim {
            64 => {
                assert_eq!(keys, ["dk, dv"]);
                assert_eq!((&of_key, &of_value), (&keys, &keys));
            }
            _ => {
                assert_eq!(of_key, ["dk[0..128]", "dk[128..256]"]);
                assert_eq!(of_value, ["dv"]);
            }
        }
    }
}

/// The candidates of each kernel of a problem's backward pass, with the problem that it is for.
fn every(problem: &Problem, element: Element) -> Vec<(Problem, Vec<Schedule>)> {
    let plan = plan_backward(problem, element, None).expect("supported");
    let own = plan.queries.iter().chain(&plan.keys).map(|kernel| (*problem, kernel));
    let dense = dense(problem);
    let additional =
        plan.additional.iter().map(|kernel| (dense.expect("there are tokens"), kernel));
    own.chain(additional)
        .map(|(problem, kernel)| {
            let all = backward_candidates(&problem, element, kernel.pass, kernel.gradients);
            // Among how many CTAs the heads of a group are split, and who makes statistics, is said of the chosen one alone.
            assert!(
                all.contains(&Schedule { splits: 1, makes_statistics: false, ..*kernel }),
                "{kernel}"
            );
            (problem, all)
        })
        .collect()
}

#[test]
fn schedules_fit_into_a_multiprocessor() {
    let mut count = 0;
    for (problem, all) in sweep().iter().flat_map(|problem| every(problem, Element::Bf16)) {
        count += all.len();
        all.iter().for_each(|schedule| check_resources(schedule, &problem));
    }
    assert!(count > 10_000, "{count}");
}

/// Accumulators and fragments of a consumer, which have to leave room for addresses and statistics.
#[test]
fn accumulators_leave_registers() {
    for (_, all) in sweep().iter().flat_map(|problem| every(problem, Element::Bf16)) {
        for schedule in all {
            let Gradients { width, value, .. } = schedule.gradients;
            let scores = 32 * schedule.blocks;
            // A gradient and what it is summed from, packed; for the first also the products.
            let first = if width > 0 { width / 2 + scores + scores / 2 } else { 0 };
            let second = if value { schedule.head_dim_v / 2 + scores / 2 } else { 0 };
            let k_steps = schedule.head_dim.div_ceil(16) + schedule.head_dim_v.div_ceil(16);
            let fragments = if schedule.rows_in_registers() { 4 * k_steps } else { 0 };
            let taken = scores + first + second + fragments;
            let (_, consumer) = schedule.registers();
            assert!(taken <= consumer, "{schedule}: {taken} of {consumer}");
        }
    }
}

#[test]
fn names_tell_schedules_apart() {
    let mut named = HashMap::new();
    for problem in sweep() {
        for element in [Element::F16, Element::Bf16] {
            for schedule in every(&problem, element).into_iter().flat_map(|(_, all)| all) {
                let before = named.insert(schedule.to_string(), schedule);
                assert!(before.is_none_or(|before| before == schedule), "{schedule}");
            }
        }
    }
}

/// Every element of a gradient is written by one kernel.
#[test]
fn kernels_share_the_gradients() {
    for problem in sweep() {
        let plan = plan_backward(&problem, Element::F16, None).expect("supported");
        assert_eq!(plan.additional.is_empty(), problem.additional == 0);
        for (kernels, pass) in [
            (&plan.queries, Pass::Queries),
            (&plan.keys, Pass::Keys),
            (&plan.additional, Pass::Keys),
        ] {
            if kernels.is_empty() {
                continue;
            }
            assert!(kernels.iter().all(|kernel| kernel.pass == pass), "{problem:?}");
            let mut written = vec![0; problem.head_dim];
            for Gradients { start, width, .. } in kernels.iter().map(|kernel| kernel.gradients) {
                // Slices begin where boxes of shared memory do.
                assert!(start.is_multiple_of(64), "{problem:?}");
                written[start..start + width].iter_mut().for_each(|count| *count += 1);
            }
            assert!(written.iter().all(|count| *count == 1), "{problem:?}: {written:?}");
            let values = kernels.iter().filter(|kernel| kernel.gradients.value).count();
            assert_eq!(values, usize::from(pass == Pass::Keys), "{problem:?}");
        }
    }
}

#[test]
fn tiles_are_those_asked_for_where_there_are_such() {
    let space = problem(&[axis(16, 5, 1, 1, false); 3], 64);
    let tiling = Tiling { q_tile: [2, 4, 8], kv_tile: [4, 4, 4] };
    let plan = plan_backward(&space, Element::Bf16, Some(tiling)).expect("supported");
    assert!(plan.schedules().all(|schedule| schedule.tiling() == tiling), "{plan:?}");
    let none = Tiling::square([3, 3, 3]);
    let any = plan_backward(&space, Element::Bf16, Some(none));
    assert_eq!(any, plan_backward(&space, Element::Bf16, None));
}

#[test]
fn whole_blocks_are_seen_by_every_row() {
    for pass in [Pass::Queries, Pass::Keys] {
        check_whole_blocks(|problem| {
            let gradients = kernels(problem, pass)[0];
            backward_candidates(problem, Element::Bf16, pass, gradients)
        });
    }
}

#[test]
fn what_is_not_supported_has_no_plan() {
    let problem = Problem { head_dim: 60, ..problem(&[axis(100, 9, 1, 1, false)], 64) };
    assert_eq!(plan_backward(&problem, Element::F16, None), None);
}

/// Of long lines whose windows are whole blocks, and of boxes, within bounds of memory.
#[test]
fn slopes_are_kept_where_that_is_faster() {
    let kept_within = |problem: Problem, bytes| {
        let plan = plan_backward_within(&problem, Element::Bf16, None, bytes).expect("supported");
        plan.schedules().for_each(|schedule| check_resources(schedule, &problem));
        let mebibytes = plan.slopes_workspace(&problem) >> 20;
        plan.slopes.map(|slopes| (slopes.heads_at_once, mebibytes))
    };
    let kept = |problem| kept_within(problem, SLOPES_BYTES);
    let dense = |length, causal, dim| {
        let problem = problem(&[Axis::dense(length, length, causal)], dim);
        problem.with_batch(4).with_heads(16).with_heads_kv(16)
    };
    assert_eq!(kept(dense(4096, false, 128)), Some((32, 2048)));
    // Heads of a group belong together.
    assert_eq!(kept(dense(4096, false, 128).with_heads_kv(4)), Some((8, 2048)));
    assert_eq!(kept(dense(16384, false, 128)), Some((2, 2048)));
    assert_eq!(kept(dense(16384, true, 128)), Some((2, 1028)));
    // Of short vectors slopes are as many bytes for half of the products, and short lines are not worth three launches more.
    assert_eq!(kept(dense(4096, false, 64)), None);
    assert_eq!(kept(dense(512, false, 128)), None);
    // Tiles of one head leave a round of multiprocessors half empty, which the other lane fills; or a single head has more than 2^30 bytes.
    assert_eq!(kept(dense(20000, false, 128)), Some((1, 1530)));
    assert_eq!(kept(dense(32768, false, 128)), None);
    // Windows of other queries begin within blocks.
    assert_eq!(kept(problem(&[axis(8192, 2047, 1, 1, false)], 128)), None);
    // Of planes, boxes have a place for all that any box sees. Where they would be many more than windows are, or too many bytes, there are none.
    let of = |name| catalogue::find(name).expect("is in the catalogue").problem;
    assert_eq!(kept(of("flux")), Some((1, 1936)));
    assert_eq!(kept(of("flux-s16")), Some((1, 1600)));
    assert_eq!(kept(of("cosmos-causal")), Some((1, 1031)));
    for name in ["flux-d3", "hunyuan", "hunyuan-s", "cosmos", "nat-56"] {
        assert_eq!(kept(of(name)), None, "{name}");
    }
    // As many as are allowed.
    assert_eq!(kept_within(dense(4096, false, 128), 0), None);
    assert_eq!(kept_within(dense(4096, false, 128), 200 << 20), Some((4, 256)));
    for (name, expected) in [
        ("hunyuan", (1, 9000)),
        ("hunyuan-s", (1, 4556)),
        ("cosmos", (1, 5280)),
        ("flux", (1, 1936)),
    ] {
        assert_eq!(kept_within(of(name), 8 * SLOPES_BYTES), Some(expected), "{name}");
    }
    let odd = problem(&[axis(257, 80, 1, 1, false), axis(256, 80, 1, 1, false)], 128);
    assert_eq!(kept(odd.with_heads(24).with_heads_kv(24)), None);
}

/// Times of kernels with slopes over those without, as measured on an H200 (`benches/results/2026-11-29-h200-windows.md`): they are expected to be up to 9 % less than that.
#[test]
fn lanes_take_what_was_measured() {
    let one = |axis: Axis, heads: usize| {
        problem(&[axis], 128).with_heads(heads).with_heads_kv(heads).with_batch(1)
    };
    let dense = |length, heads| one(Axis::dense(length, length, false), heads);
    let causal = |length, heads| one(Axis::dense(length, length, true), heads);
    let boxes = catalogue::find("cosmos-causal").expect("is in the catalogue").problem;
    let measured = [
        (dense(9000, 7), 1, 1.08),
        (dense(18000, 8), 1, 1.00),
        (dense(20000, 8), 1, 0.90),
        (dense(22000, 8), 1, 0.87),
        (dense(12000, 8), 2, 0.86),
        (dense(14000, 8), 2, 0.87),
        (dense(17500, 3), 1, 0.87),
        (dense(11000, 5), 1, 0.82),
        (dense(20000, 2), 1, 0.80),
        (causal(24000, 4), 1, 0.90),
        (causal(30000, 8), 1, 0.90),
        (boxes, 1, 0.91),
    ];
    for (problem, heads_at_once, measured) in measured {
        let plain = plan_backward_within(&problem, Element::Bf16, None, 0).expect("supported");
        let all = match problem.rank() {
            1 => Vec::from_iter(plain.clone().with_slopes(&problem, heads_at_once)),
            _ => plain.all_with_slopes(&problem, heads_at_once),
        };
        let seconds = |plan: &BackwardPlan| super::time::seconds(plan, &problem);
        let times = all.iter().map(seconds);
        let share = times.reduce(f64::min).expect("whole blocks") / seconds(&plain);
        let is_near = (-0.01..0.095).contains(&(measured - share));
        assert!(is_near, "{share:.3} where {measured} was measured: {problem:?}");
        // What is taken is what was faster.
        let plan = plan_backward_within(&problem, Element::Bf16, None, SLOPES_BYTES);
        let taken = plan.and_then(|plan| plan.heads_at_once());
        assert_eq!(taken, (measured < 0.95).then_some(heads_at_once), "{problem:?}");
    }
}
