//! From a problem to the schedules of its backward pass.

use std::sync::{Arc, LazyLock, Mutex};

use super::{How, Shape, candidates_of, chosen, fastest, schedules, splits, timeline};
use crate::choices::Choices;
use crate::native::dense;
use crate::native::slopes::{self, Blocks};
use crate::native::sm90::{Element, Gradients, Pass, Schedule};
use crate::tiling::Tiling;
use crate::{KeyValue, MAX_RANK, Operands, Problem};

#[cfg(test)]
mod tests;
mod time;

/// Most bytes of memory for slopes that [`plan_backward`] takes for the heads of a launch, of which two may have slopes at the same time.
pub const SLOPES_BYTES: usize = 1 << 30;
/// Bytes of slopes from which on they are kept.
const LEAST_SLOPES: usize = 64 << 20;
/// Most of the time of other kernels that ones with slopes are expected to take: they have taken 1 to 11 % more than expected.
const MOST_TIME: f64 = 0.93;
/// Kernels of several axes of which that is asked: the first ones by [`estimate`](super::estimate).
const MODELLED: usize = 4;
/// Share of the time by which plans may differ that are as fast.
const AS_FAST: f64 = 0.005;
/// Share of the time that more memory has to save, beyond [`SLOPES_BYTES`].
const MORE_MEMORY: f64 = 0.02;
/// Numbers of heads at once that are tried: the largest ones, or beyond [`SLOPES_BYTES`] the smallest ones.
const TRIED: usize = 4;

/// Accumulators of the gradient of queries or keys in one kernel, where vectors are longer than 128.
const SLICE: usize = 128;

/// The kernels of a backward pass, each with some of its gradients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackwardPlan {
    /// For the gradient of the queries.
    pub queries: Vec<Schedule>,
    /// For the gradients of keys and values.
    pub keys: Vec<Schedule>,
    /// For those of additional keys and values, which are the keys of a dense problem in one axis.
    pub additional: Vec<Schedule>,
    /// Where `keys` leave slopes in memory that `queries` sum.
    pub slopes: Option<Slopes>,
}

/// Slopes that one kernel leaves in memory for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slopes {
    /// (sample, key head) pairs of a launch: a divisor of their number. Two such groups have memory at the same time, if there are several.
    pub heads_at_once: usize,
    /// What computes slopes itself for the gradient of the queries, where none are kept.
    pub queries: Vec<Schedule>,
}

impl BackwardPlan {
    /// All kernels, in the order of their launches, but that slopes are left before they are summed.
    pub fn schedules(&self) -> impl Iterator<Item = &Schedule> {
        self.queries.iter().chain(&self.keys).chain(&self.additional)
    }

    /// The same by kernels that keep the slopes of so many (sample, key head) pairs a launch, which has to divide their number; `None` where
    /// they cannot.
    pub fn with_slopes(mut self, problem: &Problem, heads_at_once: usize) -> Option<Self> {
        let ([of_queries], [of_keys]) = (&self.queries[..], &mut self.keys[..]) else {
            return None;
        };
        let fits = divides_heads(problem, heads_at_once)
            && of_keys.gradients.value
            && of_keys.element == of_queries.element
            && of_keys.can_keep_slopes(problem);
        let summing = of_keys.summing_slopes(problem).filter(|_| fits)?;
        of_keys.keeps_slopes = true;
        let queries = std::mem::replace(&mut self.queries, vec![summing]);
        Some(Self { slopes: Some(Slopes { heads_at_once, queries }), ..self })
    }

    /// Plans that keep slopes, by each kernel for keys that can: see [`with_slopes`](Self::with_slopes).
    pub fn all_with_slopes(&self, problem: &Problem, heads_at_once: usize) -> Vec<Self> {
        let [keys] = &self.keys[..] else { return vec![] };
        let all = backward_candidates(problem, keys.element, Pass::Keys, keys.gradients);
        let with = |keys| Self { keys: vec![keys], ..self.clone() };
        all.into_iter().filter_map(|keys| with(keys).with_slopes(problem, heads_at_once)).collect()
    }

    /// (sample, key head) pairs of a launch whose slopes are kept; `None` where none are.
    fn heads_at_once(&self) -> Option<usize> {
        self.slopes.as_ref().map(|slopes| slopes.heads_at_once)
    }

    /// Bytes of device memory for slopes, besides [`backward_workspace`](crate::native::backward_workspace): two for each pair of a query
    /// and a key that see each other, and of those beside them in blocks of 64 by 64, of the heads that are there at once.
    pub fn slopes_workspace(&self, problem: &Problem) -> usize {
        let heads = problem.batch * problem.heads_kv;
        let lanes = self.slopes.as_ref().map_or(0, |kept| slopes::lanes(heads, kept.heads_at_once));
        lanes * self.slopes_of_launch(problem)
    }

