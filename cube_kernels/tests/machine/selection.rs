//! The selection of native sparse attention.

use std::panic::panic_any;

use burn_natten_kernels::native::sm90::{Element, select_blocks};
use burn_natten_kernels::sparse::Selection;
use test_support::blocks::Layout;
use test_support::compare::format;
use test_support::selection::{
    Lists, Reference, Tensors, cases, compare_all, native_cases, reference, run, small,
};

use crate::run::{Machine, Policy};
use crate::ways::{MachineFault, client, hopper};

/// The lists that the machine writes.
fn lists(
    machine: &Machine,
    (name, of): (&str, &Selection),
    element: Element,
    tensors: &Tensors,
    layout: Layout,
) -> Lists {
    lists_by(machine, (name, of), element, tensors, layout, None)
}

/// The same, with logsumexps that are given.
fn lists_by(
    machine: &Machine,
    (name, of): (&str, &Selection),
    element: Element,
    tensors: &Tensors,
    layout: Layout,
    lse: Option<&[f32]>,
) -> Lists {
    let client = client();
    let bytes = |lse: &[f32]| lse.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();
    let lse = lse.map(|lse| client.create_from_slice(&bytes(lse)));
    run(&client, of, tensors, (format(element), layout), |query, key, lists| {
        let launch = || select_blocks(&client, of, element, query, key, lse.as_ref(), lists);
        machine.run(launch).unwrap_or_else(|fault| {
            let text = format!("{name}: {fault}");
            eprintln!("{text}");
            panic_any(MachineFault(text))
        })
    })
}

/// Groups of so many heads, and keys enough to come round to where the first ones were. An error says how many lists are wrong.
pub fn check_one(machine: &Machine, group: usize) -> Result<(), String> {
    let mut of = small(1200);
    (of.heads, of.heads_kv, of.batch, of.rows) = (2 * group, 2, 1, 40);
    let name = format!("the last queries of groups of {group}");
    let tensors = Tensors::random(&of, 60, format(Element::Bf16));
    let actual = lists(machine, (&name, &of), Element::Bf16, &tensors, Layout::Contiguous).blocks;
    let Reference { lists, gaps } = reference(&of, &tensors);
    let wrong = actual
        .iter()
        .zip(&lists.blocks)
        .zip(&gaps.blocks)
        .filter(|((actual, exact), gap)| **gap >= 1e-5 && actual != exact)
        .count();
    match wrong {
        0 => Ok(()),
        _ => Err(format!("{name}: {wrong} of {} lists are wrong", actual.len())),
    }
}

fn check(policy: Policy, cases: &[(String, Selection)]) {
    let Some(machine) = hopper(policy) else { return };
    for (seed, (name, of)) in cases.iter().enumerate() {
        let element = [Element::F16, Element::Bf16][seed % 2];
        let layout = [Layout::Contiguous, Layout::Aligned][seed / 2 % 2];
        println!("{name}, {layout:?}");
        let tensors = Tensors::random(of, 60 + seed as u64, format(element));
        let actual = lists(&machine, (name, of), element, &tensors, layout);
        compare_all(name, &actual, &reference(of, &tensors));
    }
}

/// One pass where the logsumexp is given.
#[test]
fn logsumexps_are_taken() {
    let Some(machine) = hopper(Policy::Late) else { return };
    for (seed, name) in ["group of 3", "tiles within blocks"].into_iter().enumerate() {
        let (name, of) = native_cases().into_iter().find(|(of, _)| of == name).expect("is there");
        let tensors = Tensors::random(&of, 20 + seed as u64, format(Element::Bf16));
        let (lse, expected) = (tensors.logsumexps(&of), reference(&of, &tensors));
        let by = |lse: &[f32]| {
            let of = (name.as_str(), &of);
            lists_by(&machine, of, Element::Bf16, &tensors, Layout::Contiguous, Some(lse))
        };
        compare_all(&name, &by(&lse), &expected);
        // What weighs nothing leaves the first blocks, all alike.
        let nothing = by(&vec![f32::INFINITY; lse.len()]);
        assert_eq!(nothing.blocks.last().map(|list| &list[..4]), Some(&[0, 1, 2, 3][..]));
    }
}

/// Some of each kind, the rest of which `--ignored` has.
#[test]
fn lists_are_those_of_float64() {
    let all = native_cases();
    let some = [
        "group of 3",
        "group of 16",
        "apart, in tiles",
        "super-blocks",
        "compressed blocks of eight strides",
    ];
    let some: Vec<_> = all.into_iter().filter(|(name, _)| some.contains(&name.as_str())).collect();
    assert_eq!(some.len(), 5);
    check(Policy::Late, &some);
}

#[test]
#[ignore = "all problems"]
fn all_lists_are_those_of_float64() {
    for policy in Policy::ALL {
        check(policy, &native_cases());
    }
}

#[test]
fn the_lower_number_wins_among_equals() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let of = small(200);
    let [query, key] = of.shapes().map(|shape| vec![0.0; shape.elements()]);
    let tensors = Tensors { query, key };
    let of_equals =
        lists(&machine, ("equals", &of), Element::F16, &tensors, Layout::Contiguous).blocks;
    assert_eq!(of_equals[of_equals.len() - 1], [0, 1, 2, 3, 11, 12]);
    let mut late = small(60);
    (late.cmp_block, late.slc_block, late.num_selected) = (48, 4, 4);
    let tensors = Tensors::random(&late, 92, format(Element::F16));
    let of_late =
        lists(&machine, ("late", &late), Element::F16, &tensors, Layout::Contiguous).blocks;
    assert_eq!(of_late[2 * 40], [0, 1, 9, 10]);
}

/// Bit by bit: however many warpgroups there are, and wherever a row lies.
#[test]
fn the_last_rows_alone_have_the_same_lists() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let (_, mut all) = cases()[0];
    all.batch = 1;
    let tensors = Tensors::random(&all, 93, format(Element::Bf16));
    let of_all = lists(&machine, ("all", &all), Element::Bf16, &tensors, Layout::Contiguous).blocks;
    let mut last = all;
    last.rows = 7;
    let row = all.heads * all.head_dim;
    let query = tensors.query[(all.rows - 7) * row..].to_vec();
    let tensors = Tensors { query, ..tensors };
    let of_last =
        lists(&machine, ("last", &last), Element::Bf16, &tensors, Layout::Contiguous).blocks;
    assert_eq!(of_last[..], of_all[of_all.len() - of_last.len()..]);
}
