//! Problems of the sizes that native kernels are made for.

use burn_natten_kernels::{Axis, BlockSparse, Problem};
use rand::{Rng, RngCore, SeedableRng, rngs::StdRng};

use super::check::Case;
use super::{Layout, random_lists};

/// Two samples.
fn problem(axes: &[Axis], heads: usize, dim: usize) -> Problem {
    Problem::new(axes, heads, dim).with_batch(2)
}

/// A case with lists by chance.
fn case(name: &str, sparse: BlockSparse, layout: Layout, seed: u64) -> Case {
    let lists = random_lists(&sparse, &mut StdRng::seed_from_u64(seed));
    Case { name: name.to_string(), sparse, lists, layout, seed }
}

/// Every kind of them, each small.
pub fn native_cases() -> Vec<Case> {
    let line = |queries, keys, is_causal| Axis::dense(queries, keys, is_causal);
    let mut steps = BlockSparse::new(
        Problem::new([line(5, 6, true), line(10, 9, false), line(9, 12, true)], 2, 16),
        [2, 6, 8],
        [3, 4, 4],
    )
    .with_lists(2, 5);
    steps.steps = [2, 1, 3];
    let all = vec![
        (
            "1d, blocks of 128",
            BlockSparse::new(problem(&[line(300, 400, false)], 2, 64), [128], [128])
                .with_lists(2, 3),
        ),
        (
            "1d causal, blocks of 64, two heads",
            BlockSparse::new(problem(&[line(200, 200, true)], 2, 128), [64], [64]).with_lists(2, 3),
        ),
        (
            "1d causal, blocks of 64, three heads that share lists, short keys",
            BlockSparse::new(
                problem(&[line(130, 330, true)], 3, 72).with_heads_kv(1).with_head_dim_v(128),
                [64],
                [64],
            )
            .with_lists(1, 4),
        ),
        (
            "1d, blocks of 64, lists of each head of a group, short values",
            BlockSparse::new(
                problem(&[line(100, 200, false)], 2, 128).with_heads_kv(1).with_head_dim_v(8),
                [64],
                [64],
            )
            .with_lists(2, 5),
        ),
        (
            "1d causal, long blocks, heads that share lists",
            BlockSparse::new(problem(&[line(150, 260, true)], 4, 64).with_heads_kv(2), [128], [64])
                .with_lists(2, 4),
        ),
        (
            "1d causal, lists of each head of a group, short values, blocks of 32",
            BlockSparse::new(
                problem(&[line(130, 130, true)], 4, 64).with_heads_kv(2).with_head_dim_v(32),
                [64],
                [32],
            )
            .with_lists(4, 5),
        ),
        (
            "1d, blocks that boxes do not fill",
            BlockSparse::new(problem(&[line(150, 210, false)], 2, 32), [50], [100])
                .with_lists(2, 2),
        ),
        (
            "1d, a list for each query, whose heads fill a tile",
            BlockSparse::new(problem(&[line(21, 90, true)], 32, 128).with_heads_kv(2), [1], [16])
                .with_lists(2, 4),
        ),
        (
            "1d, a list for 4 queries, keys with a step, queries that see nothing",
            BlockSparse::new(
                problem(&[line(70, 19, true).with_origin(-7)], 8, 64).with_heads_kv(1),
                [4],
                [8],
            )
            .with_step(4)
            .with_lists(1, 3),
        ),
        (
            "2d, blocks of 8 x 8 and 8 x 16",
            BlockSparse::new(
                problem(&[line(13, 20, false), line(19, 33, false)], 2, 64),
                [8, 8],
                [8, 16],
            )
            .with_lists(2, 3),
        ),
        (
            "2d causal, short lines",
            BlockSparse::new(
                problem(&[line(12, 12, true), line(14, 14, true)], 2, 40),
                [6, 4],
                [4, 4],
            )
            .with_lists(2, 6),
        ),
        (
            "3d, sliding tiles",
            BlockSparse::new(
                problem(&[line(6, 6, false), line(9, 9, false), line(10, 10, false)], 2, 128),
                [6, 8, 8],
                [6, 8, 8],
            )
            .with_lists(2, 3),
        ),
        (
            "3d, cubes",
            BlockSparse::new(
                problem(&[line(7, 7, true), line(6, 6, false), line(9, 9, false)], 2, 64),
                [4, 4, 8],
                [4, 4, 4],
            )
            .with_lists(2, 5),
        ),
        ("3d, steps", steps),
        (
            "long vectors",
            BlockSparse::new(problem(&[line(140, 140, true)], 2, 256), [64], [64]).with_lists(2, 2),
        ),
        (
            "values that are longer",
            BlockSparse::new(
                problem(&[line(100, 100, false)], 2, 72).with_head_dim_v(136),
                [32],
                [64],
            )
            .with_lists(2, 2),
        ),
    ];
    laid(all, 600)
}

