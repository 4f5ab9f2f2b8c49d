//! A relative position bias: what it is equal to, what it touches, how it may lie in memory, and its gradient.

use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_natten::{NeighborhoodOptions, Strategy, try_na2d};
use proptest::prelude::*;
use rstest::rstest;

use super::gradients::{differences_match, everything, problem, window};
use super::properties::{cases_on, check_cases, matches_the_oracle, problems_with_bias};
use super::relations::same;
use crate::support::check::{self, close, identical};
use crate::support::problem::{Axis, Inputs, Problem};
use crate::support::run::{Loss, Results, Setup, options, run, tensor, values};
use crate::support::{TestDevice, devices};

fn with_bias(problem: Problem) -> Problem {
    Problem { bias: true, ..problem }
}

fn result(problem: &Problem, inputs: &Inputs, device: &TestDevice, strategy: Strategy) -> Results {
    let setup = Setup::new(&device.device).strategy(strategy).loss(Loss::Both);
    run(problem, inputs, &setup).expect("a valid problem")
}

fn everywhere(check: impl Fn(&TestDevice, Strategy)) {
    for device in devices() {
        for strategy in device.bias_strategies() {
            check(&device, strategy);
        }
    }
}

/// Both results and all gradients, bit by bit.
fn same_bits(what: &str, got: &Results, want: &Results) {
    identical(&format!("{what} out"), &got.out, &want.out);
    identical(&format!("{what} lse"), &got.lse, &want.lse);
    let of = |results: &Results| results.gradients.clone().expect("backward");
    for ((name, got), (_, want)) in of(got).named().into_iter().zip(of(want).named()) {
        identical(&format!("{what} {name}"), got, want);
    }
}

#[test]
fn random_problems_agree_with_the_oracle() {
    for device in devices() {
        check_cases(cases_on(&device), (problems_with_bias(), any::<u64>()), |(problem, seed)| {
            for strategy in device.bias_strategies() {
                matches_the_oracle(&problem, seed, &device, strategy);
            }
            Ok(())
        });
    }
}

#[rstest]
#[case::na1d(problem(&[window(7, 3, 1, 1, 0)]))]
#[case::na1d_even(problem(&[window(7, 4, 1, 1, 0)]))]
#[case::na1d_stride(problem(&[window(8, 4, 3, 1, 0)]))]
#[case::na1d_blocked(problem(&[window(8, 4, 4, 1, 0)]))]
#[case::na1d_causal_stride(problem(&[window(9, 4, 3, 2, 1)]))]
#[case::na1d_full(problem(&[window(5, 5, 1, 1, 0)]))]
#[case::na1d_zero_scale(Problem { scale: Some(0.0), ..problem(&[window(6, 3, 2, 1, 0)]) })]
#[case::na1d_everything(everything(&[window(9, 3, 2, 2, 1)]))]
#[case::na2d_full(problem(&[window(3, 3, 1, 1, 0), window(4, 4, 2, 1, 0)]))]
#[case::na2d_everything(everything(&[window(4, 2, 2, 2, 0), window(5, 3, 2, 1, 1)]))]
#[case::na3d_everything(
    everything(&[window(2, 2, 1, 1, 1), window(4, 2, 2, 2, 0), window(3, 2, 1, 1, 0)])
)]
fn finite_differences(#[case] problem: Problem) {
    let problem = with_bias(problem);
    for strategy in [Strategy::Auto, Strategy::Reference] {
        for loss in [Loss::Out, Loss::Lse, Loss::Both] {
            differences_match(&problem, strategy, loss);
        }
    }
}

