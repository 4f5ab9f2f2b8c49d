//! The forward kernels.

use burn_natten_kernels::Problem;
use burn_natten_kernels::tensor_core::{Blueprint, Capability, candidates, plan, widest_vector};
use test_support::compare::{differs, format, half_ulp, magnitude};
use test_support::cpp::compiler;
use test_support::element::Element;
use test_support::oracle::compute;
use test_support::{Data, Results};

use crate::arguments::{Layout, factor, sizes};
use crate::problems::{FORWARD, all, random, spoiled};
use crate::program::{Program, decode, decode_f32, encode, encode_f32};

/// Output and logsumexp.
pub fn attend(
    program: &Program,
    blueprint: &Blueprint,
    problem: &Problem,
    element: Element,
    data: &Data,
) -> (Vec<f64>, Vec<f64>) {
    let Problem { batch, heads, heads_kv, head_dim, head_dim_v, additional, axes, .. } = *problem;
    let (queries, keys) = (axes.map(|axis| axis.queries), axes.map(|axis| axis.keys));
    let key = Layout { tokens: keys, heads: heads_kv, dim: head_dim };
    let value = Layout { dim: head_dim_v, ..key };
    let more = |layout: Layout| match additional {
        0 => layout,
        _ => Layout { tokens: [1, 1, additional], ..layout },
    };
    let query = Layout { tokens: queries, heads, dim: head_dim };
    let (cubes, sizes) = sizes(problem, blueprint, &[query, key, value, more(key), more(value)]);
    let rows = batch * problem.queries() * heads;
    let (more_key, more_value) = match additional {
        0 => (&data.key, &data.value),
        _ => (&data.additional_key, &data.additional_value),
    };
    let inputs = [&data.query, &data.key, &data.value, more_key, more_value];
    let mut buffers: Vec<_> = inputs.iter().map(|values| encode(element, values)).collect();
    if blueprint.has_bias {
        buffers.push(encode(element, &data.bias));
    }
    buffers.push(encode(element, &vec![f64::NAN; rows * head_dim_v]));
    buffers.push(encode_f32(&vec![f64::NAN; rows]));
    let factors = [factor(blueprint.exponential, problem.scale), problem.scale];
    let written = program.run(cubes, (&sizes, &factors), &buffers, 2);
    (decode(element, &written[0]), decode_f32(&written[1]))
}

/// All problems, with elements of either type in turn.
fn check(capability: &Capability, elements: [Element; 2]) {
    let Some(compiler) = compiler() else { return };
    for (number, problem) in all().into_iter().enumerate() {
        // What would run, or another.
        let pick = (number % 2 == 1).then_some(0.5);
        let element = elements[number / 2 % 2];
        check_one(compiler, capability, &problem, element, pick);
    }
}

/// One problem, by the blueprint that is planned or by the one at this share of all.
pub fn check_one(
    compiler: &str,
    capability: &Capability,
    problem: &Problem,
    element: Element,
    pick: Option<f64>,
) {
    let vector = widest_vector(problem);
    let all = candidates(problem, capability, vector);
    let blueprint = match pick {
        None => plan(problem, capability, vector).expect("a plan"),
        Some(share) => all[(share * all.len() as f64) as usize],
    };
    let program = Program::build(compiler, &blueprint, element);
    let clean = Data::random(problem, 1, format(element).round);
    for (what, data) in spoiled(problem, &clean, &FORWARD) {
        let exact = compute(problem, &data, |x| x);
        let (out, lse) = attend(&program, &blueprint, problem, element, &data);
        let of = |name: &str| format!("{blueprint}, {what}: {name} of {problem:?}");
        assert_right(of, element, (&out, &lse), &exact);
    }
}

/// Fails, with a text for each tensor, if output or logsumexp are not what is exact.
pub fn assert_right(
    of: impl Fn(&str) -> String,
    element: Element,
    (out, lse): (&[f64], &[f64]),
    exact: &Results,
) {
    let near = 2.0 * half_ulp(element) * magnitude(&exact.out);
    if let Some(text) = differs(out, &exact.out, |_, _| near) {
        panic!("{} is {text}", of("out"));
    }
    // The oracle's arithmetic makes NaN of scores that are all -inf.
    for (row, (actual, exact)) in lse.iter().zip(&exact.lse).enumerate() {
        let is_right = match exact.is_finite() {
            true => (actual - exact).abs() <= 1e-5 * exact.abs().max(1.0),
            // Of a row that sees nothing.
            false if *exact == f64::NEG_INFINITY => actual == exact,
            false => !actual.is_finite(),
        };
        assert!(is_right, "{}: {actual}, not {exact}, in row {row}", of("logsumexp"));
    }
}

#[test]
fn random_problems() {
    let Some(compiler) = compiler() else { return };
    let ways = crate::ways();
    for random in random() {
        let ways: Vec<_> = ways.iter().filter_map(|way| random.element.of(*way)).collect();
        let capability = &ways[random.pick % ways.len()];
        check_one(compiler, capability, &random.problem, random.element, Some(random.share));
    }
}

const HALVES: [Element; 2] = [Element::F16, Element::Bf16];

#[test]
fn mma_with_asynchronous_copies() {
    check(&crate::asynchronous(), HALVES);
}

#[test]
fn mma_with_loads_through_registers() {
    check(&crate::plain(), HALVES);
}

#[test]
fn cmma_of_16() {
    check(&crate::cooperative(16), HALVES);
}

#[test]
fn cmma_of_8() {
    check(&crate::cooperative(8), HALVES);
}

#[test]
fn tf32_with_asynchronous_copies() {
    check(&crate::tf32(crate::asynchronous()), [Element::Tf32; 2]);
}

#[test]
fn tf32_with_loads_through_registers() {
    check(&crate::tf32(crate::plain()), [Element::Tf32; 2]);
}
