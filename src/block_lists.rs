//! Lists of blocks for [`block_sparse1d`](crate::block_sparse1d) and its siblings: common patterns, the best of any scores, and a check.
//!
//! A list names the blocks of keys that a block of queries sees. Lists are `[batch, query_blocks, heads, entries]`, with blocks numbered
//! row-major, slowest axis first, and `-1` behind the entries of a list that is shorter than others.
//!
//! ```rust
//! use burn::tensor::{Device, Distribution, Tensor};
//! use burn_natten::block_lists::{self, BlockGrid};
//! use burn_natten::{BlockSparseOptions, block_sparse2d};
//!
//! # fn main() -> Result<(), burn_natten::AttentionError> {
//! let device = Device::flex();
//! let x = Tensor::<5>::random([1, 16, 16, 4, 32], Distribution::Default, &device);
//! // Tiles of 4 x 4 pixels, each of which sees itself and the tiles around it.
//! let grid = BlockGrid::new([16, 16], [4, 4]);
//! let blocks = block_lists::sliding(&grid, 1, [1, 4], &device);
//! // Of one sample and four heads.
//! assert_eq!(blocks.dims(), [1, 16, 4, 9]);
//! block_lists::validate_blocks(&blocks, grid.key_blocks())?;
//! let out = block_sparse2d(x.clone(), x.clone(), x, blocks, BlockSparseOptions::new(4, 4));
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeSet;
use std::ops::Range;

use burn::backend::Dispatch;
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};

use crate::backend::select::{SelectOps, TopPlan};
use crate::{AttentionError, NeighborhoodOptions, PerAxis};

/// How queries and keys are cut into blocks along `N` axes.
///
/// ```rust
/// use burn_natten::block_lists::BlockGrid;
///
/// let grid = BlockGrid::new([30, 40], [8, 8]).with_keys([15, 20], [8, 8]);
/// assert_eq!((grid.query_blocks(), grid.key_blocks()), (4 * 5, 2 * 3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockGrid<const N: usize> {
    queries: [usize; N],
    query_block: [usize; N],
    keys: [usize; N],
    key_block: [usize; N],
}

impl<const N: usize> BlockGrid<N> {
    /// As many queries as keys along each axis, in the same blocks. A block of no tokens counts as one of a single token.
    pub fn new(tokens: impl Into<PerAxis<N, usize>>, block: impl Into<PerAxis<N, usize>>) -> Self {
        let (queries, block) = (tokens.into().0, block.into().0.map(|size| size.max(1)));
        Self { queries, query_block: block, keys: queries, key_block: block }
    }

    /// The same with other keys, or other blocks of them.
    pub fn with_keys(
        self,
        tokens: impl Into<PerAxis<N, usize>>,
        block: impl Into<PerAxis<N, usize>>,
    ) -> Self {
        Self { keys: tokens.into().0, key_block: block.into().0.map(|size| size.max(1)), ..self }
    }

    /// Blocks of queries.
    pub fn query_blocks(&self) -> usize {
        self.query_grid().iter().product()
    }

    /// Blocks of keys.
    pub fn key_blocks(&self) -> usize {
        self.key_grid().iter().product()
    }

    fn query_grid(&self) -> [usize; N] {
        std::array::from_fn(|axis| self.queries[axis].div_ceil(self.query_block[axis]))
    }

    fn key_grid(&self) -> [usize; N] {
        std::array::from_fn(|axis| self.keys[axis].div_ceil(self.key_block[axis]))
    }

    /// The lists of blocks of keys in a range along each axis, which depends on the block of queries; ranges end within the axis.
    fn boxes(&self, range: impl Fn(usize, usize) -> Range<usize>) -> Vec<Vec<i64>> {
        let (queries, keys) = (self.query_grid(), self.key_grid());
        let list = |block: usize| {
            let mut list = vec![0];
            for (axis, at) in place(block, queries).into_iter().enumerate() {
                let along: Vec<usize> = range(axis, at).collect();
                let longer = |outer: &i64| {
                    let first = outer * keys[axis] as i64;
                    along.iter().map(move |inner| first + *inner as i64).collect::<Vec<_>>()
                };
                list = list.iter().flat_map(longer).collect();
            }
            list
        };
        (0..self.query_blocks()).map(list).collect()
    }
}

