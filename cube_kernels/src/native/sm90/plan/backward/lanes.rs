//! How long a plan takes: kernels that leave slopes and sum them do so for some heads after the others, in lanes that run beside each other.

use super::super::{Load, MULTIPROCESSORS, timeline};
use super::BackwardPlan;
use crate::Problem;
use crate::native::slopes;
use crate::native::sm90::{Pass, Schedule};

/// Launches of each kernel that stand for all.
const LAUNCHES: usize = 8;
/// Rounds of tiles that stand for all of a launch.
const ROUNDS: usize = 16;

const SLOTS: usize = MULTIPROCESSORS as usize;

/// Seconds that a plan is expected to take, for comparison with others: tiles take their share of an [estimate](super::super::estimate).
pub(super) fn seconds(plan: &BackwardPlan, problem: &Problem) -> f64 {
    let all = problem.batch * problem.heads_kv;
    let kernels = || plan.keys.iter().chain(&plan.queries);
    let (pairs, launches) = match &plan.slopes {
        Some(slopes) => (slopes.heads_at_once, (all / slopes.heads_at_once).min(LAUNCHES)),
        None => {
            let least = kernels().map(|one| tiles(one, problem, 1).len()).min();
            (all.min((ROUNDS * SLOTS).div_ceil(least.unwrap_or(1).max(1))), 1)
        }
    };
    let kernels: Vec<_> = kernels().map(|one| tiles(one, problem, pairs)).collect();
    let lanes = slopes::lanes(all, pairs).min(launches);
    let of_lane = |lane: usize| {
        let launches = (launches - lane).div_ceil(lanes);
        std::iter::repeat_n(kernels.iter().map(Vec::as_slice), launches).flatten()
    };
    timeline::seconds((0..lanes).map(of_lane), SLOTS) * all as f64 / (pairs * launches) as f64
}

/// Nanoseconds of a multiprocessor for each tile of so many (sample, key head) pairs.
fn tiles(schedule: &Schedule, problem: &Problem, pairs: usize) -> Vec<u64> {
    let tiles_of_pair = match schedule.pass {
        Pass::Keys => schedule.splits,
        Pass::Forward | Pass::Queries => problem.group_size(),
    };
    let steps = timeline::steps(schedule, problem);
    let all = steps.iter().sum::<u64>() * (tiles_of_pair * problem.batch * problem.heads_kv) as u64;
    let seconds = Load::new(schedule, problem).seconds(schedule, 1.0) * MULTIPROCESSORS;
    let step = seconds / all as f64;
    let tile = |steps: u64| timeline::nanoseconds(step * steps as f64);
    steps
        .into_iter()
        .flat_map(|steps| std::iter::repeat_n(tile(steps), tiles_of_pair * pairs))
        .collect()
}
