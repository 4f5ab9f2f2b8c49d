//! The portable kernels against brute force in `f64`.
//!
//! `cargo test -p burn-natten-kernels --features cpu` runs them on cubecl-cpu.

mod bias;
mod blocks;
mod limits;
mod lists;
mod packed;
mod selection;
mod tokens;

use burn_natten_kernels::portable::{
    BackwardPlan, Blueprint, Limits, Way, backward_with, candidates, forward, forward_with,
};
use burn_natten_kernels::tensor_core::Pass;
use burn_natten_kernels::{Axis, KernelError, KeyValue, Problem};
use cubecl::client::Client;
use cubecl::ir::{ElemType, FloatKind};
use test_support::format::{BF16, F16, F32, Format};
use test_support::oracle::{compute, visible};
use test_support::portable::{Kernels, client, run, run_by};
use test_support::{Data, axis, error, problem};

/// Units, and rows and columns of each: `down, across, rows_each, columns_each`.
const SMALL: [[usize; 4]; 4] = [[4, 2, 2, 4], [2, 2, 4, 8], [1, 4, 8, 4], [2, 4, 4, 4]];
/// The same for CPUs, where each unit is a thread and barriers are slow: units of a cube work together in
/// `tests/emulated`.
const ALONE: [[usize; 4]; 2] = [[1, 1, 4, 4], [1, 1, 4, 4]];

/// A small tiled kernel, number `number` of several for each pass.
fn small(problem: &Problem, pass: Pass, number: usize, shapes: &[[usize; 4]]) -> Way {
    let [down, across, rows_each, columns_each] = shapes[number];
    // As kernels walk them: the axes that there are come last.
    let (rank, is_causal) = if problem.is_full() && !problem.has_bias {
        (1, [false; 3])
    } else {
        let mut axes = problem.axes;
        let padding = axes.iter().rev().take_while(|axis| **axis == Axis::UNIT).count();
        axes.rotate_right(padding);
        (problem.with_axes(axes).rank(), axes.map(|axis| axis.is_causal))
    };
    let (rows, columns) = (down * rows_each, across * columns_each);
    let row_tile = match rank {
        1 => [1, 1, rows],
        2 => [[1, 2, rows / 2], [1, rows / 2, 2]][number % 2],
        _ => [[2, rows / 4, 2], [1, 2, rows / 2]][number % 2],
    };
    let column_tile = match rank {
        1 => [1, 1, columns],
        2 => [1, columns / columns_each, columns_each],
        _ => [columns / columns_each, 1, columns_each],
    };
    let (q_tile, kv_tile) = match pass {
        Pass::Forward | Pass::Queries => (row_tile, column_tile),
        Pass::Keys => (column_tile, row_tile),
    };
    let dims = [problem.head_dim, problem.head_dim_v];
    let divides = |size: &usize| dims.iter().all(|dim| dim.is_multiple_of(*size));
    let vector = [4, 2, 1].into_iter().find(divides).expect("one divides everything");
    let lines = problem.head_dim.max(problem.head_dim_v) / vector;
    Way::Tiles(Blueprint {
        pass,
        rank,
        is_causal,
        has_origin: problem.has_origin(),
        q_tile,
        kv_tile,
        across,
        down,
        rows_each,
        columns_each,
        head_dim: problem.head_dim,
        head_dim_v: problem.head_dim_v,
        vector,
        // Whole, or in two or three pieces.
        depth: if number.is_multiple_of(2) {
            lines
        } else {
            lines.div_ceil(3).next_multiple_of(across)
        },
        holds_rows: number / 2 % 2 == number % 2,
        has_additional: problem.additional > 0 && pass != Pass::Keys,
        has_bias: problem.has_bias,
        is_packed: false,
    })
}

