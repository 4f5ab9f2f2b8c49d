//! Block-sparse attention.

use std::panic::panic_any;

use burn_natten_kernels::native::sm90::{
    Element, Items, Union, backward_blocks, backward_union, forward_blocks, forward_union,
    invert_lists, planned_blocks, planned_blocks_backward,
};
use burn_natten_kernels::{Axis, BlockSparse, Problem};
use cubecl::client::Client;
use rand::{SeedableRng, rngs::StdRng};
use test_support::Data;
use test_support::blocks::{
    Case, Layout, blocks_that_all_list, compute, naive_inverse, native_cases, own_lists,
    random_lists, random_native, read_inverse, saved, upload_lists,
};
use test_support::compare::{differs, format, half_ulp, magnitude};

use crate::run::{Machine, Policy};
use crate::ways::{MachineFault, client, hopper};

/// A launch that ends with a fault of the machine.
fn fail(case: &Case, fault: &str) -> ! {
    let text = format!("{}: {fault}; {:?}", case.name, case.sparse);
    eprintln!("{text}");
    panic_any(MachineFault(text))
}

/// The forward pass of a case on the machine.
pub fn forward(
    machine: &Machine,
    client: &Client,
    element: Element,
    case: &Case,
) -> Result<(), String> {
    case.check_forward(client, element, |inputs, lists, outputs| {
        let launch = || forward_blocks(client, &case.sparse, element, inputs, lists, outputs);
        machine.run(launch).unwrap_or_else(|fault| fail(case, &fault))
    })
}

/// The backward pass.
pub fn backward(
    machine: &Machine,
    client: &Client,
    element: Element,
    case: &Case,
) -> Result<(), String> {
    case.check_backward(client, element, |saved, lists, gradients| {
        let launch = || backward_blocks(client, &case.sparse, element, saved, lists, gradients);
        machine.run(launch).unwrap_or_else(|fault| fail(case, &fault))
    })
}

/// Passes on the machine.
#[derive(Clone, Copy, PartialEq)]
enum Passes {
    Forward,
    Both,
}

