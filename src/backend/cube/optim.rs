//! Steps of optimizers: a kernel for each parameter, or else tensor operations.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::{DType, TensorMetadata};
use burn_cubecl::kernel::{into_contiguous, untile};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use burn_natten_kernels::optim;
use cubecl::std::tensor::into_contiguous as copied;

use crate::backend::log_once;
use crate::backend::optim::{AdamWPlan, AdamWTensors, OptimizerOps, reference};

impl OptimizerOps for CubeBackend {
    fn adamw_step(
        gradient: CubeTensor,
        tensors: AdamWTensors<Self>,
        plan: AdamWPlan,
    ) -> AdamWTensors<Self> {
        let AdamWTensors { parameter, weight, moment_1, moment_2 } = tensors;
        let count = parameter.shape().num_elements();
        let gradient = into_contiguous(gradient);
        let [parameter, moment_1, moment_2] = [parameter, moment_1, moment_2].map(owned);
        let weight = weight.into_option().map(owned);
        let tensors = AdamWTensors::<Self> { parameter, weight: weight.into(), moment_1, moment_2 };
        if tensors.moment_1.dtype() != DType::F32 || count == 0 {
            return reference::<Self>(gradient, tensors, plan);
        }
        let dtypes =
            [&tensors.parameter, &gradient].map(|tensor| dtype_to_storage_type(tensor.dtype()));
        let result = optim::adamw(
            &gradient.client,
            (count, dtypes),
            &factors(plan),
            &gradient.handle,
            &handles(&tensors),
        );
        match result {
            Ok(()) => tensors,
            Err(error) => {
                log_once(format!("AdamW steps by tensor operations, because {error}"));
                reference::<Self>(gradient, tensors, plan)
            }
        }
    }
}

/// Contiguous, and in memory that nobody else has.
///
/// A step in place takes no memory: CubeCL's pools look at all that lies in them, some thousand tensors of a model, for every one that is
/// taken, which is more than all else that a launch costs.
fn owned(tensor: CubeTensor) -> CubeTensor {
    let tensor = untile(tensor);
    if tensor.is_contiguous() && tensor.can_mut() {
        return tensor;
    }
    let (client, device, dtype) = (tensor.client.clone(), tensor.device.clone(), tensor.dtype());
    // It stays for as long as the model does.
    let copy = client.memory_persistent_allocation(tensor.binding(), |tensor| {
        copied(&client, tensor, dtype_to_storage_type(dtype))
    });
    CubeTensor::new(client, copy.handle, *copy.metadata, device, dtype)
}

fn handles(tensors: &AdamWTensors<CubeBackend>) -> optim::Tensors<'_> {
    optim::Tensors {
        parameter: &tensors.parameter.handle,
        weight: tensors.weight.as_option().map(|weight| &weight.handle),
        moment_1: &tensors.moment_1.handle,
        moment_2: &tensors.moment_2.handle,
    }
}

fn factors(plan: AdamWPlan) -> optim::AdamW {
    optim::AdamW {
        beta_1: plan.beta_1 as f32,
        rest_1: (1.0 - plan.beta_1) as f32,
        beta_2: plan.beta_2 as f32,
        rest_2: (1.0 - plan.beta_2) as f32,
        epsilon: plan.epsilon as f32,
        keep: plan.keep as f32,
        step_1: plan.step_1 as f32,
        step_2: plan.step_2 as f32,
    }
}
