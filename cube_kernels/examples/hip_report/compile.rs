//! From HIP C++ to registers and spills.

use std::path::{Path, PathBuf};
use std::process::Command;

use test_support::absent::hip::Source;

/// What is compiled for.
#[derive(Clone, Copy)]
pub struct Architecture {
    pub name: &'static str,
    /// The nearest that the device library of a distribution knows.
    pub library: &'static str,
    /// Units of a plane.
    pub plane: u32,
}

/// A compiler for AMD GPUs and what it needs.
pub struct Toolkit {
    clang: String,
    /// The device library.
    bitcode: PathBuf,
}

/// Its parts besides the architecture and the width of planes.
const LIBRARY: [&str; 8] = [
    "hip",
    "ocml",
    "ockl",
    "oclc_daz_opt_off",
    "oclc_unsafe_math_off",
    "oclc_finite_only_off",
    "oclc_correctly_rounded_sqrt_on",
    "oclc_abi_version_500",
];

impl Toolkit {
    /// What is installed.
    pub fn find() -> Result<Self, String> {
        let named = std::env::var("HIP_CLANG").ok();
        let newer = (17..=22).rev().map(|version| format!("clang++-{version}"));
        let runs = |name: &String| {
            let output = Command::new(name).arg("--version").output();
            output.is_ok_and(|output| output.status.success())
        };
        let clang = named.into_iter().chain(newer).find(runs);
        let folders = ["/usr/lib/x86_64-linux-gnu/amdgcn/bitcode", "/opt/rocm/amdgcn/bitcode"];
        let bitcode = folders.iter().map(Path::new).find(|folder| folder.join("ocml.bc").is_file());
        let toolkit = Self {
            clang: clang.ok_or("no clang++-17 or newer; HIP_CLANG names one")?,
            bitcode: bitcode.ok_or("no device library of AMD's")?.into(),
        };
        match toolkit.has("hip/hip_runtime.h") {
            true => Ok(toolkit),
            false => Err("no headers of HIP; CPLUS_INCLUDE_PATH names their folder".into()),
        }
    }

    /// Whether there is such a header.
    pub fn has(&self, header: &str) -> bool {
        self.holds(&format!("__has_include(<{header}>)"))
    }

    /// Whether the headers are those of HIP 6 or newer.
    pub fn has_hip_6(&self) -> bool {
        self.holds("__has_include(<hip/hip_version.h>)\n#include <hip/hip_version.h>\n#endif\n#if HIP_VERSION_MAJOR >= 6")
    }

    /// Whether the preprocessor finds it true.
    fn holds(&self, condition: &str) -> bool {
        let file = std::env::temp_dir().join(format!("hip_report_{}.h", std::process::id()));
        let text = format!("#if {condition}\n#else\n#error\n#endif\n");
        let is_written = std::fs::write(&file, text).is_ok();
        let output = Command::new(&self.clang).args(["-x", "c++", "-E"]).arg(&file).output();
        // There or not: what matters is the answer.
        let _ = std::fs::remove_file(file);
        is_written && output.is_ok_and(|output| output.status.success())
    }

    /// Columns of the table for a kernel.
    pub fn compile(
        &self,
        name: &str,
        source: &Source,
        architecture: Architecture,
        keep: Option<&str>,
    ) -> Result<String, String> {
        let own = (std::process::id(), std::thread::current().id());
        let file = std::env::temp_dir().join(format!("hip_report_{own:?}.hip"));
        let text = |error: std::io::Error| error.to_string();
        // Without the names that AMD's own compiler at run time lacks, and the host's headers have.
        let names =
            ["typedef unsigned long long int uint64_t;", "typedef signed long long int int64_t;"];
        let code = names.iter().fold(source.code.clone(), |code, name| code.replacen(name, "", 1));
        std::fs::write(&file, code).map_err(text)?;
        if let Some(folder) = keep {
            let plain = name.replace(|c: char| !c.is_alphanumeric(), "_");
            std::fs::copy(&file, Path::new(folder).join(format!("{plain}.hip"))).map_err(text)?;
        }
        let object = file.with_extension("o");
        let output = self.command(architecture).arg(&file).arg("-o").arg(&object).output();
        let code = std::fs::read(&object).unwrap_or_default();
        for file in [file, object] {
            // There or not: what matters is the log.
            let _ = std::fs::remove_file(file);
        }
        let output = output.map_err(text)?;
        let log = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() || !code.starts_with(b"\x7fELF") {
            return Err(log[..log.len().min(4000)].to_string());
        }
        let columns = [
            "    VGPRs: ",
            "    SGPRs: ",
            "ScratchSize [bytes/lane]: ",
            "VGPRs Spill: ",
            "Occupancy [waves/SIMD]: ",
        ]
        .map(|label| number_after(&log, label).map_or("?".into(), |n| n.to_string()));
        Ok(columns.join(" | "))
    }

    fn command(&self, architecture: Architecture) -> Command {
        let Architecture { name, library, plane } = architecture;
        let wide = if plane == 64 { "on" } else { "off" };
        let own = [format!("oclc_isa_version_{library}"), format!("oclc_wavefrontsize64_{wide}")];
        let mut command = Command::new(&self.clang);
        command.args(["-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpulib"]);
        command.args(["-std=c++17", "-O3"]);
        // What HIP's compiler at run time has without being told.
        command.args(["-include", "hip/hip_runtime.h", "-include", "hip/hip_fp16.h"]);
        command.args(["-Rpass-analysis=kernel-resource-usage", "-w", "--rocm-path=/usr"]);
        command.arg(format!("--offload-arch={name}"));
        for part in LIBRARY.into_iter().chain(own.iter().map(String::as_str)) {
            command.args(["-Xclang", "-mlink-builtin-bitcode", "-Xclang"]);
            command.arg(self.bitcode.join(part).with_extension("bc"));
        }
        command
    }
}

/// The number that stands behind a label.
fn number_after(log: &str, label: &str) -> Option<usize> {
    let (_, after) = log.split_once(label)?;
    after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
