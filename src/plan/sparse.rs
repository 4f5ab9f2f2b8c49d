//! Sparse attention: what would run, step by step, and what each step costs.

use burn::tensor::DType;
use burn_natten_kernels::cost::{Cost, DeviceModel};
use burn_natten_kernels::{Axis, BlockSparse, Problem};

use super::{Sizes, Target};
use crate::backend::Plan;
use crate::backend::block_sparse::BlockSparsePlan;
use crate::options::AttentionOptions;
use crate::problem::native_sparse;
use crate::{AttentionError, Context, NativeSparseAttentionOptions, Pooling, Strategy, Tier};

/// Bytes of an entry of a list.
const ENTRY: u64 = 8;

/// A step of a sparse attention. [`SparsePlan`] has an example.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SparseStep {
    /// What it computes, in a word or two.
    pub name: &'static str,
    /// Which implementation computes it.
    pub tier: Tier,
    /// Pairs of a query and a key that have a score, of all samples and heads. Lists count as full of blocks that the query sees.
    pub pairs: u64,
    /// The forward pass.
    pub forward: Cost,
    /// The backward pass; nothing for a step without gradients.
    pub backward: Cost,
}

/// What would run for a problem of sparse attention.
///
/// Times are bounds by [`Target::device_model`], as those of [`explain`](super::explain): no kernel is faster than its operations and its tensors
/// allow.
///
/// ```rust
/// use burn::tensor::DType;
/// use burn_natten::plan::{Sizes, SparsePlan, Target};
/// use burn_natten::{NativeSparseAttentionOptions, Tier};
///
/// # fn main() -> Result<(), burn_natten::AttentionError> {
/// let sizes = Sizes { heads: 64, heads_kv: 4, ..Sizes::new(128) };
/// let options = NativeSparseAttentionOptions::new();
/// let plan = SparsePlan::native_sparse(sizes, 65536, &options, DType::BF16, Target::Gpu)?;
/// let names: Vec<_> = plan.steps.iter().map(|step| step.name).collect();
/// assert_eq!(names, ["compress", "compressed", "scores and lists", "selected", "window", "gates"]);
/// assert_eq!(plan.steps[3].tier, Tier::Portable);
/// // 2.2 TFLOP in the selected branch, where dense causal attention takes 70.
/// assert_eq!(plan.steps[3].forward.flops / 100_000_000_000, 21);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SparsePlan {
    /// What is computed one after the other.
    pub steps: Vec<SparseStep>,
    /// The device that times were computed for.
    pub device: DeviceModel,
}

impl SparsePlan {
    /// Of block-sparse attention.
    ///
    /// ```rust
    /// use burn::tensor::DType;
    /// use burn_natten::plan::{SparsePlan, Target};
    /// use burn_natten::{Axis, BlockSparse, Context, Problem, Strategy, Tier};
    ///
    /// # fn main() -> Result<(), burn_natten::AttentionError> {
    /// let problem = Problem::new([Axis::dense(4096, 4096, false)], 8, 64);
    /// let sparse = BlockSparse::new(problem, [64], [64]).with_lists(8, 4);
    /// let (strategy, context) = (Strategy::Auto, Context::new());
    /// let plan = SparsePlan::block_sparse(&sparse, DType::F32, Target::Cpu, strategy, context)?;
    /// assert_eq!(plan.steps[0].tier, Tier::Flex);
    /// assert_eq!(plan.steps[0].pairs, 8 * 4096 * 4 * 64);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`explain`](super::explain).
    pub fn block_sparse(
        sparse: &BlockSparse,
        dtype: DType,
        target: Target,
        strategy: Strategy,
        context: Context,
    ) -> Result<Self, AttentionError> {
        is_float(dtype)?;
        let planner = Planner { target, dtype, strategy, context };
        let pairs = planner.listed_pairs(sparse);
        let step = planner.listed("block-sparse", sparse, pairs)?;
        Ok(Self { steps: vec![step], device: target.device_model() })
    }

    /// Of native sparse attention of whole sequences of `tokens`, with keys and values that its branches share. Gates count as given.
    ///
    /// # Errors
    ///
    /// Those of [`try_native_sparse_attention`](crate::try_native_sparse_attention) that need no tensor, and those of
    /// [`explain`](super::explain).
    pub fn native_sparse(
        sizes: Sizes,
        tokens: usize,
        options: &NativeSparseAttentionOptions,
        dtype: DType,
        target: Target,
    ) -> Result<Self, AttentionError> {
        is_float(dtype)?;
        native_sparse::sizes(options)?;
        native_sparse::strategy(options)?;
        let dense = sizes.dense(tokens, tokens, true, options.common.scale)?;
        let strategy = options.common.strategy;
        let context = options.common.context.unwrap_or_else(Context::current);
        let planner = Planner { target, dtype, strategy, context };
        let native = NativeSparse { planner, dense, tokens, options };
        let steps = vec![
            native.compress(),
            native.compressed()?,
            native.choice()?,
            native.selected()?,
            native.window()?,
            native.gates(),
        ];
        Ok(Self { steps, device: target.device_model() })
    }
}