/// All blocks in every list: dense attention.
pub fn dense<const N: usize>(
    grid: &BlockGrid<N>,
    [batch, heads]: [usize; 2],
    device: &Device,
) -> Tensor<4, Int> {
    let all: Vec<i64> = (0..grid.key_blocks() as i64).collect();
    stored(vec![all; grid.query_blocks()], batch, heads, device)
}

/// The blocks up to `radius` blocks from a block of queries along each axis: sliding tiles.
///
/// At the edges the tile is shifted rather than cut, so that every list has `2 * radius + 1` blocks along each axis, or as many as there
/// are.
///
/// Reference: [Fast Video Generation with Sliding Tile Attention](https://arxiv.org/abs/2502.04507).
pub fn sliding<const N: usize>(
    grid: &BlockGrid<N>,
    radius: usize,
    [batch, heads]: [usize; 2],
    device: &Device,
) -> Tensor<4, Int> {
    let (queries, keys) = (grid.query_grid(), grid.key_grid());
    let lists = grid.boxes(|axis, at| {
        // Where grids differ, the block of keys at the same place along the axis.
        let middle = (2 * at + 1) * keys[axis] / (2 * queries[axis]);
        let width = radius.saturating_mul(2).saturating_add(1).min(keys[axis]);
        let first = middle.saturating_sub(radius).min(keys[axis] - width);
        first..first + width
    });
    stored(lists, batch, heads, device)
}

/// The windows of neighborhood attention rounded to blocks: every block that holds a key which some query of the block sees.
///
/// # Errors
///
/// That of the windows, if one does not fit its axis, or if there are other keys than queries.
///
/// # Example
///
/// ```rust
/// use burn::tensor::Device;
/// use burn_natten::NeighborhoodOptions;
/// use burn_natten::block_lists::{self, BlockGrid};
///
/// # fn main() -> Result<(), burn_natten::AttentionError> {
/// let grid = BlockGrid::new([64], [16]);
/// let windows = NeighborhoodOptions::<1>::new(9).with_causal(true);
/// let blocks = block_lists::window(&grid, &windows, [1, 1], &Device::flex())?;
/// // Each block and the one before it.
/// blocks.into_data().assert_eq(&[[[[0i64, -1]], [[0, 1]], [[1, 2]], [[2, 3]]]].into(), false);
/// # Ok(())
/// # }
/// ```
pub fn window<const N: usize>(
    grid: &BlockGrid<N>,
    windows: &NeighborhoodOptions<N>,
    [batch, heads]: [usize; 2],
    device: &Device,
) -> Result<Tensor<4, Int>, AttentionError> {
    for axis in 0..N {
        let (got, expected) = (grid.keys[axis], grid.queries[axis]);
        if got != expected {
            let (argument, name, other) = ("grid", "keys", "its queries");
            return Err(AttentionError::Shape { argument, axis, name, got, expected, other });
        }
    }
    let axes = windows.axes(grid.queries)?;
    let lists = grid.boxes(|axis, at| {
        let first = at * grid.query_block[axis];
        let last = (first + grid.query_block[axis]).min(grid.queries[axis]) - 1;
        let seen = (first..=last).map(|query| axes[axis].window(query));
        let dilation = axes[axis].dilation;
        let ends = seen.map(|(start, count)| (start, start + (count - 1) * dilation));
        let (start, end) = ends.fold((usize::MAX, 0), |(a, b), (c, d)| (a.min(c), b.max(d)));
        start / grid.key_block[axis]..end / grid.key_block[axis] + 1
    });
    Ok(stored(lists, batch, heads, device))
}

