//! The backward kernels.

use burn_natten_kernels::Problem;
use burn_natten_kernels::tensor_core::{
    Blueprint, Capability, Compiler, Exponential, Pass, backward_candidates, plan_backward,
    widest_vector,
};
use test_support::compare::{format, half_ulp, magnitude};
use test_support::cpp::compiler;
use test_support::element::Element;
use test_support::oracle::compute;
use test_support::{Data, Results};

use crate::arguments::{Layout, factor, sizes};
use crate::problems::{BACKWARD, FORWARD, all, random, spoiled};
use crate::program::{Program, decode, decode_f32, encode, encode_f32};

/// Vectors of some tokens: the elements and where they lie.
type Tensor<'a> = (&'a [f64], Layout);

/// What a kernel reads.
struct Inputs<'a> {
    problem: Problem,
    rows: [Tensor<'a>; 2],
    columns: [Tensor<'a>; 2],
    additional: [Tensor<'a>; 2],
    statistics: Vec<u8>,
    bias: &'a [f64],
}

/// Base-2 or natural logsumexp, as the kernel's exponentials are, and delta, of each query.
pub fn statistics(
    exponential: Exponential,
    problem: &Problem,
    element: Element,
    data: &Data,
    exact: &Results,
) -> Vec<u8> {
    // Of the output as it is stored.
    let round = format(element).round;
    let factor = factor(exponential, 1.0);
    let dim = problem.head_dim_v;
    let rows = exact.lse.iter().zip(&data.dlse).enumerate();
    let numbers: Vec<f64> = rows
        .flat_map(|(row, (lse, dlse))| {
            let pairs = exact.out[row * dim..][..dim].iter().zip(&data.dout[row * dim..][..dim]);
            let delta = pairs.map(|(out, dout)| round(*out) * dout).sum::<f64>() - dlse;
            [factor * lse, delta]
        })
        .collect();
    encode_f32(&numbers)
}

/// The gradients of the rows' first and second vectors, and of the bias, poisoned where the kernel writes none.
fn gradients(
    program: &Program,
    blueprint: &Blueprint,
    element: Element,
    inputs: &Inputs<'_>,
) -> [Vec<f64>; 3] {
    let tensors = [inputs.rows, inputs.columns, inputs.additional].concat();
    let layouts: Vec<_> = tensors.iter().map(|(_, layout)| *layout).collect();
    let (cubes, sizes) = sizes(&inputs.problem, blueprint, &layouts);
    let mut buffers: Vec<_> = tensors.iter().map(|(values, _)| encode(element, values)).collect();
    buffers.push(inputs.statistics.clone());
    if blueprint.has_bias {
        buffers.push(encode(element, inputs.bias));
    }
    for (values, _) in inputs.rows {
        buffers.push(encode(element, &vec![f64::NAN; values.len()]));
    }
    let scale = inputs.problem.scale;
    let factors = [factor(blueprint.exponential, scale), scale];
    let entries = inputs.problem.bias_entries();
    let is_summing = blueprint.bias_sums > 0;
    if is_summing {
        buffers.push(encode_f32(&vec![f64::NAN; cubes * entries]));
    }
    let written = program.run(cubes, (&sizes, &factors), &buffers, if is_summing { 3 } else { 2 });
    let mut dbias = vec![f64::NAN; inputs.bias.len()];
    if is_summing {
        let Problem { batch, heads, .. } = inputs.problem;
        let sums = decode_f32(&written[2]);
        dbias = (0..heads * entries)
            .map(|place| {
                let (head, entry) = (place / entries, place % entries);
                let of_head = |cube: &usize| cube / (cubes / (batch * heads)) % heads == head;
                (0..cubes).filter(of_head).map(|cube| sums[cube * entries + entry]).sum()
            })
            .collect();
    }
    [decode(element, &written[0]), decode(element, &written[1]), dbias]
}

/// The name of a gradient with what the kernel gave and what is right.
pub type Named<'a> = (&'static str, Vec<f64>, &'a [f64]);

/// Runs one kernel of a problem's backward pass and gives its gradients beside the right ones.
pub fn gradients_of<'a>(
    program: &Program,
    blueprint: &Blueprint,
    (problem, of_additional): (&Problem, bool),
    element: Element,
    data: &Data,
    exact: &'a Results,
) -> Vec<Named<'a>> {
    let Problem { heads, heads_kv, head_dim, head_dim_v, additional, axes, .. } = *problem;
    let layout = |tokens, heads, dim| Layout { tokens, heads, dim };
    let (queries, keys) = (axes.map(|axis| axis.queries), axes.map(|axis| axis.keys));
    let query: Tensor<'_> = (&data.query, layout(queries, heads, head_dim));
    let dout: Tensor<'_> = (&data.dout, layout(queries, heads, head_dim_v));
    let key: Tensor<'_> = (&data.key, layout(keys, heads_kv, head_dim));
    let value: Tensor<'_> = (&data.value, layout(keys, heads_kv, head_dim_v));
    let more = [1, 1, additional];
    let more_key: Tensor<'_> = (&data.additional_key, layout(more, heads_kv, head_dim));
    let more_value: Tensor<'_> = (&data.additional_value, layout(more, heads_kv, head_dim_v));
    let statistics = statistics(blueprint.exponential, problem, element, data, exact);
    let bias = &data.bias;
    let (inputs, names) = match (blueprint.pass, of_additional) {
        (Pass::Keys, true) => {
            let line = [1, 1, problem.queries()];
            let columns = [
                (query.0, Layout { tokens: line, ..query.1 }),
                (dout.0, Layout { tokens: line, ..dout.1 }),
            ];
            let rows = [more_key, more_value];
            let problem = problem.of_additional();
            let exact: [&[f64]; 2] = [&exact.additional_dk, &exact.additional_dv];
            (
                Inputs { problem, rows, columns, additional: rows, statistics, bias },
                [("additional dk", exact[0]), ("additional dv", exact[1]), ("", &[][..])],
            )
        }
        (Pass::Keys, false) => {
            let (rows, columns) = ([key, value], [query, dout]);
            (
                Inputs { problem: *problem, rows, columns, additional: rows, statistics, bias },
                [("dk", &exact.dk[..]), ("dv", &exact.dv[..]), ("", &[][..])],
            )
        }
        _ => {
            let (rows, columns) = ([query, dout], [key, value]);
            let additional = if additional > 0 { [more_key, more_value] } else { rows };
            (
                Inputs { problem: *problem, rows, columns, additional, statistics, bias },
                [("dq", &exact.dq[..]), ("", &[][..]), ("dbias", &exact.dbias[..])],
            )
        }
    };
    let gradients = gradients(program, blueprint, element, &inputs);
    let is_written = [blueprint.has_first, blueprint.has_second, blueprint.bias_sums > 0];
    let all = gradients.into_iter().zip(names).zip(is_written);
    all.filter(|(_, is_written)| *is_written)
        .map(|((gradient, (name, exact)), _)| (name, gradient, exact))
        .collect()
}

