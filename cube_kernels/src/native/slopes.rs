//! Slopes, dS, that a kernel for keys leaves in memory for one for queries, which then computes neither scores nor dP: five products in place
//! of seven, for two bytes a pair of a query and a key to write and to read.
//!
//! They are kept in blocks of 64 keys and 64 queries, boxes at multiples of their extents, see `cuda/slopes.cuh`. In one axis windows have to be
//! made of whole blocks: those of dense attention and of causal one. In several axes, boxes of keys end with these, and who sees them begins
//! anywhere: the kernels sweep over whole boxes. Memory is bounded: where all heads are too many, some follow the others, in two lanes
//! that run beside each other.

#[cfg(feature = "cuda")]
pub(super) use launch::Slopes;

use std::ops::Range;

use crate::tiling::Tiling;
use crate::{Axis, MAX_RANK, Problem};

#[cfg(feature = "cuda")]
mod launch;

/// Keys of a block, and queries.
pub(crate) const BLOCK: usize = 64;
/// Bytes of a block: slopes are rounded to the 16 bits that products take.
pub(crate) const BLOCK_BYTES: usize = 2 * BLOCK * BLOCK;
/// Launches that have memory for slopes at the same time: while the last tiles of some heads leave multiprocessors idle, or slopes are
/// summed, which waits for memory, others have the keys of the next heads.
const LANES: usize = 2;

/// Lanes of so many heads of which some are launched at once.
pub(crate) fn lanes(heads: usize, at_once: usize) -> usize {
    LANES.min(heads / at_once.max(1)).max(1)
}

/// Where the blocks of a head lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocks {
    /// In one axis: those of a block of keys follow each other.
    Line {
        /// Blocks of keys.
        keys: usize,
        /// Blocks of queries that see a block of keys, but for the last ones of a causal axis.
        width: usize,
        /// The block of keys behind which each has one less than the one before.
        tail: usize,
    },
    /// In several: those of a box of queries follow each other.
    Boxes {
        /// Boxes of queries along each axis.
        queries: [usize; MAX_RANK],
        /// Most boxes of keys along each axis that one of queries sees.
        keys: [usize; MAX_RANK],
        /// Blocks that there are.
        count: usize,
        /// Whether what sees a box of keys begins with a box of queries.
        begins_whole: bool,
    },
}

impl Blocks {
    /// Those of a problem in such tiles; `None` if its windows are not made of whole blocks, or the kernels have more to do than slopes can
    /// say.
    pub fn of(problem: &Problem, tiling: &Tiling) -> Option<Self> {
        let is_plain = problem.additional == 0
            && !problem.has_bias
            && !problem.has_origin()
            && problem.axes.iter().all(|axis| axis.dilation == 1);
        let is_whole = [tiling.q_volume(), tiling.kv_volume()] == [BLOCK; 2];
        match problem.rank() {
            _ if !is_plain || !is_whole => None,
            1 => Self::of_line(&problem.axes[MAX_RANK - 1]),
            _ => Self::of_boxes(problem, tiling),
        }
    }

    fn of_line(axis: &Axis) -> Option<Self> {
        let (queries, keys) = (axis.queries.div_ceil(BLOCK), axis.keys.div_ceil(BLOCK));
        let width = match *axis {
            _ if axis.stride > 1 => return None,
            // A block of keys is seen from its own block of queries on.
            Axis { is_causal: true, kernel_size, .. } if axis.queries == axis.keys => {
                (BLOCK - 1 + kernel_size).div_ceil(BLOCK).min(queries)
            }
            axis if axis == Axis::dense(axis.queries, axis.keys, false) => queries,
            _ => return None,
        };
        let tail = if axis.is_causal { queries - width } else { keys };
        Some(Self::Line { keys, width, tail })
    }

    fn of_boxes(problem: &Problem, tiling: &Tiling) -> Option<Self> {
        let visitors = visitors(problem, tiling)?;
        let (mut queries, mut keys) = ([1; MAX_RANK], [1; MAX_RANK]);
        let mut begins_whole = true;
        for (index, axis) in problem.axes.iter().enumerate() {
            if !axis.keys.is_multiple_of(tiling.kv_tile[index]) {
                return None;
            }
            queries[index] = axis.queries.div_ceil(tiling.q_tile[index]);
            keys[index] = most_at_once(&visitors[index], queries[index]);
            begins_whole &= (0..axis.keys)
                .step_by(tiling.kv_tile[index])
                .all(|key| axis.seen_by(0, key).start.is_multiple_of(tiling.q_tile[index]));
        }
        Some(Self::Boxes { queries, keys, count: pairs(&visitors), begins_whole })
    }

    /// Places for the blocks of a head.
    pub fn of_head(&self) -> usize {
        match self {
            Self::Line { keys, width, tail } => {
                let last = keys - tail;
                keys * width - last * last.saturating_sub(1) / 2
            }
            Self::Boxes { queries, keys, .. } => queries.iter().chain(keys).product(),
        }
    }

    /// Blocks of a head that are written and read.
    pub fn count(&self) -> usize {
        match self {
            Self::Line { .. } => self.of_head(),
            Self::Boxes { count, .. } => *count,
        }
    }

    /// Pairs of boxes that a kernel for keys visits whose tiles have so many keys.
    pub fn visited(problem: &Problem, tiling: &Tiling) -> Option<usize> {
        visitors(problem, tiling).as_deref().map(pairs)
    }

