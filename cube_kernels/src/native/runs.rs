//! Which tiles each CTA has of a launch that sums the gradient of a bias: so many that follow each other, as their slopes go to the same
//! places, and always the same, as sums depend on it. Tiles see more or fewer blocks, so that runs are cut by what tiles take.

use super::grid::Grid;
use super::launch::Argument;
use crate::MAX_RANK;

/// CTAs of such a launch at most: the kernels' `Runs` has one number more.
pub(crate) const MOST: usize = 511;

/// What a tile takes besides its steps, in steps. Measured (H200, windows of 7 x 7, head_dim 32): some 4.
const TILE: u64 = 4;

/// The kernel's `Runs`.
pub(crate) fn argument(grid: &Grid<'_>) -> Argument {
    let mut firsts = firsts(grid);
    firsts.resize(MOST + 1, 0);
    let words = firsts.chunks(2).map(|pair| pair[0] as u64 | (pair[1] as u64) << 32).collect();
    Argument::Struct { words, pointers: vec![] }
}

/// The first tile of each CTA, and the number of all tiles.
fn firsts(grid: &Grid<'_>) -> Vec<usize> {
    let (samples, ctas) = (grid.problem.batch, grid.ctas() as usize);
    let places = places(grid);
    let mut before = vec![0];
    for place in &places {
        before.push(before[before.len() - 1] + place * samples as u64);
    }
    let head = before[places.len()];
    let all = head * (grid.tiles() / (places.len() * samples)) as u64;
    let first = |cta: usize| {
        // In 128 bits, as there may be many tiles.
        let begin = (all as u128 * cta as u128 / ctas as u128) as u64;
        let (heads, rest) = (begin / head, begin % head);
        let place = before.partition_point(|begin| *begin <= rest) - 1;
        let sample = (rest - before[place]).div_ceil(places[place]) as usize;
        (heads as usize * places.len() + place) * samples + sample
    };
    let mut firsts: Vec<usize> = (0..ctas).map(first).collect();
    firsts.push(grid.tiles());
    firsts
}

/// What the tiles of a head take, of one sample, in steps and the kernels' order; see `decode_tile` of `cuda/tile.cuh`.
fn places(grid: &Grid<'_>) -> Vec<u64> {
    let stack = grid.cut.stack;
    let order = [stack, usize::from(stack == 0), if stack == 2 { 1 } else { 2 }];
    let blocks: [Vec<Vec<u64>>; MAX_RANK] = std::array::from_fn(|index| {
        grid.covered(index).map(|group| blocks(grid, index, group)).collect()
    });
    let columns: usize = grid.cut.column_tile().iter().product();
    let more = grid.problem.additional.div_ceil(columns) as u64;
    let mut places = vec![];
    let [z, y, x] = &blocks;
    for (z, y, x) in
        z.iter().flat_map(|z| y.iter().flat_map(move |y| x.iter().map(move |x| (z, y, x))))
    {
        let [slow, middle, fast] = order.map(|index| [z, y, x][index]);
        for (s, m) in slow.iter().flat_map(|s| middle.iter().map(move |m| (s, m))) {
            places.extend(fast.iter().map(|f| match s * m * f {
                // Of a group that is shorter than others.
                0 => 0,
                steps => steps + more + TILE,
            }));
        }
    }
    places
}

/// Blocks that the tiles of a dilation group see along an axis.
fn blocks(grid: &Grid<'_>, index: usize, group: usize) -> Vec<u64> {
    let axis = &grid.problem.axes[index];
    let (rows, columns) = (grid.cut.cta_tile[index], grid.cut.column_tile()[index]);
    let members = axis.group(group).0;
    let tile = |number: usize| {
        let first = number * rows;
        if first >= members {
            return 0;
        }
        let last = (first + rows).min(members) - 1;
        let seen = axis.keys_seen(group, first).start..axis.keys_seen(group, last).end;
        seen.len().div_ceil(columns).max(1) as u64
    };
    let mut tiles: Vec<u64> = (0..grid.tiles_of(index)).map(tile).collect();
    if axis.is_causal {
        tiles.reverse();
    }
    tiles
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::grid::grids;
    use crate::native::launch::DeviceInfo;
    use crate::native::sm90::{Element, plan_backward};
    use crate::{Axis, Problem};

    #[test]
    fn ctas_take_equally_long() {
        let device =
            DeviceInfo { capability: 90, multiprocessors: 132, l2_bytes: 50 << 20, driver: 13000 };
        let side = |length| Axis::neighborhood(length, 7);
        let short = |length| Axis::neighborhood(length, 3);
        let problems = [
            Problem::new([side(28), side(28)], 4, 32).with_batch(64),
            Problem::new([side(56), side(56).with_dilation(3)], 2, 32).with_batch(7),
            Problem::new([side(30).with_causal(true), side(45)], 3, 128).with_batch(9),
            Problem::new([short(9), short(19).with_dilation(2), short(31)], 4, 64).with_batch(5),
            Problem::new([side(500).with_causal(true)], 2, 64).with_batch(3).with_additional(70),
        ];
        for problem in problems.map(|problem| problem.with_bias(true)) {
            let plan = plan_backward(&problem, Element::Bf16, None)
                .unwrap_or_else(|| panic!("{problem:?}"));
            let summing = plan.queries[0];
            for grid in grids(summing.cut(), &problem, &device) {
                let (firsts, places) = (firsts(&grid), places(&grid));
                assert_eq!(firsts.len(), grid.ctas() as usize + 1);
                assert_eq!((firsts[0], firsts[firsts.len() - 1]), (0, grid.tiles()));
                assert!(firsts.is_sorted());
                let takes = |tile: usize| places[tile / problem.batch % places.len()];
                let runs: Vec<u64> =
                    firsts.windows(2).map(|run| (run[0]..run[1]).map(takes).sum()).collect();
                let mean = runs.iter().sum::<u64>() / runs.len() as u64;
                let most = runs.iter().max().expect("there are some");
                let tile = places.iter().max().expect("there are some");
                assert!(*most <= mean + tile + 1, "{problem:?}: {most}, {mean} by mean");
            }
        }
    }
}
