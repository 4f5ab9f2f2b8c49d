//! The tier as tests see it that several share: every launch on the machine.

use std::panic::panic_any;

use burn_natten_kernels::native::sm90::{
    BackwardPlan, Element, Schedule, backward_candidates, backward_with, candidates, estimate,
    forward_with, plan, plan_backward,
};
use burn_natten_kernels::{KernelError, Operands, Problem, Saved, Strided};
use cubecl::client::Client;
use cubecl::server::Handle;
use test_support::Data;
use test_support::compare::{Forward, for_each_case, format};
use test_support::cpp::compiler;
use test_support::oracle::compute;
use test_support::tier::{BackwardTier, ForwardTier, check_data, check_forward};

use crate::run::{Change, Machine, Policy};

/// Memory.
pub fn client() -> Client {
    cubecl::Device::cpu().expect("a CPU").client()
}

/// A Hopper GPU.
pub fn hopper(policy: Policy) -> Option<Machine> {
    compiler().map(|compiler| Machine { compiler, capability: 90, policy, change: None })
}

/// The native kernels on the machine.
pub struct OnMachine;

pub fn planned(problem: &Problem, element: Element) -> Schedule {
    plan(problem, element).unwrap_or_else(|| panic!("no schedule for {problem:?}"))
}

/// The best of these schedules that a test asks for.
pub fn best_of(
    all: Vec<Schedule>,
    problem: &Problem,
    is_one: impl Fn(&Schedule) -> bool,
) -> Schedule {
    let timed =
        all.into_iter().filter(is_one).map(|schedule| (estimate(&schedule, problem), schedule));
    let best = timed.min_by(|(a, _), (b, _)| a.total_cmp(b));
    best.unwrap_or_else(|| panic!("no such schedule for {problem:?}")).1
}

/// The best of forward schedules whose CTAs have so many pipelines.
pub fn planned_in_teams(problem: &Problem, element: Element, teams: usize) -> Schedule {
    best_of(candidates(problem, element), problem, |schedule| schedule.teams == teams)
}

/// A plan of the best kernels that a test asks for, of those that have such schedules, and how many these are.
pub fn planned_backward_of(
    problem: &Problem,
    element: Element,
    is_one: impl Fn(&Schedule) -> bool,
) -> (BackwardPlan, usize) {
    let mut plan = planned_backward(problem, element).without_slopes();
    let mut kernels = 0;
    for schedule in plan.queries.iter_mut().chain(&mut plan.keys) {
        let (pass, gradients) = (schedule.pass, schedule.gradients);
        let all = backward_candidates(problem, element, pass, gradients);
        if all.iter().any(&is_one) {
            *schedule = best_of(all, problem, &is_one);
            kernels += 1;
        }
    }
    (plan, kernels)
}

pub fn planned_backward(problem: &Problem, element: Element) -> BackwardPlan {
    plan_backward(problem, element, None).unwrap_or_else(|| panic!("no plan for {problem:?}"))
}

/// A problem, a number that says how its kernels differ from the planned ones, and what else a case of the backward pass is.
pub type Case = (Problem, usize, Element, Policy);

/// Gradients of each case by its way, if there is one.
pub fn check_each(cases: &[Case], way: impl Fn(&Case) -> Option<Way> + Sync) {
    let client = client();
    for_each_case(cases, |case, seed| {
        let (problem, _, element, _) = case;
        let Some(way) = way(case) else { return Ok(0.0) };
        let data = Data::random(problem, seed, format(*element).round);
        check_data::<OnMachine>(&client, *element, &way, problem, &data)
    });
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
        .run(|| forward_with(client, schedule, problem, inputs, &outputs))?
        .map_err(|error| error.to_string())?;
    Ok(format.download_outputs(client, problem, &outputs))
}

/// What a test panics with where a backward pass ends with a fault of the machine.
pub struct MachineFault(pub String);

/// How a backward pass is run.
#[derive(Clone)]
pub struct Way {
    pub machine: Machine,
    pub plan: BackwardPlan,
}

impl ForwardTier for OnMachine {
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
        let schedule = planned(problem, element);
        let Some(machine) = hopper(Policy::Late) else { return vec![] };
        let inputs = format(element).operands(client, problem, data);
        let result = forward(&machine, client, &schedule, problem, &inputs);
        vec![(schedule.to_string(), result.unwrap_or_else(|fault| panic!("{schedule}: {fault}")))]
    }
}

impl BackwardTier for OnMachine {
    type Plan = Way;

    fn plans(problem: &Problem, element: Element) -> Vec<Way> {
        let plan = planned_backward(problem, element);
        hopper(Policy::Late).map(|machine| Way { machine, plan }).into_iter().collect()
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

/// The forward pass of a problem, with random data, held to the oracle.
pub fn check_one_forward(
    machine: &Machine,
    client: &Client,
    problem: &Problem,
    schedule: &Schedule,
    data: &Data,
) -> Result<f64, String> {
    let format = format(schedule.element);
    let exact = compute(problem, data, |x| x);
    let inputs = format.operands(client, problem, data);
    let result = forward(machine, client, schedule, problem, &inputs)
        .map_err(|fault| format!("{schedule}: {fault}"))?;
    check_forward(&schedule.to_string(), format, problem, &exact, &result)
}

/// The same for the backward pass.
pub fn check_one_backward(
    machine: &Machine,
    client: &Client,
    problem: &Problem,
    element: Element,
    data: &Data,
) -> Result<f64, String> {
    let way = Way { machine: *machine, plan: planned_backward(problem, element) };
    check_data::<OnMachine>(client, element, &way, problem, data)
}

/// A machine whose kernels have another text.
pub fn changed(machine: &Machine, change: Change) -> Machine {
    Machine { change: Some(change), ..*machine }
}
