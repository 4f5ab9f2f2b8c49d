//! The portable tiles, f32.

use burn_natten_kernels::portable::offline::translate;
use burn_natten_kernels::portable::{Blueprint, Limits, candidates};
use burn_natten_kernels::tensor_core::Compiler;
use burn_natten_kernels::tensor_core::Pass;
use burn_natten_kernels::{Axis, Problem};
use cubecl::ir::{ElemType, FloatKind};
use test_support::cpp::compiler;
use test_support::oracle::compute;
use test_support::{Data, Results, axis, error};

use crate::arguments::{Layout, sizes_of};
use crate::problems::{all, random};
use crate::program::{Program, decode_f32, encode_f32};

const PASSES: [Pass; 3] = [Pass::Forward, Pass::Queries, Pass::Keys];

/// What the kernels walk over: one axis where none restricts anything, as launches do.
fn merged(problem: &Problem) -> Problem {
    if !problem.is_full() || problem.has_bias {
        return *problem;
    }
    let line = Axis::dense(problem.queries(), problem.keys(), false);
    problem.with_axes([line])
}

/// Sizes of the biases of a problem, the first of which stands at `first`, in the order of the kernel's `Places`.
fn places(problem: &Problem, first: usize) -> Vec<usize> {
    let [z, y, x] = problem.bias_extents();
    let entries = z * y * x;
    let mut sizes = vec![first + entries / 2, first + problem.heads * entries - 1, entries];
    for (axis, pitch) in problem.axes.iter().zip([y * x, x, 1]) {
        sizes.extend([pitch, axis.origin.unsigned_abs() / axis.dilation]);
    }
    sizes
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
    let (cubes, mut sizes) =
        sizes_of(&merged(problem), is_keys, row_tile, blueprint.vector, &layouts);
    let mut statistics: Vec<f64> = (exact.lse.iter().zip(&data.dlse).enumerate())
        .flat_map(|(row, (lse, dlse))| {
            let (out, dout) = (&exact.out[row * head_dim_v..], &data.dout[row * head_dim_v..]);
            let products = out.iter().zip(dout).take(head_dim_v).map(|(out, dout)| out * dout);
            [*lse, products.sum::<f64>() - dlse]
        })
        .collect();
    if problem.has_bias {
        // Backward they lie behind the statistics.
        let is_forward = blueprint.pass == Pass::Forward;
        sizes.extend(places(problem, if is_forward { 0 } else { statistics.len() }));
        statistics.extend(&data.bias);
    }
    let (mut inputs, written): (Vec<&Vec<f64>>, Vec<(_, &[f64])>) = match blueprint.pass {
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
    if problem.has_bias && blueprint.pass == Pass::Forward {
        inputs.push(&data.bias);
    }
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
    let mut data = Data::random(problem, 1, |x| f64::from(x as f32));
    hide_some(problem, &mut data);
    let exact = compute(problem, &data, |x| x);
    for (name, actual, exact) in run(&program, blueprint, problem, &data, &exact) {
        let error = error(&actual, exact);
        println!("{blueprint} {name}: {error:.1e}");
        assert!(error < 1e-5, "{blueprint}, {name}: error {error:e}, {problem:?}");
    }
}

/// Sets the outermost bias of each head to what hides keys: no query has only that one.
fn hide_some(problem: &Problem, data: &mut Data) {
    let entries: usize = problem.bias_extents().iter().product();
    for entry in data.bias.iter_mut().step_by(entries) {
        *entry = f64::NEG_INFINITY;
    }
}

/// The same problems with a bias, those that can have one, and some with queries that stand elsewhere.
fn with_bias() -> Vec<Problem> {
    let mut part = axis(90, 9, 2, 2, false).with_origin(6);
    part.queries = 40;
    let plane = [Axis::dense(20, 45, false).with_origin(13), axis(6, 2, 1, 2, true)];
    let others = [
        Problem::new([part], 4, 12).with_heads_kv(2).with_batch(2),
        // Every query sees every key, where biases differ.
        Problem::new([axis(9, 9, 1, 1, false), axis(11, 11, 1, 1, false)], 2, 16),
        Problem::new(plane, 2, 8).with_additional(3),
    ];
    let can_have = |problem: &Problem| problem.axes.iter().all(Axis::is_among_keys);
    let all = all().into_iter().filter(can_have).chain(others);
    all.map(|problem| problem.with_bias(true)).collect()
}

/// One kernel of each pass for every problem, of various shapes.
fn check_all(problems: Vec<Problem>, limits: &Limits, offset: usize) {
    let Some(compiler) = compiler() else { return };
    for (number, problem) in problems.into_iter().enumerate() {
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
    check_all(all(), &Limits::HOPPER, 0);
}

#[test]
fn tiles_within_the_limits_of_webgpu() {
    check_all(all(), &Limits::WEBGPU, 0);
}

#[test]
#[ignore = "takes minutes; tiles with a bias also run on CubeCL's CPU"]
fn tiles_with_a_position_bias() {
    check_all(with_bias(), &Limits::HOPPER, 0);
    check_all(with_bias(), &Limits::WEBGPU, 1);
}

#[test]
fn random_problems() {
    let Some(compiler) = compiler() else { return };
    for mut random in random() {
        let can_have_bias = random.problem.axes.iter().all(Axis::is_among_keys);
        random.problem.has_bias = can_have_bias && random.pick / 2 % 2 == 0;
        let limits = if random.pick % 2 == 0 { Limits::HOPPER } else { Limits::WEBGPU };
        for pass in PASSES {
            let blueprints = candidates(&random.problem, &limits, pass);
            let number = (random.share * blueprints.len() as f64) as usize;
            check(compiler, &random.problem, &blueprints[number]);
        }
    }
}
