use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, activation::sigmoid};

use super::attention::check_scale;
use super::linear;
use crate::nsa::{BranchTokens, PerBranch};
use crate::problem::native_sparse::sizes;
use crate::{NativeSparseAttentionOptions, NativeSparseCache, Pooling, native_sparse_attention};

/// How a [`NativeSparseAttention`] compresses blocks. What is learned begins as a mean.
#[derive(Config, Debug, Copy, PartialEq, Eq)]
pub enum PoolingConfig {
    /// The mean of the tokens.
    Mean,
    /// A weight for each place in a block, and head.
    Weighted,
    /// The mean, projected by a matrix for each head.
    MeanProjected,
    /// A matrix for each place in a block, and head.
    Linear,
}

/// Configuration of [`NativeSparseAttention`].
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::nn::{NativeSparseAttentionConfig, PoolingConfig};
///
/// let device = Device::flex();
/// let layer = NativeSparseAttentionConfig::new(64, 8, 2)
///     .with_num_selected(4)
///     .with_window(32)
///     .with_pooling(PoolingConfig::Linear)
///     .init(&device);
/// let input = Tensor::<3>::random([2, 100, 64], Distribution::Default, &device);
/// assert_eq!(layer.forward(input).dims(), [2, 100, 64]);
/// ```
#[derive(Config, Debug)]
pub struct NativeSparseAttentionConfig {
    /// Channels of input and output, a multiple of `num_heads` unless there is a `head_dim`.
    pub embed_dim: usize,
    /// Number of heads of the query.
    pub num_heads: usize,
    /// Number of heads of keys and values; divides `num_heads`.
    pub num_heads_kv: usize,
    /// Channels of a head; without one `embed_dim / num_heads`.
    pub head_dim: Option<usize>,
    /// Tokens of a compressed block.
    #[config(default = 32)]
    pub cmp_block: usize,
    /// Tokens from one compressed block to the next.
    #[config(default = 16)]
    pub cmp_stride: usize,
    /// Tokens of a block that can be selected.
    #[config(default = 64)]
    pub slc_block: usize,
    /// Blocks that are selected, the forced ones among them.
    #[config(default = 16)]
    pub num_selected: usize,
    /// Blocks at the start that are always selected.
    #[config(default = 1)]
    pub num_init: usize,
    /// Blocks at the query that are always selected, its own among them.
    #[config(default = 2)]
    pub num_local: usize,
    /// Tokens of the window, the query's own among them.
    #[config(default = 512)]
    pub window: usize,
    /// Queries that share a list.
    #[config(default = 1)]
    pub query_tile: usize,
    /// Super-blocks that the compressed branch attends to; without one all.
    pub cmp_top: Option<usize>,
    /// Compressed blocks of a super-block.
    #[config(default = 128)]
    pub cmp_group: usize,
    /// How blocks are compressed.
    #[config(default = "PoolingConfig::Mean")]
    pub pooling: PoolingConfig,
    /// Whether each branch has keys and values of its own, as in the paper, or all share one pair.
    #[config(default = true)]
    pub own_kv: bool,
    /// Whether the projections to queries, keys and values have biases.
    #[config(default = false)]
    pub qkv_bias: bool,
    /// Factor on the scores; without one `head_dim^-0.5`.
    pub qk_scale: Option<f64>,
}