/// Windows that cover the space take another way without a bias, and sum in another order; Portable has other kernels.
#[rstest]
#[case(everything(&[window(9, 4, 2, 2, 1)]), true)]
#[case(everything(&[window(5, 3, 2, 1, 0), window(6, 2, 1, 3, 1)]), true)]
#[case(everything(&[window(4, 4, 1, 1, 0), window(5, 5, 3, 1, 0)]), false)]
fn a_bias_of_zeros_is_none(#[case] plain: Problem, #[case] in_order: bool) {
    let problem = with_bias(plain.clone());
    let mut inputs = problem.inputs(51);
    inputs.bias.fill(0.0);
    everywhere(|device, strategy| {
        let mut got = result(&problem, &inputs, device, strategy);
        got.gradients.as_mut().expect("backward").bias.clear();
        // No bias at all, by the same tier.
        let bare = Inputs { bias: vec![], ..inputs.clone() };
        let want = result(&plain, &bare, device, strategy);
        let what = format!("{} {strategy:?}", device.name);
        match in_order && strategy != Strategy::Portable {
            true => same_bits(&what, &got, &want),
            false => same(&what, &got, &want),
        }
    });
}

/// The same number for all distances changes the logsumexp alone, and its gradient is that of the logsumexp.
#[test]
fn a_constant_bias_moves_the_logsumexp() {
    let plain = problem(&[window(7, 4, 2, 1, 0), window(6, 3, 1, 2, 1)]);
    let problem = with_bias(plain.clone());
    let mut inputs = problem.inputs(52);
    inputs.bias.fill(0.75);
    everywhere(|device, strategy| {
        let moved = result(&problem, &inputs, device, strategy);
        let bare = Inputs { bias: vec![], ..inputs.clone() };
        let mut want = result(&plain, &bare, device, strategy);
        want.lse.iter_mut().for_each(|lse| *lse += 0.75);
        let mut got = moved.clone();
        let dbias = std::mem::take(&mut got.gradients.as_mut().expect("backward").bias);
        let what = format!("{} {strategy:?}", device.name);
        same(&what, &got, &want);
        // Rows sum to the gradient of the logsumexp: that of the output moves weight from key to key.
        let entries = problem.entries();
        let of_head = |head: usize| dbias[head * entries..][..entries].iter().sum::<f64>();
        let sums: Vec<f64> = (0..problem.heads).map(of_head).collect();
        let expected: Vec<f64> = (0..problem.heads)
            .map(|head| inputs.grad_lse.iter().skip(head).step_by(problem.heads).sum())
            .collect();
        close(&what, &sums, &expected, check::F32);
    });
}

/// Minus infinity at a distance hides the keys there.
#[test]
fn an_infinite_bias_hides() {
    let problem = with_bias(everything(&[window(9, 4, 1, 1, 0)]));
    let mut inputs = problem.inputs(53);
    for head in inputs.bias.chunks_mut(problem.entries()) {
        (head[0], head[2], head[6]) = (f64::NEG_INFINITY, f64::NEG_INFINITY, f64::NEG_INFINITY);
    }
    let (out, lse) = problem.forward(&inputs);
    let expected = problem.backward(&inputs, &out);
    everywhere(|device, strategy| {
        let results = result(&problem, &inputs, device, strategy);
        let what = format!("{} {strategy:?}", device.name);
        close(&what, &results.out, &out, check::F32);
        close(&what, &results.lse, &lse, check::F32);
        let gradients = results.gradients.expect("backward");
        for ((name, got), (_, want)) in gradients.named().into_iter().zip(expected.named()) {
            close(&format!("{what} {name}"), got, want, check::F32);
        }
    });
}

#[rstest]
#[case([false, false, false, false, true])]
#[case([true, true, true, true, false])]
#[case([true, false, false, false, true])]
#[case([false, true, true, false, true])]
fn what_is_tracked_does_not_change_the_gradients(#[case] tracked: [bool; 5]) {
    let problem = with_bias(everything(&[window(4, 2, 2, 2, 0), window(5, 3, 1, 1, 1)]));
    let inputs = problem.inputs(54);
    everywhere(|device, strategy| {
        let setup = Setup::new(&device.device).strategy(strategy).loss(Loss::Both);
        let all = run(&problem, &inputs, &setup).expect("valid").gradients.expect("backward");
        let setup = setup.tracked(tracked);
        let some = run(&problem, &inputs, &setup).expect("valid").gradients.expect("backward");
        assert_eq!(some.bias.is_empty(), !tracked[4]);
        for ((name, got), (_, want)) in some.named().into_iter().zip(all.named()) {
            if !got.is_empty() {
                identical(&format!("{} {strategy:?} {name}", device.name), got, want);
            }
        }
    });
}

