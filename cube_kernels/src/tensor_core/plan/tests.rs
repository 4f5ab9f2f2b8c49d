use super::*;
use crate::tensor_core::Compiler;
use crate::{Axis, KeyValue, MAX_RANK, catalogue};

const ARCHITECTURES: [u32; 3] = [80, 89, 90];

fn capabilities() -> impl Iterator<Item = Capability> {
    ARCHITECTURES.into_iter().flat_map(|sm| {
        let capability = Capability::cuda(sm).expect("8.0 or later");
        let staged = |staging| Capability { staging, ..capability };
        let cooperative = |side| capability.with_cmma([side; 3]);
        let mma = [
            staged(Staging::Registers),
            staged(Staging::Async(Compiler::Cpp)),
            staged(Staging::Async(Compiler::Llvm)),
        ];
        let tf32 = mma.into_iter().filter_map(|capability| capability.with_tf32());
        mma.into_iter().chain(tf32).chain([cooperative(16), cooperative(8)])
    })
}

fn plane(head_dim: usize, head_dim_v: usize) -> Problem {
    let axis = |length, kernel_size| Axis::neighborhood(length, kernel_size);
    Problem::new([axis(20, 5), axis(30, 7)], 4, head_dim)
        .with_heads_kv(2)
        .with_head_dim_v(head_dim_v)
        .with_additional(9)
}

fn check(problem: &Problem, capability: &Capability) {
    let vector = widest_vector(problem);
    let forward = plan(problem, capability, vector).expect("a blueprint");
    let backward = plan_backward(problem, capability, vector).expect("a plan");
    let additional = problem.of_additional();
    let own = [&forward, &backward.queries].into_iter().chain(&backward.keys);
    let all = own
        .map(|blueprint| (blueprint, problem))
        .chain(backward.additional.iter().map(|blueprint| (blueprint, &additional)));
    for (blueprint, problem) in all {
        assert!(blueprint.fits(problem), "{blueprint}: {problem:?}");
        assert!(blueprint.shared_memory() <= capability.shared_memory, "{blueprint}");
        assert_eq!(blueprint.rows(), blueprint.groups() * blueprint.plane_rows(), "{blueprint}");
        // Statistics of columns are read by a unit each.
        assert!(blueprint.columns() <= blueprint.units(), "{blueprint}");
        // Scores are the first matrix of a further product, 16 columns at a time.
        assert!(blueprint.columns().is_multiple_of(16), "{blueprint}");
        let sides = blueprint.q_tile.iter().chain(&blueprint.kv_tile);
        assert!(sides.into_iter().all(|side| side.is_power_of_two()), "{blueprint}");
    }
}

#[test]
fn the_catalogue_is_planned_for_every_architecture() {
    for entry in catalogue::all() {
        capabilities().for_each(|capability| check(&entry.problem, &capability));
    }
}

#[test]
fn only_queries_that_stand_elsewhere_have_kernels_that_know_where() {
    let line = |axis| plane(64, 64).with_axes([axis]);
    let [at_keys, elsewhere] = [0, 70].map(|at| line(Axis::dense(30, 100, true).with_origin(at)));
    // Where every query sees every key.
    let anywhere = line(Axis::dense(30, 100, false).with_origin(70));
    for capability in capabilities() {
        let of = |problem| plan(problem, &capability, 8).expect("a blueprint");
        assert!(!of(&at_keys).has_origin && !of(&anywhere).has_origin);
        assert!(of(&elsewhere).has_origin && of(&elsewhere).fits(&at_keys));
        assert!(!of(&at_keys).fits(&elsewhere));
    }
}

#[test]
fn vectors_of_every_length_are_planned() {
    for (dim, dim_v) in [(1, 1), (7, 5), (33, 2), (48, 200), (128, 256), (256, 256), (250, 6)] {
        capabilities().for_each(|capability| check(&plane(dim, dim_v), &capability));
    }
}

/// The shared memory of Apple's GPUs, and of others that have cooperative matrices.
#[test]
fn little_shared_memory_suffices_for_cooperative_matrices() {
    let ampere = Capability::cuda(80).expect("Ampere");
    for (side, kibibytes) in [(8, 32), (16, 48)] {
        let capability =
            Capability { shared_memory: kibibytes << 10, ..ampere.with_cmma([side; 3]) };
        for (dim, dim_v) in [(16, 16), (64, 64), (128, 128), (250, 6), (256, 256)] {
            check(&plane(dim, dim_v), &capability);
        }
    }
}

#[test]
fn long_vectors_have_a_kernel_for_each_gradient() {
    let capability = Capability::cuda(80).expect("Ampere");
    let of = |dim| plan_backward(&plane(dim, dim), &capability, 8).expect("a plan").keys;
    assert_eq!(of(128).len(), 1);
    let [key, value] = of(256)[..] else { panic!("{:?}", of(256)) };
    assert!(key.has_first && !key.has_second && value.has_second && !value.has_first);
}

