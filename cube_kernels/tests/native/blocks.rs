//! Block-sparse attention.

use burn_natten_kernels::native::sm90::{
    Element, Union, backward_blocks, backward_blocks_with, backward_union, block_candidates,
    forward_blocks, forward_blocks_with, planned_blocks, planned_blocks_backward,
};
use burn_natten_kernels::native::sm90::{Gradients, Pass};
use burn_natten_kernels::{Axis, BlockSparse, Problem};
use cubecl::client::Client;
use rand::{SeedableRng, rngs::StdRng};
use test_support::Data;
use test_support::blocks::{
    Case, Layout, blocks_that_all_list, native_cases, operands, own_lists, random_lists,
    random_native, saved, upload_lists,
};
use test_support::compare::{device, format};
use test_support::problems::seed;

const ELEMENTS: [Element; 2] = [Element::F16, Element::Bf16];

fn check(client: &Client, element: Element, case: &Case) -> [Result<(), String>; 2] {
    let sparse = &case.sparse;
    [
        case.check_forward(client, element, |inputs, lists, outputs| {
            forward_blocks(client, sparse, element, inputs, lists, outputs)
        }),
        case.check_backward(client, element, |saved, lists, gradients| {
            backward_blocks(client, sparse, element, saved, lists, gradients)
        }),
    ]
}

