use burn::backend::TensorMetadata;
use burn::tensor::Tensor;

use super::attention::AttentionOutput;
use super::inputs::Inputs;
use super::plans::Call;
use crate::packed::{Lengths, Spaces};
use crate::problem::packed::{sequences, spaces};
use crate::problem::{Shapes, Windows};
use crate::{AttentionError, AttentionOptions, NeighborhoodOptions};

/// [`attention`](crate::attention) of sequences of different lengths that lie one behind the other, as a batch of one: what others call
/// variable-length attention, or varlen.
///
/// Every sequence is attended on its own, and nothing is padded. Sequences may be empty.
///
/// # Shapes
///
/// - query: `[1, queries of all sequences, heads, head_dim]`
/// - key: `[1, keys of all sequences, heads_kv, head_dim]`, where `heads` is a multiple of `heads_kv`
/// - value: `[1, keys of all sequences, heads_kv, head_dim_v]`
/// - additional keys and values in the options: `[sequences, tokens, heads_kv, ..]`
/// - returns `[1, queries of all sequences, heads, head_dim_v]`
///
/// # Panics
///
/// With the text of the [`AttentionError`] that [`try_attention_packed`] returns.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::{AttentionOptions, Lengths, attention, attention_packed};
///
/// let device = Device::flex();
/// let x = Tensor::<4>::random([1, 30, 4, 8], Distribution::Default, &device);
/// let options = AttentionOptions::new().with_causal(true);
/// let lengths = Lengths::new([12, 18]);
/// let out = attention_packed(x.clone(), x.clone(), x.clone(), &lengths, options.clone());
///
/// // As if each sequence were alone.
/// let second = x.narrow(1, 12, 18);
/// let alone = attention(second.clone(), second.clone(), second, options);
/// assert!(out.narrow(1, 12, 18).equal(alone).all().into_scalar::<bool>());
/// ```
#[track_caller]
pub fn attention_packed(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    lengths: &Lengths,
    options: AttentionOptions,
) -> Tensor<4> {
    match try_attention_packed(query, key, value, lengths, options) {
        Ok(output) => output.out,
        Err(error) => panic!("{error}"),
    }
}

/// [`attention_packed`], with the logsumexp beside the output.
///
/// # Errors
///
/// An [`AttentionError`] names the argument, and the sequence, that does not fit, and what it must be.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Tensor};
/// use burn_natten::{AttentionOptions, Lengths, try_attention_packed};
///
/// let x = Tensor::<4>::zeros([1, 30, 4, 8], &Device::flex());
/// let lengths = Lengths::new([12, 17]);
/// let error = try_attention_packed(x.clone(), x.clone(), x, &lengths, AttentionOptions::new())
///     .expect_err("one token is of no sequence");
/// assert_eq!(error.to_string(), "query: axis 1 (tokens) is 30, must be 29 as in lengths");
/// ```
pub fn try_attention_packed(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    lengths: &Lengths,
    mut options: AttentionOptions,
) -> Result<AttentionOutput, AttentionError> {
    let additional = std::mem::take(&mut options.additional);
    let inputs = Inputs::try_new(query, key, value, additional)?;
    let causal = options.is_causal.then_some(options.alignment);
    let mut call = Call::new(&inputs, &options)?;
    call.with([causal.map_or(0, |alignment| 1 + alignment as usize)]);
    call.with(lengths.queries().iter().copied());
    call.with(lengths.keys().iter().copied());
    let of = |shapes: Shapes<'_>| sequences(shapes, lengths, causal, options.scale);
    let plan = call.plan(&inputs.query.device(), || inputs.packed(None, of))?;
    let (out, logsumexp) = inputs.run_plan(plan);
    Ok(AttentionOutput { out, logsumexp })
}

