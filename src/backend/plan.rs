use burn::tensor::{DType, Device};
use burn_natten_kernels::Problem;

use super::log_once;
use crate::tier::{Ladder, Request, selection};
use crate::{AttentionError, Capabilities, Context, Strategy};

/// A problem and how it is going to be computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    pub(crate) problem: Problem,
    pub(crate) context: Context,
    pub(crate) strategy: Strategy,
    pub(crate) forward: Ladder,
    pub(crate) backward: Ladder,
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
        let capabilities = Capabilities::of(device)
            .ok_or_else(|| AttentionError::UnsupportedBackend { device: format!("{device:?}") })?;
        let request = Request { problem: &problem, dtype, device: capabilities, context };
        let selection = selection(&request, strategy)?;
        selection.notes.into_iter().for_each(log_once);
        let (forward, backward) = (selection.forward, selection.backward);
        Ok(Self { problem, context, strategy, forward, backward })
    }

    /// Whether there is no query, or no key for any query. Kernels are never handed such a problem.
    pub(crate) fn is_empty(&self) -> bool {
        let problem = &self.problem;
        problem.batch == 0 || problem.queries() == 0 || problem.keys() + problem.additional == 0
    }
}

/// The type that sums are held in, and that of the logsumexp.
pub(crate) fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}
