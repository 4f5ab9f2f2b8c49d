//! Comparing what a device gives with what is right.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cubecl::client::Client;
use cubecl::ir::FloatKind;

use crate::format::Format;

/// The device, unless tests on it are off.
pub fn device() -> Option<Client> {
    if asks("BURN_NATTEN_TEST_CUDA", "1") {
        return Some(cubecl::Device::cuda(0).expect("a CUDA device").client());
    }
    if asks("BURN_NATTEN_TEST_WGPU", "1") {
        return Some(cubecl::Device::wgpu(Default::default()).expect("a WebGPU device").client());
    }
    println!("not run: neither BURN_NATTEN_TEST_CUDA nor BURN_NATTEN_TEST_WGPU is 1");
    None
}

/// Whether what is under test is a device of wgpu's.
pub fn is_webgpu() -> bool {
    asks("BURN_NATTEN_DEVICE", "wgpu") || asks("BURN_NATTEN_TEST_WGPU", "1")
}

/// Whether a variable of the environment has this value.
fn asks(name: &str, what: &str) -> bool {
    std::env::var(name).is_ok_and(|value| value == what)
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

/// Output and logsumexp.
pub type Forward = (Vec<f64>, Vec<f64>);

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