impl Inputs<4> {
    /// What `of` makes of the shapes.
    fn packed<T>(
        &self,
        bias: Option<&[usize]>,
        of: impl FnOnce(Shapes<'_>) -> Result<T, AttentionError>,
    ) -> Result<T, AttentionError> {
        of(Shapes {
            query: &self.query.dims(),
            key: &self.key.dims(),
            value: &self.value.dims(),
            additional: self.additional.as_ref().map(|(key, value)| (key.dims(), value.dims())),
            bias,
        })
    }
}

/// Defines the operator of a rank and its twin.
macro_rules! neighborhood_attention_packed {
    ($name:ident, $try_name:ident, $uniform:ident, rank $rank:literal, $d:literal, tokens $tokens:literal,
     example $spaces:literal $total:literal $first:literal $kernel:literal) => {
        #[doc = concat!("[`", stringify!($uniform), "`](crate::", stringify!($uniform), ") of ", $tokens, " of different sizes,")]
        /// whose tokens lie one behind the other, as a batch of one.
        ///
        /// Each is attended on its own, and nothing is padded. The window of the options is that of all, unless
        /// [`Spaces::with_windows`] gives each its own kernel size, stride and dilation; which axes are causal is the same for all.
        /// With a position bias, all windows have the same kernel size.
        ///
        /// # Shapes
        ///
        /// - query: `[1, tokens of all spaces, heads, head_dim]`
        /// - key: `[1, tokens of all spaces, heads_kv, head_dim]`, where `heads` is a multiple of `heads_kv`
        /// - value: `[1, tokens of all spaces, heads_kv, head_dim_v]`
        /// - additional keys and values in the options: `[spaces, tokens, heads_kv, ..]`
        /// - returns `[1, tokens of all spaces, heads, head_dim_v]`
        ///
        /// # Panics
        ///
        #[doc = concat!("With the text of the [`AttentionError`] that [`", stringify!($try_name), "`] returns.")]
        ///
        /// # Example
        ///
        /// ```rust
        /// use burn::tensor::{Device, Distribution, Tensor};
        #[doc = concat!("use burn_natten::{NeighborhoodOptions, Spaces, ", stringify!($uniform), ", ", stringify!($name), "};")]
        ///
        /// let device = Device::flex();
        #[doc = concat!("let spaces = Spaces::new(", $spaces, ");")]
        #[doc = concat!("let x = Tensor::<4>::random([1, ", $total, ", 2, 8], Distribution::Default, &device);")]
        #[doc = concat!("let options = NeighborhoodOptions::<", $rank, ">::new(", $kernel, ");")]
        #[doc = concat!("let out = ", stringify!($name), "(x.clone(), x.clone(), x.clone(), &spaces, options.clone());")]
        ///
        /// // As if each were alone.
        /// let first = spaces.ranges().next().expect("there are two");
        #[doc = concat!("let x: Tensor<", $d, "> = x.narrow(1, 0, first.len()).reshape(", $first, ");")]
        #[doc = concat!("let alone = ", stringify!($uniform), "(x.clone(), x.clone(), x, options).reshape([1, -1, 2, 8]);")]
        /// assert!(out.narrow(1, 0, first.len()).equal(alone).all().into_scalar::<bool>());
        /// ```
        #[track_caller]
        pub fn $name(
            query: Tensor<4>,
            key: Tensor<4>,
            value: Tensor<4>,
            spaces: &Spaces<$rank>,
            options: NeighborhoodOptions<$rank>,
        ) -> Tensor<4> {
            match $try_name(query, key, value, spaces, options) {
                Ok(output) => output.out,
                Err(error) => panic!("{error}"),
            }
        }

        #[doc = concat!("[`", stringify!($name), "`], with the logsumexp beside the output.")]
        ///
        /// # Errors
        ///
        /// An [`AttentionError`] names the argument, and the space, that does not fit, the value it got and the bound.
        ///
        /// # Example
        ///
        /// ```rust
        /// use burn::tensor::{Device, Tensor};
        #[doc = concat!("use burn_natten::{NeighborhoodOptions, Spaces, ", stringify!($try_name), "};")]
        ///
        #[doc = concat!("let spaces = Spaces::new(", $spaces, ");")]
        #[doc = concat!("let x = Tensor::<4>::zeros([1, ", $total, ", 2, 8], &Device::flex());")]
        #[doc = concat!("let options = NeighborhoodOptions::<", $rank, ">::new(100);")]
        #[doc = concat!("let error = ", stringify!($try_name), "(x.clone(), x.clone(), x, &spaces, options)")]
        ///     .expect_err("the window is larger than the spaces");
        /// let text = "sequence 0: kernel_size: axis 0 is 100, must be at most ";
        /// assert!(error.to_string().starts_with(text), "{error}");
        /// ```
        pub fn $try_name(
            query: Tensor<4>,
            key: Tensor<4>,
            value: Tensor<4>,
            spaces: &Spaces<$rank>,
            options: NeighborhoodOptions<$rank>,
        ) -> Result<AttentionOutput, AttentionError> {
            neighborhood_packed(query, key, value, spaces, options)
        }
    };
}

neighborhood_attention_packed!(na1d_packed, try_na1d_packed, na1d, rank 1, 4, tokens "sequences",
    example "[[12], [20]]" "32" "[1, 12, 2, 8]" "5");
neighborhood_attention_packed!(na2d_packed, try_na2d_packed, na2d, rank 2, 5, tokens "images",
    example "[[8, 6], [5, 9]]" "93" "[1, 8, 6, 2, 8]" "[3, 5]");
neighborhood_attention_packed!(na3d_packed, try_na3d_packed, na3d, rank 3, 6, tokens "videos",
    example "[[3, 4, 5], [4, 5, 6]]" "180" "[1, 3, 4, 5, 2, 8]" "[2, 3, 5]");

fn neighborhood_packed<const N: usize>(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    packed: &Spaces<N>,
    mut options: NeighborhoodOptions<N>,
) -> Result<AttentionOutput, AttentionError> {
    let additional = std::mem::take(&mut options.common.additional);
    let inputs = Inputs::try_new(query, key, value, additional)?.with_bias(options.bias.take())?;
    let bias = inputs.bias.as_ref().map(TensorMetadata::shape);
    let bias = bias.as_ref().map(|shape| shape.as_slice());
    let windows: Windows<'_> = options.windows();
    let scale = options.common.scale;
    let mut call = Call::new(&inputs, &options.common)?;
    call.with([3 + N]);
    call.with(packed.as_slice().iter().flatten().copied());
    for own in packed.windows().into_iter().flatten() {
        call.with([own.kernel_size, own.stride, own.dilation].into_iter().flatten());
    }
    call.with(
        [windows.kernel_size, windows.stride, windows.dilation].into_iter().flatten().copied(),
    );
    call.with(windows.is_causal.iter().map(|is_causal| usize::from(*is_causal)));
    let of = |shapes: Shapes<'_>| spaces(shapes, packed, windows, scale);
    let plan = call.plan(&inputs.query.device(), || inputs.packed(bias, of))?;
    let (out, logsumexp) = inputs.run_plan(plan);
    Ok(AttentionOutput { out, logsumexp })
}
