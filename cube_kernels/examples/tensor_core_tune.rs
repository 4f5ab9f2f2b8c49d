//! Times the candidates of catalogue problems, the most promising first.
//!
//! `tensor_core_tune [--top N] [--backward] [--tf32] [NAME...]`: the N best of each shape of cube, 2 by default; of the
//! backward pass, each kernel by itself, with the statistics of the queries, and the pass as it is planned. In bf16, or
//! in f32 that is rounded to tf32.

use std::time::{Duration, Instant};

use burn_natten_kernels::tensor_core::{
    BackwardPlan, Blueprint, Capability, Choice, Pass, backward_candidates, backward_with,
    candidates, estimate, forward, forward_with, plan_backward,
};
use burn_natten_kernels::{Operands, Outputs, Problem, Saved, Shape, Strided, catalogue};
use cubecl::client::Client;
use cubecl::future::block_on;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;
use cubecl::server::Handle;

const BF16: ElemType = ElemType::Float(FloatKind::BF16);
const TF32: ElemType = ElemType::Float(FloatKind::TF32);

/// Bytes of an element.
fn size(dtype: ElemType) -> usize {
    if dtype == TF32 { 4 } else { 2 }
}

fn main() {
    tune(std::env::args().skip(1));
}

/// Runs the tool with these arguments.
pub fn tune(mut arguments: impl Iterator<Item = String>) {
    let mut top = 2;
    let mut is_backward = false;
    let mut dtype = BF16;
    let mut names = vec![];
    while let Some(argument) = arguments.next() {
        if argument == "--top" {
            top = arguments.next().and_then(|n| n.parse().ok()).expect("--top takes a number");
        } else if argument == "--backward" {
            is_backward = true;
        } else if argument == "--tf32" {
            dtype = TF32;
        } else {
            names.push(argument);
        }
    }
    let client = cubecl::Device::cuda(0).expect("a CUDA device").client();
    let mut capability = Capability::of(&client).expect("matrix units");
    if dtype == TF32 {
        capability = capability.with_tf32().expect("matrix units for tf32");
    }
    println!("{capability:?}");
    for entry in catalogue::all() {
        if names.is_empty() || names.iter().any(|name| name == entry.name) {
            let problem = entry.problem;
            let (inputs, outputs) = tensors(&client, &problem, dtype);
            if is_backward {
                let tensors = (inputs, outputs);
                tune_backward(&client, entry.name, &problem, dtype, &capability, tensors, top);
                continue;
            }
            for blueprint in best(candidates(&problem, &capability, 8), &problem, top) {
                let run = || {
                    forward_with(&client, &blueprint, &problem, dtype, &inputs, &outputs)
                        .expect("launched")
                };
                let flops = problem.forward_flops();
                print(entry.name, &problem, flops, &blueprint, seconds(&client, run));
            }
        }
    }
}

fn tune_backward(
    client: &Client,
    name: &str,
    problem: &Problem,
    dtype: ElemType,
    capability: &Capability,
    (inputs, outputs): (Operands<Strided>, Outputs<Handle>),
    top: usize,
) {
    forward(client, problem, dtype, Choice::Modelled, &inputs, &outputs).expect("launched");
    let (out, lse) = (Shape::out(problem), Shape::lse(problem));
    let zeros = client.create_from_slice(&vec![0; 4 * lse.elements()]);
    let inputs = Saved {
        operands: inputs,
        outputs: Outputs {
            out: Strided::contiguous(outputs.out, out),
            lse: Strided::contiguous(outputs.lse, lse),
        },
        gradients: Outputs {
            out: Strided::contiguous(random(client, out.elements(), dtype, 4), out),
            lse: Strided::contiguous(zeros, lse),
        },
        has_out: true,
    };
    let outputs = Operands::new((), (), ())
        .map(|operand, ()| Some(client.empty(size(dtype) * operand.shape(problem).elements())));
    let time = |plan: &BackwardPlan| {
        seconds(client, || {
            backward_with(client, plan, problem, dtype, &inputs, &outputs).expect("launched")
        })
    };
    let plan = plan_backward(problem, capability, 8).expect("a plan");
    let whole = time(&plan);
    println!(
        "{name:18} {:8.3} ms  {:6.1} TFLOP/s  {}, {}",
        whole * 1e3,
        problem.backward_flops() as f64 / whole * 1e-12,
        plan.queries,
        plan.keys[0],
    );
    let alone = time(&BackwardPlan { keys: vec![], ..plan.clone() });
    println!("{name:18} {:8.3} ms  without keys", alone * 1e3);
    let half = problem.forward_flops() / 2;
    for blueprint in best(backward_candidates(problem, capability, 8, Pass::Queries), problem, top)
    {
        let seconds = time(&BackwardPlan { queries: blueprint, keys: vec![], ..plan.clone() });
        print(name, problem, 3 * half, &blueprint, seconds);
    }
    for blueprint in best(backward_candidates(problem, capability, 8, Pass::Keys), problem, top) {
        let seconds = time(&BackwardPlan { keys: vec![blueprint], ..plan.clone() }) - alone;
        print(name, problem, 4 * half, &blueprint, seconds);
    }
}

