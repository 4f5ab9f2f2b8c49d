//! What sharded operators refuse, and how they say so.

use burn::tensor::{Device, FloatDType, Tensor};
use burn_natten::parallel::{DenseSplit, Split, try_attention_sharded, try_na2d_sharded};
use burn_natten::{AttentionOptions, NeighborhoodOptions};
use rstest::rstest;

fn zeros<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::zeros(shape, &Device::flex())
}

/// Query, key and value of each member, all of these shapes.
fn members(shapes: &[[usize; 5]]) -> [Vec<Tensor<5>>; 3] {
    [(); 3].map(|()| shapes.iter().map(|shape| zeros(*shape)).collect())
}

fn refused([query, key, value]: [Vec<Tensor<5>>; 3], split: Split) -> String {
    let options = NeighborhoodOptions::<2>::new([3, 4]);
    let error = try_na2d_sharded(query, key, value, options, split);
    error.expect_err("is to be refused").to_string()
}

const HALO: Split = Split::Halo { axis: 0 };
const HEADS: Split = Split::Heads { axis: 0 };

#[rstest]
#[case(&[], HALO, "members: is 0, must be at least 1")]
#[case(&[[1, 4, 6, 2, 8]; 2], Split::Halo { axis: 2 }, "axis: is 2, must be less than 2 (spatial axes)")]
#[case(
    &[[1, 4, 6, 2, 8], [2, 4, 6, 2, 8]], HALO,
    "member 1: query: axis 0 (batch) is 2, must be 1 as in member 0"
)]
#[case(
    &[[1, 4, 6, 2, 8], [1, 4, 5, 2, 8]], HALO,
    "member 1: query: axis 2 (space) is 5, must be 6 as in member 0"
)]
#[case(
    &[[1, 4, 6, 2, 8], [1, 4, 6, 3, 8]], HEADS,
    "member 1: query: axis 3 (heads) is 3, must be 2 as in member 0"
)]
#[case(
    &[[1, 4, 6, 2, 8], [1, 4, 6, 2, 9]], HEADS,
    "member 1: query: axis 4 (head_dim) is 9, must be 8 as in member 0"
)]
#[case(&[[1, 4, 6, 2, 8], [1, 0, 6, 2, 8]], HALO, "member 1: query: axis 1 (space) is 0, must be at least 1")]
#[case(&[[1, 4, 6, 2, 8]; 3], HEADS, "heads of key: is 2, must be a multiple of 3 (members)")]
// One device would refuse that, too.
#[case(&[[1, 1, 6, 2, 8]; 2], HALO, "kernel_size: axis 0 is 3, must be at most 2 (the length of the axis)")]
#[case(&[[1, 4, 3, 2, 8]; 2], HEADS, "kernel_size: axis 1 is 4, must be at most 3 (the length of the axis)")]
fn members_have_to_fit(#[case] shapes: &[[usize; 5]], #[case] split: Split, #[case] text: &str) {
    assert_eq!(refused(members(shapes), split), text);
}

#[test]
fn tensors_of_a_member_have_to_fit() {
    let shape = [1, 4, 6, 2, 8];
    let [query, mut key, mut value] = members(&[shape; 2]);
    value.pop();
    let got = refused([query.clone(), key.clone(), value.clone()], HALO);
    assert_eq!(got, "members of value: is 1, must be 2 (members of query)");
    value.push(zeros([1, 5, 6, 2, 8]));
    let got = refused([query.clone(), key.clone(), value], HALO);
    assert_eq!(got, "member 1: value: axis 1 (space) is 5, must be 4 as in key");
    // As many tokens in all, but others.
    key = vec![zeros([1, 3, 6, 2, 8]), zeros([1, 5, 6, 2, 8])];
    let got = refused([query.clone(), key.clone(), key], HEADS);
    assert_eq!(got, "member 0: key: axis 1 (space) is 3, must be 4 as in query");
    let half = vec![query[0].clone(), query[1].clone().cast(FloatDType::F16)];
    let got = refused([half.clone(), half.clone(), half.clone()], HALO);
    assert_eq!(got, "member 1: query: has dtype F16, must be F32 as in member 0");
    let got = refused([query.clone(), half.clone(), query], HALO);
    assert_eq!(got, "member 1: key: has dtype F16, must be F32 as in member 0");
}

#[test]
fn what_all_members_get_has_to_fit() {
    let [query, key, value] = members(&[[1, 4, 6, 2, 8]; 2]);
    let refused = |options: NeighborhoodOptions<2>, split| {
        let error = try_na2d_sharded(query.clone(), key.clone(), value.clone(), options, split);
        error.expect_err("is to be refused").to_string()
    };
    let options = NeighborhoodOptions::<2>::new(3);
    for split in [HALO, HEADS] {
        let bias = options.clone().with_bias(zeros::<3>([3, 5, 5]));
        assert_eq!(refused(bias, split), "bias: axis 0 (heads) is 3, must be 2 as in query");
        let more = zeros::<4>([1, 2, 3, 8]);
        let more = options.clone().with_additional_kv(more.clone(), more);
        let text = "additional_keys: axis 2 (heads) is 3, must be 2 as in key";
        assert_eq!(refused(more, split), text);
        let one = options.clone().with_additional_kv(zeros::<4>([1, 2, 2, 8]), None);
        let text = "additional_values: is missing, must be given together with additional_keys";
        assert_eq!(refused(one, split), text);
        let half = zeros::<3>([2, 5, 5]).cast(FloatDType::F16);
        let text = "member 0: bias: has dtype F16, must be F32 as in query";
        assert_eq!(refused(options.clone().with_bias(half), split), text);
    }
}

#[test]
fn dense_members_have_to_fit() {
    let tokens = |lengths: &[usize]| -> Vec<Tensor<4>> {
        lengths.iter().map(|tokens| zeros([1, *tokens, 4, 8])).collect()
    };
    let refused = |query: &[usize], key: &[usize], value: &[usize], split| {
        let (query, key, value) = (tokens(query), tokens(key), tokens(value));
        let error = try_attention_sharded(query, key, value, AttentionOptions::new(), split);
        error.expect_err("is to be refused").to_string()
    };
    for split in [DenseSplit::Heads, DenseSplit::Gather, DenseSplit::Ring] {
        assert_eq!(
            refused(&[3, 4], &[5], &[5], split),
            "members of key: is 1, must be 2 (members of query)"
        );
        assert_eq!(
            refused(&[3, 4], &[5, 6], &[6, 5], split),
            "member 0: value: axis 1 (tokens) is 6, must be 5 as in key"
        );
        assert_eq!(
            refused(&[3, 4], &[5, 0], &[5, 0], split),
            "member 1: key: axis 1 (tokens) is 0, must be at least 1"
        );
    }
}
