//! Blackwell's kernels, which have run nowhere else: problems of every kind, both passes under every policy, held to the oracle as on a
//! device; rows that are computed again; the check of their first use.

use burn_natten_kernels::native::Element;
use burn_natten_kernels::native::sm100::{
    self, BackwardPlan, backward_with, forward_with, plan, plan_backward,
};
use burn_natten_kernels::{Axis, KernelError, Operands, Problem, Saved, Strided};
use cubecl::client::Client;
use cubecl::server::Handle;
use test_support::compare::{Forward, differs, for_each_case, format, half_ulp, magnitude};
use test_support::cpp::compiler;
use test_support::oracle::compute;
use test_support::tier::{
    BackwardTier, ForwardTier, check_data, check_forward, expected, upload_all,
};
use test_support::{Data, axis, problem};

use crate::run::{Change, Machine, Policy};
use crate::ways::client;

fn blackwell(policy: Policy) -> Option<Machine> {
    compiler().map(|compiler| Machine { compiler, capability: 100, policy, change: None })
}

/// The forward pass on tensors of the client.
fn forward(
    machine: &Machine,
    client: &Client,
    problem: &Problem,
    element: Element,
    inputs: &Operands<Strided>,
) -> Result<Forward, String> {
    let schedule = plan(problem, element).ok_or("no schedule")?;
    let outputs = format(element).poisoned_outputs(client, problem);
    machine
        .run(|| forward_with(client, &schedule, problem, inputs, &outputs))
        .and_then(|result| result.map_err(|error| error.to_string()))
        .map_err(|fault| format!("{schedule}: {fault}"))?;
    Ok(format(element).download_outputs(client, problem, &outputs))
}

/// The kernels on the machine.
struct OnBlackwell;

/// How a backward pass is run.
#[derive(Clone)]
struct Way {
    machine: Machine,
    plan: BackwardPlan,
}

impl ForwardTier for OnBlackwell {
    type Element = Element;
    const ELEMENTS: &'static [Element] = &[Element::F16, Element::Bf16];
    const WIDE: &'static [Element] = &[Element::Bf16];
    const F16: Element = Element::F16;

    fn computed(
        client: &Client,
        element: Element,
        problem: &Problem,
        data: &Data,
    ) -> Vec<(String, Forward)> {
        let Some(machine) = blackwell(Policy::Late) else { return vec![] };
        let inputs = format(element).operands(client, problem, data);
        let result = forward(&machine, client, problem, element, &inputs);
        vec![("sm100".to_string(), result.unwrap_or_else(|fault| panic!("{fault}")))]
    }
}

impl BackwardTier for OnBlackwell {
    type Plan = Way;

    fn plans(problem: &Problem, element: Element) -> Vec<Way> {
        let plan = plan_backward(problem, element, None).expect("supported");
        blackwell(Policy::Late).map(|machine| Way { machine, plan }).into_iter().collect()
    }

    fn several(problem: &Problem, element: Element) -> Vec<Way> {
        Self::plans(problem, element)
    }

    fn kernels(way: &Way) -> Vec<String> {
        way.plan.schedules().map(ToString::to_string).collect()
    }

    fn launch(
        client: &Client,
        _: Element,
        way: &Way,
        problem: &Problem,
        saved: &Saved<Strided>,
        outputs: &Operands<Option<Handle>>,
    ) -> Result<(), KernelError> {
        let result = way.machine.run(|| backward_with(client, &way.plan, problem, saved, outputs));
        result.unwrap_or_else(|fault| panic!("{}: {fault}", Self::names(way)))
    }
}

type Case = (Problem, Element, Policy);

/// Both passes.
fn check(cases: &[Case]) {
    let client = client();
    for_each_case(cases, |(problem, element, policy), seed| {
        let Some(machine) = blackwell(*policy) else { return Ok(0.0) };
        let data = Data::random(problem, seed, format(*element).round);
        let exact = compute(problem, &data, |x| x);
        let inputs = format(*element).operands(&client, problem, &data);
        let result = forward(&machine, &client, problem, *element, &inputs)?;
        let forward = check_forward("forward", *element, problem, &exact, &result)?;
        let plan = plan_backward(problem, *element, None).ok_or("no plan")?;
        let way = Way { machine, plan };
        let backward = check_data::<OnBlackwell>(&client, *element, &way, problem, &data)?;
        Ok(forward.max(backward))
    });
}

