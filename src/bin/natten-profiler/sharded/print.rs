//! Splits, as a table or as JSON.

use burn_natten::parallel::Estimate;
use serde_json::{Value, json};

use super::LINK;
use super::measure::{Found, Measurement};
use crate::args::Args;
use crate::print::json::text;
use crate::print::table;
use crate::request::Request;
use crate::units::{duration, si};

pub fn measurements(request: &Request, args: &Args, found: &Found) -> String {
    if args.json {
        let of = |measurement: &Measurement| -> Value {
            let samples = measurement.timing.samples().iter().map(|sample| sample.as_secs_f64());
            json!({
                "split": measurement.way,
                "pass": measurement.pass.to_string(),
                "median": measurement.timing.median().as_secs_f64(),
                "samples": samples.collect::<Vec<_>>(),
                "speed_up": measurement.speed_up,
            })
        };
        return text(json!({
            "problem": request.describe(),
            "devices": found.names,
            "measurements": found.measurements.iter().map(of).collect::<Vec<_>>(),
        }));
    }
    let facts = [("problem", request.describe()), ("devices", found.names.join("; "))];
    let header = ["split", "pass", "calls", "median", "quartiles", "speed-up"];
    let mut rows = table::new(&header, 2);
    for measurement in &found.measurements {
        let timing = &measurement.timing;
        let (low, high) = timing.quartiles();
        rows.add_row([
            measurement.way.clone(),
            measurement.pass.to_string(),
            timing.calls().to_string(),
            duration(timing.median()),
            format!("{} to {}", duration(low), duration(high)),
            format!("{:.2} x", measurement.speed_up),
        ]);
    }
    format!("{}\n{rows}", table::facts(&facts))
}

/// What is expected, the fastest first.
pub fn estimates(request: &Request, args: &Args, found: &[Estimate]) -> String {
    if args.json {
        let of = |estimate: &Estimate| -> Value {
            json!({
                "split": estimate.split.to_string(),
                "bytes": estimate.bytes,
                "transfer": estimate.transfer,
                "forward": estimate.forward,
                "backward": estimate.backward,
            })
        };
        return text(json!({
            "problem": request.describe(),
            "members": args.devices.len(),
            "estimates": found.iter().map(of).collect::<Vec<_>>(),
        }));
    }
    let time = |seconds| duration(std::time::Duration::from_secs_f64(seconds));
    let facts = [
        ("problem", request.describe()),
        ("members", args.devices.len().to_string()),
        ("link", format!("{}, {} an exchange", si(LINK.bandwidth, "B/s"), time(LINK.latency))),
    ];
    let header = ["split", "sent", "transfer", "forward", "backward"];
    let mut rows = table::new(&header, 1);
    for estimate in found {
        rows.add_row([
            estimate.split.to_string(),
            si(estimate.bytes as f64, "B"),
            time(estimate.transfer),
            time(estimate.forward),
            time(estimate.backward),
        ]);
    }
    format!("{}\n{rows}", table::facts(&facts))
}
