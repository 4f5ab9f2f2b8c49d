//! From a packed batch to the schedules of one launch a pass.

use std::sync::{Arc, LazyLock, Mutex};

use super::{BackwardPlan, How, SLOTS, backward, candidates, fastest, slots, spills, unsupported};
use crate::choices::{Choices, remembered};
use crate::native::MAX_STEP;
use crate::native::sm90::{Element, Gradients, Mask, Pass, Schedule};
use crate::tiling::Tiling;
use crate::{Axis, MAX_RANK, Packed, Problem};

/// What kernels have to be able to do for some of the sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Traits {
    is_strided: bool,
    has_origin: bool,
    /// The largest dilation along each axis.
    dilation: [usize; MAX_RANK],
}

impl Traits {
    fn of(packed: &Packed) -> Self {
        let axes = || packed.problems().flat_map(|problem| &problem.axes);
        let dilation = |index: usize| {
            packed.problems().map(|problem| problem.axes[index].dilation).max().unwrap_or(1)
        };
        Self {
            is_strided: axes().any(|axis| axis.stride > 1),
            has_origin: packed.problems().any(Problem::has_origin),
            dilation: std::array::from_fn(dilation),
        }
    }

    /// The same schedule for all sequences; `None` where it has no room for what they need.
    fn schedule(&self, schedule: Schedule, problem: &Problem) -> Option<Schedule> {
        let is_dilated = self.dilation.iter().any(|dilation| *dilation > 1);
        let schedule = Schedule {
            is_strided: schedule.is_strided || self.is_strided,
            is_dilated,
            has_origin: self.has_origin,
            // Which tiles are seen whole depends on lengths.
            mask: if schedule.rank == 1 { Mask::Linear } else { Mask::OneHot },
            is_packed: true,
            ..schedule
        };
        let needs_strides = backward::needs_strides(&schedule, problem);
        let schedule = Schedule { is_strided: schedule.is_strided || needs_strides, ..schedule };
        let cut = schedule.cut();
        let steps = |(index, dilation): (usize, &usize)| {
            cut.dilates_in_kernel(&Axis::UNIT.with_dilation(*dilation), index)
        };
        let fits = (schedule.mask != Mask::OneHot || slots(&schedule) <= SLOTS)
            && !spills(&schedule)
            && self.dilation.iter().enumerate().all(steps);
        schedule.with_stages().filter(|_| fits)
    }
}

/// The next length that schedules are chosen for: within a quarter, so that batches of other lengths neither plan nor compile
/// anew.
fn bucket(length: usize) -> usize {
    let quarter = (length.next_power_of_two() / 8).max(1);
    length.next_multiple_of(quarter)
}

/// The problem that schedules are chosen for: that of the sequence with most work, of about its lengths, as often as it makes up
/// all of the work.
fn representative(packed: &Packed) -> Option<Problem> {
    let work = |problem: &Problem| -> u128 {
        let along = |axis: &Axis| axis.queries as u128 * axis.kernel_size as u128;
        problem.axes.iter().map(along).product()
    };
    let rank = packed.rank();
    let most =
        packed.problems().filter(|problem| problem.rank() == rank).max_by_key(|of| work(of))?;
    let all: u128 = packed.problems().map(work).sum();
    let count = (all / work(most).max(1)).max(1);
    let axes = most.axes.map(|axis| {
        let is_whole = axis.kernel_size == axis.keys;
        let (queries, keys) = (bucket(axis.queries), bucket(axis.keys));
        let kernel_size = if is_whole { keys } else { axis.kernel_size };
        Axis { queries, keys, kernel_size, origin: 0, ..axis }
    });
    // Whole samples of other queries than keys are no batch of three axes; with one or two it makes no difference here.
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(1 << 10).next_power_of_two();
    Some(most.with_axes(axes).with_batch(count))
}

/// What `choose` gives for the representative of a packed batch, once.
fn chosen<T: Clone>(
    choices: &Choices<(How, Traits), T>,
    packed: &Packed,
    how: How,
    choose: impl FnOnce(&Problem, Traits) -> Option<T>,
) -> Result<T, String> {
    if let Some(reason) = packed.problems().find_map(unsupported) {
        return Err(reason);
    }
    let traits = Traits::of(packed);
    if let Some(dilation) = traits.dilation.iter().find(|dilation| **dilation > MAX_STEP) {
        return Err(format!(
            "a sequence of the packed batch has a dilation of {dilation}, above {MAX_STEP}"
        ));
    }
    let problem = representative(packed).ok_or("there is no sequence")?;
    remembered(choices, &problem, (how, traits), || choose(&problem, traits))
        .ok_or_else(|| "no schedule fits all sequences".to_string())
}