/// Rows of a batch of none, and of one.
#[test]
fn nothing_to_attend_leaves_a_gradient_of_zeros() {
    let problem = Problem { batch: 0, ..with_bias(problem(&[window(6, 3, 1, 1, 0)])) };
    let inputs = problem.inputs(55);
    everywhere(|device, strategy| {
        let gradients = result(&problem, &inputs, device, strategy).gradients.expect("backward");
        assert_eq!(gradients.bias, vec![0.0; problem.heads * problem.entries()]);
    });
}

/// A row of keys, values or cotangents that is NaN reaches the entries of the queries that see it, and no other.
#[rstest]
fn what_a_query_does_not_see_cannot_touch_its_entries(#[values(0, 1, 2)] which: usize) {
    // The last key of an axis is seen from few distances.
    let problems = [
        Problem { heads: 4, ..problem(&[window(19, 5, 1, 1, 0)]) },
        Problem { heads: 4, ..problem(&[window(7, 4, 2, 1, 0), window(9, 3, 1, 2, 1)]) },
        Problem {
            heads: 4,
            ..problem(&[window(3, 2, 1, 1, 1), window(5, 3, 1, 1, 0), window(5, 2, 1, 2, 0)])
        },
    ];
    everywhere(|device, strategy| {
        for problem in problems.clone().map(with_bias) {
            let clean_inputs = problem.inputs(56);
            let clean = result(&problem, &clean_inputs, device, strategy);
            let (token, head_kv, mut inputs) = (problem.keys() - 1, 1, clean_inputs.clone());
            let (batch, dim) = (1, problem.dim);
            let row = |heads: usize, head: usize| {
                ((batch * problem.keys() + token) * heads + head) * dim + 1
            };
            let group = problem.heads / problem.heads_kv;
            match which {
                0 => inputs.key[row(problem.heads_kv, head_kv)] = f64::NAN,
                1 => inputs.value[row(problem.heads_kv, head_kv)] = f64::NAN,
                _ => inputs.grad_out[row(problem.heads, head_kv * group)] = f64::NAN,
            }
            let is_touched = |query: usize, head: usize| match which {
                2 => query == token && head == head_kv * group,
                _ => head / group == head_kv && problem.visible_keys()[query].contains(&token),
            };
            let got = result(&problem, &inputs, device, strategy);
            let what = format!("{} {strategy:?} {which} of {problem:?}", device.name);
            let of = |results: &Results| results.gradients.clone().expect("backward");
            let (got, clean) = (of(&got), of(&clean));
            let (entries, places) = (problem.entries(), problem.places());
            let mut reached = vec![false; problem.heads * entries];
            for head in 0..problem.heads {
                for query in (0..problem.queries()).filter(|query| is_touched(*query, head)) {
                    places[query].iter().for_each(|place| reached[head * entries + place] = true);
                }
            }
            assert!(reached.contains(&true));
            let kept = reached[head_kv * group * entries..][..entries].contains(&false);
            assert!(kept, "{what}: the head at hand has no entry that is not reached");
            for (index, is_reached) in reached.into_iter().enumerate() {
                match is_reached {
                    true => assert!(got.bias[index].is_nan(), "{what}: entry {index}"),
                    false => identical(&what, &[got.bias[index]], &[clean.bias[index]]),
                }
            }
        }
    });
}

