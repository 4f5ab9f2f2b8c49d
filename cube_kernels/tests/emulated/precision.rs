//! f32 inputs in tf32: at most twice the error of the same computation with the operands of all products rounded
//! to tf32, whatever the inputs are rounded to.

use burn_natten_kernels::tensor_core::{Capability, plan, plan_backward, widest_vector};
use burn_natten_kernels::{Axis, Problem};

use crate::backward::gradients_of;
use crate::forward::attend;
use crate::problems::all;
use crate::program::{Program, compiler};
use crate::run::norms;
use crate::support::element::Element;
use crate::support::oracle::{compute, compute_rounded};
use crate::support::run::{F32, TF32};
use crate::support::{Data, Results};

/// What is right, and what it is with rounded operands.
struct Expected {
    exact: Results,
    rounded: Results,
}

impl Expected {
    /// Fails unless errors are at most twice those of rounding. Gives their ratio.
    fn check(&self, what: &str, name: &str, actual: &[f64]) -> f64 {
        let find = |results: &'_ Results| {
            let found = results.named().into_iter().find(|(known, _)| *known == name);
            found.expect("a name of a result").1.to_vec()
        };
        let (exact, rounded) = (find(&self.exact), find(&self.rounded));
        assert_eq!(actual.len(), exact.len(), "{what}: {name}");
        let error = |values: &[f64]| norms(values.iter().zip(&exact).map(|(a, e)| a - e));
        let ((rms, most), (base_rms, base_most)) = (error(actual), error(&rounded));
        let text = format!(
            "{what}: {name} off by {rms:.1e} rms, of {base_rms:.1e}, and {most:.1e} at most, of {base_most:.1e}"
        );
        assert!(rms <= 2.0 * base_rms && most <= 2.0 * base_most, "{text}");
        // Of inputs that tf32 does not have.
        assert!(base_rms > 1e-6, "{text}");
        rms / base_rms
    }
}

fn check(capability: &Capability) {
    let Some(compiler) = compiler() else { return };
    let long = Problem {
        axes: [Axis::UNIT, Axis::UNIT, Axis::dense(70, 300, false)],
        head_dim: 64,
        head_dim_v: 64,
        additional: 0,
        ..all()[1]
    };
    for problem in [all()[1], long] {
        let data = Data::random(&problem, 3, F32.round);
        let rounded = compute_rounded(&problem, &data, F32.round, TF32.round);
        let expected = Expected { exact: compute(&problem, &data, F32.round), rounded };
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
    check(&crate::tf32(crate::ampere()));
}
