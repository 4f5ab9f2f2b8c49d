use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::{BlockConfig, SMALL, linear, pad_to};
use crate::NeighborhoodOptions;

/// Neighborhood attention with a learned bias for each head and relative position.
///
/// A map that is smaller than `kernel_size * dilation` is padded with zeros at the bottom and at the
/// right, as the published models were trained: the padding has the bias of `qkv` as key and value,
/// and is attended to. The output has the size of the input.
#[derive(Module, Debug)]
pub struct BiasedAttention {
    /// Projects channels to query, key and value, in this order.
    pub qkv: Linear,
    /// Added to the scaled scores, `[heads, 2 * kernel_size - 1, 2 * kernel_size - 1]`, at
    /// `(key - query) / dilation + kernel_size - 1` along each axis.
    pub rpb: Param<Tensor<3>>,
    /// Projects the heads, side by side, to the output.
    pub proj: Linear,
    /// Number of heads.
    pub num_heads: usize,
    /// Keys that a query sees along each axis.
    pub kernel_size: usize,
    /// Distance between them.
    pub dilation: usize,
    /// Factor on the scores; without one `head_dim^-0.5`.
    pub qk_scale: Option<f64>,
}

impl BiasedAttention {
    pub(super) fn new(config: &BlockConfig, device: &Device) -> Self {
        let BlockConfig { dim, num_heads, kernel_size, dilation, .. } = *config;
        let offsets = 2 * kernel_size - 1;
        Self {
            qkv: linear(dim, 3 * dim, config.qkv_bias, device),
            rpb: SMALL.init([num_heads, offsets, offsets], device),
            proj: linear(dim, dim, true, device),
            num_heads,
            kernel_size,
            dilation,
            qk_scale: config.qk_scale,
        }
    }

    /// Attends every position to its neighborhood.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, height, width, channels]`
    /// - output: as input
    #[track_caller]
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let [_, height, width, _] = input.dims();
        let [query, key, value] = self.query_key_value(input);
        let heads = attend(query, key, value, self.rpb.val(), self.options());
        let heads = heads.narrow(1, 0, height).narrow(2, 0, width);
        self.proj.forward(heads.flatten::<4>(3, 4))
    }

    /// The query, key and value that [`forward`](Self::forward) attends with, of the padded map.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, height, width, channels]`
    /// - each output: `[batch, height, width, heads, head_dim]`, with both sides of at least
    ///   `kernel_size * dilation`
    pub fn query_key_value(&self, input: Tensor<4>) -> [Tensor<5>; 3] {
        let padded = pad_to(input, [self.kernel_size * self.dilation; 2]);
        let [batch, height, width, channels] = padded.dims();
        let shape = [batch, height, width, self.num_heads, channels / self.num_heads];
        let qkv = self.qkv.forward(padded);
        [0, 1, 2].map(|part| qkv.clone().narrow(3, part * channels, channels).reshape(shape))
    }

    /// The window and scale of this layer, without the bias.
    pub fn options(&self) -> NeighborhoodOptions<2> {
        NeighborhoodOptions::new(self.kernel_size)
            .with_dilation(self.dilation)
            .with_scale(self.qk_scale)
    }
}

/// Neighborhood attention whose scaled scores get a bias.
fn attend(
    query: Tensor<5>,
    key: Tensor<5>,
    value: Tensor<5>,
    bias: Tensor<3>,
    options: NeighborhoodOptions<2>,
) -> Tensor<5> {
    // TEMPORARY: all pairs, until the operator takes a bias.
    let [batch, height, width, heads, dim] = query.dims();
    let side = bias.dims()[1];
    let kernel = side.div_ceil(2);
    let pairs: Vec<_> = [height, width]
        .into_iter()
        .zip(options.dilation)
        .map(|(length, dilation)| {
            let mut offsets = vec![None; length * length];
            for i in 0..length {
                let (group, place) = (i % dilation, i / dilation);
                let count = (length - group).div_ceil(dilation);
                let start = place.saturating_sub(kernel / 2).min(count - kernel);
                for j in start..start + kernel {
                    offsets[i * length + j * dilation + group] = Some(j + kernel - 1 - place);
                }
            }
            offsets
        })
        .collect();
    let count = height * width;
    let (mut index, mut mask) = (vec![0i64; count * count], vec![f32::NEG_INFINITY; count * count]);
    for i in 0..count {
        for j in 0..count {
            let y = pairs[0][(i / width) * height + j / width];
            let x = pairs[1][(i % width) * width + j % width];
            if let (Some(y), Some(x)) = (y, x) {
                index[i * count + j] = (y * side + x) as i64;
                mask[i * count + j] = 0.0;
            }
        }
    }
    let device = query.device();
    let index = Tensor::<1, Int>::from_data(TensorData::new(index, [count * count]), &device);
    let mask = Tensor::<4>::from_data(TensorData::new(mask, [1, 1, count, count]), &device);
    let bias =
        bias.reshape([heads, side * side]).select(1, index).reshape([1, heads, count, count]);
    let tokens = |t: Tensor<5>| t.reshape([batch, count, heads, dim]).permute([0, 2, 1, 3]);
    let scale = options.common.scale.unwrap_or((dim as f64).powf(-0.5));
    let dtype = query.dtype();
    let scores =
        tokens(query).matmul(tokens(key).swap_dims(2, 3)) * scale + bias + mask.cast(dtype);
    let out = burn::tensor::activation::softmax(scores, 3).matmul(tokens(value));
    out.permute([0, 2, 1, 3]).reshape([batch, height, width, heads, dim])
}
