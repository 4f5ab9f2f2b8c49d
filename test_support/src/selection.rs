//! What native sparse attention selects, in `f64`, and problems of it.

use burn_natten_kernels::sparse::{Selected, Selection};
use burn_natten_kernels::{KernelError, Strided};
use cubecl::client::Client;
use cubecl::server::Handle;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::blocks::{Layout, upload_lists, view};
use crate::format::Format;

/// Lists of both kinds.
pub type Lists = Selected<Vec<Vec<i32>>>;

/// The lists, and of each how much the last one chosen beats the first one left out.
pub struct Reference {
    pub lists: Lists,
    pub gaps: Selected<Vec<f64>>,
}

pub struct Tensors {
    pub query: Vec<f64>,
    pub key: Vec<f64>,
}

impl Tensors {
    pub fn random(of: &Selection, seed: u64, format: Format) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut values = |elements: usize| -> Vec<f64> {
            (0..elements).map(|_| (format.round)(rng.random_range(-2.0..2.0))).collect()
        };
        let [query, key] = of.shapes().map(|shape| values(shape.elements()));
        Self { query, key }
    }

    /// Of a head of a row, by all compressed keys that it sees.
    fn scores(&self, of: &Selection, [batch, row, head]: [usize; 3]) -> Vec<f64> {
        let (dim, head_kv) = (of.head_dim, head / (of.heads / of.heads_kv));
        let q = &self.query[((batch * of.rows + row) * of.heads + head) * dim..][..dim];
        let seen = complete(of, of.tokens - of.rows + row + 1);
        (0..seen)
            .map(|x| {
                let at = ((batch * of.compressed() + x) * of.heads_kv + head_kv) * dim;
                let dot: f64 = q.iter().zip(&self.key[at..]).map(|(q, k)| q * k).sum();
                of.scale * dot
            })
            .collect()
    }

    /// Logsumexps of attention to the compressed keys, `[batch, rows, heads]`.
    pub fn logsumexps(&self, of: &Selection) -> Vec<f32> {
        let row = |index: usize| {
            [index / of.heads / of.rows, index / of.heads % of.rows, index % of.heads]
        };
        let logsumexp = |index| {
            let scores = self.scores(of, row(index));
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|score| (score - most).exp()).sum();
            (most + total.ln()) as f32
        };
        (0..of.batch * of.rows * of.heads).map(logsumexp).collect()
    }
}

pub fn complete(of: &Selection, tokens: usize) -> usize {
    (0..tokens).filter(|block| block * of.cmp_stride + of.cmp_block <= tokens).count()
}

/// The best of some candidates besides those that are forced, ascending and padded, and the gap.
pub fn list(
    scores: &[f64],
    forced: &[usize],
    candidates: usize,
    [entries, blocks]: [usize; 2],
) -> (Vec<i32>, f64) {
    let mut order: Vec<usize> = (0..candidates).filter(|j| !forced.contains(j)).collect();
    // A stable sort: the lower number first among equals.
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let free = entries - forced.len();
    let gap = match (free, order.get(free)) {
        (1.., Some(next)) => scores[order[free - 1]] - scores[*next],
        _ => f64::INFINITY,
    };
    let mut list: Vec<usize> = order.into_iter().take(free).chain(forced.to_vec()).collect();
    list.sort_unstable();
    list.retain(|block| *block < blocks);
    let mut list: Vec<i32> = list.into_iter().map(|block| block as i32).collect();
    list.resize(entries, -1);
    // An exact tie is decided by the rule.
    (list, if gap == 0.0 { f64::INFINITY } else { gap })
}

