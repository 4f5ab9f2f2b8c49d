//! Sparse attention on a device.

use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_natten::block_lists::{self, BlockGrid};
use burn_natten::plan::Target;
use burn_natten::{
    AttentionError, BlockSparse, BlockSparseOptions, BlockSparseOutput, try_block_sparse1d,
    try_block_sparse2d, try_block_sparse3d, try_native_sparse_attention,
};

use super::flags::{Job, Task};
use super::{agreeing, parts};
use crate::args::Args;
use crate::device;
use crate::failure::Failure;
use crate::passes::{self, Found};

/// Times the forward pass, and both passes by autodiff where the flags ask for the backward pass; of native sparse attention its steps,
/// too.
pub fn run(job: &Job, args: &Args) -> Result<Found, Failure> {
    let device = device::open(args.device, args.dtype)?;
    let target = Target::of(&device).unwrap_or_else(|| args.device.backend.target());
    let plan = job.explain(args, target)?;
    let forward: u64 = plan.steps.iter().map(|step| step.forward.flops).sum();
    let backward: u64 = plan.steps.iter().map(|step| step.backward.flops).sum();
    let agree = args.sparse.agree;
    let given = agree.map(|percent| agreeing::lists(job, args, percent, &device)).transpose()?;
    let given = given.as_ref();
    let mut found = passes::run(&Timed { job, args, given }, args, &device, [forward, backward])?;
    if let Task::Native(options) = &job.task {
        found.passes.extend(parts::run(job, options, given, &plan, args, &device)?);
    }
    Ok(found)
}

/// What is timed.
struct Timed<'a> {
    job: &'a Job,
    args: &'a Args,
    /// Lists in place of selected ones.
    given: Option<&'a TensorData>,
}

impl passes::Call for Timed<'_> {
    type Inputs = Inputs;

    fn inputs(&self, device: &Device) -> Inputs {
        Inputs::new(self, device)
    }

    fn call(&self, inputs: &Inputs) -> Result<Vec<Tensor<1>>, AttentionError> {
        let out = inputs.call(self.job, self.args)?;
        Ok(passes::results(out, [&inputs.query, &inputs.key, &inputs.value]))
    }
}

/// What is attended with.
struct Inputs {
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    /// Gates, for each branch, as a layer has them.
    gates: Tensor<4>,
    blocks: Option<Tensor<4, Int>>,
}

/// A sigmoid's.
fn gates(args: &Args, shape: [usize; 4], device: &Device) -> Tensor<4> {
    let gates = sigmoid(passes::random::<4>(args, shape, device)).detach();
    if device.is_autodiff() { gates.require_grad() } else { gates }
}

impl Inputs {
    fn new(&Timed { job, args, given }: &Timed, device: &Device) -> Self {
        let (sizes, tokens) = (job.sizes, job.space.iter().product());
        let [query, key, value] = passes::tensors(args, [sizes.batch, tokens], device);
        Self {
            query,
            key,
            value,
            gates: gates(args, [sizes.batch, tokens, sizes.heads, 3], device),
            blocks: match &job.task {
                Task::Blocks(sparse) => Some(lists(sparse, device)),
                Task::Native(_) => given.map(|lists| Tensor::from_data(lists.clone(), device)),
            },
        }
    }

    /// The outputs.
    fn call(&self, job: &Job, args: &Args) -> Result<Tensor<1>, AttentionError> {
        Ok(match (&job.task, &self.blocks) {
            (Task::Blocks(sparse), Some(blocks)) => match job.space.len() {
                1 => self.blocks::<1, 4>(job, sparse, blocks, args)?,
                2 => self.blocks::<2, 5>(job, sparse, blocks, args)?,
                _ => self.blocks::<3, 6>(job, sparse, blocks, args)?,
            },
            (Task::Native(options), blocks) => {
                let [query, key, value] = [&self.query, &self.key, &self.value].map(Tensor::clone);
                let gates = self.gates.clone();
                let options = (**options).clone().with_nonnegative_gates(true);
                let options = options.with_blocks(blocks.clone());
                let output = try_native_sparse_attention(query, key, value, gates, options)?;
                output.out.flatten(0, 3)
            }
            (Task::Blocks(_), None) => Tensor::zeros([0], &self.query.device()),
        })
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
