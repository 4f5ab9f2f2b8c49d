//! Native sparse attention of one more token for each sequence.

use std::panic::panic_any;

use burn_natten_kernels::KernelError;
use burn_natten_kernels::native::decode::{Decoding, decode};
use burn_natten_kernels::native::sm90::Element;
use test_support::blocks::Layout;
use test_support::compare::format;
use test_support::decoding::{Data, Own, Results, cases, check, check_appended, run, small};

use crate::run::{Machine, Policy};
use crate::ways::{MachineFault, client, hopper};

/// What a launch on the machine gives, which panics with the first fault.
fn on_machine<R>(machine: &Machine, name: &str, launch: impl FnOnce() -> R) -> R {
    machine.run(launch).unwrap_or_else(|fault| {
        let text = format!("{name}: {fault}");
        eprintln!("{text}");
        panic_any(MachineFault(text))
    })
}

fn results(
    machine: &Machine,
    (name, of): (&str, &Decoding),
    element: Element,
    data: &Data,
    layout: Layout,
) -> Results {
    let client = client();
    run(&client, of, data, (format(element), layout), |inputs, outputs| {
        on_machine(machine, name, || decode(&client, of, element, inputs, outputs))
    })
}

/// A problem whose CTAs have several steps, and several parts to choose from.
pub fn check_one(machine: &Machine) -> Result<(), String> {
    let mut of = small(3000);
    (of.selection.heads, of.selection.heads_kv, of.selection.batch) = (4, 1, 1);
    let data = Data::random(&of, 70, format(Element::Bf16));
    appended(machine, ("a token", &of), (Element::Bf16, Layout::Contiguous), &data, [false, true])
}

fn appended(
    machine: &Machine,
    (name, of): (&str, &Decoding),
    (element, layout): (Element, Layout),
    data: &Data,
    own: Own,
) -> Result<(), String> {
    let client = client();
    check_appended(&client, of, data, own, (format(element), layout), |inputs, outputs| {
        on_machine(machine, name, || decode(&client, of, element, inputs, outputs))
    })
}

fn check_cases(policy: Policy, cases: &[(&str, Decoding)]) {
    let Some(machine) = hopper(policy) else { return };
    for (seed, (name, of)) in cases.iter().enumerate() {
        let element = [Element::F16, Element::Bf16][seed % 2];
        let layout = [Layout::Contiguous, Layout::Aligned, Layout::Swapped][seed % 3];
        println!("{name}, {layout:?}");
        let data = Data::random(of, 80 + seed as u64, format(element));
        let got = results(&machine, (name, of), element, &data, layout);
        check(of, &data, format(element), &got)
            .unwrap_or_else(|wrong| panic!("{name}, {layout:?}: {wrong}"));
        let own = [[false; 2], [true; 2], [false, true]][seed % 3];
        appended(&machine, (name, of), (element, layout), &data, own)
            .unwrap_or_else(|wrong| panic!("{name}, {layout:?}, appended, own {own:?}: {wrong}"));
    }
}

/// Some of each kind, the rest of which `--ignored` has.
#[test]
fn a_token_is_that_of_float64() {
    let some = [
        "some of all",
        "groups of three, three samples",
        "the first token",
        "fewer blocks than entries",
        "no window",
        "the window's last tokens",
        "many parts",
        "a tile of blocks",
    ];
    let some: Vec<_> = cases().into_iter().filter(|(name, _)| some.contains(name)).collect();
    assert_eq!(some.len(), 8);
    check_cases(Policy::Late, &some);
}

#[test]
#[ignore = "all problems"]
fn all_tokens_are_those_of_float64() {
    for policy in Policy::ALL {
        check_cases(policy, &cases());
    }
}

#[test]
fn the_lower_number_wins_among_equals() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let of = small(2000);
    let mut data = Data::random(&of, 71, format(Element::F16));
    data.query.fill(0.0);
    let got = results(&machine, ("equals", &of), Element::F16, &data, Layout::Contiguous);
    // The first block has one that overlaps it less.
    assert!(got.lists.iter().all(|list| list == &[0, 1, 2, 3, 123, 124]), "{:?}", got.lists);
    check(&of, &data, format(Element::F16), &got).unwrap_or_else(|wrong| panic!("{wrong}"));
}

/// Bit by bit.
#[test]
fn what_is_no_number_stays_where_it_is() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let mut of = small(600);
    (of.selection.heads, of.selection.heads_kv, of.selection.batch) = (8, 2, 2);
    let clean = Data::random(&of, 72, format(Element::Bf16));
    let layout = Layout::Contiguous;
    let expected = results(&machine, ("numbers", &of), Element::Bf16, &clean, layout);
    let width = of.head_dim_v;

    // All of the second sample, whose lists are whole all the same.
    let mut data = clean.clone();
    for tensor in
        [&mut data.query, &mut data.gates].into_iter().chain(data.tokens.iter_mut().flatten())
    {
        let half = tensor.len() / 2;
        tensor[half..].fill(f64::NAN);
    }
    let got = results(&machine, ("a sample", &of), Element::Bf16, &data, layout);
    assert_eq!(got.out[..8 * width], expected.out[..8 * width]);
    assert!(got.out[8 * width..].iter().all(|x| x.is_nan()));
    assert_eq!(got.lists[..2], expected.lists[..2]);
    assert!(got.lists[2..].iter().all(|list| list == &[0, 1, 2, 3, 36, 37]), "{:?}", got.lists);

    // One head's query: not other heads of its group.
    for bad in [f64::NAN, f64::INFINITY] {
        let mut data = clean.clone();
        data.query[of.selection.head_dim + 3] = bad;
        let got = results(&machine, ("a head", &of), Element::Bf16, &data, layout);
        for branch in [0, 2] {
            let (actual, exact) = (&got.outs[branch], &expected.outs[branch]);
            assert_eq!(actual[..width], exact[..width]);
            assert!(actual[width..2 * width].iter().all(|x| x.is_nan()));
            assert_eq!(actual[2 * width..], exact[2 * width..]);
        }
        assert!(got.lists[0].iter().all(|block| (0..38).contains(block)));
        assert_eq!(got.lists[1..], expected.lists[1..]);
    }
}

#[test]
fn refusals_launch_nothing() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let client = client();
    let refused = |change: fn(&mut Decoding), layout| {
        let mut of = small(100);
        change(&mut of);
        let data = Data::random(&of, 73, format(Element::F16));
        let mut result = Ok(());
        let got = run(&client, &of, &data, (format(Element::F16), layout), |inputs, outputs| {
            let launch = || decode(&client, &of, Element::F16, inputs, outputs);
            result = machine.run(launch).expect("no fault");
            Ok(())
        });
        assert!(got.out.iter().all(|x| x.is_nan()));
        result.expect_err("it is refused")
    };
    let error = refused(|of| of.selection.head_dim = 24, Layout::Contiguous);
    assert!(matches!(error, KernelError::Problem(_)), "{error}");
    let error = refused(|_| (), Layout::Cropped);
    assert!(matches!(error, KernelError::Layout { .. }), "{error}");
}
