//! Times the candidates of catalogue problems, the most promising first.
//!
//! `tensor_core_tune [--top N] [NAME...]`: the N best of each shape of cube, 2 by default.

use std::time::{Duration, Instant};

use burn_natten_kernels::tensor_core::{
    Blueprint, Capability, ForwardInputs, ForwardOutputs, Strided, candidates, estimate,
    forward_with,
};
use burn_natten_kernels::{Problem, catalogue};
use cubecl::client::Client;
use cubecl::future::block_on;
use cubecl::ir::{ElemType, FloatKind};
use half::bf16;
use rand::{Rng, SeedableRng, rngs::StdRng};

const DTYPE: ElemType = ElemType::Float(FloatKind::BF16);

fn main() {
    tune(std::env::args().skip(1));
}

/// Runs the tool with these arguments.
pub fn tune(mut arguments: impl Iterator<Item = String>) {
    let mut top = 2;
    let mut names = vec![];
    while let Some(argument) = arguments.next() {
        if argument == "--top" {
            top = arguments.next().and_then(|n| n.parse().ok()).expect("--top takes a number");
        } else {
            names.push(argument);
        }
    }
    let client = cubecl::Device::cuda(0).expect("a CUDA device").client();
    let capability = Capability::of(&client).expect("matrix units");
    println!("{capability:?}");
    for entry in catalogue::all() {
        if names.is_empty() || names.iter().any(|name| name == entry.name) {
            let (inputs, outputs) = tensors(&client, &entry.problem);
            for blueprint in best(candidates(&entry.problem, &capability, 8), &entry.problem, top) {
                let run = || {
                    forward_with(&client, &blueprint, &entry.problem, DTYPE, &inputs, &outputs)
                        .expect("launched")
                };
                print(entry.name, &entry.problem, &blueprint, seconds(&client, run));
            }
        }
    }
}

fn tensors(client: &Client, problem: &Problem) -> (ForwardInputs, ForwardOutputs) {
    let queries = problem.axes.map(|axis| axis.queries);
    let keys = problem.axes.map(|axis| axis.keys);
    let rows = problem.batch * problem.queries() * problem.heads;
    let key_rows = problem.batch * problem.keys() * problem.heads_kv;
    let Problem { heads, heads_kv, head_dim, head_dim_v, .. } = *problem;
    let tensor = |rows: usize, dim: usize, seed: u64, tokens, heads| {
        Strided::contiguous(random(client, rows * dim, seed), tokens, heads, dim)
    };
    let inputs = ForwardInputs {
        query: tensor(rows, head_dim, 1, queries, heads),
        key: tensor(key_rows, head_dim, 2, keys, heads_kv),
        value: tensor(key_rows, head_dim_v, 3, keys, heads_kv),
        additional: None,
    };
    let outputs =
        ForwardOutputs { out: client.empty(rows * head_dim_v * 2), lse: client.empty(rows * 4) };
    (inputs, outputs)
}

/// The most promising of each shape of cube.
fn best(mut blueprints: Vec<Blueprint>, problem: &Problem, top: usize) -> Vec<Blueprint> {
    blueprints.sort_by(|a, b| estimate(a, problem).total_cmp(&estimate(b, problem)));
    let mut shapes = std::collections::HashMap::new();
    blueprints.retain(|b| {
        let seen = shapes.entry((b.planes, b.blocks, b.columns())).or_insert(0);
        *seen += 1;
        *seen <= top
    });
    blueprints
}

/// Median time of a call.
fn seconds(client: &Client, run: impl Fn()) -> f64 {
    let sync = || block_on(client.sync()).expect("the kernel ran");
    run();
    sync();
    let time = |calls: usize| {
        std::thread::sleep(Duration::from_millis(60));
        let start = Instant::now();
        (0..calls).for_each(|_| run());
        sync();
        start.elapsed().as_secs_f64()
    };
    // A batch and one of twice as many calls: what they differ in is calls alone.
    let calls = ((2e-3 / time(1)).ceil() as usize).clamp(1, 100);
    let mut samples: Vec<f64> =
        (0..5).map(|_| (time(2 * calls) - time(calls)) / calls as f64).collect();
    samples.sort_by(f64::total_cmp);
    samples[2]
}

fn print(name: &str, problem: &Problem, blueprint: &Blueprint, seconds: f64) {
    println!(
        "{name:18} {:8.3} ms  {:6.1} TFLOP/s  expected {:8.1}  work {:.2}  {blueprint}",
        seconds * 1e3,
        problem.forward_flops() as f64 / seconds * 1e-12,
        estimate(blueprint, problem) * 1e-9,
        blueprint.tiling().work_ratio(problem),
    );
}

/// Normal values, the same for a seed; a block of them is repeated.
fn random(client: &Client, count: usize, seed: u64) -> cubecl::server::Handle {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut normal = || {
        let (u, v): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
        bf16::from_f64((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()).to_le_bytes()
    };
    let block: Vec<u8> = (0..1_000_003).flat_map(|_| normal()).collect();
    let mut bytes = block.repeat((2 * count).div_ceil(block.len()));
    bytes.truncate(2 * count);
    client.create_from_slice(&bytes)
}
