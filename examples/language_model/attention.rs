//! The two attentions, each with what it remembers of a text that is written byte by byte.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use burn_natten::nn::{NativeSparseAttention, NativeSparseAttentionConfig};
use burn_natten::{AttentionOptions, NativeSparseCache, attention};

/// Configuration of an [`Attention`].
#[derive(Config, Debug)]
pub enum AttentionConfig {
    /// Native sparse attention.
    Sparse(NativeSparseAttentionConfig),
    /// All tokens.
    Dense(DenseAttentionConfig),
}

impl AttentionConfig {
    /// Initializes it on `device`.
    pub fn init(&self, device: &Device) -> Attention {
        match self {
            Self::Sparse(config) => Attention::Sparse(config.init(device)),
            Self::Dense(config) => Attention::Dense(config.init(device)),
        }
    }
}

/// Attention of tokens to those before them, and themselves.
#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "a model has few")]
pub enum Attention {
    /// Native sparse attention.
    Sparse(NativeSparseAttention),
    /// All tokens.
    Dense(DenseAttention),
}

impl Attention {
    /// Attends in whole sequences, `[batch, tokens, dim]`; `rotate` gives positions to queries and keys.
    pub fn forward(&self, input: Tensor<3>, rotate: impl Fn(Tensor<4>) -> Tensor<4>) -> Tensor<3> {
        match self {
            Self::Sparse(layer) => layer.forward_with(input, rotate),
            Self::Dense(layer) => layer.forward_cached(input, &mut DenseCache::default(), rotate),
        }
    }

    /// The rows of [`forward`](Self::forward) for tokens that come behind those of the cache.
    pub fn forward_cached(
        &self,
        input: Tensor<3>,
        cache: &mut Cache,
        rotate: impl Fn(Tensor<4>) -> Tensor<4>,
    ) -> Tensor<3> {
        match (self, cache) {
            (Self::Sparse(layer), Cache::Sparse(cache)) => {
                layer.forward_cached(input, cache, rotate)
            }
            (Self::Dense(layer), Cache::Dense(cache)) => layer.forward_cached(input, cache, rotate),
            _ => panic!("the cache is of another attention"),
        }
    }

    /// A cache without tokens.
    pub fn cache(&self) -> Cache {
        match self {
            Self::Sparse(layer) => Cache::Sparse(Box::new(layer.cache())),
            Self::Dense(_) => Cache::Dense(Box::default()),
        }
    }
}

/// What an [`Attention`] remembers of the tokens so far.
pub enum Cache {
    /// Of native sparse attention.
    Sparse(Box<NativeSparseCache>),
    /// Of dense attention.
    Dense(Box<DenseCache>),
}

/// Keys and values of all tokens so far.
#[derive(Default)]
pub struct DenseCache {
    key_value: Option<[Tensor<4>; 2]>,
}

impl DenseCache {
    /// Appends tokens, and gives all of them.
    fn append(&mut self, new: [Tensor<4>; 2]) -> [Tensor<4>; 2] {
        let all = match self.key_value.take() {
            None => new,
            Some([key, value]) => {
                let [new_key, new_value] = new;
                [Tensor::cat(vec![key, new_key], 1), Tensor::cat(vec![value, new_value], 1)]
            }
        };
        self.key_value = Some(all.clone());
        all
    }
}

/// Configuration of [`DenseAttention`].
#[derive(Config, Debug)]
pub struct DenseAttentionConfig {
    /// Channels of input and output.
    pub dim: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub heads_kv: usize,
    /// Channels of a head.
    pub head_dim: usize,
}

impl DenseAttentionConfig {
    /// Initializes a [`DenseAttention`] on `device`.
    pub fn init(&self, device: &Device) -> DenseAttention {
        let Self { dim, heads, heads_kv, head_dim } = *self;
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        DenseAttention {
            query: linear(dim, heads * head_dim),
            key_value: linear(dim, 2 * heads_kv * head_dim),
            proj: linear(heads * head_dim, dim),
            heads,
            heads_kv,
        }
    }
}

/// Causal attention to all tokens.
#[derive(Module, Debug)]
pub struct DenseAttention {
    query: Linear,
    key_value: Linear,
    proj: Linear,
    heads: usize,
    heads_kv: usize,
}

impl DenseAttention {
    fn forward_cached(
        &self,
        input: Tensor<3>,
        cache: &mut DenseCache,
        rotate: impl Fn(Tensor<4>) -> Tensor<4>,
    ) -> Tensor<3> {
        let [batch, tokens, _] = input.dims();
        let query = self.query.forward(input.clone());
        let query = rotate(query.reshape([batch as i32, tokens as i32, self.heads as i32, -1]));
        let dim = query.dims()[3];
        let key_value = self.key_value.forward(input);
        let key_value = key_value.reshape([batch, tokens, 2 * self.heads_kv, dim]);
        let part = |part: usize| key_value.clone().narrow(2, part * self.heads_kv, self.heads_kv);
        let [key, value] = cache.append([rotate(part(0)), part(1)]);
        // Aligned at the end: the last query sees all keys.
        let out = attention(query, key, value, AttentionOptions::new().with_causal(true));
        self.proj.forward(out.reshape([batch, tokens, self.heads * dim]))
    }
}
