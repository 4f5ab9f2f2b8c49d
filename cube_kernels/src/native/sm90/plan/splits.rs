//! How many CTAs share the heads of a group where rows are keys. A tile of keys has all heads of its group behind it: few keys, as those
//! of compressed attention, and large groups make few CTAs of much work each.

use super::{Load, MULTIPROCESSORS, TILE_LATENCY, timeline};
use crate::Problem;
use crate::cost::DeviceModel;
use crate::native::sm90::{Pass, Schedule};

#[cfg(test)]
mod tests;

/// Rounds of CTAs that are enough without splits.
const ENOUGH: usize = 2;
/// Most rounds of CTAs that splits may make, which bounds the memory for their sums: some 70 MB on an H200.
const MOST: usize = 4;
/// Share of the time that further splits have to save.
const GAIN: f64 = 0.03;

/// Seconds for writing these sums and adding them up.
pub(super) fn seconds(schedule: &Schedule, problem: &Problem) -> f64 {
    let device = DeviceModel::H200;
    match schedule.split_workspace(problem) {
        0 => 0.0,
        bytes => device.launch + 2.0 * bytes as f64 / device.bandwidth,
    }
}

/// The same schedule with as many splits as have it end first: one where there are CTAs enough.
pub(super) fn split(schedule: Schedule, problem: &Problem) -> Schedule {
    let group = problem.group_size();
    if schedule.pass != Pass::Keys || group == 1 {
        return schedule;
    }
    let slots = MULTIPROCESSORS as usize * schedule.ctas;
    let pairs = problem.batch * problem.heads_kv;
    let axes = timeline::axes(&schedule, problem);
    let tiles = pairs * axes.iter().map(Vec::len).product::<usize>();
    if tiles == 0 || tiles >= ENOUGH * slots {
        return schedule;
    }
    let steps = timeline::steps(&axes, schedule.pass);
    let steps: Vec<u64> =
        steps.into_iter().flat_map(|steps| std::iter::repeat_n(steps, pairs)).collect();
    // Of a CTA for a step of a head.
    let work = Load::new(&schedule, problem).work * slots as f64;
    let step = work / (steps.iter().sum::<u64>() * group as u64) as f64;
    let time = |schedule: &Schedule| {
        let heads = group / schedule.splits;
        let tiles = steps.iter().flat_map(|steps| {
            let tile = TILE_LATENCY + step * *steps as f64 * heads as f64;
            std::iter::repeat_n(timeline::nanoseconds(tile), schedule.splits)
        });
        let tiles: Vec<u64> = tiles.collect();
        timeline::seconds([[tiles.as_slice()]], slots) + seconds(schedule, problem)
    };
    let mut best = (time(&schedule), schedule);
    for splits in (2..=group).filter(|splits| group.is_multiple_of(*splits)) {
        if tiles * splits > MOST * slots {
            break;
        }
        let schedule = Schedule { splits, ..schedule };
        let time = time(&schedule);
        if time < best.0 * (1.0 - GAIN) {
            best = (time, schedule);
        }
    }
    best.1
}