impl NativeSparseAttentionConfig {
    /// Initializes a [`NativeSparseAttention`] on `device`.
    ///
    /// # Panics
    ///
    /// If a field is out of its range, with the text of an [`AttentionError`](crate::AttentionError) where it is one of the
    /// options.
    #[track_caller]
    pub fn init(&self, device: &Device) -> NativeSparseAttention {
        let (heads, heads_kv) = (self.num_heads, self.num_heads_kv);
        assert!(heads_kv >= 1, "num_heads_kv: is {heads_kv}, must be at least 1");
        assert!(
            heads >= 1 && heads.is_multiple_of(heads_kv),
            "num_heads: is {heads}, must be a positive multiple of num_heads_kv, {heads_kv}"
        );
        let head_dim = self.head_dim.unwrap_or_else(|| {
            let embed_dim = self.embed_dim;
            assert!(
                embed_dim.is_multiple_of(heads),
                "embed_dim: is {embed_dim}, must be a multiple of num_heads, {heads}"
            );
            embed_dim / heads
        });
        assert!(head_dim >= 1, "head_dim: is {head_dim}, must be at least 1");
        check_scale(self.qk_scale);
        let layer = NativeSparseAttention {
            query: self.projection(heads * head_dim, device),
            key_value: self.projection(self.pairs() * 2 * heads_kv * head_dim, device),
            gate: LinearConfig::new(self.embed_dim, 3 * heads).init(device),
            proj: LinearConfig::new(heads * head_dim, self.embed_dim).with_bias(false).init(device),
            pool_key: self.pool(head_dim, device),
            pool_value: self.pool(head_dim, device),
            num_heads: heads,
            num_heads_kv: heads_kv,
            cmp_block: self.cmp_block,
            cmp_stride: self.cmp_stride,
            slc_block: self.slc_block,
            num_selected: self.num_selected,
            num_init: self.num_init,
            num_local: self.num_local,
            window: self.window,
            query_tile: self.query_tile,
            cmp_top: self.cmp_top,
            cmp_group: self.cmp_group,
            qk_scale: self.qk_scale,
        };
        if let Err(error) = sizes(&layer.options()) {
            panic!("{error}");
        }
        layer
    }

    /// Pairs of keys and values.
    fn pairs(&self) -> usize {
        if self.own_kv { 3 } else { 1 }
    }

    fn projection(&self, channels: usize, device: &Device) -> Linear {
        LinearConfig::new(self.embed_dim, channels).with_bias(self.qkv_bias).init(device)
    }

    fn pool(&self, dim: usize, device: &Device) -> Option<LearnedPooling> {
        let (heads, places) = (self.num_heads_kv, self.cmp_block);
        let identity = || Tensor::<2>::eye(dim, device);
        let mean = Initializer::Constant { value: 1.0 / places as f64 };
        match self.pooling {
            PoolingConfig::Mean => None,
            PoolingConfig::Weighted => {
                Some(LearnedPooling::Weighted(mean.init([heads, places], device)))
            }
            PoolingConfig::MeanProjected => {
                let weights = identity().unsqueeze::<3>().repeat_dim(0, heads);
                Some(LearnedPooling::MeanProjected(Param::from_tensor(weights)))
            }
            PoolingConfig::Linear => {
                let weights = (identity() / places as f64).unsqueeze::<4>();
                let weights = weights.repeat(&[heads, places, 1, 1]);
                Some(LearnedPooling::Linear(Param::from_tensor(weights)))
            }
        }
    }
}

/// Learned weights of a compression: [`Pooling`] says what they are.
#[derive(Module, Debug)]
pub enum LearnedPooling {
    /// `[heads_kv, cmp_block]`
    Weighted(Param<Tensor<2>>),
    /// `[heads_kv, head_dim, head_dim]`
    MeanProjected(Param<Tensor<3>>),
    /// `[heads_kv, cmp_block, head_dim, head_dim]`
    Linear(Param<Tensor<4>>),
}

impl LearnedPooling {
    /// The weights as the operators take them.
    pub fn pooling(&self) -> Pooling {
        match self {
            Self::Weighted(weights) => Pooling::Weighted(weights.val()),
            Self::MeanProjected(weights) => Pooling::MeanProjected(weights.val()),
            Self::Linear(weights) => Pooling::Linear(weights.val()),
        }
    }
}

