//! Every error with its exact text.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{DType, Device, FloatDType, Int, Tensor};
use burn_natten::nsa::PerBranch;
use burn_natten::{
    Mslk, NativeSparseAttentionOptions, NativeSparseCache, Pooling, Strategy, compress_tokens,
    native_sparse_attention, try_compress_tokens, try_native_sparse_attention,
    try_native_sparse_attention_packed,
};
use rstest::rstest;

use super::random::options;

fn zeros<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::zeros(shape, (&Device::flex(), DType::F32))
}

const QUERY: [usize; 4] = [2, 40, 4, 8];
const KEY: [usize; 4] = [2, 40, 2, 8];
const VALUE: [usize; 4] = [2, 40, 2, 6];
const GATES: [usize; 4] = [2, 40, 4, 3];

/// The operator and its twin fail with `text`.
#[track_caller]
fn fails(shapes: [[usize; 4]; 4], options: NativeSparseAttentionOptions, text: &str) {
    let [q, k, v, g] = shapes.map(zeros);
    let error =
        try_native_sparse_attention(q.clone(), k.clone(), v.clone(), g.clone(), options.clone())
            .expect_err(text);
    assert_eq!(error.to_string(), text);
    let panics = catch_unwind(AssertUnwindSafe(|| native_sparse_attention(q, k, v, g, options)));
    let payload = panics.expect_err("it panics");
    assert_eq!(payload.downcast_ref::<String>().expect("a formatted message"), text);
}

#[rstest]
#[case(options().with_cmp_stride(0), "cmp_stride: is 0, must be at least 1")]
#[case(options().with_cmp_block(0), "cmp_block: is 0, must be at least 1")]
#[case(options().with_slc_block(0), "slc_block: is 0, must be at least 1")]
#[case(options().with_query_tile(0), "query_tile: is 0, must be at least 1")]
#[case(options().with_num_local(0), "num_local: is 0, must be at least 1")]
#[case(options().with_cmp_group(0), "cmp_group: is 0, must be at least 1")]
#[case(options().with_cmp_block(6), "cmp_block: is 6, must be a multiple of 4 (cmp_stride)")]
#[case(options().with_slc_block(10), "slc_block: is 10, must be a multiple of 4 (cmp_stride)")]
#[case(
    options().with_query_tile(12),
    "query_tile: is 12, must be a divisor or a multiple of 8 (slc_block)"
)]
#[case(
    options().with_num_selected(1),
    "num_selected: is 1, must be at least 3 (num_init + num_local - 1 + 1 selection blocks of a query tile)"
)]
#[case(
    options().with_num_init(usize::MAX),
    "num_selected: is 4, must be at least 18446744073709551615 (num_init + num_local - 1 + 1 selection blocks of a query tile)"
)]
#[case(
    options().with_strategy(Strategy::TensorCore),
    "strategy: TensorCore cannot run here, native sparse attention has Portable and Reference"
)]
#[case(
    options().with_query_tile(16).with_num_selected(3),
    "num_selected: is 3, must be at least 4 (num_init + num_local - 1 + 2 selection blocks of a query tile)"
)]
#[case(
    options().with_query_tile(16).with_cmp_top(2).with_cmp_group(2),
    "cmp_top: is 2, must be at least 3 (super-blocks that fill while a query tile lasts)"
)]
#[case(options().with_mslk(Mslk::new()), "cmp_stride: is 4, must be 8 (cmp_block) as MSLK has it")]
#[case(
    options().with_cmp_stride(8).with_cmp_top(2).with_mslk(Mslk::new()),
    "cmp_top: is 2, must be none, as MSLK has it"
)]
#[case(
    options().with_cmp_stride(8).with_query_tile(16).with_mslk(Mslk::new()),
    "tokens of key: is 40, must be a multiple of 16 (query_tile) as MSLK has it"
)]
#[case(options().with_scale(f64::NAN), "scale: is NaN, must be finite")]
#[case(
    options().with_pooling(Pooling::Weighted(zeros([2, 7])), Pooling::Mean),
    "pooling: axis 1 (cmp_block) is 7, must be 8 as in options"
)]
#[case(
    options().with_pooling(Pooling::Mean, Pooling::MeanProjected(zeros([2, 8, 8]))),
    "pooling: axis 1 (head_dim) is 8, must be 6 as in value"
)]
#[case(
    options().with_pooling(Pooling::Linear(zeros([4, 8, 8, 8])), Pooling::Mean),
    "pooling: axis 0 (heads) is 4, must be 2 as in key"
)]
#[case(
    options().with_compressed((zeros([2, 8, 2, 8]), zeros([2, 9, 2, 6]))),
    "number of compressed tokens: is 8, must be 9 (complete blocks of 40 tokens)"
)]
#[case(
    options().with_blocks(Tensor::<4, Int>::zeros([2, 39, 2, 4], &Device::flex())),
    "blocks: axis 1 (blocks of queries) is 39, must be 40 as in query and query_block"
)]
fn options_that_do_not_fit(#[case] options: NativeSparseAttentionOptions, #[case] text: &str) {
    fails([QUERY, KEY, VALUE, GATES], options, text);
}

