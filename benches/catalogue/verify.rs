//! Checks the results of a workload on sampled rows, before it is timed.

use burn::tensor::{DType, Device, Tensor};
use burn_natten::AttentionError;
use burn_natten::profile::{Gradients, Inputs, Outputs, Workload};
use burn_natten_kernels::Problem;
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::exact::{self, Head, KeyValue};

/// Seed of inputs and samples; the timed inputs have another.
const SEED: u64 = 7;
/// Heads that are looked at, and rows of each.
const HEADS: usize = 3;
const ROWS: usize = 16;

/// Greatest differences on the rows looked at, each over the greatest value of its tensor there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Of output and logsumexp.
    pub forward: f64,
    /// Of the gradients of query, key and value.
    pub backward: Option<f64>,
}

/// The error at which a result counts as wrong: some ten roundings of the dtype.
pub fn bound(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 5e-3,
        DType::BF16 => 3e-2,
        _ => 1e-4,
    }
}

/// Runs the passes once on fresh inputs and compares a few dozen rows.
pub fn verify(workload: &Workload, device: &Device, backward: bool) -> Result<Errors, String> {
    if workload.problem.has_bias {
        return Err("a position bias is not checked here".to_string());
    }
    if workload.problem.additional > 0 {
        return Err("additional tokens are not checked here".to_string());
    }
    let results =
        Results::compute(workload, device, backward).map_err(|error| error.to_string())?;
    Ok(results.errors(&workload.problem))
}

/// All tensors of both passes, on the device.
pub struct Results {
    pub inputs: Inputs,
    pub outputs: Outputs,
    pub upstream: Outputs,
    pub gradients: Option<Gradients>,
}

impl Results {
    /// Runs the forward pass, and the backward pass if it is asked for.
    pub fn compute(
        workload: &Workload,
        device: &Device,
        backward: bool,
    ) -> Result<Self, AttentionError> {
        let inputs = workload.inputs(device, SEED);
        let upstream = workload.upstream(device, SEED + 1);
        let outputs = workload.forward(&inputs)?;
        let gradients = match backward {
            true => Some(workload.backward(&inputs, &outputs, &upstream)?),
            false => None,
        };
        Ok(Self { inputs, outputs, upstream, gradients })
    }

    /// Compares sampled rows with float64.
    pub fn errors(&self, problem: &Problem) -> Errors {
        let mut random = StdRng::seed_from_u64(SEED);
        let (mut forward, mut gradient) = ([Worst::default(); 2], [Worst::default(); 3]);
        let (dim, dim_v) = (problem.head_dim, problem.head_dim_v);
        for (batch, head_kv) in heads(problem, &mut random) {
            let (kv, heads) = self.fetch(problem, batch, head_kv);
            for (number, head) in heads.iter().enumerate() {
                let head_index = head_kv * problem.group_size() + number;
                let gradients = self.gradients.as_ref();
                let grad_query = gradients.map(|all| column(&all.query, batch, head_index));
                for index in rows(problem.axes.map(|axis| axis.queries), &mut random) {
                    let (out, lse) = exact::forward(problem, head, &kv, index);
                    forward[0].compare(&head.out[index * dim_v..], &out);
                    forward[1].compare(&head.lse[index..], &[lse]);
                    if let Some(grad_query) = &grad_query {
                        let exact = exact::query_gradient(problem, head, &kv, index);
                        gradient[0].compare(&grad_query[index * dim..], &exact);
                    }
                }
            }
            if let Some(gradients) = &self.gradients {
                let [key, value] =
                    [&gradients.key, &gradients.value].map(|all| column(all, batch, head_kv));
                for index in rows(problem.axes.map(|axis| axis.keys), &mut random) {
                    let exact = exact::key_gradients(problem, &heads, &kv, index);
                    gradient[1].compare(&key[index * dim..], &exact.0);
                    gradient[2].compare(&value[index * dim_v..], &exact.1);
                }
            }
        }
        let worst = |parts: &[Worst]| parts.iter().map(Worst::error).fold(0.0, f64::max);
        let backward = self.gradients.is_some().then(|| worst(&gradient));
        Errors { forward: worst(&forward), backward }
    }

    /// Brings one head of keys and values to the host, and the query heads that read it.
    fn fetch(&self, problem: &Problem, batch: usize, head_kv: usize) -> (KeyValue, Vec<Head>) {
        let kv = KeyValue {
            key: column(&self.inputs.key, batch, head_kv),
            value: column(&self.inputs.value, batch, head_kv),
        };
        let group_size = problem.group_size();
        let head = |head: usize| Head {
            query: column(&self.inputs.query, batch, head),
            out: column(&self.outputs.out, batch, head),
            lse: column(&self.outputs.logsumexp.clone().unsqueeze_dim(3), batch, head),
            grad_out: column(&self.upstream.out, batch, head),
            grad_lse: column(&self.upstream.logsumexp.clone().unsqueeze_dim(3), batch, head),
        };
        (kv, (head_kv * group_size..(head_kv + 1) * group_size).map(head).collect())
    }
}

/// `[tokens, head_dim]` of one head of one sample.
fn column(tensor: &Tensor<4>, batch: usize, head: usize) -> Vec<f32> {
    let [_, tokens, _, dim] = tensor.dims();
    let slice = tensor.clone().slice([batch..batch + 1, 0..tokens, head..head + 1, 0..dim]);
    slice.into_data().iter::<f32>().collect()
}

/// The first and the last head, and some between.
fn heads(problem: &Problem, random: &mut StdRng) -> Vec<(usize, usize)> {
    let count = problem.batch * problem.heads_kv;
    let mut heads = vec![0, count - 1];
    heads.extend((2..HEADS).map(|_| random.random_range(0..count)));
    heads.sort_unstable();
    heads.dedup();
    heads.into_iter().map(|head| (head / problem.heads_kv, head % problem.heads_kv)).collect()
}

/// The corners of the space, its centre, and random places.
fn rows(lengths: [usize; 3], random: &mut StdRng) -> Vec<usize> {
    let index = |place: [usize; 3]| (place[0] * lengths[1] + place[1]) * lengths[2] + place[2];
    let corner = |bits: usize| {
        index([0, 1, 2].map(|axis| if bits >> axis & 1 == 1 { lengths[axis] - 1 } else { 0 }))
    };
    let mut rows: Vec<usize> = (0..8).map(corner).collect();
    rows.push(index(lengths.map(|length| length / 2)));
    rows.extend((rows.len()..ROWS).map(|_| random.random_range(0..lengths.iter().product())));
    rows.sort_unstable();
    rows.dedup();
    rows
}

#[derive(Clone, Copy, Debug, Default)]
struct Worst {
    difference: f64,
    largest: f64,
}

impl Worst {
    /// `got` begins with the row to compare.
    fn compare(&mut self, got: &[f32], exact: &[f64]) {
        for (&got, &exact) in got.iter().zip(exact) {
            let difference = (f64::from(got) - exact).abs();
            let difference = if difference.is_nan() { f64::INFINITY } else { difference };
            self.difference = self.difference.max(difference);
            self.largest = self.largest.max(exact.abs());
        }
    }

    fn error(&self) -> f64 {
        if self.difference == 0.0 { 0.0 } else { self.difference / self.largest }
    }
}
