//! A relative position bias: scores have it, and hand their gradients on to it.

use burn::tensor::activation::softmax;
use burn::tensor::{Device, Distribution, Tensor};
use burn_natten::{NeighborhoodOptions, na2d, na2d_av, na2d_qk, try_na2d_qk};

use crate::support::devices;

fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Uniform(-1.0, 1.0), device)
}

#[test]
fn both_halves_are_the_whole_with_its_bias() {
    for device in devices() {
        let device = device.device.clone().autodiff();
        let [query, key, value] =
            [4, 2, 2].map(|heads| random([2, 9, 8, heads, 4], &device).require_grad());
        let bias = random([4, 7, 5], &device).require_grad();
        let options = NeighborhoodOptions::<2>::new([4, 3])
            .with_dilation([2, 1])
            .with_causal([false, true])
            .with_bias(bias.clone());
        let whole = na2d(query.clone(), key.clone(), value.clone(), options.clone());
        let weights = softmax(na2d_qk(query.clone(), key.clone(), options.clone()), 4);
        let halves = na2d_av(weights, value.clone(), options);
        let close = |a: Tensor<1>, b: Tensor<1>| assert!(a.all_close(b, Some(1e-4), Some(1e-5)));
        close(whole.clone().flatten(0, 4), halves.clone().flatten(0, 4));
        let cotangent = random(whole.dims(), &device);
        let [whole, halves] = [whole, halves].map(|out| (out * cotangent.clone()).sum().backward());
        let of = |tensor: &Tensor<3>| {
            [&whole, &halves].map(|all| tensor.grad(all).expect("it is tracked").flatten(0, 2))
        };
        let [from_whole, from_halves] = of(&bias);
        close(from_whole, from_halves);
    }
}

#[test]
fn a_bias_of_another_shape_is_refused() {
    let device = Device::flex();
    let x = Tensor::<5>::zeros([1, 6, 6, 2, 4], &device);
    let options =
        NeighborhoodOptions::<2>::new(3).with_bias(Tensor::<3>::zeros([2, 5, 6], &device));
    let error = try_na2d_qk(x.clone(), x, options).expect_err("two axes of 5");
    assert_eq!(
        error.to_string(),
        "bias: axis 2 is 6, must be 5 (2 * kernel_size - 1, kernel_size is 3)"
    );
}
