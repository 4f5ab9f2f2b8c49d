//! The native kernels on a Hopper GPU against brute force in `f64`.
//!
//! They run where `BURN_NATTEN_TEST_CUDA=1`; without it they are ignored with a line that says so.
//! `BURN_NATTEN_TEST_PROBLEMS` sets the number of random problems of each rank, 500 by default.

#[allow(dead_code)]
mod support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_natten_kernels::native::sm90::{
    self, Element, ForwardInputs, ForwardOutputs, Schedule, Strided, forward_with,
};
use burn_natten_kernels::{Axis, Problem};
use cubecl::client::Client;
use rand::{Rng, SeedableRng, rngs::StdRng};
use support::Data;
use support::oracle::compute;
use support::run::{BF16, F16, F32, Format};

/// The device, unless tests on it are off.
fn device() -> Option<Client> {
    if std::env::var("BURN_NATTEN_TEST_CUDA").is_ok_and(|value| value == "1") {
        return Some(cubecl::Device::cuda(0).expect("a CUDA device").client());
    }
    println!("not run: BURN_NATTEN_TEST_CUDA is not 1");
    None
}

fn format(element: Element) -> Format {
    match element {
        Element::F16 => F16,
        Element::Bf16 => BF16,
    }
}

/// Runs the forward pass into poisoned buffers.
fn run(
    client: &Client,
    schedule: &Schedule,
    problem: &Problem,
    data: &Data,
) -> (Vec<f64>, Vec<f64>) {
    let format = format(schedule.element);
    let queries = problem.axes.map(|axis| axis.queries);
    let keys = problem.axes.map(|axis| axis.keys);
    let (dim, dim_v, heads_kv) = (problem.head_dim, problem.head_dim_v, problem.heads_kv);
    let more = [1, 1, problem.additional];
    let upload = |values: &[f64], tokens, heads, dim| {
        Strided::contiguous(format.upload(client, values), tokens, heads, dim)
    };
    let inputs = ForwardInputs {
        query: upload(&data.query, queries, problem.heads, dim),
        key: upload(&data.key, keys, heads_kv, dim),
        value: upload(&data.value, keys, heads_kv, dim_v),
        additional: (problem.additional > 0).then(|| {
            (
                upload(&data.additional_key, more, heads_kv, dim),
                upload(&data.additional_value, more, heads_kv, dim_v),
            )
        }),
    };
    let outputs = ForwardOutputs {
        out: format.poisoned(client, data.dout.len()),
        lse: F32.poisoned(client, data.dlse.len()),
    };
    forward_with(client, schedule, problem, &inputs, &outputs).expect("launched");
    (
        format.download(client, &outputs.out, data.dout.len()),
        F32.download(client, &outputs.lse, data.dlse.len()),
    )
}

/// Root mean square and maximum.
fn norms(differences: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut square, mut most, mut count) = (0.0, 0.0f64, 0);
    for difference in differences {
        square += difference * difference;
        most = if difference.abs() > most { difference.abs() } else { most };
        // NaN is never right.
        most = if difference.is_nan() { f64::INFINITY } else { most };
        count += 1;
    }
    ((square / f64::from(count.max(1))).sqrt(), most)
}

/// At most twice the error of a result that is right but for its rounding; the logsumexp, in f32,
/// to 1e-5.
fn check(
    client: &Client,
    schedule: &Schedule,
    problem: &Problem,
    seed: u64,
) -> Result<f64, String> {
    let format = format(schedule.element);
    let data = Data::random(problem, seed, format.round);
    let exact = compute(problem, &data, |x| x);
    let (out, lse) = run(client, schedule, problem, &data);
    let (rms, most) = norms(out.iter().zip(&exact.out).map(|(a, e)| a - e));
    let (base_rms, base_most) = norms(exact.out.iter().map(|x| (format.round)(*x) - x));
    let magnitude = exact.out.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    let half_ulp = if schedule.element == Element::F16 { 0.5f64.powi(11) } else { 0.5f64.powi(8) };
    let base_most = base_most.max(half_ulp * magnitude);
    if !(rms <= 2.0 * base_rms && most <= 2.0 * base_most) {
        return Err(format!(
            "{schedule}: out off by {rms:.1e} rms of {base_rms:.1e}, {most:.1e} of {base_most:.1e}; {problem:?}"
        ));
    }
    let (_, lse_most) = norms(lse.iter().zip(&exact.lse).map(|(a, e)| (a - e) / e.abs().max(1.0)));
    if lse_most > 1e-5 {
        return Err(format!("{schedule}: logsumexp off by {lse_most:.1e}; {problem:?}"));
    }
    Ok(rms / base_rms)
}

