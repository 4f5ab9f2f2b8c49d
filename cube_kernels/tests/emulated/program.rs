//! Compiles a kernel for the CPU and runs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use burn_natten_kernels::tensor_core::offline::{self, translate};
use burn_natten_kernels::tensor_core::{Blueprint, Compiler};
use test_support::compare::format;
use test_support::cpp::{Folder, compile, object};
use test_support::element::Element;

use crate::assembly::portable;

/// Numbers as the element type has them in memory.
pub fn encode(element: Element, values: &[f64]) -> Vec<u8> {
    match element {
        Element::F16 => values.iter().flat_map(|x| half::f16::from_f64(*x).to_le_bytes()).collect(),
        Element::Bf16 => {
            values.iter().flat_map(|x| half::bf16::from_f64(*x).to_le_bytes()).collect()
        }
        Element::Tf32 => encode_f32(values),
    }
}

pub fn decode(element: Element, bytes: &[u8]) -> Vec<f64> {
    let decode = |pair: &[u8]| match element {
        Element::F16 => half::f16::from_le_bytes([pair[0], pair[1]]).to_f64(),
        _ => half::bf16::from_le_bytes([pair[0], pair[1]]).to_f64(),
    };
    if element == Element::Tf32 {
        decode_f32(bytes)
    } else {
        bytes.chunks_exact(2).map(decode).collect()
    }
}

pub fn encode_f32(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect()
}

pub fn decode_f32(bytes: &[u8]) -> Vec<f64> {
    let decode = |word: &[u8]| f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
    bytes.chunks_exact(4).map(|word| f64::from(decode(word))).collect()
}

/// What the machine is made of.
const FILES: [(&str, &str); 5] = [
    ("machine.cpp", include_str!("machine.cpp")),
    ("machine.h", include_str!("machine.h")),
    ("mma.h", "#include \"machine.h\"\n"),
    ("cuda_bf16.h", "#include \"machine.h\"\n"),
    ("cuda_fp16.h", "#include \"machine.h\"\n"),
];

/// What every part is compiled with. A fortified C library takes the jumps from one unit's stack to another's for errors.
const DIALECT: [&str; 5] = ["-std=c++17", "-U_FORTIFY_SOURCE", "-w", "-O2", "-I."];

/// f16 becomes f32 by an instruction where there is one, and by a function of the compiler's otherwise.
fn conversions() -> &'static [&'static str] {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("f16c") {
        return &["-mf16c"];
    }
    &[]
}

/// The machine without a kernel, compiled once.
fn machine(compiler: &str) -> &'static Path {
    static MACHINE: OnceLock<PathBuf> = OnceLock::new();
    MACHINE.get_or_init(|| {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated");
        fs::create_dir_all(&kept).expect("cargo's folder for tests");
        let arguments = [&DIALECT, conversions()].concat();
        object(compiler, &arguments, &FILES, &kept).unwrap_or_else(|log| panic!("{log}"))
    })
}

/// A kernel for the CPU.
pub struct Program {
    folder: Folder,
    /// Scalars of each kind that the kernel takes.
    scalars: usize,
    /// The name of the specialisation.
    name: String,
    /// Units of a cube.
    units: usize,
}

impl Program {
    /// Of the kernel that CubeCL's compiler to C++ makes of a blueprint.
    pub fn build(compiler: &str, blueprint: &Blueprint, element: Element) -> Self {
        let program = translate(blueprint, format(element).elem(), 80, Compiler::Cpp)
            .unwrap_or_else(|error| panic!("{blueprint}: {error}"));
        let bound = blueprint.shared_memory();
        assert!(program.shared_memory <= bound, "{blueprint}: {} > {bound}", program.shared_memory);
        Self::compile(compiler, &program, blueprint.to_string(), blueprint.units())
    }

    /// Of a kernel in CUDA C++.
    pub fn compile(compiler: &str, program: &offline::Program, name: String, units: usize) -> Self {
        let (_, scalars) = program.code.split_once("scalars_usize[").expect("scalars");
        let (scalars, _) = scalars.split_once(']').expect("their number");
        let folder = Folder::temporary();
        for (name, text) in FILES {
            folder.write(name, text);
        }
        folder.write("kernel.cpp", portable(&program.code, program.shared_memory));
        let machine = machine(compiler).to_str().expect("a path of text");
        let files = ["-O1", "kernel.cpp", machine, "-o", "kernel"];
        let arguments = [&DIALECT, conversions(), &files].concat();
        compile(compiler, &arguments, &folder.0).unwrap_or_else(|log| panic!("{name}: {log}"));
        Self { folder, scalars: scalars.parse().expect("a number"), name, units }
    }

    /// Runs `cubes` cubes on buffers, and gives the last `written` of them as they are then. Scalars are
    /// the kernel's sizes, and numbers such as the factor of the exponents and the scale.
    pub fn run(
        &self,
        cubes: usize,
        (sizes, floats): (&[usize], &[f64]),
        buffers: &[Vec<u8>],
        written: usize,
    ) -> Vec<Vec<u8>> {
        // Structs of scalars are whole words of 8 bytes.
        assert_eq!(sizes.len().next_multiple_of(2), self.scalars, "{}", self.name);
        let padding = self.scalars - sizes.len();
        let words = sizes.iter().map(|size| *size as u32).chain(std::iter::repeat_n(0, padding));
        let mut info: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        info.extend(encode_f32(floats));
        // Lengths of the buffers, which nothing reads.
        info.extend([0; 128]);
        self.folder.write("info", info);
        for (index, buffer) in buffers.iter().enumerate() {
            self.folder.write(&index.to_string(), buffer);
        }
        let output = Command::new(self.folder.0.join("kernel"))
            .arg(&self.folder.0)
            .args([self.units, cubes, buffers.len(), written].map(|n| n.to_string()))
            .output()
            .expect("the kernel was built");
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {} {log}", self.name, output.status);
        let read = |index: usize| {
            fs::read(self.folder.0.join(index.to_string())).expect("the kernel wrote it")
        };
        (buffers.len() - written..buffers.len()).map(read).collect()
    }
}
