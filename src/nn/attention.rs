use burn::config::Config;
use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig, Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::{linear, thirds};
use crate::{NeighborhoodOptions, Spaces, na1d, na1d_packed, na2d, na2d_packed, na3d, na3d_packed};

/// Defines the layer of a rank and its configuration.
///
/// `$d` is the rank of the input, `$h` that of the query, whose channels are split into heads, `$b` that of a position
/// bias.
macro_rules! neighborhood_attention_layer {
    ($name:ident, $config:ident, $operator:ident, $packed:ident, rank $rank:tt, $d:literal, $h:literal, $b:literal,
     space $space:literal, ones $ones:tt, falses $falses:tt,
     example $kernel:literal $small:literal $dims:literal $spaces:literal) => {
        #[doc = concat!("Configuration of [`", stringify!($name), "`].")]
        ///
        /// # Example
        ///
        /// ```rust
        /// use burn::tensor::{Device, Distribution, Tensor};
        #[doc = concat!("use burn_natten::nn::", stringify!($config), ";")]
        ///
        /// let device = Device::flex();
        #[doc = concat!("let layer = ", stringify!($config), "::new(32, 4, ", $kernel, ")")]
        ///     .with_qkv_bias(false)
        ///     .init(&device);
        #[doc = concat!("let shape = ", $dims, ";")]
        #[doc = concat!(
            "let input = Tensor::<", $d, ">::random(shape, Distribution::Default, &device);"
        )]
        /// assert_eq!(layer.forward(input).dims(), shape);
        /// ```
        #[derive(Config, Debug)]
        pub struct $config {
            /// Channels of input and output, a multiple of `num_heads`.
            pub embed_dim: usize,
            /// Number of heads that the channels are split into.
            pub num_heads: usize,
            /// Keys that a query sees along each axis, at least 2.
            pub kernel_size: [usize; $rank],
            /// Neighboring queries that share a window, along each axis: 1 to `kernel_size`.
            #[config(default = $ones)]
            pub stride: [usize; $rank],
            /// Distance between the keys of a window, along each axis, at least 1.
            #[config(default = $ones)]
            pub dilation: [usize; $rank],
            /// Whether a query sees only keys up to its own index, along each axis.
            #[config(default = $falses)]
            pub is_causal: [bool; $rank],
            /// Whether the projection to query, key and value has a bias.
            #[config(default = true)]
            pub qkv_bias: bool,
            /// Factor on the scores; without one `head_dim^-0.5`.
            pub qk_scale: Option<f64>,
            /// Whether scores have a learned [bias](crate::guide::position_bias) by the distance of key and query.
            #[config(default = false)]
            pub rel_pos_bias: bool,
            /// Probability of zeroing an element of the output while training, below 1.
            #[config(default = 0.0)]
            pub proj_drop: f64,
        }

        impl $config {
            #[doc = concat!("Initializes a [`", stringify!($name), "`] on `device`.")]
            ///
            /// # Panics
            ///
            /// If a field is out of its range.
            pub fn init(&self, device: &Device) -> $name {
                check_heads(self.embed_dim, self.num_heads);
                for axis in 0..$rank {
                    check_window(axis, self.kernel_size[axis], self.stride[axis], self.dilation[axis]);
                }
                check_scale(self.qk_scale);
                $name {
                    qkv: LinearConfig::new(self.embed_dim, 3 * self.embed_dim)
                        .with_bias(self.qkv_bias)
                        .init(device),
                    proj: LinearConfig::new(self.embed_dim, self.embed_dim).init(device),
                    dropout: dropout("proj_drop", self.proj_drop),
                    rpb: self.rel_pos_bias.then(|| {
                        position_bias(self.num_heads, self.kernel_size, device)
                    }),
                    num_heads: self.num_heads,
                    kernel_size: self.kernel_size,
                    stride: self.stride,
                    dilation: self.dilation,
                    is_causal: self.is_causal,
                    qk_scale: self.qk_scale,
                }
            }
        }

        #[doc = concat!("Multi-head self attention of neighborhoods over ", $space, ".")]
        ///
        /// ```text
        /// query, key, value = split(input W_qkv + b_qkv)
        /// output            = dropout(neighborhood_attention(query, key, value) W + b)
        /// ```
        ///
        #[doc = concat!("Made by [`", stringify!($config), "`]. The operator is [`", stringify!($operator), "`](crate::", stringify!($operator), ").")]
        ///
        /// # Example
        ///
        /// A model is a struct of layers:
        ///
        /// ```rust
        /// use burn::module::Module;
        /// use burn::tensor::{Device, Distribution, Tensor};
        #[doc = concat!("use burn_natten::nn::{", stringify!($name), ", ", stringify!($config), "};")]
        ///
        /// #[derive(Module, Debug)]
        /// struct Model {
        #[doc = concat!("    near: ", stringify!($name), ",")]
        #[doc = concat!("    far: ", stringify!($name), ",")]
        /// }
        ///
        /// let device = Device::flex();
        #[doc = concat!("let config = ", stringify!($config), "::new(32, 4, ", $small, ");")]
        /// let model = Model {
        ///     near: config.init(&device),
        #[doc = concat!("    far: config.with_dilation([2; ", stringify!($rank), "]).init(&device),")]
        /// };
        #[doc = concat!("let shape = ", $dims, ";")]
        #[doc = concat!(
            "let input = Tensor::<", $d, ">::random(shape, Distribution::Default, &device);"
        )]
        /// let output = model.far.forward(model.near.forward(input));
        /// assert_eq!(output.dims(), shape);
        /// ```
        ///
        /// Reference: [Neighborhood Attention Transformer](https://arxiv.org/abs/2204.07143),
        /// [Dilated Neighborhood Attention Transformer](https://arxiv.org/abs/2209.15001).
        #[derive(Module, Debug)]
        pub struct $name {
            /// Projects channels to query, key and value, in this order.
            pub qkv: Linear,
            /// Projects the heads, side by side, to the output.
            pub proj: Linear,
            /// Dropout of the output.
            pub dropout: Dropout,
            /// The relative position bias, `[num_heads, 2 * kernel_size - 1, ..]`, if there is one.
            pub rpb: Option<Param<Tensor<$b>>>,
            /// Number of heads.
            pub num_heads: usize,
            /// Keys that a query sees along each axis.
            pub kernel_size: [usize; $rank],
            /// Neighboring queries that share a window, along each axis.
            pub stride: [usize; $rank],
            /// Distance between the keys of a window, along each axis.
            pub dilation: [usize; $rank],
            /// Whether a query sees only keys up to its own index, along each axis.
            pub is_causal: [bool; $rank],
            /// Factor on the scores; without one `head_dim^-0.5`.
            pub qk_scale: Option<f64>,
        }

        impl $name {
            /// Attends every position to its neighborhood.
            ///
            /// # Shapes
            ///
            #[doc = concat!("- input: `[batch, ", $space, ", embed_dim]`")]
            #[doc = concat!("- output: `[batch, ", $space, ", embed_dim]`")]
            ///
            /// # Panics
            ///
            /// With the text of an [`AttentionError`](crate::AttentionError) if the windows do not
            /// fit into the space: `kernel_size * dilation` is at most the length of an axis.
            #[track_caller]
            pub fn forward(&self, input: Tensor<$d>) -> Tensor<$d> {
                let shape = input.dims();
                let [query, key, value] = self.query_key_value(input);
                let attended = $operator(query, key, value, self.options()).reshape(shape);
                self.dropout.forward(linear(&self.proj, attended))
            }

            /// [`forward`](Self::forward) for inputs of different sizes, one behind the other, as
            #[doc = concat!("[`", stringify!($packed), "`](crate::", stringify!($packed), ") takes them.")]
            ///
            /// ```rust
            /// use burn::tensor::{Device, Distribution, Tensor};
            /// use burn_natten::Spaces;
            #[doc = concat!("use burn_natten::nn::", stringify!($config), ";")]
            ///
            /// let device = Device::flex();
            #[doc = concat!("let layer = ", stringify!($config), "::new(32, 4, ", $small, ").init(&device);")]
            #[doc = concat!("let spaces = Spaces::new(", $spaces, ");")]
            /// let shape = [1, spaces.tokens(), 32];
            /// let input = Tensor::<3>::random(shape, Distribution::Default, &device);
            /// assert_eq!(layer.forward_packed(input, &spaces).dims(), shape);
            /// ```
            ///
            /// # Shapes
            ///
            /// - input: `[1, tokens of all spaces, embed_dim]`
            /// - output: `[1, tokens of all spaces, embed_dim]`
            ///
            /// # Panics
            ///
            /// With the text of an [`AttentionError`](crate::AttentionError) if the windows do not fit into a space, or the tokens are
            /// not those of the spaces.
            #[track_caller]
            pub fn forward_packed(&self, input: Tensor<3>, spaces: &Spaces<$rank>) -> Tensor<3> {
                let shape = input.dims();
                let [batch, tokens, channels] = shape;
                let qkv = linear(&self.qkv, input);
                let heads = [batch, tokens, self.num_heads, channels / self.num_heads];
                let [query, key, value] = thirds(qkv).map(|part| part.reshape(heads));
                let attended = $packed(query, key, value, spaces, self.options()).reshape(shape);
                self.dropout.forward(linear(&self.proj, attended))
            }

            /// The query, key and value that [`forward`](Self::forward) attends with, for instance
            /// to look at attention weights:
            ///
            /// ```rust
            /// use burn::tensor::{Device, Distribution, Tensor};
            #[doc = concat!("use burn_natten::nn::", stringify!($config), ";")]
            #[doc = concat!("use burn_natten::", stringify!($operator), ";")]
            ///
            /// let device = Device::flex();
            #[doc = concat!("let layer = ", stringify!($config), "::new(32, 4, ", $kernel, ").init(&device);")]
            #[doc = concat!("let shape = ", $dims, ";")]
            #[doc = concat!(
                "let input = Tensor::<", $d, ">::random(shape, Distribution::Default, &device);"
            )]
            /// let [query, key, value] = layer.query_key_value(input.clone());
            #[doc = concat!(
                "let attended = ", stringify!($operator), "(query, key, value, layer.options());"
            )]
            /// let output = layer.proj.forward(attended.reshape(shape));
            /// assert!(output.all_close(layer.forward(input), None, Some(1e-5)));
            /// ```
            ///
            /// # Shapes
            ///
            #[doc = concat!("- input: `[batch, ", $space, ", embed_dim]`")]
            #[doc = concat!("- each output: `[batch, ", $space, ", num_heads, head_dim]`")]
            pub fn query_key_value(&self, input: Tensor<$d>) -> [Tensor<$h>; 3] {
                let channels = input.dims()[$d - 1];
                let mut shape = [0; $h];
                shape[..$d].copy_from_slice(&input.dims());
                shape[$d - 1] = self.num_heads;
                shape[$h - 1] = channels / self.num_heads;
                let qkv = linear(&self.qkv, input);
                // Parts of an axis, and an axis as two, are views, so that strided kernels copy nothing.
                thirds(qkv).map(|part| part.reshape(shape))
            }

            /// The window, scale and position bias of this layer, as the operator takes them.
            pub fn options(&self) -> NeighborhoodOptions<$rank> {
                NeighborhoodOptions::new(self.kernel_size)
                    .with_stride(self.stride)
                    .with_dilation(self.dilation)
                    .with_causal(self.is_causal)
                    .with_scale(self.qk_scale)
                    .with_bias(self.rpb.as_ref().map(Param::val))
            }
        }
    };
}

