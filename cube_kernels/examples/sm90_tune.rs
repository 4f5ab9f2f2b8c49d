//! Times the candidate schedules of catalogue problems on a Hopper GPU, the most promising first,
//! beside what the model expects of them.
//!
//! `sm90_tune [--top N] [--backward] [--bias] [NAME...]`: the N best of each shape of CTA, 2 by default.

use std::time::{Duration, Instant};

use burn_natten_kernels::native::sm90::{
    BackwardPlan, Element, Schedule, backward_candidates, backward_with, candidates, estimate,
    forward_with, plan_backward,
};
use burn_natten_kernels::{Operands, Outputs, Problem, Saved, Shape, Strided, catalogue};
use cubecl::client::Client;
use cubecl::future::block_on;
use cubecl::server::Handle;
use half::bf16;
use rand::{Rng, SeedableRng, rngs::StdRng};

fn main() {
    let mut top = 2;
    let (mut is_backward, mut has_bias) = (false, false);
    let mut names = vec![];
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--top" {
            top = arguments.next().and_then(|n| n.parse().ok()).expect("--top takes a number");
        } else if argument == "--backward" {
            is_backward = true;
        } else if argument == "--bias" {
            has_bias = true;
        } else {
            names.push(argument);
        }
    }
    let client = cubecl::Device::cuda(0).expect("a CUDA device").client();
    for entry in catalogue::all() {
        if names.is_empty() || names.iter().any(|name| name == entry.name) {
            let problem = entry.problem.with_bias(has_bias);
            let tensors = Tensors::new(&client, &problem);
            match is_backward {
                false => tune_forward(&client, entry.name, &problem, &tensors, top),
                true => tune_backward(&client, entry.name, &problem, &tensors, top),
            }
        }
    }
}

#[derive(Clone)]
struct Tensors {
    inputs: Operands<Strided>,
    outputs: Outputs<Handle>,
    gradients: Outputs<Strided>,
}

impl Tensors {
    fn new(client: &Client, problem: &Problem) -> Self {
        let mut seed = 0;
        let mut tensor = |shape: Shape| {
            seed += 1;
            Strided::contiguous(random(client, shape.elements(), seed), shape)
        };
        let (out, lse) = (Shape::out(problem), Shape::lse(problem));
        Self {
            inputs: places(problem).map(|operand, ()| Strided {
                strides: operand.strides(problem),
                ..tensor(operand.shape(problem))
            }),
            outputs: Outputs {
                out: client.empty(out.elements() * 2),
                lse: client.empty(lse.elements() * 4),
            },
            gradients: Outputs {
                out: tensor(out),
                lse: Strided::contiguous(
                    client.create_from_slice(&vec![0; lse.elements() * 4]),
                    lse,
                ),
            },
        }
    }
}

/// A place for each operand of a problem without additional tokens.
fn places(problem: &Problem) -> Operands<()> {
    Operands { bias: problem.has_bias.then_some(()), ..Operands::new((), (), ()) }
}

/// The most promising of each shape of CTA.
fn best(mut schedules: Vec<Schedule>, problem: &Problem, top: usize) -> Vec<Schedule> {
    schedules.sort_by(|a, b| estimate(a, problem).total_cmp(&estimate(b, problem)));
    let mut shapes = std::collections::HashMap::new();
    schedules.retain(|s| {
        let seen = shapes.entry((s.warpgroups, s.blocks, s.ctas, s.teams, s.is_late)).or_insert(0);
        *seen += 1;
        *seen <= top
    });
    schedules
}

fn tune_forward(client: &Client, name: &str, problem: &Problem, tensors: &Tensors, top: usize) {
    for schedule in best(candidates(problem, Element::Bf16), problem, top) {
        let Tensors { inputs, outputs, .. } = tensors;
        let run = || forward_with(client, &schedule, problem, inputs, outputs).expect("launched");
        print(name, problem, problem.forward_flops(), &schedule, seconds(client, run));
    }
}

/// Each kernel alone, then the whole pass as it is planned.
fn tune_backward(client: &Client, name: &str, problem: &Problem, tensors: &Tensors, top: usize) {
    let Tensors { inputs, outputs, gradients } = tensors.clone();
    sm90_forward(client, problem, &inputs, &outputs);
    let results = places(problem)
        .map(|operand, ()| Some(client.empty(operand.shape(problem).elements() * 2)));
    let outputs = Outputs {
        out: Strided::contiguous(outputs.out, Shape::out(problem)),
        lse: Strided::contiguous(outputs.lse, Shape::lse(problem)),
    };
    let inputs = Saved { operands: inputs, outputs, gradients, has_out: true };
    // By kernels that can be timed one by one.
    let plan = plan_backward(problem, Element::Bf16, None).expect("a plan").without_slopes();
    let run = |plan: &BackwardPlan| {
        let seconds = seconds(client, || {
            backward_with(client, plan, problem, &inputs, &results).expect("launched");
        });
        println!(
            "{name:18} {:8.3} ms  {:6.1} TFLOP/s",
            seconds * 1e3,
            problem.backward_flops() as f64 / seconds * 1e-12
        );
        seconds
    };
    let whole = run(&plan);
    for planned in plan.queries.iter().chain(&plan.keys) {
        let (pass, gradients) = (planned.pass, planned.gradients);
        let all = backward_candidates(problem, Element::Bf16, pass, gradients);
        let without = |schedule: Option<Schedule>| {
            let replace = |list: &[Schedule]| -> Vec<Schedule> {
                let kept = list.iter().filter(|other| *other != planned).copied();
                kept.chain(schedule.filter(|_| list.contains(planned))).collect()
            };
            BackwardPlan {
                queries: replace(&plan.queries),
                keys: replace(&plan.keys),
                additional: vec![],
                slopes: None,
            }
        };
        let rest = seconds(client, || {
            backward_with(client, &without(None), problem, &inputs, &results).expect("launched");
        });
        println!("{name:18} {:8.3} ms  planned {planned}", (whole - rest) * 1e3);
        for schedule in best(all, problem, top) {
            let plan = without(Some(schedule));
            let all = seconds(client, || {
                backward_with(client, &plan, problem, &inputs, &results).expect("launched");
            });
            let flops = problem.forward_flops() / 2 * products(&schedule);
            print(name, problem, flops, &schedule, all - rest);
        }
    }
}

/// Matrix products of a kernel of the backward pass: scores, dP and the gradients. The forward pass has two.
fn products(schedule: &Schedule) -> u64 {
    1 + 2 * u64::from(schedule.gradients.width > 0) + u64::from(schedule.gradients.value)
}

fn sm90_forward(client: &Client, problem: &Problem, i: &Operands<Strided>, o: &Outputs<Handle>) {
    burn_natten_kernels::native::sm90::forward(client, problem, Element::Bf16, None, i, o)
        .expect("launched");
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

fn print(name: &str, problem: &Problem, flops: u64, schedule: &Schedule, seconds: f64) {
    println!(
        "{name:18} {:8.3} ms  {:6.1} TFLOP/s  expected {:8.3}  work {:.2}  {schedule}",
        seconds * 1e3,
        flops as f64 / seconds * 1e-12,
        estimate(schedule, problem) * 1e3,
        schedule.tiling().work_ratio(problem),
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
    let bytes: Vec<u8> = block.iter().copied().cycle().take(2 * count).collect();
    client.create_from_slice(&bytes)
}
