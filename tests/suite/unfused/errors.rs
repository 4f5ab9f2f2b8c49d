//! Every error with its exact text, and the panics that carry the same text.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{DType, Device, Tensor};
use burn_natten::{
    NeighborhoodOptions, Strategy, na2d_av, na2d_qk, try_na1d_qk, try_na2d_av, try_na2d_qk,
    try_na3d_av,
};
use rstest::rstest;

fn zeros<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::zeros(shape, (&Device::flex(), DType::F32))
}

fn options() -> NeighborhoodOptions<2> {
    NeighborhoodOptions::new(3)
}

#[track_caller]
fn qk_fails(query: Tensor<5>, key: Tensor<5>, options: NeighborhoodOptions<2>, text: &str) {
    let error = try_na2d_qk(query.clone(), key.clone(), options.clone()).expect_err(text);
    assert_eq!(error.to_string(), text);
    let panic = catch_unwind(AssertUnwindSafe(|| na2d_qk(query, key, options)));
    let payload = panic.expect_err("it panics");
    assert_eq!(payload.downcast_ref::<String>().map(String::as_str), Some(text));
}

#[track_caller]
fn av_fails(weights: Tensor<5>, value: Tensor<5>, options: NeighborhoodOptions<2>, text: &str) {
    let error = try_na2d_av(weights.clone(), value.clone(), options.clone()).expect_err(text);
    assert_eq!(error.to_string(), text);
    let panic = catch_unwind(AssertUnwindSafe(|| na2d_av(weights, value, options)));
    let payload = panic.expect_err("it panics");
    assert_eq!(payload.downcast_ref::<String>().map(String::as_str), Some(text));
}

const QUERY: [usize; 5] = [2, 6, 7, 4, 8];
const KEY: [usize; 5] = [2, 6, 7, 2, 8];
const WEIGHTS: [usize; 5] = [2, 6, 7, 4, 9];

#[rstest]
#[case([2, 6, 7, 3, 8], KEY, "query: has 3 heads, must be a multiple of the 2 heads of key")]
#[case(QUERY, [1, 6, 7, 2, 8], "key: axis 0 (batch) is 1, must be 2 as in query")]
#[case(QUERY, [2, 5, 7, 2, 8], "key: axis 1 (space) is 5, must be 6 as in query")]
#[case(QUERY, [2, 6, 7, 2, 9], "key: axis 4 (head_dim) is 9, must be 8 as in query")]
#[case([2, 6, 7, 0, 8], KEY, "query: axis 3 (heads) is 0, must be at least 1")]
#[case(QUERY, [2, 6, 7, 0, 8], "key: axis 3 (heads) is 0, must be at least 1")]
fn shapes_of_queries_and_keys(
    #[case] query: [usize; 5],
    #[case] key: [usize; 5],
    #[case] text: &str,
) {
    qk_fails(zeros(query), zeros(key), options(), text);
}

#[rstest]
#[case([2, 6, 7, 3, 9], KEY, "weights: has 3 heads, must be a multiple of the 2 heads of value")]
#[case(WEIGHTS, [1, 6, 7, 2, 8], "value: axis 0 (batch) is 1, must be 2 as in weights")]
#[case(WEIGHTS, [2, 6, 8, 2, 8], "value: axis 2 (space) is 8, must be 7 as in weights")]
#[case([2, 6, 7, 0, 9], KEY, "weights: axis 3 (heads) is 0, must be at least 1")]
#[case(WEIGHTS, [2, 6, 7, 0, 8], "value: axis 3 (heads) is 0, must be at least 1")]
#[case(WEIGHTS, [2, 6, 7, 2, 0], "value: axis 4 (head_dim) is 0, must be at least 1")]
#[case(
    [2, 6, 7, 4, 10], KEY,
    "weights: axis 4 (window) is 10, must be 9 as in kernel_size and additional_values"
)]
fn shapes_of_weights_and_values(
    #[case] weights: [usize; 5],
    #[case] value: [usize; 5],
    #[case] text: &str,
) {
    av_fails(zeros(weights), zeros(value), options(), text);
}

