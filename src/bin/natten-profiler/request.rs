//! From flags to a problem, and to the plans that fit them.

use burn_natten::plan::{Candidate, Explanation, Sizes, Target, Windows, explain};
use burn_natten::profile::Workload;
use burn_natten::{AttentionError, Context, NeighborhoodOptions, Strategy};
use burn_natten_kernels::catalogue::{self, Published};
use burn_natten_kernels::{Axis, MAX_RANK, Problem};

use crate::args::Args;
use crate::failure::Failure;
use crate::units::{axes, describe};
use crate::values::ElementType;

/// What is to be explained or measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// Name in the catalogue.
    pub name: Option<&'static str>,
    /// What others take for it.
    pub published: Option<Published>,
    pub problem: Problem,
    pub dtype: ElementType,
    pub context: Context,
}

impl Request {
    pub fn new(args: &Args) -> Result<Self, Failure> {
        let (name, published, problem) = match &args.problem {
            Some(name) => {
                let Some(entry) = catalogue::find(name) else {
                    let text =
                        format!("--problem: '{name}' is not in the catalogue; --list shows it");
                    return Err(Failure::Usage(text));
                };
                let problem = entry.problem.with_additional(args.add_kv).with_bias(args.bias);
                if args.bias && problem.rank() == 1 && problem.axes[MAX_RANK - 1].is_dense() {
                    let text = format!("--bias: needs windows, which '{name}' has not");
                    return Err(Failure::Usage(text));
                }
                (Some(entry.name), entry.published, problem)
            }
            None => (None, None, problem(args)?),
        };
        let context = Context::new()
            .with_deterministic(args.deterministic)
            .with_allow_tf32(args.allow_tf32)
            .with_memory(args.memory.preference());
        Ok(Self { name, published, problem, dtype: args.dtype, context })
    }

    /// What would run on `target`, of all that fits the flags: the choice first.
    pub fn explain(&self, args: &Args, target: Target) -> Result<Explanation, Failure> {
        let (dtype, strategy) = (self.dtype.dtype(), args.strategy);
        let explanation = explain(&self.problem, dtype, target, strategy, self.context);
        let mut explanation = explanation.map_err(usage)?;
        if args.q_tile.is_empty() && args.kv_tile.is_empty() {
            return Ok(explanation);
        }
        // A strategy that is asked for by name leaves the schedules of its tier.
        let tier = (strategy != Strategy::Auto).then_some(explanation.chosen.tier);
        let eligible: Vec<_> = [explanation.chosen]
            .into_iter()
            .chain(explanation.alternatives)
            .filter(|candidate| tier.is_none_or(|tier| candidate.tier == tier))
            .collect();
        let mut fitting = eligible.iter().filter(|candidate| self.fits(candidate, args)).cloned();
        let Some(chosen) = fitting.next() else {
            return Err(self.no_such_tile(args, &eligible));
        };
        explanation.chosen = chosen;
        explanation.alternatives = fitting.collect();
        Ok(explanation)
    }

    /// The problem on one line.
    pub fn describe(&self) -> String {
        let name = self.name.map(|name| format!("{name}: ")).unwrap_or_default();
        format!("{name}{}, {}", describe(&self.problem), self.dtype.name())
    }

    /// What to time for a candidate.
    pub fn workload(&self, candidate: &Candidate) -> Workload {
        Workload {
            problem: self.problem,
            dtype: self.dtype.dtype(),
            strategy: candidate.strategy,
            context: candidate.context,
        }
    }

    /// The windows as options of an operator of `N` axes.
    pub fn options<const N: usize>(&self, args: &Args) -> NeighborhoodOptions<N> {
        let axes = &self.problem.axes[MAX_RANK - N..];
        let of = |value: fn(&Axis) -> usize| -> [usize; N] {
            std::array::from_fn(|axis| value(&axes[axis]))
        };
        NeighborhoodOptions::new(of(|axis| axis.kernel_size))
            .with_stride(of(|axis| axis.stride))
            .with_dilation(of(|axis| axis.dilation))
            .with_causal(std::array::from_fn(|axis| axes[axis].is_causal))
            .with_scale(self.problem.scale)
            .with_strategy(args.strategy)
    }

    fn fits(&self, candidate: &Candidate, args: &Args) -> bool {
        candidate.tiling.is_some_and(|tiling| {
            [(&args.q_tile, tiling.q_tile), (&args.kv_tile, tiling.kv_tile)]
                .into_iter()
                .all(|(asked, tile)| asked.is_empty() || self.tile(asked) == Some(tile))
        })
    }

    /// A tile with an extent along every axis; `None` if it has more or fewer than the problem.
    fn tile(&self, asked: &[usize]) -> Option<[usize; MAX_RANK]> {
        let rank = self.problem.rank();
        let mut tile = [1; MAX_RANK];
        if asked.len() == rank {
            tile[MAX_RANK - rank..].copy_from_slice(asked);
        } else if let [all] = asked {
            tile[MAX_RANK - rank..].fill(*all);
        } else {
            return None;
        }
        Some(tile)
    }

