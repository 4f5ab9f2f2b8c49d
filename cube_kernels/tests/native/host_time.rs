//! What a call costs the thread that makes it.

use std::time::{Duration, Instant};

use burn_natten_kernels::Problem;
use burn_natten_kernels::native::sm90::{Element, forward};
use cubecl::client::Client;
use cubecl::future::block_on;
use test_support::compare::{device, format};
use test_support::{Data, axis, problem};

use crate::run::upload;

const CALLS: usize = 200;

/// What one call takes: the least of three medians, since other tests run at the same time.
pub fn enqueue_time(client: &Client, call: impl Fn()) -> Duration {
    call();
    let median = || {
        block_on(client.sync()).expect("the kernel ran");
        let mut times: Vec<Duration> = (0..CALLS)
            .map(|_| {
                let start = Instant::now();
                call();
                start.elapsed()
            })
            .collect();
        times.sort();
        times[CALLS / 2]
    };
    (0..3).map(|_| median()).min().expect("three medians")
}

/// Panics where a call takes longer than it may, but for an unoptimised build.
pub fn assert_below(name: &str, time: Duration, limit: Duration) {
    println!("{name} takes the calling thread {time:?}, median of {CALLS} calls");
    assert!(cfg!(debug_assertions) || time < limit, "{time:?}, not below {limit:?}");
}

/// Three axes: the largest choice of schedules.
pub fn demanding() -> Problem {
    let axes = [axis(9, 5, 1, 1, false), axis(13, 5, 1, 1, false), axis(21, 7, 1, 1, false)];
    problem(&axes, 128)
}

#[test]
fn a_call_returns_at_once() {
    let Some(client) = device() else { return };
    let (problem, element) = (demanding(), Element::Bf16);
    let data = Data::random(&problem, 3, format(element).round);
    let inputs = upload(&client, element, &problem, &data);
    let outputs = format(element).poisoned_outputs(&client, &problem);
    let call = || forward(&client, &problem, element, None, &inputs, &outputs).expect("launched");
    assert_below("forward", enqueue_time(&client, call), Duration::from_micros(50));
}
