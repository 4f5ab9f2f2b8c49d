//! Slopes, dS, that a kernel for keys leaves in memory for one for queries, which then computes neither scores nor dP: five products in place
//! of seven, for two bytes a pair of a query and a key to write and to read.
//!
//! They are kept in blocks of 64 keys and 64 queries, see `cuda/slopes.cuh`, where windows are made of whole blocks: of dense attention in
//! one axis and of causal one. Memory is bounded: where all heads are too many, some follow the others.

#[cfg(feature = "cuda")]
pub(super) use launch::Slopes;

use crate::{Axis, MAX_RANK, Problem};

#[cfg(feature = "cuda")]
mod launch;

/// Keys of a block, and queries.
pub(crate) const BLOCK: usize = 64;
/// Bytes of a block: slopes are rounded to the 16 bits that products take.
pub(crate) const BLOCK_BYTES: usize = 2 * BLOCK * BLOCK;
/// Most bytes of memory for slopes.
pub(crate) const MOST_BYTES: usize = 1 << 30;

/// Where the blocks of a head lie: those of a block of keys follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// Blocks of keys.
    pub keys: usize,
    /// Blocks of queries that see a block of keys, but for the last ones of a causal axis.
    pub width: usize,
    /// The block of keys behind which each has one less than the one before.
    pub tail: usize,
}

impl Blocks {
    /// Those of a problem; `None` if its windows are not made of whole blocks, or the kernels have more to do than slopes can say.
    pub fn of(problem: &Problem) -> Option<Self> {
        let axis = problem.axes[MAX_RANK - 1];
        let is_plain = problem.rank() == 1
            && axis.dilation == 1
            && axis.stride == 1
            && axis.origin == 0
            && problem.additional == 0
            && !problem.has_bias;
        let (queries, keys) = (axis.queries.div_ceil(BLOCK), axis.keys.div_ceil(BLOCK));
        let width = match axis {
            _ if !is_plain => return None,
            // A block of keys is seen from its own block of queries on.
            Axis { is_causal: true, kernel_size, .. } if axis.queries == axis.keys => {
                (BLOCK - 1 + kernel_size).div_ceil(BLOCK).min(queries)
            }
            _ if axis == Axis::dense(axis.queries, axis.keys, false) => queries,
            _ => return None,
        };
        let tail = if axis.is_causal { queries - width } else { keys };
        Some(Self { keys, width, tail })
    }

    /// Blocks of a head.
    pub fn of_head(&self) -> usize {
        let last = self.keys - self.tail;
        self.keys * self.width - last * last.saturating_sub(1) / 2
    }

    /// Bytes of a key head: the heads of its group each have their own.
    pub fn bytes(&self, problem: &Problem) -> usize {
        self.of_head() * problem.group_size() * BLOCK_BYTES
    }

    /// The key heads, of all samples, that have room at once.
    pub fn most_heads(&self, problem: &Problem) -> usize {
        MOST_BYTES / self.bytes(problem).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let blocks = Blocks::of(&problem).expect("whole blocks");
            let mut places = std::collections::BTreeSet::new();
            for query in 0..axis.queries {
                let (start, length) = axis.window(query);
                for key in start..start + length {
                    let (key, query) = (key / BLOCK, query / BLOCK);
                    let m = key.saturating_sub(blocks.tail);
                    let ahead = if axis.is_causal { key } else { 0 };
                    places.insert((
                        key * blocks.width - m * m.saturating_sub(1) / 2 + query - ahead,
                        key,
                        query,
                    ));
                }
            }
            let numbers: Vec<_> = places.iter().map(|(place, ..)| *place).collect();
            assert_eq!(numbers, (0..blocks.of_head()).collect::<Vec<_>>(), "{axis:?}");
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
            assert_eq!(Blocks::of(&line(axis)), None, "{axis:?}");
        }
        let dense = line(Axis::dense(300, 300, false));
        for problem in [dense.with_additional(3), dense.with_bias(true)] {
            assert_eq!(Blocks::of(&problem), None, "{problem:?}");
        }
    }
}
