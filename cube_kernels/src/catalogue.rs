//! The problems that benchmarks, tests, the profiler and the peers in other frameworks share.
//!
//! Published times were measured on one NVIDIA H200 in bf16: NATTEN 0.21.7 in its best
//! configuration and with its permutation of tokens, cuDNN's dense attention over all tokens, and
//! PyTorch's compiled `flex_attention` with the same mask.

use crate::{Axis, Problem};

/// Most floating-point operations of a forward pass in [`small`].
const SMALL_FLOPS: u64 = 1 << 29;

/// Milliseconds of the two passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Milliseconds {
    /// Forward pass.
    pub forward: f64,
    /// Backward pass alone.
    pub backward: f64,
}

/// Times of other implementations, on one H200 in bf16.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Published {
    /// cuDNN's dense attention over all tokens.
    pub cudnn: Option<Milliseconds>,
    /// NATTEN 0.21.7.
    pub natten: Option<Milliseconds>,
    /// PyTorch's compiled `flex_attention`.
    pub flex: Option<Milliseconds>,
}

/// A problem with a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry {
    /// Unique in the catalogue.
    pub name: &'static str,
    /// What is computed. The scale is `head_dim^-0.5`; no additional tokens.
    pub problem: Problem,
    /// What others take for it; `None` where nothing is published.
    pub published: Option<Published>,
    /// What this project means to reach on an H200 in bf16; `None` where it has set itself nothing.
    pub target: Option<Milliseconds>,
}

/// The problems as models pose them. Most need a GPU.
pub fn all() -> Vec<Entry> {
    ROWS.iter()
        .map(|row| Entry {
            name: row.names[0],
            problem: row.problem(),
            published: (row.published != Published::default()).then_some(row.published),
            target: row.target,
        })
        .collect()
}

/// The same kinds of problem for a CPU, named `<name>-small`.
///
/// Batch 1 and at most 2 heads (or one group of heads that share keys); then all lengths, kernel
/// sizes and strides are halved together until a forward pass takes at most 2^29 floating-point
/// operations. Lengths are rounded up, the rest down; a kernel size does not fall below 3 (or what
/// it was), a stride not below 1, a length not below `kernel_size * dilation`. Head dimension,
/// dilation and causality stay, and windows of all keys stay so.
pub fn small() -> Vec<Entry> {
    ROWS.iter()
        .map(|row| Entry {
            name: row.names[1],
            problem: shrunk(row.problem(), SMALL_FLOPS),
            published: None,
            target: None,
        })
        .collect()
}

/// The entry of [`all`] or [`small`] with this name.
///
/// ```rust
/// use burn_natten_kernels::catalogue;
///
/// let hunyuan = catalogue::find("hunyuan").expect("is in the catalogue");
/// assert_eq!(hunyuan.problem.axes.map(|axis| axis.kernel_size), [18, 24, 24]);
/// assert!(catalogue::find("hunyuan-small").is_some() && catalogue::find("nothing").is_none());
/// ```
pub fn find(name: &str) -> Option<Entry> {
    all().into_iter().chain(small()).find(|entry| entry.name == name)
}

/// A problem of the same kind whose forward pass takes at most `flops` floating-point operations,
/// or as few as the rules of [`small`] reach.
pub fn shrunk(mut problem: Problem, flops: u64) -> Problem {
    if problem.forward_flops() <= flops {
        return problem;
    }
    let group_size = problem.group_size();
    problem.batch = 1;
    problem.heads_kv = (2 / group_size).clamp(1, problem.heads_kv);
    problem.heads = problem.heads_kv * group_size;
    while problem.forward_flops() > flops {
        let axes = problem.axes.map(halve);
        if axes == problem.axes {
            break;
        }
        problem.axes = axes;
    }
    problem
}

