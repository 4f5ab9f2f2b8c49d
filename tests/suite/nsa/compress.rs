//! Means of blocks, of views as of tensors of their own, and their gradients.

use burn::tensor::{DType, Tensor};
use burn_natten::{NativeSparseAttentionOptions, Pooling, compress_tokens};

use crate::support::check::{F32, close};
use crate::support::devices;
use crate::support::run::{tensor, values};

const BATCH: usize = 2;
const HEADS: usize = 3;
const DIM: usize = 4;

/// Numbers without a pattern.
fn numbers(count: usize, seed: usize) -> Vec<f64> {
    (0..count).map(|at| ((at * 7 + seed * 13) * 29 % 101) as f64 / 50.0 - 1.0).collect()
}

/// How `[batch, rows, heads, dim]` lies in memory.
#[derive(Clone, Copy, Debug)]
enum Layout {
    Contiguous,
    /// Every row has more heads, before and behind: so many that it is a view wherever memory is aligned.
    Cropped,
    /// Heads come before rows.
    HeadsFirst,
}

/// Heads on either side of a crop.
const MORE: usize = 32;

/// The tensor with more heads on either side.
fn surrounded(x: &Tensor<4>) -> Tensor<4> {
    let [_, rows, _, _] = x.dims();
    let poison = Tensor::full([BATCH, rows, MORE, DIM], f32::NAN, &x.device());
    Tensor::cat(vec![poison.clone(), x.clone(), poison], 2)
}

/// The same tensor, lying so.
fn laid_out(x: Tensor<4>, layout: Layout) -> Tensor<4> {
    match layout {
        Layout::Contiguous => x,
        Layout::Cropped => surrounded(&x).narrow(2, MORE, HEADS),
        // A sum is written in the order of its axes.
        Layout::HeadsFirst => {
            let first = x.swap_dims(1, 2);
            (first.clone() + first.zeros_like()).swap_dims(1, 2)
        }
    }
}

/// The sum of products, whose gradient lies so.
fn loss(out: Tensor<4>, weights: &Tensor<4>, layout: Layout) -> Tensor<1> {
    match layout {
        Layout::Contiguous => (out * weights.clone()).sum(),
        Layout::Cropped => (surrounded(&out) * surrounded(weights)).sum(),
        Layout::HeadsFirst => (out.swap_dims(1, 2) * weights.clone().swap_dims(1, 2)).sum(),
    }
}

#[test]
fn means_and_gradients_of_views() {
    for device in devices() {
        for (tokens, block, stride) in [(23, 8, 4), (24, 4, 4), (13, 6, 2), (8, 8, 8)] {
            let options =
                NativeSparseAttentionOptions::new().with_cmp_block(block).with_cmp_stride(stride);
            let blocks = options.compressed_blocks(tokens);
            let width = HEADS * DIM;
            let (input, upstream) =
                (numbers(BATCH * tokens * width, 1), numbers(BATCH * blocks * width, 2));
            let share = |token: usize, at: usize| {
                let is_inside = (at * stride..at * stride + block).contains(&token);
                if is_inside { 1.0 / block as f64 } else { 0.0 }
            };
            let (mut means, mut gradient) = (vec![0.0; upstream.len()], vec![0.0; input.len()]);
            for sample in 0..BATCH {
                for (token, at) in (0..tokens).flat_map(|t| (0..blocks).map(move |at| (t, at))) {
                    for channel in 0..width {
                        let of_token = (sample * tokens + token) * width + channel;
                        let of_block = (sample * blocks + at) * width + channel;
                        means[of_block] += share(token, at) * input[of_token];
                        gradient[of_token] += share(token, at) * upstream[of_block];
                    }
                }
            }
            for layout in [Layout::Contiguous, Layout::Cropped, Layout::HeadsFirst] {
                let what = format!("{} {block} of {tokens} every {stride} {layout:?}", device.name);
                let tracked = device.device.clone().autodiff();
                let leaf = tensor::<4>(&input, [BATCH, tokens, HEADS, DIM], &tracked, DType::F32);
                let leaf = leaf.require_grad();
                let view = laid_out(leaf.clone(), layout);
                let out = compress_tokens(view, &Pooling::Mean, &options);
                close(&what, &values(out.clone()), &means, F32);
                let weights = tensor(&upstream, [BATCH, blocks, HEADS, DIM], &tracked, DType::F32);
                let loss = loss(out, &weights, layout);
                let got = leaf.grad(&loss.backward()).expect("it is tracked");
                close(&what, &values(got), &gradient, F32);
            }
        }
    }
}