#[rstest]
#[case([[2, 40, 3, 8], KEY, VALUE, [2, 40, 3, 3]],
    "query: has 3 heads, must be a multiple of the 2 heads of key")]
#[case([QUERY, [1, 40, 2, 8], VALUE, GATES], "key: axis 0 (batch) is 1, must be 2 as in query")]
#[case([QUERY, KEY, [2, 39, 2, 6], GATES], "value: axis 1 (tokens) is 39, must be 40 as in key")]
#[case([QUERY, KEY, VALUE, [2, 40, 4, 2]],
    "gates: axis 3 (branches) is 2, must be 3 as in the number of branches")]
#[case([QUERY, KEY, VALUE, [2, 39, 4, 3]], "gates: axis 1 (tokens) is 39, must be 40 as in query")]
#[case([[2, 41, 4, 8], KEY, VALUE, [2, 41, 4, 3]],
    "tokens of query: is 41, must be at most 40 (tokens of key)")]
fn shapes_that_do_not_fit(#[case] shapes: [[usize; 4]; 4], #[case] text: &str) {
    fails(shapes, options(), text);
}

#[test]
fn rows_begin_with_a_tile() {
    let text =
        "tokens of query: is 6, must be 40 (tokens of key) less a multiple of 4 (query_tile)";
    fails([[2, 6, 4, 8], KEY, VALUE, [2, 6, 4, 3]], options().with_query_tile(4), text);
}

#[test]
fn branches_are_alike() {
    let own =
        PerBranch { compressed: zeros(KEY), selected: zeros(KEY), window: zeros([2, 40, 2, 4]) };
    let error =
        try_native_sparse_attention(zeros(QUERY), own, zeros(VALUE), zeros(GATES), options())
            .expect_err("another head_dim");
    let text = "key: axis 3 (head_dim) is 4, must be 8 as in key of the compressed branch";
    assert_eq!(error.to_string(), text);
    let halves = zeros(GATES).cast(FloatDType::F16);
    let error =
        try_native_sparse_attention(zeros(QUERY), zeros(KEY), zeros(VALUE), halves, options())
            .expect_err("another dtype");
    assert_eq!(error.to_string(), "gates: has dtype F16, must be F32 as in query");
}

#[rstest]
#[case(1, &[], "number of cumulative lengths: is 0, must be at least 1")]
#[case(1, &[1, 40], "first cumulative length: is 1, must be 0")]
#[case(1, &[0, 30, 20, 40], "cumulative length: is 20, must be at least 30 (the one before)")]
#[case(1, &[0, 30], "last cumulative length: is 30, must be 40 (tokens of query)")]
#[case(2, &[0, 40], "batch of packed sequences: is 2, must be 1")]
fn lengths_that_do_not_fit(#[case] batch: usize, #[case] lengths: &[usize], #[case] text: &str) {
    let [q, k, v, g] = [QUERY, KEY, VALUE, GATES].map(|mut shape| {
        shape[0] = batch;
        zeros(shape)
    });
    let error = try_native_sparse_attention_packed(q, k, v, g, lengths, options())
        .expect_err("lengths do not fit");
    assert_eq!(error.to_string(), text);
}

