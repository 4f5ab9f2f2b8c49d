use burn::backend::Dispatch;
use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;

use burn::optim::{LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use crate::backend::optim::{AdamWPlan, AdamWTensors, OptimizerOps};

/// Settings of [`AdamW`]; the defaults are those of [`burn::optim::AdamWConfig`].
///
/// ```rust
/// use burn::nn::LinearConfig;
/// use burn::optim::GradientsParams;
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::optim::AdamWConfig;
///
/// let device = Device::flex().autodiff();
/// let layer = LinearConfig::new(4, 2).init(&device);
/// let mut optimizer = AdamWConfig::new().with_weight_decay(0.05).init();
/// let input = Tensor::<2>::random([8, 4], Distribution::Default, &device);
/// let gradients = layer.forward(input).sum().backward();
/// let gradients = GradientsParams::from_grads(gradients, &layer);
/// let layer = optimizer.step(1e-3, layer, gradients);
/// # let _ = layer;
/// ```
#[derive(Config, Debug)]
pub struct AdamWConfig {
    /// What stays of the mean of gradients at each step.
    #[config(default = 0.9)]
    pub beta_1: f64,
    /// What stays of the mean of their squares.
    #[config(default = 0.999)]
    pub beta_2: f64,
    /// Added to the root of the squares' mean.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// Share of a weight that is taken off at each step, times the learning rate.
    #[config(default = 1e-4)]
    pub weight_decay: f64,
    /// What happens to large gradients.
    pub grad_clipping: Option<GradientClippingConfig>,
}

impl AdamWConfig {
    /// The optimizer of one parameter group, without clipping.
    pub fn build(&self) -> AdamW {
        AdamW {
            beta_1: self.beta_1,
            beta_2: self.beta_2,
            epsilon: self.epsilon,
            weight_decay: self.weight_decay,
        }
    }

    /// The optimizer of a module.
    pub fn init(&self) -> ModuleOptimizer {
        let optimizer = ModuleOptimizer::from(self.build());
        match &self.grad_clipping {
            Some(clipping) => optimizer.with_grad_clipping(clipping.init()),
            None => optimizer,
        }
    }
}

/// Adam with decoupled weight decay, as [`burn::optim::AdamW`] is, for parameters of any float type.
///
/// ```text
/// moment_1 = beta_1 moment_1 + (1 - beta_1) gradient
/// moment_2 = beta_2 moment_2 + (1 - beta_2) gradient^2
/// weight   = (1 - rate weight_decay) weight - rate mean / (sqrt(square) + epsilon)
/// mean     = moment_1 / (1 - beta_1^steps)
/// square   = moment_2 / (1 - beta_2^steps)
/// ```
///
/// Moments are held in f32, and of f16 and bf16 parameters the weights, too: 12 bytes for each, beside the parameter, and 8 for each f32 parameter.
/// In their own type, a step smaller than 2^-9 of a bf16 weight would be lost, and 0.999 is 1, so that squares would add up for ever.
/// A parameter that was changed in another way, by a checkpoint or a moving average, is taken as it is now.
///
/// On CubeCL's backends a step is one kernel for each parameter; tensor operations are a dozen.
///
/// Reference: [Decoupled Weight Decay Regularization](https://arxiv.org/abs/1711.05101).
#[derive(Clone, Debug)]
pub struct AdamW {
    beta_1: f64,
    beta_2: f64,
    epsilon: f64,
    weight_decay: f64,
}

/// What [`AdamW`] keeps of a parameter.
#[derive(Clone, Debug)]
pub struct AdamWState<const D: usize> {
    /// Steps so far.
    pub steps: usize,
    /// Mean of gradients.
    pub moment_1: Tensor<D>,
    /// Mean of their squares.
    pub moment_2: Tensor<D>,
    /// The parameter in f32, where it is of a half type.
    pub weight: Option<Tensor<D>>,
}

impl<const D: usize> RecordState for AdamWState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        out.push_scalar(prefix, "steps", self.steps.into());
        out.push_tensor(prefix, "moment_1", self.moment_1.to_data());
        out.push_tensor(prefix, "moment_2", self.moment_2.to_data());
        if let Some(weight) = &self.weight {
            out.push_tensor(prefix, "weight", weight.to_data());
        }
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        // In the type that was written, which need not be the device's own, if the device has it at all.
        let on_device = |data: TensorData| {
            let dtype = match data.dtype() {
                dtype if device.supports_dtype(dtype) => dtype,
                _ => DType::F32,
            };
            Tensor::from_data(data.convert_dtype(dtype), (device, dtype))
        };
        Some(Self {
            steps: src.take_scalar(prefix, "steps")?.try_into().ok()?,
            moment_1: on_device(src.take_tensor(prefix, "moment_1")?),
            moment_2: on_device(src.take_tensor(prefix, "moment_2")?),
            weight: src.take_tensor(prefix, "weight").map(on_device),
        })
    }
}

