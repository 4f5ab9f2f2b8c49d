//! The kernels to be compiled.

use std::collections::{BTreeMap, HashSet};

use burn_natten_kernels::tensor_core::{
    Blueprint, Capability, Compiler, Pass, Staging, backward_candidates, candidates, plan,
    plan_backward, widest_vector,
};
use burn_natten_kernels::{Axis, MAX_RANK, Problem, catalogue};

/// A kernel and the compiler that translates it.
#[derive(Clone)]
pub struct Kernel {
    pub blueprint: Blueprint,
    pub compiler: Compiler,
}

impl Kernel {
    pub fn name(&self) -> String {
        let Blueprint { rank, vector, .. } = self.blueprint;
        format!("{:?} {} {rank}d v{vector}", self.compiler, self.blueprint)
    }
}

/// What the kernels of a compiler may use, with the shared memory of sm_80: each of the instructions.
fn capabilities(compiler: Compiler) -> [Capability; 3] {
    let ampere = Capability::cuda(80).expect("compute capability 8.0 has matrix units");
    let mma = ampere.with_compiler(compiler);
    let tf32 = mma.with_tf32().expect("compute capability 8.0 multiplies tf32");
    [mma, mma.with_cmma([16, 16, 16]), tf32]
}

/// Problems that differ in what kernels are specialised by.
fn variations() -> Vec<Problem> {
    let mut problems = vec![];
    let axis = |length, kernel_size, is_causal| {
        Axis::neighborhood(length, kernel_size).with_causal(is_causal)
    };
    let plane = [axis(40, 9, false), axis(50, 9, true)];
    let dims = [(16, 16), (32, 32), (7, 5), (80, 80), (96, 96), (256, 256), (192, 128), (36, 12)];
    for (head_dim, head_dim_v) in dims {
        for (axes, additional) in
            [(&[axis(900, 99, true)][..], 0), (&plane, 30), (&[axis(9, 3, false); MAX_RANK], 0)]
        {
            problems.push(
                Problem::new(axes, 4, head_dim)
                    .with_heads_kv(2)
                    .with_head_dim_v(head_dim_v)
                    .with_additional(additional),
            );
        }
    }
    // Queries that stand elsewhere than keys.
    let line = Axis::dense(500, 900, true);
    problems.push(problems[0].with_axes([line]));
    // Scores with a bias: of NAT's vectors, and of such whose planes work in pairs.
    let image = [axis(56, 7, false), axis(56, 7, false)];
    for (axes, head_dim) in [(&image[..], 32), (&plane, 64), (&[axis(900, 99, true)], 128)] {
        problems.push(Problem::new(axes, 4, head_dim).with_additional(3).with_bias(true));
    }
    let space = [axis(9, 3, false); MAX_RANK];
    problems.push(Problem::new(space, 4, 32).with_heads_kv(2).with_bias(true));
    problems
}

/// How much is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// What the planner chooses for the catalogue, and one of every kind.
    Sample,
    /// What is chosen for the catalogue and its variations, whatever the device has.
    Chosen,
    /// Every candidate of these.
    All,
}

/// What is compiled, each kernel once.
pub fn kernels(extent: Extent) -> Vec<Kernel> {
    let catalogue: Vec<Problem> = catalogue::all().iter().map(|entry| entry.problem).collect();
    let mut first = BTreeMap::new();
    let mut kernels = BTreeMap::new();
    for compiler in [Compiler::Cpp, Compiler::Llvm] {
        let all = capabilities(compiler);
        for problem in &catalogue {
            // CubeCL's default is LLVM.
            if compiler == Compiler::Llvm {
                add(&mut first, problem, &all[0], compiler, false);
            }
        }
        for capability in &all {
            for problem in catalogue.iter().chain(&variations()) {
                add(&mut kernels, problem, capability, compiler, extent == Extent::All);
            }
        }
    }
    if extent != Extent::Sample {
        return kernels.into_values().collect();
    }
    let mut seen: HashSet<_> = first.values().flat_map(kinds).collect();
    let new = |kernel: &Kernel, seen: &HashSet<String>| {
        kinds(kernel).into_iter().filter(|kind| !seen.contains(kind)).count()
    };
    // What shows the most that is new comes first, so that few show all.
    while let Some(kernel) = kernels.values().max_by_key(|kernel| new(kernel, &seen))
        && new(kernel, &seen) > 0
    {
        seen.extend(kinds(kernel));
        first.insert(kernel.name(), kernel.clone());
    }
    first.into_values().collect()
}

/// Adds what is chosen for a problem, or all that could be.
fn add(
    kernels: &mut BTreeMap<String, Kernel>,
    problem: &Problem,
    capability: &Capability,
    compiler: Compiler,
    all: bool,
) {
    let vector = widest_vector(problem);
    let mut blueprints = vec![];
    if all {
        blueprints.extend(candidates(problem, capability, vector));
        for pass in [Pass::Queries, Pass::Keys] {
            blueprints.extend(backward_candidates(problem, capability, vector, pass));
        }
    }
    blueprints.extend(plan(problem, capability, vector));
    if let Some(plan) = plan_backward(problem, capability, vector) {
        blueprints.extend(plan.blueprints());
    }
    for blueprint in blueprints {
        let kernel = Kernel { blueprint, compiler };
        kernels.insert(kernel.name(), kernel);
    }
}

/// What kinds of kernel one is of: of each parameter, the value under each compiler and in each pass.
fn kinds(kernel: &Kernel) -> Vec<String> {
    let Blueprint { pass, rank, planes, is_paired, blocks, holds_rows, .. } = kernel.blueprint;
    let Blueprint { has_first, has_second, instruction, staging, .. } = kernel.blueprint;
    let Blueprint { vector, is_causal, head_dim, has_keys, .. } = kernel.blueprint;
    let Blueprint { has_origin, has_additional, has_bias, bias_sums, .. } = kernel.blueprint;
    let of_pass = [
        format!("{rank}d"),
        format!("{planes} planes {is_paired}"),
        format!("{blocks} blocks {holds_rows}"),
        format!("{has_first} {has_second}"),
        format!("{instruction:?} {}", matches!(staging, Staging::Async(_))),
        format!("{has_keys} {has_additional} {has_origin}"),
        format!("bias {has_bias} {} {instruction:?}", bias_sums > 0),
    ];
    let of_any =
        [format!("{vector} elements"), format!("{is_causal:?}"), format!("dim {head_dim}")];
    let compiler = kernel.compiler;
    let of_pass = of_pass.map(|kind| format!("{compiler:?} {pass:?} {kind}"));
    of_pass.into_iter().chain(of_any.map(|kind| format!("{compiler:?} {kind}"))).collect()
}