#[test]
fn windows_fit_their_axes() {
    let text = "kernel_size: axis 1 is 8, must be at most 7 (the length of the axis)";
    qk_fails(zeros(QUERY), zeros(KEY), NeighborhoodOptions::new([3, 8]), text);
    av_fails(zeros(WEIGHTS), zeros(KEY), NeighborhoodOptions::new([3, 8]), text);
    let text = "scale: is inf, must be finite";
    qk_fails(zeros(QUERY), zeros(KEY), options().with_scale(f64::INFINITY), text);
}

#[test]
fn additional_tokens_fit_their_half() {
    let tokens = |shape: [usize; 4]| zeros(shape);
    let given = |keys: Option<[usize; 4]>, values: Option<[usize; 4]>| {
        options().with_additional_kv(keys.map(tokens), values.map(tokens))
    };
    let (good, wide) = ([2, 3, 2, 8], [2, 3, 2, 5]);
    // Each half can do without what the other takes, and takes the options of both.
    for options in [given(Some(good), None), given(Some(good), Some(wide))] {
        let scores = try_na2d_qk(zeros(QUERY), zeros(KEY), options).expect("valid");
        assert_eq!(scores.dims(), [2, 6, 7, 4, 12]);
    }
    let weights = [2, 6, 7, 4, 12];
    for options in [given(None, Some(good)), given(Some(wide), Some(good))] {
        let out = try_na2d_av(zeros(weights), zeros(KEY), options).expect("valid");
        assert_eq!(out.dims(), [2, 6, 7, 4, 8]);
    }
    let text = "additional_keys: is missing, must be given together with additional_values";
    qk_fails(zeros(QUERY), zeros(KEY), given(None, Some(good)), text);
    let text = "additional_values: is missing, must be given together with additional_keys";
    av_fails(zeros(weights), zeros(KEY), given(Some(good), None), text);
    let text = "additional_values: axis 1 (tokens) is 4, must be 3 as in additional_keys";
    qk_fails(zeros(QUERY), zeros(KEY), given(Some(good), Some([2, 4, 2, 8])), text);
    av_fails(zeros(weights), zeros(KEY), given(Some(good), Some([2, 4, 2, 8])), text);
    let text = "additional_keys: axis 3 (head_dim) is 5, must be 8 as in key";
    qk_fails(zeros(QUERY), zeros(KEY), given(Some(wide), None), text);
    let text = "additional_values: axis 2 (heads) is 1, must be 2 as in value";
    av_fails(zeros(weights), zeros(KEY), given(None, Some([2, 3, 1, 8])), text);
    let text = "weights: axis 4 (window) is 9, must be 12 as in kernel_size and additional_values";
    av_fails(zeros(WEIGHTS), zeros(KEY), given(None, Some(good)), text);
}

#[test]
fn types_and_strategies() {
    let half = zeros(KEY).cast(DType::F16);
    let text = "key: has dtype F16, must be F32 as in query";
    qk_fails(zeros(QUERY), half.clone(), options(), text);
    let text = "value: has dtype F16, must be F32 as in weights";
    av_fails(zeros(WEIGHTS), half, options(), text);
    for strategy in [Strategy::TensorCore, Strategy::Hopper] {
        let options = options().with_strategy(strategy);
        let text = format!(
            "strategy: {strategy:?} cannot run here, the unfused operators have Portable and Reference"
        );
        qk_fails(zeros(QUERY), zeros(KEY), options.clone(), &text);
        av_fails(zeros(WEIGHTS), zeros(KEY), options, &text);
    }
}

#[test]
fn other_ranks_say_the_same() {
    let x = zeros([1, 9, 2, 4]);
    let error = try_na1d_qk(x.clone(), x, NeighborhoodOptions::new(3).with_dilation(4));
    assert_eq!(
        error.expect_err("12 keys of 9").to_string(),
        "dilation: axis 0 is 4, must be at most 3 (the length of the axis / kernel_size)"
    );
    let (weights, value) = (zeros([1, 3, 4, 5, 2, 26]), zeros([1, 3, 4, 5, 2, 4]));
    let error = try_na3d_av(weights, value, NeighborhoodOptions::new(3)).expect_err("one less");
    assert_eq!(
        error.to_string(),
        "weights: axis 5 (window) is 26, must be 27 as in kernel_size and additional_values"
    );
}
