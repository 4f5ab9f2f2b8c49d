//! What native sparse attention selects, against `f64`.

use burn_natten_kernels::KernelError;
use burn_natten_kernels::sparse::{Selected, Selection, select_blocks, select_blocks_with};
use test_support::blocks::{LAYOUTS, Layout, upload_lists, view};
use test_support::format::{BF16, F16, F32, Format};
use test_support::portable::client;
use test_support::selection::{self, Lists, Tensors, cases, compare_all, reference, small};

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
    let (client, elem) = (client(), format.elem());
    selection::run(&client, of, tensors, (format, layout), |query, key, lists| match units {
        None => select_blocks(&client, of, elem, query, key, lists),
        Some(units) => select_blocks_with(&client, units, of, elem, query, key, lists),
    })
}

fn check(name: &str, of: &Selection, format: Format, layout: Layout, seed: u64) {
    if !client().properties().supports_type(format.elem()) {
        println!("{name}: no {:?} on this device", format.kind);
        return;
    }
    let tensors = Tensors::random(of, seed, format);
    compare_all(name, &run(of, &tensors, format, layout), &reference(of, &tensors));
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
            compare_all(&format!("{name} by {units}"), &lists, &expected);
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
