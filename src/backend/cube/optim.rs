//! Steps of optimizers: a kernel for each parameter, or else tensor operations.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::{DType, TensorMetadata};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use burn_natten_kernels::optim;

use super::memory::empty;
use crate::backend::log_once;
use crate::backend::optim::{AdamWPlan, AdamWTensors, OptimizerOps, reference};
use crate::backend::unfused::Optional;

impl OptimizerOps for CubeBackend {
    fn adamw_step(
        gradient: CubeTensor,
        tensors: AdamWTensors<Self>,
        plan: AdamWPlan,
    ) -> AdamWTensors<Self> {
        let AdamWTensors { parameter, weight, moment_1, moment_2 } = tensors;
        let count = parameter.shape().num_elements();
        let [gradient, parameter, moment_1, moment_2] =
            [gradient, parameter, moment_1, moment_2].map(into_contiguous);
        let weight = weight.into_option().map(into_contiguous);
        let before = AdamWTensors::<Self> { parameter, weight: weight.into(), moment_1, moment_2 };
        if before.moment_1.dtype() != DType::F32 || count == 0 {
            return reference::<Self>(gradient, before, plan);
        }
        let like = |tensor: &CubeTensor| empty(tensor, tensor.shape(), tensor.dtype());
        let after = AdamWTensors::<Self> {
            parameter: like(&before.parameter),
            weight: kept(&before).map(like).into(),
            moment_1: like(&before.moment_1),
            moment_2: like(&before.moment_2),
        };
        let dtypes =
            [&before.parameter, &gradient].map(|tensor| dtype_to_storage_type(tensor.dtype()));
        let result = optim::adamw(
            &gradient.client,
            (count, dtypes),
            &factors(plan),
            &gradient.handle,
            &handles(&before),
            &handles(&after),
        );
        match result {
            Ok(()) => after,
            Err(error) => {
                log_once(format!("AdamW steps by tensor operations, because {error}"));
                reference::<Self>(gradient, before, plan)
            }
        }
    }
}

fn kept(tensors: &AdamWTensors<CubeBackend>) -> Option<&CubeTensor> {
    match &tensors.weight {
        Optional::None => None,
        Optional::Some { tensor } => Some(tensor),
    }
}

fn handles(tensors: &AdamWTensors<CubeBackend>) -> optim::Tensors<'_> {
    optim::Tensors {
        parameter: &tensors.parameter.handle,
        weight: kept(tensors).map(|weight| &weight.handle),
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
