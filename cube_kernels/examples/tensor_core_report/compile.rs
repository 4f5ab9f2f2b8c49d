//! From a blueprint to registers and spills.

use std::path::{Path, PathBuf};
use std::process::Command;

use burn_natten_kernels::native::compile::{Source, build};
use burn_natten_kernels::tensor_core::offline::translate;
use burn_natten_kernels::tensor_core::{Compiler, Instruction};
use cubecl::ir::{ElemType, FloatKind};

use crate::kernels::Kernel;

/// A CUDA toolkit.
pub struct Toolkit {
    root: PathBuf,
}

impl Toolkit {
    /// The one that `CUDA_PATH` names.
    pub fn find() -> Option<Self> {
        let root = PathBuf::from(std::env::var_os("CUDA_PATH")?);
        root.join("bin").join("ptxas").is_file().then_some(Self { root })
    }
}

/// Rows of the table for a kernel, one for each architecture.
pub fn report(
    kernel: &Kernel,
    architectures: &[&str],
    toolkit: &Toolkit,
    keep: Option<&str>,
) -> Result<Vec<String>, String> {
    let dtype = ElemType::Float(match kernel.blueprint.instruction {
        Instruction::Tf32 => FloatKind::TF32,
        _ => FloatKind::BF16,
    });
    let mut rows = vec![];
    for name in architectures {
        let number = name.trim_start_matches("sm_").trim_end_matches('a');
        let number = number.parse().map_err(|_| format!("{name} is no architecture"))?;
        let program = translate(&kernel.blueprint, dtype, number, kernel.compiler)?;
        if let Some(folder) = keep {
            let extension = if kernel.compiler == Compiler::Cpp { "cu" } else { "ptx" };
            let file = format!("{}.{name}.{extension}", kernel.name().replace(' ', "_"));
            std::fs::write(Path::new(folder).join(file), &program.code)
                .map_err(|error| error.to_string())?;
        }
        let log = match kernel.compiler {
            Compiler::Cpp => nvrtc(kernel.name(), program.code, name, toolkit)?,
            Compiler::Llvm => ptxas(&program.code, name, toolkit)?,
        };
        rows.push(format!(
            "| {} | {} | {name} | {} | {} |",
            kernel.name(),
            program.shared_memory,
            number_before(&log, " registers").unwrap_or(0),
            number_before(&log, " bytes spill stores").unwrap_or(0)
        ));
    }
    Ok(rows)
}

fn nvrtc(name: String, code: String, arch: &str, toolkit: &Toolkit) -> Result<String, String> {
    let include = toolkit.root.join("include");
    let options = vec![
        format!("--gpu-architecture={arch}"),
        format!("--include-path={}", include.display()),
        format!("--include-path={}", include.join("cccl").display()),
        "--ptxas-options=-v".to_string(),
    ];
    let built = build(&Source { name, code, options });
    built.map(|(_, log)| log).map_err(|error| error.to_string())
}

fn ptxas(code: &str, arch: &str, toolkit: &Toolkit) -> Result<String, String> {
    let own = (std::process::id(), std::thread::current().id());
    let file = std::env::temp_dir().join(format!("tensor_core_{own:?}.ptx"));
    std::fs::write(&file, code).map_err(|error| error.to_string())?;
    let output = Command::new(toolkit.root.join("bin").join("ptxas"))
        .args(["-v", "-arch", arch, "-o"])
        .arg(file.with_extension("cubin"))
        .arg(&file)
        .output()
        .map_err(|error| error.to_string());
    // There or not: what matters is the log.
    let _ = std::fs::remove_file(&file);
    let _ = std::fs::remove_file(file.with_extension("cubin"));
    let output = output?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(log) } else { Err(log) }
}

/// The number that stands before a word.
fn number_before(log: &str, word: &str) -> Option<usize> {
    let (before, _) = log.split_once(word)?;
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
