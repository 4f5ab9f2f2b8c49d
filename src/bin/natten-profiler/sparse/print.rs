//! Plans of sparse attention, as a table or as JSON.

use burn_natten::plan::{SparsePlan, SparseStep, Target};
use burn_natten_kernels::cost::Cost;
use serde_json::json;

use super::flags::Job;
use crate::args::Args;
use crate::print::json::text;
use crate::print::table;
use crate::units::{count, limit, seconds, si};

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
