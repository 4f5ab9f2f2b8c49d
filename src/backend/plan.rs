use std::sync::{Arc, OnceLock};

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, Device, FloatDType};
use burn_natten_kernels::native::{Element, sm90, sm100};
use burn_natten_kernels::{Packed, Problem};

use super::{Part, log_once};
use crate::problem;
use crate::tier::{Ladder, Request, Selection, TOO_LARGE, selection};
use crate::{AttentionError, Capabilities, Context, MemoryPreference, Strategy, Tier};

/// A problem and how it is going to be computed.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) problem: Problem,
    pub(crate) dtype: DType,
    pub(crate) context: Context,
    pub(crate) strategy: Strategy,
    pub(crate) forward: Ladder,
    pub(crate) backward: Ladder,
    hopper: Arc<Native<sm90::Schedule, sm90::BackwardPlan>>,
    blackwell: Arc<Native<sm100::Schedule, sm100::BackwardPlan>>,
    /// What a packed batch is made of; the rest of the plan is that of one of its sequences then, or of no tokens.
    pub(crate) parts: Option<Arc<[Part]>>,
    /// All sequences of a packed batch, where one launch a pass may have them.
    #[cfg_attr(
        not(feature = "cube"),
        allow(dead_code, reason = "CubeCL's kernels have such launches")
    )]
    pub(crate) packed: Option<Arc<Packed>>,
}

/// The schedules of a tier of native kernels, each chosen when it is asked for first: a call that has no backward pass plans none.
///
/// The other tiers choose at their launches, since that takes the strides of the tensors, the limits of the device, or a
/// measurement.
#[derive(Debug)]
struct Native<Forward, Backward> {
    forward: OnceLock<Result<Forward, String>>,
    backward: OnceLock<Result<Arc<Backward>, String>>,
}

impl<Forward, Backward> Default for Native<Forward, Backward> {
    fn default() -> Self {
        Self { forward: OnceLock::new(), backward: OnceLock::new() }
    }
}

impl Plan {
    /// What a strategy comes to for tensors of this type on a device. Logs what the device is not used for.
    ///
    /// # Errors
    ///
    /// [`AttentionError`] if the device has no operators, or a strategy that was asked for by name cannot run.
    pub(crate) fn new(
        problem: Problem,
        dtype: DType,
        device: &Device,
        strategy: Strategy,
        context: Context,
    ) -> Result<Self, AttentionError> {
        Self::logged(Self::capabilities(device)?, problem, dtype, strategy, context)
    }

    /// What a device can do.
    ///
    /// # Errors
    ///
    /// [`AttentionError::UnsupportedBackend`] if it has no operators.
    pub(crate) fn capabilities(device: &Device) -> Result<Capabilities, AttentionError> {
        Capabilities::of(device)
            .ok_or_else(|| AttentionError::UnsupportedBackend { device: format!("{device:?}") })
    }

    /// What a strategy comes to on a device with these capabilities. Logs what the device is not used for.
    ///
    /// # Errors
    ///
    /// [`AttentionError::Strategy`] if a strategy that was asked for by name cannot run.
    pub(crate) fn logged(
        capabilities: Capabilities,
        problem: Problem,
        dtype: DType,
        strategy: Strategy,
        context: Context,
    ) -> Result<Self, AttentionError> {
        let (plan, notes) = Self::on(capabilities, problem, dtype, strategy, context)?;
        notes.into_iter().for_each(log_once);
        Ok(plan)
    }

    /// The same on a device with these capabilities, and what is worth to be logged of it.
    ///
    /// # Errors
    ///
    /// [`AttentionError::Strategy`] if a strategy that was asked for by name cannot run.
    pub(crate) fn on(
        capabilities: Capabilities,
        problem: Problem,
        dtype: DType,
        strategy: Strategy,
        context: Context,
    ) -> Result<(Self, Vec<String>), AttentionError> {
        let request = Request { problem: &problem, dtype, device: capabilities, context };
        let Selection { forward, backward, notes } = selection(&request, strategy)?;
        let plan = Self {
            problem,
            dtype,
            context,
            strategy,
            forward,
            backward,
            hopper: Arc::default(),
            blackwell: Arc::default(),
            parts: None,
            packed: None,
        };
        Ok((plan, notes))
    }

