//! Plans and measurements of sparse attention, as tables or as JSON.

use burn_natten::plan::{SparsePlan, SparseStep, Target};
use burn_natten_kernels::cost::Cost;
use serde_json::{Value, json};

use super::flags::Job;
use super::measure::Found;
use crate::args::Args;
use crate::print::json::text;
use crate::print::table;
use crate::units::{count, duration, limit, seconds, si};

/// What would run, step by step.
pub fn plan(job: &Job, args: &Args, target: Target, plan: &SparsePlan) -> String {
    if args.json {
        let cost = |cost: &Cost| json!({ "flops": cost.flops, "bytes": cost.bytes, "seconds": cost.seconds });
        let step = |step: &SparseStep| {
            json!({
                "name": step.name,
                "tier": format!("{:?}", step.tier),
                "pairs": step.pairs,
                "forward": cost(&step.forward),
                "backward": cost(&step.backward),
            })
        };
        return text(json!({
            "problem": job.describe(args),
            "target": target.to_string(),
            "device_model": plan.device.name,
            "steps": plan.steps.iter().map(step).collect::<Vec<_>>(),
        }));
    }
    let facts = [
        ("problem", job.describe(args)),
        ("target", format!("{target}, taken to be {}", plan.device.name)),
    ];
    let mut header = vec!["step", "tier", "scores", "FLOP", "bytes", "forward, at best"];
    if args.backprop {
        header.extend(["FLOP, backward", "bytes, backward", "backward, at best"]);
    }
    let mut rows = table::new(&header, 2);
    let cells = |cost: &Cost| {
        if cost.bytes == 0 {
            return ["-", "-", "-"].map(String::from);
        }
        let time = format!("{} ({})", seconds(cost.seconds), limit(cost.limit));
        [si(cost.flops as f64, ""), si(cost.bytes as f64, "B"), time]
    };
    for step in &plan.steps {
        let pairs = if step.pairs == 0 { "-".to_string() } else { count(step.pairs) };
        let mut row = vec![step.name.to_string(), format!("{:?}", step.tier), pairs];
        row.extend(cells(&step.forward));
        if args.backprop {
            row.extend(cells(&step.backward));
        }
        rows.add_row(row);
    }
    format!("{}\n{rows}", table::facts(&facts))
}

/// What was measured.
pub fn measurements(job: &Job, args: &Args, found: &Found) -> String {
    if args.json {
        let of = |measurement: &super::measure::Measurement| -> Value {
            let median = measurement.timing.median().as_secs_f64();
            let samples = measurement.timing.samples().iter().map(|sample| sample.as_secs_f64());
            json!({
                "pass": measurement.name,
                "median": median,
                "samples": samples.collect::<Vec<_>>(),
                "flops": measurement.flops as f64 / median,
                "memory": measurement.memory,
            })
        };
        return text(json!({
            "problem": job.describe(args),
            "device": found.name,
            "measurements": found.passes.iter().map(of).collect::<Vec<_>>(),
        }));
    }
    let facts = [("problem", job.describe(args)), ("device", found.name.clone())];
    let header = ["pass", "calls", "median", "quartiles", "FLOP/s", "memory"];
    let mut rows = table::new(&header, 1);
    for measurement in &found.passes {
        let timing = &measurement.timing;
        let (low, high) = timing.quartiles();
        rows.add_row([
            measurement.name.to_string(),
            timing.calls().to_string(),
            duration(timing.median()),
            format!("{} to {}", duration(low), duration(high)),
            si(measurement.flops as f64 / timing.median().as_secs_f64(), ""),
            si(measurement.memory as f64, "B"),
        ]);
    }
    format!("{}\n{rows}", table::facts(&facts))
}
