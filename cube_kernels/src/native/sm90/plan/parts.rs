//! Which sequences of a packed batch share launches. One schedule for all is one launch a kernel; but a tile that suits some lengths
//! sweeps over much that others do not have.

use super::{Load, Schedule};

/// Most parts of a batch: each compiles kernels of its own.
const MOST: usize = 3;
/// Share of the time that a further part has to save.
const GAIN: f64 = 0.02;
/// Seconds for a launch: its table on its way to the device, and CTAs that have nothing left to do at its end.
const LAUNCH: f64 = 20e-6;

/// The schedules that a kernel could have.
pub(super) struct Candidates {
    pub(super) schedules: Vec<Schedule>,
    /// What each of them has to do for all sequences of each shape.
    pub(super) loads: Vec<Vec<Load>>,
}

impl Candidates {
    /// The best candidate for some shapes together, and its seconds.
    fn best(&self, shapes: &[usize]) -> Option<(usize, f64)> {
        let seconds = |candidate: usize| {
            let load: Load = shapes.iter().map(|shape| self.loads[*shape][candidate]).sum();
            let schedule = &self.schedules[candidate];
            load.seconds(schedule, load.unevenness(schedule))
        };
        let timed = (0..self.schedules.len()).map(|candidate| (candidate, seconds(candidate)));
        timed.min_by(|(_, a), (_, b)| a.total_cmp(b))
    }

    /// Seconds of a shape among others, which fill the last round of CTAs.
    fn seconds(&self, shape: usize, candidate: usize) -> f64 {
        self.loads[shape][candidate].seconds(&self.schedules[candidate], 1.0)
    }

    /// The best candidate for a shape among others.
    fn own(&self, shape: usize) -> Option<usize> {
        let seconds = |candidate: &usize| self.seconds(shape, *candidate);
        (0..self.schedules.len()).min_by(|a, b| seconds(a).total_cmp(&seconds(b)))
    }
}

/// A batch in parts.
pub(super) struct Parts {
    /// The part of each shape.
    pub(super) of: Vec<usize>,
    /// A schedule for each kernel, of each part.
    pub(super) schedules: Vec<Vec<Schedule>>,
}

/// The same, by numbers of candidates.
struct Split {
    of: Vec<usize>,
    choices: Vec<Vec<usize>>,
    seconds: f64,
}

impl Parts {
    /// As few parts as take about the least time; `None` if there is no shape, or a kernel has no candidate.
    pub(super) fn new(kernels: &[Candidates]) -> Option<Self> {
        let shapes = kernels.first()?.loads.len();
        let mut split = Split::new(kernels, vec![0; shapes], 1)?;
        let mut own: Vec<Vec<usize>> = vec![];
        for shape in 0..shapes {
            let choice: Vec<_> =
                kernels.iter().map(|kernel| kernel.own(shape)).collect::<Option<_>>()?;
            if !own.contains(&choice) {
                own.push(choice);
            }
        }
        while split.choices.len() < MOST {
            let with = |choice: &Vec<usize>| {
                let choices: Vec<_> = split.choices.iter().chain([choice]).collect();
                let of = (0..shapes).map(|shape| cheapest(kernels, &choices, shape));
                Split::new(kernels, of.collect(), choices.len())
            };
            let further = own.iter().filter_map(with);
            match further.min_by(|a, b| a.seconds.total_cmp(&b.seconds)) {
                Some(further) if further.seconds < split.seconds * (1.0 - GAIN) => split = further,
                _ => break,
            }
        }
        let schedules = |choice: &Vec<usize>| {
            kernels.iter().zip(choice).map(|(kernel, number)| kernel.schedules[*number]).collect()
        };
        Some(Self { schedules: split.choices.iter().map(schedules).collect(), of: split.of })
    }
}

impl Split {
    /// The best choice for each part; `None` if a part has no shape.
    fn new(kernels: &[Candidates], of: Vec<usize>, parts: usize) -> Option<Self> {
        let (mut choices, mut seconds) = (vec![], 0.0);
        for part in 0..parts {
            let shapes: Vec<_> = (0..of.len()).filter(|shape| of[*shape] == part).collect();
            if shapes.is_empty() {
                return None;
            }
            let best: Vec<_> =
                kernels.iter().map(|kernel| kernel.best(&shapes)).collect::<Option<_>>()?;
            seconds += best.iter().map(|(_, seconds)| seconds + LAUNCH).sum::<f64>();
            choices.push(best.into_iter().map(|(candidate, _)| candidate).collect());
        }
        Some(Self { of, choices, seconds })
    }
}

/// The part whose schedules take least time for a shape.
fn cheapest(kernels: &[Candidates], choices: &[&Vec<usize>], shape: usize) -> usize {
    let seconds = |part: &usize| -> f64 {
        let of = |(kernel, choice): (&Candidates, &usize)| kernel.seconds(shape, *choice);
        kernels.iter().zip(choices[*part]).map(of).sum()
    };
    (0..choices.len()).min_by(|a, b| seconds(a).total_cmp(&seconds(b))).unwrap_or(0)
}