    fn no_such_tile(&self, args: &Args, candidates: &[Candidate]) -> Failure {
        let asked = |flag: &str, values: &[usize]| {
            let words: Vec<_> = values.iter().map(usize::to_string).collect();
            if values.is_empty() { String::new() } else { format!("{flag} {} ", words.join(" ")) }
        };
        let rank = self.problem.rank();
        let mut valid: Vec<String> = Vec::new();
        for candidate in candidates {
            valid.push(match candidate.tiling {
                Some(tiling) => format!(
                    "{:?} has --q-tile {} with --kv-tile {}",
                    candidate.tier,
                    axes(&tiling.q_tile[MAX_RANK - rank..], " "),
                    axes(&tiling.kv_tile[MAX_RANK - rank..], " "),
                ),
                None => format!("{:?} has no tiles", candidate.tier),
            });
        }
        Failure::Usage(format!(
            "{}{}fits no schedule; {}",
            asked("--q-tile", &args.q_tile),
            asked("--kv-tile", &args.kv_tile),
            valid.join(", ")
        ))
    }
}

/// An error of the library as one about flags.
pub fn usage(error: AttentionError) -> Failure {
    let text = error.to_string();
    for (argument, flag) in [
        ("kernel_size:", "--window-size:"),
        ("stride:", "--stride:"),
        ("dilation:", "--dilation:"),
        ("scale:", "--scale:"),
        ("strategy:", "--strategy:"),
        ("cmp_stride:", "--cmp-stride:"),
        ("cmp_block:", "--cmp-block:"),
        ("slc_block:", "--slc-block:"),
        ("num_selected:", "--num-selected:"),
        ("query_tile:", "--query-tile:"),
        ("cmp_top:", "--cmp-top:"),
        ("query: has dtype", "--dtype: is"),
        ("query: has", "--heads:"),
    ] {
        if let Some(rest) = text.strip_prefix(argument) {
            return Failure::Usage(format!("{flag}{rest}"));
        }
    }
    Failure::Usage(text)
}

fn problem(args: &Args) -> Result<Problem, Failure> {
    let space = &args.input_size;
    if space.is_empty() {
        let text = "--input-size: is missing, give the tokens of 1 to 3 axes, or a --problem";
        return Err(Failure::Usage(text.to_string()));
    }
    let sizes = sizes(args);
    let problem = if args.window_size.is_empty() {
        let tokens = space.iter().product();
        sizes.dense(tokens, tokens, dense_causality(args)?, args.scale)
    } else {
        let rank = space.len();
        let windows = Windows {
            kernel_size: &per_axis("--window-size", &args.window_size, rank, 0)?,
            stride: &per_axis("--stride", &args.stride, rank, 1)?,
            dilation: &per_axis("--dilation", &args.dilation, rank, 1)?,
            is_causal: &per_axis("--causal", &args.causal, rank, false)?,
        };
        sizes.neighborhood(space, windows, args.scale)
    };
    problem.map_err(usage)
}

/// Whether dense attention is causal; there are no windows for the other flags.
fn dense_causality(args: &Args) -> Result<bool, Failure> {
    for (flag, is_given) in [
        ("--stride", !args.stride.is_empty()),
        ("--dilation", !args.dilation.is_empty()),
        ("--bias", args.bias),
    ] {
        if is_given {
            return Err(Failure::Usage(format!("{flag}: needs a --window-size")));
        }
    }
    match args.causal[..] {
        [] => Ok(false),
        [is_causal] => Ok(is_causal),
        _ => {
            let text = "--causal: takes 1 value without a --window-size, for all tokens in a row";
            Err(Failure::Usage(text.to_string()))
        }
    }
}

/// A value for every axis.
pub fn per_axis<T: Copy>(
    flag: &str,
    values: &[T],
    rank: usize,
    default: T,
) -> Result<Vec<T>, Failure> {
    match values {
        [] => Ok(vec![default; rank]),
        [all] => Ok(vec![*all; rank]),
        _ if values.len() == rank => Ok(values.to_vec()),
        _ => Err(Failure::Usage(format!(
            "{flag}: has {} values, must have 1 or {rank} as --input-size or --ragged",
            values.len()
        ))),
    }
}

/// The sizes of tensors that the flags ask for, but for their tokens.
pub fn sizes(args: &Args) -> Sizes {
    Sizes {
        batch: args.batch_size,
        heads: args.heads,
        heads_kv: args.heads_kv.unwrap_or(args.heads),
        head_dim: args.head_dim,
        head_dim_v: args.dim_value.unwrap_or(args.head_dim),
        additional: args.add_kv,
        has_bias: args.bias,
    }
}
