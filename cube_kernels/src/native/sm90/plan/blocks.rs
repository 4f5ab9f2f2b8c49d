//! From block-sparse attention to schedules.

use std::sync::{Arc, LazyLock, Mutex};

use super::{BackwardPlan, backward, unsupported};
use crate::choices::{Choices, remembered};
use crate::native::blocks::{LONGEST, LONGEST_SLOW, LONGEST_STEPS};
use crate::native::sm90::schedule::TILE;
use crate::native::sm90::{Element, Gradients, Listed, Mask, Pass, Schedule, Union};
use crate::{BlockSparse, MAX_RANK};

/// Columns of the smallest box: rows of shared memory after which the swizzle repeats.
const LEAST_BOX: usize = 8;
/// Boxes of a step of two tiles, where they are the smallest.
const MOST_BOXES_OF_STEP: u64 = (2 * TILE / LEAST_BOX) as u64;
/// Least share of a tile's rows, and of a step's columns, that a block fills.
const LEAST_FILL: usize = 8;
/// Time of a step, where two warpgroups share rows, relative to that of one for both: each loads its columns for itself.
const SHARED: f64 = 1.15;
/// Time of a box of columns besides its columns, in columns: several loads are one by one.
const BOX: usize = 4;

/// A box of tokens and heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeadBox {
    heads: usize,
    tokens: [usize; MAX_RANK],
}

impl HeadBox {
    fn volume(&self) -> usize {
        self.heads * self.tokens.iter().product::<usize>()
    }

    /// How many cover a block and so many heads.
    fn count(&self, block: [usize; MAX_RANK], heads: usize) -> usize {
        let along = |axis: usize| block[axis].div_ceil(self.tokens[axis]);
        heads / self.heads * (0..MAX_RANK).map(along).product::<usize>()
    }

    /// All of them, with extents that are powers of two and no larger than a tile, and with heads that divide so many.
    fn all(heads: usize) -> impl Iterator<Item = Self> {
        let powers = || (0..).map(|bits| 1 << bits).take_while(|extent| *extent <= TILE);
        let divisors = (1..=heads.min(TILE)).filter(move |count| heads.is_multiple_of(*count));
        divisors
            .flat_map(move |heads| {
                powers().flat_map(move |z| {
                    powers()
                        .flat_map(move |y| powers().map(move |x| Self { heads, tokens: [z, y, x] }))
                })
            })
            .filter(|of| of.volume() <= TILE)
    }

    /// Of equally good ones, that with few heads and long lines.
    fn order(&self) -> [usize; 3] {
        let [_, y, x] = self.tokens;
        [self.heads, TILE - x, TILE - y]
    }

    /// The box of rows that leaves fewest of a tile's rows idle.
    fn of_rows(block: [usize; MAX_RANK], heads: usize) -> Self {
        let best =
            Self::all(heads).min_by_key(|of| (of.count(block, heads), of.volume(), of.order()));
        best.unwrap_or(Self { heads: 1, tokens: [1, 1, TILE] })
    }

    /// The box of columns that takes the least time.
    fn of_columns(block: [usize; MAX_RANK], heads: usize) -> Self {
        let fits = |of: &Self| of.volume().is_power_of_two() && of.volume() >= LEAST_BOX;
        let time = |of: &Self| of.count(block, heads) * (of.volume() + BOX);
        let best = Self::all(heads).filter(fits).min_by_key(|of| (time(of), of.order()));
        best.unwrap_or(Self { heads: 1, tokens: [1, 1, TILE] })
    }
}

/// What rows and columns are, of a pass.
struct Sides {
    /// Extents of blocks, no longer than the axes.
    rows: [usize; MAX_RANK],
    columns: [usize; MAX_RANK],
    /// Heads that share a list, of rows and of columns.
    row_heads: usize,
    column_heads: usize,
}

impl Sides {
    fn new(sparse: &BlockSparse, pass: Pass) -> Self {
        let axes = sparse.problem.axes;
        let queries = [0, 1, 2].map(|axis| sparse.query_block[axis].min(axes[axis].queries));
        let keys = [0, 1, 2].map(|axis| sparse.key_block[axis].min(axes[axis].keys));
        let heads = sparse.heads_of_list();
        match pass {
            Pass::Forward | Pass::Queries => {
                Self { rows: queries, columns: keys, row_heads: heads, column_heads: 1 }
            }
            Pass::Keys => Self { rows: keys, columns: queries, row_heads: 1, column_heads: heads },
        }
    }

    fn row_box(&self) -> HeadBox {
        HeadBox::of_rows(self.rows, self.row_heads)
    }

    fn column_box(&self) -> HeadBox {
        HeadBox::of_columns(self.columns, self.column_heads)
    }
}