fn is_float(dtype: DType) -> Result<(), AttentionError> {
    match dtype {
        DType::F64 | DType::F32 | DType::F16 | DType::BF16 => Ok(()),
        got => Err(AttentionError::UnsupportedDType { argument: "query", got, note: "" }),
    }
}

/// Where steps run.
#[derive(Clone, Copy)]
struct Planner {
    target: Target,
    dtype: DType,
    strategy: Strategy,
    context: Context,
}

impl Planner {
    /// A step of so many operations in each pass, and bytes that are read or written.
    fn step(
        &self,
        name: &'static str,
        tier: Tier,
        pairs: u64,
        passes: [[u64; 2]; 2],
    ) -> SparseStep {
        let device = self.target.device_model();
        // Of these kernels only TensorCore's and the native ones are on matrix units.
        let device = match tier {
            Tier::Flex | Tier::Portable => device.without_matrix_units(),
            _ => device,
        };
        let [forward, backward] =
            passes.map(|[flops, bytes]| Cost::new(flops, flops, bytes, &device));
        SparseStep { name, tier, pairs, forward, backward }
    }

    /// An attention of these pairs; lists, where there are some, are read as well.
    fn attention(
        &self,
        name: &'static str,
        tier: Tier,
        problem: &Problem,
        [pairs, entries]: [u64; 2],
    ) -> SparseStep {
        let flops = 2 * pairs * (problem.head_dim + problem.head_dim_v) as u64;
        let size = self.dtype.size();
        let forward = burn_natten_kernels::cost::forward_bytes(problem, size) + entries * ENTRY;
        let backward = burn_natten_kernels::cost::backward_bytes(problem, size) + entries * ENTRY;
        self.step(name, tier, pairs, [[flops, forward], [flops / 2 * 5, backward]])
    }

    /// Attention over windows, or all keys.
    fn dense(
        &self,
        name: &'static str,
        problem: Problem,
        pairs: u64,
    ) -> Result<SparseStep, AttentionError> {
        let capabilities = self.target.capabilities();
        let (plan, _) = Plan::on(capabilities, problem, self.dtype, self.strategy, self.context)?;
        Ok(self.attention(name, plan.forward.first(), &problem, [pairs, 0]))
    }

    /// Attention to listed blocks.
    fn listed(
        &self,
        name: &'static str,
        sparse: &BlockSparse,
        pairs: u64,
    ) -> Result<SparseStep, AttentionError> {
        let options =
            AttentionOptions::new().with_strategy(self.strategy).with_context(self.context);
        let capabilities = self.target.capabilities();
        let (plan, _) = BlockSparsePlan::on(capabilities, *sparse, self.dtype, &options)?;
        let entries = sparse.list_elements() as u64;
        Ok(self.attention(name, plan.ladder.first(), &sparse.problem, [pairs, entries]))
    }

    /// Pairs of full lists; along a causal axis no more than a query sees.
    fn listed_pairs(&self, sparse: &BlockSparse) -> u64 {
        let problem = &sparse.problem;
        let seen = |axis: usize| -> u64 {
            (0..problem.axes[axis].queries)
                .map(|query| sparse.keys_before(axis, query) as u64)
                .sum()
        };
        let most = (0..problem.axes.len()).map(seen).product::<u64>().min(sparse.most_pairs());
        most * (problem.batch * problem.heads) as u64
    }
}

/// Native sparse attention of whole sequences.
struct NativeSparse<'a> {
    planner: Planner,
    /// Dense causal attention of the same tensors.
    dense: Problem,
    tokens: usize,
    options: &'a NativeSparseAttentionOptions,
}