#[test]
fn loads_are_of_at_most_16_bytes() {
    let half = Capability::cuda(80).expect("Ampere");
    let tf32 = half.with_tf32().expect("Ampere multiplies tf32");
    let of = |capability| plan(&plane(64, 64), &capability, 8).expect("a blueprint");
    assert_eq!((of(half).vector, of(tf32).vector), (8, 4));
    assert!(of(tf32).to_string().contains("_tf32"), "{}", of(tf32));
    // Single elements of four bytes can be copied asynchronously, those of two bytes cannot.
    let asynchronous =
        |capability| Capability { staging: Staging::Async(Compiler::Cpp), ..capability };
    let of = |capability| plan(&plane(7, 7), &asynchronous(capability), 1).expect("a blueprint");
    assert_eq!(
        (of(half).staging, of(tf32).staging),
        (Staging::Registers, Staging::Async(Compiler::Cpp))
    );
}

#[test]
fn what_is_not_covered_says_why() {
    let text = |problem: Problem| unsupported(&problem).expect("not covered");
    assert_eq!(text(plane(300, 8)), "head_dim is 300, not 1 to 256");
    assert_eq!(text(plane(8, 0)), "head_dim of value is 0, not 1 to 256");
    let scale = plane(8, 8).with_scale(-1.0);
    assert_eq!(text(scale), "scale is -1, not 1e-6 to 1e6");
    let nothing = scale.with_axes([Axis::dense(3, 0, false); MAX_RANK]).with_additional(0);
    assert_eq!(text(nothing.with_scale(1.0)), "there are no keys");
}

#[test]
fn an_asked_tiling_is_taken_where_there_is_one() {
    let (problem, capability) = (plane(64, 64), Capability::cuda(80).expect("Ampere"));
    for blueprint in candidates(&problem, &capability, 8) {
        let tiling = blueprint.tiling();
        let tiled = plan_tiled(&problem, &capability, 8, tiling).expect("it has these tiles");
        assert_eq!(tiled.tiling(), tiling);
    }
    assert_eq!(plan_tiled(&problem, &capability, 8, Tiling::square([3, 3, 3])), None);
}

/// A cube for every tile of every dilation group, or a few more where groups differ in length.
#[cfg(feature = "cube")]
#[test]
fn cubes_cover_all_tiles() {
    let capability = Capability::cuda(80).expect("Ampere");
    let dilated = |mut problem: Problem| {
        problem.axes[2].dilation = 4;
        problem
    };
    for problem in [plane(64, 64), dilated(plane(64, 64))] {
        let plan_of = plan(&problem, &capability, 8).expect("a blueprint");
        let tiles = plan_of.tiling().count(&problem).q_tiles as usize;
        let cubes = plan_of.cut().cubes(&problem);
        let groups = problem.axes[2].dilation;
        assert!(cubes >= 4 * tiles && cubes <= 4 * tiles * 2, "{cubes} for {tiles}, {groups}");
    }
}

#[test]
fn what_nobody_wants_is_not_launched() {
    let capability = Capability::cuda(80).expect("8.0");
    for (dim, kernels) in [(64, 1), (256, 2)] {
        let problem = plane(dim, dim);
        let plan = plan_backward(&problem, &capability, 8).expect("a plan");
        let count = |[key, value, more_key, more_value]: [bool; 4]| {
            let additional = Some(KeyValue { key: more_key, value: more_value });
            let wanted = Operands { additional, ..Operands::new(false, key, value) };
            let plan = plan.wanted(&wanted);
            (plan.keys.len(), plan.additional.len())
        };
        assert_eq!(count([true; 4]), (kernels, kernels));
        assert_eq!(count([false; 4]), (0, 0));
        assert_eq!(count([true, false, false, false]), (1, 0));
        assert_eq!(count([false, false, false, true]), (0, 1));
    }
}

#[test]
fn a_bias_gradient_is_summed_where_there_is_room() {
    let problem = plane(32, 32).with_bias(true);
    let of = |length, kernel_size| Axis::neighborhood(length, kernel_size);
    let wide = problem.with_axes([of(100, 90), of(100, 90)]);
    let many = problem.with_batch(1 << 20);
    for capability in capabilities() {
        check(&problem, &capability);
        let planned = |problem| plan_backward(problem, &capability, 8).expect("a plan");
        let plan = planned(&problem);
        assert!(plan.queries.has_bias && plan.keys.iter().all(|kernel| kernel.has_bias));
        assert!(plan.keys.iter().all(|kernel| kernel.bias_sums == 0));
        assert!(plan.additional.iter().all(|kernel| !kernel.has_bias));
        // 9 x 13 entries, in multiples of 64.
        let room = if capability.instruction.is_mma() { 128 } else { 0 };
        assert_eq!(plan.queries.bias_sums, room, "{}", plan.queries);
        assert!(plan.queries.fits(&problem.with_axes([of(20, 5), of(30, 5)])));
        assert!(room == 0 || !plan.queries.fits(&problem.with_axes([of(20, 9), of(30, 9)])));
        assert!(!plan.queries.fits(&problem.with_bias(false)));
        assert_eq!([planned(&wide), planned(&many)].map(|plan| plan.queries.bias_sums), [0; 2]);
    }
}
