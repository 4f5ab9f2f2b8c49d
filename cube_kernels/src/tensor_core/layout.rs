//! Tensors as the kernels take them.

use crate::{Shape, Strided};

/// Most elements of `size` bytes, a power of two of them up to 16 bytes, that every row of a tensor can be read in.
///
/// A stride that is never taken does not count.
pub(super) fn widest(tensor: &Strided, shape: Shape, size: usize) -> usize {
    let offset = tensor.handle.offset_start.unwrap_or(0) as usize / size;
    let taken = tensor.strides.iter().zip(shape.lengths()).filter(|(_, length)| *length > 1);
    let mut vector = 16 / size;
    for number in [shape.dim, offset].into_iter().chain(taken.map(|(stride, _)| *stride)) {
        while number % vector != 0 {
            vector /= 2;
        }
    }
    vector
}