/// Why the kernels cannot compute block-sparse attention; `None` if they can.
pub fn unsupported_blocks(sparse: &BlockSparse) -> Option<String> {
    // Both types have the same kernels.
    let tiled = unsupported_tiles(sparse)?;
    Union::of(sparse, Element::F16).is_err().then_some(tiled)
}

/// Why no kernel of any kind can.
pub(in crate::native::sm90) fn unsupported_lists(sparse: &BlockSparse) -> Option<String> {
    let problem = &sparse.problem;
    if let Some(reason) = unsupported(problem) {
        return Some(reason);
    }
    if sparse.list_heads == 0 || !problem.heads.is_multiple_of(sparse.list_heads) {
        let (lists, heads) = (sparse.list_heads, problem.heads);
        return Some(format!("lists for {lists} heads are none for {heads} heads"));
    }
    for (index, axis) in problem.axes.iter().enumerate() {
        let (length, bound) =
            (axis.queries.max(axis.keys), if index == 2 { LONGEST } else { LONGEST_SLOW });
        if length > bound {
            return Some(format!("an axis has {length} tokens, above {bound}"));
        }
        let (step, end) = (sparse.steps[index], axis.keys.saturating_mul(sparse.steps[index]));
        if axis.is_causal && end > LONGEST_STEPS {
            return Some(format!(
                "{} keys with a step of {step} end behind {LONGEST_STEPS} tokens",
                axis.keys
            ));
        }
    }
    None
}

/// Why those with tiles of 64 rows cannot.
fn unsupported_tiles(sparse: &BlockSparse) -> Option<String> {
    if let Some(reason) = unsupported_lists(sparse) {
        return Some(reason);
    }
    let problem = &sparse.problem;
    let sides = Sides::new(sparse, Pass::Forward);
    let (rows, columns) = (sides.row_box(), sides.column_box());
    if rows.volume() < LEAST_FILL {
        let (block, heads, filled) =
            (&sparse.query_block[MAX_RANK - problem.rank()..], sides.row_heads, rows.volume());
        return Some(format!(
            "a query_block of {block:?} and the {heads} heads that share its lists fill {filled} rows of a tile of {TILE}, fewer than {LEAST_FILL}"
        ));
    }
    let volume: usize = sides.columns.iter().product();
    if volume * LEAST_FILL < columns.volume() * columns.count(sides.columns, 1) * 2 {
        let block = &sparse.key_block[MAX_RANK - problem.rank()..];
        return Some(format!(
            "a key_block of {block:?} has no box of {LEAST_BOX} keys or more that it fills by a quarter"
        ));
    }
    [Pass::Forward, Pass::Keys].into_iter().find_map(|pass| {
        let count = counted(sparse, pass);
        (count > i32::MAX as u64).then(|| {
            format!("32-bit numbers cannot count up to {count} boxes of listed blocks, or tiles")
        })
    })
}

/// No fewer than the boxes of columns that the lists of a pass come to, or the tiles of its rows.
fn counted(sparse: &BlockSparse, pass: Pass) -> u64 {
    let sides = Sides::new(sparse, pass);
    let (rows, columns) = (sides.row_box(), sides.column_box());
    let (heads, blocks) = match pass {
        Pass::Keys => (sparse.problem.heads_kv.max(sparse.list_heads), sparse.key_blocks()),
        _ => (sparse.list_heads, sparse.query_blocks()),
    };
    let lists = [sparse.problem.batch, heads, blocks].map(|count| count as u64);
    let lists = lists.into_iter().fold(1, u64::saturating_mul);
    let boxes = columns.count(sides.columns, columns.heads) as u64;
    let listed = (sparse.list_elements() as u64).saturating_mul(boxes);
    // A step of each list may not be full.
    let items = listed.saturating_add(lists.saturating_mul(MOST_BOXES_OF_STEP));
    items.max(lists.saturating_mul(rows.count(sides.rows, sides.row_heads) as u64))
}

/// The shapes of CTAs for vectors of up to `dim` elements, each with the time that it takes for a row and a column, relative to the
/// others'; and whether they are late.
fn timed_shapes(dim: usize, pass: Pass) -> Vec<([usize; 3], bool, f64)> {
    match (pass, dim) {
        (Pass::Forward, ..=64) => {
            vec![([1, 2, 2], false, 1.0), ([2, 2, 1], false, 1.1)]
        }
        (Pass::Forward, 65..=128) => vec![([2, 2, 1], false, 1.0), ([1, 1, 2], false, 1.6)],
        (Pass::Forward, _) => vec![([2, 1, 1], false, 1.0)],
        (Pass::Queries, ..=64) => vec![([1, 2, 2], false, 1.0)],
        // Two CTAs of one warpgroup, for blocks of 64 queries or keys, have too few registers; one of two that share rows has not.
        (Pass::Queries, 65..=128) => vec![([2, 1, 1], false, 1.0)],
        (Pass::Keys, ..=64) => vec![([1, 1, 2], true, 1.0)],
        (Pass::Keys, 65..=128) => vec![([2, 1, 1], true, 1.0)],
        _ => vec![([1, 1, 1], false, 1.0)],
    }
}

