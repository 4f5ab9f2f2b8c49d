use super::*;
use crate::native::sm90::{Element, plan_backward};
use crate::tiling::Tiling;
use crate::{Axis, catalogue};

/// Compressed attention of native sparse attention: a key for each sixteen queries, which see those that end before them.
fn compressed(blocks: usize, heads_kv: usize) -> Problem {
    let axes = [Axis::dense(blocks, blocks - 1, true), Axis::dense(16, 1, false)];
    Problem::new(axes, 64, 128).with_heads_kv(heads_kv)
}

fn splits(problem: &Problem) -> usize {
    let plan = plan_backward(problem, Element::Bf16, None).expect("it is supported");
    assert!(plan.queries.iter().all(|schedule| schedule.splits == 1));
    assert!(plan.keys.iter().all(|schedule| schedule.fits(problem)));
    plan.keys[0].splits
}

#[test]
fn few_keys_of_large_groups_are_split() {
    for (blocks, heads_kv, expected) in
        [(1024, 4, 8), (4096, 4, 2), (1024, 64, 1), (16384, 4, 1), (1024, 1, 32)]
    {
        let problem = compressed(blocks, heads_kv);
        assert_eq!(splits(&problem), expected, "{blocks} blocks, {heads_kv} key heads");
    }
}

#[test]
fn what_has_ctas_enough_is_not_split() {
    for case in catalogue::all() {
        let Some(plan) = plan_backward(&case.problem, Element::Bf16, None) else { continue };
        for (schedule, problem) in plan.kernels(&case.problem) {
            let tiling = Tiling { q_tile: schedule.column_tile(), kv_tile: schedule.cta_tile() };
            let tiles = tiling.count_visitors(&problem).q_tiles as usize;
            let tiles = tiles * problem.batch * problem.heads_kv;
            let enough = ENOUGH * MULTIPROCESSORS as usize * schedule.ctas;
            assert!(schedule.splits == 1 || tiles < enough, "{schedule}");
        }
    }
}

#[test]
fn sums_are_counted() {
    let problem = compressed(1024, 4);
    let plan = plan_backward(&problem, Element::Bf16, None).expect("it is supported");
    let splits = plan.keys[0].splits;
    assert_eq!(plan.keys[0].split_workspace(&problem), 4 * 1023 * 4 * splits * 256);
    assert_eq!(plan.queries[0].split_workspace(&problem), 0);
    let many = compressed(16384, 4);
    let plan = plan_backward(&many, Element::Bf16, None).expect("it is supported");
    assert_eq!(plan.keys[0].split_workspace(&many), 0);
}