pub fn reference(of: &Selection, tensors: &Tensors) -> Reference {
    let group = of.heads / of.heads_kv;
    let offset = of.tokens - of.rows;
    let mut all = Reference {
        lists: Selected { blocks: vec![], compressed: of.cmp_top.map(|_| vec![]) },
        gaps: Selected { blocks: vec![], compressed: of.cmp_top.map(|_| vec![]) },
    };
    for number in 0..of.lists() {
        let (head_kv, rest) = (number % of.heads_kv, number / of.heads_kv);
        let (tile, batch) = (rest % of.tiles(), rest / of.tiles());
        let (row, a) = (tile * of.query_tile, offset + tile * of.query_tile);
        let seen = complete(of, a + 1);
        let mut p = vec![0.0; seen];
        for head in head_kv * group..(head_kv + 1) * group {
            let scores = tensors.scores(of, [batch, row, head]);
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|score| (score - most).exp()).sum();
            for (p, score) in p.iter_mut().zip(scores) {
                *p += (score - most).exp() / total;
            }
        }
        let (own, last) = (a / of.slc_block, (a + of.query_tile - 1) / of.slc_block);
        let shared = |x: usize, j: usize| {
            let (from, to) = (x * of.cmp_stride, x * of.cmp_stride + of.cmp_block);
            (from..to).filter(|token| token / of.slc_block == j).count() as f64
        };
        let score = |j: usize| -> f64 {
            p.iter().enumerate().map(|(x, p)| p * shared(x, j)).sum::<f64>() / of.cmp_stride as f64
        };
        let scores: Vec<f64> = (0..own).map(score).collect();
        let is_forced = |j: &usize| *j < of.num_init || j + of.num_local > own;
        let forced: Vec<usize> = (0..=last).filter(is_forced).collect();
        let (blocks, gap) = list(&scores, &forced, own, [of.num_selected, of.blocks()]);
        all.lists.blocks.push(blocks);
        all.gaps.blocks.push(gap);
        if let (Some(top), Some(lists), Some(gaps)) =
            (of.cmp_top, &mut all.lists.compressed, &mut all.gaps.compressed)
        {
            let first = seen / of.cmp_group;
            let last = complete(of, a + of.query_tile).div_ceil(of.cmp_group);
            let sums: Vec<f64> = p.chunks(of.cmp_group).map(|p| p.iter().sum()).collect();
            let forced: Vec<usize> = (first..last).collect();
            let (list, gap) = list(&sums, &forced, first, [top, of.super_blocks()]);
            lists.push(list);
            gaps.push(gap);
        }
    }
    all
}

/// The lists that a launch writes, which finds in them what no list has.
pub fn run(
    client: &Client,
    of: &Selection,
    tensors: &Tensors,
    (format, layout): (Format, Layout),
    launch: impl FnOnce(&Strided, &Strided, &Selected<Handle>) -> Result<(), KernelError>,
) -> Lists {
    let [query, key] = of.shapes();
    let query = view(client, format, &tensors.query, query, layout);
    let key = view(client, format, &tensors.key, key, layout);
    let poison = |entries: usize| upload_lists(client, &vec![i32::MAX; of.lists() * entries]);
    let lists = Selected { blocks: poison(of.num_selected), compressed: of.cmp_top.map(poison) };
    launch(&query, &key, &lists).expect("launched");
    let read = |handle, entries: usize| {
        let bytes = client.read_one(handle).expect("the kernel ran");
        let (chunks, _) = bytes.as_chunks::<4>();
        let numbers: Vec<i32> = chunks.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
        numbers[..of.lists() * entries].chunks(entries).map(<[_]>::to_vec).collect()
    };
    let compressed = lists.compressed.zip(of.cmp_top).map(|(handle, top)| read(handle, top));
    Selected { blocks: read(lists.blocks, of.num_selected), compressed }
}

/// Fails where lists are others than the reference's.
pub fn compare_all(name: &str, actual: &Lists, expected: &Reference) {
    let Reference { lists, gaps } = expected;
    compare(name, &actual.blocks, &lists.blocks, &gaps.blocks);
    if let (Some(actual), Some(expected), Some(gaps)) =
        (&actual.compressed, &lists.compressed, &gaps.compressed)
    {
        compare(&format!("{name}, super-blocks"), actual, expected, gaps);
    }
}

/// Fails where a list is another, unless rounding may have chosen between two.
pub fn compare(name: &str, actual: &[Vec<i32>], expected: &[Vec<i32>], gaps: &[f64]) {
    assert_eq!(actual.len(), expected.len(), "{name}");
    let mut close = 0;
    for (number, ((actual, expected), gap)) in actual.iter().zip(expected).zip(gaps).enumerate() {
        if *gap < 1e-5 {
            close += 1;
            continue;
        }
        assert_eq!(actual, expected, "{name}: list {number} of {}, gap {gap:e}", gaps.len());
    }
    assert!(close * 4 <= gaps.len(), "{name}: {close} of {} are close", gaps.len());
}

