use burn::backend::{Dispatch, TensorMetadata};
use burn::tensor::Tensor;
use burn_natten_kernels::Problem;

use super::inputs::{bias_matches, is_float, matches};
use crate::backend::unfused::{Optional, Tokens, UnfusedOps, UnfusedPlan};
use crate::options::AttentionOptions;
use crate::problem::unfused::{self as problem, Additional};
use crate::{AttentionError, NeighborhoodOptions};

/// Defines both operators of a rank and their twins.
macro_rules! unfused {
    ($qk:ident, $try_qk:ident, $av:ident, $try_av:ident, fused $fused:ident, rank $rank:literal, $d:literal,
     space $space:literal, example $dims:literal $weights:literal $kernel:literal) => {
        #[doc = concat!("Scores of the keys in each query's window, over ", $space, ": the first half of [`", stringify!($fused),
            "`](crate::", stringify!($fused), ").")]
        ///
        /// ```text
        /// scores[query, slot] = scale * query . key(query, slot) + bias
        /// ```
        ///
        #[doc = concat!(
            "Their softmax are the attention weights, and [`", stringify!($av), "`] makes the output of those."
        )]
        ///
        /// # Slots
        ///
        /// The last axis holds a score for each key of a window, `kernel_size` along each axis in row-major order, keys ascending, and
        /// behind them one for each additional key. On a causal axis, a query that sees fewer than `kernel_size` keys fills its first
        /// slots; the others are `-inf`, take no part in a softmax, and have no gradient.
        ///
        /// # Options
        ///
        /// Those of the whole attention: the scale, `head_dim^-0.5` by default, is a factor on all scores, of additional keys as well.
        /// NATTEN's operator of this name has none: it is `with_scale(1.0)`. A relative position bias is added to the scores of a
        /// window. The additional values are what
        #[doc = concat!("[`", stringify!($av), "`] takes, and need not be there.")]
        /// There are kernels for [`Strategy::Portable`](crate::Strategy::Portable) and
        /// [`Strategy::Reference`](crate::Strategy::Reference); other strategies by name are refused. On NVIDIA GPUs from Ampere on,
        /// [`Strategy::Auto`](crate::Strategy::Auto) has kernels on the tensor cores besides, in f16 and bf16, for vectors of 16 to 128
        /// elements, a multiple of 16, without additional tokens.
        ///
        /// # Shapes
        ///
        #[doc = concat!("- query: `[batch, ", $space, ", heads, head_dim]`")]
        #[doc = concat!(
            "- key: `[batch, ", $space, ", heads_kv, head_dim]`, where `heads` is a multiple of ",
            "`heads_kv`"
        )]
        #[doc = concat!("- returns `[batch, ", $space, ", heads, window]`, in the dtype of the query")]
        ///
        /// # Panics
        ///
        #[doc = concat!(
            "With the text of the [`AttentionError`] that [`", stringify!($try_qk), "`] returns."
        )]
        ///
        /// # Example
        ///
        /// ```rust
        /// use burn::tensor::{Device, Distribution, Tensor, activation::softmax};
        #[doc = concat!(
            "use burn_natten::{NeighborhoodOptions, ", stringify!($fused), ", ", stringify!($av), ", ", stringify!($qk), "};"
        )]
        ///
        /// let device = Device::flex();
        #[doc = concat!(
            "let x = Tensor::<", $d, ">::random(", $dims, ", Distribution::Default, &device);"
        )]
        #[doc = concat!("let options = NeighborhoodOptions::<", $rank, ">::new(", $kernel, ");")]
        #[doc = concat!(
            "let scores = ", stringify!($qk), "(x.clone(), x.clone(), options.clone());"
        )]
        #[doc = concat!("assert_eq!(scores.dims(), ", $weights, ");")]
        ///
        #[doc = concat!("let weights = softmax(scores, ", $d, " - 1);")]
        #[doc = concat!("let out = ", stringify!($av), "(weights, x.clone(), options.clone());")]
        #[doc = concat!("let fused = ", stringify!($fused), "(x.clone(), x.clone(), x, options);")]
        /// assert!(out.all_close(fused, None, Some(1e-5)));
        /// ```
        ///
        /// Reference: [Neighborhood Attention Transformer](https://arxiv.org/abs/2204.07143).
        #[track_caller]
        pub fn $qk(
            query: Tensor<$d>,
            key: Tensor<$d>,
            options: NeighborhoodOptions<$rank>,
        ) -> Tensor<$d> {
            match $try_qk(query, key, options) {
                Ok(scores) => scores,
                Err(error) => panic!("{error}"),
            }
        }

        #[doc = concat!("[`", stringify!($qk), "`], with an error instead of a panic.")]
        ///
        /// # Errors
        ///
        /// An [`AttentionError`] names the argument and the axis that does not fit, the value it
        /// got and the bound.
        ///
        /// # Example
        ///
        /// ```rust
        /// use burn::tensor::{Device, Tensor};
        #[doc = concat!("use burn_natten::{NeighborhoodOptions, ", stringify!($try_qk), "};")]
        ///
        /// let device = Device::flex();
        #[doc = concat!("let x = Tensor::<", $d, ">::zeros(", $dims, ", &device);")]
        #[doc = concat!("let options = NeighborhoodOptions::<", $rank, ">::new(100);")]
        #[doc = concat!(
            "let error = ", stringify!($try_qk), "(x.clone(), x, options)"
        )]
        ///     .expect_err("the window is larger than the space");
        /// assert!(error.to_string().starts_with("kernel_size: axis 0 is 100, must be at most"));
        /// ```
        pub fn $try_qk(
            query: Tensor<$d>,
            key: Tensor<$d>,
            options: NeighborhoodOptions<$rank>,
        ) -> Result<Tensor<$d>, AttentionError> {
            qk(query, key, options)
        }

        #[doc = concat!("Sums of the values in each query's window, over ", $space, ": the second half of [`", stringify!($fused),
            "`](crate::", stringify!($fused), ").")]
        ///
        /// ```text
        /// out[query] = sum over slots of weights[query, slot] * value(query, slot)
        /// ```
        ///
        #[doc = concat!(
            "Weights are any numbers, in the slots of [`", stringify!($qk), "`]. A slot that no key stands in is not read, and ",
            "its gradient is zero."
        )]
        ///
        /// # Options
        ///
        #[doc = concat!("Those of the whole attention. The scale and the additional keys are what [`", stringify!($qk), "`] takes, and so is a position bias:")]
        /// nothing is scaled or added here, and the keys need not be there. The strategies are the same.
        ///
        /// # Shapes
        ///
        #[doc = concat!(
            "- weights: `[batch, ", $space, ", heads, window]`, of a slot for each key of a window and, behind them, one for each ",
            "additional value"
        )]
        #[doc = concat!(
            "- value: `[batch, ", $space, ", heads_kv, head_dim_v]`, where `heads` is a multiple of ",
            "`heads_kv`"
        )]
        #[doc = concat!("- returns `[batch, ", $space, ", heads, head_dim_v]`")]
        ///
        /// # Panics
        ///
        #[doc = concat!(
            "With the text of the [`AttentionError`] that [`", stringify!($try_av), "`] returns."
        )]
        ///
        /// # Example
        ///
        /// ```rust
        /// use burn::tensor::{Device, Distribution, Tensor};
        #[doc = concat!("use burn_natten::{NeighborhoodOptions, ", stringify!($av), "};")]
        ///
        /// let device = Device::flex();
        #[doc = concat!("let value = Tensor::<", $d, ">::ones(", $dims, ", &device);")]
        #[doc = concat!("let weights = Tensor::<", $d, ">::ones(", $weights, ", &device);")]
        #[doc = concat!("let options = NeighborhoodOptions::<", $rank, ">::new(", $kernel, ");")]
        #[doc = concat!("let out = ", stringify!($av), "(weights.clone(), value.clone(), options);")]
        /// // Everywhere as much as there are slots.
        #[doc = concat!("assert!(out.all_close(value * weights.dims()[", $d, " - 1] as f32, None, None));")]
        /// ```
        ///
        /// Reference: [Neighborhood Attention Transformer](https://arxiv.org/abs/2204.07143).
        #[track_caller]
        pub fn $av(
            weights: Tensor<$d>,
            value: Tensor<$d>,
            options: NeighborhoodOptions<$rank>,
        ) -> Tensor<$d> {
            match $try_av(weights, value, options) {
                Ok(out) => out,
                Err(error) => panic!("{error}"),
            }
        }

        #[doc = concat!("[`", stringify!($av), "`], with an error instead of a panic.")]
        ///
        /// # Errors
        ///
        /// An [`AttentionError`] names the argument and the axis that does not fit, the value it
        /// got and the bound.
        ///
        /// # Example
        ///
        /// ```rust
        /// use burn::tensor::{Device, Tensor};
        #[doc = concat!("use burn_natten::{NeighborhoodOptions, ", stringify!($try_av), "};")]
        ///
        /// let device = Device::flex();
        #[doc = concat!("let value = Tensor::<", $d, ">::zeros(", $dims, ", &device);")]
        #[doc = concat!("let options = NeighborhoodOptions::<", $rank, ">::new(2);")]
        #[doc = concat!("let weights = Tensor::<", $d, ">::zeros(", $weights, ", &device);")]
        #[doc = concat!("let error = ", stringify!($try_av), "(weights, value, options).expect_err(\"too many slots\");")]
        #[doc = concat!("let axis = ", $d, " - 1;")]
        /// assert!(error.to_string().starts_with(&format!("weights: axis {axis} (window) is ")), "{error}");
        /// ```
        pub fn $try_av(
            weights: Tensor<$d>,
            value: Tensor<$d>,
            options: NeighborhoodOptions<$rank>,
        ) -> Result<Tensor<$d>, AttentionError> {
            av(weights, value, options)
        }
    };
}

