//! The work of a packed batch in uniform batches: `--uniform`. Each of its sizes is timed alone, in as many sequences as fill the device
//! like the packed batch does, and its sequences count by their share of that.

use std::collections::BTreeMap;
use std::time::Duration;

use burn::tensor::{Device, Tensor};
use burn_natten::{
    AttentionError, AttentionOptions, NeighborhoodOptions, NeighborhoodOutput, try_attention,
    try_na1d, try_na2d, try_na3d,
};
use serde_json::{Value, json};

use super::sizes::Job;
use crate::args::Args;
use crate::device;
use crate::failure::Failure;
use crate::measure::progress;
use crate::passes::{self, Found, HEADER, Measurement};
use crate::print::json::text;
use crate::print::table;
use crate::units::{axes, duration, ratio, si};

/// What was measured.
pub struct Uniform {
    batches: Vec<Batch>,
}

/// The uniform batch of a size.
struct Batch {
    size: Vec<usize>,
    /// Sequences of this size in the packed batch.
    sequences: usize,
    /// Sequences of the uniform batch.
    count: usize,
    passes: Vec<Measurement>,
}

/// Times a uniform batch of each size.
pub fn run(job: &Job, args: &Args) -> Result<Uniform, Failure> {
    let device = device::open(args.device, args.dtype)?;
    // The first of each size, and how many there are.
    let mut sizes = BTreeMap::<_, (usize, usize)>::new();
    for (sequence, size) in job.sizes.iter().enumerate() {
        sizes.entry(size).or_insert((sequence, 0)).1 += 1;
    }
    let bar = progress(sizes.len() as u64);
    let mut batches = vec![];
    for (size, (sequence, sequences)) in sizes {
        bar.set_message(axes(size, " x "));
        let count = count(job.tokens(), size.iter().product());
        let problem = job.problems[sequence].with_batch(count);
        let flops = [problem.forward_flops(), problem.backward_flops()];
        let timed = Timed { job, args, sequence, count };
        let passes = passes::times(&timed, args, &device, flops)?;
        batches.push(Batch { size: size.clone(), sequences, count, passes });
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(Uniform { batches })
}

/// Sequences of so many tokens that have about as many as the packed batch.
fn count(packed: usize, tokens: usize) -> usize {
    ((packed + tokens / 2) / tokens).max(1)
}

/// What is timed: many sequences like one of the packed batch.
struct Timed<'a> {
    job: &'a Job,
    args: &'a Args,
    sequence: usize,
    count: usize,
}

impl passes::Call for Timed<'_> {
    /// Query, key and value, their tokens in one line.
    type Inputs = [Tensor<4>; 3];

    fn inputs(&self, device: &Device) -> [Tensor<4>; 3] {
        let tokens = self.job.sizes[self.sequence].iter().product();
        passes::tensors(self.args, [self.count, tokens], device)
    }

    fn call(&self, inputs: &[Tensor<4>; 3]) -> Result<Vec<Tensor<1>>, AttentionError> {
        let out = match self.job.sizes[self.sequence].len() {
            1 if self.job.windows.is_none() => {
                let options = AttentionOptions::new()
                    .with_causal(self.job.is_causal[0])
                    .with_scale(self.args.scale)
                    .with_strategy(self.args.strategy);
                let [query, key, value] = inputs.clone();
                try_attention(query, key, value, options)?.out.flatten(0, 3)
            }
            1 => self.windows::<1, 4, 3>(inputs, try_na1d)?,
            2 => self.windows::<2, 5, 4>(inputs, try_na2d)?,
            _ => self.windows::<3, 6, 5>(inputs, try_na3d)?,
        };
        let [query, key, value] = inputs;
        Ok(passes::results(out, [query, key, value]))
    }
}