fn random_problem(rng: &mut StdRng, rank: usize) -> (Problem, Element) {
    let dims =
        [(64, 64), (128, 128), (32, 32), (40, 72), (96, 96), (256, 256), (72, 40), (128, 64)];
    let (head_dim, head_dim_v) = dims[rng.random_range(0..dims.len())];
    let mut axes = [Axis::UNIT; 3];
    let longest = [700, 40, 14][rank - 1];
    let is_dense = rank == 1 && rng.random_bool(0.3);
    for axis in &mut axes[3 - rank..] {
        let length = rng.random_range(4..=longest);
        if is_dense {
            let keys = rng.random_range(1..=longest);
            *axis = Axis::dense(length, keys, rng.random());
            continue;
        }
        let dilation = if rng.random_bool(0.5) { 1 } else { rng.random_range(1..=length / 2) };
        let kernel_size = rng.random_range(2..=length / dilation);
        let stride = if rng.random_bool(0.5) { 1 } else { rng.random_range(1..=kernel_size) };
        let is_causal = rng.random_bool(0.3);
        *axis = Axis { queries: length, keys: length, kernel_size, stride, dilation, is_causal };
    }
    let heads_kv = rng.random_range(1..=2);
    let problem = Problem {
        batch: rng.random_range(1..=2),
        heads: heads_kv * rng.random_range(1..=2),
        heads_kv,
        head_dim,
        head_dim_v,
        additional: if rng.random_bool(0.3) { rng.random_range(1..=200) } else { 0 },
        scale: (head_dim as f64).sqrt().recip(),
        axes,
    };
    (problem, if rng.random() { Element::F16 } else { Element::Bf16 })
}

/// Runs `check` for every problem, on all cores, and fails with all that failed.
fn check_all(client: &Client, cases: &[(Problem, Schedule)]) {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(vec![]);
    let worst = Mutex::new(0.0f64);
    let threads = std::thread::available_parallelism().map_or(4, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((problem, schedule)) = cases.get(index) else { break };
                    match check(client, schedule, problem, index as u64) {
                        Ok(ratio) => {
                            let mut worst = worst.lock().expect("no panic");
                            *worst = worst.max(ratio);
                        }
                        Err(text) => failures.lock().expect("no panic").push(text),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panic");
    println!(
        "{} problems, worst rms error {:.2} times that of rounding",
        cases.len(),
        worst.into_inner().expect("no panic")
    );
    for failure in failures.iter().take(12) {
        println!("{failure}");
    }
    assert!(failures.is_empty(), "{} of {} failed", failures.len(), cases.len());
}

fn random(rank: usize) {
    let Some(client) = device() else { return };
    let count = std::env::var("BURN_NATTEN_TEST_PROBLEMS")
        .map_or(500, |count| count.parse().expect("a number"));
    let mut rng = StdRng::seed_from_u64(rank as u64);
    let cases: Vec<_> = (0..count)
        .map(|_| {
            let (problem, element) = random_problem(&mut rng, rank);
            // Half with the schedule that would run, half with any that could.
            let all = sm90::candidates(&problem, element);
            let any = all[rng.random_range(0..all.len())];
            let schedule = sm90::plan(&problem, element).expect("supported");
            (problem, if rng.random() { schedule } else { any })
        })
        .collect();
    check_all(&client, &cases);
}

#[test]
fn one_axis() {
    random(1);
}

#[test]
fn two_axes() {
    random(2);
}

#[test]
fn three_axes() {
    random(3);
}
