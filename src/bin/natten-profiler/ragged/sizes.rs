//! The file of `--ragged`, and what it comes to.

use std::collections::BTreeSet;
use std::path::Path;

use burn_natten::plan::{Sizes, Windows};
use burn_natten::{Problem, Window};
use serde_json::json;

use crate::args::Args;
use crate::failure::Failure;
use crate::print::json::text;
use crate::print::table;
use crate::request::{self, per_axis, usage};
use crate::units::{axes, count, si};

/// Flags that packed batches have no use for.
pub const WITHOUT: [&str; 8] = [
    "input_size",
    "batch_size",
    "problem",
    "add_kv",
    "bias",
    "block_sparse",
    "native_sparse",
    "target",
];

/// A packed batch.
#[derive(Clone, Debug)]
pub struct Job {
    /// Tokens along each axis, of as many axes each.
    pub sizes: Vec<Vec<usize>>,
    /// A window for each, no larger than its space; `None` for dense attention of sequences.
    pub windows: Option<Vec<[[usize; 3]; 3]>>,
    pub is_causal: Vec<bool>,
    /// What is computed of each.
    pub problems: Vec<Problem>,
}

impl Job {
    /// What the flags ask for, if it is a packed batch.
    pub fn find(args: &Args) -> Result<Option<Self>, Failure> {
        let Some(path) = &args.ragged else { return Ok(None) };
        let sizes = read(path)?;
        let rank = sizes[0].len();
        let is_causal = per_axis("--causal", &args.causal, rank, false)?;
        // A batch of one, without additional tokens and bias: their flags are refused.
        let common = request::sizes(args);
        if args.window_size.is_empty() {
            if rank > 1 {
                let text = format!("--window-size: is missing, give that of {rank} axes");
                return Err(Failure::Usage(text));
            }
            let of = |size: &Vec<usize>| {
                common.dense(size[0], size[0], is_causal[0], args.scale).map_err(usage)
            };
            let problems = sizes.iter().map(of).collect::<Result<_, _>>()?;
            return Ok(Some(Self { sizes, windows: None, is_causal, problems }));
        }
        let padded = |sizes: &[usize]| {
            let mut padded = [1; 3];
            padded[3 - rank..].copy_from_slice(sizes);
            padded
        };
        let of = |flag: &str, values: &[usize]| {
            per_axis(flag, values, rank, 1).map(|values| padded(&values))
        };
        let window = Window::<3>::new(of("--window-size", &args.window_size)?)
            .with_stride(of("--stride", &args.stride)?)
            .with_dilation(of("--dilation", &args.dilation)?);
        let (mut windows, mut problems) = (vec![], vec![]);
        for size in &sizes {
            let own = window.within(padded(size));
            let [kernel_size, stride, dilation] = [own.kernel_size(), own.stride(), own.dilation()];
            let windows_of = Windows {
                kernel_size: &kernel_size[3 - rank..],
                stride: &stride[3 - rank..],
                dilation: &dilation[3 - rank..],
                is_causal: &is_causal,
            };
            problems.push(common.neighborhood(size, windows_of, args.scale).map_err(usage)?);
            windows.push([kernel_size, stride, dilation]);
        }
        Ok(Some(Self { sizes, windows: Some(windows), is_causal, problems }))
    }

    /// Tokens of all.
    pub fn tokens(&self) -> usize {
        self.sizes.iter().map(|size| size.iter().product::<usize>()).sum()
    }

    /// Tokens along each axis of a sequence.
    pub fn space<const N: usize>(&self, sequence: usize) -> [usize; N] {
        last(&self.sizes[sequence])
    }

    /// The window of a sequence, if there are windows.
    pub fn window<const N: usize>(&self, sequence: usize) -> Option<Window<N>> {
        let [kernel_size, stride, dilation] = &self.windows.as_ref()?[sequence];
        let window = Window::new(last(kernel_size)).with_stride(last(stride));
        Some(window.with_dilation(last(dilation)))
    }

    /// Which axes are causal.
    pub fn causal<const N: usize>(&self) -> [bool; N] {
        std::array::from_fn(|axis| self.is_causal[axis])
    }

    /// Useful operations of the passes.
    pub fn flops(&self) -> [u64; 2] {
        let sum = |of: fn(&Problem) -> u64| self.problems.iter().map(of).sum();
        [sum(Problem::forward_flops), sum(Problem::backward_flops)]
    }

    /// The batch on one line.
    pub fn describe(&self, args: &Args) -> String {
        let what = match &self.windows {
            None => "dense".to_string(),
            Some(_) => {
                let words: Vec<_> = args.window_size.iter().map(usize::to_string).collect();
                format!("window {}", words.join(" x "))
            }
        };
        let shapes: BTreeSet<_> = self.sizes.iter().collect();
        let Sizes { heads, heads_kv, head_dim, .. } = request::sizes(args);
        format!(
            "{} sequences of {} shapes, {} tokens, {what}{}, heads {heads} on {heads_kv}, head_dim {head_dim}, {}",
            self.sizes.len(),
            shapes.len(),
            self.tokens(),
            if self.is_causal.contains(&true) { ", causal" } else { "" },
            args.dtype.name()
        )
    }

    /// What there is to compute.
    pub fn summary(&self, args: &Args) -> String {
        let [forward, backward] = self.flops();
        let pairs: u64 = self.problems.iter().map(|of| of.heads as u64 * of.pairs()).sum();
        if args.json {
            return text(json!({
                "problem": self.describe(args),
                "pairs": pairs,
                "forward": { "flops": forward },
                "backward": { "flops": backward },
            }));
        }
        let longest = self.sizes.iter().max_by_key(|size| size.iter().product::<usize>());
        table::facts(&[
            ("problem", self.describe(args)),
            ("largest", longest.map(|size| axes(size, " x ")).unwrap_or_default()),
            ("scores", count(pairs)),
            ("FLOP, forward", si(forward as f64, "")),
            ("FLOP, backward", si(backward as f64, "")),
        ])
    }
}

/// The last numbers.
fn last<const N: usize>(sizes: &[usize]) -> [usize; N] {
    std::array::from_fn(|axis| sizes[sizes.len() - N + axis])
}

/// The sizes in a file, one a line, its numbers apart by blanks, commas or an x.
fn read(path: &Path) -> Result<Vec<Vec<usize>>, Failure> {
    let fail = |text: String| Failure::Usage(format!("--ragged {}: {text}", path.display()));
    let file =
        std::fs::read_to_string(path).map_err(|error| fail(format!("cannot be read, {error}")))?;
    let mut sizes: Vec<Vec<usize>> = vec![];
    for (number, line) in file.lines().enumerate() {
        let words = line.split([' ', '\t', ',', 'x']).filter(|word| !word.is_empty());
        let size: Vec<usize> = words
            .map(|word| word.parse().ok().filter(|length| *length > 0))
            .collect::<Option<_>>()
            .ok_or_else(|| {
                fail(format!("line {} is '{line}', must be 1 to 3 numbers from 1 on", number + 1))
            })?;
        if size.is_empty() {
            continue;
        }
        let expected = sizes.first().map_or(size.len(), Vec::len);
        if size.len() > 3 || size.len() != expected {
            let (number, bound) = (number + 1, expected.min(3));
            return Err(fail(format!(
                "line {number} has {} numbers, must have {bound}",
                size.len()
            )));
        }
        sizes.push(size);
    }
    match sizes.is_empty() {
        true => Err(fail("has no sizes, must have at least 1".to_string())),
        false => Ok(sizes),
    }
}