    /// The same for the runs of a packed batch, and for all of its sequences at once.
    pub(crate) fn with_parts(self, parts: Vec<Part>, packed: Option<Packed>) -> Self {
        Self { parts: Some(parts.into()), packed: packed.map(Arc::new), ..self }
    }

    /// The schedule of the Hopper tier, which its launch takes and `explain` prints; or why there is none.
    pub(crate) fn hopper(&self) -> Result<sm90::Schedule, String> {
        let choose = || sm90::planned(&self.problem, self.element(), self.context.tiling());
        self.hopper.forward.get_or_init(choose).clone()
    }

    /// The schedules of the Hopper tier's backward pass, or why there are none.
    pub(crate) fn hopper_backward(&self) -> Result<Arc<sm90::BackwardPlan>, String> {
        let choose = || {
            let tiling = self.context.tiling();
            sm90::planned_backward(&self.problem, self.element(), tiling, self.slopes_bytes())
        };
        self.hopper.backward.get_or_init(choose).clone()
    }

    /// Most bytes of slopes that the heads of a launch leave in memory in the Hopper tier's backward pass.
    pub(crate) fn slopes_bytes(&self) -> usize {
        match self.context.memory() {
            MemoryPreference::Strict => 0,
            MemoryPreference::Default => sm90::SLOPES_BYTES,
            MemoryPreference::Unrestricted => 8 * sm90::SLOPES_BYTES,
        }
    }

    /// The schedule of the Blackwell tier, as [`hopper`](Self::hopper).
    pub(crate) fn blackwell(&self) -> Result<sm100::Schedule, String> {
        let choose = || sm100::planned(&self.problem, self.element(), self.context.tiling());
        self.blackwell.forward.get_or_init(choose).clone()
    }

    /// The schedules of the Blackwell tier's backward pass, or why there are none.
    pub(crate) fn blackwell_backward(&self) -> Result<Arc<sm100::BackwardPlan>, String> {
        let choose =
            || sm100::planned_backward(&self.problem, self.element(), self.context.tiling());
        self.blackwell.backward.get_or_init(choose).clone()
    }

    /// What the native kernels multiply.
    pub(crate) fn element(&self) -> Element {
        element(self.dtype)
    }

    /// Whether there is no query, or no key for any query. Kernels are never handed such a problem.
    pub(crate) fn is_empty(&self) -> bool {
        problem::is_empty(&self.problem)
    }
}

/// A type as native kernels multiply it. They know two, and [`select`](crate::select) lets no other pass.
pub(crate) fn element(dtype: DType) -> Element {
    match dtype {
        DType::F16 => Element::F16,
        _ => Element::Bf16,
    }
}

/// The tier of an operator beside attention: the direct kernels of the device's own backend, or tensor operations. There are no others,
/// as `refusal` says.
///
/// `elements` are those of a tensor that attention does not have, so that the selection does not know of it.
pub(crate) fn direct_or_composed(
    request: &Request<'_>,
    strategy: Strategy,
    elements: usize,
    refusal: &str,
) -> Result<Tier, AttentionError> {
    let first = |strategy| selection(request, strategy).map(|found| found.forward.first());
    let has_indices = elements <= i32::MAX as usize || request.device.has_wide_indices;
    let direct = || match first(Strategy::Portable)? {
        Tier::Portable if !has_indices => {
            let reason = TOO_LARGE.to_string();
            Err(AttentionError::Strategy { strategy: Strategy::Portable, reason })
        }
        tier => Ok(tier),
    };
    match strategy {
        Strategy::Auto => Ok(direct().unwrap_or_else(|error| {
            log_once(format!("using {}, because {error}", Tier::Reference.kernels()));
            Tier::Reference
        })),
        Strategy::Portable => direct(),
        Strategy::Reference => first(strategy),
        _ => Err(AttentionError::Strategy { strategy, reason: refusal.to_string() }),
    }
}

/// A tensor in the type that sums are held in.
pub(crate) fn wide<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let dtype: FloatDType = accumulator(tensor.dtype()).into();
    B::float_cast(tensor, dtype)
}

/// The type that sums are held in, and that of the logsumexp.
pub(crate) fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}
