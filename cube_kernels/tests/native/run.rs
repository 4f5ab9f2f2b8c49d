//! Runs the forward pass on the device and compares it with the oracle.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_natten_kernels::native::sm90::{Element, Schedule, forward_with, plan};
use burn_natten_kernels::{Operands, Problem, Strided};
use cubecl::client::Client;
use cubecl::ir::FloatKind;

use crate::support::Data;
use crate::support::oracle::compute;
use crate::support::run::{BF16, F16, Format};

/// The device, unless tests on it are off.
pub fn device() -> Option<Client> {
    if std::env::var("BURN_NATTEN_TEST_CUDA").is_ok_and(|value| value == "1") {
        return Some(cubecl::Device::cuda(0).expect("a CUDA device").client());
    }
    println!("not run: BURN_NATTEN_TEST_CUDA is not 1");
    None
}

impl From<Element> for Format {
    fn from(element: Element) -> Self {
        match element {
            Element::F16 => F16,
            Element::Bf16 => BF16,
        }
    }
}

pub fn format(element: impl Into<Format>) -> Format {
    element.into()
}

/// Half the distance of neighboring numbers, relative to them, at most.
pub fn half_ulp(element: impl Into<Format>) -> f64 {
    match element.into().kind {
        FloatKind::BF16 => 0.5f64.powi(8),
        // f16 and tf32.
        _ => 0.5f64.powi(11),
    }
}

pub fn planned(problem: &Problem, element: Element) -> Schedule {
    plan(problem, element).unwrap_or_else(|| panic!("no schedule for {problem:?}"))
}

/// Contiguous tensors on the device.
pub fn upload(
    client: &Client,
    element: Element,
    problem: &Problem,
    data: &Data,
) -> Operands<Strided> {
    format(element).operands(client, problem, data)
}

/// Output and logsumexp.
pub type Forward = (Vec<f64>, Vec<f64>);

/// Runs the forward pass on tensors that lie on the device.
pub fn run_inputs(
    client: &Client,
    schedule: &Schedule,
    problem: &Problem,
    inputs: &Operands<Strided>,
) -> Forward {
    let format = format(schedule.element);
    let outputs = format.poisoned_outputs(client, problem);
    forward_with(client, schedule, problem, inputs, &outputs).expect("launched");
    format.download_outputs(client, problem, &outputs)
}

/// Uploads the data and runs the forward pass.
pub fn run(client: &Client, schedule: &Schedule, problem: &Problem, data: &Data) -> Forward {
    run_inputs(client, schedule, problem, &upload(client, schedule.element, problem, data))
}

/// Root mean square and maximum.
pub fn norms(differences: impl Iterator<Item = f64>) -> (f64, f64) {
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
/// to 1e-5. Gives the error relative to that of rounding.
pub fn check(
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
    let base_most = base_most.max(half_ulp(schedule.element) * magnitude(&exact.out));
    // A single key gives its value back, which needs no rounding.
    let base_rms = base_rms.max(1e-9);
    if !(rms <= 2.0 * base_rms && most <= 2.0 * base_most) {
        return Err(format!(
            "{schedule}: out off by {rms:.1e} rms of {base_rms:.1e}, {most:.1e} of {base_most:.1e}; {problem:?}"
        ));
    }
    if let Some(place) = differs(&lse, &exact.lse, |_, e| 1e-5 * e.abs().max(1.0)) {
        return Err(format!("{schedule}: logsumexp: {place}; {problem:?}"));
    }
    Ok(rms / base_rms)
}

/// Largest finite absolute value.
pub fn magnitude(values: &[f64]) -> f64 {
    values.iter().filter(|x| x.is_finite()).fold(0.0, |most, x| x.abs().max(most))
}

/// NaN where NaN is expected, the same infinity where one is, and otherwise a number at most
/// `allowed` away. Gives the first place that differs.
pub fn differs(
    actual: &[f64],
    exact: &[f64],
    allowed: impl Fn(usize, f64) -> f64,
) -> Option<String> {
    assert_eq!(actual.len(), exact.len());
    actual.iter().zip(exact).enumerate().find_map(|(index, (a, e))| {
        let right = match (e.is_nan(), e.is_finite()) {
            (true, _) => a.is_nan(),
            (_, false) => a == e,
            _ => (a - e).abs() <= allowed(index, *e),
        };
        (!right).then(|| format!("{a} where {e} is expected, at {index} of {}", exact.len()))
    })
}

/// Runs [`check`] for every problem.
pub fn check_all(client: &Client, cases: &[(Problem, Schedule)]) {
    for_each_case(cases, |(problem, schedule), seed| check(client, schedule, problem, seed));
}

/// Runs `check` for every case, on all cores, and fails with all that failed. It gives an error
/// relative to that of rounding.
pub fn for_each_case<C: Sync>(cases: &[C], check: impl Fn(&C, u64) -> Result<f64, String> + Sync) {
    assert!(!cases.is_empty());
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(vec![]);
    let worst = Mutex::new(0.0f64);
    let threads = std::thread::available_parallelism().map_or(4, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(index) else { break };
                    match check(case, index as u64) {
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
