//! Launches that a CUDA graph records. Each replay finds results full of NaN.

use burn_natten_kernels::native::decode::decode;
use burn_natten_kernels::native::sm90::{
    BackwardPlan, Element, backward_packed, backward_with, forward_packed, forward_with,
};
use burn_natten_kernels::{Axis, KernelError, Operands, Problem, Saved, Strided};
use cubecl::client::Client;
use cubecl::server::Handle;
use cubecl_common::bytes::Bytes;
use test_support::blocks::Layout;
use test_support::compare::{device, format};
use test_support::decoding;
use test_support::oracle::compute;
use test_support::packed::{check_backward, check_forward as check_packed, images, texts};
use test_support::problems::repeated;
use test_support::tier::{self, BackwardTier, ForwardTier, upload_all};
use test_support::{Data, axis, problem};

use crate::backward::run::planned as planned_backward;
use crate::run::{planned, upload};
use crate::ways::Native;

/// Runs a test on the device in a process of its own: whatever another thread allocates ends a recording.
fn alone(name: &str, test: impl FnOnce(&Client)) {
    let Some(client) = device() else { return };
    test_support::alone::alone(name, || test(&client));
}

/// Records what `launch` enqueues, once it has run, all of it on inputs of zeros, and has two replays write these results.
fn replayed<'a>(
    client: &Client,
    inputs: impl IntoIterator<Item = &'a Handle>,
    results: impl IntoIterator<Item = &'a Handle>,
    launch: impl Fn() -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    let results: Vec<_> = results.into_iter().collect();
    let content = |input: &'a Handle| (input, client.read_one(input.clone()).expect("uploaded"));
    let inputs: Vec<_> = inputs.into_iter().map(content).collect();
    for (input, bytes) in &inputs {
        client.write(input, Bytes::from_bytes_vec(vec![0; bytes.len()]));
    }
    client.graph_prepare().expect("ready to record");
    for _ in 0..2 {
        launch()?;
        client.read_one(results[0].clone()).expect("the kernels ran");
    }
    client.start_capture().expect("recording");
    let launched = launch();
    let graph = client.stop_capture().expect("recorded");
    launched?;
    for (input, bytes) in inputs {
        client.write(input, bytes);
    }
    for _ in 0..2 {
        for result in &results {
            // NaN in every type.
            let poison = vec![0xff; result.size_in_used() as usize];
            client.write(result, Bytes::from_bytes_vec(poison));
        }
        // SAFETY: all that the launches read and write is alive, and used by this thread alone.
        unsafe { graph.replay() }.expect("replayed");
        client.read_one(results[0].clone()).expect("the graph ran");
    }
    Ok(())
}

fn all_inputs(inputs: &Operands<Strided>) -> impl Iterator<Item = &Handle> {
    inputs.iter().map(|(_, input)| &input.handle)
}

fn saved_inputs(saved: &Saved<Strided>) -> impl Iterator<Item = &Handle> {
    let (forward, backward) = (&saved.outputs, &saved.gradients);
    let more = [&forward.out, &forward.lse, &backward.out, &backward.lse];
    all_inputs(&saved.operands).chain(more.map(|input| &input.handle))
}

fn all_of(gradients: &Operands<Option<Handle>>) -> impl Iterator<Item = &Handle> {
    gradients.iter().filter_map(|(_, gradient)| gradient.as_ref())
}

/// The gradients of a plan from a graph, held to the oracle.
fn check(client: &Client, element: Element, plan: &BackwardPlan, problem: &Problem, seed: usize) {
    let format = format(element);
    let data = Data::random(problem, seed as u64, format.round);
    let exact = compute(problem, &data, format.round);
    let saved = upload_all(client, format, problem, &data, &exact);
    let gradients = format.poisoned_gradients(client, problem);
    let launch = || backward_with(client, plan, problem, &saved, &gradients);
    replayed(client, saved_inputs(&saved), all_of(&gradients), launch).expect("launched");
    let actual = format.download_gradients(client, problem, &gradients);
    let names = Native::names(plan);
    let checked = tier::check_gradients(&names, format, problem, &data, &exact, &actual);
    checked.unwrap_or_else(|text| panic!("{text}"));
}

