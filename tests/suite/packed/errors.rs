//! What packed operators refuse, and how they say so.

use burn::tensor::{Device, Tensor};
use burn_natten::packed::{pack, unpack};
use burn_natten::{
    AttentionOptions, Lengths, NeighborhoodOptions, Spaces, Window, try_attention_packed,
    try_na2d_packed,
};
use rstest::rstest;

fn zeros<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::zeros(shape, &Device::flex())
}

#[rstest]
#[case([2, 15, 4, 8], Lengths::new([30]), "query: axis 0 (batch) is 2, must be 1 as in a packed batch")]
#[case([1, 30, 4, 8], Lengths::new([]), "query: axis 1 (tokens) is 30, must be 0 as in lengths")]
#[case(
    [1, 30, 4, 8],
    Lengths::new([30]).with_keys([10, 20]),
    "lengths of keys: is 2, must be 1 (lengths of queries)"
)]
#[case(
    [1, 30, 4, 8],
    Lengths::new([30]).with_keys([31]),
    "key: axis 1 (tokens) is 30, must be 31 as in lengths"
)]
#[case(
    [1, 30, 4, 8],
    Lengths::new([usize::MAX, 31]),
    "query: axis 1 (tokens) is 30, must be 18446744073709551615 as in lengths"
)]
#[case([1, 30, 4, 0], Lengths::new([30]), "query: axis 3 (head_dim) is 0, must be at least 1")]
fn lengths_have_to_fit(#[case] shape: [usize; 4], #[case] lengths: Lengths, #[case] text: &str) {
    let x = zeros(shape);
    let options = AttentionOptions::new();
    let error = try_attention_packed(x.clone(), x.clone(), x, &lengths, options);
    assert_eq!(error.expect_err("is to be refused").to_string(), text);
}

#[rstest]
#[case(
    Spaces::new([[1 << 40, 1 << 40], [5, 6]]),
    "query: axis 1 (tokens) is 30, must be 18446744073709551615 as in spaces"
)]
#[case(Spaces::new([[5, 3], [3, 5]]), "sequence 1: kernel_size: axis 0 is 5, must be at most 3 (the length of the axis)")]
#[case(Spaces::new([[5, 6], [0, 3]]).with_windows([Window::new(3)]), "windows of spaces: is 1, must be 2 (spaces)")]
#[case(
    Spaces::new([[5, 6]]).with_windows([Window::new(3).with_stride(4)]),
    "sequence 0: stride: axis 0 is 4, must be at most 3 (kernel_size)"
)]
#[case(
    Spaces::new([[5, 6]]).with_windows([Window::new([1, 3])]),
    "sequence 0: kernel_size: axis 0 is 1, must be at least 2"
)]
fn windows_have_to_fit(#[case] spaces: Spaces<2>, #[case] text: &str) {
    let x = zeros([1, 30, 4, 8]);
    let options = NeighborhoodOptions::<2>::new([5, 3]);
    let error = try_na2d_packed(x.clone(), x.clone(), x, &spaces, options);
    assert_eq!(error.expect_err("is to be refused").to_string(), text);
}

#[test]
fn additional_tokens_are_those_of_each_sequence() {
    let x = zeros([1, 30, 4, 8]);
    let more = zeros([1, 2, 4, 8]);
    let options = AttentionOptions::new().with_additional_kv(more.clone(), more);
    let error = try_attention_packed(x.clone(), x.clone(), x, &Lengths::new([10, 20]), options);
    let text = "additional_keys: axis 0 (sequences) is 1, must be 2 as in lengths";
    assert_eq!(error.expect_err("is to be refused").to_string(), text);
}

#[test]
fn a_bias_has_the_windows_of_all() {
    let x = zeros([1, 30, 4, 8]);
    let spaces = Spaces::new([[5, 3], [3, 5]]).with_windows([Window::new(3), Window::new([2, 3])]);
    let options = NeighborhoodOptions::<2>::new(3).with_bias(zeros::<3>([4, 5, 5]));
    let error = try_na2d_packed(x.clone(), x.clone(), x, &spaces, options);
    let text = "sequence 1: bias: axis 1 is 5, must be 3 (2 * kernel_size - 1, kernel_size is 2)";
    assert_eq!(error.expect_err("is to be refused").to_string(), text);
}

#[test]
fn what_is_packed_has_to_fit() {
    let error = pack::<2, 3>(vec![]).expect_err("no tensor");
    assert_eq!(error.to_string(), "tensors: is 0, must be at least 1");
    let error = pack::<2, 3>(vec![zeros([2, 3, 4]), zeros([2, 3, 5])]).expect_err("channels");
    let text = "tensors: axis 2 (channels) is 5, must be 4 as in the first of them";
    assert_eq!(error.to_string(), text);
    let error = unpack::<2, 3>(zeros([1, 7, 4]), &Spaces::new([[2, 3]])).expect_err("7 tokens");
    assert_eq!(error.to_string(), "packed: axis 1 (tokens) is 7, must be 6 as in spaces");
}