#[test]
fn what_a_cache_refuses() {
    let error = |options| NativeSparseCache::try_new(options).expect_err("not with a cache");
    let mslk = options().with_cmp_stride(8).with_mslk(Mslk::new());
    let text = "number of MSLK's attentions: is 1, must be none where there is a cache";
    assert_eq!(error(mslk).to_string(), text);
    let given = options().with_compressed((zeros([1, 1, 1, 1]), zeros([1, 1, 1, 1])));
    let text = "number of given compressed tokens: is 1, must be none where there is a cache";
    assert_eq!(error(given).to_string(), text);
    let text =
        "strategy: Hopper cannot run here, native sparse attention has Portable and Reference";
    assert_eq!(error(options().with_strategy(Strategy::Hopper)).to_string(), text);

    let pooling = Pooling::Weighted(zeros([2, 16]));
    let mut cache = NativeSparseCache::new(options().with_pooling(Pooling::Mean, pooling));
    let error = cache
        .try_append(zeros(QUERY), zeros(KEY), zeros(VALUE), zeros(GATES))
        .expect_err("blocks have 8 tokens");
    let text = "pooling: axis 1 (cmp_block) is 16, must be 8 as in options";
    assert_eq!((error.to_string().as_str(), cache.tokens()), (text, 0));

    let mut cache = NativeSparseCache::new(options());
    cache.append(zeros(QUERY), zeros(KEY), zeros(VALUE), zeros(GATES));
    let own = |shape: [usize; 4]| PerBranch {
        compressed: zeros(shape),
        selected: zeros(shape),
        window: zeros(shape),
    };
    let error = cache
        .try_append(zeros(QUERY), own(KEY), zeros(VALUE), zeros(GATES))
        .expect_err("they were shared");
    assert_eq!(error.to_string(), "tensors of key: is 3, must be 1 as in the cache");
    let [q, k, v, g] = [QUERY, KEY, VALUE, GATES].map(|mut shape| {
        shape[0] = 1;
        zeros(shape)
    });
    let error = cache.try_append(q, k, v, g).expect_err("another batch");
    assert_eq!(error.to_string(), "query: axis 0 (batch) is 1, must be 2 as in the cache");
    assert_eq!(cache.tokens(), 40);
}

/// Lists and compressed tokens of a packed batch are those of its sequences, and not of all tokens at once.
#[test]
fn what_packed_sequences_bring() {
    let of = |shape: [usize; 4]| zeros([1, shape[1], shape[2], shape[3]]);
    let error = |options| {
        let (q, k, v, g) = (of(QUERY), of(KEY), of(VALUE), of(GATES));
        try_native_sparse_attention_packed(q, k, v, g, &[0, 22, 40], options)
            .expect_err("there are too many")
            .to_string()
    };
    // 40 tokens have 9 blocks, 22 and 18 of them have 4 and 3.
    let whole = options().with_compressed((zeros([1, 9, 2, 8]), zeros([1, 9, 2, 6])));
    let text = "number of compressed tokens: is 9, must be 7 (of all sequences)";
    assert_eq!(error(whole), text);
    let lists = Tensor::<4, Int>::zeros([1, 41, 2, 4], &Device::flex());
    let text = "tiles of blocks: is 41, must be 40 (of all sequences)";
    assert_eq!(error(options().with_blocks(lists)), text);
}

#[test]
fn compression_alone() {
    let weights = Pooling::Weighted(zeros([2, 9]));
    let text = "pooling: axis 1 (cmp_block) is 9, must be 8 as in options";
    let error = try_compress_tokens(zeros(KEY), &weights, &options()).expect_err(text);
    assert_eq!(error.to_string(), text);
    let panics = catch_unwind(|| compress_tokens(zeros(KEY), &weights, &options()));
    assert!(panics.is_err());
}
