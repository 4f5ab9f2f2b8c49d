//! Measurements as tables.

use burn_natten::profile::{Pass, Peaks};
use comfy_table::Table;

use super::table;
use crate::found::{Machine, Measurement, Trial};
use crate::request::Request;
use crate::units::{duration, ratio, si};

/// What a plain run measures.
pub fn measurements(request: &Request, machine: &Machine, measurements: &[Measurement]) -> String {
    let header = [
        "kernel",
        "pass",
        "calls",
        "median",
        "quartiles",
        "FLOP/s",
        "B/s",
        "share of peak",
        "memory",
    ];
    let mut table = table::new(&header, 2);
    for measurement in measurements {
        let (low, high) = measurement.timing.quartiles();
        table.add_row([
            measurement.kernel(),
            measurement.pass.name().to_string(),
            measurement.timing.calls().to_string(),
            duration(measurement.timing.median()),
            format!("{} to {}", duration(low), duration(high)),
            si(measurement.flops, ""),
            si(measurement.bytes, ""),
            share(measurement, &machine.peaks),
            si(measurement.memory as f64, "B"),
        ]);
    }
    with_facts(request, machine, &table)
}

/// What `--optimize` measures, the fastest first.
pub fn trials(request: &Request, machine: &Machine, passes: &[Pass], trials: &[Trial]) -> String {
    let mut header = vec!["kernel", "what to pass"];
    header.extend(passes.iter().map(|pass| pass.name()));
    header.extend(["total", "to the best", "share of peak"]);
    let mut table = table::new(&header, 2);
    let best = trials.first().and_then(Trial::total);
    for trial in trials {
        let name = format!("{:?}, {}", trial.candidate.tier, trial.candidate.schedule);
        let mut cells = vec![name, trial.flags.clone()];
        match (&trial.result, trial.total(), best) {
            (Ok(measurements), Some(total), Some(best)) => {
                cells.extend(measurements.iter().map(|one| duration(one.timing.median())));
                cells.push(duration(total));
                cells.push(ratio(total.as_secs_f64() / best.as_secs_f64()));
                let shares: Vec<_> =
                    measurements.iter().map(|one| share(one, &machine.peaks)).collect();
                cells.push(shares.join(", "));
            }
            (Err(reason), ..) => cells.push(reason.clone()),
            _ => {}
        }
        table.add_row(cells);
    }
    with_facts(request, machine, &table)
}

/// A table below what it was measured of, and on.
fn with_facts(request: &Request, machine: &Machine, table: &Table) -> String {
    let facts = [
        ("problem", request.describe()),
        ("device", machine.name.clone()),
        ("peaks", describe(request, &machine.peaks)),
    ];
    format!("{}\n{table}", table::facts(&facts))
}

/// The peaks on one line.
fn describe(request: &Request, peaks: &Peaks) -> String {
    format!(
        "measured now: matmul in {} {}, copy {}",
        request.dtype.name(),
        si(peaks.matmul, "FLOP/s"),
        si(peaks.copy, "B/s"),
    )
}

/// `41 % of matmul`.
fn share(measurement: &Measurement, peaks: &Peaks) -> String {
    match measurement.share(peaks) {
        Some((share, peak)) => format!("{:.0} % of {peak}", 100.0 * share),
        None => "unknown".to_string(),
    }
}
