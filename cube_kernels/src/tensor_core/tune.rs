//! Blueprints chosen by measurement.
//!
//! CubeCL's tuner times the few that the model takes for the fastest, on the tensors of the first call, and remembers which
//! one was; where CubeCL is built with persistence it does so across processes. What is remembered is the place in a list that
//! stands in the key in full, next to the problem and the device: so a winner never runs where it was not measured,
//! and lists of another version find nothing.

use std::sync::Arc;

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::tune::{LocalTuner, Tunable, TunableSet, TuneGroup, local_tuner};

use super::{Blueprint, Capability, estimate};
use crate::{Axis, KernelError, Problem};

/// Most blueprints that are timed; the first use of each compiles it.
const MOST: usize = 4;
/// Blueprints that are expected to take longer than the first one by this factor are not timed.
const SLOWEST: f64 = 1.6;

/// Launches the kernel of a blueprint on some tensors.
type Launch = Arc<dyn Fn(&Blueprint) -> Result<(), KernelError> + Send + Sync>;

/// Blueprints for some tensors.
#[derive(Clone)]
struct Attempt {
    key: String,
    blueprints: Arc<Vec<Blueprint>>,
    launch: Launch,
}

static TUNER: LocalTuner<String, String> = local_tuner!("attention");

/// The problem that stands for `problem` and others like it: the batch and the lengths of axes are rounded up to powers of
/// two, so that not every length is measured. It has the same blueprints.
pub(super) fn representative(problem: &Problem) -> Problem {
    let rounded = |length: usize| if length > 1 { length.next_power_of_two() } else { length };
    let axes = problem.axes.map(|axis| {
        let (queries, keys) = (rounded(axis.queries), rounded(axis.keys));
        if !axis.is_dense() {
            return Axis { queries, keys, ..axis };
        }
        // Kernels with an origin and without one are others.
        let origin = rounded(axis.origin.unsigned_abs()) as isize * axis.origin.signum();
        Axis::dense(queries, keys, axis.is_causal).with_origin(origin)
    });
    problem.with_axes(axes).with_batch(problem.batch.next_power_of_two())
}

/// The blueprints that are worth a measurement, the best by its estimate first: of each shape of cube the best, and of the
/// first shape the second best.
pub(super) fn shortlist(mut blueprints: Vec<Blueprint>, problem: &Problem) -> Vec<Blueprint> {
    blueprints.sort_by(|a, b| estimate(a, problem).total_cmp(&estimate(b, problem)));
    let shape = |b: &Blueprint| (b.planes, b.blocks, b.columns(), b.is_paired);
    let mut chosen: Vec<Blueprint> = vec![];
    for blueprint in blueprints {
        let same = chosen.iter().filter(|other| shape(other) == shape(&blueprint)).count();
        let is_first = chosen.first().is_none_or(|first| shape(first) == shape(&blueprint));
        let is_slow = chosen
            .first()
            .is_some_and(|best| estimate(&blueprint, problem) > SLOWEST * estimate(best, problem));
        if chosen.len() < MOST && !is_slow && (same == 0 || is_first && same == 1) {
            chosen.push(blueprint);
        }
    }
    chosen
}

/// The one of some blueprints that is the fastest for tensors of `problem`; the first one, which the model chooses, where
/// nothing can be measured.
///
/// # Errors
///
/// What `launch` says of the first blueprint; then nothing was measured.
pub(super) fn fastest(
    client: &Client,
    capability: &Capability,
    problem: &Problem,
    dtype: ElemType,
    blueprints: Vec<Blueprint>,
    launch: Launch,
) -> Result<Blueprint, KernelError> {
    let first = blueprints[0];
    if blueprints.len() == 1 {
        return Ok(first);
    }
    let device = client.properties().identity.fingerprint.clone();
    let blueprints = Arc::new(blueprints);
    let key = key(capability, problem, dtype, &blueprints);
    let set = TUNER.init(&device, tunables);
    let known = |key: &String| TUNER.fastest_identity(&device, &set, key);
    let mut place = known(&key);
    if place.is_none() {
        launch(&first)?;
        let attempt = Attempt { key: key.clone(), blueprints: blueprints.clone(), launch };
        let set = set.clone();
        if succeeds(|| TUNER.execute(&device, client, set, attempt)) {
            place = known(&key);
        }
    }
    Ok(place.and_then(|place| blueprints.get(place).copied()).unwrap_or(first))
}

/// Whether a measurement succeeds. The tuner panics where no kernel can be timed; callers then take, and remember, what the
/// model chooses.
fn succeeds(measure: impl FnOnce()) -> bool {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(measure));
    if result.is_err() {
        log::warn!("no tensor-core kernel could be timed: the cost model's choice runs");
    }
    result.is_ok()
}