/// Two samples of short blocks.
pub fn small(tokens: usize) -> Selection {
    let mut small = Selection::new(tokens, 4, 8);
    small.batch = 2;
    small.heads_kv = 2;
    (small.cmp_block, small.cmp_stride, small.slc_block) = (8, 4, 16);
    (small.num_selected, small.num_init, small.num_local) = (6, 1, 2);
    small
}

pub fn cases() -> Vec<(&'static str, Selection)> {
    let of = |tokens, change: fn(&mut Selection)| {
        let mut selection = small(tokens);
        change(&mut selection);
        selection
    };
    vec![
        ("per token", small(230)),
        ("nothing is compressed", small(7)),
        ("long compressed blocks", of(200, |of| (of.cmp_block, of.slc_block) = (32, 8))),
        ("apart", of(150, |of| (of.cmp_block, of.cmp_stride, of.slc_block) = (4, 4, 4))),
        ("tiles within blocks", of(230, |of| of.query_tile = 4)),
        ("tiles of blocks", of(230, |of| (of.query_tile, of.num_selected) = (48, 8))),
        ("no first blocks", of(230, |of| (of.num_init, of.num_local) = (0, 1))),
        (
            "many first blocks",
            of(230, |of| (of.num_init, of.num_local, of.num_selected) = (4, 3, 9)),
        ),
        ("none is free", of(230, |of| of.num_selected = 3)),
        ("the last rows", of(230, |of| (of.rows, of.query_tile) = (30, 8))),
        ("odd groups", of(120, |of| (of.heads, of.heads_kv, of.head_dim) = (11, 1, 7))),
        ("super-blocks", of(300, |of| (of.cmp_top, of.cmp_group, of.query_tile) = (Some(4), 8, 4))),
        (
            "super-blocks of tiles",
            of(300, |of| {
                (of.cmp_top, of.cmp_group) = (Some(9), 3);
                (of.query_tile, of.num_selected) = (64, 9);
            }),
        ),
    ]
}

/// Problems of the kernels on tensor cores: every way that rows are packed, blocks of several steps, and lists of every kind.
pub fn native_cases() -> Vec<(String, Selection)> {
    let of = |heads: usize, heads_kv: usize, head_dim: usize, tokens: usize| {
        let mut selection = small(tokens);
        (selection.heads, selection.heads_kv, selection.head_dim) = (heads, heads_kv, head_dim);
        (selection.batch, selection.scale) = (1, (head_dim as f64).powf(-0.5));
        selection
    };
    let mut all = vec![];
    for (group, head_dim) in
        [1, 2, 3, 4, 8, 11, 16, 32, 64].into_iter().zip([64, 8, 24].into_iter().cycle())
    {
        all.push((format!("group of {group}"), of(2 * group, 2, head_dim, 300)));
    }
    let mut paper = of(32, 2, 128, 1200);
    (paper.cmp_block, paper.cmp_stride, paper.slc_block) = (32, 16, 64);
    paper.num_selected = 5;
    // Queries at both ends are enough.
    (paper.rows, paper.query_tile) = (400, 1);
    all.push(("the paper's".into(), paper));
    let mut apart = of(8, 2, 128, 1600);
    (apart.cmp_block, apart.cmp_stride, apart.slc_block) = (8, 8, 8);
    (apart.query_tile, apart.num_selected, apart.batch) = (8, 16, 2);
    all.push(("apart, in tiles".into(), apart));
    let mut negative = of(4, 2, 256, 400);
    (negative.scale, negative.cmp_block, negative.slc_block) = (-0.1, 32, 8);
    all.push(("a negative scale and long compressed blocks".into(), negative));
    // What that one has, one by one.
    all.push(("vectors of 256".into(), of(4, 2, 256, 300)));
    let mut turned = of(4, 2, 64, 300);
    turned.scale = -0.1;
    all.push(("a negative scale".into(), turned));
    let mut long = of(4, 2, 64, 400);
    (long.cmp_block, long.slc_block) = (32, 8);
    all.push(("compressed blocks of eight strides".into(), long));
    let mut uneven = of(8, 1, 40, 700);
    (uneven.cmp_block, uneven.cmp_stride, uneven.slc_block) = (6, 2, 10);
    (uneven.num_selected, uneven.query_tile) = (32, 5);
    all.push(("a stride that divides no step".into(), uneven));
    for (name, change) in cases().into_iter().filter(|(_, of)| of.compressed() > 0) {
        if change.head_dim.is_multiple_of(8) {
            all.push((name.into(), change));
        }
    }
    all
}
