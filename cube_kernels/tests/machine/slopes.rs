//! Slopes that a kernel for keys leaves in memory for one for queries.

use burn_natten_kernels::native::sm90::{BackwardPlan, Element, Mask};
use burn_natten_kernels::{Axis, Operands, Problem};
use cubecl::client::Client;
use test_support::compare::format;
use test_support::oracle::compute;
use test_support::tier::{BackwardTier, check_data, expected, upload_all};
use test_support::{Data, axis, problem};

use crate::run::{Change, Machine, Policy};
use crate::ways::{Case, OnMachine, Way, changed, check_each, client, hopper, planned_backward};

/// With it a row is wrong that has met a slope which is not there: memory is poisoned.
const NO_REPAIR: Change = Change { from: "repair_row(params, tile, row, lane);", to: "" };

/// Kernels that have all heads of a group each, with slopes and without: the ones that are planned, or in several axes one of those that can,
/// without a mask where there are such.
fn plans(problem: &Problem, element: Element, heads_at_once: usize) -> [BackwardPlan; 2] {
    let mut plain = planned_backward(problem, element).without_slopes();
    plain.keys[0].splits = 1;
    let others = match problem.rank() {
        1 => vec![],
        _ => plain.all_with_slopes(problem, heads_at_once),
    };
    let plans = others.into_iter().chain(plain.with_slopes(problem, heads_at_once));
    let mut plans: Vec<_> = plans.map(|plan| [plan.clone(), plan.without_slopes()]).collect();
    assert!(!plans.is_empty(), "no kernels keep slopes of {problem:?}");
    if plans.iter().any(|[by_slopes, _]| by_slopes.keys[0].mask == Mask::None) {
        plans.retain(|[by_slopes, _]| by_slopes.keys[0].mask == Mask::None);
    }
    plans.swap_remove(plans.len() / 2)
}

/// As many key heads as the case says have slopes at once.
fn way((problem, heads_at_once, element, policy): &Case) -> Option<Way> {
    let [plan, _] = plans(problem, *element, *heads_at_once);
    hopper(*policy).map(|machine| Way { machine: changed(&machine, NO_REPAIR), plan })
}

/// One head of keys after the other, for what is to be found in the kernels of a machine.
pub fn check_one(machine: &Machine, client: &Client) -> Result<(), String> {
    check_on(machine, client, grouped(axis(460, 130, 1, 1, true), 128).with_batch(1))
}

/// The same of boxes, with masks.
pub fn check_boxes(machine: &Machine, client: &Client) -> Result<(), String> {
    let windows = [axis(24, 7, 1, 1, false), axis(40, 15, 1, 1, false)];
    let problem = problem(&windows, 128).with_heads(4).with_heads_kv(2).with_batch(1);
    check_on(machine, client, problem)
}

fn check_on(machine: &Machine, client: &Client, problem: Problem) -> Result<(), String> {
    let element = Element::Bf16;
    let [plan, _] = plans(&problem, element, 1);
    let data = Data::random(&problem, 3, format(element).round);
    check_data::<OnMachine>(client, element, &Way { machine: *machine, plan }, &problem, &data)
        .map(|_| ())
}

fn grouped(axis: Axis, dim: usize) -> Problem {
    problem(&[axis], dim).with_heads(4).with_heads_kv(2).with_batch(2)
}

/// Dense and causal attention, and causal windows; lengths that end within a block, and within the first of a tile's two; heads of a group
/// and samples together and one after the other.
#[test]
fn gradients() {
    use Element::*;
    use Policy::*;
    let line = |length, kernel_size| axis(length, kernel_size, 1, 1, true);
    let three = |length| {
        let dense = problem(&[Axis::dense(length, length, true)], 128);
        dense.with_heads(3).with_heads_kv(3).with_batch(1)
    };
    let cases = [
        (grouped(Axis::dense(200, 300, false), 128), 4, Bf16, Late),
        (grouped(Axis::dense(256, 128, false), 128), 2, F16, Early),
        (grouped(Axis::dense(330, 330, true), 128), 1, Bf16, Random(1)),
        (grouped(Axis::dense(65, 65, true), 80).with_head_dim_v(128), 4, F16, Late),
        (grouped(line(460, 130), 128).with_head_dim_v(72), 2, Bf16, Late),
        (grouped(line(384, 128), 96), 4, Bf16, Random(2)),
        (three(500), 3, Bf16, Early),
        // One lane has a launch more than the other.
        (three(130), 1, F16, Late),
    ];
    check_each(&cases, way);
}

