//! Block-sparse attention: problems, lists, and what is right.

mod check;
mod device;
mod inverse;
mod native;
mod oracle;

use burn_natten_kernels::{Axis, BlockSparse, Problem};
use rand::{Rng, rngs::StdRng};

pub use check::Case;
pub use device::{LAYOUTS, Layout, operands, places, saved, upload_lists, view};
pub use inverse::{InverseLists, naive_inverse, read_inverse};
pub use native::{blocks_that_all_list, native_cases, own_lists, random_native};
pub use oracle::{Sparse, compute, times};

/// Lists of any numbers, most of them blocks: unsorted, with repeats, a few of them empty or full of nothing.
pub fn random_lists(sparse: &BlockSparse, rng: &mut StdRng) -> Vec<i32> {
    let blocks = sparse.key_blocks() as i32;
    let lists = sparse.list_elements().checked_div(sparse.entries).unwrap_or(0);
    let mut all = vec![];
    for _ in 0..lists {
        let kind = rng.random_range(0..8);
        all.extend((0..sparse.entries).map(|entry| match kind {
            0 => -1,
            1 => [i32::MIN, i32::MAX, blocks, -2][entry % 4],
            2 => entry as i32,
            3 => rng.random_range(0..blocks.max(1)) / 2,
            _ => rng.random_range(-2..blocks + 2),
        }));
    }
    all
}

/// Small, of any sizes.
pub fn random_problem(rng: &mut StdRng) -> BlockSparse {
    let rank = rng.random_range(1..=3);
    let most = [60, 12, 6][rank - 1];
    let mut lengths = || rng.random_range(1..=most);
    let lengths: Vec<[usize; 2]> = (0..rank).map(|_| [lengths(), lengths()]).collect();
    let mut steps = [1; 3];
    let axes: Vec<Axis> = lengths
        .iter()
        .enumerate()
        .map(|(index, [queries, keys])| {
            let axis = Axis::dense(*queries, *keys, rng.random_bool(0.5));
            if !axis.is_causal {
                return axis;
            }
            let step = if rng.random() { 1 } else { rng.random_range(1..=5) };
            steps[3 - rank + index] = step;
            match rng.random_range(0..3) {
                0 => axis,
                _ => axis.with_origin(rng.random_range(0..=3 * most) as isize - most as isize),
            }
        })
        .collect();
    let (dim, dim_v) = [(8, 8), (16, 12), (7, 5), (6, 10)][rng.random_range(0..4)];
    let heads_kv = rng.random_range(1..=2);
    let heads = heads_kv * rng.random_range(1..=4);
    let problem = Problem::new(&axes, heads, dim)
        .with_batch(rng.random_range(1..=3))
        .with_heads_kv(heads_kv)
        .with_head_dim_v(dim_v);
    let mut shape =
        || -> Vec<usize> { (0..rank).map(|_| rng.random_range(1..=most / 2 + 2)).collect() };
    let (query_block, key_block) = (shape(), shape());
    let list_heads = if rng.random() { heads } else { heads_kv };
    let mut sparse = BlockSparse::new(problem, query_block, key_block);
    let entries = rng.random_range(0..=(sparse.key_blocks() + 2).min(12));
    sparse.steps = steps;
    sparse.with_lists(list_heads, entries)
}
