//! The selection of native sparse attention.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_natten_kernels::native::sm90::{Element, select_blocks};
use burn_natten_kernels::sparse::{Selected, Selection};
use cubecl::client::Client;
use test_support::blocks::{Layout, upload_lists, view};
use test_support::compare::{device, format};
use test_support::selection::{Lists, Tensors, compare_all, native_cases, reference, run};

fn lists(
    client: &Client,
    of: &Selection,
    element: Element,
    tensors: &Tensors,
    layout: Layout,
) -> Lists {
    run(client, of, tensors, (format(element), layout), |query, key, lists| {
        select_blocks(client, of, element, query, key, None, lists)
    })
}

#[test]
fn lists_are_those_of_float64() {
    let Some(client) = device() else { return };
    let mut wrong = vec![];
    for (seed, (name, of)) in native_cases().into_iter().enumerate() {
        for (element, layout) in
            [(Element::F16, Layout::Contiguous), (Element::Bf16, Layout::Aligned)]
        {
            let tensors = Tensors::random(&of, 40 + seed as u64, format(element));
            let actual = lists(&client, &of, element, &tensors, layout);
            let compare = || compare_all(&name, &actual, &reference(&of, &tensors));
            if catch_unwind(AssertUnwindSafe(compare)).is_err() {
                wrong.push(format!("{name}, {element:?}, {layout:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Many rows, so that CTAs have as many warpgroups as there are.
fn long(tokens: usize) -> Selection {
    let mut of = Selection::new(tokens, 64, 128);
    of.heads_kv = 4;
    of
}

#[test]
fn long_sequences_repeat_bit_by_bit() {
    let Some(client) = device() else { return };
    let of = long(4096);
    let tensors = Tensors::random(&of, 50, format(Element::Bf16));
    let first = lists(&client, &of, Element::Bf16, &tensors, Layout::Contiguous);
    for _ in 0..20 {
        let again = lists(&client, &of, Element::Bf16, &tensors, Layout::Contiguous);
        assert_eq!(again, first);
    }
    let mut last = of;
    last.rows = 128;
    let row = of.heads * of.head_dim;
    let query = tensors.query[(of.rows - last.rows) * row..].to_vec();
    let some = Tensors { query, key: tensors.key };
    compare_all(
        "the last rows",
        &lists(&client, &last, Element::Bf16, &some, Layout::Contiguous),
        &reference(&last, &some),
    );
    assert_eq!(
        lists(&client, &last, Element::Bf16, &some, Layout::Contiguous).blocks[..],
        first.blocks[first.blocks.len() - last.lists()..]
    );
}

/// Prints milliseconds: `--ignored --nocapture`.
#[test]
#[ignore = "a benchmark"]
fn times() {
    let Some(client) = device() else { return };
    let shapes = [(64, 4, 32, 16, 64), (32, 8, 64, 64, 64)];
    for (heads, heads_kv, block, stride, selected) in shapes {
        for tokens in [16, 64].map(|thousands| thousands << 10) {
            let mut of = Selection::new(tokens, heads, 128);
            (of.heads_kv, of.cmp_block, of.cmp_stride, of.slc_block) =
                (heads_kv, block, stride, selected);
            let [query, key] = of.shapes().map(|shape| {
                let values: Vec<f64> = (0..shape.elements().min(1 << 20))
                    .map(|i| ((i * 7919 % 1009) as f64 - 504.0) / 300.0)
                    .collect();
                let values: Vec<f64> =
                    values.iter().copied().cycle().take(shape.elements()).collect();
                view(&client, format(Element::Bf16), &values, shape, Layout::Contiguous)
            });
            let blocks = upload_lists(&client, &vec![0; of.lists() * of.num_selected]);
            let lists = Selected { blocks, compressed: None };
            let lse = upload_lists(&client, &vec![0; tokens * heads]);
            for lse in [None, Some(&lse)] {
                let launch = || {
                    select_blocks(&client, &of, Element::Bf16, &query, &key, lse, &lists)
                        .expect("launched")
                };
                let wait = || drop(client.read_one(upload_lists(&client, &[0])));
                launch();
                wait();
                let start = std::time::Instant::now();
                (0..20).for_each(|_| launch());
                wait();
                let each = start.elapsed().as_secs_f64() * 1e3 / 20.0;
                let given = lse.is_some();
                println!("{heads}/{heads_kv} heads, {tokens} tokens, lse {given}: {each:.3} ms");
            }
        }
    }
}