/// Boxes of two and three axes: masks that begin ahead of who sees a key, strides whose windows are whole boxes, causal axes; lengths that are no
/// multiple of what boxes of queries have, and rings that are shorter than an axis.
#[test]
fn boxes() {
    use Element::*;
    use Policy::*;
    let (window, strided, causal) = (
        |length, kernel_size| axis(length, kernel_size, 1, 1, false),
        |length, kernel_size, stride| axis(length, kernel_size, stride, 1, false),
        |length, kernel_size| axis(length, kernel_size, 1, 1, true),
    );
    let of = |axes: &[Axis], dim| problem(axes, dim).with_heads(2).with_heads_kv(1).with_batch(2);
    let cases = [
        (of(&[window(24, 7), window(40, 15)], 128), 2, Bf16, Late),
        (of(&[window(16, 9), window(24, 8)], 96).with_head_dim_v(128), 1, F16, Early),
        (of(&[strided(48, 16, 16), strided(32, 24, 8)], 128), 1, Bf16, Random(3)),
        (of(&[causal(16, 5), window(24, 11)], 72), 2, F16, Late),
        (of(&[window(8, 3), window(8, 5), window(16, 7)], 128), 1, Bf16, Late),
        (of(&[strided(4, 4, 2), causal(8, 5), strided(24, 10, 3)], 80), 2, F16, Random(4)),
    ];
    for mask in [Mask::None, Mask::OneHot] {
        let has_mask = |case: &Case| plans(&case.0, case.2, case.1)[0].keys[0].mask == mask;
        assert!(cases.iter().any(has_mask), "{mask:?}");
    }
    check_each(&cases, way);
}

/// Scores far below zero, whose weights are infinite where a row of zeros stands behind the last key: it has no part in anything. Without rows
/// that are computed again.
#[test]
fn rows_behind_the_last_key() {
    let element = Element::F16;
    for axis in
        [Axis::dense(130, 100, false), Axis::dense(128, 65, false), Axis::dense(100, 100, true)]
    {
        let case = (grouped(axis, 128).with_batch(1), 2, element, Policy::Late);
        let Some(way) = way(&case) else { return };
        let (problem, ..) = case;
        let mut data = Data::random(&problem, 9, format(element).round);
        // About -40 each: 128 times this, by the scale.
        data.query.iter_mut().for_each(|x| *x = (format(element).round)(*x + 2.0));
        data.key.iter_mut().for_each(|x| *x = (format(element).round)(*x - 1.75));
        check_data::<OnMachine>(&client(), element, &way, &problem, &data)
            .unwrap_or_else(|how| panic!("{how}"));
    }
}

/// Keys that are not numbers, and infinite gradients, spoil rows, which are computed again: infinite is what is infinite in the oracle.
#[test]
fn what_is_not_finite() {
    let windows = grouped(axis(200, 30, 1, 1, true), 128).with_batch(1);
    let case = (windows, 2, Element::Bf16, Policy::Late);
    let (Some(way), Some(machine)) = (way(&case), hopper(Policy::Late)) else { return };
    let way = Way { machine, ..way };
    let (problem, _, element, _) = case;
    let client = client();
    let mut data = Data::random(&problem, 7, format(element).round);
    // Of the first query and of one key.
    data.dout[5] = f64::INFINITY;
    let key = data.key.len() / 2 + 3;
    data.key[key] = f64::NAN;
    let exact = compute(&problem, &data, format(element).round);
    let saved = upload_all(&client, element, &problem, &data, &exact);
    for (name, gradient) in OnMachine::gradients(&client, element, &way, &problem, &saved) {
        let expected = expected(&exact, name);
        let wrong = gradient.iter().zip(expected).position(|(a, e)| a.is_finite() != e.is_finite());
        assert_eq!(wrong, None, "{name}");
    }
}

/// Who wants one kind of gradients alone has them without slopes.
#[test]
fn not_for_one_kind_of_gradients() {
    let problem = grouped(Axis::dense(200, 300, false), 128);
    let [plan, plain] = plans(&problem, Element::F16, 1);
    let wanted = |query, key, value| Operands::new(query, key, value);
    assert_eq!(plan.wanted(&wanted(true, false, false)), plain.wanted(&wanted(true, false, false)));
    assert_eq!(plan.wanted(&wanted(false, true, true)), plain.wanted(&wanted(false, true, true)));
    assert_eq!(plan.wanted(&wanted(true, false, true)), plan);
}
