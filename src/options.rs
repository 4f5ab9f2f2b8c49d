mod block_sparse;
mod native_sparse;

use std::fmt;
use std::str::FromStr;

use burn::backend::DispatchTensor;
use burn::tensor::Tensor;
use burn_natten_kernels::Axis;

use crate::names::{UnknownName, find};
use crate::problem::{Windows, window_axis};
use crate::{AttentionError, Context};

pub use block_sparse::BlockSparseOptions;
pub(crate) use block_sparse::Edge;
pub(crate) use native_sparse::Sizes;
pub use native_sparse::{Mslk, NativeSparseAttentionOptions};

/// A value for each of `N` spatial axes, slowest first.
///
/// Made from an array, or from one value that then holds for every axis.
///
/// ```rust
/// use burn_natten::PerAxis;
///
/// assert_eq!(PerAxis::<3, usize>::from(7), PerAxis([7, 7, 7]));
/// assert_eq!(PerAxis::from([1, 4]), PerAxis([1, 4]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PerAxis<const N: usize, T>(pub [T; N]);

impl<const N: usize, T: Copy> From<T> for PerAxis<N, T> {
    fn from(value: T) -> Self {
        Self([value; N])
    }
}

impl<const N: usize, T> From<[T; N]> for PerAxis<N, T> {
    fn from(values: [T; N]) -> Self {
        Self(values)
    }
}

/// Which implementation computes an operator.
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::{NeighborhoodOptions, Strategy, na1d};
///
/// let device = Device::flex();
/// let x = Tensor::<4>::random([1, 30, 2, 16], Distribution::Default, &device);
/// let out = |strategy| {
///     let options = NeighborhoodOptions::<1>::new(7).with_strategy(strategy);
///     na1d(x.clone(), x.clone(), x.clone(), options)
/// };
/// assert!(out(Strategy::Auto).all_close(out(Strategy::Reference), None, Some(1e-5)));
/// ```
///
/// Strategies have names, for command lines and files:
///
/// ```rust
/// use burn_natten::Strategy;
///
/// assert_eq!("tensor-core".parse(), Ok(Strategy::TensorCore));
/// assert_eq!(Strategy::Auto.to_string(), "auto");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// The fastest that runs on the device; degrades with one log line.
    #[default]
    Auto,
    /// Composed of Burn's tensor operations; any backend.
    Reference,
    /// The direct kernels of the device's own backend: SIMD on Flex, CubeCL kernels elsewhere.
    Portable,
    /// CubeCL kernels on matrix units, in f16 and bf16, and in f32 where
    /// [`Context::with_allow_tf32`](crate::Context::with_allow_tf32) allows TF32, for head dimensions up to 256: NVIDIA
    /// GPUs of compute capability 8.0 and later. For others with planes of 32 units there are kernels that have never
    /// run on one: [`Context::with_allow_experimental`](crate::Context::with_allow_experimental) allows them.
    TensorCore,
    /// Native CUDA kernels for compute capability 9.0, in f16 and bf16, for head dimensions that are
    /// multiples of 8 up to 256.
    Hopper,
    /// Native CUDA kernels for compute capability 10.0 and 10.3, in f16 and bf16, for head dimensions that are multiples of 8 up
    /// to 256, without a position bias. They have never run on such a GPU: at their first use on a device, a small problem is
    /// compared with the Portable kernels, unless the environment has `BURN_NATTEN_SELF_CHECK=0`.
    Blackwell,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Auto,
        Self::Reference,
        Self::Portable,
        Self::TensorCore,
        Self::Hopper,
        Self::Blackwell,
    ];

    /// Its name, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Reference => "reference",
            Self::Portable => "portable",
            Self::TensorCore => "tensor-core",
            Self::Hopper => "hopper",
            Self::Blackwell => "blackwell",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Strategy {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        find("strategy", name, &Self::ALL, Self::name)
    }
}

/// Additional keys and values, either of which may be missing until it is validated.
pub(crate) type AdditionalTokens = (Option<Tensor<4>>, Option<Tensor<4>>);

