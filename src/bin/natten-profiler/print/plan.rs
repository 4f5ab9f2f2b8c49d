//! A plan as tables: what would run, and what bounds it.

use std::collections::HashMap;

use burn_natten::plan::{BackwardKernel, Candidate, Explanation, Target};
use burn_natten::profile::Pass;
use burn_natten_kernels::catalogue::Milliseconds;
use burn_natten_kernels::cost::{DeviceModel, flop_bound, tile_bound};
use comfy_table::Table;

use super::table;
use crate::found::{cost, ideal};
use crate::request::Request;
use crate::units::{count, limit, ratio, seconds, si, tile};

/// Schedules of one tier in the table: the choice and the next best.
const ROWS_PER_TIER: usize = 8;

/// All that is to be said of a plan for `passes`, the choice first.
pub fn text(
    request: &Request,
    target: Target,
    explanation: &Explanation,
    passes: &[Pass],
) -> String {
    let is_backward = passes.contains(&Pass::Backward);
    let chosen = &explanation.chosen;
    let mut facts = vec![("problem", request.describe())];
    facts.extend(bounds(request, &explanation.device, passes));
    facts.push(("target", format!("{target}, taken to be {}", model(&explanation.device))));
    if let (true, Some(bytes)) = (is_backward, chosen.backward_workspace) {
        facts.push(("workspace", format!("{} in the backward pass", si(bytes as f64, "B"))));
    }
    if let Some(text) = published(request) {
        facts.push(("published", text));
    }
    let table = plans(request, explanation, passes);
    let more = (1 + explanation.alternatives.len()) - table.row_iter().count();
    let more = match more {
        0 => String::new(),
        more => format!("\n{more} more schedules, slower by estimate, are in --json"),
    };
    let mut text = format!("{}\n{table}{more}", table::facts(&facts));
    if is_backward && !chosen.backward_kernels.is_empty() {
        let kernels = kernels(request, chosen);
        text += &format!("\n\nThe backward pass of what runs, kernel by kernel:\n\n{kernels}");
    }
    text
}

/// What holds for every way to compute the problem.
fn bounds(request: &Request, device: &DeviceModel, passes: &[Pass]) -> Vec<(&'static str, String)> {
    let problem = &request.problem;
    let keys = problem.pairs() as f64 / problem.queries().max(1) as f64;
    let all = count((problem.keys() + problem.additional) as u64);
    let bound = ratio(flop_bound(problem));
    let scores = format!(
        "a query sees {} of {all} keys: FLOP-wise bound {bound} over dense attention",
        count(keys.round() as u64)
    );
    let mut facts = vec![("scores", scores)];
    for pass in passes {
        let cost = ideal(request, device, *pass);
        let work = format!(
            "{}, {} read and written, bound by {}: {} at least",
            si(cost.flops as f64, "FLOP"),
            si(cost.bytes as f64, "B"),
            limit(cost.limit),
            seconds(cost.seconds),
        );
        facts.push((pass.name(), work));
    }
    facts
}

fn model(device: &DeviceModel) -> String {
    let matmul = si(device.matmul_flops, "FLOP/s");
    let bandwidth = si(device.bandwidth, "B/s");
    let mut rates = format!("{matmul}, {bandwidth}");
    if device.vector_flops != device.matmul_flops {
        let vector = si(device.vector_flops, "FLOP/s");
        rates = format!("{matmul} on matrix units and {vector} elsewhere, {bandwidth}");
    }
    format!("{} ({rates})", device.name)
}

fn published(request: &Request) -> Option<String> {
    let published = request.published?;
    let times = |who: &str, times: Option<Milliseconds>| {
        times.map(|times| format!("{who} {} / {} ms", times.forward, times.backward))
    };
    let all = [
        times("NATTEN", published.natten),
        times("flex_attention", published.flex),
        times("cuDNN, dense,", published.cudnn),
    ];
    let all: Vec<_> = all.into_iter().flatten().collect();
    (!all.is_empty()).then(|| format!("forward / backward on an H200 in bf16: {}", all.join("; ")))
}

fn plans(request: &Request, explanation: &Explanation, passes: &[Pass]) -> Table {
    let mut header = vec![
        "",
        "tier",
        "schedule",
        "q tile",
        "kv tile",
        "visited",
        "unmasked",
        "mixed",
        "skipped",
        "visited/useful",
        "tile-wise bound",
    ];
    let at_best: Vec<_> = passes.iter().map(|pass| format!("{pass}, at best")).collect();
    header.extend(at_best.iter().map(String::as_str));
    let mut table = table::new(&header, 3);
    table.add_row(row(request, "runs", &explanation.chosen, passes));
    let mut shown = HashMap::from([(explanation.chosen.tier, 1)]);
    for candidate in &explanation.alternatives {
        let rows = shown.entry(candidate.tier).or_insert(0);
        *rows += 1;
        if *rows <= ROWS_PER_TIER {
            table.add_row(row(request, "", candidate, passes));
        }
    }
    table
}

fn row(request: &Request, mark: &str, candidate: &Candidate, passes: &[Pass]) -> Vec<String> {
    let problem = &request.problem;
    let mut cells =
        vec![mark.to_string(), format!("{:?}", candidate.tier), candidate.schedule.clone()];
    match (candidate.tiling, candidate.count) {
        (Some(tiling), Some(tiles)) => {
            cells.extend([tiling.q_tile, tiling.kv_tile].map(|extent| tile(problem, extent)));
            cells
                .extend([tiles.visited, tiles.unmasked, tiles.mixed(), tiles.skipped()].map(count));
            cells.push(ratio(tiling.work_ratio(problem)));
            cells.push(ratio(tile_bound(problem, &tiling)));
        }
        _ => cells.extend(std::iter::repeat_n("-".to_string(), 8)),
    }
    cells.extend(passes.iter().map(|pass| {
        let cost = cost(*pass, candidate);
        format!("{} ({})", seconds(cost.seconds), limit(cost.limit))
    }));
    cells
}

fn kernels(request: &Request, candidate: &Candidate) -> Table {
    let header =
        ["gradients", "schedule", "q tile", "kv tile", "visited", "unmasked", "mixed", "estimate"];
    let mut table = table::new(&header, 2);
    for kernel in &candidate.backward_kernels {
        let BackwardKernel { writes, schedule, tiling, count: tiles, seconds: time, .. } = kernel;
        let [q_tile, kv_tile] =
            [tiling.q_tile, tiling.kv_tile].map(|extent| tile(&request.problem, extent));
        let mut cells = vec![writes.clone(), schedule.clone(), q_tile, kv_tile];
        cells.extend([tiles.visited, tiles.unmasked, tiles.mixed()].map(count));
        cells.push(seconds(*time));
        table.add_row(cells);
    }
    table
}