/// Several samples, heads of queries that share one of keys, tiles, launches; strides, dilations, causality, queries elsewhere than
/// keys, vectors of two lengths, additional tokens.
fn problems() -> Vec<Problem> {
    let plane = [axis(13, 5, 2, 1, true), axis(19, 7, 1, 2, false)];
    let space = [axis(5, 3, 1, 1, false), axis(7, 4, 2, 1, true), axis(10, 5, 1, 2, false)];
    let shared = |problem: Problem| problem.with_heads(4).with_heads_kv(2);
    let blind = Axis::dense(40, 13, true).with_origin(-27);
    vec![
        problem(&plane, 128).with_head_dim_v(40).with_batch(1),
        shared(problem(&space, 64)).with_additional(70).with_batch(1),
        problem(&[axis(303, 21, 1, 1, true)], 64).with_batch(1),
        shared(problem(&[Axis::dense(150, 150, true)], 128)),
        problem(&[axis(203, 9, 3, 11, true)], 64).with_batch(1),
        problem(&[Axis::dense(70, 300, true).with_origin(0)], 128).with_batch(1),
        problem(&[axis(9, 5, 1, 1, false), blind], 64).with_batch(1),
        problem(&space, 128).with_head_dim_v(72),
        problem(&space[1..], 40).with_head_dim_v(72).with_batch(1),
        problem(&[axis(600, 129, 1, 1, false)], 8).with_additional(9),
        problem(&[axis(21, 9, 1, 1, false), axis(40, 13, 1, 1, false)], 128).with_batch(1),
    ]
}

/// Both types and all policies in turn.
fn in_turn(problems: &[Problem]) -> Vec<Case> {
    let turn = |(number, problem): (usize, &Problem)| {
        let element = [Element::Bf16, Element::F16][number % 2];
        (*problem, element, Policy::ALL[number % Policy::ALL.len()])
    };
    problems.iter().enumerate().map(turn).collect()
}

#[test]
fn a_few_of_every_kind() {
    check(&in_turn(&problems()[..2]));
}

#[test]
#[ignore = "minutes"]
fn every_kind_in_every_way() {
    let cases = problems().into_iter().flat_map(|problem| {
        let of = move |element| Policy::ALL.map(|policy| (problem, element, policy));
        [Element::Bf16, Element::F16].into_iter().flat_map(of)
    });
    check(&cases.collect::<Vec<_>>());
}

/// What depends on a number that is not finite is not either, and all else is as without it.
#[test]
#[ignore = "minutes"]
fn what_is_not_finite_stays_where_it_is() {
    let element = Element::Bf16;
    let line = problem(&[axis(90, 9, 1, 1, true)], 64).with_batch(1);
    let plane = [axis(9, 4, 1, 1, false), axis(11, 5, 2, 1, false)];
    for (problem, poison) in [(line, f64::NAN), (problem(&plane, 64).with_batch(1), f64::INFINITY)]
    {
        let Some(machine) = blackwell(Policy::Late) else { return };
        let client = client();
        let mut data = Data::random(&problem, 7, format(element).round);
        let token = problem.keys() / 2;
        data.value[token * problem.heads_kv * problem.head_dim_v + 5] = poison;
        let exact = compute(&problem, &data, format(element).round);
        let saved = upload_all(&client, element, &problem, &data, &exact);
        let (out, _) = forward(&machine, &client, &problem, element, &saved.operands)
            .unwrap_or_else(|fault| panic!("{fault}"));
        let near = 2.0 * half_ulp(element) * magnitude(&exact.out);
        assert_eq!(differs(&out, &exact.out, |_, _| near), None, "{problem:?}");
        let way = OnBlackwell::plans(&problem, element).remove(0);
        for (name, gradient) in OnBlackwell::gradients(&client, element, &way, &problem, &saved) {
            let expected = expected(&exact, name);
            let near = 2.0 * half_ulp(element) * magnitude(expected).max(1e-2);
            for (place, (a, e)) in gradient.iter().zip(expected).enumerate() {
                // Infinities that cancel to NaN may do so in another order.
                let is_right = match e.is_finite() {
                    true => (a - e).abs() <= near,
                    false => !a.is_finite(),
                };
                assert!(is_right, "{name} is {a}, not {e}, at {place}: {problem:?}");
            }
        }
    }
}

/// The kernels pass the check of their first use, and others do not.
#[test]
#[ignore = "minutes"]
fn the_check_of_the_first_use() {
    let Some(machine) = blackwell(Policy::Late) else { return };
    let client = client();
    let passed = machine.run(|| sm100::check::compare(&client, Element::Bf16));
    assert_eq!(passed, Ok(Ok(())));
    // A mask that hides one column too few, and gradients by another logsumexp.
    let mask = Change { from: "max_(end, 0)", to: "max_(end + 1, 0)" };
    let lse = Change { from: "row.x = found.z", to: "row.x = found.z + 1.f" };
    for change in [mask, lse] {
        let machine = Machine { change: Some(change), ..machine };
        let failed = machine.run(|| sm100::check::compare(&client, Element::F16));
        assert!(matches!(failed, Ok(Err(KernelError::Check(_)))), "{change:?}: {failed:?}");
    }
}