/// An entry that is NaN touches the queries with a key at its distance, and no other.
#[test]
fn an_entry_touches_only_its_distance() {
    let problem = with_bias(Problem { batch: 1, ..problem(&[window(12, 5, 1, 2, 0)]) });
    let clean_inputs = problem.inputs(57);
    let (head, entry) = (1, 1);
    everywhere(|device, strategy| {
        let clean = result(&problem, &clean_inputs, device, strategy);
        let mut inputs = clean_inputs.clone();
        inputs.bias[head * problem.entries() + entry] = f64::NAN;
        let got = result(&problem, &inputs, device, strategy);
        let (places, dim) = (problem.places(), problem.dim_v);
        let mut touched = 0;
        for (query, places) in places.iter().enumerate() {
            for at in 0..problem.heads {
                let row = query * problem.heads + at;
                let of = |results: &Results| results.out[row * dim..][..dim].to_vec();
                if at == head && places.contains(&entry) {
                    touched += 1;
                    assert!(got.lse[row].is_nan() && of(&got).iter().all(|x| x.is_nan()));
                } else {
                    identical(device.name, &of(&got), &of(&clean));
                }
            }
        }
        assert!(touched > 0 && touched < problem.queries());
    });
}

/// How a bias, or what goes with it, lies in memory.
#[derive(Clone, Copy, Debug)]
enum View {
    Permuted,
    Cropped,
    Expanded,
}

/// A bias as a view of a leaf, and what of the leaf's gradient is its own.
fn bias_as(
    view: View,
    bias: &[f64],
    shape: [usize; 3],
    (device, dtype): (&Device, DType),
) -> (Tensor<3>, Tensor<3>) {
    let whole = tensor::<3>(bias, shape, device, dtype);
    match view {
        View::Permuted => {
            let leaf = (whole.permute([2, 0, 1]) * 1.0).detach().require_grad();
            (leaf.clone(), leaf.permute([1, 2, 0]))
        }
        View::Cropped => {
            let edge = Tensor::<3>::full([shape[0], shape[1], 2], f32::NAN, (device, dtype));
            let leaf = Tensor::cat(vec![edge.clone(), whole, edge], 2).detach().require_grad();
            (leaf.clone(), leaf.narrow(2, 2, shape[2]))
        }
        View::Expanded => {
            let leaf = whole.narrow(0, 0, 1).detach().require_grad();
            (leaf.clone(), leaf.expand(shape))
        }
    }
}

