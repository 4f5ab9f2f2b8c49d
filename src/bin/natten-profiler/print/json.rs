//! The same content for machines: seconds, bytes, operations, never rounded.

use burn_natten::plan::{BackwardKernel, Candidate, Explanation, Target};
use burn_natten::profile::{Pass, Peaks};
use burn_natten_kernels::Problem;
use burn_natten_kernels::cost::{Cost, DeviceModel, flop_bound, tile_bound};
use serde_json::{Value, json};

use crate::found::{Machine, Measurement, Trial, ideal};
use crate::request::Request;
use crate::units::limit;

pub fn text(value: Value) -> String {
    format!("{value:#}")
}

pub fn problem(problem: &Problem) -> Value {
    let axes = problem.axes.iter().map(|axis| {
        json!({
            "queries": axis.queries,
            "keys": axis.keys,
            "kernel_size": axis.kernel_size,
            "stride": axis.stride,
            "dilation": axis.dilation,
            "is_causal": axis.is_causal,
        })
    });
    json!({
        "batch": problem.batch,
        "heads": problem.heads,
        "heads_kv": problem.heads_kv,
        "head_dim": problem.head_dim,
        "head_dim_v": problem.head_dim_v,
        "additional": problem.additional,
        "bias": problem.has_bias,
        "scale": problem.scale,
        "axes": axes.collect::<Vec<_>>(),
        "pairs": problem.pairs(),
    })
}

/// What `--dry-run` explains.
pub fn plan(request: &Request, target: Target, explanation: &Explanation) -> Value {
    let DeviceModel { name, matmul_flops, vector_flops, bandwidth, launch, .. } =
        explanation.device;
    let own = &request.problem;
    let alternatives = explanation.alternatives.iter();
    json!({
        "name": request.name,
        "problem": problem(own),
        "dtype": request.dtype.name(),
        "deterministic": request.context.deterministic(),
        "allow_tf32": request.context.allow_tf32(),
        "memory_preference": format!("{:?}", request.context.memory()).to_lowercase(),
        "flop_bound": flop_bound(own),
        "ideal": {
            "forward": cost(ideal(request, &explanation.device, Pass::Forward)),
            "backward": cost(ideal(request, &explanation.device, Pass::Backward)),
        },
        "target": target.to_string(),
        "device_model": {
            "name": name,
            "matmul_flops": matmul_flops,
            "vector_flops": vector_flops,
            "bandwidth": bandwidth,
            "launch": launch,
        },
        "chosen": candidate(own, &explanation.chosen),
        "alternatives": alternatives.map(|other| candidate(own, other)).collect::<Vec<_>>(),
    })
}

fn candidate(problem: &Problem, candidate: &Candidate) -> Value {
    let tiles = candidate.tiling.zip(candidate.count).map(|(tiling, count)| {
        json!({
            "q_tile": tiling.q_tile,
            "kv_tile": tiling.kv_tile,
            "q_tiles": count.q_tiles,
            "visited": count.visited,
            "unmasked": count.unmasked,
            "mixed": count.mixed(),
            "skipped": count.skipped(),
            "work_ratio": tiling.work_ratio(problem),
            "tile_bound": tile_bound(problem, &tiling),
        })
    });
    json!({
        "tier": format!("{:?}", candidate.tier),
        "strategy": candidate.strategy.name(),
        "schedule": candidate.schedule,
        "tiles": tiles,
        "forward": cost(candidate.forward),
        "backward": cost(candidate.backward),
        "backward_kernels": candidate.backward_kernels.iter().map(kernel).collect::<Vec<_>>(),
        "backward_workspace": candidate.backward_workspace,
    })
}

fn kernel(kernel: &BackwardKernel) -> Value {
    let BackwardKernel { writes, schedule, tiling, count, seconds, .. } = kernel;
    json!({
        "writes": writes,
        "schedule": schedule,
        "q_tile": tiling.q_tile,
        "kv_tile": tiling.kv_tile,
        "visited": count.visited,
        "unmasked": count.unmasked,
        "mixed": count.mixed(),
        "seconds": seconds,
    })
}

fn cost(cost: Cost) -> Value {
    json!({
        "flops": cost.flops,
        "executed_flops": cost.executed_flops,
        "bytes": cost.bytes,
        "seconds": cost.seconds,
        "limit": limit(cost.limit),
    })
}

/// What a plain run measures.
pub fn measurements(request: &Request, machine: &Machine, measurements: &[Measurement]) -> Value {
    let measured: Vec<_> =
        measurements.iter().map(|one| measurement(one, &machine.peaks)).collect();
    with_header(request, machine, "measurements", json!(measured))
}

/// What `--optimize` measures, in the order of the table.
pub fn trials(request: &Request, machine: &Machine, trials: &[Trial]) -> Value {
    let trials = trials.iter().map(|trial| {
        let measurements = trial.result.as_ref().ok().map(|measurements| {
            measurements.iter().map(|one| measurement(one, &machine.peaks)).collect::<Vec<_>>()
        });
        json!({
            "plan": candidate(&request.problem, &trial.candidate),
            "flags": trial.flags,
            "seconds": trial.total().map(|total| total.as_secs_f64()),
            "measurements": measurements,
            "error": trial.result.as_ref().err(),
        })
    });
    let trials: Vec<_> = trials.collect();
    with_header(request, machine, "trials", json!(trials))
}

fn with_header(request: &Request, machine: &Machine, key: &str, rows: Value) -> Value {
    json!({
        "name": request.name,
        "problem": problem(&request.problem),
        "dtype": request.dtype.name(),
        "deterministic": request.context.deterministic(),
        "allow_tf32": request.context.allow_tf32(),
        "memory_preference": format!("{:?}", request.context.memory()).to_lowercase(),
        "device": machine.name,
        "peaks": { "copy": machine.peaks.copy, "matmul": machine.peaks.matmul },
        key: rows,
    })
}

fn measurement(measurement: &Measurement, peaks: &Peaks) -> Value {
    let timing = &measurement.timing;
    let (low, high) = timing.quartiles();
    let share = measurement.share(peaks);
    json!({
        "tier": format!("{:?}", measurement.tier),
        "schedule": measurement.schedule,
        "pass": measurement.pass.name(),
        "calls": timing.calls(),
        "samples": timing.samples().iter().map(|time| time.as_secs_f64()).collect::<Vec<_>>(),
        "median": timing.median().as_secs_f64(),
        "quartiles": [low.as_secs_f64(), high.as_secs_f64()],
        "flops": measurement.flops,
        "bytes": measurement.bytes,
        "share": share.map(|(share, _)| share),
        "share_of": share.map(|(_, peak)| peak),
        "memory": measurement.memory,
    })
}