/// Parameters of [`na1d`](crate::na1d), [`na2d`](crate::na2d) and [`na3d`](crate::na3d) on `N`
/// spatial axes.
///
/// ```rust
/// use burn_natten::NeighborhoodOptions;
///
/// let options = NeighborhoodOptions::<2>::new([7, 9])
///     .with_stride(2)
///     .with_dilation([1, 4])
///     .with_causal([false, true])
///     .with_scale(0.125);
/// ```
#[derive(Clone, Debug)]
pub struct NeighborhoodOptions<const N: usize> {
    pub(crate) kernel_size: [usize; N],
    pub(crate) stride: [usize; N],
    pub(crate) dilation: [usize; N],
    pub(crate) is_causal: [bool; N],
    /// Of rank `N + 1`, which no type can say; therefore as the operators hand it on.
    pub(crate) bias: Option<DispatchTensor>,
    pub(crate) common: AttentionOptions,
}

impl<const N: usize> NeighborhoodOptions<N> {
    /// Windows of `kernel_size` keys along each axis, at least 2 and at most the axis' length; 1 along an axis of one token.
    ///
    /// Stride and dilation are 1, no axis is causal, the scale is `head_dim^-0.5`.
    ///
    /// Reference: [Neighborhood Attention Transformer](https://arxiv.org/abs/2204.07143).
    pub fn new(kernel_size: impl Into<PerAxis<N, usize>>) -> Self {
        Self {
            kernel_size: kernel_size.into().0,
            stride: [1; N],
            dilation: [1; N],
            is_causal: [false; N],
            bias: None,
            common: AttentionOptions::new(),
        }
    }

    /// Number of neighboring queries that share a window: from 1, the default, to `kernel_size`.
    ///
    /// ```rust
    /// # fn main() -> Result<(), burn_natten::AttentionError> {
    /// use burn_natten::NeighborhoodOptions;
    ///
    /// let [axis] = NeighborhoodOptions::<1>::new(5).with_stride(3).axes([12])?;
    /// // First key and number of keys: that of query 4, which is in the middle of 3, 4 and 5.
    /// assert_eq!([3, 4, 5].map(|query| axis.window(query)), [(2, 5); 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Reference: [Generalized Neighborhood Attention](https://arxiv.org/abs/2504.16922).
    pub fn with_stride(mut self, stride: impl Into<PerAxis<N, usize>>) -> Self {
        self.stride = stride.into().0;
        self
    }

    /// Distance between the keys of a window: 1 by default; `kernel_size * dilation` is at most the
    /// axis' length.
    ///
    /// ```rust
    /// # fn main() -> Result<(), burn_natten::AttentionError> {
    /// use burn_natten::NeighborhoodOptions;
    ///
    /// let [axis] = NeighborhoodOptions::<1>::new(3).with_dilation(4).axes([12])?;
    /// let (first, count) = axis.window(6);
    /// assert_eq!((0..count).map(|i| first + 4 * i).collect::<Vec<_>>(), [2, 6, 10]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Reference: [Dilated Neighborhood Attention Transformer](https://arxiv.org/abs/2209.15001).
    pub fn with_dilation(mut self, dilation: impl Into<PerAxis<N, usize>>) -> Self {
        self.dilation = dilation.into().0;
        self
    }