unfused!(na1d_qk, try_na1d_qk, na1d_av, try_na1d_av, fused na1d, rank 1, 4,
    space "length", example "[1, 20, 2, 8]" "[1, 20, 2, 5]" "5");
unfused!(na2d_qk, try_na2d_qk, na2d_av, try_na2d_av, fused na2d, rank 2, 5,
    space "height, width", example "[1, 8, 9, 2, 8]" "[1, 8, 9, 2, 15]" "[3, 5]");
unfused!(na3d_qk, try_na3d_qk, na3d_av, try_na3d_av, fused na3d, rank 3, 6,
    space "depth, height, width", example "[1, 4, 5, 6, 2, 8]" "[1, 4, 5, 6, 2, 30]" "[2, 3, 5]");

fn qk<const N: usize, const D: usize>(
    query: Tensor<D>,
    key: Tensor<D>,
    options: NeighborhoodOptions<N>,
) -> Result<Tensor<D>, AttentionError> {
    is_float("query", &query)?;
    matches(("key", &key), ("query", &query))?;
    let (keys, values) = &options.common.additional;
    for (argument, tokens) in [("additional_keys", keys), ("additional_values", values)] {
        if let Some(tokens) = tokens {
            matches((argument, tokens), ("query", &query))?;
        }
    }
    let additional = additional(&options.common);
    let scale = options.common.scale;
    let bias = options.bias.clone();
    let shape = bias.as_ref().map(TensorMetadata::shape);
    let shape = shape.as_ref().map(|shape| shape.as_slice());
    bias_matches(&bias, &query)?;
    let (query_shape, key_shape) = (query.dims(), key.dims());
    let problem =
        problem::qk([&query_shape, &key_shape], shape, additional, options.windows(), scale)?;
    let (device, dtype) = (query.device(), query.dtype());
    let plan = UnfusedPlan::qk(problem, dtype, &device, &options.common)?;
    let tokens = tokens(key, keys, &problem);
    let bias = Optional::from(bias);
    let scores = Dispatch::unfused_dots(query.into_dispatch(), tokens, bias, plan);
    Ok(Tensor::from_dispatch(scores))
}

