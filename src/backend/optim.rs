//! A step of AdamW as an extension of Burn's backends.

use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Backend, ExtensionType, TensorMetadata, backend_extension, get_device_settings,
};

use super::unfused::Optional;

/// What a step multiplies with, in f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWPlan {
    pub(crate) beta_1: f64,
    pub(crate) beta_2: f64,
    pub(crate) epsilon: f64,
    /// What weight decay leaves of a weight.
    pub(crate) keep: f64,
    /// Learning rate over `1 - beta_1^steps`.
    pub(crate) step_1: f64,
    /// `1 / (1 - beta_2^steps)`.
    pub(crate) step_2: f64,
}

/// What a step reads and changes.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct AdamWTensors<B: Backend> {
    /// Of any float type.
    pub parameter: FloatTensor<B>,
    /// What a parameter of a half type was rounded from, in f32. Where it is another now, it has been changed, and counts.
    #[extension_type]
    pub weight: Optional<B>,
    /// In f32, or f64 for f64.
    pub moment_1: FloatTensor<B>,
    pub moment_2: FloatTensor<B>,
}

/// The operator. Asked of backends without autodiff.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait OptimizerOps: Backend {
    /// A step, from a gradient of any float type.
    #[fusion(meta = meta::adamw)]
    fn adamw_step(
        gradient: FloatTensor<Self>,
        #[extension_type] tensors: AdamWTensors<Self>,
        plan: AdamWPlan,
    ) -> AdamWTensors<Self> {
        reference::<Self>(gradient, tensors, plan)
    }
}

#[cfg(feature = "flex")]
impl OptimizerOps for burn::backend::flex::Flex {}

/// By tensor operations.
pub(crate) fn reference<B: Backend>(
    gradient: FloatTensor<B>,
    tensors: AdamWTensors<B>,
    plan: AdamWPlan,
) -> AdamWTensors<B> {
    let AdamWTensors { parameter, weight, moment_1, moment_2 } = tensors;
    let (dtype, kept) = (parameter.dtype(), weight.into_option());
    let keeps_weight = kept.is_some();
    let weight = match kept {
        Some(kept) => current::<B>(parameter, kept),
        None => parameter,
    };
    let gradient = B::float_cast(gradient, weight.dtype().into());
    let times = |tensor: FloatTensor<B>, factor: f64| B::float_mul_scalar(tensor, factor.into());
    let squares = B::float_mul(gradient.clone(), gradient.clone());
    let mixed = |moment, new, beta: f64| B::float_add(times(moment, beta), times(new, 1.0 - beta));
    let moment_1 = mixed(moment_1, gradient, plan.beta_1);
    let moment_2 = mixed(moment_2, squares, plan.beta_2);
    let root = B::float_sqrt(times(moment_2.clone(), plan.step_2));
    let root = B::float_add_scalar(root, plan.epsilon.into());
    let step = B::float_div(times(moment_1.clone(), plan.step_1), root);
    let weight = B::float_sub(times(weight, plan.keep), step);
    let parameter = B::float_cast(weight.clone(), dtype.into());
    let weight = keeps_weight.then_some(weight).into();
    AdamWTensors { parameter, weight, moment_1, moment_2 }
}

/// The weight that a parameter stands for.
fn current<B: Backend>(parameter: FloatTensor<B>, weight: FloatTensor<B>) -> FloatTensor<B> {
    let device = weight.device();
    let rounded = B::float_cast(weight.clone(), parameter.dtype().into());
    let bools = get_device_settings::<B>(&device).bool_dtype;
    let has_changed = B::float_not_equal(rounded, parameter.clone(), bools);
    let wide = B::float_cast(parameter, weight.dtype().into());
    B::float_mask_where(weight, has_changed, wide)
}

/// What fusion must know of an output before it is computed.
#[cfg(feature = "fusion")]
mod meta {
    use burn::backend::fusion::custom::TensorSpec;

    use super::{AdamWPlan, AdamWTensorsMetadata};

    pub fn adamw(
        _gradient: &TensorSpec,
        tensors: &AdamWTensorsMetadata,
        _plan: &AdamWPlan,
    ) -> AdamWTensorsMetadata {
        tensors.clone()
    }
}
