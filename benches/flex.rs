//! The CPU: neighborhood attention on Flex, beside the Reference tier, at the size that PyTorch's
//! gather formulation takes seconds for (batch 1, 128 x 128 tokens, 4 heads, head_dim 32, f32).
//!
//! `cargo bench --bench flex`

use std::hint::black_box;

use burn::tensor::{Device, Distribution, Tensor};
use burn_natten::{AttentionOptions, NeighborhoodOptions, Strategy, attention, na2d};
use divan::Bencher;
use divan::counter::ItemsCount;

fn main() {
    divan::main();
}

/// Side of the image, heads, head_dim.
const IMAGE: (usize, usize, usize) = (128, 4, 32);

/// A window, and the tier that computes it.
#[derive(Clone, Copy, Debug)]
struct Case(usize, Strategy);

const CASES: [Case; 4] = [
    Case(7, Strategy::Auto),
    Case(13, Strategy::Auto),
    Case(7, Strategy::Reference),
    Case(13, Strategy::Reference),
];

fn image(device: &Device) -> [Tensor<5>; 3] {
    let (side, heads, dim) = IMAGE;
    let shape = [1, side, side, heads, dim];
    [(); 3].map(|_| Tensor::random(shape, Distribution::Normal(0.0, 1.0), device))
}

/// Multiply-adds of a forward pass, so that divan prints their rate.
fn multiply_adds(window: usize) -> ItemsCount {
    let (side, heads, dim) = IMAGE;
    ItemsCount::new(side * side * heads * window * window * 2 * dim)
}

#[divan::bench(args = CASES, sample_count = 5, sample_size = 1)]
fn forward(bencher: Bencher<'_, '_>, Case(window, strategy): Case) {
    let inputs = image(&Device::flex());
    bencher.counter(multiply_adds(window)).bench(|| {
        let [query, key, value] = black_box(&inputs).clone();
        let options = NeighborhoodOptions::<2>::new(window).with_strategy(strategy);
        na2d(query, key, value, options)
    });
}

/// Forward and backward: 3.5 times the multiply-adds, which the rate does not count.
#[divan::bench(args = CASES, sample_count = 5, sample_size = 1)]
fn forward_backward(bencher: Bencher<'_, '_>, Case(window, strategy): Case) {
    let inputs = image(&Device::flex().autodiff()).map(Tensor::require_grad);
    bencher.counter(multiply_adds(window)).bench(|| {
        let [query, key, value] = black_box(&inputs).clone();
        let options = NeighborhoodOptions::<2>::new(window).with_strategy(strategy);
        let gradients = na2d(query, key, value, options).sum().backward();
        inputs.each_ref().map(|input| input.grad(&gradients))
    });
}

/// Dense attention: tokens, causal.
#[divan::bench(args = [(2048, false), (2048, true)], sample_count = 5, sample_size = 1)]
fn dense(bencher: Bencher<'_, '_>, (tokens, is_causal): (usize, bool)) {
    let device = Device::flex();
    let shape = [1, tokens, 8, 64];
    let inputs: [Tensor<4>; 3] =
        [(); 3].map(|_| Tensor::random(shape, Distribution::Normal(0.0, 1.0), &device));
    let pairs = tokens * tokens / if is_causal { 2 } else { 1 };
    bencher.counter(ItemsCount::new(pairs * 8 * 2 * 64)).bench(|| {
        let [query, key, value] = black_box(&inputs).clone();
        attention(query, key, value, AttentionOptions::new().with_causal(is_causal))
    });
}