#[rstest]
fn views_of_a_bias_are_like_contiguous_ones(
    #[values(View::Permuted, View::Cropped, View::Expanded)] view: View,
    #[values(DType::F32, DType::BF16)] dtype: DType,
    #[values(false, true)] is_full: bool,
) {
    let axes = match is_full {
        true => [window(3, 3, 1, 1, 0), window(4, 4, 1, 1, 0)],
        false => [window(6, 3, 2, 1, 0), window(7, 4, 1, 1, 1)],
    };
    let problem = with_bias(Problem { dim: 8, dim_v: 8, ..problem(&axes) });
    let (mut inputs, shape) = (problem.inputs(58), [2, 5, 7]);
    if let View::Expanded = view {
        let (first, second) = inputs.bias.split_at_mut(35);
        second.copy_from_slice(first);
    }
    if dtype == DType::BF16 {
        inputs = crate::support::run::rounded(inputs, dtype);
    }
    for device in devices().into_iter().filter(|device| device.supports(dtype)) {
        let strategies = match dtype {
            DType::BF16 => device.half_bias_strategies(),
            _ => device.bias_strategies(),
        };
        for strategy in strategies {
            let setup = Setup::new(&device.device).strategy(strategy).dtype(dtype);
            let setup = setup.loss(Loss::Out);
            let want = run(&problem, &inputs, &setup).expect("valid");
            let ad = &setup.device;
            let (leaf, bias) = bias_as(view, &inputs.bias, shape, (ad, dtype));
            // Query, key and value with height and width exchanged in memory.
            let space = problem.axes.iter().map(Axis::queries).collect::<Vec<_>>();
            let rows = [2, space[0], space[1], 2, 8];
            let swapped = |values: &[f64]| {
                let rows = tensor::<5>(values, rows, ad, dtype);
                (rows.swap_dims(1, 2) * 1.0).swap_dims(1, 2)
            };
            let [q, k, v] = [&inputs.query, &inputs.key, &inputs.value].map(|x| swapped(x));
            let options: NeighborhoodOptions<2> = options(&problem);
            let options = options.with_strategy(strategy).with_bias(bias);
            let output = try_na2d(q, k, v, options).expect("valid");
            let upstream = tensor::<5>(&inputs.grad_out, rows, ad, dtype);
            let tape = (output.out.clone() * upstream).sum().backward();
            let what = format!("{} {strategy:?} {dtype:?} {view:?}", device.name);
            identical(&format!("{what} out"), &values(output.out), &want.out);
            let of_leaf = leaf.grad(&tape).expect("tracked");
            let dbias = want.gradients.expect("backward").bias;
            match view {
                View::Permuted => {
                    identical(&what, &values(of_leaf.permute([1, 2, 0])), &dbias);
                }
                View::Cropped => {
                    identical(&what, &values(of_leaf.clone().narrow(2, 2, 7)), &dbias);
                    let edges = values(of_leaf.narrow(2, 0, 2));
                    assert!(edges.iter().all(|edge| *edge == 0.0), "{what}: {edges:?}");
                }
                View::Expanded => {
                    let heads = dbias.split_at(35);
                    let sum: Vec<f64> = heads.0.iter().zip(heads.1).map(|(a, b)| a + b).collect();
                    let tolerance = if dtype == DType::F32 { check::F32 } else { 1e-2 };
                    close(&what, &values(of_leaf), &sum, tolerance);
                }
            }
        }
    }
}

/// Sums of a bias' gradient are taken in an order of their own.
#[test]
fn the_number_of_threads_changes_no_bit() {
    // More tasks than strands, and heads that do not divide them.
    let axes = [window(40, 5, 1, 1, 0), window(45, 4, 2, 2, 1)];
    let problem = with_bias(Problem { heads: 3, heads_kv: 3, ..problem(&axes) });
    let inputs = problem.inputs(59);
    let device = &devices()[0];
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| result(&problem, &inputs, device, Strategy::Auto))
    };
    let one = on(1);
    for threads in [2, 3, 7] {
        same_bits(&format!("{threads} threads"), &on(threads), &one);
    }
}

#[test]
fn repeated_steps_are_bitwise_equal() {
    let problem = with_bias(everything(&[window(9, 4, 2, 2, 1), window(6, 3, 1, 1, 0)]));
    let inputs = problem.inputs(60);
    everywhere(|device, strategy| {
        let first = result(&problem, &inputs, device, strategy);
        for _ in 1..5 {
            let again = result(&problem, &inputs, device, strategy);
            same_bits(&format!("{} {strategy:?}", device.name), &again, &first);
        }
    });
}

/// Many queries: the gradient is a sum of as many terms.
#[test]
fn long_sums_stay_exact() {
    let device = Device::flex().autodiff();
    let of = |dtype: DType| {
        let normal = Distribution::Normal(0.0, 1.0);
        device.seed(7);
        let f64s = [(); 4].map(|()| Tensor::<5>::random([1, 160, 160, 1, 4], normal, &device));
        let [q, k, v, upstream] = f64s.map(|x| x.cast(burn::tensor::FloatDType::from(dtype)));
        let bias = Tensor::<3>::zeros([1, 5, 5], (&device, dtype)).require_grad();
        let options = NeighborhoodOptions::<2>::new(3).with_bias(bias.clone());
        let out = try_na2d(q, k, v, options).expect("valid").out;
        let tape = (out * upstream).sum().backward();
        values(bias.grad(&tape).expect("tracked"))
    };
    close("dbias", &of(DType::F32), &of(DType::F64), 1e-6);
}