/// A block of keys that all queries list, and one that most do: inverse lists more than four times as long as others.
pub fn blocks_that_all_list() -> Vec<Case> {
    let of = |name: &str, sparse: BlockSparse, layout, seed| {
        let mut case = case(name, sparse, layout, seed);
        for (list, entries) in case.lists.chunks_mut(sparse.entries).enumerate() {
            entries[0] = 0;
            entries[1] = if list % 3 > 0 { 7 } else { -1 };
        }
        case
    };
    let line = |queries, keys, is_causal| Axis::dense(queries, keys, is_causal);
    vec![
        of(
            "1d causal, blocks of 64 that all list, shared rows",
            BlockSparse::new(
                problem(&[line(700, 1400, true)], 2, 128).with_batch(1).with_heads_kv(1),
                [32],
                [64],
            )
            .with_lists(1, 3),
            Layout::Swapped,
            900,
        ),
        of(
            "1d, blocks of 32 that all list, lists of each head of a group",
            BlockSparse::new(problem(&[line(650, 520, false)], 2, 64).with_heads_kv(1), [32], [32])
                .with_lists(2, 3),
            Layout::Aligned,
            901,
        ),
    ]
}

/// Queries that have lists of their own, or share them with few.
pub fn own_lists() -> Vec<Case> {
    let line = |queries, keys, is_causal| Axis::dense(queries, keys, is_causal);
    let all = vec![
        (
            "16 heads, causal",
            BlockSparse::new(problem(&[line(75, 75, true)], 32, 128).with_heads_kv(2), [1], [64])
                .with_lists(2, 3),
        ),
        (
            "8 heads, two queries a warp, more keys than queries",
            BlockSparse::new(problem(&[line(37, 100, false)], 8, 64).with_heads_kv(1), [1], [32])
                .with_lists(1, 4),
        ),
        (
            "32 heads, keys with a step, queries that see nothing, short values",
            BlockSparse::new(
                problem(&[line(21, 30, true).with_origin(-7)], 32, 64)
                    .with_heads_kv(1)
                    .with_head_dim_v(32),
                [1],
                [16],
            )
            .with_step(2)
            .with_lists(1, 3),
        ),
        (
            "12 heads, rows that are nobody's, lists of two queries, queries behind the keys",
            BlockSparse::new(
                problem(&[line(23, 70, true).with_origin(47)], 24, 16)
                    .with_heads_kv(2)
                    .with_head_dim_v(48),
                [2],
                [16],
            )
            .with_lists(2, 6),
        ),
        (
            "4 heads, four queries a warp, causal",
            BlockSparse::new(problem(&[line(70, 70, true)], 8, 64).with_heads_kv(2), [1], [32])
                .with_lists(2, 4),
        ),
        (
            "a head of its own, long lists of few keys",
            BlockSparse::new(problem(&[line(90, 50, false)], 2, 32), [1], [16]).with_lists(2, 7),
        ),
        (
            "4 heads, blocks that many list, causal",
            BlockSparse::new(problem(&[line(200, 200, true)], 8, 64).with_heads_kv(2), [1], [64])
                .with_lists(2, 3),
        ),
        (
            "3 heads, rows that are nobody's, blocks that many list, short values",
            BlockSparse::new(
                problem(&[line(150, 130, false)], 3, 128).with_heads_kv(1).with_head_dim_v(48),
                [1],
                [64],
            )
            .with_lists(1, 4),
        ),
        (
            "8 heads, keys with a step that many list, queries that see nothing, long values",
            BlockSparse::new(
                problem(&[line(140, 70, true).with_origin(-7)], 8, 16)
                    .with_heads_kv(1)
                    .with_head_dim_v(80),
                [1],
                [64],
            )
            .with_step(2)
            .with_lists(1, 2),
        ),
        (
            "12 heads, queries behind the keys, blocks that many list, long values",
            BlockSparse::new(
                problem(&[line(90, 100, true).with_origin(40)], 24, 48)
                    .with_heads_kv(2)
                    .with_head_dim_v(64),
                [1],
                [64],
            )
            .with_lists(2, 3),
        ),
    ];
    laid(all, 700)
}