/// The `count` blocks of each list with the highest scores `[batch, query_blocks, heads, key_blocks]`, best first. A score of `-inf` or NaN is
/// that of a block which is not to be seen: where too few others are left, the list is short.
///
/// On CubeCL's backends every score is compared with every other of its list, by a kernel: 16 million comparisons for each list of 4,096
/// blocks. It takes the first of equal scores, which it compares in f32.
pub fn top_n(scores: Tensor<4>, count: usize) -> Tensor<4, Int> {
    let plan = TopPlan {
        entries: count.min(scores.dims()[3]),
        ints: scores.device().settings().int_dtype,
    };
    Tensor::from_dispatch(Dispatch::top_blocks(scores.into_dispatch(), plan))
}

/// `count` different blocks in each list, as Burn's generator of the device draws them.
pub fn random<const N: usize>(
    grid: &BlockGrid<N>,
    [batch, heads]: [usize; 2],
    count: usize,
    device: &Device,
) -> Tensor<4, Int> {
    let shape = [batch, grid.query_blocks(), heads, grid.key_blocks()];
    top_n(Tensor::random(shape, Distribution::Default, device), count)
}

/// Fails if an entry is neither `-1` nor one of `key_blocks` blocks, or if a list has a block twice.
///
/// Operators need no such check: they never read out of bounds, and a block that is listed twice counts twice. This reads the lists back
/// from the device, and is for finding mistakes.
///
/// # Errors
///
/// [`AttentionError::NoBlock`] and [`AttentionError::RepeatedBlock`] name the first such entry.
pub fn validate_blocks(blocks: &Tensor<4, Int>, key_blocks: usize) -> Result<(), AttentionError> {
    let [_, queries, heads, entries] = blocks.dims();
    let data = blocks.clone().into_data().convert::<i64>();
    let numbers: Vec<i64> = data.try_to_vec().map_err(|error| AttentionError::Execution {
        reason: format!("lists of blocks cannot be read: {error:?}"),
    })?;
    for (list, numbers) in numbers.chunks(entries.max(1)).enumerate() {
        let list = [list / heads / queries, list / heads % queries, list % heads];
        let mut seen = BTreeSet::new();
        for (at, &got) in numbers.iter().enumerate().filter(|(_, got)| **got != -1) {
            if !usize::try_from(got).is_ok_and(|got| got < key_blocks) {
                let entry = [list[0], list[1], list[2], at];
                return Err(AttentionError::NoBlock { entry, got, key_blocks });
            }
            if !seen.insert(got) {
                return Err(AttentionError::RepeatedBlock { list, block: got });
            }
        }
    }
    Ok(())
}

/// Where a block stands along each axis.
fn place<const N: usize>(block: usize, grid: [usize; N]) -> [usize; N] {
    let mut rest = block;
    let mut place = [0; N];
    for axis in (0..N).rev() {
        place[axis] = rest % grid[axis];
        rest /= grid[axis];
    }
    place
}

