//! Flags of sparse attention, and what they come to.

use burn_natten::plan::{Sizes, SparsePlan, Target};
use burn_natten::{Axis, BlockSparse, Context, NativeSparseAttentionOptions, Problem};
use clap::Args as Flags;

use crate::args::{Args, TUNING};
use crate::failure::Failure;
use crate::request::{per_axis, sizes, usage};
use crate::units::axes;
use crate::values;

const HEADING: &str = "Sparse attention";

/// What is listed, or selected.
#[derive(Flags, Clone, Debug)]
#[command(next_help_heading = HEADING)]
pub struct Sparse {
    /// Block-sparse attention: so many blocks of keys for each block of queries, by chance
    #[arg(long, value_name = "N", value_parser = values::at_least::<1>)]
    #[arg(conflicts_with_all = WITHOUT, conflicts_with_all = TUNING, conflicts_with_all = ["native_sparse", "window_size"])]
    #[arg(hide_short_help = true)]
    pub block_sparse: Option<usize>,

    /// Queries of a block, along each axis
    #[arg(long, value_name = "N", num_args = 1..=3, requires = "block_sparse")]
    #[arg(value_parser = values::at_least::<1>, default_value = "64", hide_short_help = true)]
    pub query_block: Vec<usize>,

    /// Keys of a block, along each axis
    #[arg(long, value_name = "N", num_args = 1..=3, requires = "block_sparse")]
    #[arg(value_parser = values::at_least::<1>, default_value = "64", hide_short_help = true)]
    pub key_block: Vec<usize>,

    /// Native sparse attention: causal, with compressed and selected blocks, and a --window-size
    #[arg(long, conflicts_with_all = WITHOUT, conflicts_with_all = TUNING, conflicts_with = "causal", hide_short_help = true)]
    pub native_sparse: bool,

    /// Tokens of a compressed block
    #[arg(long, value_name = "N", requires = "native_sparse", default_value_t = 32)]
    #[arg(hide_short_help = true)]
    pub cmp_block: usize,

    /// Tokens from one compressed block to the next
    #[arg(long, value_name = "N", requires = "native_sparse", default_value_t = 16)]
    #[arg(hide_short_help = true)]
    pub cmp_stride: usize,

    /// Tokens of a block that can be selected
    #[arg(long, value_name = "N", requires = "native_sparse", default_value_t = 64)]
    #[arg(hide_short_help = true)]
    pub slc_block: usize,

    /// Blocks that are selected
    #[arg(long, value_name = "N", requires = "native_sparse", default_value_t = 16)]
    #[arg(hide_short_help = true)]
    pub num_selected: usize,

    /// Queries that share a list
    #[arg(long, value_name = "N", requires = "native_sparse", default_value_t = 1)]
    #[arg(hide_short_help = true)]
    pub query_tile: usize,

    /// Lists by chance in place of selected ones, which share so many percent with their neighbors'
    #[arg(long, value_name = "PERCENT", requires = "native_sparse", conflicts_with_all = ["dry_run", "decode"])]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=100), hide_short_help = true)]
    pub agree: Option<u8>,

    /// Super-blocks of compressed blocks that a query sees [default: all]
    #[arg(long, value_name = "N", requires = "native_sparse", hide_short_help = true)]
    pub cmp_top: Option<usize>,

    /// One more token behind those of --input-size, which are in a cache
    #[arg(long, requires = "native_sparse", conflicts_with_all = ["backprop", "dry_run"])]
    #[arg(hide_short_help = true)]
    pub decode: bool,
}

/// Flags that sparse attention has no use for.
const WITHOUT: [&str; 5] = ["problem", "stride", "dilation", "add_kv", "bias"];

/// A problem of sparse attention.
#[derive(Clone, Debug)]
pub enum Task {
    /// Lists by chance.
    Blocks(Box<BlockSparse>),
    /// Lists by scores.
    Native(Box<NativeSparseAttentionOptions>),
}

/// What is to be explained or measured.
#[derive(Clone, Debug)]
pub struct Job {
    pub task: Task,
    pub sizes: Sizes,
    /// Tokens along each axis.
    pub space: Vec<usize>,
}

impl Job {
    /// What the flags ask for, if it is sparse attention.
    pub fn find(args: &Args) -> Result<Option<Self>, Failure> {
        let flags = &args.sparse;
        if flags.block_sparse.is_none() && !flags.native_sparse {
            return Ok(None);
        }
        let space = args.input_size.clone();
        if space.is_empty() {
            let text = "--input-size: is missing, give the tokens of 1 to 3 axes";
            return Err(Failure::Usage(text.to_string()));
        }
        let sizes = sizes(args);
        let task = match flags.block_sparse {
            Some(entries) => Task::Blocks(Box::new(blocks(args, &sizes, entries)?)),
            None => Task::Native(Box::new(native(args)?)),
        };
        Ok(Some(Self { task, sizes, space }))
    }