fn check(policy: Policy, passes: Passes, cases: &[Case]) {
    let Some(machine) = hopper(policy) else { return };
    let client = client();
    let mut failures = vec![];
    for (number, case) in cases.iter().enumerate() {
        let element = [Element::F16, Element::Bf16][number % 2];
        let of = Union::of(&case.sparse, element);
        match &of {
            Ok(of) => {
                let way = |visits: Option<Union>| if visits.is_some() { "visits" } else { "lists" };
                let ways = [of.visits(&case.sparse), of.visits_backward(&case.sparse)].map(way);
                println!("{}: {of}, by {}, backward by {}", case.name, ways[0], ways[1]);
            }
            Err(_) => {
                let schedule = planned_blocks(&case.sparse, element).expect("is supported");
                println!("{}: {schedule}", case.name);
            }
        }
        failures.extend(forward(&machine, &client, element, case).err());
        if passes == Passes::Both {
            if of.is_err() {
                let plan = planned_blocks_backward(&case.sparse, element).expect("is supported");
                let names: Vec<_> = plan.schedules().map(ToString::to_string).collect();
                println!("{}: {}", case.name, names.join(", "));
            }
            failures.extend(backward(&machine, &client, element, case).err());
        }
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

/// Those of them that have schedules, of which there are enough.
fn supported(count: usize, seed: u64) -> Vec<Case> {
    // One of each kind.
    let cases = random_native(seed).step_by(10).take(3 * count);
    let cases: Vec<_> = cases
        .filter(|case| planned_blocks(&case.sparse, Element::F16).is_ok())
        .take(count)
        .collect();
    assert_eq!(cases.len(), count);
    cases
}

#[test]
fn every_kind_forward() {
    check(Policy::Late, Passes::Forward, &native_cases());
}

#[test]
fn lists_for_each_query_forward() {
    let cases = own_lists();
    for case in &cases {
        Union::of(&case.sparse, Element::Bf16).expect("is one");
    }
    check(Policy::Late, Passes::Forward, &cases);
}

/// So that references are raised, in kernels for lists of each query and in those for blocks.
#[test]
fn scores_that_are_far_apart() {
    let mut cases = own_lists();
    cases.extend(native_cases().into_iter().take(6));
    for case in &mut cases {
        case.sparse.problem.scale *= 16.0;
    }
    check(Policy::Late, Passes::Forward, &cases);
}

#[test]
fn gradients_of_lists_for_each_query() {
    check(Policy::Random(3), Passes::Both, &own_lists());
}

/// Inverse lists in parts, which are added up; in the same order every time.
#[test]
fn gradients_of_lists_in_parts() {
    let Some(machine) = hopper(Policy::Early) else { return };
    let (client, element) = (client(), Element::Bf16);
    let case = &own_lists()[4];
    let of = Union::of(&case.sparse, element).expect("is one");
    let of = Union { part: 16, ..of };
    let checked = case.check_backward(&client, element, |saved, lists, gradients| {
        let launch = || backward_union(&client, &of, &case.sparse, saved, lists, gradients);
        machine.run(launch).unwrap_or_else(|fault| panic!("{fault}"))
    });
    checked.expect("is right");
}

/// From block to block, in parts of lists, and with the results of one or two of four samples and key heads at once.
#[test]
fn lists_that_are_visited_in_portions() {
    let Some(machine) = hopper(Policy::Random(5)) else { return };
    let client = client();
    let case = &own_lists()[6];
    let problem = &case.sparse.problem;
    assert_eq!(problem.batch * problem.heads_kv, 4);
    let of_one = problem.queries() * case.sparse.entries * 4 * (2 * 64 + 4);
    for (element, results) in [(Element::F16, 1), (Element::Bf16, 3 * of_one)] {
        let of = Union::of(&case.sparse, element).expect("is one");
        let of = Union { part: 24, results, ..of };
        assert_eq!(of.visits(&case.sparse).map(|of| of.part), Some(24));
        let checked = case.check_forward(&client, element, |inputs, lists, outputs| {
            let launch = || forward_union(&client, &of, &case.sparse, inputs, lists, outputs);
            machine.run(launch).unwrap_or_else(|fault| panic!("{fault}"))
        });
        checked.expect("is right");
        let checked = case.check_backward(&client, element, |saved, lists, gradients| {
            let launch = || backward_union(&client, &of, &case.sparse, saved, lists, gradients);
            machine.run(launch).unwrap_or_else(|fault| panic!("{fault}"))
        });
        checked.expect("is right");
    }
}

/// Those of every kind that have these words in their names.
pub fn named(words: &[&str]) -> Vec<Case> {
    let cases = native_cases().into_iter();
    let cases: Vec<_> =
        cases.filter(|case| words.iter().any(|word| case.name.contains(word))).collect();
    assert_eq!(cases.len(), words.len(), "{words:?}");
    cases
}

/// With heads that share lists, and with heads that fill tiles.
#[test]
fn gradients() {
    let words = ["short values, blocks of 32", "a list for 4 queries"];
    check(Policy::Early, Passes::Both, &named(&words));
}

/// Blocks of one box, or three: the warpgroups of a CTA have the same rows, and take steps in turn.
#[test]
fn gradients_of_shared_rows() {
    let cases = named(&[
        "1d causal, blocks of 64, two heads",
        "three heads that share lists",
        "blocks of 64, lists of each head",
    ]);
    for case in &cases {
        let plan = planned_blocks_backward(&case.sparse, Element::Bf16).expect("is supported");
        assert!(plan.schedules().all(|schedule| schedule.shares_rows), "{}", case.name);
    }
    for policy in [Policy::Late, Policy::Random(6)] {
        check(policy, Passes::Both, &cases);
    }
}

#[test]
#[ignore = "takes minutes"]
fn everything_in_every_order() {
    for policy in Policy::ALL {
        check(policy, Passes::Both, &native_cases());
    }
}

#[test]
#[ignore = "takes minutes"]
fn random_problems() {
    check(Policy::Random(4), Passes::Both, &supported(40, 8));
}

/// Long inverse lists are taken first.
#[test]
fn gradients_of_blocks_that_all_list() {
    for policy in [Policy::Late, Policy::Random(7)] {
        check(policy, Passes::Both, &blocks_that_all_list());
    }
}

/// What is not finite reaches the rows and columns that see it, and no others: those of other blocks that boxes bring, behind a
/// causal edge, or of another sample.
#[test]
fn what_is_not_finite_stays_where_it_is() {
    let problem = Problem::new([Axis::dense(70, 70, true)], 2, 64).with_heads_kv(1);
    let sparse = BlockSparse::new(problem, [20], [20]).with_lists(1, 3);
    spoil(&sparse, &[0, 3, 0, 1, 0, -1, 2, 0, 1, 3, 1, 2]);
}

/// The same where warpgroups share rows.
#[test]
fn what_is_not_finite_stays_in_rows_that_are_shared() {
    let problem = Problem::new([Axis::dense(70, 70, true)], 2, 128).with_heads_kv(1);
    let sparse = BlockSparse::new(problem, [20], [20]).with_lists(1, 3);
    let plan = planned_blocks_backward(&sparse, Element::Bf16).expect("is supported");
    assert!(plan.schedules().any(|schedule| schedule.shares_rows));
    spoil(&sparse, &[0, 3, 0, 1, 0, -1, 2, 0, 1, 3, 1, 2]);
}

/// The same where a warp has several queries, and a CTA more.
#[test]
fn what_is_not_finite_stays_with_queries_that_list_it() {
    let problem = Problem::new([Axis::dense(70, 70, true)], 4, 64).with_heads_kv(1);
    let sparse = BlockSparse::new(problem, [1], [16]).with_lists(1, 3);
    Union::of(&sparse, Element::Bf16).expect("is one");
    // A query's own block, the first one, and one by turns.
    let lists = (0..70i32).flat_map(|query| [query / 16, 0, query % 5]);
    spoil(&sparse, &lists.collect::<Vec<_>>());
}

/// The same where blocks go to the rows that list them.
#[test]
fn what_is_not_finite_stays_with_rows_that_visit_it() {
    let problem = Problem::new([Axis::dense(70, 70, true)], 4, 64).with_heads_kv(1);
    let sparse = BlockSparse::new(problem, [1], [64]).with_lists(1, 3);
    let of = Union::of(&sparse, Element::Bf16).expect("is one");
    assert!(of.visits(&sparse).is_some());
    // A block that is listed twice, one that is behind most queries, and one that is not there.
    let lists = (0..70i32).flat_map(|query| [0, query % 3, query % 2]);
    spoil(&sparse, &lists.collect::<Vec<_>>());
}

fn spoil(sparse: &BlockSparse, lists: &[i32]) {
    let Some(machine) = hopper(Policy::Late) else { return };
    let (client, element, problem) = (client(), Element::Bf16, sparse.problem);
    let near = |exact: &[f64]| 4.0 * half_ulp(element) * magnitude(exact).max(1e-2);
    for (token, poison) in [(25, f64::NAN), (45, f64::INFINITY)] {
        let mut data = Data::random(&problem, 7, format(element).round);
        data.value[token * problem.head_dim + 5] = poison;
        data.key[66 * problem.head_dim] = f64::NAN;
        let exact = compute(sparse, lists, &data, format(element).round);
        let format = format(element);
        let handle = upload_lists(&client, lists);
        let outputs = format.poisoned_outputs(&client, &problem);
        let saved =
            saved(&client, format, sparse, &data, [&exact.out, &exact.lse], Layout::Contiguous);
        let run = || forward_blocks(&client, sparse, element, &saved.operands, &handle, &outputs);
        machine.run(run).unwrap_or_else(|fault| panic!("{fault}")).expect("launched");
        let (out, lse) = format.download_outputs(&client, &problem, &outputs);
        assert_eq!(differs(&out, &exact.out, |_, _| near(&exact.out)), None);
        assert_eq!(differs(&lse, &exact.lse, |_, e| 1e-5 * e.abs().max(1.0)), None);
        let gradients = format.poisoned_gradients(&client, &problem);
        let run = || backward_blocks(&client, sparse, element, &saved, &handle, &gradients);
        machine.run(run).unwrap_or_else(|fault| panic!("{fault}")).expect("launched");
        let all = format.download_gradients(&client, &problem, &gradients);
        let mut spoiled = 0;
        for ((_, actual), (name, exact)) in all.iter().zip(&exact.named()[2..]) {
            for (place, (a, e)) in actual.iter().zip(exact.iter()).enumerate() {
                spoiled += usize::from(!e.is_finite());
                // Infinities that cancel to NaN may do so in another order.
                let is_right =
                    if e.is_finite() { (a - e).abs() <= near(exact) } else { !a.is_finite() };
                assert!(is_right, "{name} is {a}, not {e}, at {place}");
            }
        }
        assert!(spoiled > 0);
    }
}

#[test]
fn lists_are_turned_around() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let client = client();
    let mut rng = StdRng::seed_from_u64(61);
    // Chunks of several warps of those that add up, and blocks of several CTAs; more blocks than such a CTA has threads.
    for (queries, keys, entries) in [(3000, 70, 12), (9, 1100, 5), (1, 1, 1)] {
        let problem = Problem::new([Axis::dense(queries, keys, false)], 2, 8).with_batch(2);
        let sparse = BlockSparse::new(problem, [1], [1]).with_lists(2, entries);
        let lists = random_lists(&sparse, &mut rng);
        let handle = upload_lists(&client, &lists);
        for items in [Items::Lists, Items::Entries] {
            let launch = || invert_lists(&client, &sparse, &handle, items);
            let name = format!("{queries} lists of {entries} of {keys} blocks, {items:?}");
            let inverse = machine.run(launch).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            let actual = read_inverse(&client, &sparse, inverse.expect("launched"));
            let expected = naive_inverse(&sparse, &lists, |list, entry| match items {
                Items::Lists => list,
                Items::Entries => list * entries + entry,
            });
            assert_eq!(actual, expected, "{name}");
        }
    }
}

#[test]
fn entries_that_cannot_be_counted_are_an_error() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let client = client();
    for (queries, keys, entries) in [(9, 5, 0), (0, 5, 3), (1, 58_113, 1)] {
        let problem = Problem::new([Axis::dense(queries, keys, false)], 2, 8);
        let sparse = BlockSparse::new(problem, [1], [1]).with_lists(1, entries);
        let handle = upload_lists(&client, &vec![0; sparse.list_elements()]);
        let launch = || invert_lists(&client, &sparse, &handle, Items::Entries).map(|_| ());
        let error = machine.run(launch).expect("nothing runs").expect_err("none that are known");
        let text = format!("{} entries of {keys} blocks", queries * entries);
        assert!(error.to_string().contains(&text), "{error}");
    }
}
