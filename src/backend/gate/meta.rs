//! What fusion must know of an output before it is computed.

use burn::backend::fusion::custom::TensorSpec;

use super::{GateGradientsMetadata, GateStatisticsMetadata, OfBranchesMetadata, statistics_shape};
use crate::backend::accumulator;
use crate::backend::operands::{AttentionResultsMetadata, WeighedMetadata};

pub fn branches(input: &TensorSpec) -> OfBranchesMetadata {
    let [compressed, selected, window] = [0; 3].map(|_| input.clone());
    OfBranchesMetadata { compressed, selected, window }
}

pub fn sum(compressed: &TensorSpec, _selected: &TensorSpec, _window: &TensorSpec) -> TensorSpec {
    compressed.clone()
}

pub fn gradients(
    compressed: &TensorSpec,
    selected: &TensorSpec,
    window: &TensorSpec,
    gates: &TensorSpec,
    _gradient: &TensorSpec,
) -> GateGradientsMetadata {
    let [compressed, selected, window, gates] =
        [compressed, selected, window, gates].map(TensorSpec::clone);
    GateGradientsMetadata { compressed, selected, window, gates }
}

pub fn gate(
    compressed: &TensorSpec,
    _selected: &TensorSpec,
    _window: &TensorSpec,
    _gates: &TensorSpec,
) -> TensorSpec {
    compressed.clone()
}

pub fn weighed(
    compressed: &WeighedMetadata,
    _selected: &WeighedMetadata,
    _window: &WeighedMetadata,
    _gates: &TensorSpec,
) -> TensorSpec {
    compressed.out.clone()
}

pub fn statistics(
    _compressed: &AttentionResultsMetadata,
    _selected: &AttentionResultsMetadata,
    _window: &AttentionResultsMetadata,
    gates: &TensorSpec,
    _gradient: &TensorSpec,
) -> GateStatisticsMetadata {
    let statistics = TensorSpec::new(statistics_shape(&gates.shape), accumulator(gates.dtype));
    GateStatisticsMetadata { statistics, gates: gates.clone() }
}