/// All kernels that a problem is tested with: rows, small tiles, and on a GPU those that run there.
fn kernels(client: &Client, problem: &Problem) -> Vec<Kernels> {
    let mut all = vec![Kernels::ROWS];
    let limits = Limits::of(client);
    if problem.keys() == 0 || problem.queries() == 0 {
        return all;
    }
    let shapes = if limits.is_cpu { &ALONE[..] } else { &SMALL[..] };
    for number in 0..shapes.len() {
        let way = |pass| small(problem, pass, number, shapes);
        let backward = BackwardPlan { queries: way(Pass::Queries), keys: way(Pass::Keys) };
        all.push(Kernels { forward: way(Pass::Forward), backward });
    }
    if limits.is_cpu {
        return all;
    }
    for limits in [limits, Limits { shared_memory: Limits::WEBGPU.shared_memory, ..limits }] {
        let of = |pass| candidates(problem, &limits, pass);
        let [forward, queries, keys] = [Pass::Forward, Pass::Queries, Pass::Keys].map(of);
        // A few of all shapes.
        for part in 0..4 {
            let pick = |blueprints: &[Blueprint]| {
                blueprints.get(blueprints.len() * part / 4).map_or(Way::Rows, |b| Way::Tiles(*b))
            };
            let backward = BackwardPlan { queries: pick(&queries), keys: pick(&keys) };
            all.push(Kernels { forward: pick(&forward), backward });
        }
    }
    all
}

fn check(name: &str, problem: Problem, format: Format, seed: u64) {
    let client = client();
    if !client.properties().supports_type(format.elem()) {
        println!("{name}: no {:?} on this device", format.kind);
        return;
    }
    let data = Data::random(&problem, seed, format.round);
    let exact = compute(&problem, &data, |x| x);
    let stored = compute(&problem, &data, format.round);
    let mut ways = kernels(&client, &problem);
    let seed = seed as usize;
    if Limits::of(&client).is_cpu && ways.len() > 1 {
        // Rows, and tiles of one kind or the other; few where only the type of vectors differs.
        // Units of long vectors take LLVM minutes.
        let is_short = problem.head_dim.max(problem.head_dim_v) <= 32;
        let is_chosen = is_short && (format.kind == FloatKind::F32 || seed.is_multiple_of(4));
        let tiles = is_chosen.then(|| ways[1 + seed % 2]);
        ways.truncate(1);
        ways.extend(tiles);
    } else if ways.len() > 1 {
        // Rows, small tiles, tiles of a large GPU and tiles within the limits of WebGPU.
        ways = [0, 1 + seed % 4, 5 + seed % 4, 9 + seed % 4].map(|number| ways[number]).to_vec();
    }
    for kernels in ways {
        let actual = run_by(&client, &problem, &data, format, Some(&kernels));
        let names = exact.named();
        for (((name_of, exact), (_, actual)), (_, stored)) in
            names.into_iter().zip(actual.named()).zip(stored.named())
        {
            let mut limit = 1e-5;
            if format.kind != FloatKind::F32 && name_of != "lse" {
                // Twice what the storage type costs an implementation that is exact otherwise.
                let rounded: Vec<f64> = stored.iter().map(|x| (format.round)(*x)).collect();
                limit += 2.0 * error(&rounded, exact);
            }
            let error = error(actual, exact);
            println!("{name} {:?} {name_of}: {error:.1e} of {limit:.1e}", format.kind);
            let case = format!("{problem:?} by {kernels:?}");
            assert!(error < limit, "{name}, {name_of}: error {error:e}, limit {limit:e}, {case}");
        }
    }
}

/// Windows that every element type has to pass, with a bias and without, by what is special about them.
fn windows() -> Vec<(&'static str, Problem)> {
    vec![
        ("1d", problem(&[axis(37, 7, 1, 1, false)], 8)),
        ("1d even kernel, stride", problem(&[axis(37, 6, 3, 1, false)], 8)),
        ("1d unequal groups", problem(&[axis(38, 5, 2, 4, false)], 8)),
        ("1d causal, stride, dilation", problem(&[axis(41, 5, 3, 3, true)], 8)),
        ("1d self", problem(&[axis(19, 19, 1, 1, false)], 8)),
        ("2d, the last axis of one token", problem(&[axis(9, 3, 1, 1, false), Axis::UNIT], 8)),
        ("2d mixed", problem(&[axis(9, 3, 2, 2, true), axis(13, 4, 3, 3, false)], 8)),
        (
            "3d",
            problem(&[axis(5, 3, 1, 1, true), axis(7, 3, 2, 2, false), axis(6, 2, 2, 3, false)], 8),
        ),
        (
            "2d, additional, groups of heads, dims",
            problem(&[axis(9, 3, 1, 2, false), axis(8, 4, 1, 1, true)], 12)
                .with_heads(6)
                .with_head_dim_v(20)
                .with_additional(3),
        ),
        (
            "1d odd dims, one kv head",
            problem(&[axis(23, 5, 1, 1, false)], 5)
                .with_heads(3)
                .with_heads_kv(1)
                .with_head_dim_v(3)
                .with_additional(9),
        ),
    ]
}