/// Multi-head causal self attention of a sequence, to compressed, selected and recent tokens.
///
/// ```text
/// query             = input W_q          keys, values of each branch = split(input W_kv)
/// gates             = sigmoid(input W_g + b_g), one for each head and branch
/// output            = native_sparse_attention(query, keys, values, gates) W
/// ```
///
/// Made by [`NativeSparseAttentionConfig`]. The operator is [`native_sparse_attention`](crate::native_sparse_attention); positions are
/// the caller's, by [`forward_with`](Self::forward_with).
///
/// Reference: [Native Sparse Attention](https://arxiv.org/abs/2502.11089).
#[derive(Module, Debug)]
pub struct NativeSparseAttention {
    /// Projects channels to queries.
    pub query: Linear,
    /// Projects channels to keys and values: those of the compressed, the selected and the window branch, or one pair for all.
    pub key_value: Linear,
    /// Projects channels to the logits of the gates, those of a head side by side.
    pub gate: Linear,
    /// Projects the heads, side by side, to the output.
    pub proj: Linear,
    /// How keys are compressed; without it by their mean.
    pub pool_key: Option<LearnedPooling>,
    /// How values are compressed; without it by their mean.
    pub pool_value: Option<LearnedPooling>,
    /// Number of heads of the query.
    pub num_heads: usize,
    /// Number of heads of keys and values.
    pub num_heads_kv: usize,
    /// Tokens of a compressed block.
    pub cmp_block: usize,
    /// Tokens from one compressed block to the next.
    pub cmp_stride: usize,
    /// Tokens of a block that can be selected.
    pub slc_block: usize,
    /// Blocks that are selected.
    pub num_selected: usize,
    /// Blocks at the start that are always selected.
    pub num_init: usize,
    /// Blocks at the query that are always selected.
    pub num_local: usize,
    /// Tokens of the window.
    pub window: usize,
    /// Queries that share a list.
    pub query_tile: usize,
    /// Super-blocks that the compressed branch attends to; without one all.
    pub cmp_top: Option<usize>,
    /// Compressed blocks of a super-block.
    pub cmp_group: usize,
    /// Factor on the scores; without one `head_dim^-0.5`.
    pub qk_scale: Option<f64>,
}

/// What a [`NativeSparseAttention`] attends with.
#[derive(Clone, Debug)]
pub struct NativeSparseProjections {
    /// `[batch, tokens, num_heads, head_dim]`
    pub query: Tensor<4>,
    /// `[batch, tokens, num_heads_kv, head_dim]`
    pub key: BranchTokens,
    /// `[batch, tokens, num_heads_kv, head_dim]`
    pub value: BranchTokens,
    /// `[batch, tokens, num_heads, 3]`
    pub gates: Tensor<4>,
}

impl NativeSparseAttention {
    /// Attends every token to those before it, and itself. Tokens have no positions.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, tokens, embed_dim]`
    /// - output: `[batch, tokens, embed_dim]`
    #[track_caller]
    pub fn forward(&self, input: Tensor<3>) -> Tensor<3> {
        self.forward_with(input, |heads| heads)
    }

    /// [`forward`](Self::forward), with positions: `rotate` is given queries and keys, `[batch, tokens, heads, head_dim]`, and
    /// returns them rotated.
    ///
    /// ```rust
    /// use burn::nn::{RotaryEncodingConfig};
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use burn_natten::nn::NativeSparseAttentionConfig;
    ///
    /// let device = Device::flex();
    /// let layer = NativeSparseAttentionConfig::new(32, 4, 2).init(&device);
    /// let rotary = RotaryEncodingConfig::new(128, 8).init(&device);
    /// let input = Tensor::<3>::random([1, 100, 32], Distribution::Default, &device);
    /// let output = layer.forward_with(input, |heads| {
    ///     rotary.forward(heads.swap_dims(1, 2)).swap_dims(1, 2)
    /// });
    /// assert_eq!(output.dims(), [1, 100, 32]);
    /// ```
    #[track_caller]
    pub fn forward_with(
        &self,
        input: Tensor<3>,
        rotate: impl Fn(Tensor<4>) -> Tensor<4>,
    ) -> Tensor<3> {
        let NativeSparseProjections { query, key, value, gates } = self.project(input, rotate);
        // They are a sigmoid's.
        let options = self.options().with_nonnegative_gates(true);
        self.output(native_sparse_attention(query, key, value, gates, options))
    }

