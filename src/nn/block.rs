use burn::config::Config;
use burn::module::Module;
use burn::nn::{Dropout, Gelu, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::attention::dropout;
use super::{LayerNorm, NeighborhoodAttention2d, NeighborhoodAttention2dConfig, gelu, linear};
use crate::Spaces;

/// Configuration of [`NeighborhoodTransformerBlock`].
///
/// # Example
///
/// Two blocks as in DiNAT, of which the second looks further:
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::nn::NeighborhoodTransformerBlockConfig;
///
/// let device = Device::flex();
/// let config = NeighborhoodTransformerBlockConfig::new(32, 4, [3, 3]);
/// let local = config.init(&device);
/// let dilated = config.with_dilation([4, 4]).init(&device);
///
/// let input = Tensor::<4>::random([2, 12, 12, 32], Distribution::Default, &device);
/// let output = dilated.forward(local.forward(input));
/// assert_eq!(output.dims(), [2, 12, 12, 32]);
/// ```
#[derive(Config, Debug)]
pub struct NeighborhoodTransformerBlockConfig {
    /// Channels of input and output, a multiple of `num_heads`.
    pub embed_dim: usize,
    /// Number of attention heads.
    pub num_heads: usize,
    /// Keys that a query sees along height and width, at least 2.
    pub kernel_size: [usize; 2],
    /// Neighboring queries that share a window, along height and width: 1 to `kernel_size`.
    #[config(default = "[1, 1]")]
    pub stride: [usize; 2],
    /// Distance between the keys of a window, along height and width, at least 1.
    #[config(default = "[1, 1]")]
    pub dilation: [usize; 2],
    /// Hidden channels of the MLP, as a multiple of `embed_dim`.
    #[config(default = 3.0)]
    pub mlp_ratio: f64,
    /// Whether the projection to query, key and value has a bias.
    #[config(default = true)]
    pub qkv_bias: bool,
    /// Factor on the scores; without one `head_dim^-0.5`.
    pub qk_scale: Option<f64>,
    /// Whether scores have a learned [bias](crate::guide::position_bias) by the distance of key and query.
    #[config(default = false)]
    pub rel_pos_bias: bool,
    /// Probability of zeroing an element after attention and MLP while training, below 1.
    #[config(default = 0.0)]
    pub proj_drop: f64,
    /// Probability of skipping attention, and MLP, for a sample while training, below 1.
    #[config(default = 0.0)]
    pub drop_path: f64,
}

impl NeighborhoodTransformerBlockConfig {
    /// Initializes a [`NeighborhoodTransformerBlock`] on `device`.
    ///
    /// # Panics
    ///
    /// If a field is out of its range.
    pub fn init(&self, device: &Device) -> NeighborhoodTransformerBlock {
        let hidden = self.embed_dim as f64 * self.mlp_ratio;
        assert!(
            hidden.is_finite() && hidden >= 1.0,
            "mlp_ratio: is {}, must give embed_dim * mlp_ratio of at least 1",
            self.mlp_ratio
        );
        let hidden = hidden as usize;
        let attention =
            NeighborhoodAttention2dConfig::new(self.embed_dim, self.num_heads, self.kernel_size)
                .with_stride(self.stride)
                .with_dilation(self.dilation)
                .with_qkv_bias(self.qkv_bias)
                .with_qk_scale(self.qk_scale)
                .with_rel_pos_bias(self.rel_pos_bias)
                .with_proj_drop(self.proj_drop);
        NeighborhoodTransformerBlock {
            norm_attention: LayerNorm::new(self.embed_dim, device),
            attention: attention.init(device),
            norm_mlp: LayerNorm::new(self.embed_dim, device),
            expand: LinearConfig::new(self.embed_dim, hidden).init(device),
            activation: Gelu::new(),
            contract: LinearConfig::new(hidden, self.embed_dim).init(device),
            dropout: dropout("proj_drop", self.proj_drop),
            drop_path: dropout("drop_path", self.drop_path),
        }
    }
}

/// A transformer block for images: neighborhood attention, then an MLP, each normalized before and
/// added to its input.
///
/// ```text
/// hidden = input  + drop_path(attention(norm(input)))
/// output = hidden + drop_path(dropout(contract(dropout(gelu(expand(norm(hidden)))))))
/// ```
///
/// `drop_path` drops a branch for whole samples ([stochastic depth](https://arxiv.org/abs/1603.09382)).
/// Made by [`NeighborhoodTransformerBlockConfig`]. Branches are dropped only on a device with
/// autodiff, which is where a model trains:
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::nn::NeighborhoodTransformerBlockConfig;
///
/// let device = Device::flex();
/// let block = NeighborhoodTransformerBlockConfig::new(32, 4, [3, 3])
///     .with_mlp_ratio(2.0)
///     .with_drop_path(0.1)
///     .init(&device);
/// let image = Tensor::<4>::random([2, 6, 6, 32], Distribution::Default, &device);
/// // Not training: the same every time.
/// let output = block.forward(image.clone());
/// assert!(output.all_close(block.forward(image), None, None));
/// ```
///
/// Reference: [Neighborhood Attention Transformer](https://arxiv.org/abs/2204.07143),
/// [Dilated Neighborhood Attention Transformer](https://arxiv.org/abs/2209.15001).
#[derive(Module, Debug)]
pub struct NeighborhoodTransformerBlock {
    /// Normalization before attention.
    pub norm_attention: LayerNorm,
    /// Attention of every pixel to its neighborhood.
    pub attention: NeighborhoodAttention2d,
    /// Normalization before the MLP.
    pub norm_mlp: LayerNorm,
    /// First layer of the MLP.
    pub expand: Linear,
    /// Between the layers of the MLP.
    pub activation: Gelu,
    /// Second layer of the MLP.
    pub contract: Linear,
    /// Dropout of the MLP.
    pub dropout: Dropout,
    /// Decides, sample by sample, whether a branch is dropped.
    pub drop_path: Dropout,
}

impl NeighborhoodTransformerBlock {
    /// Applies the block.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, height, width, embed_dim]`
    /// - output: `[batch, height, width, embed_dim]`
    ///
    /// # Panics
    ///
    /// With the text of an [`AttentionError`](crate::AttentionError) if the windows do not fit:
    /// `kernel_size * dilation` is at most the height and the width.
    #[track_caller]
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let attended = self.attention.forward(self.norm_attention.forward(input.clone()));
        let hidden = input + drop_path(&self.drop_path, attended);
        let mixed = self.mlp(self.norm_mlp.forward(hidden.clone()));
        hidden + drop_path(&self.drop_path, mixed)
    }

    /// [`forward`](Self::forward) for images of different sizes, one behind the other, as [`na2d_packed`](crate::na2d_packed) takes them:
    ///
    /// ```rust
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use burn_natten::Spaces;
    /// use burn_natten::nn::NeighborhoodTransformerBlockConfig;
    ///
    /// let device = Device::flex();
    /// let block = NeighborhoodTransformerBlockConfig::new(32, 4, [3, 3]).init(&device);
    /// let images = Spaces::new([[6, 8], [5, 5]]);
    /// let tokens = Tensor::<3>::random([1, 73, 32], Distribution::Default, &device);
    /// assert_eq!(block.forward_packed(tokens, &images).dims(), [1, 73, 32]);
    /// ```
    ///
    /// # Shapes
    ///
    /// - input: `[1, tokens of all images, embed_dim]`
    /// - output: `[1, tokens of all images, embed_dim]`
    ///
    /// # Panics
    ///
    /// With the text of an [`AttentionError`](crate::AttentionError) if the windows do not fit into an image, or the tokens are not those
    /// of the images.
    #[track_caller]
    pub fn forward_packed(&self, input: Tensor<3>, images: &Spaces<2>) -> Tensor<3> {
        let normal = self.norm_attention.forward(input.clone());
        let attended = self.attention.forward_packed(normal, images);
        let hidden = input + self.drop_path_packed(attended, images);
        let mixed = self.mlp(self.norm_mlp.forward(hidden.clone()));
        hidden + self.drop_path_packed(mixed, images)
    }

    /// Drops the branch for whole images.
    fn drop_path_packed(&self, branch: Tensor<3>, images: &Spaces<2>) -> Tensor<3> {
        let device = branch.device();
        if self.drop_path.prob == 0.0 || !device.is_autodiff() || images.tokens() == 0 {
            return branch;
        }
        let factors = Tensor::<1>::ones([images.len()], (&device, branch.dtype()));
        let factors = self.drop_path.forward(factors).select(0, images.sequences(&device));
        branch * factors.reshape([1, images.tokens(), 1])
    }

    fn mlp<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let hidden = linear(&self.expand, input);
        let hidden = match self.activation.approximate {
            true => self.activation.forward(hidden),
            false => gelu(hidden),
        };
        self.dropout.forward(linear(&self.contract, self.dropout.forward(hidden)))
    }
}

/// Stochastic depth: dropout of one number per sample drops the sample's whole branch and scales up
/// the others.
pub(crate) fn drop_path(dropout: &Dropout, branch: Tensor<4>) -> Tensor<4> {
    if dropout.prob == 0.0 || !branch.device().is_autodiff() {
        return branch;
    }
    let options = (&branch.device(), branch.dtype());
    let samples = Tensor::ones([branch.dims()[0], 1, 1, 1], options);
    branch * dropout.forward(samples)
}
