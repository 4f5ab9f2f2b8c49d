//! The relative position bias.

use burn_natten_kernels::portable::{Way, backward, forward};
use burn_natten_kernels::{Axis, KernelError, MAX_RANK, Operand, Problem, Strided};
use rand::{Rng, SeedableRng, rngs::StdRng};
use test_support::format::{BF16, F16, F32};
use test_support::oracle::{compute, places, visible};
use test_support::portable::{client, run, run_by};
use test_support::{Data, Results, axis, error, problem};

use super::{check, kernels, windows};

/// Problems with a bias, by what is special about them.
fn problems() -> Vec<(&'static str, Problem)> {
    let mut part = axis(20, 4, 2, 2, false).with_origin(6);
    part.queries = 9;
    let others = [
        // Windows that cover the space, each with biases of its own.
        ("2d self", problem(&[axis(5, 5, 1, 1, false), axis(4, 4, 1, 1, false)], 8)),
        ("slices", problem(&[axis(12, 3, 1, 1, false)], 148).with_batch(1)),
        ("a part of the queries", problem(&[part], 8)),
        (
            "a part of the queries, which see everything",
            problem(&[Axis::dense(4, 9, false).with_origin(3), axis(3, 2, 1, 1, true)], 8),
        ),
    ];
    let all = windows().into_iter().chain(others);
    all.map(|(name, problem)| (name, problem.with_bias(true))).collect()
}

#[test]
fn f32_is_within_1e_5() {
    for (seed, (name, problem)) in problems().into_iter().enumerate() {
        check(name, problem, F32, 300 + seed as u64);
    }
}

#[test]
fn half_types_are_as_good_as_their_storage() {
    for (seed, (name, problem)) in problems().into_iter().step_by(2).enumerate() {
        let format = if seed % 2 == 0 { F16 } else { BF16 };
        check(name, problem, format, 400 + seed as u64);
    }
}

/// `BURN_NATTEN_TEST_PROBLEMS` of them, and a few by default.
#[test]
fn random_problems() {
    let count = std::env::var("BURN_NATTEN_TEST_PROBLEMS");
    let count = count.map_or(6, |count| count.parse().expect("a number"));
    let mut rng = StdRng::seed_from_u64(15);
    for seed in 0..count {
        let problem = random_problem(&mut rng);
        let format = [F32, F16, F32, BF16][seed % 4];
        check(&format!("random {seed}"), problem, format, 500 + seed as u64);
    }
}

fn random_problem(rng: &mut StdRng) -> Problem {
    let rank = rng.random_range(1..=MAX_RANK);
    let axes: Vec<_> = (0..rank)
        .map(|_| {
            let length = rng.random_range(4..=[60, 12, 6][rank - 1]);
            let dilation = if rng.random() { 1 } else { rng.random_range(1..=length / 2) };
            let kernel_size = rng.random_range(2..=length / dilation);
            let stride = if rng.random() { 1 } else { rng.random_range(1..=kernel_size) };
            axis(length, kernel_size, stride, dilation, rng.random_bool(0.3))
        })
        .collect();
    let (dim, dim_v) = [(8, 8), (16, 12), (7, 5), (6, 10)][rng.random_range(0..4)];
    let heads_kv = rng.random_range(1..=2);
    problem(&axes, dim)
        .with_batch(rng.random_range(1..=3))
        .with_heads(heads_kv * rng.random_range(1..=3))
        .with_heads_kv(heads_kv)
        .with_head_dim_v(dim_v)
        .with_additional(if rng.random_bool(0.3) { rng.random_range(1..=5) } else { 0 })
        .with_bias(true)
}

/// One sample of two axes, the second causal, so that half of its offsets are never seen.
fn small() -> Problem {
    problem(&[axis(12, 3, 1, 2, false), axis(9, 4, 2, 1, true)], 8)
        .with_batch(1)
        .with_additional(1)
        .with_bias(true)
}

fn of(problem: &Problem, data: &Data) -> Results {
    run(&client(), problem, data, F32)
}

/// What all kernels give for a problem, and how far rows that tiles spoil may be from what they are by tiles: they are
/// computed again, by another kernel.
fn by_all(problem: &Problem, compare: impl Fn(&dyn Fn(&Data) -> Results, f64)) {
    let client = client();
    for kernels in kernels(&client, problem) {
        println!("{kernels:?}");
        let limit = if kernels.forward == Way::Rows { 0.0 } else { 1e-5 };
        compare(&|data| run_by(&client, problem, data, F32, Some(&kernels)), limit);
    }
}

