//! Native sparse attention of one more token for each sequence.

use burn_natten_kernels::native::decode::{Decoding, decode};
use burn_natten_kernels::native::sm90::Element;
use burn_natten_kernels::sparse::Selection;
use cubecl::client::Client;
use test_support::blocks::Layout;
use test_support::compare::{device, format};
use test_support::decoding::{Data, Results, cases, check, check_appended, run, run_on, upload};

fn results(
    client: &Client,
    of: &Decoding,
    element: Element,
    data: &Data,
    layout: Layout,
) -> Results {
    run(client, of, data, (format(element), layout), |inputs, outputs| {
        decode(client, of, element, inputs, outputs)
    })
}

#[test]
fn tokens_are_those_of_float64() {
    let Some(client) = device() else { return };
    let mut wrong = vec![];
    for (seed, (name, of)) in cases().into_iter().enumerate() {
        for (element, layout) in [
            (Element::F16, Layout::Contiguous),
            (Element::Bf16, Layout::Aligned),
            (Element::Bf16, Layout::Swapped),
        ] {
            let data = Data::random(&of, 40 + seed as u64, format(element));
            let got = results(&client, &of, element, &data, layout);
            let result = check(&of, &data, format(element), &got);
            wrong.extend(result.err().map(|how| format!("{name}, {element:?}, {layout:?}: {how}")));
            for own in [[false; 2], [true; 2], [true, false]] {
                let with = (format(element), layout);
                let result = check_appended(&client, &of, &data, own, with, |inputs, outputs| {
                    decode(&client, &of, element, inputs, outputs)
                });
                let what = format!("{name}, {element:?}, {layout:?}, appended, own {own:?}");
                wrong.extend(result.err().map(|how| format!("{what}: {how}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// So many CTAs that which is the last one changes.
#[test]
fn long_sequences_repeat_bit_by_bit() {
    let Some(client) = device() else { return };
    let (element, format) = (Element::Bf16, format(Element::Bf16));
    for (batch, heads_kv, tokens) in [(1, 4, 30_000), (3, 8, 6_000)] {
        let mut selection = Selection::new(tokens, 64, 128);
        (selection.batch, selection.heads_kv, selection.rows) = (batch, heads_kv, 1);
        let of = Decoding { selection, head_dim_v: 128, window: 512, window_tokens: 700 };
        let data = Data::random(&of, 50, format);
        let inputs = upload(&client, &of, &data, format, Layout::Contiguous);
        let run = || {
            run_on(&client, &of, format, &inputs, |inputs, outputs| {
                decode(&client, &of, element, inputs, outputs)
            })
        };
        let first = run();
        check(&of, &data, format, &first).unwrap_or_else(|wrong| panic!("{wrong}"));
        for _ in 0..50 {
            assert_eq!(run(), first);
        }
    }
}