/// The schedule of one launch for all sequences, chosen once for batches of about these lengths.
///
/// # Errors
///
/// Why there is none.
pub fn planned_packed(
    packed: &Packed,
    element: Element,
    tiling: Option<Tiling>,
) -> Result<Schedule, String> {
    static KNOWN: Choices<(How, Traits), Schedule> = LazyLock::new(Mutex::default);
    chosen(&KNOWN, packed, (element, tiling), |problem, traits| {
        best(candidates(problem, element), problem, traits, tiling)
    })
}

/// The same for the gradients.
///
/// # Errors
///
/// Why there are none.
pub fn planned_packed_backward(
    packed: &Packed,
    element: Element,
    tiling: Option<Tiling>,
) -> Result<Arc<BackwardPlan>, String> {
    static KNOWN: Choices<(How, Traits), Arc<BackwardPlan>> = LazyLock::new(Mutex::default);
    chosen(&KNOWN, packed, (element, tiling), |problem, traits| {
        let of = |pass: Pass| -> Option<Vec<Schedule>> {
            let kernels: Vec<Gradients> = backward::kernels(problem, pass);
            let schedules = kernels.into_iter().map(|gradients| {
                let all = backward::backward_candidates(problem, element, pass, gradients);
                best(all, problem, traits, tiling)
            });
            schedules.collect()
        };
        let (queries, keys) = (of(Pass::Queries)?, of(Pass::Keys)?);
        Some(Arc::new(BackwardPlan { queries, keys, additional: vec![] }))
    })
}

fn best(
    schedules: Vec<Schedule>,
    problem: &Problem,
    traits: Traits,
    tiling: Option<Tiling>,
) -> Option<Schedule> {
    let all: Vec<_> =
        schedules.into_iter().filter_map(|schedule| traits.schedule(schedule, problem)).collect();
    let tiled = all.iter().filter(|schedule| Some(schedule.tiling()) == tiling).copied();
    fastest(tiled.collect(), problem).or_else(|| fastest(all, problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sequence;

    fn images(sizes: &[[usize; 2]], window: impl Fn(usize, usize) -> Axis) -> Packed {
        let mut tokens = 0;
        let mut sequences = vec![];
        for [height, width] in sizes {
            let axes = [window(0, *height), window(1, *width)];
            let problem = Problem::new(axes, 4, 64);
            sequences.push(Sequence { problem, query: tokens, key: tokens });
            tokens += height * width;
        }
        Packed::new(sequences, [tokens; 2]).expect("one launch")
    }

    #[test]
    fn other_lengths_take_the_same_schedule() {
        let of = |sizes: &[[usize; 2]]| {
            images(sizes, |_, length| Axis::neighborhood(length, 7.min(length)))
        };
        let planned = |packed: &Packed| planned_packed(packed, Element::Bf16, None).expect("fits");
        let [a, b] = [of(&[[60, 61], [16, 20], [7, 9]]), of(&[[59, 63], [21, 12], [1, 30]])];
        assert_eq!(representative(&a), representative(&b));
        let schedule = planned(&a);
        assert_eq!(schedule, planned(&b));
        assert!(schedule.is_packed && schedule.mask == Mask::OneHot);
        assert!(a.problems().chain(b.problems()).all(|problem| schedule.fits(problem)));
        assert!(schedule.to_string().ends_with("_packed"), "{schedule}");
    }

    #[test]
    fn kernels_can_do_what_any_sequence_needs() {
        let packed = images(&[[60, 60], [30, 40]], |axis, length| {
            let is_second = length < 60;
            let window = Axis::neighborhood(length, 5);
            window
                .with_dilation(if is_second { 6 } else { 1 })
                .with_stride(if is_second && axis == 1 { 2 } else { 1 })
        });
        let forward = planned_packed(&packed, Element::F16, None).expect("fits");
        let backward = planned_packed_backward(&packed, Element::F16, None).expect("fits");
        for schedule in backward.schedules().chain([&forward]) {
            assert!(schedule.is_dilated && schedule.is_strided, "{schedule}");
            assert!(packed.problems().all(|problem| schedule.fits(problem)), "{schedule}");
        }
        let wide = images(&[[60, 60]], |_, length| Axis::neighborhood(length, 5).with_dilation(9));
        let refused = planned_packed(&wide, Element::F16, None).expect_err("is refused");
        assert_eq!(refused, "a sequence of the packed batch has a dilation of 9, above 8");
    }
}
