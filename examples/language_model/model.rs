//! The model: bytes in, logits of the next byte out.
//!
//! ```text
//! bytes -> embedding -> layers of (attention, multilayer perceptron), each added to its input -> linear -> logits
//! ```
//!
//! Positions are rotations of queries and keys. The order of the bytes is all that it knows at first.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{
    Embedding, EmbeddingConfig, Gelu, Initializer, Linear, LinearConfig, RmsNorm, RmsNormConfig,
    RotaryEncoding, RotaryEncodingConfig,
};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, FloatDType, Int, Tensor};
use burn::train::{InferenceStep, TrainOutput, TrainStep};

use crate::attention::{Attention, AttentionConfig, Cache};
use crate::half::ToHalf;
use crate::loader::Batch;
use crate::score::Score;

/// Values of a byte.
pub const BYTES: usize = 256;

/// Configuration of [`LanguageModel`].
#[derive(Config, Debug)]
pub struct LanguageModelConfig {
    /// How tokens attend to those before them.
    pub attention: AttentionConfig,
    /// Number of layers.
    pub layers: usize,
    /// Channels of a token.
    pub dim: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Bytes of the longest sequence.
    pub context: usize,
    /// How many times wider the perceptron is inside.
    #[config(default = 4)]
    pub widening: usize,
    /// Whether activations are in bf16.
    #[config(default = false)]
    pub is_half: bool,
}

impl LanguageModelConfig {
    /// Initializes the model on `device`.
    pub fn init(&self, device: &Device) -> LanguageModel {
        let embedding = EmbeddingConfig::new(BYTES, self.dim)
            .with_initializer(Initializer::Normal { mean: 0.0, std: 0.1 });
        let layer = |_| Layer {
            norm_attention: RmsNormConfig::new(self.dim).init(device),
            attention: self.attention.init(device),
            norm_mlp: RmsNormConfig::new(self.dim).init(device),
            widen: LinearConfig::new(self.dim, self.widening * self.dim).init(device),
            activation: Gelu::new(),
            narrow: LinearConfig::new(self.widening * self.dim, self.dim).init(device),
        };
        LanguageModel {
            embedding: embedding.init(device),
            rotary: RotaryEncodingConfig::new(self.context, self.head_dim).init(device),
            layers: (0..self.layers).map(layer).collect(),
            norm: RmsNormConfig::new(self.dim).init(device),
            head: LinearConfig::new(self.dim, BYTES).with_bias(false).init(device),
            is_half: self.is_half,
        }
    }
}

/// Attention and a multilayer perceptron.
#[derive(Module, Debug)]
pub struct Layer {
    norm_attention: RmsNorm,
    attention: Attention,
    norm_mlp: RmsNorm,
    widen: Linear,
    activation: Gelu,
    narrow: Linear,
}

impl Layer {
    fn mlp(&self, tokens: Tensor<3>) -> Tensor<3> {
        let wide =
            self.activation.forward(self.widen.forward(self.norm_mlp.forward(tokens.clone())));
        tokens + self.narrow.forward(wide)
    }
}

/// Expects bytes from those before them.
#[derive(Module, Debug)]
pub struct LanguageModel {
    embedding: Embedding,
    rotary: RotaryEncoding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    is_half: bool,
}

/// What a model remembers of the bytes so far.
pub struct Memory {
    layers: Vec<Cache>,
    tokens: usize,
}

impl LanguageModel {
    /// Logits of the byte behind each.
    ///
    /// # Shapes
    ///
    /// - bytes: `[batch, tokens]`
    /// - output: `[batch, tokens, 256]`, f32
    pub fn forward(&self, bytes: Tensor<2, Int>) -> Tensor<3> {
        self.run(bytes, 0, |_, layer, tokens, rotate| layer.attention.forward(tokens, rotate))
    }

    /// The rows of [`forward`](Self::forward) for bytes that come behind those of the memory, which then has them too.
    pub fn forward_cached(&self, bytes: Tensor<2, Int>, memory: &mut Memory) -> Tensor<3> {
        let (start, count) = (memory.tokens, bytes.dims()[1]);
        memory.tokens += count;
        self.run(bytes, start, |number, layer, tokens, rotate| {
            layer.attention.forward_cached(tokens, &mut memory.layers[number], rotate)
        })
    }

    /// A memory without bytes.
    pub fn memory(&self) -> Memory {
        let model = self.as_computed();
        let layers = model.layers.iter().map(|layer| layer.attention.cache()).collect();
        Memory { layers, tokens: 0 }
    }

    /// The model with its weights in the type of the activations. The gradients of the casts arrive at the weights in f32.
    fn as_computed(&self) -> Self {
        match self.is_half {
            true => self.clone().map(&mut ToHalf),
            false => self.clone(),
        }
    }

    /// All but the attention, of bytes the first of which is number `start`.
    fn run(
        &self,
        bytes: Tensor<2, Int>,
        start: usize,
        mut attend: impl FnMut(usize, &Layer, Tensor<3>, &dyn Fn(Tensor<4>) -> Tensor<4>) -> Tensor<3>,
    ) -> Tensor<3> {
        let model = self.as_computed();
        // In f32: no half type tells the angles of neighbors far behind apart.
        let rotate = |heads: Tensor<4>| {
            let dtype = heads.dtype();
            let rows = heads.swap_dims(1, 2).cast(FloatDType::F32);
            self.rotary.apply(rows, start).swap_dims(1, 2).cast(dtype)
        };
        let mut tokens = model.embedding.forward(bytes);
        for (number, layer) in model.layers.iter().enumerate() {
            let seen = layer.norm_attention.forward(tokens.clone());
            tokens = layer.mlp(tokens + attend(number, layer, seen, &rotate));
        }
        model.head.forward(model.norm.forward(tokens)).cast(FloatDType::F32)
    }

    fn score(&self, batch: Batch) -> Score {
        let logits = self.forward(batch.bytes);
        let [sequences, length, _] = logits.dims();
        let next = batch.next.unsqueeze_dim::<3>(2);
        let nats = log_softmax(logits, 2).gather(2, next).mean().neg();
        Score { bits: nats / std::f64::consts::LN_2, bytes: sequences * length }
    }
}

impl TrainStep for LanguageModel {
    type Input = Batch;
    type Output = Score;

    fn step(&self, batch: Batch) -> TrainOutput<Score> {
        let score = self.score(batch);
        TrainOutput::new(self, score.bits.backward(), score)
    }
}

impl InferenceStep for LanguageModel {
    type Input = Batch;
    type Output = Score;

    fn step(&self, batch: Batch) -> Score {
        self.score(batch)
    }
}
