//! How long a plan takes: kernels that leave slopes and sum them do so for some heads after the others, in lanes that run beside each other.

use super::super::{Load, MULTIPROCESSORS, timeline};
use super::BackwardPlan;
use crate::Problem;
use crate::native::slopes;
use crate::native::sm90::{Pass, Schedule};

/// Launches of each kernel that stand for all: so many, or as many as have some tiles, but two of each lane.
const LAUNCHES: usize = 8;
const TILES: usize = 1 << 14;
/// Rounds of tiles that stand for all of a launch.
const ROUNDS: usize = 64;

/// One for each multiprocessor.
const CTAS: usize = MULTIPROCESSORS as usize;

/// Seconds that a plan is expected to take, for comparison with others: tiles take their share of an [estimate](super::super::estimate).
pub(super) fn seconds(plan: &BackwardPlan, problem: &Problem) -> f64 {
    let all = problem.batch * problem.heads_kv;
    // Keys leave slopes before they are summed.
    let of_pair: Vec<_> =
        plan.keys.iter().chain(&plan.queries).map(|one| tiles(one, problem)).collect();
    let (pairs, most) = match plan.heads_at_once() {
        Some(heads_at_once) => {
            let launch = heads_at_once * of_pair.iter().map(Vec::len).sum::<usize>();
            let lanes = slopes::lanes(all, heads_at_once);
            (heads_at_once, LAUNCHES.min(TILES / launch.max(1)).max(2 * lanes))
        }
        None => {
            let least = of_pair.iter().map(Vec::len).min().unwrap_or(1).max(1);
            (all.min((ROUNDS * CTAS).div_ceil(least)), 1)
        }
    };
    let launches = (all / pairs.max(1)).min(most);
    let of_launch = |tiles: Vec<u64>| -> Vec<u64> {
        tiles.into_iter().flat_map(|tile| std::iter::repeat_n(tile, pairs)).collect()
    };
    let kernels: Vec<_> = of_pair.into_iter().map(of_launch).collect();
    let lanes = slopes::lanes(all, pairs).min(launches);
    let of_lane = |lane: usize| {
        let launches = (launches - lane).div_ceil(lanes);
        std::iter::repeat_n(kernels.iter().map(Vec::as_slice), launches).flatten()
    };
    timeline::seconds((0..lanes).map(of_lane), CTAS) * all as f64 / (pairs * launches) as f64
}

/// Nanoseconds of a multiprocessor for each tile of a (sample, key head) pair.
fn tiles(schedule: &Schedule, problem: &Problem) -> Vec<u64> {
    let of_group = match schedule.pass {
        Pass::Keys => schedule.splits,
        Pass::Forward | Pass::Queries => problem.group_size(),
    };
    let steps = timeline::steps(&timeline::axes(schedule, problem), schedule.pass);
    let all = steps.iter().sum::<u64>() * (of_group * problem.batch * problem.heads_kv) as u64;
    let seconds = Load::new(schedule, problem).seconds(schedule, 1.0) * MULTIPROCESSORS;
    let step = seconds / all as f64;
    let tile = |steps: u64| timeline::nanoseconds(step * steps as f64);
    steps.into_iter().flat_map(|steps| std::iter::repeat_n(tile(steps), of_group)).collect()
}
