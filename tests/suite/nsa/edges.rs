//! The edges of what is allowed.

use burn::tensor::{DType, Int, Tensor};
use burn_natten::{AttentionOptions, NativeSparseAttentionOptions, attention, compress_tokens};
use burn_natten::{
    compressed_attention, native_sparse_attention, select_blocks, try_native_sparse_attention,
    try_native_sparse_attention_packed,
};

use super::random::{Sizes, many_options, options};
use crate::support::check::{F32, close};
use crate::support::quick_devices;
use crate::support::run::values;

/// Lengths 0, 1, below a block, and of one: rows that see nothing in a branch get nothing from it, and no NaN.
#[test]
fn short_sequences() {
    for device in quick_devices() {
        for tokens in [0, 1, 2, 7, 8, 9] {
            let sizes = Sizes { batch: 2, tokens, ..Sizes::default() };
            let inputs = sizes.inputs(7);
            for (name, options) in many_options().into_iter().step_by(device.sampling(4)) {
                let [q, k, v, g] = sizes.tensors(&inputs, &device.device, DType::F32);
                let output = native_sparse_attention(q, k, v, g, options);
                assert_eq!(output.dims(), [2, tokens, 4, 3], "{name}");
                let finite = values(output).iter().all(|value| value.is_finite());
                assert!(finite, "{} {name} {tokens} tokens", device.name);
            }
        }
    }
}

/// Where every block is selected, the selected branch is causal attention.
#[test]
fn all_blocks_are_causal_attention() {
    let sizes = Sizes::default();
    let inputs = sizes.inputs(8);
    for device in quick_devices() {
        let [q, k, v, g] = sizes.tensors(&inputs, &device.device, DType::F32);
        let options = options().with_num_selected(8).with_window(61);
        let output = try_native_sparse_attention(q.clone(), k.clone(), v.clone(), g, options)
            .expect("a valid problem");
        let causal = values(attention(q, k, v, AttentionOptions::new().with_causal(true)));
        close(device.name, &values(output.branches.selected.out), &causal, F32);
        close(device.name, &values(output.branches.window.out), &causal, F32);
    }
}

/// The last rows alone are rows of the whole.
#[test]
fn last_rows() {
    let sizes = Sizes { batch: 2, tokens: 64, ..Sizes::default() };
    let inputs = sizes.inputs(9);
    for device in quick_devices() {
        for (name, options) in many_options().into_iter().step_by(device.sampling(3)) {
            let [q, k, v, g] = sizes.tensors(&inputs, &device.device, DType::F32);
            let run = |rows: usize| {
                let last = |tensor: &Tensor<4>| tensor.clone().narrow(1, 64 - rows, rows);
                let (q, g) = (last(&q), last(&g));
                native_sparse_attention(q, k.clone(), v.clone(), g, options.clone())
            };
            let whole = run(64);
            for rows in [16, 32, 48] {
                let what = format!("{} {name} {rows} rows", device.name);
                let expected = whole.clone().narrow(1, 64 - rows, rows);
                close(&what, &values(run(rows)), &values(expected), F32);
            }
        }
    }
}

/// The functions that the operator is made of, one by one.
#[test]
fn the_parts_make_the_whole() {
    let sizes = Sizes::default();
    let inputs = sizes.inputs(10);
    for device in quick_devices() {
        for thinned in [None, Some(3)] {
            let options = options().with_cmp_top(thinned).with_cmp_group(2);
            let [q, k, v, g] = sizes.tensors(&inputs, &device.device, DType::F32);
            let output =
                try_native_sparse_attention(q.clone(), k.clone(), v.clone(), g, options.clone())
                    .expect("a valid problem");
            let [kc, vc] =
                [k, v].map(|x| compress_tokens(x, &burn_natten::Pooling::Mean, &options));
            let lists = select_blocks(q.clone(), kc.clone(), 61, &options);
            let numbers = |lists: Tensor<4, Int>| lists.into_data().convert::<i64>();
            assert_eq!(numbers(lists.blocks), numbers(output.blocks));
            let compressed = compressed_attention(q, kc, vc, 61, &options);
            let expected = values(output.branches.compressed.out);
            close(device.name, &values(compressed), &expected, F32);
        }
    }
}

/// Packed sequences of any lengths are what each is alone.
#[test]
fn packed_sequences_are_on_their_own() {
    let sizes = Sizes::default();
    let inputs = sizes.inputs(11);
    let lengths = [0, 0, 20, 21, 26, 61, 61];
    for device in quick_devices() {
        for (name, options) in many_options().into_iter().step_by(device.sampling(5)) {
            let tensors = sizes.tensors(&inputs, &device.device, DType::F32);
            let run = |options: NativeSparseAttentionOptions| {
                let [q, k, v, g] = tensors.clone();
                try_native_sparse_attention_packed(q, k, v, g, &lengths, options)
                    .expect("valid sequences")
            };
            let packed = run(options.clone());
            let alone = lengths.windows(2).filter(|pair| pair[1] > pair[0]).map(|pair| {
                let [q, k, v, g] = tensors.clone().map(|x| x.narrow(1, pair[0], pair[1] - pair[0]));
                native_sparse_attention(q, k, v, g, options.clone())
            });
            let alone = values(Tensor::cat(alone.collect(), 1));
            let what = format!("{} {name}", device.name);
            close(&what, &values(packed.out.clone()), &alone, F32);
            let again = options.clone().with_blocks(packed.blocks);
            let again = run(again.with_cmp_blocks(packed.cmp_blocks));
            close(&what, &values(again.out), &alone, F32);
        }
    }
}
