use burn::backend::Dispatch;
use burn::tensor::Tensor;

use crate::backend::tokens::{Thirds, TokenOps};

/// Query, key and value, which lie side by side in the last axis. Their gradients are put side by side once, where three slices would be added
/// up as three tensors of zeros elsewhere.
pub(crate) fn thirds<const D: usize>(input: Tensor<D>) -> [Tensor<D>; 3] {
    let Thirds { first, second, third } = Dispatch::token_thirds(input.into_dispatch());
    [first, second, third].map(Tensor::from_dispatch)
}
