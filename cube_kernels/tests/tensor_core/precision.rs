//! f32 inputs in tf32: at most twice the error of the same computation with the operands of all products rounded
//! to tf32, whatever the inputs are rounded to.

use burn_natten_kernels::Axis;
use test_support::compare::device;
use test_support::format::F32;
use test_support::rounding::Expected;
use test_support::tier::{BackwardTier, upload_all};
use test_support::{Data, axis, problem};

use crate::attend::{attend, planned, upload};
use crate::backward::run::plans;
use crate::ways::{Element, TensorCore, elements};

#[test]
fn errors_are_those_of_rounded_operands() {
    let Some(client) = device() else { return };
    let element = Element::Tf32;
    if !elements(&client).contains(&element) {
        println!("not run: the device does not multiply tf32");
        return;
    }
    let space = [axis(5, 3, 1, 1, false), axis(9, 4, 1, 2, false), axis(10, 5, 1, 1, true)];
    for problem in [
        problem(&[Axis::dense(300, 700, false)], 64),
        problem(&[axis(500, 99, 1, 1, true)], 128),
        problem(&space[1..], 40).with_heads(4).with_additional(50),
        problem(&space, 36).with_head_dim_v(72),
        problem(&[axis(200, 50, 1, 3, false)], 256),
    ] {
        let data = Data::random(&problem, 3, F32.round);
        let expected = Expected::of(&problem, &data);
        let inputs = upload(&client, element, &problem, &data);
        let mut ratios = vec![];
        for blueprint in planned(&client, element, &problem, &inputs) {
            let (out, lse) = attend(&client, element, &blueprint, &problem, &inputs);
            let what = blueprint.to_string();
            ratios.extend(
                [("out", out), ("lse", lse)].map(|(name, it)| expected.check(&what, name, &it)),
            );
        }
        // As in training, logsumexp and output are those of a forward pass in tf32.
        let inputs = upload_all(&client, element, &problem, &data, &expected.rounded);
        let plan = plans(&problem, element)[0].clone();
        let what = TensorCore::names(&plan);
        let gradients = TensorCore::gradients(&client, element, &plan, &problem, &inputs);
        let written = gradients.iter().filter(|(_, gradient)| !gradient.is_empty());
        ratios.extend(written.map(|(name, gradient)| expected.check(&what, name, gradient)));
        assert_eq!(ratios.len(), if problem.additional > 0 { 7 } else { 5 });
        println!("errors are {ratios:.2?} times those of rounding: {problem:?}");
    }
}
