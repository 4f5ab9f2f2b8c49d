//! Times the portable kernels, f32, on a device: by rows, by the tiles that are planned, and by the most
//! promising of each shape of cube.
//!
//! `portable_tune [--top N] [--no-rows] [--matrices] [NAME...]`: the N best of each shape, none by default. With `--matrices` the
//! TensorCore tier instead, f16, as the model chooses. `BURN_NATTEN_DEVICE` is the device, `cuda` or `wgpu`; without it the CPU.

use std::time::{Duration, Instant};

use burn_natten_kernels::portable::{
    BackwardPlan, Blueprint, Limits, Way, backward_with, candidates, estimate, forward_with, plan,
    plan_backward,
};
use burn_natten_kernels::tensor_core::{self, Capability, Choice, Pass};
use burn_natten_kernels::{Axis, Operands, Outputs, Problem, Saved, Shape, Strided};
use cubecl::client::Client;
use cubecl::future::block_on;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::server::Handle;
use rand::{Rng, SeedableRng, rngs::StdRng};

const DTYPE: ElemType = ElemType::Float(FloatKind::F32);

fn window(length: usize, kernel_size: usize, is_causal: bool) -> Axis {
    Axis::neighborhood(length, kernel_size).with_causal(is_causal)
}

/// Problems that are small enough for rows.
fn problems() -> Vec<(&'static str, Problem)> {
    let dense = Axis::dense(4096, 4096, false);
    let wide = window(128, 31, false);
    let small = window(56, 7, false);
    vec![
        ("dense-4k", Problem::new([dense], 16, 128)),
        ("dense-4k-d64", Problem::new([dense], 16, 64)),
        ("1d-8k-causal", Problem::new([window(8192, 512, true)], 16, 64)),
        ("2d-128-k31", Problem::new([wide, wide], 8, 64)),
        ("nat-56", Problem::new([small, small], 2, 64).with_batch(16)),
        ("nat-56-d32", Problem::new([small, small], 4, 32).with_batch(16)),
        ("3d-16-k5", Problem::new([window(16, 5, false); 3], 8, 64)),
    ]
}

fn main() {
    let mut top = 0;
    let (mut has_rows, mut is_on_matrices) = (true, false);
    let mut names = vec![];
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--top" => {
                top = arguments.next().and_then(|n| n.parse().ok()).expect("--top takes a number");
            }
            "--no-rows" => has_rows = false,
            "--matrices" => is_on_matrices = true,
            _ => names.push(argument),
        }
    }
    let client = test_support::portable::client();
    let limits = Limits::of(&client).or_tiles(true);
    println!("{}, {:?}", client.properties().identity.name, Capability::of(&client));
    println!("{limits:?}");
    for (name, problem) in problems() {
        if !names.is_empty() && !names.iter().any(|wanted| wanted == name) {
            continue;
        }
        match is_on_matrices {
            true => time_matrices(&client, name, &problem),
            false => time(&client, &limits, name, &problem, top, has_rows),
        }
    }
}

