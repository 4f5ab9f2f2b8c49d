//! What a call costs the thread that makes it.

use std::time::{Duration, Instant};

use burn_natten_kernels::native::sm90::{Element, forward};
use cubecl::future::block_on;

use crate::run::{device, format, poisoned_outputs, problem, upload};
use crate::support::{Data, axis};

const CALLS: usize = 200;
const LIMIT: Duration = Duration::from_micros(50);

/// Three axes: the largest choice of schedules. The least of three medians, since other tests run
/// at the same time.
#[test]
fn a_call_returns_at_once() {
    let Some(client) = device() else { return };
    let axes = [axis(9, 5, 1, 1, false), axis(13, 5, 1, 1, false), axis(21, 7, 1, 1, false)];
    let problem = problem(&axes, 128);
    let data = Data::random(&problem, 3, format(Element::Bf16).round);
    let inputs = upload(&client, Element::Bf16, &problem, &data);
    let outputs = poisoned_outputs(&client, Element::Bf16, &problem);
    let call =
        || forward(&client, &problem, Element::Bf16, None, &inputs, &outputs).expect("launched");
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
    let least = (0..3).map(|_| median()).min().expect("three medians");
    println!("forward takes the calling thread {least:?}, median of {CALLS} calls");
    assert!(cfg!(debug_assertions) || least < LIMIT, "{least:?}, not below {LIMIT:?}");
}
