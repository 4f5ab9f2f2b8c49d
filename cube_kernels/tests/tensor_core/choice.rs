//! Kernels chosen by measurement.

use std::time::Instant;

use burn_natten_kernels::tensor_core::{Choice, backward, forward};
use burn_natten_kernels::{KernelError, Outputs};
use test_support::compare::{device, format, half_ulp, magnitude};
use test_support::oracle::compute;
use test_support::tier::upload_all;
use test_support::{Data, axis, problem};

use crate::attend::{dtype, upload};
use crate::ways::{Element, half};

/// As far off as rounding of the weights and of the result makes it.
fn check(element: Element, name: &str, actual: &[f64], expected: &[f64]) {
    let near = 3.0 * half_ulp(element) * magnitude(expected);
    let most = actual.iter().zip(expected).map(|(a, e)| (a - e).abs()).fold(0.0, f64::max);
    // Not the other way round: NaN is not near.
    assert!(most <= near && actual.iter().all(|a| a.is_finite()), "{name} is off by {most:e}");
}

#[test]
fn measured_kernels_are_right_and_chosen_once() {
    let Some(client) = device() else { return };
    let element = half(&client);
    let dense = problem(&[axis(500, 500, 1, 1, false)], 128);
    for problem in [
        dense,
        // Like the first one to the tuner, and like nothing to the memory of choices.
        dense.with_axes([axis(470, 470, 1, 1, false)]),
        problem(&[axis(20, 5, 1, 1, false), axis(24, 7, 1, 2, true)], 64),
    ] {
        let data = Data::random(&problem, 3, format(element).round);
        let exact = compute(&problem, &data, format(element).round);
        let inputs = upload(&client, element, &problem, &data);
        let rows = problem.batch * problem.queries() * problem.heads;
        let count = rows * problem.head_dim_v;
        let mut seconds = vec![];
        for _ in 0..2 {
            let outputs = format(element).poisoned_outputs(&client, &problem);
            let start = Instant::now();
            forward(&client, &problem, dtype(element), Choice::Measured, &inputs, &outputs)
                .expect("launched");
            seconds.push(start.elapsed().as_secs_f64());
            check(
                element,
                "out",
                &format(element).download(&client, &outputs.out, count),
                &exact.out,
            );
        }
        println!("{seconds:.4?} s to launch for the first and the second time");
        let inputs = upload_all(&client, element, &problem, &data, &exact);
        for _ in 0..2 {
            let outputs = format(element).poisoned_gradients(&client, &problem);
            backward(&client, &problem, dtype(element), Choice::Measured, &inputs, &outputs)
                .expect("launched");
            let gradients = format(element).download_gradients(&client, &problem, &outputs);
            let all = gradients.iter().zip([&exact.dq, &exact.dk, &exact.dv]);
            all.for_each(|((name, actual), expected)| check(element, name, actual, expected));
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_measured() {
    let Some(client) = device() else { return };
    let element = half(&client);
    let problem = problem(&[axis(30, 4, 1, 1, false)], 64);
    let data = Data::random(&problem, 5, format(element).round);
    let inputs = upload(&client, element, &problem, &data);
    let rows = problem.batch * problem.queries() * problem.heads;
    let outputs = Outputs { out: client.empty(2 * rows * 64), lse: client.empty(4) };
    let result = forward(&client, &problem, dtype(element), Choice::Measured, &inputs, &outputs);
    assert!(matches!(result, Err(KernelError::Buffer { name: "lse", .. })), "{result:?}");
}
