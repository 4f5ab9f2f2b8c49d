//! The products of the unfused operators: kernels on an NVIDIA GPU's tensor cores where they are for the problem, Portable kernels, or else
//! tensor operations.

use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
#[cfg(feature = "cuda")]
use burn_natten_kernels::native::unfused as native;
use burn_natten_kernels::portable::unfused;
use burn_natten_kernels::{KernelError, Operand, Problem, Shape, Strided};
use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::server::Handle;

use super::memory::{Lay, empty};
use super::{as_they_lie, is_launched};
use crate::Tier;
use crate::backend::unfused::{
    Optional, Tokens, UnfusedGradientOps, UnfusedOps, UnfusedPlan, additional_shape, reference,
    space_shape, with_last,
};
#[cfg(feature = "cuda")]
use crate::{Strategy, backend::log_once};

/// Whether kernels are to be launched at all.
fn has_kernels(plan: &UnfusedPlan) -> bool {
    plan.tier == Tier::Portable && plan.problem.batch > 0
}

/// The launches of a product.
struct Kernels<F> {
    portable: F,
    #[cfg(feature = "cuda")]
    native: F,
}

/// Those of this name.
macro_rules! kernels {
    ($product:ident) => {
        Kernels {
            portable: unfused::$product,
            #[cfg(feature = "cuda")]
            native: native::$product,
        }
    };
}

type Launched = Result<(), KernelError>;
type Dots = fn(&Client, &Problem, ElemType, f32, &unfused::DotsInputs<'_>, &Handle) -> Launched;
type Sums =
    fn(&Client, &Problem, ElemType, &Strided, &unfused::Tokens<&Strided>, &Handle) -> Launched;
type Spread =
    fn(&Client, &Problem, ElemType, &Strided, &Strided, &unfused::Tokens<&Handle>) -> Launched;

/// Launches a product by the kernels on tensor cores, unless others were asked for by name, or by Portable ones where these are not for the
/// problem or the device.
fn launch<F: Copy>(
    plan: &UnfusedPlan,
    kernels: Kernels<F>,
    by: impl Fn(Lay, F) -> Result<(), KernelError>,
) -> bool {
    #[cfg(feature = "cuda")]
    if plan.strategy == Strategy::Auto {
        match as_they_lie(|lay| by(lay, kernels.native)) {
            Ok(()) => return true,
            // What was to be expected of the problem and the device.
            Err(
                KernelError::Device(_) | KernelError::ElementType { .. } | KernelError::Problem(_),
            ) => {}
            Err(error) => log_once(format!("using Portable kernels, because {error}")),
        }
    }
    is_launched(plan.strategy, as_they_lie(|lay| by(lay, kernels.portable)))
}

/// Tokens as kernels take them.
struct Views {
    space: Strided,
    additional: Option<Strided>,
}

impl Views {
    fn new(lay: Lay, plan: &UnfusedPlan, space: &CubeTensor, more: Option<&CubeTensor>) -> Self {
        let view = |tensor, operand: Operand| lay.view(tensor, operand.shape(&plan.problem));
        Self {
            space: view(space, Operand::Key),
            additional: more.map(|tensor| view(tensor, Operand::AdditionalKey)),
        }
    }

    fn tokens(&self) -> unfused::Tokens<&Strided> {
        unfused::Tokens { space: &self.space, additional: self.additional.as_ref() }
    }
}

impl UnfusedOps for CubeBackend {
    fn unfused_dots(
        rows: CubeTensor,
        tokens: Tokens<Self>,
        bias: Optional<Self>,
        plan: UnfusedPlan,
    ) -> CubeTensor {
        let (space, more, bias) =
            (tokens.space, tokens.additional.into_option(), bias.into_option());
        if has_kernels(&plan) {
            let (client, dtype) = (rows.client.clone(), dtype_to_storage_type(rows.dtype()));
            let weights = empty(&rows, with_last(&rows.shape(), plan.slots()), rows.dtype());
            let bias = bias.clone().map(|bias| into_contiguous(bias).handle);
            let by = |lay: Lay, dots: Dots| {
                let views = Views::new(lay, &plan, &space, more.as_ref());
                let rows = lay.view(&rows, Operand::Query.shape(&plan.problem));
                let inputs = unfused::DotsInputs {
                    rows: &rows,
                    tokens: views.tokens(),
                    bias: bias.as_ref(),
                };
                let (problem, hidden) = (&plan.problem, plan.hidden);
                dots(&client, problem, dtype, hidden, &inputs, &weights.handle)
            };
            if launch::<Dots>(&plan, kernels!(dots), by) {
                return weights;
            }
        }
        let tokens = Tokens { space, additional: more.into() };
        reference::dots::<Self>(rows, tokens, bias, &plan)
    }

    fn unfused_sums(weights: CubeTensor, tokens: Tokens<Self>, plan: UnfusedPlan) -> CubeTensor {
        let (space, more) = (tokens.space, tokens.additional.into_option());
        if has_kernels(&plan) {
            let (client, dtype) = (weights.client.clone(), dtype_to_storage_type(weights.dtype()));
            let shape = with_last(&weights.shape(), plan.problem.head_dim);
            let rows = empty(&weights, shape, weights.dtype());
            let by = |lay: Lay, sums: Sums| {
                let views = Views::new(lay, &plan, &space, more.as_ref());
                let problem = &plan.problem;
                let weights = lay.view(&weights, Shape::weights(problem));
                sums(&client, problem, dtype, &weights, &views.tokens(), &rows.handle)
            };
            if launch::<Sums>(&plan, kernels!(sums), by) {
                return rows;
            }
        }
        let tokens = Tokens { space, additional: more.into() };
        reference::sums::<Self>(weights, tokens, &plan)
    }
}

impl UnfusedGradientOps for CubeBackend {
    fn unfused_spread(weights: CubeTensor, rows: CubeTensor, plan: UnfusedPlan) -> Tokens<Self> {
        if has_kernels(&plan) {
            let (client, dtype) = (rows.client.clone(), dtype_to_storage_type(rows.dtype()));
            let problem = &plan.problem;
            let space = empty(&rows, space_shape(&rows.shape(), problem), rows.dtype());
            let more = additional_shape(problem).map(|shape| empty(&rows, shape, rows.dtype()));
            let by = |lay: Lay, spread: Spread| {
                let weights = lay.view(&weights, Shape::weights(problem));
                let rows = lay.view(&rows, Operand::Query.shape(problem));
                let additional = more.as_ref().map(|tensor| &tensor.handle);
                let tokens = unfused::Tokens { space: &space.handle, additional };
                spread(&client, problem, dtype, &weights, &rows, &tokens)
            };
            if launch::<Spread>(&plan, kernels!(spread), by) {
                return Tokens { space, additional: more.into() };
            }
        }
        reference::spread::<Self>(weights, rows, &plan)
    }

    fn unfused_offsets(weights: CubeTensor, like: CubeTensor, plan: UnfusedPlan) -> CubeTensor {
        if has_kernels(&plan) {
            let (client, dtype) = (weights.client.clone(), dtype_to_storage_type(weights.dtype()));
            let bias = empty(&like, like.shape(), like.dtype());
            let weights = into_contiguous(weights.clone()).handle;
            let result = unfused::offsets(&client, &plan.problem, dtype, &weights, &bias.handle);
            if is_launched(plan.strategy, result) {
                return bias;
            }
        }
        reference::offsets::<Self>(weights, like, &plan)
    }
}
