//! From a packed batch to the schedules of its launches: one a pass, or a few where sequences are better off with other tiles.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};

use super::parts::{Candidates, Parts};
use super::{BackwardPlan, How, Load, backward, candidates, has_slots, spills, unsupported};
use crate::choices::{Choices, remembered};
use crate::native::MAX_STEP;
use crate::native::sm90::schedule::TILE;
use crate::native::sm90::{Element, Mask, Pass, Schedule};
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
            one_block: [false; MAX_RANK],
            is_packed: true,
            ..schedule
        };
        let needs_strides = backward::needs_strides(&schedule, problem);
        let schedule = Schedule { is_strided: schedule.is_strided || needs_strides, ..schedule };
        let cut = schedule.cut();
        let steps = |(index, dilation): (usize, &usize)| {
            cut.dilates_in_kernel(&Axis::UNIT.with_dilation(*dilation), index)
        };
        let fits = has_slots(&schedule)
            && schedule.teams == 1
            && [schedule.row_tile(), schedule.column_tile()]
                .iter()
                .all(|tile| tile.iter().product::<usize>() == TILE)
            && !spills(&schedule)
            && self.dilation.iter().enumerate().all(steps);
        schedule.with_stages().filter(|_| fits)
    }
}

/// The next length that schedules are chosen for: within an eighth, so that batches of other lengths have little to plan.
fn bucket(length: usize) -> usize {
    let eighth = (length.next_power_of_two() / 16).max(1);
    length.next_multiple_of(eighth)
}

/// Axes as they are told apart and put in order.
type Shape = [[usize; 5]; MAX_RANK];

/// What sequences a packed batch has.
struct Mix {
    /// Their problems, of about their lengths, and how many there are of each.
    shapes: Vec<(Problem, usize)>,
    /// Which of these each sequence is.
    of: Vec<usize>,
}

impl Mix {
    fn new(packed: &Packed) -> Self {
        let shape = |problem: &Problem| -> Shape {
            problem.axes.map(|axis| {
                let is_whole = axis.kernel_size == axis.keys;
                let (queries, keys) = (bucket(axis.queries), bucket(axis.keys));
                let kernel_size = if is_whole { keys } else { axis.kernel_size };
                [queries, keys, kernel_size, axis.stride, axis.dilation]
            })
        };
        let all: Vec<_> = packed.problems().map(shape).collect();
        let mut numbers = BTreeMap::<_, (usize, usize)>::new();
        for shape in &all {
            numbers.entry(shape).or_default().1 += 1;
        }
        for (number, entry) in numbers.values_mut().enumerate() {
            entry.0 = number;
        }
        let causal = packed.causal();
        let problem = |shape: &Shape| {
            let axis = |index: usize| {
                let [queries, keys, kernel_size, stride, dilation] = shape[index];
                let axis = Axis::dense(queries, keys, causal[index]);
                Axis { kernel_size, stride, dilation, origin: 0, ..axis }
            };
            packed.line().with_axes(std::array::from_fn::<_, MAX_RANK, _>(axis))
        };
        let of = all.iter().map(|shape| numbers[shape].0).collect();
        let shapes = numbers.iter().map(|(shape, (_, count))| (problem(shape), *count)).collect();
        Self { shapes, of }
    }

    /// What choices are remembered by.
    fn key(&self) -> Vec<([Axis; MAX_RANK], usize)> {
        self.shapes.iter().map(|(problem, count)| (problem.axes, *count)).collect()
    }
}

/// Sequences of a packed batch that share a launch, and what for.
#[derive(Clone, Debug)]
pub struct PackedPart<'a, T> {
    /// The sequences, whose tensors are those of the whole batch.
    pub packed: Cow<'a, Packed>,
    /// What computes them.
    pub plan: T,
}

/// What choices for a packed batch depend on, besides sizes.
type Batch = (How, Traits, Vec<([Axis; MAX_RANK], usize)>);

/// What was chosen for each: the part of each shape, and the plan of each part.
type Chosen<T> = Choices<Batch, Arc<(Vec<usize>, Vec<T>)>>;

/// The parts of a packed batch, chosen once for it and once for batches of about its lengths. `kernels` lists the schedules of each
/// kernel of the pass for a problem; `plan` makes a plan of one schedule for each of them.
fn chosen<'a, T: Clone + Send + Sync + 'static>(
    choices: &Chosen<T>,
    packed: &'a Packed,
    how: How,
    kernels: impl Fn(&Problem) -> Vec<Vec<Schedule>>,
    plan: impl Fn(Vec<Schedule>) -> T,
) -> Result<Vec<PackedPart<'a, T>>, String> {
    let found = packed.known().find(how, |_| divided(choices, packed, how, kernels, plan));
    let parts = found.1.as_ref().map_err(String::clone)?.iter();
    let part = |(own, plan): &(Option<Packed>, T)| PackedPart {
        packed: own.as_ref().map_or(Cow::Borrowed(packed), |own| Cow::Owned(own.clone())),
        plan: plan.clone(),
    };
    Ok(parts.map(part).collect())
}

