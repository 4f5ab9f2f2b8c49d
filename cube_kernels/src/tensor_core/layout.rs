//! Tensors as the kernels take them.

use cubecl::client::Client;
use cubecl::prelude::{BufferArg, CubeCount};
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

    /// Most elements of `size` bytes, a power of two of them up to 16 bytes, that every row of `dim` elements
    /// can be read in.
    ///
    /// `lengths` are those of the tensor: a stride that is never taken does not count.
    pub(super) fn vector(&self, dim: usize, lengths: [usize; 5], size: usize) -> usize {
        let offset = self.handle.offset_start.unwrap_or(0) as usize / size;
        let taken = self.strides.iter().zip(lengths).filter(|(_, length)| *length > 1);
        let mut vector = 16 / size;
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
        size: usize,
    ) -> Result<(), TensorCoreError> {
        if lengths.contains(&0) {
            return Ok(());
        }
        let last: usize =
            self.strides.iter().zip(lengths).map(|(stride, n)| stride * (n - 1)).sum();
        let expected = (size * (last + dim)) as u64;
        let actual = self.handle.size_in_used();
        if actual < expected {
            return Err(TensorCoreError::Buffer { name, expected, actual });
        }
        Ok(())
    }
}

impl Strided {
    /// The same with its tokens as one axis, the fastest; `None` where they lie in no such order.
    pub(super) fn line(&self, tokens: [usize; MAX_RANK]) -> Option<Self> {
        let [batch, z, y, x, head] = self.strides;
        // From the fastest to the slowest axis that has neighbors.
        let (mut step, mut length) = (0, 1);
        for (stride, size) in [(x, tokens[2]), (y, tokens[1]), (z, tokens[0])] {
            if size == 1 {
                continue;
            }
            if length > 1 && stride != step * length {
                return None;
            }
            step = if length == 1 { stride } else { step };
            length *= size;
        }
        Some(Self { handle: self.handle.clone(), strides: [batch, 0, 0, step, head] })
    }
}

/// A kernel argument. The kernels take every length from the problem, so that the one given here only has
/// to be inside the buffer.
pub(super) fn buffer(handle: &Handle) -> BufferArg {
    // SAFETY: a length of zero is inside any buffer.
    unsafe { BufferArg::from_raw_parts(handle.clone(), 0) }
}

/// A grid of at least `cubes` cubes.
pub(super) fn cube_count(client: &Client, cubes: usize) -> CubeCount {
    let (widest, _, _) = client.properties().hardware.max_cube_count;
    let along_x = cubes.clamp(1, widest as usize);
    CubeCount::Static(along_x as u32, cubes.div_ceil(along_x) as u32, 1)
}
