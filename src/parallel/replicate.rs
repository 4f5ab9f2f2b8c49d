use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Tensor};

use super::exchange::{can_exchange, carry, carry_others};
use crate::{AttentionError, Context};

/// A copy of a model for each device, within the graph: the gradients of all copies arrive at the parameters of the model, summed. The
/// model itself is on one device; there, the copy has its parameters.
///
/// Copies are those of a step: a step of training makes them anew. In place of `Module::to_device`, which is not safe to queue between CUDA
/// devices ([why](crate::guide::multi_gpu#moving-tensors)).
///
/// # Errors
///
/// As [`try_exchange`](super::try_exchange).
///
/// # Example
///
/// ```rust
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use burn_natten::parallel::replicate;
///
/// # fn main() -> Result<(), burn_natten::AttentionError> {
/// let device = Device::flex().autodiff();
/// let model: Linear = LinearConfig::new(3, 2).with_bias(false).init(&device);
/// let ones = Tensor::<2>::ones([1, 3], &device);
/// let outs: Vec<_> = replicate(&model, &[device.clone(), device])?
///     .iter()
///     .map(|copy| copy.forward(ones.clone()))
///     .collect();
/// let gradients = Tensor::cat(outs, 0).sum().backward();
/// let gradient = model.weight.grad(&gradients).expect("is trained");
/// assert!(gradient.all_close(Tensor::full([3, 2], 2.0, &Device::flex()), None, None));
/// # Ok(())
/// # }
/// ```
pub fn replicate<M: Module>(model: &M, devices: &[Device]) -> Result<Vec<M>, AttentionError> {
    let context = Context::current();
    for from in model.devices() {
        devices.iter().try_for_each(|to| can_exchange(&from, to, context))?;
    }
    let copy = |to: &Device| {
        let copy = model.clone().map(&mut Carrier { to });
        // What is no float parameter: integers, and constants.
        carry_others(copy, &model.devices(), to)
    };
    Ok(devices.iter().map(copy).collect())
}

/// Moves the float parameters of a model.
struct Carrier<'a> {
    to: &'a Device,
}

impl ModuleMapper for Carrier<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| carry(tensor, self.to))
    }
}