neighborhood_attention_layer!(NeighborhoodAttention1d, NeighborhoodAttention1dConfig, na1d, na1d_packed,
    rank 1, 3, 4, 2, space "length", ones "[1]", falses "[false]",
    example "[7]" "[5]" "[2, 20, 32]" "[[9], [14]]");
neighborhood_attention_layer!(NeighborhoodAttention2d, NeighborhoodAttention2dConfig, na2d, na2d_packed,
    rank 2, 4, 5, 3, space "height, width", ones "[1, 1]", falses "[false, false]",
    example "[7, 7]" "[3, 3]" "[2, 8, 9, 32]" "[[8, 9], [7, 12]]");
neighborhood_attention_layer!(NeighborhoodAttention3d, NeighborhoodAttention3dConfig, na3d, na3d_packed,
    rank 3, 5, 6, 4, space "depth, height, width", ones "[1, 1, 1]", falses "[false, false, false]",
    example "[2, 3, 3]" "[2, 2, 3]" "[1, 4, 5, 6, 32]" "[[4, 5, 6], [2, 3, 9]]");

/// A new relative position bias of as many heads and windows of this size.
fn position_bias<const N: usize, const B: usize>(
    heads: usize,
    kernel_size: [usize; N],
    device: &Device,
) -> Param<Tensor<B>> {
    let mut shape = [heads; B];
    for (distances, size) in shape[1..].iter_mut().zip(kernel_size) {
        *distances = 2 * size - 1;
    }
    // NAT cuts its normal distribution off at 2, which is a hundred deviations away.
    Initializer::Normal { mean: 0.0, std: 0.02 }.init(shape, device)
}

