//! The portable tiles, f32.

use burn_natten_kernels::portable::offline::translate;
use burn_natten_kernels::portable::{Blueprint, Limits, candidates};
use burn_natten_kernels::tensor_core::Compiler;
use burn_natten_kernels::tensor_core::Pass;
use burn_natten_kernels::{Axis, Problem};
use cubecl::ir::{ElemType, FloatKind};
use test_support::cpp::compiler;
use test_support::oracle::compute;
use test_support::{Data, Results, error};

use crate::arguments::{Layout, sizes_of};
use crate::problems::{all, random};
use crate::program::{Program, decode_f32, encode_f32};

const PASSES: [Pass; 3] = [Pass::Forward, Pass::Queries, Pass::Keys];

/// What the kernels walk over: one axis where none restricts anything, as launches do.
fn merged(problem: &Problem) -> Problem {
    if !problem.is_full() {
        return *problem;
    }
    let line = Axis::dense(problem.queries(), problem.keys(), false);
    problem.with_axes([line])
}

/// What a kernel writes, with the names and what is right.
fn run<'a>(
    program: &Program,
    blueprint: &Blueprint,
    problem: &Problem,
    data: &Data,
    exact: &'a Results,
) -> Vec<(&'static str, Vec<f64>, &'a [f64])> {
    let Problem { heads, heads_kv, head_dim, head_dim_v, additional, axes, .. } = merged(problem);
    let (queries, keys) = (axes.map(|axis| axis.queries), axes.map(|axis| axis.keys));
    let query = Layout { tokens: queries, heads, dim: head_dim };
    let dout = Layout { dim: head_dim_v, ..query };
    let key = Layout { tokens: keys, heads: heads_kv, dim: head_dim };
    let value = Layout { dim: head_dim_v, ..key };
    let more = |layout: Layout| Layout { tokens: [1, 1, additional], ..layout };
    let (more_key, more_value) = match additional {
        0 => (&data.key, &data.value),
        _ => (&data.additional_key, &data.additional_value),
    };
    let layouts = match blueprint.pass {
        Pass::Forward => vec![query, key, value, more(key), more(value)],
        Pass::Queries => vec![query, dout, key, value, more(key), more(value)],
        Pass::Keys => vec![key, value, query, dout],
    };
    let (is_keys, row_tile) = (blueprint.pass == Pass::Keys, blueprint.row_tile());
    let (cubes, sizes) = sizes_of(&merged(problem), is_keys, row_tile, blueprint.vector, &layouts);
    let statistics: Vec<f64> = (exact.lse.iter().zip(&data.dlse).enumerate())
        .flat_map(|(row, (lse, dlse))| {
            let (out, dout) = (&exact.out[row * head_dim_v..], &data.dout[row * head_dim_v..]);
            let products = out.iter().zip(dout).take(head_dim_v).map(|(out, dout)| out * dout);
            [*lse, products.sum::<f64>() - dlse]
        })
        .collect();
    let (inputs, written): (Vec<&Vec<f64>>, Vec<(_, &[f64])>) = match blueprint.pass {
        Pass::Forward => (
            vec![&data.query, &data.key, &data.value, more_key, more_value],
            vec![("out", &exact.out), ("lse", &exact.lse)],
        ),
        Pass::Queries => (
            vec![
                &data.query,
                &data.dout,
                &data.key,
                &data.value,
                more_key,
                more_value,
                &statistics,
            ],
            vec![("dq", &exact.dq)],
        ),
        Pass::Keys => (
            vec![&data.key, &data.value, &data.query, &data.dout, &statistics],
            vec![("dk", &exact.dk), ("dv", &exact.dv)],
        ),
    };
    let mut buffers: Vec<_> = inputs.into_iter().map(|values| encode_f32(values)).collect();
    let poisoned = |values: &[f64]| encode_f32(&vec![f64::NAN; values.len()]);
    buffers.extend(written.iter().map(|(_, exact)| poisoned(exact)));
    let results = program.run(cubes, (&sizes, &[problem.scale]), &buffers, written.len());
    let named = written.into_iter().zip(results);
    named.map(|((name, exact), bytes)| (name, decode_f32(&bytes), exact)).collect()
}

fn check(compiler: &str, problem: &Problem, blueprint: &Blueprint) {
    let f32 = ElemType::Float(FloatKind::F32);
    let program = translate(blueprint, f32, 80, Compiler::Cpp)
        .unwrap_or_else(|error| panic!("{blueprint}: {error}"));
    assert!(program.shared_memory <= blueprint.shared_memory() + 64, "{blueprint}");
    let program = Program::compile(compiler, &program, blueprint.to_string(), blueprint.units());
    let data = Data::random(problem, 1, |x| f64::from(x as f32));
    let exact = compute(problem, &data, |x| x);
    for (name, actual, exact) in run(&program, blueprint, problem, &data, &exact) {
        let error = error(&actual, exact);
        println!("{blueprint} {name}: {error:.1e}");
        assert!(error < 1e-5, "{blueprint}, {name}: error {error:e}, {problem:?}");
    }
}

/// One kernel of each pass for every problem, of various shapes.
fn check_all(limits: &Limits, offset: usize) {
    let Some(compiler) = compiler() else { return };
    for (number, problem) in all().into_iter().enumerate() {
        for (pass_number, pass) in PASSES.into_iter().enumerate() {
            let blueprints = candidates(&problem, limits, pass);
            assert!(!blueprints.is_empty(), "{pass:?} of {problem:?}");
            let part = (2 * number + 3 * pass_number + offset) % 8;
            check(compiler, &problem, &blueprints[blueprints.len() * part / 8]);
        }
    }
}

#[test]
fn tiles_of_a_large_gpu() {
    check_all(&Limits::HOPPER, 0);
    check_all(&Limits::HOPPER, 1);
}

#[test]
fn tiles_within_the_limits_of_webgpu() {
    check_all(&Limits::WEBGPU, 0);
}

#[test]
fn random_problems() {
    let Some(compiler) = compiler() else { return };
    for random in random() {
        let limits = if random.pick % 2 == 0 { Limits::HOPPER } else { Limits::WEBGPU };
        for pass in PASSES {
            let blueprints = candidates(&random.problem, &limits, pass);
            let number = (random.share * blueprints.len() as f64) as usize;
            check(compiler, &random.problem, &blueprints[number]);
        }
    }
}