fn time(
    client: &Client,
    limits: &Limits,
    name: &str,
    problem: &Problem,
    top: usize,
    has_rows: bool,
) {
    let rows = problem.batch * problem.queries() * problem.heads;
    let dim = problem.head_dim;
    let mut seed = 0;
    let mut tensor = |shape: Shape| {
        seed += 1;
        Strided::contiguous(random(client, shape.elements(), seed), shape)
    };
    let inputs = Operands::new((), (), ()).map(|operand, ()| tensor(operand.shape(problem)));
    let outputs = Outputs { out: client.empty(4 * rows * dim), lse: client.empty(4 * rows) };
    let by = |pass| {
        let planned = match pass {
            Pass::Forward => plan(problem, limits),
            Pass::Queries => plan_backward(problem, limits).queries,
            Pass::Keys => plan_backward(problem, limits).keys,
        };
        let mut ways = vec![planned];
        ways.extend(has_rows.then_some(Way::Rows));
        let tiles = candidates(problem, limits, pass);
        ways.extend(best(tiles, problem, pass, top).into_iter().map(Way::Tiles));
        ways
    };
    let half = problem.forward_flops() / 2;
    let mut expected = vec![];
    for way in by(Pass::Forward) {
        if has_rows {
            // By rows first, so that everything else is compared with them.
            let ways = if expected.is_empty() { vec![Way::Rows, way] } else { vec![way] };
            for way in ways {
                forward_with(client, &way, problem, DTYPE, &inputs, &outputs).expect("launched");
                compare(client, &[&outputs.out, &outputs.lse], &mut expected, name);
            }
        }
        let seconds = seconds(client, || {
            forward_with(client, &way, problem, DTYPE, &inputs, &outputs).expect("launched")
        });
        print(name, "forward", problem, 2 * half, &way, Pass::Forward, seconds);
    }
    let (out, lse) = (Shape::out(problem), Shape::lse(problem));
    let zeros = client.create_from_slice(&vec![0; 4 * rows]);
    let inputs = Saved {
        operands: inputs,
        outputs: Outputs {
            out: Strided::contiguous(outputs.out, out),
            lse: Strided::contiguous(outputs.lse, lse),
        },
        gradients: Outputs { out: tensor(out), lse: Strided::contiguous(zeros, lse) },
        has_out: true,
    };
    let outputs = Operands::new((), (), ())
        .map(|operand, ()| client.empty(4 * operand.shape(problem).elements()));
    let run = |plan: &BackwardPlan| {
        seconds(client, || {
            backward_with(client, plan, problem, DTYPE, &inputs, &outputs.every())
                .expect("launched")
        })
    };
    let planned = plan_backward(problem, limits);
    if has_rows {
        let mut expected = vec![];
        for plan in [BackwardPlan::ROWS, planned] {
            backward_with(client, &plan, problem, DTYPE, &inputs, &outputs.every())
                .expect("launched");
            let gradients = [&outputs.query, &outputs.key, &outputs.value];
            compare(client, &gradients, &mut expected, name);
        }
    }
    let whole = run(&planned);
    print(name, "backward", problem, 5 * half, &planned.queries, Pass::Queries, whole);
    if has_rows {
        let whole = run(&BackwardPlan::ROWS);
        print(name, "backward", problem, 5 * half, &Way::Rows, Pass::Queries, whole);
    }
    if top == 0 {
        return;
    }
    // Of a pass by itself, what changes with it.
    for way in by(Pass::Queries).into_iter().filter(|way| *way != Way::Rows) {
        let seconds = run(&BackwardPlan { queries: way, ..planned });
        print(name, "with queries", problem, 5 * half, &way, Pass::Queries, seconds);
    }
    for way in by(Pass::Keys).into_iter().filter(|way| *way != Way::Rows) {
        let seconds = run(&BackwardPlan { keys: way, ..planned });
        print(name, "with keys", problem, 5 * half, &way, Pass::Keys, seconds);
    }
}

/// Times the TensorCore tier, and holds it to the rows of the Portable tier on the same tensors.
fn time_matrices(client: &Client, name: &str, problem: &Problem) {
    let [out, lse] = [Shape::out(problem), Shape::lse(problem)];
    let mut seed = 0;
    let mut tensor = |shape: Shape| {
        seed += 1;
        Strided::contiguous(random_f16(client, shape.elements(), seed), shape)
    };
    let inputs = Operands::new((), (), ()).map(|operand, ()| tensor(operand.shape(problem)));
    let results =
        || Outputs { out: client.empty(2 * out.elements()), lse: client.empty(4 * lse.elements()) };
    let (own, rows) = (results(), results());
    let run = || {
        tensor_core::forward(client, problem, F16, Choice::Modelled, &inputs, &own)
            .expect("launched")
    };
    run();
    forward_with(client, &Way::Rows, problem, F16, &inputs, &rows).expect("launched");
    compare_f16(client, &own.out, &rows.out, name, "out");
    let forward = seconds(client, run);
    let saved = Saved {
        operands: inputs.clone(),
        outputs: Outputs {
            out: Strided::contiguous(rows.out, out),
            lse: Strided::contiguous(rows.lse, lse),
        },
        gradients: Outputs {
            out: tensor(out),
            lse: Strided::contiguous(client.create_from_slice(&vec![0; 4 * lse.elements()]), lse),
        },
        has_out: true,
    };
    let gradients = || {
        let empty = |shape: Shape| client.empty(2 * shape.elements());
        Operands::new((), (), ()).map(|operand, ()| Some(empty(operand.shape(problem))))
    };
    let (own, rows) = (gradients(), gradients());
    let run = || {
        tensor_core::backward(client, problem, F16, Choice::Modelled, &saved, &own)
            .expect("launched")
    };
    run();
    backward_with(client, &BackwardPlan::ROWS, problem, F16, &saved, &rows).expect("launched");
    for ((operand, own), (_, rows)) in own.iter().zip(rows.iter()) {
        let both = own.as_ref().zip(rows.as_ref()).expect("wanted");
        compare_f16(client, both.0, both.1, name, operand.name());
    }
    let backward = seconds(client, run);
    let flops = problem.forward_flops() as f64 * 1e-12;
    for (pass, seconds, flops) in [("forward", forward, flops), ("backward", backward, 2.5 * flops)]
    {
        println!(
            "{name:14} {pass:12} {:9.3} ms {:6.2} TFLOP/s  f16, matrix units",
            seconds * 1e3,
            flops / seconds
        );
    }
}

const F16: ElemType = ElemType::Float(FloatKind::F16);

