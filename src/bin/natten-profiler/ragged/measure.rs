//! A packed batch on a device.

use burn::tensor::{Device, Tensor};
use burn_natten::{
    AttentionError, AttentionOptions, Lengths, NeighborhoodOptions, Spaces, try_attention_packed,
    try_na1d_packed, try_na2d_packed, try_na3d_packed,
};

use super::sizes::Job;
use crate::args::Args;
use crate::device;
use crate::failure::Failure;
use crate::passes::{self, Found};

/// Times the forward pass, and both passes where the flags ask for the backward pass.
pub fn run(job: &Job, args: &Args) -> Result<Found, Failure> {
    let device = device::open(args.device, args.dtype)?;
    passes::run(&Timed { job, args }, args, &device, job.flops())
}

/// What is timed.
struct Timed<'a> {
    job: &'a Job,
    args: &'a Args,
}

impl passes::Call for Timed<'_> {
    /// Query, key and value.
    type Inputs = [Tensor<4>; 3];

    fn inputs(&self, device: &Device) -> [Tensor<4>; 3] {
        passes::tensors(self.args, [1, self.job.tokens()], device)
    }

    fn call(&self, inputs: &[Tensor<4>; 3]) -> Result<Vec<Tensor<1>>, AttentionError> {
        let [query, key, value] = inputs;
        let out = match self.job.sizes[0].len() {
            1 if self.job.windows.is_none() => {
                let lengths: Vec<_> = self.job.sizes.iter().map(|size| size[0]).collect();
                let options = AttentionOptions::new()
                    .with_causal(self.job.is_causal[0])
                    .with_scale(self.args.scale)
                    .with_strategy(self.args.strategy);
                let [query, key, value] = inputs.clone();
                try_attention_packed(query, key, value, &Lengths::new(lengths), options)?.out
            }
            1 => self.windows(inputs, try_na1d_packed)?,
            2 => self.windows(inputs, try_na2d_packed)?,
            _ => self.windows(inputs, try_na3d_packed)?,
        };
        Ok(passes::results(out.flatten(0, 3), [query, key, value]))
    }
}

impl Timed<'_> {
    fn windows<const N: usize>(
        &self,
        [query, key, value]: &[Tensor<4>; 3],
        operator: impl Fn(
            Tensor<4>,
            Tensor<4>,
            Tensor<4>,
            &Spaces<N>,
            NeighborhoodOptions<N>,
        ) -> Result<burn_natten::AttentionOutput, AttentionError>,
    ) -> Result<Tensor<4>, AttentionError> {
        let sequences = || 0..self.job.sizes.len();
        let spaces = sequences().map(|sequence| self.job.space(sequence)).collect::<Vec<_>>();
        let windows = sequences().filter_map(|sequence| self.job.window(sequence));
        let spaces = Spaces::new(spaces).with_windows(windows.collect::<Vec<_>>());
        let options = NeighborhoodOptions::new([2; N])
            .with_causal(self.job.causal())
            .with_scale(self.args.scale)
            .with_strategy(self.args.strategy);
        let (query, key, value) = (query.clone(), key.clone(), value.clone());
        Ok(operator(query, key, value, &spaces, options)?.out)
    }
}
