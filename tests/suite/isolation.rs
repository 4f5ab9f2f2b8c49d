//! What a row does not see cannot touch it, whatever it holds.
//!
//! One row of one input is poisoned with NaN or infinity. The rows that see it must be NaN where a
//! NaN is their only possible value, and all other rows must keep their exact bits.

use burn_natten::Strategy;
use rstest::rstest;

use crate::support::check::identical;
use crate::support::problem::{Axis, Inputs, Problem};
use crate::support::run::{Loss, Results, Setup, run};
use crate::support::{TestDevice, devices};

const HEADS: usize = 4;
const HEADS_KV: usize = 2;
const DIM: usize = 4;

fn window(length: usize, kernel_size: usize, stride: usize, dilation: usize, causal: u8) -> Axis {
    Axis::Window { length, kernel_size, stride, dilation, is_causal: causal == 1 }
}

fn problem(axes: &[Axis]) -> Problem {
    Problem {
        batch: 2,
        heads: HEADS,
        heads_kv: HEADS_KV,
        dim: DIM,
        dim_v: DIM,
        additional: None,
        scale: None,
        bias: false,
        axes: axes.to_vec(),
    }
}

fn problems() -> Vec<Problem> {
    vec![
        problem(&[window(19, 5, 1, 1, 0)]),
        problem(&[window(17, 4, 3, 2, 1)]),
        problem(&[window(6, 3, 2, 2, 1), window(7, 3, 1, 1, 0)]),
        problem(&[window(3, 2, 1, 1, 1), window(5, 2, 2, 2, 0), window(4, 3, 1, 1, 0)]),
        problem(&[Axis::Dense { queries: 9, keys: 12, is_causal: true }]),
        Problem { additional: Some(2), ..problem(&[window(9, 3, 1, 1, 0)]) },
    ]
}

/// A row: sample, token and head.
#[derive(Clone, Copy, Debug)]
struct Row {
    batch: usize,
    token: usize,
    head: usize,
}

impl Row {
    fn index(&self, tokens: usize, heads: usize) -> usize {
        (self.batch * tokens + self.token) * heads + self.head
    }
}

fn all_runs(check: impl Fn(&TestDevice, Strategy)) {
    for device in devices() {
        for strategy in device.strategies() {
            check(&device, strategy);
        }
    }
}

fn result(problem: &Problem, inputs: &Inputs, device: &TestDevice, strategy: Strategy) -> Results {
    let setup = Setup::new(&device.device).strategy(strategy).loss(Loss::Both);
    run(problem, inputs, &setup).expect("a valid problem")
}

/// Checks `poisoned` against `clean`, row by row: `touched` says which query rows see the poison.
fn check_rows(
    what: &str,
    problem: &Problem,
    (poisoned, clean): (&Results, &Results),
    poison: f64,
    touched: impl Fn(Row) -> bool,
    in_lse: bool,
) {
    let (dq, clean_dq) = (
        &poisoned.gradients.as_ref().expect("backward").query,
        &clean.gradients.as_ref().expect("backward").query,
    );
    for batch in 0..problem.batch {
        for token in 0..problem.queries() {
            for head in 0..problem.heads {
                let row = Row { batch, token, head };
                let index = row.index(problem.queries(), problem.heads);
                let of = |all: &[f64]| all[index * DIM..][..DIM].to_vec();
                let what = format!("{what} {row:?}");
                if touched(row) {
                    if poison.is_nan() {
                        assert!(of(&poisoned.out).iter().any(|x| x.is_nan()), "{what}: out");
                        assert!(!in_lse || poisoned.lse[index].is_nan(), "{what}: lse");
                    }
                    continue;
                }
                identical(&format!("{what} out"), &of(&poisoned.out), &of(&clean.out));
                identical(&format!("{what} lse"), &[poisoned.lse[index]], &[clean.lse[index]]);
                identical(&format!("{what} dq"), &of(dq), &of(clean_dq));
            }
        }
    }
}

#[rstest]
fn a_key_or_value_touches_only_the_queries_that_see_it(
    #[values(f64::NAN, f64::INFINITY, f64::NEG_INFINITY)] poison: f64,
    #[values(true, false)] is_key: bool,
) {
    all_runs(|device, strategy| {
        for (number, problem) in problems().iter().enumerate().step_by(device.sampling(2)) {
            let clean_inputs = problem.inputs(21);
            let clean = result(problem, &clean_inputs, device, strategy);
            let visible = problem.visible();
            // The first, an inner and the last key, in different heads and samples.
            let keys = problem.keys();
            for (step, token) in [0, keys / 2, keys - 1].into_iter().enumerate() {
                let at = Row { batch: step % 2, token, head: (step / 2) % HEADS_KV };
                let mut inputs = clean_inputs.clone();
                let tensor = if is_key { &mut inputs.key } else { &mut inputs.value };
                tensor[at.index(keys, HEADS_KV) * DIM + step] = poison;
                let poisoned = result(problem, &inputs, device, strategy);
                let touched = |row: Row| {
                    row.batch == at.batch
                        && row.head / (HEADS / HEADS_KV) == at.head
                        && visible[row.token].contains(&token)
                };
                let what = format!("{} {strategy:?} problem {number} {at:?}", device.name);
                check_rows(&what, problem, (&poisoned, &clean), poison, touched, is_key);
                check_key_gradients(&what, problem, (&poisoned, &clean), touched);
            }
        }
    });
}