    /// Whether a query sees only keys up to its own index; `false` by default.
    ///
    /// ```rust
    /// # fn main() -> Result<(), burn_natten::AttentionError> {
    /// use burn_natten::NeighborhoodOptions;
    ///
    /// // A video, causal in time: query 5 of a line sees keys 3 to 5, or 4 to 6.
    /// let options = NeighborhoodOptions::<3>::new(3).with_causal([true, false, false]);
    /// let [time, height, _] = options.axes([8, 8, 8])?;
    /// assert_eq!((time.window(5), height.window(5)), ((3, 3), (4, 3)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_causal(mut self, is_causal: impl Into<PerAxis<N, bool>>) -> Self {
        self.is_causal = is_causal.into().0;
        self
    }

    /// Factor on the scores; `head_dim^-0.5` by default. An explicit zero is zero.
    pub fn with_scale(mut self, scale: impl Into<Option<f64>>) -> Self {
        self.common = self.common.with_scale(scale);
        self
    }

    /// Keys `[batch, tokens, heads_kv, head_dim]` and values `[batch, tokens, heads_kv,
    /// head_dim_v]` that every query sees besides its window; none by default. The guide has a
    /// [page and examples](crate::guide::extra_tokens).
    pub fn with_additional_kv(
        mut self,
        keys: impl Into<Option<Tensor<4>>>,
        values: impl Into<Option<Tensor<4>>>,
    ) -> Self {
        self.common = self.common.with_additional_kv(keys, values);
        self
    }

    /// Which implementation runs; [`Strategy::Auto`] by default.
    pub fn with_strategy(mut self, strategy: Strategy) -> Self {
        self.common = self.common.with_strategy(strategy);
        self
    }

    /// Settings for this call and its backward pass; [`Context::current`] by default.
    pub fn with_context(mut self, context: Context) -> Self {
        self.common = self.common.with_context(context);
        self
    }

    /// Which keys a query sees along each axis of a space of these lengths, without any tensor.
    ///
    /// # Errors
    ///
    /// That of the operators, if a window does not fit its axis.
    ///
    /// # Example
    ///
    /// ```rust
    /// use burn_natten::NeighborhoodOptions;
    ///
    /// # fn main() -> Result<(), burn_natten::AttentionError> {
    /// let [height, width] = NeighborhoodOptions::<2>::new(3).with_dilation([1, 2]).axes([9, 9])?;
    /// // First key and number of keys; they are `dilation` apart.
    /// assert_eq!(height.window(4), (3, 3));
    /// assert_eq!(width.window(0), (0, 3));
    /// # Ok(())
    /// # }
    /// ```
    pub fn axes(&self, space: [usize; N]) -> Result<[Axis; N], AttentionError> {
        let mut axes = [Axis::UNIT; N];
        for (axis, length) in space.into_iter().enumerate() {
            axes[axis] = window_axis(axis, length, self.windows())?;
        }
        Ok(axes)
    }

    /// The parameters of the windows.
    pub(crate) fn windows(&self) -> Windows<'_> {
        Windows {
            kernel_size: &self.kernel_size,
            stride: &self.stride,
            dilation: &self.dilation,
            is_causal: &self.is_causal,
        }
    }
}

/// Defines what takes a tensor whose rank depends on the number of spatial axes.
macro_rules! position_bias {
    (rank $rank:literal, $d:literal, $operator:literal, shape $shape:literal, index $index:literal,
     example $kernel:literal $dims:literal $bias:literal $query:literal) => {
        impl NeighborhoodOptions<$rank> {
            #[doc = concat!("A relative position bias `", $shape, "`, one number for each head of the query and each ")]
            /// distance that a window can hold; none by default. It is added to the scores after the scale:
            ///
            /// ```text
            #[doc = concat!("softmax(scale * query key^T + bias[head, ", $index, "]) value")]
            /// ```
            ///
            /// Distances are those of the key from the query, in steps of the dilation. Additional keys have no bias. It is
            /// differentiable, has the dtype of the query, and goes with everything else: even windows, strides, causal
            /// axes, heads that share keys. The guide has a [page](crate::guide::position_bias).
            ///
            /// ```rust
            /// use burn::tensor::{Device, Distribution, Tensor};
            #[doc = concat!("use burn_natten::{NeighborhoodOptions, ", $operator, "};")]
            ///
            /// let device = Device::flex();
            #[doc = concat!("let x = Tensor::<", $query, ">::random(", $dims, ", Distribution::Default, &device);")]
            #[doc = concat!("let bias = Tensor::<", $d, ">::random(", $bias, ", Distribution::Default, &device);")]
            #[doc = concat!("let options = NeighborhoodOptions::<", $rank, ">::new(", $kernel, ").with_bias(bias);")]
            #[doc = concat!("let out = ", $operator, "(x.clone(), x.clone(), x, options);")]
            #[doc = concat!("assert_eq!(out.dims(), ", $dims, ");")]
            /// ```
            pub fn with_bias(mut self, bias: impl Into<Option<Tensor<$d>>>) -> Self {
                self.bias = bias.into().map(Tensor::into_dispatch);
                self
            }
        }
    };
}

position_bias!(rank 1, 2, "na1d", shape "[heads, 2 * kernel_size - 1]",
    index "distance + kernel_size - 1",
    example "5" "[1, 20, 2, 8]" "[2, 9]" "4");
position_bias!(rank 2, 3, "na2d", shape "[heads, 2 * kernel_size[0] - 1, 2 * kernel_size[1] - 1]",
    index "distance[0] + kernel_size[0] - 1, ..",
    example "[3, 5]" "[1, 8, 9, 2, 8]" "[2, 5, 9]" "5");