    /// The rows of [`forward_with`](Self::forward_with) for tokens that come behind those of a cache, which then has them too: one, or many as a prompt.
    /// `rotate` knows where they stand: at [`cache.tokens()`](NativeSparseCache::tokens) the first.
    ///
    /// ```rust
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use burn_natten::nn::NativeSparseAttentionConfig;
    ///
    /// let device = Device::flex();
    /// let layer = NativeSparseAttentionConfig::new(32, 4, 2).init(&device);
    /// let input = Tensor::<3>::random([1, 60, 32], Distribution::Default, &device);
    /// let mut cache = layer.cache();
    /// let mut step = |start, count| {
    ///     layer.forward_cached(input.clone().narrow(1, start, count), &mut cache, |heads| heads)
    /// };
    /// let rows = vec![step(0, 50), step(50, 1), step(51, 1), step(52, 8)];
    /// let whole = layer.forward(input.clone());
    /// assert!(Tensor::cat(rows, 1).all_close(whole, None, Some(1e-5)));
    /// ```
    ///
    /// # Shapes
    ///
    /// - input: `[batch, rows, embed_dim]`
    /// - output: `[batch, rows, embed_dim]`
    #[track_caller]
    pub fn forward_cached(
        &self,
        input: Tensor<3>,
        cache: &mut NativeSparseCache,
        rotate: impl Fn(Tensor<4>) -> Tensor<4>,
    ) -> Tensor<3> {
        let NativeSparseProjections { query, key, value, gates } = self.project(input, rotate);
        self.output(cache.append(query, key, value, gates))
    }

    /// A cache for [`forward_cached`](Self::forward_cached). It has the weights of the compression as they are now.
    pub fn cache(&self) -> NativeSparseCache {
        NativeSparseCache::new(self.options())
    }

    /// What the operator is given.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, tokens, embed_dim]`
    pub fn project(
        &self,
        input: Tensor<3>,
        rotate: impl Fn(Tensor<4>) -> Tensor<4>,
    ) -> NativeSparseProjections {
        let [batch, tokens, _] = input.dims();
        let heads = |channels: Tensor<3>, heads: usize| {
            let dim = channels.dims()[2] / heads;
            channels.reshape([batch, tokens, heads, dim])
        };
        let query = rotate(heads(linear(&self.query, input.clone()), self.num_heads));
        let gates = sigmoid(linear(&self.gate, input.clone()));
        let gates = gates.reshape([batch, tokens, self.num_heads, 3]);
        let channels = self.num_heads_kv * query.dims()[3];
        let key_value = linear(&self.key_value, input);
        let part = |part: usize| {
            let part = key_value.clone().narrow(2, part * channels, channels);
            heads(part, self.num_heads_kv)
        };
        let (key, value) = match key_value.dims()[2] / (2 * channels) {
            1 => (rotate(part(0)).into(), part(1).into()),
            _ => {
                let of = |tokens: &dyn Fn(usize) -> Tensor<4>| PerBranch {
                    compressed: tokens(0),
                    selected: tokens(1),
                    window: tokens(2),
                };
                let keys = of(&|branch| rotate(part(2 * branch)));
                (keys.into(), of(&|branch| part(2 * branch + 1)).into())
            }
        };
        NativeSparseProjections { query, key, value, gates }
    }

    /// The sizes, the scale and the compression of this layer, as the operator takes them.
    pub fn options(&self) -> NativeSparseAttentionOptions {
        let pooling = |pool: &Option<LearnedPooling>| {
            pool.as_ref().map_or(Pooling::Mean, LearnedPooling::pooling)
        };
        NativeSparseAttentionOptions::new()
            .with_cmp_block(self.cmp_block)
            .with_cmp_stride(self.cmp_stride)
            .with_slc_block(self.slc_block)
            .with_num_selected(self.num_selected)
            .with_num_init(self.num_init)
            .with_num_local(self.num_local)
            .with_window(self.window)
            .with_query_tile(self.query_tile)
            .with_cmp_top(self.cmp_top)
            .with_cmp_group(self.cmp_group)
            .with_pooling(pooling(&self.pool_key), pooling(&self.pool_value))
            .with_scale(self.qk_scale)
    }

    fn output(&self, heads: Tensor<4>) -> Tensor<3> {
        let [batch, tokens, heads_count, dim] = heads.dims();
        linear(&self.proj, heads.reshape([batch, tokens, heads_count * dim]))
    }
}