/// All problems, with elements of either type in turn.
fn check(capability: &Capability, elements: [Element; 2]) {
    let Some(compiler) = compiler() else { return };
    for (number, problem) in all().into_iter().enumerate() {
        // What would run, or another.
        let pick = if number % 2 == 1 { Pick::At(0.5) } else { Pick::Planned };
        let element = elements[number / 2 % 2];
        check_one(compiler, capability, &problem, element, pick);
    }
}

/// Which kernels of a problem run; those of the additional tokens are as planned.
#[derive(Clone, Copy)]
pub enum Pick {
    /// As planned.
    Planned,
    /// The ones at this share of all.
    At(f64),
    /// The one of the keys at this share of those whose planes work in pairs, if there are any.
    Pairs(f64),
}

/// All kernels of one problem.
pub fn check_one(
    compiler: &str,
    capability: &Capability,
    problem: &Problem,
    element: Element,
    pick: Pick,
) {
    let vector = widest_vector(problem);
    let plan = plan_backward(problem, capability, vector).expect("a plan");
    let other = |blueprint: &Blueprint| {
        let mut all = backward_candidates(problem, capability, vector, blueprint.pass);
        let share = match pick {
            Pick::Planned => return *blueprint,
            Pick::At(share) => share,
            Pick::Pairs(share) => {
                let Blueprint { staging, exponential, .. } = *blueprint;
                let other = capability.with_compiler(Compiler::Llvm);
                all.extend(backward_candidates(problem, &other, vector, blueprint.pass));
                all.retain(|blueprint| blueprint.is_paired);
                all.iter_mut().for_each(|blueprint| {
                    *blueprint = Blueprint { staging, exponential, ..*blueprint };
                });
                share
            }
        };
        let Blueprint { has_first, has_second, .. } = *blueprint;
        match all.get((share * all.len() as f64) as usize) {
            Some(other) => Blueprint { has_first, has_second, ..*other },
            None => *blueprint,
        }
    };
    let own = [&plan.queries].into_iter().chain(&plan.keys);
    let own = own.map(|blueprint| (other(blueprint), false));
    let additional = plan.additional.iter().map(|blueprint| (*blueprint, true));
    for (blueprint, of_additional) in own.chain(additional) {
        let program = Program::build(compiler, &blueprint, element);
        let clean = Data::random(problem, 2, format(element).round);
        let poisons = [&FORWARD[..], &BACKWARD].concat();
        for (what, data) in spoiled(problem, &clean, &poisons) {
            let exact = compute(problem, &data, format(element).round);
            let given = (problem, of_additional);
            for (name, actual, expected) in
                gradients_of(&program, &blueprint, given, element, &data, &exact)
            {
                assert_eq!(actual.len(), expected.len(), "{blueprint}: {name}");
                // Rounded to tf32 infinity is no number, and no row of this gradient is computed again.
                if name == "dbias" && element == Element::Tf32 && what.starts_with("inf") {
                    continue;
                }
                let of = format!("{blueprint}, {what}: {name} of {problem:?}");
                assert_right(&of, element, &actual, expected);
            }
        }
    }
}