    /// What would run on `target`.
    pub fn explain(&self, args: &Args, target: Target) -> Result<SparsePlan, Failure> {
        let dtype = args.dtype.dtype();
        let plan = match &self.task {
            Task::Blocks(sparse) => {
                SparsePlan::block_sparse(sparse, dtype, target, args.strategy, Context::new())
            }
            Task::Native(options) => {
                SparsePlan::native_sparse(self.sizes, self.space[0], options, dtype, target)
            }
        };
        plan.map_err(usage)
    }

    /// The problem on one line.
    pub fn describe(&self, args: &Args) -> String {
        let what = match &self.task {
            Task::Blocks(sparse) => {
                let own = |block: [usize; 3]| axes(&block[3 - self.space.len()..], " x ");
                format!(
                    "{} of {} blocks of {} keys for {} queries{}",
                    sparse.entries,
                    sparse.key_blocks(),
                    own(sparse.key_block),
                    own(sparse.query_block),
                    if sparse.problem.axes.iter().any(|axis| axis.is_causal) {
                        ", causal"
                    } else {
                        ""
                    }
                )
            }
            Task::Native(_) => {
                let Sparse {
                    cmp_block,
                    cmp_stride,
                    slc_block,
                    num_selected,
                    query_tile,
                    cmp_top,
                    agree,
                    ..
                } = args.sparse;
                let top = cmp_top.map(|top| format!(" in {top} super-blocks")).unwrap_or_default();
                let chance =
                    agree.map(|percent| format!(" by chance, {percent} % as for its neighbor"));
                let chance = chance.unwrap_or_default();
                format!(
                    "{}native sparse attention, {cmp_block} tokens a compressed block, one every {cmp_stride}{top}, {num_selected} \
                     blocks of {slc_block} selected for {query_tile}{chance}, window {}",
                    if args.sparse.decode { "one more in " } else { "" },
                    window(args)
                )
            }
        };
        let Sizes { batch, heads, heads_kv, head_dim, head_dim_v, .. } = self.sizes;
        format!(
            "{} tokens, {what}, batch {batch}, heads {heads} on {heads_kv}, head_dim {head_dim} and {head_dim_v}, {}",
            axes(&self.space, " x "),
            args.dtype.name()
        )
    }
}

/// Tokens of the window.
pub(super) fn window(args: &Args) -> usize {
    args.window_size.first().copied().unwrap_or(512)
}

fn blocks(args: &Args, sizes: &Sizes, entries: usize) -> Result<BlockSparse, Failure> {
    let (rank, flags) = (args.input_size.len(), &args.sparse);
    // Checks heads and the scale.
    let tokens = args.input_size.iter().product();
    let problem = sizes.dense(tokens, tokens, false, args.scale).map_err(usage)?;
    let causal = per_axis("--causal", &args.causal, rank, false)?;
    let along = args.input_size.iter().zip(causal);
    let axes: Vec<Axis> =
        along.map(|(tokens, is_causal)| Axis::dense(*tokens, *tokens, is_causal)).collect();
    let query_block = per_axis("--query-block", &flags.query_block, rank, 64)?;
    let key_block = per_axis("--key-block", &flags.key_block, rank, 64)?;
    let problem: Problem = problem.with_axes(axes);
    let sparse = BlockSparse::new(problem, query_block, key_block);
    let most = sparse.key_blocks();
    if entries > most {
        let text = format!("--block-sparse: is {entries}, must be at most {most} (blocks of keys)");
        return Err(Failure::Usage(text));
    }
    Ok(sparse.with_lists(sizes.heads_kv, entries))
}

fn native(args: &Args) -> Result<NativeSparseAttentionOptions, Failure> {
    for (flag, count) in
        [("--input-size", args.input_size.len()), ("--window-size", args.window_size.len())]
    {
        if count > 1 {
            let text = format!("{flag}: has {count} values, must have 1 for --native-sparse");
            return Err(Failure::Usage(text));
        }
    }
    let flags = &args.sparse;
    Ok(NativeSparseAttentionOptions::new()
        .with_cmp_block(flags.cmp_block)
        .with_cmp_stride(flags.cmp_stride)
        .with_slc_block(flags.slc_block)
        .with_num_selected(flags.num_selected)
        .with_query_tile(flags.query_tile)
        .with_cmp_top(flags.cmp_top)
        .with_window(window(args))
        .with_scale(args.scale)
        .with_strategy(args.strategy))
}
