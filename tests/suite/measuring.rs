//! The check that benches make before they time: it passes what is right, and nothing else.

// What the benches do not use of it here is used there.
#[path = "../../benches/catalogue/exact.rs"]
mod exact;
#[path = "../../benches/catalogue/verify.rs"]
mod verify;

use burn::tensor::{DType, Device, Tensor};
use burn_natten::profile::Workload;
use burn_natten::{Context, Strategy};
use burn_natten_kernels::{Axis, Problem};

use verify::{Errors, Results, bound, verify};

fn workloads() -> Vec<Workload> {
    let axis = |length, kernel_size, stride, dilation, is_causal| {
        Axis::neighborhood(length, kernel_size)
            .with_stride(stride)
            .with_dilation(dilation)
            .with_causal(is_causal)
    };
    let problem = |axes: &[Axis]| {
        Problem::new(axes, 4, 8).with_batch(2).with_heads_kv(2).with_head_dim_v(6).with_scale(0.4)
    };
    let problems = [
        problem(&[Axis::dense(20, 30, true)]),
        problem(&[axis(12, 5, 2, 2, false), axis(9, 3, 1, 1, true)]),
        problem(&[axis(6, 4, 3, 1, true), axis(7, 3, 1, 2, false), axis(5, 5, 1, 1, false)]),
    ];
    problems
        .map(|problem| Workload {
            problem,
            dtype: DType::F32,
            strategy: Strategy::Auto,
            context: Context::current(),
        })
        .to_vec()
}

#[test]
fn right_results_pass() {
    for workload in workloads() {
        let Errors { forward, backward } =
            verify(&workload, &Device::flex(), true).expect("results");
        let backward = backward.expect("the backward pass was asked for");
        assert!(forward < 1e-5 && backward < 1e-5, "{forward:e} {backward:e}");
    }
}

#[test]
fn every_output_that_is_wrong_is_found() {
    let bound = bound(DType::F32);
    type Spoil = fn(&mut Results);
    fn spoiled<const D: usize>(tensor: &mut Tensor<D>) {
        *tensor = tensor.clone().mul_scalar(1.01);
    }
    let cases: [(Spoil, bool); 5] = [
        (|results| spoiled(&mut results.outputs.out), true),
        (|results| spoiled(&mut results.outputs.logsumexp), true),
        (|results| spoiled(&mut results.gradients.as_mut().expect("gradients").query), false),
        (|results| spoiled(&mut results.gradients.as_mut().expect("gradients").key), false),
        (|results| spoiled(&mut results.gradients.as_mut().expect("gradients").value), false),
    ];
    for workload in workloads() {
        for (index, (spoil, is_forward)) in cases.into_iter().enumerate() {
            let mut results = Results::compute(&workload, &Device::flex(), true).expect("results");
            spoil(&mut results);
            let Errors { forward, backward } = results.errors(&workload.problem);
            let error = if is_forward { Some(forward) } else { backward };
            assert!(error.is_some_and(|error| error > bound), "case {index}: {error:?}");
        }
    }
}

#[test]
fn what_is_not_a_number_is_wrong() {
    let workload = workloads()[1];
    let mut results = Results::compute(&workload, &Device::flex(), false).expect("results");
    results.outputs.out = results.outputs.out.mul_scalar(f32::NAN);
    assert_eq!(results.errors(&workload.problem).forward, f64::INFINITY);
}