/// The type that moments and weights are held in.
fn wide(dtype: DType) -> FloatDType {
    if dtype == DType::F64 { FloatDType::F64 } else { FloatDType::F32 }
}

/// A tensor of the parameter's shape, made as one line of so many elements, that lives as long as the parameter.
///
/// CubeCL keeps such tensors apart. Among those that come and go they would make every search for memory longer.
fn lasting<const D: usize, I: Send>(
    parameter: &Tensor<D>,
    input: I,
    line: impl Fn(I, usize) -> Tensor<1> + Send,
) -> Tensor<D> {
    let shape = parameter.shape();
    let count = shape.num_elements();
    let made =
        parameter.device().memory_persistent_allocations(input, move |input| line(input, count));
    made.reshape(shape)
}

impl Optimizer for AdamW {
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdamWState<D>>,
    ) -> (Tensor<D>, Option<AdamWState<D>>) {
        let is_wide = wide(tensor.dtype()) == FloatDType::from(tensor.dtype());
        let state = state.unwrap_or_else(|| {
            let options = (&tensor.device(), DType::from(wide(tensor.dtype())));
            let zeros = || lasting(&tensor, (), |(), count| Tensor::zeros([count], options));
            AdamWState { steps: 0, moment_1: zeros(), moment_2: zeros(), weight: None }
        });
        let steps = state.steps + 1;
        let exponent = i32::try_from(steps).unwrap_or(i32::MAX);
        let plan = AdamWPlan {
            beta_1: self.beta_1,
            beta_2: self.beta_2,
            epsilon: self.epsilon,
            keep: 1.0 - lr * self.weight_decay,
            step_1: lr / (1.0 - self.beta_1.powi(exponent)),
            step_2: 1.0 / (1.0 - self.beta_2.powi(exponent)),
        };
        // A state may have been kept in another type.
        let dtype = wide(tensor.dtype());
        let kept = |tensor: Tensor<D>| match FloatDType::from(tensor.dtype()) == dtype {
            true => tensor,
            false => tensor.cast(dtype),
        };
        let weight = match state.weight.filter(|_| !is_wide).map(kept) {
            None if !is_wide => {
                // In one line, for copies of several axes may have gaps behind rows.
                let line = tensor.clone().reshape([tensor.shape().num_elements()]);
                Some(lasting(&tensor, line, |line: Tensor<1>, _| line.cast(dtype)))
            }
            weight => weight,
        };
        let tensors = AdamWTensors {
            parameter: tensor.into_dispatch(),
            weight: weight.map(Tensor::into_dispatch).into(),
            moment_1: kept(state.moment_1).into_dispatch(),
            moment_2: kept(state.moment_2).into_dispatch(),
        };
        let AdamWTensors { parameter, weight, moment_1, moment_2 } =
            Dispatch::adamw_step(grad.into_dispatch(), tensors, plan);
        let state = AdamWState {
            steps,
            moment_1: Tensor::from_dispatch(moment_1),
            moment_2: Tensor::from_dispatch(moment_2),
            weight: weight.into_option().map(Tensor::from_dispatch),
        };
        (Tensor::from_dispatch(parameter), Some(state))
    }

    fn to_device<const D: usize>(state: AdamWState<D>, device: &Device) -> AdamWState<D> {
        AdamWState {
            steps: state.steps,
            moment_1: state.moment_1.to_device(device),
            moment_2: state.moment_2.to_device(device),
            weight: state.weight.map(|weight| weight.to_device(device)),
        }
    }
}
