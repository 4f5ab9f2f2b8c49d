//! Plans of devices that are not there.

use burn::tensor::DType;
use burn_natten::plan::{Sizes, Target, explain};
use burn_natten::{Context, Strategy, Tier};
use burn_natten_kernels::catalogue;

use crate::support::devices;

/// Nobody runs anything, so that nobody is to be told of what cannot run; and what is logged once for a device that is there
/// must not have been used up.
#[test]
fn explaining_logs_nothing() {
    // Whatever is logged fails the test.
    let _ = devices();
    for head_dim in [20, 300, 64] {
        let problem = Sizes::new(head_dim).dense(200, 300, true, None).expect("valid");
        for target in [Target::Cpu, Target::Gpu, Target::Cuda { sm: 80 }, Target::Cuda { sm: 90 }] {
            for dtype in [DType::F64, DType::F32, DType::F16] {
                explain(&problem, dtype, target, Strategy::Auto, Context::new()).expect("valid");
            }
        }
    }
}

/// What is chosen is not said to be slower than what is not.
#[test]
fn estimates_agree_with_the_choice() {
    let mut wrong = vec![];
    for entry in catalogue::all() {
        let (target, auto) = (Target::Cuda { sm: 90 }, Strategy::Auto);
        let plan = explain(&entry.problem, DType::BF16, target, auto, Context::new());
        let plan = plan.expect("the catalogue runs");
        assert_eq!(plan.chosen.tier, Tier::Hopper, "{}", entry.name);
        for other in plan.alternatives.iter().filter(|other| other.tier != Tier::Hopper) {
            let (chosen, other_seconds) = (plan.chosen.forward.seconds, other.forward.seconds);
            if chosen > other_seconds {
                let (name, tier) = (entry.name, other.tier);
                wrong.push(format!("{name}: Hopper {chosen:.2e} s, {tier} {other_seconds:.2e} s"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