/// A tunable for each place of a list.
fn tunables() -> TunableSet<String, Attempt, (), usize> {
    let group = TuneGroup::new("blueprints", |_: &String| 0);
    (0..MOST).fold(
        TunableSet::new_cloning_inputs(|attempt: &Attempt| attempt.key.clone()),
        |set, place| {
            let run = move |attempt: Attempt| match attempt.blueprints.get(place) {
                Some(blueprint) => (attempt.launch)(blueprint).map_err(|error| error.to_string()),
                None => Err(format!("there are {} blueprints", attempt.blueprints.len())),
            };
            let priority = move |key: &String| if place < length(key) { 0 } else { -1 };
            set.with(Tunable::identified(place, run).group(&group, priority))
        },
    )
}

/// All that a measurement depends on, the number of blueprints first. The scale is none of it.
fn key(
    capability: &Capability,
    problem: &Problem,
    dtype: ElemType,
    blueprints: &[Blueprint],
) -> String {
    let Problem { batch, heads, heads_kv, head_dim, head_dim_v, additional, axes, .. } = *problem;
    let sizes = [batch, heads, heads_kv, head_dim, head_dim_v, additional];
    let names: Vec<_> = blueprints.iter().map(|b| format!("{b} v{}", b.vector)).collect();
    let names = names.join(", ");
    format!("{} of {names}; {sizes:?} {axes:?} {dtype:?} {capability:?}", blueprints.len())
}

/// The number of blueprints that a key was made of.
fn length(key: &str) -> usize {
    key.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use cubecl::ir::FloatKind;

    use super::*;
    use crate::catalogue;
    use crate::tensor_core::{Pass, backward_candidates, candidates, plan, widest_vector};

    #[test]
    fn lists_begin_with_what_the_model_chooses() {
        let capability = Capability::cuda(90).expect("Hopper");
        for entry in catalogue::all() {
            let problem = representative(&entry.problem);
            let vector = widest_vector(&problem);
            let list = shortlist(candidates(&problem, &capability, vector), &problem);
            assert_eq!(list.first(), plan(&problem, &capability, vector).as_ref());
            for pass in [Pass::Queries, Pass::Keys] {
                let all = backward_candidates(&problem, &capability, vector, pass);
                let list = shortlist(all, &problem);
                assert!((1..=MOST).contains(&list.len()), "{}: {list:?}", entry.name);
            }
            assert!(list.iter().all(|blueprint| blueprint.fits(&entry.problem)), "{}", entry.name);
        }
    }

    #[test]
    fn a_measurement_that_fails_is_no_panic() {
        assert!(succeeds(|| {}));
        assert!(!succeeds(|| panic!("At least one kernel has to succeed.")));
    }

    #[test]
    fn keys_tell_apart_what_is_measured_apart() {
        let capability = Capability::cuda(90).expect("Hopper");
        let problem = catalogue::all()[0].problem;
        let list = shortlist(candidates(&problem, &capability, 8), &problem);
        let f16 = ElemType::Float(FloatKind::F16);
        let of = |problem: &Problem, list: &[Blueprint]| key(&capability, problem, f16, list);
        let whole = of(&problem, &list);
        assert_eq!(length(&whole), list.len());
        assert_ne!(whole, of(&problem, &list[1..]));
        assert_ne!(whole, of(&problem.with_heads(problem.heads + 1), &list));
        assert_eq!(whole, of(&problem.with_scale(3.0), &list));
    }

    #[test]
    fn lengths_are_not_told_apart_and_windows_are() {
        let window = |length| Axis::neighborhood(length, 7);
        let all = catalogue::all();
        let dense = Axis::dense(1000, 1500, true);
        let problem = all[0].problem.with_axes([window(90), dense]).with_batch(3);
        let like = representative(&problem);
        assert_eq!(like.batch, 4);
        let rounded = Axis::dense(1024, 2048, true);
        assert_eq!(like.axes, [Axis::UNIT, window(128), rounded.with_origin(512)]);
        assert_eq!(like.rank(), problem.rank());
    }

    #[test]
    fn where_queries_stand_is_told_apart_from_where_keys_do() {
        let problem = catalogue::all()[0].problem;
        // Lengths that become equal, and equal ones that become unequal or stand elsewhere.
        for (queries, keys) in [(1000, 1001), (1001, 1000), (600, 600), (500, 600)] {
            for origin in [-3, 0, 1, 100] {
                let axis = Axis::dense(queries, keys, true).with_origin(origin);
                let problem = problem.with_axes([axis]);
                let like = representative(&problem);
                assert_eq!(like.has_origin(), problem.has_origin(), "{axis:?}");
            }
        }
    }
}
