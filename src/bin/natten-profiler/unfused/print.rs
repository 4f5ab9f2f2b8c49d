//! The halves, as a table or as JSON.

use serde_json::{Value, json};

use super::measure::{Found, Measurement};
use crate::print::json::text;
use crate::print::table;
use crate::request::Request;
use crate::units::{duration, si};

pub fn measurements(request: &Request, found: &Found, as_json: bool) -> String {
    if as_json {
        let of = |measurement: &Measurement| -> Value {
            let median = measurement.timing.median().as_secs_f64();
            json!({
                "operator": measurement.half.name(),
                "pass": measurement.passes,
                "median": median,
                "bytes": measurement.bytes as f64 / median,
            })
        };
        return text(json!({
            "problem": request.describe(),
            "device": found.name,
            "copy": found.peaks.copy,
            "measurements": found.passes.iter().map(of).collect::<Vec<_>>(),
        }));
    }
    let facts = [
        ("problem", request.describe()),
        ("device", found.name.clone()),
        ("copy", si(found.peaks.copy, "B/s")),
    ];
    let header = ["operator", "pass", "calls", "median", "quartiles", "B/s", "share of copy"];
    let mut rows = table::new(&header, 2);
    for measurement in &found.passes {
        let timing = &measurement.timing;
        let (low, high) = timing.quartiles();
        let rate = measurement.bytes as f64 / timing.median().as_secs_f64();
        rows.add_row([
            measurement.half.name().to_string(),
            measurement.passes.to_string(),
            timing.calls().to_string(),
            duration(timing.median()),
            format!("{} to {}", duration(low), duration(high)),
            si(rate, ""),
            format!("{:.0} %", 100.0 * rate / found.peaks.copy),
        ]);
    }
    format!("{}\n{rows}", table::facts(&facts))
}