fn av<const N: usize, const D: usize>(
    weights: Tensor<D>,
    value: Tensor<D>,
    options: NeighborhoodOptions<N>,
) -> Result<Tensor<D>, AttentionError> {
    is_float("weights", &weights)?;
    matches(("value", &value), ("weights", &weights))?;
    let (keys, values) = &options.common.additional;
    for (argument, tokens) in [("additional_keys", keys), ("additional_values", values)] {
        if let Some(tokens) = tokens {
            matches((argument, tokens), ("weights", &weights))?;
        }
    }
    let additional = additional(&options.common);
    let problem = problem::av(&weights.dims(), &value.dims(), additional, options.windows())?;
    let (device, dtype) = (weights.device(), weights.dtype());
    let plan = UnfusedPlan::av(problem, dtype, &device, &options.common)?;
    let tokens = tokens(value, values, &problem);
    let out = Dispatch::unfused_sums(weights.into_dispatch(), tokens, plan);
    Ok(Tensor::from_dispatch(out))
}

fn additional(options: &AttentionOptions) -> Additional {
    let (keys, values) = &options.additional;
    Additional { keys: keys.as_ref().map(Tensor::dims), values: values.as_ref().map(Tensor::dims) }
}

/// Keys or values, with the additional ones if there is any.
fn tokens<const D: usize>(
    space: Tensor<D>,
    additional: &Option<Tensor<4>>,
    problem: &Problem,
) -> Tokens<Dispatch> {
    let additional = additional.clone().filter(|_| problem.additional > 0);
    Tokens {
        space: space.into_dispatch(),
        additional: additional.map(Tensor::into_dispatch).into(),
    }
}

#[cfg(all(test, feature = "flex", feature = "autodiff"))]
mod tests;