#[test]
fn forward() {
    alone("graph::forward", |client| {
        for (seed, problem) in repeated().iter().enumerate() {
            let element = Native::ELEMENTS[seed % 2];
            let format = format(element);
            let data = Data::random(problem, seed as u64, format.round);
            let schedule = planned(problem, element);
            let inputs = upload(client, element, problem, &data);
            let outputs = format.poisoned_outputs(client, problem);
            let launch = || forward_with(client, &schedule, problem, &inputs, &outputs);
            let results = [&outputs.out, &outputs.lse];
            replayed(client, all_inputs(&inputs), results, launch).expect("launched");
            let result = format.download_outputs(client, problem, &outputs);
            let exact = compute(problem, &data, |x| x);
            let checked =
                tier::check_forward(&schedule.to_string(), format, problem, &exact, &result);
            checked.unwrap_or_else(|text| panic!("{text}"));
        }
    });
}

/// Small windows, whose second launch begins early, and all that has launches of several kinds.
#[test]
fn backward() {
    alone("graph::backward", |client| {
        let of = |problem: Problem| (problem, planned_backward(&problem, Element::Bf16));
        let cases: Vec<_> = repeated().into_iter().map(of).collect();
        assert!(cases.iter().any(|(_, plan)| plan.queries[0].makes_statistics), "{cases:?}");
        for (seed, (problem, plan)) in cases.iter().enumerate() {
            check(client, Element::Bf16, plan, problem, seed);
        }
    });
}

/// One head at once, in two lanes: a second stream is part of the graph.
#[test]
fn slopes() {
    alone("graph::slopes", |client| {
        let grouped = |problem: Problem| problem.with_heads(6).with_heads_kv(3).with_batch(2);
        let window = |length, kernel_size| axis(length, kernel_size, 1, 1, false);
        let problems = [
            grouped(problem(&[Axis::dense(1024, 1024, false)], 128)),
            grouped(problem(&[Axis::dense(777, 777, true)], 96)),
            grouped(problem(&[window(64, 23), window(48, 20)], 128)),
        ];
        for (seed, problem) in problems.iter().enumerate() {
            let mut plan = planned_backward(problem, Element::F16).without_slopes();
            plan.keys[0].splits = 1;
            let plan = plan.with_slopes(problem, 1).expect("whole blocks");
            check(client, Element::F16, &plan, problem, seed);
        }
    });
}

/// Tables of addresses are copied from the host.
#[test]
fn packed() {
    alone("graph::packed", |client| {
        let element = Element::Bf16;
        let like = Problem::new([Axis::UNIT], 4, 64).with_heads_kv(2);
        for problems in [texts(like), images(like)] {
            check_packed(client, element, &problems, |packed, inputs, outputs| {
                replayed(client, all_inputs(inputs), [&outputs.out, &outputs.lse], || {
                    forward_packed(client, packed, element, None, inputs, outputs)
                })
            });
            check_backward(client, element, &problems, |packed, inputs, gradients| {
                replayed(client, saved_inputs(inputs), all_of(gradients), || {
                    backward_packed(client, packed, element, None, inputs, gradients)
                })
            });
        }
    });
}

/// The step that language models repeat.
#[test]
fn decoding_step() {
    alone("graph::decoding_step", |client| {
        let element = Element::Bf16;
        for (seed, (name, of)) in decoding::cases().into_iter().enumerate() {
            let data = decoding::Data::random(&of, seed as u64, format(element));
            let with = (format(element), Layout::Contiguous);
            let got = decoding::run(client, &of, &data, with, |inputs, outputs| {
                let (outs, lses) = (&outputs.outs, &outputs.logsumexps);
                let branches = [outs, lses].map(|of| [&of.compressed, &of.selected, &of.window]);
                let results = [&outputs.out, &outputs.lists]
                    .into_iter()
                    .chain(branches.into_iter().flatten());
                replayed(client, [&inputs.query.handle], results, || {
                    decode(client, &of, element, inputs, outputs)
                })
            });
            let checked = decoding::check(&of, &data, format(element), &got);
            checked.unwrap_or_else(|text| panic!("{name}: {text}"));
        }
    });
}