/// The problems that every element type has to pass without a bias.
fn problems() -> Vec<(&'static str, Problem)> {
    let dense = |queries, keys, is_causal| {
        problem(&[Axis::dense(queries, keys, is_causal).with_origin(0)], 8)
    };
    let others = [
        ("1d blocked", problem(&[axis(32, 8, 8, 1, false)], 8)),
        ("2d", problem(&[axis(9, 5, 1, 1, false), axis(11, 3, 1, 1, false)], 8)),
        ("dense cross", dense(17, 29, false)),
        ("dense cross, causal, more queries", dense(29, 17, true)),
        ("dense cross, causal, more keys", dense(17, 29, true)),
        ("causal, queries that see nothing", problem(&[Axis::dense(150, 17, true)], 8)),
        ("causal, aligned at the end", problem(&[Axis::dense(17, 29, true)], 8)),
        (
            "causal beside a window, queries that see nothing but additional tokens",
            problem(&[axis(5, 3, 1, 1, false), Axis::dense(19, 6, true)], 8).with_additional(2),
        ),
        (
            "causal beside a window, queries that see nothing",
            problem(&[Axis::dense(19, 6, true), axis(6, 3, 1, 2, false)], 8),
        ),
        ("dense, additional", dense(13, 21, false).with_head_dim_v(4).with_additional(2)),
    ];
    windows().into_iter().chain(others).collect()
}

#[test]
fn f32_is_within_1e_5() {
    for (seed, (name, problem)) in problems().into_iter().enumerate() {
        check(name, problem, F32, seed as u64);
    }
}

#[test]
fn f16_is_as_good_as_its_storage() {
    for (seed, (name, problem)) in problems().into_iter().enumerate() {
        check(name, problem, F16, 100 + seed as u64);
    }
}

#[test]
fn bf16_is_as_good_as_its_storage() {
    for (seed, (name, problem)) in problems().into_iter().enumerate() {
        check(name, problem, BF16, 200 + seed as u64);
    }
}

#[test]
fn any_head_dim() {
    // Whole rows, even slices, ragged slices of vectors and of single elements.
    for (dim, dim_v) in [(32, 32), (64, 64), (128, 64), (160, 160), (148, 24), (30, 70), (67, 33)] {
        let problem = problem(&[axis(12, 3, 1, 1, false), axis(5, 4, 1, 1, false)], dim)
            .with_batch(1)
            .with_head_dim_v(dim_v)
            .with_additional(2);
        check(&format!("dims {dim} {dim_v}"), problem, F32, dim as u64);
    }
}

#[test]
fn additional_tokens_over_several_chunks() {
    let problem = problem(&[axis(30, 3, 1, 1, false), axis(11, 3, 1, 1, false)], 8)
        .with_heads(4)
        .with_additional(3);
    check("chunks", problem, F32, 7);
}

#[test]
fn additional_tokens_alone() {
    let problem = problem(&[Axis::dense(9, 0, false)], 8).with_additional(5);
    check("no keys", problem, F32, 8);
}

#[test]
fn gradients_are_zero_without_queries() {
    let problem = problem(&[Axis::dense(0, 7, false)], 8).with_additional(2);
    let data = Data::random(&problem, 9, F32.round);
    let results = run(&client(), &problem, &data, F32);
    for gradient in [results.dk, results.dv, results.additional_dk, results.additional_dv] {
        assert!(!gradient.is_empty() && gradient.iter().all(|x| *x == 0.0));
    }
}

#[test]
fn a_bad_row_reaches_only_those_that_see_it() {
    let client = client();
    let problem = problem(&[axis(12, 3, 1, 2, false), axis(9, 4, 2, 1, true)], 8)
        .with_batch(1)
        .with_additional(1);
    for kernels in kernels(&client, &problem) {
        check_isolation(&client, &problem, &kernels);
    }
}

