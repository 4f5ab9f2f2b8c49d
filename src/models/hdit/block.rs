//! A transformer block: attention and a feed-forward network, both normalized by the condition.

use burn::module::{Module, Param};
use burn::nn::{Dropout, Initializer, Linear};
use burn::tensor::{Device, Tensor};

use super::HditLevelConfig;
use super::layers::{AdaRmsNorm, inverse_norm, linear, zero_linear};
use super::rope::AxialRope;
use crate::nn::{dropout, gelu, linear as apply, thirds};
use crate::{AttentionOptions, NeighborhoodOptions, attention, na2d};

/// Half of the channels, gated by the other: `a * gelu(gate)` of `(a, gate)`.
pub(super) fn geglu<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    let half = input.dims()[D - 1] / 2;
    let gate = input.clone().narrow(D - 1, half, half);
    input.narrow(D - 1, 0, half) * gelu(gate)
}

/// Attention with cosine similarity and rotary positions, of all tokens or of neighborhoods.
///
/// ```text
/// query, key, value = split(norm(input, condition) W_qkv)
/// query             = rope(query * sqrt(scale) / |query|)      key likewise
/// output            = input + dropout(attention(query, key, value)) W_out
/// ```
#[derive(Module, Debug)]
pub struct HditAttention {
    /// Normalization.
    pub norm: AdaRmsNorm,
    /// Projects channels to query, key and value, in this order.
    pub qkv_proj: Linear,
    /// Factor on the cosines, `[heads]`, starts at 10.
    pub scale: Param<Tensor<1>>,
    /// Rotary positions.
    pub pos_emb: AxialRope,
    /// Dropout of the heads.
    pub dropout: Dropout,
    /// Projects the heads, side by side, to the output; starts at zero.
    pub out_proj: Linear,
    /// Number of heads.
    pub num_heads: usize,
    /// Tokens that a query sees along each axis; all, if absent.
    pub kernel_size: Option<usize>,
}

impl HditAttention {
    fn new(config: &HditLevelConfig, condition: usize, device: &Device) -> Self {
        let width = config.width;
        let d_head = config.attention.d_head();
        let num_heads = width / d_head;
        Self {
            norm: AdaRmsNorm::new(width, condition, device),
            qkv_proj: linear(width, 3 * width, device),
            scale: Initializer::Constant { value: 10.0 }.init([num_heads], device),
            pos_emb: AxialRope::new(d_head, num_heads, device),
            dropout: dropout("dropout", config.dropout),
            out_proj: zero_linear(width, width, device),
            num_heads,
            kernel_size: config.attention.kernel_size(),
        }
    }

    /// Attends every token to its neighborhood or to all, and adds the result to the input.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, height, width, channels]`
    /// - positions: `[height, width, 2]`, of [`positions`](super::positions)
    /// - condition: `[batch, mapping width]`
    /// - output: as input
    ///
    /// # Panics
    ///
    /// With the text of an [`AttentionError`](crate::AttentionError) if the window is larger than
    /// the map.
    #[track_caller]
    pub fn forward(
        &self,
        input: Tensor<4>,
        positions: Tensor<3>,
        condition: Tensor<2>,
    ) -> Tensor<4> {
        let shape = input.dims();
        let normalized = self.norm.forward(input.clone(), condition);
        let [query, key, value] = self.query_key_value(normalized, positions);
        // Query and key carry the scale already.
        let attended = match self.kernel_size {
            Some(kernel_size) => {
                let options = NeighborhoodOptions::<2>::new(kernel_size).with_scale(1.0);
                na2d(query, key, value, options).reshape(shape)
            }
            None => {
                let tokens = |heads: Tensor<5>| heads.flatten::<4>(1, 2);
                let options = AttentionOptions::new().with_scale(1.0);
                attention(tokens(query), tokens(key), tokens(value), options).reshape(shape)
            }
        };
        input + apply(&self.out_proj, self.dropout.forward(attended))
    }

    /// The query, key and value that [`forward`](Self::forward) attends with, at scale 1.
    ///
    /// # Shapes
    ///
    /// - normalized: `[batch, height, width, channels]`, of [`norm`](Self::norm)
    /// - positions: `[height, width, 2]`
    /// - each output: `[batch, height, width, num_heads, d_head]`
    pub fn query_key_value(&self, normalized: Tensor<4>, positions: Tensor<3>) -> [Tensor<5>; 3] {
        let [batch, height, width, channels] = normalized.dims();
        let shape = [batch, height, width, self.num_heads, channels / self.num_heads];
        let qkv = apply(&self.qkv_proj, normalized);
        let [query, key, value] = thirds(qkv).map(|part| part.reshape(shape));
        let scale = self.scale.val().sqrt().reshape([1, 1, 1, self.num_heads, 1]);
        let theta = self.pos_emb.theta(positions);
        let prepare = |heads: Tensor<5>| {
            let cosine = heads.clone() * (scale.clone() * inverse_norm(heads, 1.0));
            self.pos_emb.rotate(cosine, theta.clone())
        };
        [prepare(query), prepare(key), value]
    }
}

/// A feed-forward network with gated hidden channels.
#[derive(Module, Debug)]
pub struct FeedForward {
    /// Normalization.
    pub norm: AdaRmsNorm,
    /// To the hidden channels and their gates.
    pub up_proj: Linear,
    /// Dropout of the hidden channels.
    pub dropout: Dropout,
    /// From the hidden channels, starts at zero.
    pub down_proj: Linear,
}

impl FeedForward {
    fn new(config: &HditLevelConfig, condition: usize, device: &Device) -> Self {
        let HditLevelConfig { width, d_ff, .. } = *config;
        Self {
            norm: AdaRmsNorm::new(width, condition, device),
            up_proj: linear(width, 2 * d_ff, device),
            dropout: dropout("dropout", config.dropout),
            down_proj: zero_linear(d_ff, width, device),
        }
    }

    /// Adds the gated hidden channels of every token to it.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, height, width, channels]`
    /// - condition: `[batch, mapping width]`
    /// - output: as input
    pub fn forward(&self, input: Tensor<4>, condition: Tensor<2>) -> Tensor<4> {
        let hidden = geglu(apply(&self.up_proj, self.norm.forward(input.clone(), condition)));
        input + apply(&self.down_proj, self.dropout.forward(hidden))
    }
}

/// Attention, then a feed-forward network, each added to its input.
#[derive(Module, Debug)]
pub struct HditBlock {
    /// Attention.
    pub self_attn: HditAttention,
    /// Feed-forward network.
    pub ff: FeedForward,
}

impl HditBlock {
    pub(super) fn new(config: &HditLevelConfig, condition: usize, device: &Device) -> Self {
        Self {
            self_attn: HditAttention::new(config, condition, device),
            ff: FeedForward::new(config, condition, device),
        }
    }

    /// Attention, then the feed-forward network.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, height, width, channels]`
    /// - positions: `[height, width, 2]`
    /// - condition: `[batch, mapping width]`
    /// - output: as input
    #[track_caller]
    pub fn forward(
        &self,
        input: Tensor<4>,
        positions: Tensor<3>,
        condition: Tensor<2>,
    ) -> Tensor<4> {
        let attended = self.self_attn.forward(input, positions, condition.clone());
        self.ff.forward(attended, condition)
    }
}