/// Fails, with this text, if a gradient is not what is exact.
pub fn assert_right(of: &str, element: Element, actual: &[f64], expected: &[f64]) {
    let near = 2.0 * half_ulp(element) * magnitude(expected).max(1e-2);
    for (index, (a, e)) in actual.iter().zip(expected).enumerate() {
        // Infinities that cancel to NaN may do so in another order.
        let is_right = a.is_finite() == e.is_finite() && (!e.is_finite() || (a - e).abs() <= near);
        assert!(is_right, "{of} is {a}, not {e}, at {index} of {}", expected.len());
    }
}

#[test]
fn random_problems() {
    let Some(compiler) = compiler() else { return };
    let ways = crate::ways();
    for random in random() {
        let ways: Vec<_> = ways.iter().filter_map(|way| random.element.of(*way)).collect();
        let capability = &ways[random.pick % ways.len()];
        let pick = Pick::At(random.share);
        check_one(compiler, capability, &random.problem, random.element, pick);
    }
}

const HALVES: [Element; 2] = [Element::Bf16, Element::F16];

#[test]
fn mma_with_asynchronous_copies() {
    check(&crate::asynchronous(), HALVES);
}

#[test]
fn mma_with_loads_through_registers() {
    check(&crate::plain(), HALVES);
}

#[test]
fn pairs_of_planes() {
    let Some(compiler) = compiler() else { return };
    // Vectors that are short enough for others have no pairs.
    for (number, problem) in all().into_iter().enumerate() {
        let mut problem = problem;
        (problem.head_dim, problem.head_dim_v) =
            [(96, 96), (128, 128), (72, 128), (128, 65)][number % 4];
        let element = [Element::Bf16, Element::F16][number % 2];
        let share = [0.0, 0.3, 0.6, 0.9][number % 4];
        check_one(compiler, &crate::asynchronous(), &problem, element, Pick::Pairs(share));
    }
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