/// Keys that only untouched queries see keep their gradients, up to the order of a sum.
fn check_key_gradients(
    what: &str,
    problem: &Problem,
    (poisoned, clean): (&Results, &Results),
    touched: impl Fn(Row) -> bool,
) {
    let visible = problem.visible();
    let gradients = |results: &Results| {
        let gradients = results.gradients.clone().expect("backward");
        [gradients.key, gradients.value]
    };
    for batch in 0..problem.batch {
        for token in 0..problem.keys() {
            for head in 0..HEADS_KV {
                let group = HEADS / HEADS_KV;
                let reached = (0..problem.queries()).any(|query| {
                    visible[query].contains(&token)
                        && (head * group..(head + 1) * group)
                            .any(|head| touched(Row { batch, token: query, head }))
                });
                if reached {
                    continue;
                }
                let index = Row { batch, token, head }.index(problem.keys(), HEADS_KV) * DIM;
                for (got, want) in gradients(poisoned).iter().zip(&gradients(clean)) {
                    let (got, want) = (&got[index..][..DIM], &want[index..][..DIM]);
                    identical(&format!("{what} gradient of key {token}"), got, want);
                }
            }
        }
    }
}

#[rstest]
fn a_query_touches_only_its_own_row(#[values(f64::NAN, f64::INFINITY)] poison: f64) {
    all_runs(|device, strategy| {
        for (number, problem) in problems().iter().enumerate().step_by(device.sampling(2)) {
            let clean_inputs = problem.inputs(22);
            let clean = result(problem, &clean_inputs, device, strategy);
            let queries = problem.queries();
            for (step, token) in [0, queries / 2, queries - 1].into_iter().enumerate() {
                let at = Row { batch: step % 2, token, head: step };
                let mut inputs = clean_inputs.clone();
                inputs.query[at.index(queries, HEADS) * DIM + step] = poison;
                let poisoned = result(problem, &inputs, device, strategy);
                let touched =
                    |row: Row| (row.batch, row.token, row.head) == (at.batch, at.token, at.head);
                let what = format!("{} {strategy:?} problem {number} {at:?}", device.name);
                check_rows(&what, problem, (&poisoned, &clean), poison, touched, true);
                check_key_gradients(&what, problem, (&poisoned, &clean), touched);
            }
        }
    });
}

#[rstest]
fn a_cotangent_touches_only_its_own_row(#[values(true, false)] of_out: bool) {
    all_runs(|device, strategy| {
        for (number, problem) in problems().iter().enumerate().step_by(device.sampling(2)) {
            let clean_inputs = problem.inputs(23);
            let clean = result(problem, &clean_inputs, device, strategy);
            let at = Row { batch: 1, token: problem.queries() / 2, head: 1 };
            let index = at.index(problem.queries(), HEADS);
            let mut inputs = clean_inputs.clone();
            if of_out {
                inputs.grad_out[index * DIM + 1] = f64::NAN;
            } else {
                inputs.grad_lse[index] = f64::NAN;
            }
            let poisoned = result(problem, &inputs, device, strategy);
            let what = format!("{} {strategy:?} problem {number}", device.name);
            identical(&what, &poisoned.out, &clean.out);
            let touched =
                |row: Row| (row.batch, row.token, row.head) == (at.batch, at.token, at.head);
            // Poison zero: the forward pass knows nothing of a cotangent.
            check_rows(&what, problem, (&poisoned, &clean), 0.0, touched, false);
            check_key_gradients(&what, problem, (&poisoned, &clean), touched);
            let dq = &poisoned.gradients.as_ref().expect("backward").query;
            assert!(dq[index * DIM..][..DIM].iter().all(|x| x.is_nan()), "{what}: dq");
        }
    });
}

#[test]
fn an_additional_token_touches_every_query_of_its_head() {
    all_runs(|device, strategy| {
        let problem = Problem { additional: Some(2), ..problem(&[window(9, 3, 1, 1, 0)]) };
        let clean_inputs = problem.inputs(24);
        let clean = result(&problem, &clean_inputs, device, strategy);
        let at = Row { batch: 1, token: 1, head: 0 };
        let mut inputs = clean_inputs.clone();
        inputs.more_keys[at.index(2, HEADS_KV) * DIM] = f64::NAN;
        let poisoned = result(&problem, &inputs, device, strategy);
        let touched = |row: Row| row.batch == at.batch && row.head / (HEADS / HEADS_KV) == at.head;
        let what = format!("{} {strategy:?}", device.name);
        check_rows(&what, &problem, (&poisoned, &clean), f64::NAN, touched, true);
    });
}
