//! What native sparse attention selects, against `f64`.

use burn_natten_kernels::KernelError;
use burn_natten_kernels::sparse::{Selected, Selection, select_blocks, select_blocks_with};
use rand::{Rng, SeedableRng, rngs::StdRng};
use test_support::format::{BF16, F16, F32, Format};
use test_support::portable::client;

use test_support::blocks::{LAYOUTS, Layout, upload_lists, view};

/// Lists of both kinds.
type Lists = Selected<Vec<Vec<i32>>>;

/// The lists, and of each how much the last one chosen beats the first one left out.
struct Reference {
    lists: Lists,
    gaps: Selected<Vec<f64>>,
}

struct Tensors {
    query: Vec<f64>,
    key: Vec<f64>,
}

impl Tensors {
    fn random(of: &Selection, seed: u64, format: Format) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut values = |elements: usize| -> Vec<f64> {
            (0..elements).map(|_| (format.round)(rng.random_range(-2.0..2.0))).collect()
        };
        let [query, key] = of.shapes().map(|shape| values(shape.elements()));
        Self { query, key }
    }
}

fn complete(of: &Selection, tokens: usize) -> usize {
    (0..tokens).filter(|block| block * of.cmp_stride + of.cmp_block <= tokens).count()
}

/// The best of some candidates besides those that are forced, ascending and padded, and the gap.
fn list(
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

fn reference(of: &Selection, tensors: &Tensors) -> Reference {
    let (dim, group) = (of.head_dim, of.heads / of.heads_kv);
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
            let q = &tensors.query[((batch * of.rows + row) * of.heads + head) * dim..][..dim];
            let scores: Vec<f64> = (0..seen)
                .map(|x| {
                    let at = ((batch * of.compressed() + x) * of.heads_kv + head_kv) * dim;
                    let dot: f64 = q.iter().zip(&tensors.key[at..]).map(|(q, k)| q * k).sum();
                    of.scale * dot
                })
                .collect();
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

fn run(of: &Selection, tensors: &Tensors, format: Format, layout: Layout) -> Lists {
    run_by(of, tensors, format, layout, None)
}

/// By so many units a list, or as many as a device is thought to want.
fn run_by(
    of: &Selection,
    tensors: &Tensors,
    format: Format,
    layout: Layout,
    units: Option<u32>,
) -> Lists {
    let client = client();
    let [query, key] = of.shapes();
    let query = view(&client, format, &tensors.query, query, layout);
    let key = view(&client, format, &tensors.key, key, layout);
    // What no list has.
    let poison = |entries: usize| upload_lists(&client, &vec![i32::MAX; of.lists() * entries]);
    let lists = Selected { blocks: poison(of.num_selected), compressed: of.cmp_top.map(poison) };
    let elem = format.elem();
    match units {
        None => select_blocks(&client, of, elem, &query, &key, &lists),
        Some(units) => select_blocks_with(&client, units, of, elem, &query, &key, &lists),
    }
    .expect("launched");
    let read = |handle, entries: usize| {
        let bytes = client.read_one(handle).expect("the kernel ran");
        let (chunks, _) = bytes.as_chunks::<4>();
        let numbers: Vec<i32> = chunks.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
        numbers[..of.lists() * entries].chunks(entries).map(<[_]>::to_vec).collect()
    };
    let compressed = lists.compressed.zip(of.cmp_top).map(|(handle, top)| read(handle, top));
    Selected { blocks: read(lists.blocks, of.num_selected), compressed }
}

/// Fails where a list is another, unless rounding may have chosen between two.
fn compare(name: &str, actual: &[Vec<i32>], expected: &[Vec<i32>], gaps: &[f64]) {
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

fn check(name: &str, of: &Selection, format: Format, layout: Layout, seed: u64) {
    if !client().properties().supports_type(format.elem()) {
        println!("{name}: no {:?} on this device", format.kind);
        return;
    }
    let tensors = Tensors::random(of, seed, format);
    let expected = reference(of, &tensors);
    let actual = run(of, &tensors, format, layout);
    compare(name, &actual.blocks, &expected.lists.blocks, &expected.gaps.blocks);
    if let (Some(actual), Some(expected), Some(gaps)) =
        (&actual.compressed, &expected.lists.compressed, &expected.gaps.compressed)
    {
        compare(&format!("{name}, super-blocks"), actual, expected, gaps);
    }
}

/// Two samples of short blocks.
fn small(tokens: usize) -> Selection {
    let mut small = Selection::new(tokens, 4, 8);
    small.batch = 2;
    small.heads_kv = 2;
    (small.cmp_block, small.cmp_stride, small.slc_block) = (8, 4, 16);
    (small.num_selected, small.num_init, small.num_local) = (6, 1, 2);
    small
}

fn cases() -> Vec<(&'static str, Selection)> {
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

#[test]
fn lists_are_those_of_float64() {
    for (seed, (name, selection)) in cases().into_iter().enumerate() {
        assert_eq!(selection.check(), Ok(()), "{name}");
        check(name, &selection, F32, LAYOUTS[seed % 3], 70 + seed as u64);
    }
}

#[test]
fn units_that_share_a_list_choose_as_one_does() {
    let most = client().properties().hardware.max_units_per_cube;
    for (name, of) in [cases()[0], cases()[11]] {
        let tensors = Tensors::random(&of, 95, F32);
        let expected = reference(&of, &tensors);
        for units in [1, 2, 7, 64].into_iter().filter(|units| *units <= most) {
            let lists = run_by(&of, &tensors, F32, Layout::Contiguous, Some(units));
            let name = format!("{name} by {units}");
            compare(&name, &lists.blocks, &expected.lists.blocks, &expected.gaps.blocks);
            if let (Some(actual), Some(expected), Some(gaps)) =
                (&lists.compressed, &expected.lists.compressed, &expected.gaps.compressed)
            {
                compare(&name, actual, expected, gaps);
            }
        }
    }
}

#[test]
fn half_types_choose_as_float64_does() {
    for (seed, (name, selection)) in cases().into_iter().take(3).enumerate() {
        check(name, &selection, [F16, BF16][seed % 2], LAYOUTS[seed % 3], 80 + seed as u64);
    }
}

#[test]
fn chunks_of_probabilities_meet() {
    // A block has three compressed ones in a chunk of 512, so that several chunks pass by.
    let mut long = small(3000);
    (long.batch, long.rows, long.query_tile) = (1, 8, 1);
    (long.cmp_block, long.cmp_stride, long.slc_block) = (4, 2, 6);
    check("chunks", &long, F32, Layout::Contiguous, 90);
    // A block has more than a chunk.
    (long.cmp_block, long.cmp_stride, long.slc_block, long.num_selected) = (2, 1, 700, 3);
    (long.num_init, long.num_local) = (0, 1);
    check("long blocks", &long, F32, Layout::Contiguous, 91);
}

#[test]
fn the_lower_number_wins_among_equals() {
    let of = small(200);
    let [query, key] = of.shapes().map(|shape| vec![0.0; shape.elements()]);
    let lists = run(&of, &Tensors { query, key }, F32, Layout::Contiguous).blocks;
    // All blocks but the first, which is forced, have as much of the whole.
    let last = &lists[lists.len() - 1];
    assert_eq!(last, &[0, 1, 2, 3, 11, 12]);
    // Blocks that no complete one reaches have nothing, all alike.
    let mut late = small(60);
    (late.cmp_block, late.slc_block, late.num_selected) = (48, 4, 4);
    let tensors = Tensors::random(&late, 92, F32);
    let lists = run(&late, &tensors, F32, Layout::Contiguous).blocks;
    assert_eq!(lists[2 * 40], [0, 1, 9, 10]);
}

#[test]
fn rows_know_nothing_of_later_tokens() {
    let (long, short) = (small(230), small(150));
    let tensors = Tensors::random(&long, 93, F32);
    let part = |values: &[f64], from: [usize; 2], row: usize| -> Vec<f64> {
        let samples = values.chunks(from[0] * row);
        samples.flat_map(|sample| &sample[..from[1] * row]).copied().collect()
    };
    let first = Tensors {
        query: part(&tensors.query, [long.rows, short.rows], 4 * 8),
        key: part(&tensors.key, [long.compressed(), short.compressed()], 2 * 8),
    };
    let (all, some) = (
        run(&long, &tensors, F32, Layout::Contiguous).blocks,
        run(&short, &first, F32, Layout::Contiguous).blocks,
    );
    let lists = |of: &Selection| of.lists() / 2;
    for sample in 0..2 {
        assert_eq!(
            all[sample * lists(&long)..][..lists(&short)],
            some[sample * lists(&short)..][..lists(&short)]
        );
    }
    // The last rows alone have the same lists.
    let mut last = long;
    last.rows = 20;
    let query: Vec<f64> = tensors
        .query
        .chunks(long.rows * 32)
        .flat_map(|sample| &sample[(long.rows - 20) * 32..])
        .copied()
        .collect();
    let decoded = run(&last, &Tensors { query, ..tensors }, F32, Layout::Contiguous).blocks;
    for sample in 0..2 {
        let of_sample = &all[sample * lists(&long)..][..lists(&long)];
        assert_eq!(decoded[sample * 40..][..40], of_sample[lists(&long) - 40..]);
    }
}

#[test]
fn what_cannot_run_is_refused_in_words() {
    let client = client();
    let of = small(64);
    let tensors = Tensors::random(&of, 94, F32);
    let [query, key] = of.shapes();
    let query = view(&client, F32, &tensors.query, query, Layout::Contiguous);
    let key = view(&client, F32, &tensors.key, key, Layout::Contiguous);
    let blocks = |count: usize| upload_lists(&client, &vec![0; count]);
    let whole = of.lists() * of.num_selected;
    let launch = |of: &Selection, lists: Selected<_>| {
        select_blocks(&client, of, F32.elem(), &query, &key, &lists)
    };
    let one = |count| Selected { blocks: blocks(count), compressed: None };
    assert_eq!(launch(&of, one(whole)), Ok(()));
    let result = launch(&of, one(whole - 1));
    assert!(matches!(result, Err(KernelError::Buffer { name: "blocks", .. })), "{result:?}");
    type Change = fn(&mut Selection);
    let changes: [(&str, Change); 7] = [
        ("heads_kv", |of| of.heads_kv = 3),
        ("cmp_block", |of| of.cmp_stride = 3),
        ("slc_block", |of| of.slc_block = 18),
        ("query_tile", |of| of.query_tile = 3),
        ("num_local", |of| of.num_local = 0),
        ("num_selected", |of| of.num_selected = 1),
        ("super-blocks", |of| of.cmp_top = Some(2)),
    ];
    for (word, change) in changes {
        let mut changed = of;
        change(&mut changed);
        let result = launch(&changed, one(whole));
        let Err(KernelError::Problem(reason)) = &result else { panic!("{word}: {result:?}") };
        assert!(reason.contains(word), "{reason}");
    }
}
