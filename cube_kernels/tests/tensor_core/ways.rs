//! The tier as the tests see it that several share.

use burn_natten_kernels::tensor_core::{BackwardPlan, Blueprint, backward_with};
use burn_natten_kernels::{KernelError, Operands, Problem, Saved, Strided};
use cubecl::client::Client;
use cubecl::server::Handle;
use test_support::Data;
use test_support::compare::Forward;
pub use test_support::element::Element;
use test_support::tier::{BackwardTier, ForwardTier};

use crate::attend::{attend, capabilities, dtype, planned, upload};
use crate::backward::run::{best, plans};

/// What the kernels multiply on the device.
pub fn elements(client: &Client) -> Vec<Element> {
    let elements = Element::ALL.into_iter();
    elements.filter(|element| !capabilities(client, *element).is_empty()).collect()
}

/// bf16 where the device multiplies it, and else f16, which all do.
pub fn half(client: &Client) -> Element {
    let has_bf16 = elements(client).contains(&Element::Bf16);
    if has_bf16 { Element::Bf16 } else { Element::F16 }
}

/// The kernels on tensor cores, by each blueprint that would run.
pub struct TensorCore;

impl ForwardTier for TensorCore {
    type Element = Element;
    const ELEMENTS: &'static [Element] = &Element::ALL;
    const WIDE: &'static [Element] = &[Element::Bf16, Element::Tf32];
    const F16: Element = Element::F16;

    fn elements(client: &Client) -> Vec<Element> {
        elements(client)
    }

    fn computed(
        client: &Client,
        element: Element,
        problem: &Problem,
        data: &Data,
    ) -> Vec<(String, Forward)> {
        let inputs = upload(client, element, problem, data);
        let compute = |blueprint: Blueprint| {
            (blueprint.to_string(), attend(client, element, &blueprint, problem, &inputs))
        };
        planned(client, element, problem, &inputs).into_iter().map(compute).collect()
    }
}

impl BackwardTier for TensorCore {
    type Plan = BackwardPlan;

    fn plans(problem: &Problem, element: Element) -> Vec<BackwardPlan> {
        plans(problem, element)
    }

    /// Every one is compiled, so that they are few.
    fn several(problem: &Problem, element: Element) -> Vec<BackwardPlan> {
        best(problem, element, if element == Element::F16 { 2 } else { 1 })
    }

    fn kernels(plan: &BackwardPlan) -> Vec<String> {
        plan.blueprints().map(ToString::to_string).collect()
    }

    fn launch(
        client: &Client,
        element: Element,
        plan: &BackwardPlan,
        problem: &Problem,
        saved: &Saved<Strided>,
        outputs: &Operands<Option<Handle>>,
    ) -> Result<(), KernelError> {
        backward_with(client, plan, problem, dtype(element), saved, outputs)
    }
}
