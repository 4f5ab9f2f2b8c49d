//! The tier as the tests see it that several share.

use burn_natten_kernels::native::sm90::{BackwardPlan, Element, backward_with};
use burn_natten_kernels::{KernelError, Operands, Problem, Saved, Strided};
use cubecl::client::Client;
use cubecl::server::Handle;
use test_support::Data;
use test_support::compare::Forward;
use test_support::tier::{BackwardTier, ForwardTier};

use crate::backward::run::{best, planned as planned_backward};
use crate::run::{planned, run};

/// The native kernels, by the schedule that would run.
pub struct Native;

impl ForwardTier for Native {
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
        vec![(schedule.to_string(), run(client, &schedule, problem, data))]
    }
}

impl BackwardTier for Native {
    type Plan = BackwardPlan;

    fn plans(problem: &Problem, element: Element) -> Vec<BackwardPlan> {
        vec![planned_backward(problem, element)]
    }

    fn several(problem: &Problem, element: Element) -> Vec<BackwardPlan> {
        best(problem, element, 3)
    }

    fn kernels(plan: &BackwardPlan) -> Vec<String> {
        plan.schedules().map(ToString::to_string).collect()
    }

    fn launch(
        client: &Client,
        _: Element,
        plan: &BackwardPlan,
        problem: &Problem,
        saved: &Saved<Strided>,
        outputs: &Operands<Option<Handle>>,
    ) -> Result<(), KernelError> {
        backward_with(client, plan, problem, saved, outputs)
    }
}
