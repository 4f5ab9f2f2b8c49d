//! f32 inputs in tf32: at most twice the error of the same computation with the operands of all products rounded
//! to tf32, whatever the inputs are rounded to.

use burn_natten_kernels::tensor_core::{Capability, plan, plan_backward, widest_vector};
use burn_natten_kernels::{Axis, Problem};
use test_support::Data;
use test_support::cpp::compiler;
use test_support::element::Element;
use test_support::format::F32;
use test_support::rounding::Expected;

use crate::backward::gradients_of;
use crate::forward::attend;
use crate::problems::all;
use crate::program::Program;

fn check(capability: &Capability) {
    let Some(compiler) = compiler() else { return };
    let long = Problem::new([Axis::dense(70, 300, false)], 2, 64);
    for problem in [all()[1], long] {
        let data = Data::random(&problem, 3, F32.round);
        let expected = Expected::of(&problem, &data);
        let vector = widest_vector(&problem);
        let blueprint = plan(&problem, capability, vector).expect("a plan");
        let program = Program::build(compiler, &blueprint, Element::Tf32);
        let (out, lse) = attend(&program, &blueprint, &problem, Element::Tf32, &data);
        let what = blueprint.to_string();
        let mut ratios =
            vec![expected.check(&what, "out", &out), expected.check(&what, "lse", &lse)];
        let plan = plan_backward(&problem, capability, vector).expect("a plan");
        let own = [&plan.queries].into_iter().chain(&plan.keys).map(|blueprint| (blueprint, false));
        for (blueprint, of_additional) in own.chain(plan.additional.iter().map(|it| (it, true))) {
            let program = Program::build(compiler, blueprint, Element::Tf32);
            let given = (&problem, of_additional);
            // As in training, logsumexp and output are those of a forward pass in tf32.
            let forward = &expected.rounded;
            let all = gradients_of(&program, blueprint, given, Element::Tf32, &data, forward);
            let what = blueprint.to_string();
            ratios.extend(all.iter().map(|(name, actual, _)| expected.check(&what, name, actual)));
        }
        println!("errors are {ratios:.2?} times those of rounding");
    }
}

#[test]
fn with_asynchronous_copies() {
    check(&crate::tf32(crate::asynchronous()));
}

#[test]
fn with_loads_through_registers() {
    check(&crate::tf32(crate::plain()));
}
