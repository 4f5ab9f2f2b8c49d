//! The tier as tests see it that several share.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};

use burn_natten_kernels::native::Element;
use burn_natten_kernels::native::sm100::{
    BackwardPlan, Schedule, backward_with, forward_with, plan, plan_backward,
};
use burn_natten_kernels::{KernelError, Operands, Problem, Saved, Strided};
use cubecl::client::Client;
use cubecl::server::Handle;
use test_support::Data;
use test_support::compare::{Forward, for_each_case, format};
use test_support::cpp::compiler;
use test_support::oracle::compute;
use test_support::tier::{BackwardTier, ForwardTier, check_data, check_forward};

use crate::run::{Machine, Policy};
use crate::ways::{MachineFault, client};

/// A Blackwell GPU.
pub fn blackwell(policy: Policy) -> Option<Machine> {
    compiler().map(|compiler| Machine { compiler, capability: 100, policy, change: None })
}

/// The kernels on the machine.
pub struct OnBlackwell;

/// How a backward pass is run.
#[derive(Clone)]
pub struct Way {
    pub machine: Machine,
    pub plan: BackwardPlan,
}

pub fn planned(problem: &Problem, element: Element) -> Schedule {
    plan(problem, element).unwrap_or_else(|| panic!("no schedule for {problem:?}"))
}
pub fn planned_backward(problem: &Problem, element: Element) -> BackwardPlan {
    plan_backward(problem, element, None).unwrap_or_else(|| panic!("no plan for {problem:?}"))
}

/// The forward pass on tensors of the client.
pub fn forward(
    machine: &Machine,
    client: &Client,
    schedule: &Schedule,
    problem: &Problem,
    inputs: &Operands<Strided>,
) -> Result<Forward, String> {
    let format = format(schedule.element);
    let outputs = format.poisoned_outputs(client, problem);
    machine
        .run(|| forward_with(client, schedule, problem, inputs, &outputs))
        .and_then(|result| result.map_err(|error| error.to_string()))
        .map_err(|fault| format!("{schedule}: {fault}"))?;
    Ok(format.download_outputs(client, problem, &outputs))
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
        let result = forward(&machine, client, &planned(problem, element), problem, &inputs);
        vec![("sm100".to_string(), result.unwrap_or_else(|fault| panic!("{fault}")))]
    }
}

impl BackwardTier for OnBlackwell {
    type Plan = Way;

    fn plans(problem: &Problem, element: Element) -> Vec<Way> {
        let plan = planned_backward(problem, element);
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
        result.unwrap_or_else(|fault| {
            let text = format!("{}: {fault}", Self::names(way));
            eprintln!("{text}");
            panic_any(MachineFault(text))
        })
    }
}

/// The forward pass, held to the oracle.
pub fn check_one_forward(
    machine: &Machine,
    client: &Client,
    problem: &Problem,
    schedule: &Schedule,
    data: &Data,
) -> Result<f64, String> {
    let element = schedule.element;
    let exact = compute(problem, data, |x| x);
    let inputs = format(element).operands(client, problem, data);
    let result = forward(machine, client, schedule, problem, &inputs)?;
    check_forward(&schedule.to_string(), element, problem, &exact, &result)
}

/// The same for the backward pass.
pub fn check_one_backward(
    machine: &Machine,
    client: &Client,
    problem: &Problem,
    plan: &BackwardPlan,
    data: &Data,
) -> Result<f64, String> {
    let way = Way { machine: *machine, plan: *plan };
    let element = plan.queries.element;
    let check = || check_data::<OnBlackwell>(client, element, &way, problem, data);
    // Nothing of what is unwound is looked at again.
    catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| {
        match panic.downcast::<MachineFault>() {
            Ok(fault) => Err(fault.0),
            // Of the test, then.
            Err(panic) => resume_unwind(panic),
        }
    })
}

/// A problem and how its passes are run.
pub struct Case {
    pub problem: Problem,
    pub policy: Policy,
    pub forward: Schedule,
    pub backward: BackwardPlan,
}

impl Case {
    /// With the schedules that would run.
    pub fn new(problem: Problem, element: Element, policy: Policy) -> Self {
        let (forward, backward) = (planned(&problem, element), planned_backward(&problem, element));
        Self { problem, policy, forward, backward }
    }
}

/// Both types and all policies in turn.
pub fn in_turn(problems: impl IntoIterator<Item = Problem>) -> Vec<Case> {
    let turn = |(number, problem): (usize, Problem)| {
        let element = [Element::Bf16, Element::F16][number % 2];
        Case::new(problem, element, Policy::ALL[number % Policy::ALL.len()])
    };
    problems.into_iter().enumerate().map(turn).collect()
}

/// Both passes, with random data.
pub fn check(cases: &[Case]) {
    let client = client();
    for_each_case(cases, |case, seed| {
        let Case { problem, policy, forward, backward } = case;
        let Some(machine) = blackwell(*policy) else { return Ok(0.0) };
        let data = Data::random(problem, seed, format(forward.element).round);
        let one = check_one_forward(&machine, &client, problem, forward, &data)?;
        let other = check_one_backward(&machine, &client, problem, backward, &data)?;
        Ok(one.max(other))
    });
}