/// Prints how far halves are from others, relative to the largest.
fn compare_f16(client: &Client, actual: &Handle, expected: &Handle, name: &str, what: &str) {
    let read = |handle: &Handle| -> Vec<f32> {
        let bytes = client.read_one(handle.clone()).expect("the kernels ran");
        let number = |pair: &[u8]| half::f16::from_le_bytes([pair[0], pair[1]]).to_f32();
        bytes.chunks_exact(2).map(number).collect()
    };
    let (actual, expected) = (read(actual), read(expected));
    let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let differences = actual.iter().zip(&expected).map(|(a, e)| (a - e).abs());
    let is_number = actual.iter().all(|x| x.is_finite());
    let difference = differences.fold(0.0f32, f32::max) / largest;
    println!("{name:14} {what} differs by {difference:.1e} of the largest, finite: {is_number}");
}

fn random_f16(client: &Client, length: usize, seed: u64) -> Handle {
    let mut rng = StdRng::seed_from_u64(seed);
    let number = |_| half::f16::from_f32(rng.random_range(-1.0f32..1.0)).to_le_bytes();
    let block: Vec<u8> = (0..65_521).flat_map(number).collect();
    let bytes: Vec<u8> = block.iter().copied().cycle().take(2 * length).collect();
    client.create_from_slice(&bytes)
}

/// Prints how far results are from those expected, relative to the largest; the first are expected.
fn compare(client: &Client, results: &[&Handle], expected: &mut Vec<Vec<f32>>, name: &str) {
    let read = |handle: &Handle| -> Vec<f32> {
        let bytes = client.read_one(handle.clone()).expect("the kernels ran");
        let number = |word: &[u8]| f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        bytes.chunks_exact(4).map(number).collect()
    };
    let actual: Vec<_> = results.iter().map(|handle| read(handle)).collect();
    if expected.is_empty() {
        *expected = actual;
        return;
    }
    for (actual, expected) in actual.iter().zip(expected) {
        let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let pairs = actual.iter().zip(expected.iter());
        let differences = pairs.map(|(a, e)| (a - e).abs());
        let is_number = actual.iter().all(|x| x.is_finite());
        let difference = differences.fold(0.0f32, f32::max) / largest;
        println!("{name:14} differs by {difference:.1e} of the largest, finite: {is_number}");
    }
}

fn print(
    name: &str,
    what: &str,
    problem: &Problem,
    flops: u64,
    way: &Way,
    pass: Pass,
    seconds: f64,
) {
    let by = match way {
        Way::Rows => "rows".to_string(),
        Way::Tiles(blueprint) => format!("{blueprint}, {} bytes", blueprint.shared_memory()),
    };
    println!(
        "{name:14} {what:12} {:9.3} ms {:6.2} TFLOP/s  estimate {:9.3e}  {by}",
        seconds * 1e3,
        flops as f64 / seconds * 1e-12,
        estimate(way, problem, pass),
    );
}

/// The most promising of each shape of cube.
fn best(
    mut blueprints: Vec<Blueprint>,
    problem: &Problem,
    pass: Pass,
    top: usize,
) -> Vec<Blueprint> {
    let time = |blueprint: &Blueprint| estimate(&Way::Tiles(*blueprint), problem, pass);
    blueprints.sort_by(|a, b| time(a).total_cmp(&time(b)));
    let mut shapes = std::collections::HashMap::new();
    blueprints.retain(|b| {
        let seen = shapes.entry((b.down, b.rows_each, b.columns_each)).or_insert(0);
        *seen += 1;
        *seen <= top
    });
    blueprints
}

fn random(client: &Client, length: usize, seed: u64) -> Handle {
    let mut rng = StdRng::seed_from_u64(seed);
    // A block of random numbers, again and again, at odd offsets.
    let block: Vec<u8> =
        (0..65_521).flat_map(|_| rng.random_range(-1.0f32..1.0).to_le_bytes()).collect();
    let bytes: Vec<u8> = block.iter().copied().cycle().take(4 * length).collect();
    client.create_from_slice(&bytes)
}

/// Median of several samples of about 20 ms, warmed up.
fn seconds(client: &Client, run: impl Fn()) -> f64 {
    let sample = |count: usize| {
        let start = Instant::now();
        (0..count).for_each(|_| run());
        block_on(client.sync()).expect("the kernels ran");
        start.elapsed() / count as u32
    };
    sample(1);
    let once = sample(1).max(Duration::from_micros(1));
    let count = (Duration::from_millis(20).as_nanos() / once.as_nanos()).clamp(1, 200) as usize;
    let mut samples: Vec<f64> = (0..5).map(|_| sample(count).as_secs_f64()).collect();
    samples.sort_by(f64::total_cmp);
    samples[2]
}
