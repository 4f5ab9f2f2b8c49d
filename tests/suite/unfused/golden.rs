//! What NATTEN 0.17.5 gives for both halves: its own CPU kernels, in float64.

use burn::tensor::Tensor;
use burn_natten::{na1d_qk, na2d_qk, na3d_qk};
use serde::Deserialize;

use super::oracle::{Halves, Results, slots};
use super::run::{Setup, run};
use crate::support::check::{self, close};
use crate::support::devices;
use crate::support::problem::{Axis, Problem};
use crate::support::run::{options, tensor, values};

#[derive(Clone, Deserialize)]
struct Slice {
    offset: usize,
    shape: Vec<usize>,
}

#[derive(Clone, Deserialize)]
struct Golden {
    space: Vec<usize>,
    kernel: Vec<usize>,
    stride: Vec<usize>,
    dilation: Vec<usize>,
    causal: Vec<bool>,
    masked: usize,
    q: Slice,
    k: Slice,
    rpb: Option<Slice>,
    extra_k: Option<Slice>,
    attn: Slice,
    dattn: Slice,
    dq: Slice,
    dk: Slice,
    drpb: Option<Slice>,
    dextra_k: Option<Slice>,
    weights: Slice,
    v: Slice,
    extra_v: Option<Slice>,
    out: Slice,
    dout: Slice,
    dweights: Slice,
    dv: Slice,
    dextra_v: Option<Slice>,
}

/// Problems, and the numbers of all their tensors.
struct Cases {
    all: Vec<Golden>,
    data: Vec<u8>,
}

impl Cases {
    /// Those of the repository, or all of them from the folder that `BURN_NATTEN_TEST_GOLDEN` names.
    fn load() -> Self {
        let parse = |text: &str| serde_json::from_str(text).expect("unfused.json is as described");
        match std::env::var("BURN_NATTEN_TEST_GOLDEN") {
            Ok(folder) => {
                let file = |name: &str| format!("{folder}/natten017/{name}");
                let read = |name: &str| std::fs::read(file(name)).expect(name);
                let text = String::from_utf8(read("unfused.json")).expect("text");
                Self { all: parse(&text), data: read("unfused.bin") }
            }
            Err(_) => Self {
                all: parse(include_str!("../../golden/unfused.json")),
                data: include_bytes!("../../golden/unfused.bin").to_vec(),
            },
        }
    }

    fn read(&self, slice: &Slice) -> Vec<f64> {
        let count: usize = slice.shape.iter().product();
        let bytes = &self.data[4 * slice.offset..][..4 * count];
        let (numbers, _) = bytes.as_chunks();
        numbers.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
    }

    fn optional(&self, slice: &Option<Slice>) -> Vec<f64> {
        slice.as_ref().map_or(vec![], |slice| self.read(slice))
    }

    /// A tensor `[batch, heads, *space, window]` with its heads behind its space.
    fn heads_last(&self, slice: &Slice) -> Vec<f64> {
        let [batch, heads, window] =
            [slice.shape[0], slice.shape[1], slice.shape[slice.shape.len() - 1]];
        let values = self.read(slice);
        let queries = values.len() / (batch * heads * window);
        let mut moved = Vec::with_capacity(values.len());
        for sample in 0..batch {
            for query in 0..queries {
                for head in 0..heads {
                    let row = (sample * heads + head) * queries + query;
                    moved.extend(&values[row * window..][..window]);
                }
            }
        }
        moved
    }

    fn case(&self, golden: &Golden) -> (Problem, Halves, Results) {
        let axes = (0..golden.space.len()).map(|axis| Axis::Window {
            length: golden.space[axis],
            kernel_size: golden.kernel[axis],
            stride: golden.stride[axis],
            dilation: golden.dilation[axis],
            is_causal: golden.causal[axis],
        });
        let last = |slice: &Slice| slice.shape[slice.shape.len() - 1];
        let heads = golden.q.shape[golden.q.shape.len() - 2];
        let problem = Problem {
            batch: golden.q.shape[0],
            heads,
            heads_kv: heads,
            dim: last(&golden.q),
            dim_v: last(&golden.v),
            additional: golden.extra_k.as_ref().map(|slice| slice.shape[1]),
            // NATTEN's operator has none.
            scale: Some(1.0),
            axes: axes.collect(),
            bias: false,
        };
        let halves = Halves {
            query: self.read(&golden.q),
            key: self.read(&golden.k),
            value: self.read(&golden.v),
            more_keys: self.optional(&golden.extra_k),
            more_values: self.optional(&golden.extra_v),
            weights: self.heads_last(&golden.weights),
            grad_scores: self.heads_last(&golden.dattn),
            grad_out: self.read(&golden.dout),
        };
        let results = Results {
            scores: self.heads_last(&golden.attn),
            out: self.read(&golden.out),
            grad_query: self.read(&golden.dq),
            grad_key: self.read(&golden.dk),
            grad_more_keys: self.optional(&golden.dextra_k),
            grad_weights: self.heads_last(&golden.dweights),
            grad_value: self.read(&golden.dv),
            grad_more_values: self.optional(&golden.dextra_v),
        };
        let hidden = results.scores.iter().filter(|score| score.is_infinite()).count();
        assert_eq!(hidden, golden.masked);
        (problem, halves, results)
    }
}