position_bias!(rank 3, 4, "na3d",
    shape "[heads, 2 * kernel_size[0] - 1, 2 * kernel_size[1] - 1, 2 * kernel_size[2] - 1]",
    index "distance[0] + kernel_size[0] - 1, ..",
    example "[2, 3, 5]" "[1, 4, 5, 6, 2, 8]" "[2, 3, 5, 9]" "6");

/// Where the queries of causal attention stand among the keys, if there are more or fewer of them.
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::{AttentionOptions, CausalAlignment, attention};
///
/// let device = Device::flex();
/// let random = |tokens| Tensor::<4>::random([1, tokens, 2, 8], Distribution::Default, &device);
/// // One new token, which sees all nine keys of a cache; and the same as the first of nine.
/// let (query, keys) = (random(1), random(9));
/// let out = |options| attention(query.clone(), keys.clone(), keys.clone(), options);
/// let causal = AttentionOptions::new().with_causal(true);
/// let last = out(causal.clone());
/// assert!(last.all_close(out(AttentionOptions::new()), None, None));
/// let first = out(causal.with_causal_alignment(CausalAlignment::Start));
/// assert!(first.all_close(keys.narrow(1, 0, 1), None, Some(1e-6)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CausalAlignment {
    /// The last query at the last key: query `i` sees the keys up to `i + keys - queries`, as with a cache of keys. With more
    /// queries than keys, the first ones see none: their output is zero, their logsumexp `-inf`. Also called bottom-right.
    #[default]
    End,
    /// The first query at the first key: query `i` sees the keys up to `i`. Also called top-left.
    Start,
}

/// Parameters of [`attention`](crate::attention).
///
/// ```rust
/// use burn_natten::AttentionOptions;
///
/// let options = AttentionOptions::new().with_causal(true).with_scale(0.125);
/// ```
#[derive(Clone, Debug, Default)]
pub struct AttentionOptions {
    pub(crate) is_causal: bool,
    pub(crate) alignment: CausalAlignment,
    pub(crate) scale: Option<f64>,
    pub(crate) additional: AdditionalTokens,
    pub(crate) strategy: Strategy,
    pub(crate) context: Option<Context>,
}

impl AttentionOptions {
    /// Every query sees every key, with the scale `head_dim^-0.5`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a query sees only the keys up to where it stands; `false` by default. Where there are other queries than
    /// keys, [`with_causal_alignment`](Self::with_causal_alignment) says where that is.
    pub fn with_causal(mut self, is_causal: bool) -> Self {
        self.is_causal = is_causal;
        self
    }

    /// Where the queries of causal attention stand among the keys; [`CausalAlignment::End`] by default.
    pub fn with_causal_alignment(mut self, alignment: CausalAlignment) -> Self {
        self.alignment = alignment;
        self
    }

    /// Factor on the scores; `head_dim^-0.5` by default. An explicit zero is zero.
    pub fn with_scale(mut self, scale: impl Into<Option<f64>>) -> Self {
        self.scale = scale.into();
        self
    }

    /// Keys `[batch, tokens, heads_kv, head_dim]` and values `[batch, tokens, heads_kv,
    /// head_dim_v]` that every query sees, causal or not; none by default.
    ///
    /// ```rust
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use burn_natten::{AttentionOptions, attention};
    ///
    /// let device = Device::flex();
    /// let words = Tensor::<4>::random([1, 10, 2, 8], Distribution::Default, &device);
    /// let memory = Tensor::<4>::random([1, 3, 2, 8], Distribution::Default, &device);
    /// let options =
    ///     AttentionOptions::new().with_causal(true).with_additional_kv(memory.clone(), memory);
    /// let out = attention(words.clone(), words.clone(), words, options);
    /// assert_eq!(out.dims(), [1, 10, 2, 8]);
    /// ```
    pub fn with_additional_kv(
        mut self,
        keys: impl Into<Option<Tensor<4>>>,
        values: impl Into<Option<Tensor<4>>>,
    ) -> Self {
        self.additional = (keys.into(), values.into());
        self
    }

    /// Which implementation runs; [`Strategy::Auto`] by default.
    pub fn with_strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    /// Settings for this call and its backward pass; [`Context::current`] by default.
    pub fn with_context(mut self, context: Context) -> Self {
        self.context = Some(context);
        self
    }
}
