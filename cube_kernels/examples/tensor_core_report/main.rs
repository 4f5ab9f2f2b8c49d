//! The compile gate of the tensor-core kernels.
use burn_natten_kernels::tensor_core::offline::{Backend, translate};
use burn_natten_kernels::tensor_core::{Capability, Exponential, Staging, candidates, plan};
use burn_natten_kernels::catalogue;
use cubecl::ir::{ElemType, FloatKind};

fn main() {
    let folder = std::env::args().nth(1).expect("a folder");
    let name = std::env::args().nth(2).expect("a problem");
    let problem = catalogue::find(&name).expect("a name").problem;
    for (backend, capability) in [
        (Backend::Cpp, Capability { staging: Staging::Async, exponential: Exponential::Instruction, shared_memory: 232448 }),
        (Backend::Llvm, Capability { staging: Staging::Registers, exponential: Exponential::Library, shared_memory: 232448 }),
    ] {
        let blueprint = plan(&problem, &capability, 8).expect("a blueprint");
        let all = candidates(&problem, &capability, 8);
        println!("{blueprint} of {}", all.len());
        let start = std::time::Instant::now();
        let program = translate(&blueprint, ElemType::Float(FloatKind::BF16), 90, backend).expect("compiles");
        let file = format!("{folder}/{name}_{blueprint}.{}", if backend == Backend::Cpp { "cu" } else { "ptx" });
        println!("{file}: {} bytes shared, {:?}", program.shared_memory, start.elapsed());
        std::fs::write(file, program.code).expect("written");
    }
}