/// Scores with a bias, and the gradient of the bias.
fn scores_with_bias(
    problem: &Problem,
    halves: &Halves,
    (bias, shape): (&[f64], &[usize]),
    setup: &Setup,
) -> [Vec<f64>; 2] {
    macro_rules! of_rank {
        ($qk:ident, $rank:literal, $bias:literal, $d:literal) => {{
            let space = problem.axes.iter().map(Axis::queries);
            let like = |last| -> [usize; $d] {
                let shape = [problem.batch].into_iter().chain(space.clone());
                let shape: Vec<_> = shape.chain([problem.heads, last]).collect();
                shape.try_into().expect("rank")
            };
            let of = |values: &[f64], last| tensor(values, like(last), &setup.device, setup.dtype);
            let shape: [usize; $bias] = shape.try_into().expect("heads and space");
            let bias = tensor::<$bias>(bias, shape, &setup.device, setup.dtype).require_grad();
            let more = problem.additional.map(|count| {
                let shape = [problem.batch, count, problem.heads_kv, problem.dim];
                tensor::<4>(&halves.more_keys, shape, &setup.device, setup.dtype)
            });
            let options = options::<$rank>(problem)
                .with_strategy(setup.strategy)
                .with_bias(bias.clone())
                .with_additional_kv(more, None);
            let [query, key] = [&halves.query, &halves.key].map(|values| of(values, problem.dim));
            let scores: Tensor<$d> = $qk(query, key, options);
            let tape = (scores.clone() * of(&halves.grad_scores, slots(problem))).sum().backward();
            [values(scores), values(bias.grad(&tape).expect("tracked"))]
        }};
    }
    match problem.axes.len() {
        1 => of_rank!(na1d_qk, 1, 2, 4),
        2 => of_rank!(na2d_qk, 2, 3, 5),
        _ => of_rank!(na3d_qk, 3, 4, 6),
    }
}

/// Results against golden ones, which a bias leaves the same but for the scores.
fn agree(what: &str, got: &Results, golden: &Golden, want: &Results, tolerance: f64) {
    for ((name, got), (_, want)) in got.named().into_iter().zip(want.named()) {
        if name != "scores" || golden.rpb.is_none() {
            close(&format!("{what} {name}"), got, want, tolerance);
        }
    }
}

#[test]
fn the_oracle_agrees_with_natten() {
    let cases = Cases::load();
    for (index, golden) in cases.all.iter().enumerate() {
        let (problem, halves, want) = cases.case(golden);
        // Golden results are f64 rounded to f32.
        agree(&format!("case {index}"), &halves.compute(&problem), golden, &want, 1e-7);
    }
}

#[test]
fn every_device_agrees_with_natten() {
    let cases = Cases::load();
    let mut biased = 0;
    for device in devices() {
        for strategy in device.strategies() {
            for (index, golden) in cases.all.iter().enumerate() {
                let (problem, halves, want) = cases.case(golden);
                let got = run(&problem, &halves, &Setup::new(&device.device, strategy));
                let what = format!("{} {strategy:?} case {index}", device.name);
                agree(&what, &got, golden, &want, check::F32);
                if let (Some(rpb), Some(drpb)) = (&golden.rpb, &golden.drpb) {
                    let setup = Setup::new(&device.device, strategy);
                    let bias = (&*cases.read(rpb), &*rpb.shape);
                    let [scores, gradient] = scores_with_bias(&problem, &halves, bias, &setup);
                    close(&format!("{what} scores with a bias"), &scores, &want.scores, check::F32);
                    close(&format!("{what} dbias"), &gradient, &cases.read(drpb), check::F32);
                    biased += 1;
                }
            }
        }
    }
    assert!(biased > 0, "some have a bias");
}