#[test]
fn what_is_not_finite_reaches_only_those_that_see_it() {
    by_all(&small(), check_isolation);
}

fn check_isolation(of: &dyn Fn(&Data) -> Results, limit: f64) {
    let problem = small();
    let near = |a: &f64, e: &f64| (a - e).abs() <= limit * e.abs().max(1.0);
    let same = |a: &[f64], e: &[f64]| a.iter().zip(e).all(|(a, e)| near(a, e));
    let entries: usize = problem.bias_extents().iter().product();
    let clean = Data::random(&problem, 16, F32.round);
    let expected = of(&clean);
    let (heads, dim) = (problem.heads, problem.head_dim);

    // A key of head 1, and an entry of the bias of head 1 that some queries have and others have not.
    let bad_key = 40;
    let bad_entry = places(&problem, 0).pop().expect("a query sees itself");
    let mut of_key = clean.clone();
    of_key.key[(bad_key * heads + 1) * dim] = f64::NAN;
    let mut of_bias = clean.clone();
    of_bias.bias[entries + bad_entry] = f64::NAN;
    type Reached<'a> = &'a dyn Fn(usize) -> bool;
    let cases: [(&str, Data, Reached); 2] = [
        ("key", of_key, &|query| visible(&problem, query).contains(&bad_key)),
        ("bias", of_bias, &|query| places(&problem, query).contains(&bad_entry)),
    ];
    for (name, data, reached) in cases {
        let actual = of(&data);
        let queries: Vec<usize> = (0..problem.queries()).filter(|query| reached(*query)).collect();
        assert!(!queries.is_empty() && queries.len() < problem.queries(), "{name}");
        for query in 0..problem.queries() {
            for head in 0..heads {
                let row = query * heads + head;
                let case = format!("{name}: query {query} head {head}");
                let is_reached = head == 1 && queries.contains(&query);
                assert_eq!(actual.lse[row].is_nan(), is_reached, "{case}");
                for (a, e) in [(&actual.out, &expected.out), (&actual.dq, &expected.dq)] {
                    let (a, e) = (&a[row * dim..][..dim], &e[row * dim..][..dim]);
                    assert!(if is_reached { a[0].is_nan() } else { same(a, e) }, "{case}");
                }
            }
        }
        let spoiled: Vec<usize> =
            queries.iter().flat_map(|query| places(&problem, *query)).collect();
        assert!(spoiled.len() > 1);
        for place in 0..heads * entries {
            let case = format!("{name}: dbias {place}");
            let is_reached = place >= entries && spoiled.contains(&(place - entries));
            assert_eq!(actual.dbias[place].is_nan(), is_reached, "{case}");
            assert!(is_reached || near(&actual.dbias[place], &expected.dbias[place]), "{case}");
        }
    }
}

#[test]
fn entries_that_no_pair_has_are_not_read() {
    let problem = small();
    let entries: usize = problem.bias_extents().iter().product();
    let seen: Vec<usize> = (0..problem.queries()).flat_map(|q| places(&problem, q)).collect();
    let clean = Data::random(&problem, 17, F32.round);
    let mut data = clean.clone();
    let unseen: Vec<usize> =
        (0..problem.heads * entries).filter(|place| !seen.contains(&(place % entries))).collect();
    assert!(!unseen.is_empty());
    for place in &unseen {
        data.bias[*place] = f64::NAN;
    }
    by_all(&problem, |of, _| {
        let (expected, actual) = (of(&clean), of(&data));
        for ((name, expected), (_, actual)) in expected.named().into_iter().zip(actual.named()) {
            assert_eq!(expected, actual, "{name}");
        }
        assert!(unseen.iter().all(|place| actual.dbias[*place] == 0.0));
    });
}

#[test]
fn minus_infinity_hides_keys() {
    let problem = small();
    let mut data = Data::random(&problem, 23, F32.round);
    let entries: usize = problem.bias_extents().iter().product();
    // A quarter of the entries of head 0, but not that of a query and the key where it stands, which each sees.
    for place in (0..entries).step_by(4).filter(|place| *place != entries / 2) {
        data.bias[place] = f64::NEG_INFINITY;
    }
    let exact = compute(&problem, &data, |x| x);
    assert!(exact.named().iter().all(|(_, values)| values.iter().all(|x| x.is_finite())));
    by_all(&problem, |of, _| {
        for ((name, exact), (_, actual)) in exact.named().into_iter().zip(of(&data).named()) {
            let error = error(actual, exact);
            assert!(error < 1e-5, "{name}: {error:e}");
        }
    });
}