/// Lists by chance, and layouts in turn.
fn laid(all: Vec<(&str, BlockSparse)>, first: u64) -> Vec<Case> {
    let laid = |(seed, (name, sparse)): (usize, (&str, BlockSparse))| {
        let layout = [Layout::Contiguous, Layout::Aligned, Layout::Swapped][seed % 3];
        // Samples of three axes follow each other without a gap.
        let folds = sparse.problem.rank() < 3 || layout != Layout::Swapped;
        case(name, sparse, if folds { layout } else { Layout::Contiguous }, first + seed as u64)
    };
    all.into_iter().enumerate().map(laid).collect()
}

/// Problems without end, of any sizes. Some of them are none for native kernels. Ten that follow each other have the same of what kernels
/// are specialised by, so that few are compiled.
pub fn random_native(seed: u64) -> impl Iterator<Item = Case> {
    let mut rng = StdRng::seed_from_u64(seed);
    std::iter::repeat_with(move || rng.next_u64()).flat_map(|kind| {
        let mut rng = StdRng::seed_from_u64(!kind);
        (0..10).map(move |_| random_of_kind(&mut StdRng::seed_from_u64(kind), &mut rng))
    })
}

fn random_of_kind(kind: &mut StdRng, rng: &mut StdRng) -> Case {
    let rank = kind.random_range(1..=3);
    let most = [300, 24, 11][rank - 1];
    let mut steps = [1; 3];
    let mut axes = vec![];
    // Of samples of three axes, the slowest has as many queries as keys.
    for index in 0..rank {
        let queries = rng.random_range(1..=most);
        let keys = if rank == 3 && index == 0 { queries } else { rng.random_range(1..=most) };
        let axis = Axis::dense(queries, keys, kind.random_bool(0.4));
        if axis.is_causal && kind.random() {
            steps[3 - rank + index] = rng.random_range(1..=5);
        }
        let origin = rng.random_range(0..=3 * most) as isize - most as isize;
        axes.push(if axis.is_causal && kind.random() { axis.with_origin(origin) } else { axis });
    }
    let (dim, dim_v) =
        [(64, 64), (128, 128), (32, 32), (16, 40), (128, 64)][kind.random_range(0..5)];
    let heads_kv = rng.random_range(1..=2);
    let group = [1, 2, 4, 3][kind.random_range(0..4)];
    let heads = heads_kv * group;
    let problem = Problem::new(&axes, heads, dim)
        .with_batch(rng.random_range(1..=2))
        .with_heads_kv(heads_kv)
        .with_head_dim_v(dim_v);
    let extents: &[usize] =
        [&[16, 32, 64, 128, 200, 48][..], &[4, 8, 16, 6], &[2, 4, 8, 3]][rank - 1];
    let mut shape = || -> Vec<usize> {
        (0..rank).map(|_| extents[kind.random_range(0..extents.len())]).collect()
    };
    let (query_block, key_block) = (shape(), shape());
    let list_heads = if kind.random() { heads } else { heads_kv };
    let mut sparse = BlockSparse::new(problem, query_block, key_block);
    let entries = rng.random_range(1..=(sparse.key_blocks() + 2).min(12));
    sparse.steps = steps;
    let layout = [Layout::Contiguous, Layout::Aligned][rng.random_range(0..2)];
    case("random", sparse.with_lists(list_heads, entries), layout, rng.random())
}
