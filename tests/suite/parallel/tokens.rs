//! Shards of tokens, and back.

use burn::tensor::{Device, Distribution, Tensor};
use burn_natten::parallel::{
    exchange, join_tokens, split_tokens, split_tokens_into, try_join_tokens, try_split_tokens,
    try_split_tokens_into,
};

use crate::support::check::identical;
use crate::support::run::values;

#[test]
fn shards_are_all_tokens_along_any_axis() {
    let device = Device::flex().autodiff();
    let x = Tensor::<5>::random([2, 7, 5, 3, 4], Distribution::Default, &device).require_grad();
    let weights = Tensor::<5>::random(x.dims(), Distribution::Default, &device);
    for (axis, length) in [(0, 7), (1, 5), (2, 3)] {
        for members in 1..=3 {
            let shards = split_tokens(x.clone(), &vec![device.clone(); members], axis);
            let lengths: Vec<_> = shards.iter().map(|shard| shard.dims()[axis + 1]).collect();
            assert_eq!(lengths.iter().sum::<usize>(), length);
            assert!(lengths.iter().all(|tokens| *tokens >= length / members));
            let joined = join_tokens(shards, &device, axis);
            identical("values", &values(joined.clone()), &values(x.clone()));
            let gradients = (joined * weights.clone()).sum().backward();
            let gradient = x.grad(&gradients).expect("is tracked");
            identical("gradient", &values(gradient), &values(weights.clone()));
        }
    }
}

#[test]
fn shards_may_be_of_any_length() {
    let device = Device::flex();
    let x = Tensor::<3>::random([1, 9, 4], Distribution::Default, &device);
    let devices = [device.clone(), device.clone(), device.clone()];
    let shards = split_tokens_into(x.clone(), &devices, 0, &[1, 6, 2]);
    assert!(shards.iter().map(Tensor::dims).eq([1, 6, 2].map(|tokens| [1, tokens, 4])));
    identical("values", &values(join_tokens(shards, &device, 0)), &values(x));
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = Device::flex();
    let x = Tensor::<4>::zeros([1, 3, 4, 8], &device);
    let split = |axis, devices: usize| {
        let devices = vec![device.clone(); devices];
        try_split_tokens(x.clone(), &devices, axis).expect_err("is to be refused").to_string()
    };
    let axes = "axis: is 2, must be less than 2 (the axes between the first and the last)";
    assert_eq!(split(2, 1), axes);
    assert_eq!(split(0, 0), "members: is 0, must be at least 1");
    assert_eq!(split(0, 4), "member 3: tokens: is 0, must be at least 1");
    let into = |shards: &[usize]| {
        let devices = [device.clone(), device.clone()];
        let error = try_split_tokens_into(x.clone(), &devices, 1, shards);
        error.expect_err("is to be refused").to_string()
    };
    assert_eq!(into(&[4]), "shards: is 1, must be 2 (devices)");
    assert_eq!(into(&[3, 2]), "tokens of all members: is 5, must be 4 (the length of the axis)");
    let most = into(&[usize::MAX, 5]);
    assert!(most.starts_with("tokens of all members: is 18446744073709551615, "), "{most}");

    let join = |shards| try_join_tokens::<4>(shards, &device, 0).expect_err("refused").to_string();
    assert_eq!(join(vec![]), "shards: is 0, must be at least 1");
    let other = Tensor::<4>::zeros([1, 3, 5, 8], &device);
    let text = "shards: axis 2 (any) is 5, must be 4 as in the first of them";
    assert_eq!(join(vec![x.clone(), other]), text);
    let half = x.clone().cast(burn::tensor::FloatDType::F16);
    let text = "shards: has dtype F16, must be F32 as in the first of them";
    assert_eq!(join(vec![x.clone(), half]), text);
}

#[test]
fn a_tensor_that_is_there_stays_as_it_is() {
    let device = Device::flex().autodiff();
    let x = Tensor::<2>::ones([2, 3], &device).require_grad();
    // With autodiff or without, it is the same device.
    let there = exchange(x.clone(), &Device::flex());
    assert!(there.is_require_grad() && there.device().is_autodiff());
}