    /// Bytes of a key head: the heads of its group each have their own.
    pub fn bytes(&self, problem: &Problem) -> usize {
        self.of_head() * problem.group_size() * BLOCK_BYTES
    }
}

/// Along each axis, the boxes of queries that see each one of keys; `None` if nobody sees some.
fn visitors(problem: &Problem, tiling: &Tiling) -> Option<Vec<Vec<Range<usize>>>> {
    let axes = problem.axes.iter().enumerate();
    axes.map(|(index, axis)| tiling.box_visitors(axis, index)).collect()
}

/// Pairs of boxes of which one sees the other.
fn pairs(visitors: &[Vec<Range<usize>>]) -> usize {
    visitors.iter().map(|axis| axis.iter().map(Range::len).sum::<usize>()).product()
}

/// Most ranges that one of so many numbers is in.
fn most_at_once(ranges: &[Range<usize>], numbers: usize) -> usize {
    let (mut begin, mut end) = (vec![0; numbers + 1], vec![0; numbers + 1]);
    for range in ranges {
        begin[range.start] += 1;
        end[range.end] += 1;
    }
    let open = begin.iter().zip(&end).scan(0, |open, (begin, end)| {
        *open = *open + begin - end;
        Some(*open)
    });
    open.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Tiling = Tiling::square([1, 1, BLOCK]);

    fn line(axis: Axis) -> Problem {
        Problem::new([axis], 1, 128)
    }

    /// By all pairs: a block has a place of its own if one of its queries sees one of its keys, and there are no other places.
    #[test]
    fn blocks_are_those_with_pairs() {
        let window =
            |length, kernel_size| Axis::neighborhood(length, kernel_size).with_causal(true);
        let axes = [
            Axis::dense(100, 300, false),
            Axis::dense(300, 64, false),
            Axis::dense(320, 320, true),
            Axis::dense(65, 65, true),
            window(700, 128),
            window(700, 129),
            window(700, 130),
            window(640, 577),
            window(256, 1),
        ];
        for axis in axes {
            let problem = line(axis);
            let blocks = Blocks::of(&problem, &LINE).expect("whole blocks");
            let Blocks::Line { width, tail, .. } = blocks else { panic!("{blocks:?}") };
            let mut places = std::collections::BTreeSet::new();
            for query in 0..axis.queries {
                let (start, length) = axis.window(query);
                for key in start..start + length {
                    let (key, query) = (key / BLOCK, query / BLOCK);
                    let m = key.saturating_sub(tail);
                    let ahead = if axis.is_causal { key } else { 0 };
                    places.insert((
                        key * width - m * m.saturating_sub(1) / 2 + query - ahead,
                        key,
                        query,
                    ));
                }
            }
            let numbers: Vec<_> = places.iter().map(|(place, ..)| *place).collect();
            assert_eq!(numbers, (0..blocks.of_head()).collect::<Vec<_>>(), "{axis:?}");
        }
    }

    /// By all pairs: no two blocks that one box of queries sees have the same place in its ring, and what is seen is what is counted.
    #[test]
    fn boxes_have_rings() {
        let window = |length, kernel_size, stride| {
            Axis::neighborhood(length, kernel_size).with_stride(stride)
        };
        let cases = [
            ([window(64, 24, 1), window(48, 20, 1)], [1, 8, 8], [1, 8, 8]),
            ([window(64, 33, 16), window(72, 40, 8)], [1, 8, 8], [1, 8, 8]),
            ([window(44, 32, 4), window(80, 48, 16)], [1, 8, 8], [1, 4, 16]),
            ([window(36, 9, 1).with_causal(true), window(51, 7, 3)], [1, 16, 4], [1, 4, 16]),
        ];
        for (axes, q_tile, kv_tile) in cases {
            let problem = Problem::new(axes, 1, 128);
            let tiling = Tiling { q_tile, kv_tile };
            let blocks = Blocks::of(&problem, &tiling);
            let divides = axes.iter().zip(&kv_tile[1..]).all(|(axis, side)| axis.keys % side == 0);
            let Some(Blocks::Boxes { queries, keys, count, .. }) = blocks else {
                assert!(!divides, "{axes:?}");
                continue;
            };
            let mut seen = 1;
            for (index, axis) in problem.axes.iter().enumerate() {
                let mut pairs = std::collections::BTreeSet::new();
                for query in 0..axis.queries {
                    let (start, length) = axis.window(query);
                    pairs.extend(
                        (start..start + length)
                            .map(|key| (query / q_tile[index], key / kv_tile[index])),
                    );
                }
                let places: std::collections::BTreeSet<_> =
                    pairs.iter().map(|(query, key)| (*query, key % keys[index])).collect();
                assert_eq!(places.len(), pairs.len(), "{axis:?}");
                assert!(places.iter().all(|(query, _)| *query < queries[index]));
                seen *= pairs.len();
            }
            assert_eq!(seen, count, "{axes:?}");
        }
    }

    #[test]
    fn windows_that_cut_blocks_have_none() {
        for axis in [
            Axis::neighborhood(300, 65),
            Axis::dense(300, 301, true),
            Axis::neighborhood(300, 64).with_causal(true).with_dilation(2),
            Axis::neighborhood(300, 64).with_stride(64),
        ] {
            assert_eq!(Blocks::of(&line(axis), &LINE), None, "{axis:?}");
        }
        let dense = line(Axis::dense(300, 300, false));
        for problem in [dense.with_additional(3), dense.with_bias(true)] {
            assert_eq!(Blocks::of(&problem, &LINE), None, "{problem:?}");
        }
    }
}