fn check_isolation(client: &Client, problem: &Problem, kernels: &Kernels) {
    let run = |data: &Data| run_by(client, problem, data, F32, Some(kernels));
    let clean = Data::random(problem, 10, F32.round);
    let expected = run(&clean);
    let (heads, dim) = (problem.heads, problem.head_dim);
    // Rows that tiles spoil are computed again, by another kernel.
    let limit = if kernels.forward == Way::Rows { 0.0 } else { 1e-5 };
    let same = |a: &[f64], b: &[f64], row: usize| {
        let pairs = a[row * dim..][..dim].iter().zip(&b[row * dim..][..dim]);
        pairs.fold(true, |same, (a, b)| same && (a - b).abs() <= limit * b.abs().max(1.0))
    };

    let bad_key = 40;
    let mut data = clean.clone();
    data.key[(bad_key * heads + 1) * dim] = f64::NAN;
    data.value[(bad_key * heads + 1) * dim + 3] = f64::INFINITY;
    let actual = run(&data);
    let mut seeing = 0;
    for query in 0..problem.queries() {
        let sees = visible(problem, query).contains(&bad_key);
        seeing += usize::from(sees);
        for head in 0..heads {
            let row = query * heads + head;
            let case = format!("query {query} head {head} by {kernels:?}");
            if sees && head == 1 {
                assert!(actual.out[row * dim].is_nan() && actual.lse[row].is_nan(), "{case}");
            } else {
                assert!(same(&actual.out, &expected.out, row), "{case}");
                assert!(same(&actual.dq, &expected.dq, row), "{case}");
                assert!((actual.lse[row] - expected.lse[row]).abs() <= limit, "{case}");
            }
        }
    }
    assert!(seeing > 0);

    let bad_query = 31;
    let mut data = clean;
    data.query[bad_query * heads * dim] = f64::NAN;
    let actual = run(&data);
    let seen = visible(problem, bad_query);
    for key in 0..problem.keys() {
        for head in 0..heads {
            let row = key * heads + head;
            let case = format!("key {key} head {head} by {kernels:?}");
            let is_reached = seen.contains(&key) && head == 0;
            assert_eq!(actual.dk[row * dim].is_nan(), is_reached, "{case}");
            if !is_reached {
                assert!(same(&actual.dk, &expected.dk, row), "{case}");
                assert!(same(&actual.dv, &expected.dv, row), "{case}");
            }
        }
    }
}

#[test]
fn huge_scores_are_no_nan() {
    let client = client();
    let problem = problem(&[axis(17, 5, 1, 1, true)], 8).with_scale(1.0);
    for factor in [1e18, -1e18] {
        let mut data = Data::random(&problem, 11, F32.round);
        // Scores up to 3.2e37, and with the sign, rows in which the largest is far below zero.
        data.query.iter_mut().for_each(|x| *x = (F32.round)(x.abs() * factor));
        data.key.iter_mut().for_each(|x| *x = (F32.round)(x.abs() * 1e18));
        let expected = compute(&problem, &data, |x| x);
        for kernels in kernels(&client, &problem) {
            let actual = run_by(&client, &problem, &data, F32, Some(&kernels));
            for (name, values) in actual.named() {
                let is_finite = values.iter().all(|x| x.is_finite());
                assert!(is_finite, "{name} with {factor} by {kernels:?}");
            }
            assert!(error(&actual.out, &expected.out) < 1e-5, "{kernels:?}");
            assert!(error(&actual.lse, &expected.lse) < 1e-5, "{kernels:?}");
        }
    }
}

#[test]
fn the_lowest_score_counts() {
    let client = client();
    // A single key whose score is the least finite f32.
    let problem = Problem::new([Axis::UNIT], 1, 1);
    let mut data = Data::random(&problem, 12, F32.round);
    data.query = vec![f64::from(f32::MIN)];
    data.key = vec![1.0];
    for kernels in kernels(&client, &problem) {
        let actual = run_by(&client, &problem, &data, F32, Some(&kernels));
        assert_eq!(actual.out, data.value, "{kernels:?}");
        assert_eq!(actual.lse, data.query, "{kernels:?}");
    }
}

