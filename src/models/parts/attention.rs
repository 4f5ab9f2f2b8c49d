use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};

use super::{BlockConfig, SMALL, linear, pad_to};
use crate::nn::{linear as apply, thirds};
use crate::{NeighborhoodOptions, na2d};

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
        let heads = na2d(query, key, value, self.options());
        // Not for nothing: of a map that was not padded, gradients would be copied into zeros, once an axis.
        let is_padded = heads.dims()[1..3] != [height, width];
        let heads = match is_padded {
            true => heads.narrow(1, 0, height).narrow(2, 0, width),
            false => heads,
        };
        apply(&self.proj, heads.flatten::<4>(3, 4))
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
        let qkv = apply(&self.qkv, padded);
        thirds(qkv).map(|part| part.reshape(shape))
    }

    /// The window, scale and bias of this layer, as the operator takes them.
    pub fn options(&self) -> NeighborhoodOptions<2> {
        NeighborhoodOptions::<2>::new(self.kernel_size)
            .with_dilation(self.dilation)
            .with_scale(self.qk_scale)
            .with_bias(self.rpb.val())
    }
}