impl Timed<'_> {
    /// Tensors have `D` axes, their logsumexp `L`.
    fn windows<const N: usize, const D: usize, const L: usize>(
        &self,
        inputs: &[Tensor<4>; 3],
        operator: impl Fn(
            Tensor<D>,
            Tensor<D>,
            Tensor<D>,
            NeighborhoodOptions<N>,
        ) -> Result<NeighborhoodOutput<D, L>, AttentionError>,
    ) -> Result<Tensor<1>, AttentionError> {
        let space: [usize; N] = self.job.space(self.sequence);
        let [query, key, value] = inputs.clone().map(|tensor| {
            let [batch, _, heads, dim] = tensor.dims();
            let mut shape = [batch; D];
            shape[1..=N].copy_from_slice(&space);
            shape[N + 1..].copy_from_slice(&[heads, dim]);
            tensor.reshape(shape)
        });
        let mut options = NeighborhoodOptions::new(space);
        if let Some(window) = self.job.window(self.sequence) {
            options = NeighborhoodOptions::new(window.kernel_size())
                .with_stride(window.stride())
                .with_dilation(window.dilation());
        }
        let options = options
            .with_causal(self.job.causal())
            .with_scale(self.args.scale)
            .with_strategy(self.args.strategy);
        Ok(operator(query, key, value, options)?.out.flatten(0, D - 1))
    }
}

impl Uniform {
    /// What the work of the packed batch takes: of each size what `of` says of a pass, by the share of its sequences.
    fn sum(&self, pass: usize, of: impl Fn(&Measurement) -> Duration) -> Duration {
        let of_batch = |batch: &Batch| {
            of(&batch.passes[pass]).mul_f64(batch.sequences as f64 / batch.count as f64)
        };
        self.batches.iter().map(of_batch).sum()
    }

    fn memory(&self, pass: usize) -> u64 {
        self.batches.iter().map(|batch| batch.passes[pass].memory).max().unwrap_or(0)
    }

    /// Beside what the packed batch takes, as a table or as JSON.
    pub fn print(&self, packed: &Found, problem: String, args: &Args) -> String {
        if args.json {
            let mut all = packed.json(problem);
            let passes = packed.passes.iter().enumerate();
            all["uniform"] = passes.map(|(pass, packed)| self.json(pass, packed)).collect();
            return text(all);
        }
        let header: Vec<_> = HEADER.into_iter().chain(["uniform/packed"]).collect();
        let mut rows = table::new(&header, 1);
        for (pass, measurement) in packed.passes.iter().enumerate() {
            let median = self.sum(pass, |one| one.timing.median());
            let low = self.sum(pass, |one| one.timing.quartiles().0);
            let high = self.sum(pass, |one| one.timing.quartiles().1);
            let calls: usize =
                self.batches.iter().map(|batch| batch.passes[pass].timing.calls()).sum();
            let share = median.as_secs_f64() / measurement.timing.median().as_secs_f64();
            rows.add_row(measurement.cells().into_iter().chain([ratio(share)]));
            rows.add_row([
                format!("{}, uniform", measurement.name),
                calls.to_string(),
                duration(median),
                format!("{} to {}", duration(low), duration(high)),
                si(measurement.flops as f64 / median.as_secs_f64(), ""),
                si(self.memory(pass) as f64, "B"),
                String::new(),
            ]);
        }
        packed.with_facts(problem, &rows)
    }

    fn json(&self, pass: usize, packed: &Measurement) -> Value {
        let median = self.sum(pass, |one| one.timing.median()).as_secs_f64();
        let of = |batch: &Batch| {
            let measurement = &batch.passes[pass];
            let median = measurement.timing.median().as_secs_f64();
            json!({
                "size": batch.size,
                "sequences": batch.sequences,
                "batch": batch.count,
                "median": median,
                "flops": measurement.flops as f64 / median,
            })
        };
        json!({
            "pass": packed.name,
            "median": median,
            "flops": packed.flops as f64 / median,
            "memory": self.memory(pass),
            "ratio": median / packed.timing.median().as_secs_f64(),
            "sizes": self.batches.iter().map(of).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn a_uniform_batch_has_about_the_tokens_of_the_packed_one() {
        assert_eq!([count(100, 30), count(100, 50), count(100, 70), count(10, 90)], [3, 2, 1, 1]);
    }
}
