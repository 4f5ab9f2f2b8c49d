//! `--optimize`: every schedule that can run, measured, the fastest first.

use std::time::Duration;

use burn_natten::plan::{Candidate, Explanation};
use burn_natten::profile::{Repeats, measure_peaks};
use burn_natten_kernels::MAX_RANK;

use crate::args::Args;
use crate::dry_run::target_of;
use crate::measure::{Measurement, cost, describe_peaks, measure, open, progress, repeats, share};
use crate::request::Request;
use crate::units::{axes, duration, ratio, seconds};
use crate::{Failure, device, json, table};

/// A schedule whose passes take longer than this at the very least is not tried.
const LIMIT: f64 = 20.0;
/// Rest of the device before a sample: there may be a hundred schedules.
const IDLE: Duration = Duration::from_millis(50);

/// A candidate and what came of it.
pub struct Trial {
    pub candidate: Candidate,
    /// What to pass to get it.
    pub flags: String,
    /// One measurement a pass, or why there is none.
    pub result: Result<Vec<Measurement>, String>,
}

impl Trial {
    /// The medians of all passes together.
    pub fn total(&self) -> Option<Duration> {
        let measurements = self.result.as_ref().ok()?;
        Some(measurements.iter().map(|measurement| measurement.timing.median()).sum())
    }
}

pub fn run(request: &Request, args: &Args) -> Result<String, Failure> {
    let device = open(args)?;
    let explanation = request.explain(args, target_of(args, &device))?;
    let candidates = all(explanation);
    let repeats = Repeats { idle: IDLE, ..repeats(args) };
    let bar = progress((candidates.len() * args.passes().len()) as u64 + 1);
    bar.set_message("peaks of the device");
    let peaks = measure_peaks(&device, request.dtype.dtype());
    bar.inc(1);

    let mut trials: Vec<Trial> = Vec::new();
    for candidate in &candidates {
        let result = too_slow(candidate, args).and_then(|()| {
            let mut measurements = Vec::new();
            for pass in args.passes() {
                bar.set_message(format!("{:?}, {}", candidate.tier, pass.name()));
                let measured = measure(request, candidate, *pass, &device, &repeats);
                measurements.push(measured.map_err(|error| error.to_string())?);
                bar.inc(1);
            }
            Ok(measurements)
        });
        let flags = flags(request, candidate, &candidates);
        trials.push(Trial { candidate: candidate.clone(), flags, result });
    }
    bar.finish_and_clear();
    // What failed comes last.
    trials.sort_by_key(|trial| (trial.total().is_none(), trial.total()));

    let name = device::describe(args.device, &device);
    if args.json {
        return Ok(json::text(json::trials(request, &name, &peaks, &trials)));
    }
    let facts = [
        ("problem", request.describe()),
        ("device", name),
        ("peaks", describe_peaks(request, &peaks)),
    ];
    let mut header = vec!["kernel", "what to pass"];
    header.extend(args.passes().iter().map(|pass| pass.name()));
    header.extend(["total", "to the best", "share of peak"]);
    let mut table = table::new(&header, 2);
    let best = trials.first().and_then(Trial::total);
    for trial in &trials {
        let name = format!("{:?}, {}", trial.candidate.tier, trial.candidate.schedule);
        let mut cells = vec![name, trial.flags.clone()];
        match (&trial.result, trial.total(), best) {
            (Ok(measurements), Some(total), Some(best)) => {
                cells.extend(measurements.iter().map(|one| duration(one.timing.median())));
                cells.push(duration(total));
                cells.push(ratio(total.as_secs_f64() / best.as_secs_f64()));
                let shares: Vec<_> = measurements.iter().map(|one| share(one, &peaks)).collect();
                cells.push(shares.join(", "));
            }
            (Err(reason), ..) => cells.push(reason.clone()),
            _ => {}
        }
        table.add_row(cells);
    }
    Ok(format!("{}\n{table}", table::facts(&facts)))
}

fn all(explanation: Explanation) -> Vec<Candidate> {
    [explanation.chosen].into_iter().chain(explanation.alternatives).collect()
}

fn too_slow(candidate: &Candidate, args: &Args) -> Result<(), String> {
    let expected: f64 = args.passes().iter().map(|pass| cost(*pass, candidate).seconds).sum();
    if expected <= LIMIT {
        return Ok(());
    }
    Err(format!("not tried, would take {} at least", seconds(expected)))
}

/// The strategy, and the tiles where that leaves a choice.
fn flags(request: &Request, candidate: &Candidate, all: &[Candidate]) -> String {
    let strategy = format!("--strategy {}", candidate.strategy);
    let schedules = all.iter().filter(|other| other.tier == candidate.tier).count();
    match candidate.tiling {
        Some(tiling) if schedules > 1 => {
            let own = MAX_RANK - request.problem.rank();
            let [q_tile, kv_tile] =
                [tiling.q_tile, tiling.kv_tile].map(|tile| axes(&tile[own..], " "));
            format!("{strategy} --q-tile {q_tile} --kv-tile {kv_tile}")
        }
        _ => strategy,
    }
}

#[cfg(test)]
mod tests {
    use burn_natten::plan::Target;

    use super::*;
    use crate::args::{Parsed, parse};

    #[test]
    fn what_takes_too_long_is_not_tried() {
        let Ok(Parsed::Run(args)) = parse(["natten-profiler", "--problem", "dense-4k"]) else {
            panic!("the flags are refused");
        };
        let request = Request::new(&args).expect("a problem of the catalogue");
        let candidates = all(request.explain(&args, Target::Cpu).expect("a plan"));
        let refused: Vec<_> =
            candidates.iter().map(|candidate| too_slow(candidate, &args).err()).collect();
        assert_eq!(refused[0], None);
        let reason = refused[1].as_deref().expect("the Reference tier moves terabytes");
        assert!(reason.starts_with("not tried, would take "), "{reason}");
    }
}