/// Every schedule for a pass of a problem that is supported, the fastest first.
pub fn block_candidates(
    sparse: &BlockSparse,
    element: Element,
    pass: Pass,
    gradients: Gradients,
) -> Vec<Schedule> {
    let problem = &sparse.problem;
    let sides = Sides::new(sparse, pass);
    let (rows, columns) = (sides.row_box(), sides.column_box());
    let members = rows.count(sides.rows, sides.row_heads);
    let (q_tile, kv_tile) = match pass {
        Pass::Forward | Pass::Queries => (rows.tokens, columns.tokens),
        Pass::Keys => (columns.tokens, rows.tokens),
    };
    let plain = Schedule {
        q_tile,
        kv_tile,
        mask: Mask::ByItem,
        listed: Some(Listed { row_heads: rows.heads, column_heads: columns.heads }),
        ..Schedule::plain(problem, element, pass, gradients)
    };
    let mut timed: Vec<(f64, Schedule)> = vec![];
    for ([warpgroups, blocks, ctas], is_late, time) in
        timed_shapes(problem.head_dim.max(problem.head_dim_v), pass)
    {
        // Two warpgroups can share their rows, where results are sums.
        let can_share = pass != Pass::Forward && warpgroups == 2;
        for shares_rows in [false, true].into_iter().filter(|shares| can_share || !shares) {
            let schedule = Schedule { warpgroups, blocks, ctas, shares_rows, is_late, ..plain };
            // Warpgroups without rows.
            let idle = members.next_multiple_of(schedule.row_tiles()) as f64 / members as f64;
            let shared = if shares_rows { SHARED } else { 1.0 };
            timed.extend(schedule.with_stages().map(|schedule| (time * idle * shared, schedule)));
        }
    }
    timed.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    timed.into_iter().map(|(_, schedule)| schedule).collect()
}

/// What a choice depends on besides the problem.
type How = (Element, [[usize; MAX_RANK]; 3], usize);

fn how(sparse: &BlockSparse, element: Element) -> How {
    (element, [sparse.query_block, sparse.key_block, sparse.steps], sparse.list_heads)
}

fn chosen<T: Clone>(
    choices: &Choices<How, T>,
    sparse: &BlockSparse,
    element: Element,
    choose: impl FnOnce() -> Option<T>,
) -> Result<T, String> {
    if let Some(reason) = unsupported_tiles(sparse) {
        return Err(reason);
    }
    remembered(choices, &sparse.problem, how(sparse, element), choose)
        .ok_or_else(|| "no schedule fits".to_string())
}

/// The schedule of block-sparse attention with tiles of 64 rows, chosen once for a problem. Where queries have lists of their own, the
/// kernels of [`Union`] come before it.
///
/// # Errors
///
/// Why there is none.
pub fn planned_blocks(sparse: &BlockSparse, element: Element) -> Result<Schedule, String> {
    static KNOWN: Choices<How, Schedule> = LazyLock::new(Mutex::default);
    chosen(&KNOWN, sparse, element, || {
        block_candidates(sparse, element, Pass::Forward, Gradients::NONE).into_iter().next()
    })
}

