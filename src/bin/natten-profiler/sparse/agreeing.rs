//! Selected lists of which neighbors share a part, as those of trained models do.

use burn::tensor::{DType, Device, Distribution, Tensor, TensorData};

use super::flags::Job;
use crate::args::Args;
use crate::failure::Failure;

/// Blocks in front of a query that are in every list: its own, and the one before.
const LOCAL: usize = 2;

/// Lists `[batch, tiles, heads_kv, num_selected]` by chance, of which each entry that is not forced is that of the tile before with a probability
/// of so many percent.
pub fn lists(job: &Job, args: &Args, percent: u8, device: &Device) -> Result<TensorData, Failure> {
    let (tile, entries) = (args.sparse.query_tile, args.sparse.num_selected);
    let [batch, heads, tiles] = [job.sizes.batch, job.sizes.heads_kv, job.space[0].div_ceil(tile)];
    let mut lists = vec![-1i32; batch * tiles * heads * entries];
    for sample in 0..batch {
        for head in 0..heads {
            let draws = draws(2 * tiles * entries, device)?;
            let mut free = vec![];
            for (number, draws) in draws.chunks(2 * entries).enumerate() {
                let first = number * tile;
                let last = (first + tile - 1).min(job.space[0] - 1);
                let blocks = [first, last].map(|query| query / args.sparse.slc_block);
                change(&mut free, blocks, entries, f32::from(percent) / 100.0, draws);
                let list = with_forced(&free, blocks);
                let at = ((sample * tiles + number) * heads + head) * entries;
                lists[at..at + list.len()].copy_from_slice(&list);
            }
        }
    }
    Ok(TensorData::new(lists, [batch, tiles, heads, entries]))
}

/// Uniform from 0 to 1.
fn draws(count: usize, device: &Device) -> Result<Vec<f32>, Failure> {
    let draws = Tensor::<1>::random([count], Distribution::Uniform(0.0, 1.0), (device, DType::F32));
    let unread = |error: String| Failure::Run(format!("random numbers cannot be read: {error}"));
    let data = draws.try_into_data().map_err(|error| unread(format!("{error:?}")))?;
    data.try_to_vec().map_err(|error| unread(format!("{error:?}")))
}

/// The first block, and those of the tile with the ones before.
fn forced([first, last]: [usize; 2]) -> impl Iterator<Item = usize> {
    let local = (first + 1).saturating_sub(LOCAL)..=last;
    std::iter::once(0).filter(move |_| first >= LOCAL).chain(local)
}

/// Makes the entries that are not forced those of the next tile, of which these are the first and the last block.
fn change(free: &mut Vec<usize>, blocks: [usize; 2], entries: usize, share: f32, draws: &[f32]) {
    // Behind the first block and in front of those that are forced.
    let others = blocks[0].saturating_sub(LOCAL);
    let count = entries.saturating_sub(forced(blocks).count()).min(others);
    if count == others {
        *free = (1..=others).collect();
        return;
    }
    free.truncate(count);
    for (slot, draw) in draws.chunks(2).take(count).enumerate() {
        if slot < free.len() && draw[0] < share {
            continue;
        }
        let mut block = 1 + (draw[1] * others as f32) as usize % others;
        while free.contains(&block) {
            block = 1 + block % others;
        }
        match free.get_mut(slot) {
            Some(old) => *old = block,
            None => free.push(block),
        }
    }
}

/// The list, ascending.
fn with_forced(free: &[usize], blocks: [usize; 2]) -> Vec<i32> {
    let mut list: Vec<_> =
        forced(blocks).chain(free.iter().copied()).map(|block| block as i32).collect();
    list.sort_unstable();
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists of 200 tiles of a query each, with 5 entries, in blocks of 4 tokens.
    fn lists_of(share: f32) -> Vec<Vec<i32>> {
        let device = Device::flex();
        device.seed(3);
        let mut free = vec![];
        let mut list = |query: usize| {
            let blocks = [query / 4; 2];
            change(&mut free, blocks, 5, share, &draws(10, &device).expect("numbers"));
            with_forced(&free, blocks)
        };
        (0..200).map(&mut list).collect()
    }

    #[test]
    fn lists_are_sorted_and_forced_blocks_are_among_them() {
        for (query, list) in lists_of(0.5).iter().enumerate() {
            let own = query as i32 / 4;
            assert!(list.is_sorted_by(|a, b| a < b), "{list:?}");
            assert_eq!(list.len(), (own as usize + 1).min(5), "{list:?}");
            assert!(list[0] == 0 && list.ends_with(&[own]), "{list:?}");
            assert!(own == 0 || list.contains(&(own - 1)), "{list:?}");
        }
    }

    #[test]
    fn neighbors_share_what_is_asked_for() {
        for (share, range) in [(0.0, 0.0..0.2), (0.5, 0.4..0.65), (1.0, 0.99..1.01)] {
            let lists = lists_of(share);
            let others = |list: &[i32], query: usize| -> Vec<i32> {
                let own = query as i32 / 4;
                list.iter().copied().filter(|block| *block > 0 && *block < own - 1).collect()
            };
            let [mut same, mut all] = [0.0; 2];
            // Where there is more to choose from than a list has.
            for query in 100..200 {
                let [before, now] = [query - 1, query].map(|query| others(&lists[query], query));
                same += now.iter().filter(|block| before.contains(block)).count() as f64;
                all += now.len() as f64;
            }
            assert!(range.contains(&(same / all)), "{share}: {same} of {all}");
        }
    }
}