impl NativeSparse<'_> {
    /// Sums over all queries of all samples and heads.
    fn pairs(&self, keys: impl Fn(usize) -> usize) -> u64 {
        let sum: u64 = (0..self.tokens).map(|query| keys(query) as u64).sum();
        sum * (self.dense.batch * self.dense.heads) as u64
    }

    /// Tensor operations, of sums and products.
    fn compress(&self) -> SparseStep {
        let Problem { batch, heads_kv, head_dim, head_dim_v, .. } = self.dense;
        let sizes = &self.options.sizes;
        let blocks = sizes.compressed(self.tokens);
        let flops = |pooling: &Pooling, dim: usize| {
            let sums = sizes.cmp_block * dim;
            match pooling {
                Pooling::Mean => sums,
                Pooling::Weighted(_) => 2 * sums,
                Pooling::MeanProjected(_) => sums + 2 * dim * dim,
                Pooling::Linear(_) => 2 * sums * dim,
            }
        };
        let each =
            flops(&self.options.pool_key, head_dim) + flops(&self.options.pool_value, head_dim_v);
        let flops = (batch * heads_kv * blocks * each) as u64;
        let elements = batch * heads_kv * (self.tokens + blocks) * (head_dim + head_dim_v);
        let bytes = (elements * self.planner.dtype.size()) as u64;
        // Gradients of tokens and of weights.
        self.planner.step("compress", Tier::Reference, 0, [[flops, bytes], [2 * flops, 2 * bytes]])
    }

    /// As in `nsa::branches`: queries that see the same blocks are an axis of their own.
    fn compressed(&self) -> Result<SparseStep, AttentionError> {
        let sizes = &self.options.sizes;
        let blocks = sizes.compressed(self.tokens);
        let origin = -(self.options.first_seeing() as isize);
        let Some(top) = sizes.cmp_top else {
            let pairs = self.pairs(|query| sizes.compressed(query + 1));
            let stride = sizes.cmp_stride;
            let before = origin.rem_euclid(stride as isize) as usize;
            let groups = (before + self.tokens).div_ceil(stride);
            let axes = [Axis::dense(groups, blocks, true), Axis::dense(stride, 1, false)];
            return self.planner.dense("compressed", self.dense.with_axes(axes), pairs);
        };
        let pairs = self.pairs(|query| sizes.compressed(query + 1).min(top * sizes.cmp_group));
        let axis = Axis::dense(self.tokens, blocks, true).with_origin(origin);
        let sparse =
            BlockSparse::new(self.dense.with_axes([axis]), [sizes.query_tile], [sizes.cmp_group])
                .with_step(sizes.cmp_stride)
                .with_lists(self.dense.heads_kv, top);
        self.planner.listed("compressed", &sparse, pairs)
    }

    /// Scores of the first query of each tile, and the best of them.
    fn choice(&self) -> Result<SparseStep, AttentionError> {
        let Problem { batch, heads, heads_kv, head_dim, .. } = self.dense;
        let sizes = &self.options.sizes;
        let tiles = self.tokens.div_ceil(sizes.query_tile);
        let seen = |tile: usize| sizes.compressed(tile * sizes.query_tile + 1) as u64;
        let pairs = (0..tiles).map(seen).sum::<u64>() * (batch * heads) as u64;
        let keys = heads_kv * sizes.compressed(self.tokens);
        let read = batch * (tiles * heads + keys) * head_dim * self.planner.dtype.size();
        let entries = sizes.num_selected + sizes.cmp_top.unwrap_or(0);
        let written = (batch * tiles * heads_kv * entries) as u64 * ENTRY;
        let flops = 2 * pairs * head_dim as u64;
        let tier = self.direct()?;
        Ok(self.planner.step(
            "scores and lists",
            tier,
            pairs,
            [[flops, read as u64 + written], [0, 0]],
        ))
    }

    /// The tier of kernels that are a backend's own, if the strategy allows them.
    fn direct(&self) -> Result<Tier, AttentionError> {
        let Planner { target, dtype, strategy, context } = self.planner;
        let strategy = match strategy {
            Strategy::Reference => Strategy::Reference,
            _ => Strategy::Portable,
        };
        let (plan, _) = Plan::on(target.capabilities(), self.dense, dtype, strategy, context)?;
        Ok(plan.forward.first())
    }

    fn selected(&self) -> Result<SparseStep, AttentionError> {
        let sizes = &self.options.sizes;
        let pairs = self.pairs(|query| {
            let (first, last) = sizes.own(query / sizes.query_tile * sizes.query_tile);
            // Its own blocks up to it, and other ones.
            let own = query - first * sizes.slc_block + 1;
            let others = sizes.num_selected.saturating_sub(last - first + 1) * sizes.slc_block;
            (own + others).min(query + 1)
        });
        let axis = Axis::dense(self.tokens, self.tokens, true);
        let sparse =
            BlockSparse::new(self.dense.with_axes([axis]), [sizes.query_tile], [sizes.slc_block])
                .with_lists(self.dense.heads_kv, sizes.num_selected);
        self.planner.listed("selected", &sparse, pairs)
    }

    fn window(&self) -> Result<SparseStep, AttentionError> {
        let size = self.options.sizes.window;
        let pairs = self.pairs(|query| size.min(query + 1));
        let axis = match size {
            size if size >= self.tokens => Axis::dense(self.tokens, self.tokens, true),
            // Tensor operations, or none.
            0 | 1 => {
                return Ok(self.planner.attention(
                    "window",
                    Tier::Reference,
                    &self.dense,
                    [pairs, 0],
                ));
            }
            size => Axis::neighborhood(self.tokens, size).with_causal(true),
        };
        self.planner.dense("window", self.dense.with_axes([axis]), pairs)
    }

    /// The sum of the branches, each times its gate.
    fn gates(&self) -> SparseStep {
        let Problem { batch, heads, head_dim_v, .. } = self.dense;
        let rows = (batch * heads * self.tokens) as u64;
        let (dim, size) = (head_dim_v as u64, self.planner.dtype.size() as u64);
        let passes = [[6 * dim, (4 * dim + 3) * size], [12 * dim, (7 * dim + 6) * size]];
        let passes = passes.map(|pass| pass.map(|each| rows * each));
        self.planner.step("gates", Tier::Reference, 0, passes)
    }
}
