//! 48 problems with known outputs and gradients, on every device, and those of a relative position bias that NATTEN itself
//! computed.

use std::path::Path;

use burn::tensor::DType;
use burn_natten::Strategy;
use serde::Deserialize;

use crate::support::check::{self, close};
use crate::support::problem::{Axis, Gradients, Inputs, Problem};
use crate::support::run::{Loss, Setup, run};
use crate::support::{TestDevice, devices};

/// A tensor in a file of numbers.
#[derive(Clone, Deserialize)]
struct Slice {
    offset: usize,
    shape: Vec<usize>,
}

impl Slice {
    fn read(&self, bytes: &[u8]) -> Vec<f64> {
        let count: usize = self.shape.iter().product();
        bytes[4 * self.offset..][..4 * count]
            .chunks_exact(4)
            .map(|bytes| f64::from(f32::from_le_bytes(bytes.try_into().expect("four bytes"))))
            .collect()
    }
}

#[derive(Deserialize)]
struct Golden {
    space: Vec<usize>,
    kernel: Vec<usize>,
    stride: Vec<usize>,
    dilation: Vec<usize>,
    causal: Vec<bool>,
    scale: f64,
    pairs: Option<usize>,
    q: Slice,
    k: Slice,
    v: Slice,
    dout: Slice,
    out: Slice,
    lse: Slice,
    dq: Slice,
    dk: Slice,
    dv: Slice,
    extra_k: Option<Slice>,
    extra_v: Option<Slice>,
    dextra_k: Option<Slice>,
    dextra_v: Option<Slice>,
    rpb: Option<Slice>,
    drpb: Option<Slice>,
}

struct Case {
    problem: Problem,
    inputs: Inputs,
    out: Vec<f64>,
    lse: Vec<f64>,
    gradients: Gradients,
}

impl Golden {
    fn case(&self, bytes: &[u8]) -> Case {
        let read = |slice: &Slice| slice.read(bytes);
        let optional = |slice: &Option<Slice>| slice.as_ref().map_or(vec![], read);
        let axes = (0..self.space.len()).map(|axis| Axis::Window {
            length: self.space[axis],
            kernel_size: self.kernel[axis],
            stride: self.stride[axis],
            dilation: self.dilation[axis],
            is_causal: self.causal[axis],
        });
        let [heads, dim] = last_two(&self.q);
        let [heads_kv, dim_v] = last_two(&self.v);
        let problem = Problem {
            batch: self.q.shape[0],
            heads,
            heads_kv,
            dim,
            dim_v,
            additional: self.extra_k.as_ref().map(|slice| slice.shape[1]),
            scale: Some(self.scale),
            bias: self.rpb.is_some(),
            axes: axes.collect(),
        };
        let windows = Problem { additional: None, ..problem.clone() };
        if let Some(pairs) = self.pairs {
            assert_eq!(windows.pairs(), problem.batch * heads * pairs);
        }
        let lse = read(&self.lse);
        Case {
            problem,
            inputs: Inputs {
                query: read(&self.q),
                key: read(&self.k),
                value: read(&self.v),
                more_keys: optional(&self.extra_k),
                more_values: optional(&self.extra_v),
                bias: optional(&self.rpb),
                grad_out: read(&self.dout),
                grad_lse: vec![0.0; lse.len()],
            },
            out: read(&self.out),
            lse,
            gradients: Gradients {
                query: read(&self.dq),
                key: read(&self.dk),
                value: read(&self.dv),
                more_keys: optional(&self.dextra_k),
                more_values: optional(&self.dextra_v),
                bias: optional(&self.drpb),
            },
        }
    }
}

fn last_two(slice: &Slice) -> [usize; 2] {
    let shape = &slice.shape;
    [shape[shape.len() - 2], shape[shape.len() - 1]]
}

fn cases() -> Vec<Case> {
    let cases = parse(include_str!("../golden/cases.json"), include_bytes!("../golden/cases.bin"));
    assert_eq!(cases.len(), 48);
    cases
}

/// Problems with a bias: those of the repository, or all of them where a folder has them.
fn bias_cases() -> Vec<Case> {
    let Ok(folder) = std::env::var("BURN_NATTEN_TEST_GOLDEN") else {
        return parse(include_str!("../golden/rpb.json"), include_bytes!("../golden/rpb.bin"));
    };
    let read = |name: &str| {
        let path = Path::new(&folder).join("natten017").join(name);
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let text = String::from_utf8(read("rpb.json")).expect("rpb.json is text");
    let cases = parse(&text, &read("rpb.bin"));
    assert_eq!(cases.len(), 25);
    cases
}

fn parse(text: &str, bytes: &[u8]) -> Vec<Case> {
    let golden: Vec<Golden> = serde_json::from_str(text).expect("the file is as described");
    golden.iter().map(|golden| golden.case(bytes)).collect()
}

/// Of outputs and gradients in a type.
fn check_cases(
    cases: &[Case],
    dtype: DType,
    tolerance: f64,
    strategies: fn(&TestDevice) -> Vec<Strategy>,
) {
    for device in devices().into_iter().filter(|device| device.supports(dtype)) {
        for strategy in strategies(&device) {
            // Kernels translated for seconds each are held to the oracle by tests of other problems, and the oracle to all of these.
            let step = if device.name == "cubecl-cpu" { 3 } else { 1 };
            for (index, case) in cases.iter().enumerate().step_by(step) {
                let setup = Setup::new(&device.device).strategy(strategy).dtype(dtype);
                let setup = setup.loss(Loss::Out);
                let results = run(&case.problem, &case.inputs, &setup).expect("a valid problem");
                let what = |name: &str| format!("{} {strategy:?} case {index} {name}", device.name);
                close(&what("out"), &results.out, &case.out, tolerance);
                close(&what("lse"), &results.lse, &case.lse, tolerance);
                let gradients = results.gradients.expect("ran backward");
                let golden = case.gradients.named();
                for ((name, got), (_, want)) in gradients.named().into_iter().zip(golden) {
                    close(&what(name), got, want, tolerance);
                }
            }
        }
    }
}

#[test]
fn the_oracle_agrees() {
    for (index, case) in cases().iter().chain(&bias_cases()).enumerate() {
        let (out, lse) = case.problem.forward(&case.inputs);
        let what = |name: &str| format!("case {index} {name}");
        // The golden results are f64 rounded to f32.
        close(&what("out"), &out, &case.out, 1e-7);
        close(&what("lse"), &lse, &case.lse, 1e-7);
        let gradients = case.problem.backward(&case.inputs, &out);
        for ((name, got), (_, want)) in gradients.named().into_iter().zip(case.gradients.named()) {
            close(&what(name), got, want, 1e-7);
        }
    }
}

#[test]
fn every_device_agrees() {
    check_cases(&cases(), DType::F32, check::F32, TestDevice::strategies);
}

#[test]
fn every_device_agrees_about_a_bias() {
    check_cases(&bias_cases(), DType::F32, check::F32, TestDevice::bias_strategies);
}

/// Up to the rounding of the results that are given.
#[test]
fn a_bias_in_f64_is_exact() {
    let flex = |device: &TestDevice| match device.compiles_kernels() {
        true => vec![],
        false => device.bias_strategies(),
    };
    check_cases(&bias_cases(), DType::F64, 1e-7, flex);
}
