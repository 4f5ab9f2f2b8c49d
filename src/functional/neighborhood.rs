use burn::backend::TensorMetadata;
use burn::tensor::Tensor;

use super::inputs::Inputs;
use crate::problem::{self, Shapes};
use crate::{AttentionError, NeighborhoodOptions};

/// What the `try_` operators of neighborhood attention return.
///
/// `D` is the rank of the query, `L` that of the logsumexp, `D - 1`.
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::{NeighborhoodOptions, NeighborhoodOutput, try_na1d};
///
/// # fn main() -> Result<(), burn_natten::AttentionError> {
/// let device = Device::flex();
/// let x = Tensor::<4>::random([1, 20, 2, 8], Distribution::Default, &device);
/// let options = NeighborhoodOptions::<1>::new(5);
/// let NeighborhoodOutput { out, logsumexp } = try_na1d(x.clone(), x.clone(), x, options)?;
/// assert_eq!((out.dims(), logsumexp.dims()), ([1, 20, 2, 8], [1, 20, 2]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct NeighborhoodOutput<const D: usize, const L: usize> {
    /// `[batch, *space, heads, head_dim_v]`, in the dtype of the query.
    pub out: Tensor<D>,
    /// `[batch, *space, heads]`, f32, or f64 for f64 inputs: the natural logarithm of the sum of
    /// the exponentials of the scaled scores.
    pub logsumexp: Tensor<L>,
}

/// Defines the operator of a rank and its twin.
macro_rules! neighborhood_attention {
    ($name:ident, $try_name:ident, rank $rank:literal, $d:literal, $l:literal,
     space $space:literal, example $dims:literal $kernel:literal) => {
        #[doc = concat!("Neighborhood attention over ", $space, ".")]
        ///
        /// Each query attends to the `kernel_size` nearest keys along each axis; the windows are
        /// described in the [guide](crate::guide::windows). Additional keys and a
        /// [position bias](crate::guide::position_bias) are options.
        ///
        /// # Shapes
        ///
        #[doc = concat!("- query: `[batch, ", $space, ", heads, head_dim]`")]
        #[doc = concat!(
            "- key: `[batch, ", $space, ", heads_kv, head_dim]`, where `heads` is a multiple of ",
            "`heads_kv`"
        )]
        #[doc = concat!("- value: `[batch, ", $space, ", heads_kv, head_dim_v]`")]
        #[doc = concat!("- returns `[batch, ", $space, ", heads, head_dim_v]`")]
        ///
        /// # Panics
        ///
        #[doc = concat!(
            "With the text of the [`AttentionError`] that [`", stringify!($try_name), "`] returns."
        )]
        ///
        /// # Example
        ///
        /// ```rust
        /// use burn::tensor::{Device, Distribution, Tensor};
        #[doc = concat!("use burn_natten::{NeighborhoodOptions, ", stringify!($name), "};")]
        ///
        /// let device = Device::flex();
        #[doc = concat!("let shape = ", $dims, ";")]
        #[doc = concat!(
            "let x = Tensor::<", $d, ">::random(shape, Distribution::Default, &device);"
        )]
        #[doc = concat!("let options = NeighborhoodOptions::<", $rank, ">::new(", $kernel, ");")]
        #[doc = concat!(
            "let out = ", stringify!($name), "(x.clone(), x.clone(), x, options);"
        )]
        /// assert_eq!(out.dims(), shape);
        /// ```
        ///
        /// Reference: [Neighborhood Attention Transformer](https://arxiv.org/abs/2204.07143),
        /// [Dilated Neighborhood Attention Transformer](https://arxiv.org/abs/2209.15001),
        /// [Generalized Neighborhood Attention](https://arxiv.org/abs/2504.16922).
        #[track_caller]
        pub fn $name(
            query: Tensor<$d>,
            key: Tensor<$d>,
            value: Tensor<$d>,
            options: NeighborhoodOptions<$rank>,
        ) -> Tensor<$d> {
            match $try_name(query, key, value, options) {
                Ok(output) => output.out,
                Err(error) => panic!("{error}"),
            }
        }

        #[doc = concat!("[`", stringify!($name), "`], with the logsumexp beside the output.")]
        ///
        /// # Errors
        ///
        /// An [`AttentionError`] names the argument and the axis that does not fit, the value it
        /// got and the bound.
        ///
        /// # Example
        ///
        /// ```rust
        /// use burn::tensor::{Device, Distribution, Tensor};
        #[doc = concat!("use burn_natten::{NeighborhoodOptions, ", stringify!($try_name), "};")]
        ///
        /// let device = Device::flex();
        #[doc = concat!("let shape = ", $dims, ";")]
        #[doc = concat!(
            "let x = Tensor::<", $d, ">::random(shape, Distribution::Default, &device);"
        )]
        #[doc = concat!("let options = NeighborhoodOptions::<", $rank, ">::new(100);")]
        #[doc = concat!(
            "let error = ", stringify!($try_name), "(x.clone(), x.clone(), x, options)"
        )]
        ///     .expect_err("the window is larger than the space");
        /// assert!(error.to_string().starts_with("kernel_size: axis 0 is 100, must be at most"));
        /// ```
        pub fn $try_name(
            query: Tensor<$d>,
            key: Tensor<$d>,
            value: Tensor<$d>,
            options: NeighborhoodOptions<$rank>,
        ) -> Result<NeighborhoodOutput<$d, $l>, AttentionError> {
            neighborhood(query, key, value, options)
        }
    };
}

neighborhood_attention!(na1d, try_na1d, rank 1, 4, 3,
    space "length", example "[1, 20, 2, 8]" "5");
neighborhood_attention!(na2d, try_na2d, rank 2, 5, 4,
    space "height, width", example "[1, 8, 9, 2, 8]" "[3, 5]");
neighborhood_attention!(na3d, try_na3d, rank 3, 6, 5,
    space "depth, height, width", example "[1, 4, 5, 6, 2, 8]" "[2, 3, 5]");

pub(crate) fn neighborhood<const N: usize, const D: usize, const L: usize>(
    query: Tensor<D>,
    key: Tensor<D>,
    value: Tensor<D>,
    mut options: NeighborhoodOptions<N>,
) -> Result<NeighborhoodOutput<D, L>, AttentionError> {
    let additional = std::mem::take(&mut options.common.additional);
    let inputs = Inputs::try_new(query, key, value, additional)?.with_bias(options.bias.take())?;
    let bias = inputs.bias.as_ref().map(TensorMetadata::shape);
    let shapes = Shapes {
        query: &inputs.query.dims(),
        key: &inputs.key.dims(),
        value: &inputs.value.dims(),
        additional: inputs.additional.as_ref().map(|(key, value)| (key.dims(), value.dims())),
        bias: bias.as_ref().map(|shape| shape.as_slice()),
    };
    let problem = problem::neighborhood(shapes, options.windows(), options.common.scale)?;
    let (out, logsumexp) = inputs.run(problem, &options.common)?;
    Ok(NeighborhoodOutput { out, logsumexp })
}
