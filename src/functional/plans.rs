//! Plans of packed batches that were made before. Layers of a model have the same sequences one after the other, and what is found out of
//! them, from their problems to the tables of their launches, stays with their plan.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use burn::backend::TensorMetadata;
use burn::tensor::{DType, Device};

use burn_natten_kernels::{Axis, Packed, Problem};

use super::inputs::Inputs;
use crate::backend::{Part, Plan};
use crate::problem::is_empty;
use crate::problem::packed::Run;
use crate::warm_up::prepare;
use crate::{AttentionError, AttentionOptions, Capabilities, Context, Strategy};

/// Most plans that are kept.
const MOST: usize = 32;

/// Everything that a plan depends on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    /// The shapes of all tensors and the sequences, each list behind its length.
    numbers: Vec<usize>,
    dtype: DType,
    capabilities: Capabilities,
    context: Context,
    strategy: Strategy,
    /// Kernels that are asked for by name are compiled ahead of a plan: for training, those of both passes.
    is_training: bool,
}

impl Call {
    /// That of an operator on these tensors.
    ///
    /// # Errors
    ///
    /// [`AttentionError::UnsupportedBackend`] if their device has no operators.
    pub fn new(inputs: &Inputs<4>, options: &AttentionOptions) -> Result<Self, AttentionError> {
        let device: Device = inputs.query.device();
        let mut call = Self {
            numbers: vec![],
            dtype: inputs.query.dtype(),
            capabilities: Plan::capabilities(&device)?,
            context: options.context.unwrap_or_else(Context::current),
            strategy: options.strategy,
            is_training: device.is_autodiff(),
        };
        for tensor in [&inputs.query, &inputs.key, &inputs.value] {
            call.with(tensor.dims());
        }
        match &inputs.additional {
            Some((key, value)) => {
                call.with(key.dims());
                call.with(value.dims());
            }
            None => call.with([]),
        }
        let bias = inputs.bias.as_ref().map(TensorMetadata::shape);
        call.with(bias.iter().flat_map(|shape| shape.as_slice()).copied());
        // Halves: addresses may have 32 bits.
        let halves = |bits: u64| [(bits >> 32) as usize, bits as u32 as usize];
        call.with(options.scale.into_iter().flat_map(|scale| halves(scale.to_bits())));
        Ok(call)
    }

    /// Adds what the plan depends on besides. Calls of one kind add as many lists, and each kind begins with another.
    pub fn with(&mut self, numbers: impl IntoIterator<Item = usize>) {
        let begin = self.numbers.len();
        self.numbers.push(0);
        self.numbers.extend(numbers);
        self.numbers[begin] = self.numbers.len() - begin;
    }

    /// The plan of such a call, which is made of its `sequences` if there was none yet.
    ///
    /// # Errors
    ///
    /// Those of `sequences`, and [`AttentionError::Strategy`] if a strategy that was asked for by name cannot run.
    pub fn plan(
        self,
        device: &Device,
        sequences: impl FnOnce() -> Result<(Vec<Run>, Option<Packed>), AttentionError>,
    ) -> Result<Plan, AttentionError> {
        static KNOWN: Mutex<VecDeque<(Call, Plan)>> = Mutex::new(VecDeque::new());
        let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let find = || {
            let mut known = known();
            let place = known.iter().position(|(call, _)| *call == self)?;
            // What was used last stays longest.
            let found = known.remove(place)?;
            let plan = found.1.clone();
            known.push_front(found);
            Some(plan)
        };
        if let Some(plan) = find() {
            return Ok(plan);
        }
        // Not under the lock: kernels may be compiled.
        let plan = self.make(device, sequences()?)?;
        let mut known = known();
        known.push_front((self, plan.clone()));
        known.truncate(MOST);
        Ok(plan)
    }

    fn make(
        &self,
        device: &Device,
        (runs, packed): (Vec<Run>, Option<Packed>),
    ) -> Result<Plan, AttentionError> {
        let plan = |problem: Problem| {
            // What has nothing to compute is no reason to refuse a strategy.
            let strategy = if is_empty(&problem) { Strategy::Reference } else { self.strategy };
            Plan::logged(self.capabilities, problem, self.dtype, strategy, self.context)
        };
        let mut parts = Vec::with_capacity(runs.len());
        for run in runs {
            let plan = plan(run.problem).map_err(|error| error.of_sequence(run.sequence))?;
            parts.push(Part { run, plan });
        }
        // What stands for all of them where one tier is chosen for one launch.
        let first = packed.as_ref().and_then(|packed| packed.sequences().first());
        let none = Problem::new([Axis::dense(0, 0, false)], 1, 1);
        let plan = plan(first.map_or(none, |first| first.problem))?.with_parts(parts, packed);
        let is_one = plan.packed.is_some() && prepare(&plan, device).is_ok();
        for part in plan.parts.iter().flat_map(|parts| parts.iter()).filter(|_| !is_one) {
            let prepared = prepare(&part.plan, device);
            prepared.map_err(|error| error.of_sequence(part.run.sequence))?;
        }
        Ok(plan)
    }
}
