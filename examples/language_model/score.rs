//! How well bytes are expected, for burn-train.

use std::sync::Arc;

use burn::backend::ExecutionError;
use burn::tensor::{Tensor, TensorReadError};
use burn::train::metric::state::{FormatOptions, NumericMetricState};
use burn::train::metric::{
    Adaptor, ItemLazy, Metric, MetricAttributes, MetricMetadata, MetricName, Numeric,
    NumericAttributes, NumericEntry, SerializedEntry,
};

/// What a model made of a batch.
#[derive(Clone, Debug)]
pub struct Score {
    /// Bits that each byte takes on average with the model's expectations, `[1]`: 8 for one that expects nothing.
    pub bits: Tensor<1>,
    /// So many bytes.
    pub bytes: usize,
}

impl ItemLazy for Score {
    fn sync(self) -> Result<Self, ExecutionError> {
        self.bits.device().flush()?;
        Ok(Self { bits: self.bits.without_autodiff(), ..self })
    }
}

impl Adaptor<Score> for Score {
    fn adapt(&self) -> Score {
        self.clone()
    }
}

/// The mean of [`Score::bits`] over all bytes of an epoch.
#[derive(Clone, Default)]
pub struct BitsPerByte {
    state: NumericMetricState,
}

impl Metric for BitsPerByte {
    type Input = Score;

    fn update(
        &mut self,
        score: &Score,
        _: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        let bits = score.bits.clone().try_into_scalar::<f64>()?;
        self.state.update(bits, score.bytes);
        Ok(self.state.compute_update(FormatOptions::new(self.name()).precision(3)))
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(self.state.compute_final(FormatOptions::new(self.name()).precision(3)))
    }

    fn clear(&mut self) {
        self.state.reset();
    }

    fn name(&self) -> MetricName {
        Arc::new("Bits per byte".to_string())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes { unit: None, higher_is_better: false }.into()
    }
}

impl Numeric for BitsPerByte {
    fn value(&self) -> Option<NumericEntry> {
        Some(self.state.current_value())
    }

    fn running_value(&self) -> Option<NumericEntry> {
        Some(self.state.running_value())
    }

    fn final_value(&self) -> NumericEntry {
        self.state.final_value()
    }
}
