//! What every operator does with its tensors: check them, plan, and hand them to the backend.

use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{DType, Device, Tensor};
use burn_natten_kernels::{KeyValue, Operands, Problem};

use crate::backend::{AttentionInputs, AttentionOps, Plan, Weighed, WeighedResults};
use crate::options::{AdditionalTokens, AttentionOptions};
use crate::warm_up::prepare;
use crate::{AttentionError, Context};

/// The additional keys and values, both or neither.
pub(crate) fn additional_tokens(
    tokens: AdditionalTokens,
) -> Result<Option<(Tensor<4>, Tensor<4>)>, AttentionError> {
    const KEYS: &str = "additional_keys";
    const VALUES: &str = "additional_values";
    match tokens {
        (Some(keys), Some(values)) => Ok(Some((keys, values))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(AttentionError::AdditionalKv { missing: VALUES, given: KEYS }),
        (None, Some(_)) => Err(AttentionError::AdditionalKv { missing: KEYS, given: VALUES }),
    }
}

/// Fails unless `tensor` has the dtype of `like` and lives on its device.
pub(crate) fn matches<const D: usize, const E: usize>(
    (argument, tensor): (&'static str, &Tensor<D>),
    (other, like): (&'static str, &Tensor<E>),
) -> Result<(), AttentionError> {
    same_device((argument, tensor), (other, like))?;
    if tensor.dtype() == like.dtype() {
        return Ok(());
    }
    let (got, expected) = (tensor.dtype(), like.dtype());
    Err(AttentionError::MixedDTypes { argument, got, expected, other })
}

/// Fails unless `tensor` lives on the device of `like`, tracked by autodiff or not.
pub(crate) fn same_device<const D: usize, const E: usize>(
    (argument, tensor): (&'static str, &Tensor<D>),
    (other, like): (&'static str, &Tensor<E>),
) -> Result<(), AttentionError> {
    is_on((argument, tensor.device()), (other, like.device()))
}

/// Fails unless what lives on a device lives on that of something else, tracked by autodiff or not.
pub(crate) fn is_on(
    (argument, device): (&'static str, Device),
    (other, expected): (&'static str, Device),
) -> Result<(), AttentionError> {
    let (got, expected) = (device.without_autodiff(), expected.without_autodiff());
    if got == expected {
        return Ok(());
    }
    let (got, expected) = (format!("{got:?}"), format!("{expected:?}"));
    Err(AttentionError::MixedDevices { argument, got, expected, other })
}

/// Fails unless the dtype of `tensor` is one that attention is defined for and its device has.
pub(crate) fn is_float<const D: usize>(
    argument: &'static str,
    tensor: &Tensor<D>,
) -> Result<(), AttentionError> {
    let got = tensor.dtype();
    let note = match got {
        DType::F64 | DType::F32 | DType::F16 | DType::BF16 => {
            if tensor.device().supports_dtype(got) {
                return Ok(());
            }
            " where the device has it, which this one does not"
        }
        _ => "",
    };
    Err(AttentionError::UnsupportedDType { argument, got, note })
}

/// Fails unless a bias has the dtype of the query and lives on its device.
pub(super) fn bias_matches<const D: usize>(
    bias: &Option<DispatchTensor>,
    query: &Tensor<D>,
) -> Result<(), AttentionError> {
    let Some(bias) = bias else { return Ok(()) };
    // The rank of the type does not matter to what is looked at.
    matches(("bias", &Tensor::<1>::from_dispatch(bias.clone())), ("query", query))
}

/// Query, key and value of an attention, checked against each other.
pub(crate) struct Inputs<const D: usize> {
    pub query: Tensor<D>,
    pub key: Tensor<D>,
    pub value: Tensor<D>,
    pub additional: Option<(Tensor<4>, Tensor<4>)>,
    /// Of whatever rank.
    pub bias: Option<DispatchTensor>,
}

impl<const D: usize> Inputs<D> {
    /// Checks dtypes and devices.
    pub fn try_new(
        query: Tensor<D>,
        key: Tensor<D>,
        value: Tensor<D>,
        additional: AdditionalTokens,
    ) -> Result<Self, AttentionError> {
        let additional = additional_tokens(additional)?;
        is_float("query", &query)?;
        matches(("key", &key), ("query", &query))?;
        matches(("value", &value), ("query", &query))?;
        if let Some((keys, values)) = &additional {
            matches(("additional_keys", keys), ("query", &query))?;
            matches(("additional_values", values), ("query", &query))?;
        }
        Ok(Self { query, key, value, additional, bias: None })
    }

    /// The same with a relative position bias, after a check of its dtype and device.
    pub fn with_bias(self, bias: Option<DispatchTensor>) -> Result<Self, AttentionError> {
        bias_matches(&bias, &self.query)?;
        Ok(Self { bias, ..self })
    }

    /// Runs a problem that was made from the shapes of these tensors: `(out, logsumexp)`.
    pub fn run<const L: usize>(
        self,
        problem: Problem,
        options: &AttentionOptions,
    ) -> Result<(Tensor<D>, Tensor<L>), AttentionError> {
        let plan = self.plan(problem, options)?;
        Ok(self.run_plan(plan))
    }

    fn plan(&self, problem: Problem, options: &AttentionOptions) -> Result<Plan, AttentionError> {
        let context = options.context.unwrap_or_else(Context::current);
        let (device, dtype) = (self.query.device(), self.query.dtype());
        let plan = Plan::new(problem, dtype, &device, options.strategy, context)?;
        prepare(&plan, &device)?;
        Ok(plan)
    }

    /// The same, and the results for a weighed sum.
    pub fn run_weighed<const L: usize>(
        self,
        problem: Problem,
        options: &AttentionOptions,
    ) -> Result<WeighedOutput<D, L>, AttentionError> {
        let plan = self.plan(problem, options)?;
        let results = Dispatch::attention_forward_weighed(self.into_attention(), plan);
        Ok(WeighedOutput::new(results))
    }

    pub(super) fn run_plan<const L: usize>(self, plan: Plan) -> (Tensor<D>, Tensor<L>) {
        let results = Dispatch::attention_forward(self.into_attention(), plan);
        (Tensor::from_dispatch(results.out), Tensor::from_dispatch(results.lse))
    }

    fn into_attention(self) -> AttentionInputs<Dispatch> {
        let operands = Operands::new(
            self.query.into_dispatch(),
            self.key.into_dispatch(),
            self.value.into_dispatch(),
        );
        let additional =
            self.additional.filter(|(key, _)| key.dims()[1] > 0).map(|(key, value)| KeyValue {
                key: key.into_dispatch(),
                value: value.into_dispatch(),
            });
        AttentionInputs::new(Operands { additional, bias: self.bias, ..operands })
    }
}

/// The results of an attention, and the same for a weighed sum of several.
pub(crate) struct WeighedOutput<const D: usize, const L: usize> {
    /// Output and logsumexp.
    pub results: (Tensor<D>, Tensor<L>),
    /// The same, and the logsumexp once more: see [`Weighed`](crate::backend::Weighed).
    pub weighed: (Tensor<D>, [Tensor<L>; 2]),
}

impl<const D: usize, const L: usize> WeighedOutput<D, L> {
    pub fn new(results: WeighedResults<Dispatch>) -> Self {
        let WeighedResults { results, weighed } = results;
        let Weighed { out, lse, delta } = weighed;
        Self {
            results: (Tensor::from_dispatch(results.out), Tensor::from_dispatch(results.lse)),
            weighed: (Tensor::from_dispatch(out), [lse, delta].map(Tensor::from_dispatch)),
        }
    }
}