/// Lists of each block of queries, for all samples and heads.
fn stored(lists: Vec<Vec<i64>>, batch: usize, heads: usize, device: &Device) -> Tensor<4, Int> {
    let (count, entries) = (lists.len(), lists.iter().map(Vec::len).max().unwrap_or(0));
    let padded = |list: Vec<i64>| {
        let short = entries - list.len();
        list.into_iter().chain(std::iter::repeat_n(-1, short))
    };
    let numbers: Vec<i64> = lists.into_iter().flat_map(padded).collect();
    let lists = Tensor::from_data(TensorData::new(numbers, [1, count, 1, entries]), device);
    lists.repeat(&[batch, 1, heads, 1])
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    fn lists(tensor: Tensor<4, Int>) -> Vec<Vec<i64>> {
        let entries = tensor.dims()[3];
        let numbers: Vec<i64> = tensor.into_data().convert::<i64>().try_to_vec().expect("i64");
        numbers.chunks(entries).map(<[i64]>::to_vec).collect()
    }

    #[test]
    fn tiles_slide_and_stop_at_the_edges() {
        let device = Device::flex();
        let grid = BlockGrid::new([9, 4], [2, 4]);
        let blocks = sliding(&grid, 1, [1, 1], &device);
        let expected = [[0, 1, 2], [0, 1, 2], [1, 2, 3], [2, 3, 4], [2, 3, 4]];
        assert_eq!(lists(blocks), expected);
        let cube = BlockGrid::new([4, 4, 4], [2, 2, 2]);
        let all = lists(dense(&cube, [2, 3], &device));
        assert_eq!(all, vec![(0..8).collect::<Vec<i64>>(); 8 * 6]);
        assert_eq!(lists(sliding(&cube, 1, [2, 3], &device)), all);
    }

    #[test]
    fn tiles_of_any_radius_are_those_that_there_are() {
        let device = Device::flex();
        let of = |grid: BlockGrid<1>, radius| lists(sliding(&grid, radius, [1, 1], &device));
        assert_eq!(of(BlockGrid::new([9], [4]), usize::MAX), vec![vec![0, 1, 2]; 3]);
        let without_keys = BlockGrid::new([9], [4]).with_keys([0], [4]);
        assert_eq!(sliding(&without_keys, 1, [1, 1], &device).dims(), [1, 3, 1, 0]);
    }

    #[test]
    fn rounded_windows_hold_the_windows() {
        let grid = BlockGrid::new([11, 13], [3, 4]).with_keys([11, 13], [2, 5]);
        let windows = NeighborhoodOptions::<2>::new([3, 4]).with_dilation([2, 1]).with_stride(2);
        let blocks = window(&grid, &windows, [1, 1], &Device::flex()).expect("fits");
        validate_blocks(&blocks, grid.key_blocks()).expect("each once");
        let lists = lists(blocks);
        let axes = windows.axes([11, 13]).expect("fits");
        let seen = |axis: usize, query: usize| {
            let (first, count) = axes[axis].window(query);
            (0..count).map(move |step| first + step * axes[axis].dilation).collect::<Vec<_>>()
        };
        for (y, x) in (0..11).flat_map(|y| (0..13).map(move |x| (y, x))) {
            let list = &lists[y / 3 * 4 + x / 4];
            for (key_y, key_x) in
                seen(0, y).into_iter().flat_map(|y| seen(1, x).into_iter().map(move |x| (y, x)))
            {
                assert!(list.contains(&((key_y / 2 * 3 + key_x / 5) as i64)), "{y} {x}");
            }
        }
        let other = grid.with_keys([12, 13], [2, 5]);
        let error = window(&other, &windows, [1, 1], &Device::flex()).expect_err("other keys");
        assert_eq!(error.to_string(), "grid: axis 0 (keys) is 12, must be 11 as in its queries");
    }

    #[test]
    fn the_best_blocks_are_taken() {
        let device = Device::flex();
        let scores = Tensor::<4>::from_data([[[[0.5, f32::NEG_INFINITY, 2.0, 1.0]]]], &device);
        assert_eq!(lists(top_n(scores.clone(), 2)), [[2, 3]]);
        assert_eq!(lists(top_n(scores, 9)), [[2, 3, 0, -1]]);
        let grid = BlockGrid::new([40], [4]);
        let blocks = random(&grid, [2, 3], 4, &device);
        assert_eq!(blocks.dims(), [2, 10, 3, 4]);
        validate_blocks(&blocks, 10).expect("each once");
    }

    #[test]
    fn mistakes_are_named() {
        let blocks = |numbers: [i64; 6]| {
            Tensor::<4, Int>::from_data(
                TensorData::new(numbers.to_vec(), [1, 2, 1, 3]),
                &Device::flex(),
            )
        };
        let text =
            |numbers| validate_blocks(&blocks(numbers), 4).map_err(|error| error.to_string());
        assert_eq!(text([0, 3, -1, -1, -1, 2]), Ok(()));
        let error = "blocks: entry [0, 1, 0, 2] is 4, must be -1 or less than 4 (blocks of keys)";
        assert_eq!(text([0, 3, 1, -1, 2, 4]), Err(error.to_string()));
        let error = "blocks: list [0, 1, 0] has block 2 twice, must have it at most once";
        assert_eq!(text([0, 3, 1, 2, -1, 2]), Err(error.to_string()));
    }
}
