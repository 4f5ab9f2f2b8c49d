//! 48 problems with known outputs and gradients, on every device.

use serde::Deserialize;

use crate::support::check::{self, close};
use crate::support::devices;
use crate::support::problem::{Axis, Gradients, Inputs, Problem};
use crate::support::run::{Loss, Setup, run};

/// A tensor in `cases.bin`.
#[derive(Clone, Deserialize)]
struct Slice {
    offset: usize,
    shape: Vec<usize>,
}

impl Slice {
    fn read(&self) -> Vec<f64> {
        let bytes = include_bytes!("../golden/cases.bin");
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
    pairs: usize,
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
}

struct Case {
    problem: Problem,
    inputs: Inputs,
    out: Vec<f64>,
    lse: Vec<f64>,
    gradients: Gradients,
}

impl Golden {
    fn case(&self) -> Case {
        let optional = |slice: &Option<Slice>| slice.as_ref().map_or(vec![], Slice::read);
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
            axes: axes.collect(),
        };
        let windows = Problem { additional: None, ..problem.clone() };
        assert_eq!(windows.pairs(), problem.batch * heads * self.pairs);
        let lse = self.lse.read();
        Case {
            problem,
            inputs: Inputs {
                query: self.q.read(),
                key: self.k.read(),
                value: self.v.read(),
                more_keys: optional(&self.extra_k),
                more_values: optional(&self.extra_v),
                grad_out: self.dout.read(),
                grad_lse: vec![0.0; lse.len()],
            },
            out: self.out.read(),
            lse,
            gradients: Gradients {
                query: self.dq.read(),
                key: self.dk.read(),
                value: self.dv.read(),
                more_keys: optional(&self.dextra_k),
                more_values: optional(&self.dextra_v),
            },
        }
    }
}

fn last_two(slice: &Slice) -> [usize; 2] {
    let shape = &slice.shape;
    [shape[shape.len() - 2], shape[shape.len() - 1]]
}

fn cases() -> Vec<Case> {
    let golden: Vec<Golden> = serde_json::from_str(include_str!("../golden/cases.json"))
        .expect("cases.json is as described");
    assert_eq!(golden.len(), 48);
    golden.iter().map(Golden::case).collect()
}

#[test]
fn the_oracle_agrees() {
    for (index, case) in cases().iter().enumerate() {
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
    let cases = cases();
    for device in devices() {
        for strategy in device.strategies() {
            for (index, case) in cases.iter().enumerate() {
                let setup = Setup::new(&device.device).strategy(strategy).loss(Loss::Out);
                let results = run(&case.problem, &case.inputs, &setup).expect("a valid problem");
                let what = |name: &str| format!("{} {strategy:?} case {index} {name}", device.name);
                close(&what("out"), &results.out, &case.out, check::F32);
                close(&what("lse"), &results.lse, &case.lse, check::F32);
                let gradients = results.gradients.expect("ran backward");
                let golden = case.gradients.named();
                for ((name, got), (_, want)) in gradients.named().into_iter().zip(golden) {
                    close(&what(name), got, want, check::F32);
                }
            }
        }
    }
}