#[test]
fn results_repeat_bit_by_bit() {
    let client = client();
    let problem =
        problem(&[axis(15, 5, 1, 1, false), axis(14, 5, 1, 1, false)], 8).with_additional(2);
    let data = Data::random(&problem, 13, F32.round);
    for kernels in kernels(&client, &problem) {
        let run = || run_by(&client, &problem, &data, F32, Some(&kernels));
        let (first, second) = (run(), run());
        for ((name, first), (_, second)) in first.named().into_iter().zip(second.named()) {
            assert_eq!(first, second, "{name} by {kernels:?}");
        }
    }
}

#[test]
fn gradients_that_nobody_wants_change_no_others() {
    let client = client();
    let axes = [axis(6, 3, 1, 2, true), axis(9, 4, 2, 1, false)];
    let problem = problem(&axes, 8).with_additional(3);
    let data = Data::random(&problem, 9, F32.round);
    let exact = compute(&problem, &data, F32.round);
    let saved = F32.saved(&client, &problem, &data, [&exact.out, &exact.lse]);
    for kernels in kernels(&client, &problem) {
        let run = |wanted: [bool; 5]| {
            let mut outputs = F32.poisoned_gradients(&client, &problem);
            outputs = outputs.map(|operand, output| output.filter(|_| wanted[operand as usize]));
            let (plan, elem) = (&kernels.backward, F32.elem());
            backward_with(&client, plan, &problem, elem, &saved, &outputs).expect("launched");
            F32.download_gradients(&client, &problem, &outputs)
        };
        let all = run([true; 5]);
        assert!(all.iter().all(|(_, gradient)| gradient.iter().all(|x| x.is_finite())));
        for wanted in (0..32).map(|bits| [0, 1, 2, 3, 4].map(|place| bits >> place & 1 == 1)) {
            let expected = all.iter().zip(wanted).filter(|(_, is_wanted)| *is_wanted);
            let expected: Vec<_> = expected.map(|(gradient, _)| gradient.clone()).collect();
            assert_eq!(run(wanted), expected, "{wanted:?}");
        }
    }
}

#[test]
fn what_cannot_run_is_an_error() {
    let client = client();
    let problem = problem(&[axis(9, 3, 1, 1, false)], 8);
    let data = Data::random(&problem, 14, F32.round);
    let mut inputs = F32.operands(&client, &problem, &data);
    inputs.value.handle = F32.upload(&client, &data.value[1..]);
    let outputs = F32.poisoned_outputs(&client, &problem);
    let result = forward(&client, &problem, F32.elem(), true, &inputs, &outputs);
    let (expected, actual) = (4 * data.value.len() as u64, 4 * data.value.len() as u64 - 4);
    assert_eq!(result, Err(KernelError::Buffer { name: "value", expected, actual }));

    inputs.value.handle = F32.upload(&client, &data.value);
    let mut apart = inputs.clone();
    apart.query.strides[4] += 1;
    apart.query.handle = F32.poisoned(&client, 2 * data.query.len());
    let result = forward(&client, &problem, F32.elem(), true, &apart, &outputs);
    assert!(matches!(result, Err(KernelError::Layout { name: "query", .. })), "{result:?}");

    let double = ElemType::Float(FloatKind::F64);
    let result = forward(&client, &problem, double, true, &inputs, &outputs);
    assert!(
        matches!(result, Err(KernelError::ElementType { got, .. }) if got == double),
        "{result:?}"
    );

    // Tiles of another pass, and of another problem.
    let other = problem.with_head_dim_v(4);
    for way in [small(&problem, Pass::Queries, 0, &ALONE), small(&other, Pass::Forward, 0, &ALONE)]
    {
        let result = forward_with(&client, &way, &problem, F32.elem(), &inputs, &outputs);
        let Err(error @ KernelError::Blueprint(_)) = result else { panic!("{result:?}") };
        assert!(error.to_string().contains("1 units"), "{error}");
    }

    inputs.additional = Some(KeyValue { key: inputs.key.clone(), value: inputs.value.clone() });
    let result = forward(&client, &problem, F32.elem(), true, &inputs, &outputs);
    assert_eq!(result, Err(KernelError::Additional(0)));
}
