//! The kernels to be compiled.

use std::collections::BTreeMap;

use burn_natten_kernels::tensor_core::{
    Blueprint, Capability, Compiler, Pass, backward_candidates, candidates, plan, plan_backward,
    widest_vector,
};
use burn_natten_kernels::{Axis, MAX_RANK, Problem, catalogue};

/// A kernel and the compiler that translates it.
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

/// Problems of the catalogue, and others that differ in what kernels are specialised by.
fn problems() -> Vec<Problem> {
    let mut problems: Vec<Problem> = catalogue::all().iter().map(|entry| entry.problem).collect();
    let axis = |length, kernel_size, is_causal| {
        Axis::neighborhood(length, kernel_size).with_causal(is_causal)
    };
    let plane = [Axis::UNIT, axis(40, 9, false), axis(50, 9, true)];
    let dims = [(16, 16), (32, 32), (7, 5), (80, 80), (96, 96), (256, 256), (192, 128), (36, 12)];
    for (head_dim, head_dim_v) in dims {
        for (axes, additional) in [
            ([Axis::UNIT, Axis::UNIT, axis(900, 99, true)], 0),
            (plane, 30),
            ([axis(9, 3, false); MAX_RANK], 0),
        ] {
            let (batch, heads, heads_kv) = (1, 4, 2);
            let scale = 0.1;
            problems.push(Problem {
                batch,
                heads,
                heads_kv,
                head_dim,
                head_dim_v,
                additional,
                scale,
                axes,
            });
        }
    }
    problems
}

/// What is chosen for the problems, or all that could be.
pub fn kernels(all: bool) -> Vec<Kernel> {
    let mut kernels = BTreeMap::new();
    let compilers = [Compiler::Cpp, Compiler::Llvm].into_iter();
    for (compiler, capability) in compilers
        .flat_map(|compiler| capabilities(compiler).map(|capability| (compiler, capability)))
    {
        for problem in problems() {
            let vector = widest_vector(&problem);
            let mut blueprints = vec![];
            if all {
                blueprints.extend(candidates(&problem, &capability, vector));
                for pass in [Pass::Queries, Pass::Keys] {
                    blueprints.extend(backward_candidates(&problem, &capability, vector, pass));
                }
            }
            blueprints.extend(plan(&problem, &capability, vector));
            if let Some(plan) = plan_backward(&problem, &capability, vector) {
                blueprints.extend(plan.blueprints());
            }
            for blueprint in blueprints {
                let kernel = Kernel { blueprint, compiler };
                kernels.insert(kernel.name(), kernel);
            }
        }
    }
    kernels.into_values().collect()
}