#[track_caller]
fn check_heads(embed_dim: usize, num_heads: usize) {
    assert!(num_heads >= 1, "num_heads: is {num_heads}, must be at least 1");
    assert!(
        embed_dim >= 1 && embed_dim.is_multiple_of(num_heads),
        "embed_dim: is {embed_dim}, must be a positive multiple of num_heads, {num_heads}"
    );
}

/// What can be said about a window before the size of the space is known.
#[track_caller]
fn check_window(axis: usize, kernel_size: usize, stride: usize, dilation: usize) {
    assert!(kernel_size >= 2, "kernel_size: axis {axis} is {kernel_size}, must be at least 2");
    assert!(stride >= 1, "stride: axis {axis} is {stride}, must be at least 1");
    assert!(
        stride <= kernel_size,
        "stride: axis {axis} is {stride}, must be at most {kernel_size} (kernel_size)"
    );
    assert!(dilation >= 1, "dilation: axis {axis} is {dilation}, must be at least 1");
}

#[track_caller]
pub(super) fn check_scale(scale: Option<f64>) {
    if let Some(scale) = scale {
        assert!(scale.is_finite(), "qk_scale: is {scale}, must be finite");
    }
}

/// A dropout layer, after a check that names the configuration's field.
#[track_caller]
pub(crate) fn dropout(field: &str, prob: f64) -> Dropout {
    assert!((0.0..1.0).contains(&prob), "{field}: is {prob}, must be at least 0 and below 1");
    DropoutConfig::new(prob).init()
}