/// The same, each part with its own sequences if there are others.
fn divided<T: Clone>(
    choices: &Chosen<T>,
    packed: &Packed,
    how: How,
    kernels: impl Fn(&Problem) -> Vec<Vec<Schedule>>,
    plan: impl Fn(Vec<Schedule>) -> T,
) -> Result<Vec<(Option<Packed>, T)>, String> {
    if let Some(reason) = packed.problems().find_map(unsupported) {
        return Err(reason);
    }
    let traits = Traits::of(packed);
    if let Some(dilation) = traits.dilation.iter().find(|dilation| **dilation > MAX_STEP) {
        return Err(format!(
            "a sequence of the packed batch has a dilation of {dilation}, above {MAX_STEP}"
        ));
    }
    // Stands for all problems of these axes where schedules are listed: they are then made to do what any sequence needs.
    let causal = packed.causal();
    let rank = packed.rank();
    let axes = std::array::from_fn::<_, MAX_RANK, _>(|index| match index + rank < MAX_RANK {
        true => Axis::UNIT.with_causal(causal[index]),
        false => Axis::dense(2 * TILE, 2 * TILE, causal[index]),
    });
    let any = packed.line().with_axes(axes);
    let mix = Mix::new(packed);
    let choose = || {
        let kernels = kernels(&any).into_iter().enumerate().map(|(number, all)| {
            let all: Vec<_> =
                all.into_iter().filter_map(|one| traits.schedule(one, &any)).collect();
            let tiled = all.iter().filter(|schedule| Some(schedule.tiling()) == how.1).copied();
            let tiled: Vec<_> = tiled.collect();
            let schedules = if tiled.is_empty() { all } else { tiled };
            let loads = mix.shapes.iter().map(|(problem, count)| {
                let loads = loads((how, traits, number), &any, problem, &schedules);
                loads.iter().map(|load| load.times(*count)).collect()
            });
            Candidates { loads: loads.collect(), schedules }
        });
        let Parts { of, schedules } = Parts::new(&kernels.collect::<Vec<_>>())?;
        Some(Arc::new((of, schedules.into_iter().map(&plan).collect())))
    };
    let chosen = remembered(choices, &any, (how, traits, mix.key()), choose)
        .ok_or_else(|| "no schedule fits all sequences".to_string())?;
    let (of, plans) = &*chosen;
    let part = |(number, plan): (usize, &T)| {
        let is_divided = plans.len() > 1;
        let own = is_divided.then(|| packed.only(|sequence| of[mix.of[sequence]] == number));
        (own, plan.clone())
    };
    Ok(plans.iter().enumerate().map(part).collect())
}

/// What loads depend on, besides a sequence: what lists schedules, and for which axes and pass.
type Listed = (How, Traits, usize, [Axis; MAX_RANK], Pass);

/// What each schedule has to do for a sequence, counted once. The schedules are those of `any`: a sequence of the same shape in a batch
/// whose other sequences are causal, or have more axes, has others.
fn loads(
    how: (How, Traits, usize),
    any: &Problem,
    problem: &Problem,
    schedules: &[Schedule],
) -> Arc<[Load]> {
    static KNOWN: Choices<Listed, Arc<[Load]>> = LazyLock::new(Mutex::default);
    let Some(first) = schedules.first() else { return Arc::default() };
    let (own, traits, number) = how;
    let count = || Some(schedules.iter().map(|schedule| Load::new(schedule, problem)).collect());
    remembered(&KNOWN, problem, (own, traits, number, any.axes, first.pass), count)
        .unwrap_or_default()
}