fn check_all(client: &Client, cases: &[(Element, Case)]) {
    let results = cases.iter().flat_map(|(element, case)| check(client, *element, case));
    let failures: Vec<_> = results.filter_map(Result::err).collect();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

#[test]
fn every_kind() {
    let Some(client) = device() else { return };
    let cases = || native_cases().into_iter().chain(blocks_that_all_list());
    let all: Vec<_> =
        ELEMENTS.into_iter().flat_map(|element| cases().map(move |case| (element, case))).collect();
    check_all(&client, &all);
}

/// Also schedules that are not the first choice.
#[test]
fn every_schedule() {
    let Some(client) = device() else { return };
    for case in native_cases() {
        let (sparse, element) = (&case.sparse, Element::Bf16);
        for schedule in block_candidates(sparse, element, Pass::Forward, Gradients::NONE) {
            let launched = case.check_forward(&client, element, |inputs, lists, outputs| {
                forward_blocks_with(&client, &schedule, sparse, inputs, lists, outputs)
            });
            launched.unwrap_or_else(|text| panic!("{schedule}: {text}"));
        }
        let plan = planned_blocks_backward(sparse, element).expect("is supported");
        let [queries, keys] = [&plan.queries[..], &plan.keys].map(|kernels| {
            let all = |gradients| block_candidates(sparse, element, kernels[0].pass, gradients);
            kernels.iter().map(|schedule| all(schedule.gradients)).collect::<Vec<_>>()
        });
        for number in 0..queries[0].len().max(keys[0].len()) {
            let choose =
                |all: &[Vec<_>]| all.iter().map(|some| some[number.min(some.len() - 1)]).collect();
            let other = burn_natten_kernels::native::sm90::BackwardPlan {
                queries: choose(&queries),
                keys: choose(&keys),
                additional: vec![],
                slopes: None,
            };
            let launched = case.check_backward(&client, element, |saved, lists, gradients| {
                backward_blocks_with(&client, &other, sparse, saved, lists, gradients)
            });
            launched.unwrap_or_else(|text| panic!("{other:?}: {text}"));
        }
    }
}

#[test]
fn random_problems() {
    let Some(client) = device() else { return };
    let count = std::env::var("BURN_NATTEN_TEST_PROBLEMS")
        .map_or(100, |count| count.parse().expect("a number"));
    let is_supported = |case: &Case| planned_blocks(&case.sparse, Element::F16).is_ok();
    let cases = random_native(seed() as u64).filter(is_supported).take(count);
    let cases: Vec<_> =
        cases.enumerate().map(|(number, case)| (ELEMENTS[number / 10 % 2], case)).collect();
    check_all(&client, &cases);
    println!("{count} problems");
}

#[test]
fn lists_for_each_query() {
    let Some(client) = device() else { return };
    let cases = || own_lists().into_iter();
    let all: Vec<_> =
        ELEMENTS.into_iter().flat_map(|element| cases().map(move |case| (element, case))).collect();
    check_all(&client, &all);
}

/// The blocks of native sparse attention: the first one, which all list, some by chance, and a query's own; inverse lists whole and in
/// parts.
#[test]
fn lists_with_a_block_that_all_have() {
    let Some(client) = device() else { return };
    for (number, (group, dim, key_block)) in [
        (4, 128, 64),
        (16, 128, 64),
        (8, 64, 32),
        (1, 64, 16),
        (32, 128, 32),
        (11, 96, 64),
        (8, 64, 64),
    ]
    .into_iter()
    .enumerate()
    {
        let problem =
            Problem::new([Axis::dense(1111, 1111, true)], 2 * group, dim).with_heads_kv(2);
        let sparse = BlockSparse::new(problem, [1], [key_block]).with_lists(2, 6);
        let seed = 40 + number as u64;
        let mut lists = random_lists(&sparse, &mut StdRng::seed_from_u64(seed));
        for (list, entries) in lists.chunks_mut(6).enumerate() {
            entries[0] = 0;
            entries[5] = (list / 2 / key_block) as i32;
        }
        let name = format!("{group} {dim} {key_block}");
        let case = Case { name, sparse, lists, layout: Layout::Contiguous, seed };
        let element = ELEMENTS[number % 2];
        check_all(&client, &[(element, case.clone())]);
        let of = Union::of(&sparse, element).expect("is one");
        // Results of a sample and key head at a time, for those that go from block to block.
        let of_parts = Union { part: 100, results: 1, ..of };
        let launched = case.check_backward(&client, element, |saved, lists, gradients| {
            backward_union(&client, &of_parts, &sparse, saved, lists, gradients)
        });
        launched.unwrap_or_else(|text| panic!("{of}, in parts: {text}"));
    }
}

/// What joins lists has shared memory for their entries: the same kernel, launched with more than at first.
#[test]
fn lists_that_grow() {
    let Some(client) = device() else { return };
    for (entries, seed) in [(1, 60), (4, 61), (11, 62), (2, 63)] {
        let problem = Problem::new([Axis::dense(400, 400, true)], 4, 32).with_heads_kv(2);
        let sparse = BlockSparse::new(problem, [1], [32]).with_lists(2, entries);
        let lists = random_lists(&sparse, &mut StdRng::seed_from_u64(seed));
        let name = format!("{entries} entries");
        let case = Case { name, sparse, lists, layout: Layout::Contiguous, seed };
        check_all(&client, &[(Element::Bf16, case)]);
    }
}

/// Long lists, many tiles of a CTA, and tiles of falling length.
#[test]
fn long_lists() {
    let Some(client) = device() else { return };
    for (is_causal, heads_kv, block) in
        [(false, 2, 128), (true, 2, 64), (true, 1, 128), (true, 2, 32)]
    {
        let problem =
            Problem::new([Axis::dense(1500, 1500, is_causal)], 2, 64).with_heads_kv(heads_kv);
        let sparse = BlockSparse::new(problem, [block], [block]);
        let sparse = sparse.with_lists(heads_kv, sparse.key_blocks());
        let lists = random_lists(&sparse, &mut StdRng::seed_from_u64(9));
        let name = format!("{is_causal} {heads_kv} {block}");
        let case = Case { name, sparse, lists, layout: Layout::Contiguous, seed: 9 };
        check_all(&client, &[(Element::Bf16, case)]);
    }
}

#[test]
fn results_repeat_bit_by_bit() {
    let Some(client) = device() else { return };
    let problem = Problem::new([Axis::dense(3000, 3000, true)], 8, 128).with_heads_kv(4);
    let sparse = BlockSparse::new(problem, [128], [128]).with_lists(4, 12);
    repeat(&client, &sparse);
    let problem = problem.with_heads_kv(2);
    repeat(&client, &BlockSparse::new(problem, [1], [64]).with_lists(2, 12));
}

fn repeat(client: &Client, sparse: &BlockSparse) {
    let (element, problem) = (Element::Bf16, sparse.problem);
    let lists = random_lists(sparse, &mut StdRng::seed_from_u64(10));
    let data = Data::random(&problem, 10, format(element).round);
    let lists = upload_lists(client, &lists);
    let of = || {
        let outputs = format(element).poisoned_outputs(client, &problem);
        let inputs = operands(client, format(element), sparse, &data, Layout::Contiguous);
        forward_blocks(client, sparse, element, &inputs, &lists, &outputs).expect("launched");
        let (out, lse) = format(element).download_outputs(client, &problem, &outputs);
        let saved = saved(client, format(element), sparse, &data, [&out, &lse], Layout::Contiguous);
        let gradients = format(element).poisoned_gradients(client, &problem);
        backward_blocks(client, sparse, element, &saved, &lists, &gradients).expect("launched");
        let gradients = format(element).download_gradients(client, &problem, &gradients);
        let bits = |values: Vec<f64>| values.into_iter().map(f64::to_bits).collect::<Vec<_>>();
        let all: Vec<_> = gradients.into_iter().map(|(_, values)| bits(values)).collect();
        (bits(out), bits(lse), all)
    };
    let first = of();
    for _ in 0..10 {
        assert!(of() == first);
    }
}