/// Those of its gradients, chosen once for a problem.
///
/// # Errors
///
/// Why there are none.
pub fn planned_blocks_backward(
    sparse: &BlockSparse,
    element: Element,
) -> Result<Arc<BackwardPlan>, String> {
    static KNOWN: Choices<How, Arc<BackwardPlan>> = LazyLock::new(Mutex::default);
    chosen(&KNOWN, sparse, element, || {
        let of = |pass: Pass| -> Option<Vec<Schedule>> {
            let kernels = backward::kernels(&sparse.problem, pass).into_iter();
            kernels
                .map(|gradients| {
                    block_candidates(sparse, element, pass, gradients).into_iter().next()
                })
                .collect()
        };
        Some(Arc::new(BackwardPlan {
            slopes: None,
            queries: of(Pass::Queries)?,
            keys: of(Pass::Keys)?,
            additional: vec![],
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, Problem};

    fn line(tokens: usize, heads: usize, dim: usize, block: usize) -> BlockSparse {
        let problem = Problem::new([Axis::dense(tokens, tokens, false)], heads, dim);
        BlockSparse::new(problem, [block], [block]).with_lists(heads, 8)
    }

    fn names(sparse: &BlockSparse) -> Vec<String> {
        let forward = planned_blocks(sparse, Element::Bf16).expect("is supported");
        let backward = planned_blocks_backward(sparse, Element::Bf16).expect("is supported");
        let schedules = std::iter::once(&forward).chain(backward.schedules());
        schedules
            .inspect(|schedule| assert!(schedule.fits_blocks(sparse), "{schedule}"))
            .map(|schedule| schedule.to_string())
            .collect()
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        let reason = |sparse: &BlockSparse| unsupported_blocks(sparse).expect("a reason");
        // Blocks of a token and of 8 keys: every list has all of them.
        let problem = Problem::new([Axis::dense(1 << 17, 1 << 17, true)], 16, 64).with_heads_kv(1);
        let most = BlockSparse::new(problem, [1], [8]).with_lists(1, 1 << 13);
        assert_eq!(unsupported_blocks(&most), None);
        assert_eq!(
            planned_blocks(&most.with_lists(1, 1 << 14), Element::F16).expect_err("a reason"),
            "32-bit numbers cannot count up to 2149580800 boxes of listed blocks, or tiles"
        );
        assert_eq!(reason(&most.with_lists(0, 4)), "lists for 0 heads are none for 16 heads");
        assert_eq!(reason(&most.with_lists(3, 4)), "lists for 3 heads are none for 16 heads");
    }

    #[test]
    fn blocks_are_planned_as_ever() {
        let grouped = |queries: usize, keys: usize| {
            let problem = Problem::new([Axis::dense(4096, 4096, true)], 64, 128).with_heads_kv(4);
            BlockSparse::new(problem, [queries], [keys]).with_lists(4, 16)
        };
        let space = [30, 48, 80].map(|length| Axis::dense(length, length, false));
        let tiles = BlockSparse::new(Problem::new(space, 24, 128), [6, 8, 8], [6, 8, 8]);
        let cases = [
            (
                line(1 << 16, 24, 128, 128),
                [
                    "sm90_forward_bf16_d128_q64_k64_2w2b3s1c_x_listed",
                    "sm90_queries_bf16_d128_q64_k64_2w1b4s1c_x_listed",
                    "sm90_keys_bf16_d128_q64_k64_2w1b4s1c_x_late_listed",
                ],
            ),
            (
                line(4096, 16, 64, 64),
                [
                    "sm90_forward_bf16_d64_q64_k64_1w2b3s2c_x_listed",
                    "sm90_queries_bf16_d64_q64_k64_1w2b3s2c_x_listed",
                    "sm90_keys_bf16_d64_q64_k64_1w1b4s2c_x_late_listed",
                ],
            ),
            (
                grouped(1, 64),
                [
                    "sm90_forward_bf16_d128_q1_k64_1w1b3s2c_x_listed_rh16_causal_x",
                    "sm90_queries_bf16_d128_q1_k64_2w1b4s1c_x_shared_listed_rh16_causal_x",
                    "sm90_keys_bf16_d128_q1_k64_2w1b4s1c_x_late_shared_listed_ch16_causal_x",
                ],
            ),
            (
                tiles.with_lists(24, 27),
                [
                    "sm90_forward_bf16_d128_q1x8x8_k1x8x8_2w2b3s1c_x_listed",
                    "sm90_queries_bf16_d128_q1x8x8_k1x8x8_2w1b4s1c_x_listed",
                    "sm90_keys_bf16_d128_q1x8x8_k1x8x8_2w1b4s1c_x_late_listed",
                ],
            ),
        ];
        for (sparse, expected) in cases {
            assert_eq!(names(&sparse), expected);
        }
    }

    #[test]
    fn what_has_no_boxes_is_refused_in_words() {
        let reason =
            |sparse: &BlockSparse| planned_blocks(sparse, Element::F16).expect_err("is refused");
        let mut few = line(4096, 2, 64, 64);
        few.query_block[2] = 1;
        let text = "a query_block of [1] and the 1 heads that share its lists fill 1 rows of a tile of 64, fewer than 8";
        assert_eq!(reason(&few), text);
        let mut thin = line(4096, 2, 64, 64);
        thin.key_block[2] = 1;
        assert_eq!(
            reason(&thin),
            "a key_block of [1] has no box of 8 keys or more that it fills by a quarter"
        );
        assert!(
            reason(&line(1 << 26, 1, 64, 64))
                .starts_with("an axis has 67108864 tokens, above 67108736")
        );
        assert!(reason(&line(100, 1, 12, 64)).starts_with("head_dim is 12"));
        let far = BlockSparse {
            problem: line(1 << 20, 2, 64, 64).problem.with_axes([Axis::dense(9, 1 << 20, true)]),
            ..few
        };
        let mut far = far.with_step(1 << 11);
        far.query_block[2] = 8;
        assert!(reason(&far).contains("with a step of 2048 end behind 1073741824 tokens"));
    }
}