/// The schedules of a packed batch: of one launch for all sequences, or of a few, each for some of them.
///
/// # Errors
///
/// Why there are none.
pub fn planned_packed(
    packed: &Packed,
    element: Element,
    tiling: Option<Tiling>,
) -> Result<Vec<PackedPart<'_, Schedule>>, String> {
    static KNOWN: Chosen<Schedule> = LazyLock::new(Mutex::default);
    let kernels = |problem: &Problem| vec![candidates(problem, element)];
    chosen(&KNOWN, packed, (element, tiling), kernels, |schedules| schedules[0])
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
) -> Result<Vec<PackedPart<'_, Arc<BackwardPlan>>>, String> {
    static KNOWN: Chosen<Arc<BackwardPlan>> = LazyLock::new(Mutex::default);
    let kernels = |problem: &Problem| {
        let of = |pass: Pass| {
            let all = backward::kernels(problem, pass).into_iter();
            all.map(move |sums| backward::backward_candidates(problem, element, pass, sums))
        };
        of(Pass::Queries).chain(of(Pass::Keys)).collect()
    };
    chosen(&KNOWN, packed, (element, tiling), kernels, |schedules| {
        let (queries, keys) =
            schedules.into_iter().partition(|schedule| schedule.pass == Pass::Queries);
        Arc::new(BackwardPlan { queries, keys, additional: vec![], slopes: None })
    })
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
        let planned = |packed: &Packed| {
            let parts = planned_packed(packed, Element::Bf16, None).expect("fits");
            assert_eq!(parts.len(), 1, "there is one tile for images");
            parts[0].plan
        };
        let [a, b] = [of(&[[60, 61], [16, 20], [7, 9]]), of(&[[57, 64], [16, 19], [7, 9]])];
        assert_eq!(Mix::new(&a).key(), Mix::new(&b).key());
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
        let backward = backward.iter().flat_map(|part| part.plan.schedules());
        for schedule in backward.chain(forward.iter().map(|part| &part.plan)) {
            assert!(schedule.is_dilated && schedule.is_strided, "{schedule}");
            assert!(packed.problems().all(|problem| schedule.fits(problem)), "{schedule}");
        }
        let wide = images(&[[60, 60]], |_, length| Axis::neighborhood(length, 5).with_dilation(9));
        let refused = planned_packed(&wide, Element::F16, None).expect_err("is refused");
        assert_eq!(refused, "a sequence of the packed batch has a dilation of 9, above 8");
    }

    /// Videos of which the largest and most others want other tiles.
    fn videos() -> Packed {
        let mut tokens = 0;
        let sizes = [[16, 44, 80], [9, 44, 80], [12, 44, 60], [9, 80, 44], [9, 80, 44]];
        let sequences = sizes.map(|size| {
            let windows = [(16, 1), (32, 4), (48, 16)];
            let axis = |index: usize| {
                let (kernel_size, stride) = windows[index];
                Axis::neighborhood(size[index], kernel_size.min(size[index])).with_stride(stride)
            };
            let problem = Problem::new([0, 1, 2].map(axis), 32, 128);
            tokens += problem.queries();
            Sequence { problem, query: tokens - problem.queries(), key: tokens - problem.queries() }
        });
        Packed::new(sequences, [tokens; 2]).expect("one launch")
    }

    fn seconds(schedule: &Schedule, packed: &Packed) -> f64 {
        let load: Load = packed.problems().map(|problem| Load::new(schedule, problem)).sum();
        load.seconds(schedule, load.unevenness(schedule))
    }

    #[test]
    fn tiles_are_those_that_suit_all_sequences() {
        let packed = videos();
        let parts = planned_packed(&packed, Element::Bf16, None).expect("fits");
        let taken: f64 = parts.iter().map(|part| seconds(&part.plan, &part.packed)).sum();
        let largest =
            packed.only(|number| packed.sequences()[number].problem.queries() == 16 * 44 * 80);
        let alone = planned_packed(&largest, Element::Bf16, None).expect("fits")[0].plan;
        assert!(taken < 0.92 * seconds(&alone, &packed), "{taken}");
    }

    #[test]
    fn parts_have_each_sequence_once() {
        let packed = videos();
        let parts = planned_packed_backward(&packed, Element::Bf16, None).expect("fits");
        assert!(parts.len() > 1, "videos of 9 and of 16 frames share tiles");
        let mut found: Vec<_> = parts
            .iter()
            .flat_map(|part| part.packed.sequences().iter().map(|sequence| sequence.query))
            .collect();
        found.sort_unstable();
        let mut expected: Vec<_> =
            packed.sequences().iter().map(|sequence| sequence.query).collect();
        expected.sort_unstable();
        assert_eq!(found, expected);
        assert!(parts.iter().all(|part| part.packed.line() == packed.line()));
        // Tiles that are asked for are those of all.
        let tiling = parts[0].plan.queries[0].tiling();
        let asked = planned_packed(&packed, Element::Bf16, Some(tiling)).expect("fits");
        assert!(asked.iter().all(|part| part.plan.tiling() == tiling));
    }
}