    /// Those of a launch.
    pub(in crate::native::sm90) fn slopes_of_launch(&self, problem: &Problem) -> usize {
        let (Some(slopes), Some(keys)) = (&self.slopes, self.keys.first()) else { return 0 };
        let blocks = Blocks::of(problem, &keys.tiling());
        blocks.map_or(0, |blocks| slopes.heads_at_once * blocks.bytes(problem))
    }

    /// Whether kernels keep slopes if and only if there is something said of them.
    #[cfg(feature = "cuda")]
    pub(in crate::native::sm90) fn is_consistent(&self, problem: &Problem) -> bool {
        let own = || self.queries.iter().chain(&self.keys);
        match &self.slopes {
            None => own().all(|schedule| !schedule.keeps_slopes),
            Some(Slopes { heads_at_once, .. }) => {
                own().all(|schedule| schedule.keeps_slopes)
                    && divides_heads(problem, *heads_at_once)
            }
        }
    }

    /// The same with slopes in nobody's memory.
    pub fn without_slopes(mut self) -> Self {
        if let Some(slopes) = self.slopes.take() {
            self.queries = slopes.queries;
            self.keys.iter_mut().for_each(|schedule| schedule.keeps_slopes = false);
        }
        self
    }

    /// The same with a kernel of its own for the statistics.
    pub fn without_own_statistics(mut self) -> Self {
        self.queries.iter_mut().for_each(|schedule| schedule.makes_statistics = false);
        self
    }

    /// Those of its kernels that sum a gradient that somebody wants.
    pub fn wanted(&self, wanted: &Operands<bool>) -> Self {
        let Operands { query, key, value, additional, bias } = *wanted;
        if self.slopes.is_some() && !(query && (key || value)) {
            return self.clone().without_slopes().wanted(wanted);
        }
        let bias = bias.unwrap_or(false);
        let of = |kernels: &[Schedule], [key, value]: [bool; 2]| -> Vec<Schedule> {
            let is_wanted = |schedule: &&Schedule| {
                let Gradients { width, value: with_value, bias: with_bias, .. } =
                    schedule.gradients;
                width > 0 && key || with_value && value || with_bias && bias
            };
            kernels.iter().filter(is_wanted).copied().collect()
        };
        let mut queries = of(&self.queries, [query, false]);
        for schedule in &mut queries {
            schedule.gradients.bias &= bias;
            schedule.sum_slots = if bias { schedule.sum_slots } else { 1 };
        }
        Self {
            queries,
            keys: of(&self.keys, [key, value]),
            additional: additional
                .map_or(vec![], |KeyValue { key, value }| of(&self.additional, [key, value])),
            slopes: self.slopes.clone(),
        }
    }

    /// All kernels, each with what it computes: `problem`, or for [`additional`](Self::additional) the
    /// dense one.
    pub fn kernels(&self, problem: &Problem) -> Vec<(Schedule, Problem)> {
        let dense = dense(problem).unwrap_or(*problem);
        let own = self.queries.iter().chain(&self.keys).map(|schedule| (*schedule, *problem));
        own.chain(self.additional.iter().map(|schedule| (*schedule, dense))).collect()
    }
}

/// For each kernel of the backward pass the schedule with the least [`estimate`](super::estimate)d time,
/// among those with the tiles that are asked for where there are some; `None` where
/// [`unsupported`](super::unsupported) says why not.
///
/// ```rust
/// use burn_natten_kernels::catalogue;
/// use burn_natten_kernels::native::sm90::{Element, Pass, plan_backward};
///
/// let problem = catalogue::find("nat-56").expect("is in the catalogue").problem;
/// let plan = plan_backward(&problem, Element::Bf16, None).expect("a head_dim of 64 is supported");
/// assert_eq!((plan.queries.len(), plan.keys.len(), plan.additional.len()), (1, 1, 0));
/// assert_eq!(plan.keys[0].pass, Pass::Keys);
/// ```
pub fn plan_backward(
    problem: &Problem,
    element: Element,
    tiling: Option<Tiling>,
) -> Option<BackwardPlan> {
    plan_backward_within(problem, element, tiling, SLOPES_BYTES)
}

