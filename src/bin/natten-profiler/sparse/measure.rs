//! Sparse attention on a device.

use burn::tensor::{Device, Distribution, Int, Tensor};
use burn_natten::block_lists::{self, BlockGrid};
use burn_natten::plan::Target;
use burn_natten::profile::{Repeats, Timing, time};
use burn_natten::{
    AttentionError, BlockSparse, BlockSparseOptions, BlockSparseOutput, try_block_sparse1d,
    try_block_sparse2d, try_block_sparse3d, try_native_sparse_attention,
};

use super::flags::{Job, Task};
use crate::args::Args;
use crate::device;
use crate::failure::Failure;
use crate::memory::Gauge;
use crate::request::usage;

/// Seed of inputs and lists.
const SEED: u64 = 42;

/// What was measured.
pub struct Found {
    /// The device.
    pub name: String,
    pub passes: Vec<Measurement>,
}

/// Some passes together.
pub struct Measurement {
    pub name: &'static str,
    pub timing: Timing,
    /// Operations that are useful, in all steps.
    pub flops: u64,
    /// Bytes that a call takes at most, with its inputs and outputs.
    pub memory: u64,
}

/// Times the forward pass, and both passes by autodiff where the flags ask for the backward pass.
pub fn run(job: &Job, args: &Args) -> Result<Found, Failure> {
    if cfg!(debug_assertions) {
        eprintln!("warning: not built with --release, so that times say little");
    }
    let device = device::open(args.device, args.dtype)?;
    let target = Target::of(&device).unwrap_or_else(|| args.device.backend.target());
    let plan = job.explain(args, target)?;
    let forward: u64 = plan.steps.iter().map(|step| step.forward.flops).sum();
    let backward: u64 = plan.steps.iter().map(|step| step.backward.flops).sum();
    let repeats =
        Repeats { warmup: args.warmup_steps, samples: args.repeats, ..Repeats::default() };
    let mut passes = vec![measure(job, args, &device, ("forward", forward), &repeats)?];
    #[cfg(feature = "autodiff")]
    if args.backprop {
        let (device, both) = (device.clone().autodiff(), forward + backward);
        passes.push(measure(job, args, &device, ("forward and backward", both), &repeats)?);
    }
    #[cfg(not(feature = "autodiff"))]
    if args.backprop {
        let text = "--backprop: is not in this build, add --features autodiff to cargo's flags";
        return Err(Failure::Usage(text.to_string()));
    }
    Ok(Found { name: device::describe(args.device, &device), passes })
}

