use burn_natten_kernels::cost::Limit;

use super::*;
use crate::{MemoryPreference, select};

const WINDOWS: Windows<'_> = Windows {
    kernel_size: &[7, 7],
    stride: &[1, 1],
    dilation: &[1, 1],
    is_causal: &[false, false],
};

fn problem(head_dim: usize) -> Problem {
    let sizes = Sizes { batch: 2, heads: 4, heads_kv: 2, ..Sizes::new(head_dim) };
    sizes.neighborhood(&[56, 56], WINDOWS, None).expect("a valid problem")
}

fn plan(problem: &Problem, dtype: DType, target: Target, strategy: Strategy) -> Explanation {
    explain(problem, dtype, target, strategy, Context::new()).expect("a plan")
}

#[test]
fn the_plan_is_what_the_operators_select() {
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        for target in [Target::Cpu, Target::Gpu, Target::Cuda { sm: 80 }] {
            for strategy in [Strategy::Auto, Strategy::Reference] {
                let problem = problem(64);
                let plan = plan(&problem, dtype, target, strategy);
                let tier = select(&problem, strategy, dtype, target.capabilities(), Context::new());
                assert_eq!(Ok(plan.chosen.tier), tier, "{dtype:?} {target} {strategy:?}");
            }
        }
    }
}

#[test]
fn the_schedules_that_are_explained_are_those_of_the_plan() {
    let target = Target::Cuda { sm: 90 };
    let problem = problem(64);
    let on = |context| {
        let capabilities = target.capabilities();
        let plan = Plan::on(capabilities, problem, DType::BF16, Strategy::Auto, context);
        plan.expect("a plan").0
    };
    let all = explain(&problem, DType::BF16, target, Strategy::Auto, Context::new());
    let all = all.expect("a plan");
    let tilings = all.alternatives.iter().filter(|candidate| candidate.tier == Tier::Hopper);
    for context in tilings.map(|candidate| candidate.context).chain([Context::new()]) {
        let plan = on(context);
        let explained = explain(&problem, DType::BF16, target, Strategy::Auto, context);
        let chosen = explained.expect("a plan").chosen;
        let schedule = plan.hopper().expect("a schedule");
        assert_eq!((chosen.tier, chosen.schedule), (Tier::Hopper, schedule.summary()));
        assert_eq!(chosen.tiling, Some(schedule.tiling()));
        let backward = plan.hopper_backward().expect("schedules");
        let names = backward.schedules().map(|schedule| schedule.summary());
        assert!(names.eq(chosen.backward_kernels.iter().map(|kernel| kernel.schedule.clone())));
        // What was chosen goes with the plan into the backward pass.
        let again = plan.clone().hopper_backward().expect("schedules");
        assert!(std::sync::Arc::ptr_eq(&backward, &again));
    }
}

#[test]
fn asking_for_a_candidate_by_its_strategy_gives_it() {
    for target in [Target::Cpu, Target::Gpu, Target::Cuda { sm: 90 }] {
        let all = plan(&problem(64), DType::F32, target, Strategy::Auto);
        assert!(!all.alternatives.is_empty());
        for candidate in all.alternatives {
            let asked = plan(&problem(64), DType::F32, target, candidate.strategy);
            assert_eq!(asked.chosen, candidate);
        }
    }
}

#[test]
fn every_tier_is_listed_once() {
    let all = plan(&problem(64), DType::F32, Target::Gpu, Strategy::Reference);
    assert_eq!(all.chosen.tier, Tier::Reference);
    let others: Vec<_> = all.alternatives.iter().map(|candidate| candidate.tier).collect();
    assert_eq!(others, [Tier::Portable]);
}

#[test]
fn what_cannot_run_says_why() {
    let refused = |dtype, strategy| {
        explain(&problem(64), dtype, Target::Gpu, strategy, Context::new())
            .expect_err("cannot run")
            .to_string()
    };
    assert!(refused(DType::F64, Strategy::Portable).contains("no f64"));
    assert!(refused(DType::F32, Strategy::TensorCore).starts_with("strategy: TensorCore"));
    assert!(refused(DType::I32, Strategy::Auto).contains("dtype I32"));
}

#[test]
fn tf32_is_planned_where_it_is_allowed() {
    let sizes = Sizes { heads: 16, heads_kv: 16, ..Sizes::new(128) };
    let problem = sizes.dense(4096, 4096, false, None).expect("a valid problem");
    let of = |dtype, context| {
        explain(&problem, dtype, Target::Cuda { sm: 80 }, Strategy::Auto, context).expect("a plan")
    };
    let allowed = Context::new().with_allow_tf32(true);
    let tiers = |plan: &Explanation| {
        let all = [&plan.chosen].into_iter().chain(&plan.alternatives);
        all.map(|candidate| candidate.tier).collect::<Vec<_>>()
    };
    assert!(!tiers(&of(DType::F32, Context::new())).contains(&Tier::TensorCore));
    let (tf32, half) = (of(DType::F32, allowed), of(DType::F16, allowed));
    assert_eq!((tf32.chosen.tier, half.chosen.tier), (Tier::TensorCore, Tier::TensorCore));
    // The same operations at half the rate take their time once more; exponentials and tiles take what they took.
    let forward = |plan: &Explanation| {
        assert_eq!(plan.chosen.forward.limit, Limit::Compute);
        plan.chosen.forward
    };
    let more = forward(&tf32).seconds - forward(&half).seconds;
    let products = forward(&half).executed_flops as f64 / half.device.matmul_flops;
    assert!((0.9..1.1).contains(&(more / products)), "{more} s for {products} s");
}