#[test]
fn results_repeat_bit_by_bit() {
    // Several chunks of queries.
    let axes = [axis(15, 5, 1, 1, false), axis(14, 5, 1, 1, false)];
    let problem = problem(&axes, 8).with_additional(2).with_bias(true);
    let data = Data::random(&problem, 18, F32.round);
    by_all(&problem, |of, _| {
        let (first, second) = (of(&data), of(&data));
        for ((name, first), (_, second)) in first.named().into_iter().zip(second.named()) {
            assert_eq!(first, second, "{name}");
        }
    });
}

#[test]
fn gradients_that_nobody_wants_change_no_others() {
    let client = client();
    let problem = small();
    let data = Data::random(&problem, 22, F32.round);
    let exact = compute(&problem, &data, F32.round);
    let saved = F32.saved(&client, &problem, &data, [&exact.out, &exact.lse]);
    let run = |wanted: fn(Operand) -> bool| {
        let gradients = F32.poisoned_gradients(&client, &problem);
        let gradients = gradients.map(|operand, handle| handle.filter(|_| wanted(operand)));
        backward(&client, &problem, F32.elem(), true, &saved, &gradients).expect("launched");
        F32.download_gradients(&client, &problem, &gradients)
    };
    let mut others = run(|_| true);
    let bias = others.pop();
    assert_eq!(run(|operand| operand == Operand::Bias), Vec::from_iter(bias));
    assert_eq!(run(|operand| operand != Operand::Bias), others);
}

#[test]
fn gradients_are_zero_without_a_pair() {
    for axis in [Axis::dense(0, 7, false), Axis::dense(0, 7, true).with_origin(0)] {
        let problem = problem(&[axis], 8).with_additional(2).with_bias(true);
        let results = of(&problem, &Data::random(&problem, 19, F32.round));
        assert_eq!(results.dbias, vec![0.0; 2 * 13]);
        assert!(results.dk.iter().all(|x| *x == 0.0));
    }
    let nothing = problem(&[Axis::dense(0, 0, false)], 8).with_additional(2).with_bias(true);
    let results = of(&nothing, &Data::random(&nothing, 20, F32.round));
    assert!(results.dbias.is_empty());
}

#[test]
fn what_cannot_run_names_the_bias() {
    let client = client();
    let problem = small();
    let data = Data::random(&problem, 21, F32.round);
    let inputs = F32.operands(&client, &problem, &data);
    let outputs = F32.poisoned_outputs(&client, &problem);
    let launch = |problem: &Problem, bias: Option<Strided>| {
        let mut inputs = inputs.clone();
        inputs.bias = bias;
        forward(&client, problem, F32.elem(), true, &inputs, &outputs)
    };
    let strides = Operand::Bias.strides(&problem);
    let bias = |values: &[f64], strides| Strided { handle: F32.upload(&client, values), strides };

    let expected = 4 * data.bias.len() as u64;
    let short = bias(&data.bias[1..], strides);
    let error = KernelError::Buffer { name: "bias", expected, actual: expected - 4 };
    assert_eq!(launch(&problem, Some(short)), Err(error));
    let heads_last = bias(&data.bias, Operand::Bias.shape(&problem).strides());
    let result = launch(&problem, Some(heads_last));
    assert!(matches!(result, Err(KernelError::Layout { name: "bias", .. })), "{result:?}");
    assert_eq!(launch(&problem, None), Err(KernelError::Bias(true)));
    let whole = bias(&data.bias, strides);
    assert_eq!(
        launch(&problem.with_bias(false), Some(whole.clone())),
        Err(KernelError::Bias(false))
    );
    let [_, y, x] = problem.axes;
    let outside = problem.with_axes([y.with_origin(2), x]);
    let result = launch(&outside, Some(whole));
    let Err(KernelError::Problem(reason)) = result else { panic!("{result:?}") };
    assert!(reason.contains("position bias"), "{reason}");

    let saved = F32.saved(
        &client,
        &problem,
        &data,
        [&vec![0.0; data.dout.len()], &vec![0.0; data.dlse.len()]],
    );
    let mut gradients = F32.poisoned_gradients(&client, &problem);
    gradients.bias = Some(Some(F32.poisoned(&client, data.bias.len() - 1)));
    let result = backward(&client, &problem, F32.elem(), true, &saved, &gradients);
    let error = KernelError::Buffer { name: "dbias", expected, actual: expected - 4 };
    assert_eq!(result, Err(error));
}