fn measure(
    job: &Job,
    args: &Args,
    device: &Device,
    (name, flops): (&'static str, u64),
    repeats: &Repeats,
) -> Result<Measurement, Failure> {
    let failed = |error: AttentionError| match error {
        AttentionError::Execution { .. } => Failure::Run(error.to_string()),
        error => usage(error),
    };
    let sync = || device.sync().map_err(|error| Failure::Run(error.to_string()));
    device.memory_cleanup();
    sync()?;
    let gauge = Gauge::new();
    let inputs = Inputs::new(job, args, device);
    let results = inputs.call(job, args).map_err(failed)?;
    sync()?;
    let memory = match device.memory_pool_usage() {
        Some(usage) => usage.bytes_reserved,
        None => gauge.bytes(),
    };
    drop(results);
    let timing = time(device, repeats, || inputs.call(job, args)).map_err(failed)?;
    Ok(Measurement { name, timing, flops, memory })
}

/// What is attended with.
struct Inputs {
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    /// Gates, for each branch.
    gates: Tensor<4>,
    blocks: Option<Tensor<4, Int>>,
}

impl Inputs {
    fn new(job: &Job, args: &Args, device: &Device) -> Self {
        let (sizes, tokens) = (job.sizes, job.space.iter().product());
        device.seed(SEED);
        let normal = |heads: usize, dim: usize| {
            let options = (device, args.dtype.dtype());
            let normal = Distribution::Normal(0.0, 1.0);
            let tensor = Tensor::random([sizes.batch, tokens, heads, dim], normal, options);
            if device.is_autodiff() { tensor.require_grad() } else { tensor }
        };
        Self {
            query: normal(sizes.heads, sizes.head_dim),
            key: normal(sizes.heads_kv, sizes.head_dim),
            value: normal(sizes.heads_kv, sizes.head_dim_v),
            gates: normal(sizes.heads, 3),
            blocks: match &job.task {
                Task::Blocks(sparse) => Some(lists(sparse, device)),
                Task::Native(_) => None,
            },
        }
    }

    /// One call: outputs, or gradients on a device that tracks.
    fn call(&self, job: &Job, args: &Args) -> Result<Vec<Tensor<1>>, AttentionError> {
        let out = match (&job.task, &self.blocks) {
            (Task::Blocks(sparse), Some(blocks)) => match job.space.len() {
                1 => self.blocks::<1, 4>(job, sparse, blocks, args)?,
                2 => self.blocks::<2, 5>(job, sparse, blocks, args)?,
                _ => self.blocks::<3, 6>(job, sparse, blocks, args)?,
            },
            (Task::Native(options), _) => {
                let [query, key, value] = [&self.query, &self.key, &self.value].map(Tensor::clone);
                let gates = self.gates.clone();
                let output =
                    try_native_sparse_attention(query, key, value, gates, (**options).clone())?;
                output.out.flatten(0, 3)
            }
            (Task::Blocks(_), None) => Tensor::zeros([0], &self.query.device()),
        };
        #[cfg(feature = "autodiff")]
        if self.query.is_require_grad() {
            let gradients = out.sum().backward();
            let of = |leaf: &Tensor<4>| leaf.grad(&gradients).map(|grad| grad.flatten(0, 3));
            return Ok([&self.query, &self.key, &self.value].into_iter().filter_map(of).collect());
        }
        Ok(vec![out])
    }

    fn blocks<const N: usize, const D: usize>(
        &self,
        job: &Job,
        sparse: &BlockSparse,
        blocks: &Tensor<4, Int>,
        args: &Args,
    ) -> Result<Tensor<1>, AttentionError>
    where
        BlockSparseOptions<N>: Call<D>,
    {
        let own =
            |sizes: [usize; 3]| -> [usize; N] { std::array::from_fn(|axis| sizes[3 - N + axis]) };
        let causal = sparse.problem.axes.map(|axis| usize::from(axis.is_causal));
        let options = BlockSparseOptions::<N>::new(own(sparse.query_block), own(sparse.key_block))
            .with_causal(own(causal).map(|is_causal| is_causal == 1))
            .with_scale(args.scale)
            .with_strategy(args.strategy);
        let spread = |tensor: &Tensor<4>| -> Tensor<D> {
            let [batch, _, heads, dim] = tensor.dims();
            let shape = [&[batch], job.space.as_slice(), &[heads, dim]].concat();
            tensor.clone().reshape(burn::tensor::Shape::from(shape))
        };
        let inputs = [&self.query, &self.key, &self.value].map(spread);
        options.call(inputs, blocks.clone())
    }
}

/// The operator of a rank.
trait Call<const D: usize> {
    fn call(
        self,
        inputs: [Tensor<D>; 3],
        blocks: Tensor<4, Int>,
    ) -> Result<Tensor<1>, AttentionError>;
}

macro_rules! call {
    ($rank:literal, $d:literal, $operator:ident) => {
        impl Call<$d> for BlockSparseOptions<$rank> {
            fn call(
                self,
                [query, key, value]: [Tensor<$d>; 3],
                blocks: Tensor<4, Int>,
            ) -> Result<Tensor<1>, AttentionError> {
                let BlockSparseOutput { out, .. } = $operator(query, key, value, blocks, self)?;
                Ok(out.flatten(0, $d - 1))
            }
        }
    };
}

call!(1, 4, try_block_sparse1d);
call!(2, 5, try_block_sparse2d);
call!(3, 6, try_block_sparse3d);

/// Lists by chance, for each head of the keys.
fn lists(sparse: &BlockSparse, device: &Device) -> Tensor<4, Int> {
    // Of the product of the axes: lists know no shape.
    let grid = BlockGrid::new([sparse.query_blocks()], [1]).with_keys([sparse.key_blocks()], [1]);
    let heads = [sparse.problem.batch, sparse.list_heads];
    block_lists::random(&grid, heads, sparse.entries, device)
}