#[test]
fn flex_computes_unions_of_four_windows() {
    let chosen = plan(&problem(64), DType::F32, Target::Cpu, Strategy::Auto).chosen;
    let count = chosen.count.expect("Flex has tiles");
    assert_eq!(count.q_tiles, 56 * 14);
    // Of the 14 blocks of a line, the first and the last see one window, the others 10 columns.
    let unions = 12 * 10 + 2 * 7;
    assert_eq!(count.visited, 56 * 7 * unions);
    assert_eq!(chosen.backward.executed_flops, chosen.forward.executed_flops / 2 * 7);
    assert_eq!(chosen.forward.flops, problem(64).forward_flops());
}

#[test]
fn portable_computes_scores_again_in_every_slice() {
    let work = |head_dim| {
        let chosen = plan(&problem(head_dim), DType::F32, Target::Gpu, Strategy::Auto).chosen;
        let ratio = |cost: Cost| cost.executed_flops as f64 / cost.flops as f64;
        (ratio(chosen.forward), ratio(chosen.backward), chosen.schedule)
    };
    assert_eq!(work(64), (1.0, 7.0 / 5.0, "a query a thread".to_string()));
    assert_eq!(work(256), (1.5, 15.0 / 5.0, "a query in 2 threads".to_string()));
}

#[test]
fn reference_is_bound_by_what_it_gathers() {
    let all = plan(&problem(64), DType::F32, Target::Cpu, Strategy::Auto);
    let reference = &all.alternatives[0];
    assert_eq!((reference.tier, reference.forward.limit), (Tier::Reference, Limit::Memory));
    assert!(reference.forward.seconds > 10.0 * all.chosen.forward.seconds);
    assert!(reference.tiling.is_none() && reference.count.is_none());

    let context = Context::new().with_memory(MemoryPreference::Strict);
    let explained = explain(&problem(64), DType::F32, Target::Cpu, Strategy::Reference, context)
        .expect("a plan");
    assert_eq!(explained.chosen.schedule, "one key of each window at a time");
}

#[test]
fn sizes_refuse_what_the_operators_refuse() {
    let sizes = Sizes { heads: 6, heads_kv: 4, ..Sizes::new(8) };
    let text = |result: Result<Problem, AttentionError>| result.expect_err("refused").to_string();
    assert!(text(sizes.dense(4, 4, false, None)).contains("must be a multiple of the 4 heads"));
    let sizes = Sizes::new(8);
    assert!(text(sizes.neighborhood(&[5, 9], WINDOWS, None)).contains("at most 5"));
    assert!(text(sizes.neighborhood(&[9], WINDOWS, None)).contains("kernel_size: has 2 axes"));
    assert!(text(sizes.neighborhood(&[], WINDOWS, None)).contains("space: has 0 axes"));
    assert!(text(sizes.neighborhood(&[9; 4], WINDOWS, None)).contains("space: has 4 axes"));
}

#[test]
fn a_context_asks_for_one_tiling_of_many() {
    let windows = Windows {
        kernel_size: &[6, 8, 10],
        stride: &[1; 3],
        dilation: &[1; 3],
        is_causal: &[false; 3],
    };
    let problem = Sizes::new(64).neighborhood(&[16, 20, 24], windows, None).expect("valid");
    let of = |context| {
        explain(&problem, DType::BF16, Target::Cuda { sm: 90 }, Strategy::Auto, context)
            .expect("a plan")
    };
    let all = of(Context::new());
    assert_eq!(all.chosen.tier, Tier::Hopper);
    assert!(all.alternatives.iter().filter(|other| other.tier == Tier::Hopper).count() > 3);
    let hopper = all.alternatives.iter().filter(|other| other.tier == Tier::Hopper);
    let tilings: Vec<_> = hopper.map(|other| other.tiling).collect();
    assert!(!tilings.contains(&all.chosen.tiling), "a tiling is listed once");
    // There are over a hundred, and each costs a plan with as many.
    let some = all.alternatives.iter().filter(|other| other.tier == Tier::Hopper).step_by(12);
    for other in some {
        let asked = of(Context::new().with_tiling(other.tiling));
        assert_eq!(&asked.chosen, other);
    }
    // What no tier has is not asked for.
    let none = Context::new().with_tiling(Some(Tiling::square([3, 3, 3])));
    assert_eq!(of(none).chosen, all.chosen);
}