fn tensors(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
) -> (Operands<Strided>, Outputs<Handle>) {
    let mut seed = 0;
    let inputs = Operands::new((), (), ()).map(|operand, ()| {
        seed += 1;
        let shape = operand.shape(problem);
        Strided::contiguous(random(client, shape.elements(), dtype, seed), shape)
    });
    let out = client.empty(Shape::out(problem).elements() * size(dtype));
    let outputs = Outputs { out, lse: client.empty(Shape::lse(problem).elements() * 4) };
    (inputs, outputs)
}

/// The most promising of each shape of cube.
fn best(mut blueprints: Vec<Blueprint>, problem: &Problem, top: usize) -> Vec<Blueprint> {
    blueprints.sort_by(|a, b| estimate(a, problem).total_cmp(&estimate(b, problem)));
    let mut shapes = std::collections::HashMap::new();
    blueprints.retain(|b| {
        let shape = (b.planes, b.blocks, b.columns(), b.is_paired);
        let seen = shapes.entry(shape).or_insert(0);
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

fn print(name: &str, problem: &Problem, flops: u64, blueprint: &Blueprint, seconds: f64) {
    println!(
        "{name:18} {:8.3} ms  {:6.1} TFLOP/s  expected {:8.1}  work {:.2}  {blueprint}",
        seconds * 1e3,
        flops as f64 / seconds * 1e-12,
        estimate(blueprint, problem) * 1e-9,
        blueprint.tiling().work_ratio(problem),
    );
}

/// Numbers between -2 and 2, made on the device.
fn random(client: &Client, count: usize, dtype: ElemType, seed: u32) -> cubecl::server::Handle {
    let handle = client.empty(size(dtype) * count);
    let cubes = count.div_ceil(256);
    let along_x = cubes.min(1 << 20);
    // SAFETY: the kernel stays below `count`.
    unsafe {
        fill::launch_unchecked(
            client,
            CubeCount::Static(along_x as u32, cubes.div_ceil(along_x) as u32, 1),
            CubeDim::new_1d(256),
            BufferArg::from_raw_parts(handle.clone(), count),
            count,
            seed,
            if dtype == TF32 { ElemType::Float(FloatKind::F32) } else { dtype },
        );
    }
    handle
}

#[cube(launch_unchecked)]
fn fill<F: Float>(out: &mut [F], count: usize, seed: u32, #[define(F)] _dtype: ElemType) {
    if ABSOLUTE_POS < count {
        let mut bits = ABSOLUTE_POS as u32 * 747_796_405u32 + seed * 2_891_336_453u32 + 12345u32;
        bits = ((bits >> 15) ^ bits) * 739_982_445u32;
        bits = ((bits >> 13) ^ bits) * 277_803_737u32;
        bits = (bits >> 16) ^ bits;
        // A sum of four uniform numbers is nearly normal.
        let sum = (bits & 255) + ((bits >> 8) & 255) + ((bits >> 16) & 255) + (bits >> 24);
        out[ABSOLUTE_POS] = F::cast_from((f32::cast_from(sum) - 510.0) / 148.0);
    }
}
