//! When kernels end, tile by tile.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::cost::DeviceModel;
use crate::native::sm90::{Pass, Schedule};
use crate::{MAX_RANK, Problem};

#[cfg(test)]
mod tests;

const NANOSECOND: f64 = 1e-9;

/// Time, which has an order.
pub(super) fn nanoseconds(seconds: f64) -> u64 {
    (seconds / NANOSECOND).round() as u64
}

/// The steps of a tile of a head are the product of those along each axis.
pub(super) fn axes(schedule: &Schedule, problem: &Problem) -> [Vec<u64>; MAX_RANK] {
    let tiling = schedule.tiling_of(schedule.cta_tile());
    std::array::from_fn(|index| {
        let axis = &problem.axes[index];
        match schedule.pass {
            Pass::Keys => tiling.axis_visitors(axis, index),
            Pass::Forward | Pass::Queries => {
                tiling.axis_tiles(axis, index).map(|tile| tile.kv_tiles as u64).collect()
            }
        }
    })
}

/// Those of all tiles, in the order in which CTAs take them: along a causal axis those with the most come first.
pub(super) fn steps([z, y, x]: &[Vec<u64>; MAX_RANK], pass: Pass) -> Vec<u64> {
    let mut steps = Vec::with_capacity(z.len() * y.len() * x.len());
    for z in z {
        for y in y {
            steps.extend(x.iter().map(|x| z * y * x));
        }
    }
    if pass != Pass::Keys {
        steps.reverse();
    }
    steps
}

/// Seconds for kernels that follow one another in each lane. A kernel is given by what its tiles take, in nanoseconds: CTAs take one whenever they have none, and end where
/// there are no more. So many CTAs run at once, those of the kernel that was launched first; it ends with the last one of them.
pub(super) fn seconds<'a, I: IntoIterator<Item = &'a [u64]>>(
    lanes: impl IntoIterator<Item = I>,
    slots: usize,
) -> f64 {
    let lane = |kernels: I| kernels.into_iter().filter(|tiles| !tiles.is_empty()).collect();
    let lanes = lanes.into_iter().map(lane).collect();
    let mut device = Device { lanes, slots, free: slots, ..Device::default() };
    (0..device.lanes.len()).for_each(|lane| device.launch(lane, 0));
    while let Some(Reverse((now, number, event))) = device.events.pop() {
        device.now = now;
        device.step(number, event);
    }
    device.now as f64 * NANOSECOND
}

/// What happens to a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Launched,
    TileDone,
}

/// A kernel that is launched.
struct Kernel<'a> {
    lane: usize,
    /// The tiles that nobody has taken.
    rest: &'a [u64],
    /// CTAs that have not begun, and those at work.
    waiting: usize,
    at_work: usize,
}

#[derive(Default)]
struct Device<'a> {
    /// What each lane has yet to launch.
    lanes: Vec<VecDeque<&'a [u64]>>,
    kernels: Vec<Kernel<'a>>,
    /// By time and number of the kernel.
    events: BinaryHeap<Reverse<(u64, usize, Event)>>,
    /// Kernels with CTAs that wait, in the order of their launches.
    queue: VecDeque<usize>,
    slots: usize,
    free: usize,
    now: u64,
}

impl Device<'_> {
    /// Launches the next kernel of a lane, which begins so many nanoseconds from now.
    fn launch(&mut self, lane: usize, delay: u64) {
        let Some(rest) = self.lanes[lane].pop_front() else { return };
        self.events.push(Reverse((self.now + delay, self.kernels.len(), Event::Launched)));
        let waiting = rest.len().min(self.slots);
        self.kernels.push(Kernel { lane, rest, waiting, at_work: 0 });
    }

    fn step(&mut self, number: usize, event: Event) {
        match event {
            Event::Launched => self.queue.push_back(number),
            Event::TileDone if self.takes_tile(number) => {}
            Event::TileDone => {
                let kernel = &mut self.kernels[number];
                kernel.at_work -= 1;
                self.free += 1;
                // CTAs that wait end as they begin: there is no tile for them.
                if kernel.at_work == 0 {
                    let lane = kernel.lane;
                    self.launch(lane, nanoseconds(DeviceModel::H200.launch));
                }
            }
        }
        while self.free > 0
            && let Some(&first) = self.queue.front()
        {
            if self.kernels[first].waiting > 0 && self.takes_tile(first) {
                self.kernels[first].waiting -= 1;
                self.kernels[first].at_work += 1;
                self.free -= 1;
            } else {
                self.queue.pop_front();
            }
        }
    }

    /// Whether there is a tile for a CTA, which has it from now on.
    fn takes_tile(&mut self, number: usize) -> bool {
        let kernel = &mut self.kernels[number];
        let Some((tile, rest)) = kernel.rest.split_first() else { return false };
        kernel.rest = rest;
        self.events.push(Reverse((self.now + tile, number, Event::TileDone)));
        true
    }
}
