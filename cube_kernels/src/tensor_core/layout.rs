//! Tensors as the kernels take them.

use cubecl::client::Client;
use cubecl::prelude::{BufferArg, CubeCount};
use cubecl::server::Handle;

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
