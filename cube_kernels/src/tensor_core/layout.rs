//! Tensors as the kernels take them.

use cubecl::server::Handle;

use super::launch::TensorCoreError;
use crate::MAX_RANK;

/// A tensor `[batch, z, y, x, heads, vector]`, whose vectors are contiguous.
#[derive(Clone, Debug)]
pub struct Strided {
    /// The memory.
    pub handle: Handle,
    /// Elements between neighbors: batch, z, y, x, heads. Those of an axis of one element do not
    /// matter.
    pub strides: [usize; 5],
}

impl Strided {
    /// A contiguous tensor `[batch, tokens.., heads, dim]`.
    pub fn contiguous(handle: Handle, tokens: [usize; MAX_RANK], heads: usize, dim: usize) -> Self {
        let x = heads * dim;
        let y = tokens[2] * x;
        let z = tokens[1] * y;
        Self { handle, strides: [tokens[0] * z, z, y, x, dim] }
    }

    /// Most elements, a power of two up to 8, that every row of `dim` elements can be read in.
    ///
    /// `lengths` are those of the tensor: a stride that is never taken does not count.
    pub(super) fn vector(&self, dim: usize, lengths: [usize; 5]) -> usize {
        let offset = self.handle.offset_start.unwrap_or(0) as usize / 2;
        let taken = self.strides.iter().zip(lengths).filter(|(_, length)| *length > 1);
        let mut vector = 8;
        for number in [dim, offset].into_iter().chain(taken.map(|(stride, _)| *stride)) {
            while number % vector != 0 {
                vector /= 2;
            }
        }
        vector
    }

    /// Fails if the last element that is read lies outside the buffer.
    pub(super) fn check(
        &self,
        name: &'static str,
        dim: usize,
        lengths: [usize; 5],
    ) -> Result<(), TensorCoreError> {
        if lengths.contains(&0) {
            return Ok(());
        }
        let last: usize = self.strides.iter().zip(lengths).map(|(stride, n)| stride * (n - 1)).sum();
        let expected = 2 * (last + dim) as u64;
        let actual = self.handle.size_in_used();
        if actual < expected {
            return Err(TensorCoreError::Buffer { name, expected, actual });
        }
        Ok(())
    }
}