/// The same with at most so many bytes of slopes for the heads of a launch in place of [`SLOPES_BYTES`]: none with 0. More than
/// `SLOPES_BYTES` are taken where fewer are not enough, and for as few key heads as are as fast as more.
pub fn plan_backward_within(
    problem: &Problem,
    element: Element,
    tiling: Option<Tiling>,
    slopes_bytes: usize,
) -> Option<BackwardPlan> {
    let best = |problem: &Problem, pass: Pass, gradients: Gradients| {
        let all = backward_candidates(problem, element, pass, gradients);
        let all: Vec<_> = all.into_iter().map(|one| splits::split(one, problem)).collect();
        let tiled = all.iter().filter(|schedule| Some(schedule.tiling()) == tiling).copied();
        fastest(tiled.collect(), problem).or_else(|| fastest(all, problem))
    };
    let of = |problem: &Problem, pass: Pass| {
        let kernels = kernels(problem, pass);
        kernels.into_iter().map(|gradients| best(problem, pass, gradients)).collect::<Option<_>>()
    };
    let additional = match dense(problem) {
        Some(dense) => of(&dense, Pass::Keys)?,
        None => vec![],
    };
    let mut queries = of(problem, Pass::Queries)?;
    for schedule in &mut queries {
        schedule.makes_statistics = schedule.can_make_statistics(problem);
    }
    let plan = BackwardPlan { queries, keys: of(problem, Pass::Keys)?, additional, slopes: None };
    Some(by_slopes(&plan, problem, tiling.is_some(), slopes_bytes).unwrap_or(plan))
}

/// Whether all (sample, key head) pairs come in groups of so many.
fn divides_heads(problem: &Problem, heads_at_once: usize) -> bool {
    heads_at_once > 0 && (problem.batch * problem.heads_kv).is_multiple_of(heads_at_once)
}

/// The same by slopes, if that is faster: by the same kernel for keys in one axis, or where its tiles are asked for, or by any other.
fn by_slopes(
    plan: &BackwardPlan,
    problem: &Problem,
    has_tiles: bool,
    slopes_bytes: usize,
) -> Option<BackwardPlan> {
    let longest = problem.head_dim.max(problem.head_dim_v);
    if !(65..=SLICE).contains(&longest) {
        return None;
    }
    let mut plans = match problem.rank() {
        2.. if !has_tiles => plan.all_with_slopes(problem, 1),
        _ => Vec::from_iter(plan.clone().with_slopes(problem, 1)),
    };
    plans.retain(|plan| !numbers_of_heads(problem, plan, 0, slopes_bytes).is_empty());
    let estimated = |plan: &BackwardPlan| -> f64 {
        plan.schedules().map(|one| super::estimate(one, problem)).sum()
    };
    plans.sort_by_cached_key(|plan| timeline::nanoseconds(estimated(plan)));
    plans.truncate(MODELLED);
    if plans.is_empty() {
        return None;
    }
    let most = MOST_TIME * time::seconds(plan, problem);
    let best = |beyond: usize, most_bytes: usize, is_better: fn(&Timed, &Timed) -> bool| {
        let of = |plan: &BackwardPlan, number: usize| {
            let mut plan = plan.clone();
            plan.slopes.iter_mut().for_each(|slopes| slopes.heads_at_once = number);
            plan
        };
        let all = plans.iter().flat_map(|plan| {
            let numbers = numbers_of_heads(problem, plan, beyond, most_bytes);
            numbers.into_iter().map(move |number| of(plan, number))
        });
        let timed = all.map(|plan| (time::seconds(&plan, problem), plan));
        let timed = timed.filter(|(time, _)| *time < most);
        timed.reduce(|best, other| if is_better(&other, &best) { other } else { best })
    };
    // As many heads as there is memory for are as few launches; more memory is for no more than has to be.
    let within = best(0, slopes_bytes.min(SLOPES_BYTES), |(time, of), (best, than)| {
        let has_more = of.keys == than.keys && of.heads_at_once() > than.heads_at_once();
        *time < if has_more { best * (1.0 + AS_FAST) } else { *best }
    });
    let beyond = || {
        best(SLOPES_BYTES, slopes_bytes, |(time, _), (best, _)| *time < best * (1.0 - MORE_MEMORY))
    };
    within.or_else(beyond).map(|(_, plan)| plan)
}

/// Seconds that a plan is expected to take, and the plan.
type Timed = (f64, BackwardPlan);

/// Numbers of (sample, key head) pairs of a launch whose slopes take more than some bytes and at most others, if slopes are worth it. The plan is that of one
/// pair at once.
fn numbers_of_heads(
    problem: &Problem,
    plan: &BackwardPlan,
    beyond: usize,
    most_bytes: usize,
) -> Vec<usize> {
    let heads = problem.batch * problem.heads_kv;
    let bytes = plan.slopes_of_launch(problem);
    if bytes == 0 || heads * bytes < LEAST_SLOPES {
        return vec![];
    }
    let mut numbers: Vec<_> = (beyond / bytes + 1..=(most_bytes / bytes).min(heads))
        .filter(|at_once| heads.is_multiple_of(*at_once))
        .collect();
    match beyond {
        0 => _ = numbers.drain(..numbers.len().saturating_sub(TRIED)),
        _ => numbers.truncate(TRIED),
    }
    numbers
}