fn halve(axis: Axis) -> Axis {
    if axis == Axis::UNIT {
        return axis;
    }
    if axis.kernel_size == axis.keys {
        let length = axis.keys.div_ceil(2).max(axis.keys.min(2));
        let stride = (axis.stride / 2).max(1);
        return Axis::dense(length, length, axis.is_causal).with_stride(stride);
    }
    let kernel_size = (axis.kernel_size / 2).max(axis.kernel_size.min(3));
    let least = (kernel_size * axis.dilation).max(kernel_size + 1);
    let length = axis.keys.div_ceil(2).max(least);
    let stride = (axis.stride / 2).max(1);
    Axis { queries: length, keys: length, kernel_size, stride, ..axis }
}

/// A line of the table; see [`row!`].
struct Row {
    names: [&'static str; 2],
    size: [usize; 3],
    axes: &'static [Axis],
    published: Published,
    target: Option<Milliseconds>,
}

impl Row {
    fn problem(&self) -> Problem {
        let [batch, heads, head_dim] = self.size;
        Problem::new(self.axes, heads, head_dim).with_batch(batch)
    }
}

/// Length, kernel size, stride, dilation.
const fn axis(length: usize, kernel_size: usize, stride: usize, dilation: usize) -> Axis {
    Axis::neighborhood(length, kernel_size).with_stride(stride).with_dilation(dilation)
}

const fn causal(axis: Axis) -> Axis {
    axis.with_causal(true)
}

/// `name, [batch, heads, head_dim], [axes], { published times }`, then the target.
macro_rules! row {
    ($name:literal, $size:expr, $axes:expr,
     { $($who:ident: ($forward:expr, $backward:expr)),* } $(, target ($to:expr, $from:expr))?) => {
        Row {
            names: [$name, concat!($name, "-small")],
            size: $size,
            axes: &$axes,
            published: Published {
                $($who: Some(Milliseconds { forward: $forward, backward: $backward }),)*
                ..NOTHING
            },
            target: row!(@target $(($to, $from))?),
        }
    };
    (@target) => { None };
    (@target ($forward:expr, $backward:expr)) => {
        Some(Milliseconds { forward: $forward, backward: $backward })
    };
}

const NOTHING: Published = Published { cudnn: None, natten: None, flex: None };

const ROWS: [Row; 20] = [
    row!("dense-4k", [4, 16, 128], [Axis::dense(4096, 4096, false)],
        { cudnn: (0.836, 2.77) }, target (0.78, 2.4)),
    row!("dense-16k", [1, 16, 128], [Axis::dense(16384, 16384, false)],
        { cudnn: (3.51, 10.3) }, target (2.95, 9.2)),
    row!("dense-16k-causal", [1, 16, 128], [Axis::dense(16384, 16384, true)],
        { cudnn: (1.75, 5.14) }, target (1.55, 4.6)),
    row!("dense-4k-d64", [4, 32, 64], [Axis::dense(4096, 4096, false)],
        { cudnn: (1.15, 3.07) }, target (1.0, 2.7)),
    row!("1d-32k-causal", [1, 24, 128], [causal(axis(32768, 2048, 1, 1))],
        { cudnn: (21.0, 61.0), natten: (2.04, 9.01) }, target (1.3, 3.6)),
    row!("1d-32k-one-head", [1, 1, 128], [axis(32768, 2048, 1, 1)],
        { cudnn: (0.80, 2.2), natten: (0.50, 1.02) }, target (0.08, 0.25)),
    row!("1d-32k-16-heads", [1, 16, 128], [axis(32768, 2048, 1, 1)],
        { flex: (1.56, 4.2) }),
    row!("flux", [1, 24, 128], [axis(256, 80, 1, 1); 2],
        { cudnn: (85.9, 241.0), natten: (17.5, 62.2) }, target (8.5, 26.0)),
    row!("flux-s16", [1, 24, 128], [axis(256, 80, 16, 1); 2],
        { cudnn: (87.0, 240.0), natten: (9.25, 49.9) }, target (7.0, 21.0)),
    row!("flux-d3", [1, 24, 128], [axis(256, 80, 1, 3); 2],
        { cudnn: (86.0, 241.0), natten: (17.9, 63.8) }, target (9.0, 28.0)),
    row!("hunyuan", [1, 24, 128], [axis(30, 18, 1, 1), axis(48, 24, 1, 1), axis(80, 24, 1, 1)],
        { cudnn: (269.0, 737.0), natten: (75.2, 260.0) }, target (30.0, 92.0)),
    row!("hunyuan-s", [1, 24, 128], [axis(30, 18, 16, 1), axis(48, 24, 8, 1), axis(80, 24, 8, 1)],
        { cudnn: (268.0, 737.0), natten: (25.9, 138.0) }, target (20.0, 60.0)),
    row!("cosmos", [1, 32, 128], [axis(16, 16, 1, 1), axis(44, 32, 4, 1), axis(80, 48, 16, 1)],
        { cudnn: (85.5, 236.0), natten: (60.1, 241.0) }, target (38.0, 105.0)),
    row!("cosmos-causal", [1, 32, 128],
        [axis(16, 8, 1, 1), axis(44, 16, 1, 1), causal(axis(80, 16, 1, 1))],
        { cudnn: (85.5, 236.0), natten: (9.92, 36.9) }, target (3.6, 11.0)),
    row!("nat-56", [64, 2, 64], [axis(56, 7, 1, 1); 2],
        { natten: (0.518, 1.43) }, target (0.10, 0.30)),
    row!("dinat-56-d8", [64, 2, 64], [axis(56, 7, 1, 8); 2],
        { natten: (0.452, 1.40) }, target (0.10, 0.30)),
    row!("flex-64", [16, 8, 64], [axis(64, 7, 1, 1); 2],
        { flex: (0.63, 1.62) }),
    row!("ltx-s1", [1, 32, 64], [axis(16, 3, 1, 1), axis(34, 7, 1, 1), axis(60, 7, 1, 1)],
        { natten: (2.51, 6.96) }, target (0.4, 1.2)),
    row!("ltx-s3", [1, 8, 64], [axis(31, 3, 1, 1), axis(68, 5, 1, 1), axis(120, 5, 1, 1)],
        { natten: (5.14, 13.9) }, target (0.8, 2.5)),
    row!("ltx-s5", [1, 4, 64], [axis(41, 11, 1, 1), axis(136, 11, 1, 1), axis(240, 11, 1, 1)],
        { natten: (54.4, 136.0) }, target (18.0, 50.0)),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn both() -> impl Iterator<Item = Entry> {
        all().into_iter().chain(small())
    }

    #[test]
    fn names_are_unique_and_found() {
        let names: HashSet<_> = both().map(|entry| entry.name).collect();
        assert_eq!(names.len(), 2 * ROWS.len());
        for entry in both() {
            assert_eq!(find(entry.name), Some(entry));
        }
        assert_eq!(find("no-such-problem"), None);
    }

    #[test]
    fn every_axis_is_one_that_the_operators_accept() {
        for Entry { name, problem, .. } in both() {
            assert!(
                (problem.scale * (problem.head_dim as f64).sqrt() - 1.0).abs() < 1e-12,
                "{name}"
            );
            let first = problem.axes.iter().position(|axis| *axis != Axis::UNIT);
            let first = first.expect("a problem has an axis");
            for axis in &problem.axes[first..] {
                assert_eq!(axis.queries, axis.keys, "{name}");
                assert!(axis.kernel_size >= 2, "{name}: {axis:?}");
                assert!((1..=axis.kernel_size).contains(&axis.stride), "{name}: {axis:?}");
                assert!(axis.dilation >= 1, "{name}: {axis:?}");
                assert!(axis.kernel_size * axis.dilation <= axis.keys, "{name}: {axis:?}");
            }
        }
    }

    #[test]
    fn small_problems_are_small_and_of_the_same_kind() {
        for (large, little) in all().into_iter().zip(small()) {
            assert_eq!(little.name, format!("{}-small", large.name));
            let (large, little) = (large.problem, little.problem);
            assert!(little.forward_flops() <= SMALL_FLOPS, "{little:?}");
            assert_eq!((little.batch, little.head_dim), (1, large.head_dim));
            for (large, little) in large.axes.iter().zip(&little.axes) {
                assert_eq!(little.is_full(), large.is_full());
                assert_eq!(little.is_causal, large.is_causal);
                assert_eq!(little.dilation, large.dilation);
                assert_eq!(little.kernel_size == little.keys, large.kernel_size == large.keys);
            }
        }
    }

    /// Without causality every query sees a whole window.
    #[test]
    fn windows_without_causality_are_whole() {
        for Entry { name, problem, .. } in both() {
            if problem.axes.iter().all(|axis| !axis.is_causal) {
                let window: usize = problem.axes.iter().map(|axis| axis.kernel_size).product();
                assert_eq!(problem.pairs(), (problem.queries() * window) as u64, "{name}");
            }
        }
    }

    /// Visible pairs along an axis, one by one from the definition.
    fn count(axis: &Axis) -> u64 {
        let (k, s, d) = (axis.kernel_size as i64, axis.stride as i64, axis.dilation as i64);
        let mut pairs = 0;
        for query in 0..axis.queries as i64 {
            let (group, q) = (query % d, query / d);
            let n = (axis.keys as i64 - group + d - 1) / d;
            let (start, end) = if axis.is_causal {
                let leader = (q / s * s + s - 1).min(n - 1);
                ((leader - k + 1).max(0), q + 1)
            } else {
                let leader = (q / s * s + s / 2).min(n - 1);
                let start = (leader - k / 2).max(0).min(n - k);
                (start, start + k)
            };
            let sees = |key: &i64| key % d == group && (start..end).contains(&(key / d));
            pairs += (0..axis.keys as i64).filter(sees).count() as u64;
        }
        pairs
    }

    #[test]
    fn pairs_match_a_count_one_by_one() {
        for name in ["flux-s16", "flux-d3", "hunyuan-s", "cosmos-causal", "dinat-56-d8", "ltx-s3"] {
            let problem = find(name).expect("a problem").problem;
            assert_eq!(problem.pairs(), problem.axes.iter().map(count).product::<u64>(), "{name}");
        }
        for Entry { name, problem, .. } in small() {
            assert_eq!(problem.pairs(), problem.axes.iter().map(count).product::<u64>(), "{name}");
        }
    }

    #[test]
    fn shrinking_ends_where_the_rules_do() {
        let mut problem = find("ltx-s5").expect("a problem").problem;
        (problem.heads, problem.heads_kv) = (8, 2);
        let tiny = shrunk(problem, 1);
        assert_eq!((tiny.batch, tiny.heads, tiny.heads_kv), (1, 4, 1));
        assert_eq!(tiny.axes, [axis(4, 3, 1, 1); 3]);
        let dense = find("dense-4k").expect("a problem").problem;
        assert_eq!(shrunk(dense, 1).axes[2], Axis::dense(2, 2, false));
        assert_eq!(shrunk(problem, u64::MAX), problem);
    }

    #[test]
    fn the_published_figures_give_the_published_rates() {
        // dense-16k: 1 * 16 heads * 16384^2 pairs * 4 * 128 operations in 3.51 ms.
        let entry = find("dense-16k").expect("a problem");
        let cudnn = entry.published.and_then(|published| published.cudnn).expect("a time");
        let rate = entry.problem.forward_flops() as f64 / cudnn.forward * 1e-9;
        assert!((rate - 626.5).abs() < 1.0, "{rate} TFLOP/s");
    }
}
