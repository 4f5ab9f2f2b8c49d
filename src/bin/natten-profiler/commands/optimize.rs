//! `--optimize`: every schedule that can run, measured, the fastest first.

use std::time::Duration;

use burn_natten::plan::{Candidate, Explanation};
use burn_natten_kernels::MAX_RANK;

use crate::args::Args;
use crate::failure::Failure;
use crate::found::{Trial, cost};
use crate::measure::{self, Bench};
use crate::print::{json, measured};
use crate::request::Request;
use crate::units::{axes, seconds};

/// A schedule whose passes take longer than this at the very least is not tried.
const LIMIT: f64 = 20.0;
/// Rest of the device before a sample: there may be a hundred schedules.
const IDLE: Duration = Duration::from_millis(50);

pub fn run(request: &Request, args: &Args) -> Result<String, Failure> {
    let bench = Bench::open(request, args)?.with_rest(IDLE);
    let candidates = all(request.explain(args, bench.target())?);
    let bar = measure::progress((candidates.len() * args.passes().len()) as u64 + 1);
    bar.set_message("peaks of the device");
    let machine = bench.machine();
    bar.inc(1);

    let mut trials: Vec<Trial> = Vec::new();
    for candidate in &candidates {
        let result = too_slow(candidate, args).and_then(|()| {
            let mut measurements = Vec::new();
            for pass in args.passes() {
                bar.set_message(format!("{:?}, {}", candidate.tier, pass.name()));
                let measured = bench.measure(candidate, *pass);
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

    Ok(if args.json {
        json::text(json::trials(request, &machine, &trials))
    } else {
        measured::trials(request, &machine, args.passes(), &trials)
    })
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