/// What runs: what [`plan_backward_within()`] gives, chosen once for a problem.
///
/// # Errors
///
/// Why there is none.
pub fn planned_backward(
    problem: &Problem,
    element: Element,
    tiling: Option<Tiling>,
    slopes_bytes: usize,
) -> Result<Arc<BackwardPlan>, String> {
    static KNOWN: Choices<(How, usize), Arc<BackwardPlan>> = LazyLock::new(Mutex::default);
    chosen(&KNOWN, problem, ((element, tiling), slopes_bytes), || {
        plan_backward_within(problem, element, tiling, slopes_bytes).map(Arc::new)
    })
}

/// What each kernel of a pass sums.
pub(super) fn kernels(problem: &Problem, pass: Pass) -> Vec<Gradients> {
    let Problem { head_dim, head_dim_v, .. } = *problem;
    let with_value = pass == Pass::Keys;
    let bias = pass == Pass::Queries && problem.has_bias;
    if head_dim.max(head_dim_v) <= SLICE {
        return vec![Gradients { start: 0, width: head_dim, value: with_value, bias }];
    }
    let slices = (0..head_dim).step_by(SLICE).map(|start| Gradients {
        start,
        width: SLICE.min(head_dim - start),
        value: false,
        // Each slice has all slopes: one of them sums them.
        bias: bias && start == 0,
    });
    slices.chain(with_value.then_some(Gradients { value: true, ..Gradients::NONE })).collect()
}

/// Every schedule that computes these gradients of the problem.
pub fn backward_candidates(
    problem: &Problem,
    element: Element,
    pass: Pass,
    gradients: Gradients,
) -> Vec<Schedule> {
    candidates_of(problem, element, pass, gradients, &shapes(problem, pass, gradients))
}

/// Whether there are schedules for each of a problem's kernels, which is known but for a bias with long vectors.
pub(super) fn has_schedules(problem: &Problem) -> bool {
    [Pass::Queries, Pass::Keys].into_iter().all(|pass| {
        kernels(problem, pass).into_iter().all(|gradients| {
            let shapes = shapes(problem, pass, gradients);
            !schedules(problem, Element::F16, pass, gradients, &shapes).is_empty()
        })
    })
}

/// The shapes for a problem's vectors, from registers and shared memory.
fn shapes(problem: &Problem, pass: Pass, gradients: Gradients) -> Vec<Shape> {
    let dim = problem.head_dim.max(problem.head_dim_v);
    let shape = Shape::new;
    let late =
        |warpgroups, blocks, ctas| Shape { is_late: true, ..shape(warpgroups, blocks, ctas) };
    match (pass, dim) {
        (Pass::Keys, ..=64) => vec![late(1, 1, 2)],
        // With additional tokens, three CTAs have too few registers.
        (_, ..=64) if gradients.bias && problem.additional > 0 => vec![late(1, 1, 2)],
        // The sums of a large bias leave room for two CTAs.
        (_, ..=64) if gradients.bias => vec![late(1, 1, 2), late(1, 1, 3)],
        // Three warpgroups that share keys are faster where none of them skips a step and tiles are long.
        (_, ..=64) if is_dense(problem) => {
            vec![shape(3, 1, 1), shape(1, 2, 2), late(1, 1, 3)]
        }
        (_, ..=64) => vec![shape(1, 2, 2), late(1, 1, 3)],
        (Pass::Keys, 65..=128) => vec![late(2, 1, 1)],
        (_, 65..=128) => vec![shape(2, 1, 1)],
        _ => vec![shape(1, 1, 1)],
    }
}

/// Whether every query sees every key of a line, and nothing else.
fn is_dense(problem: &Problem) -> bool {
    let axis = problem.axes[MAX_RANK - 1];
    problem.rank() == 1 && axis.is_dense() && axis.is_full() && problem.additional == 0
}

/// Whether the compiler runs out of registers without the arithmetic of strides, for reasons of its own.
pub(super) fn needs_strides(schedule: &Schedule, problem: &Problem) -> bool {
    schedule.pass == Pass::Keys
        && schedule.rank == 2
        && schedule.is_dilated
        && problem.head_dim.max(problem.head_dim_v) > 64
}
