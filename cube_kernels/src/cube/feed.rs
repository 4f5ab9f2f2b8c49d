//! Tensors as kernels read them, and the launch arguments that they come from.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::client::Client;
use cubecl::ir::{AddressType, ElemType, FloatKind};
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::space::{CubeTile, Space};
use super::walk::{Strides, Walk};
use crate::KernelError;

/// A tensor that a kernel reads.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Input<'a, F: Float, N: Size> {
    pub vectors: &'a [Vector<F, N>],
    pub strides: Strides,
}

/// Two tensors of one kind of token. First vectors are queries and keys, second ones values and the output's
/// gradient.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct InputPair<'a, F: Float, N: Size> {
    pub first: Input<'a, F, N>,
    pub second: Input<'a, F, N>,
}

/// The vectors that a cube reads of a tensor: those of one sample, one head and its dilation group.
#[derive(CubeType)]
pub(crate) struct Feed<'a, F: Float, N: Size> {
    pub vectors: &'a [Vector<F, N>],
    pub walk: Walk,
}

/// The same of two tensors.
#[derive(CubeType)]
pub(crate) struct FeedPair<'a, F: Float, N: Size> {
    pub first: Feed<'a, F, N>,
    pub second: Feed<'a, F, N>,
}

#[cube]
impl<'a, F: Float, N: Size> Input<'a, F, N> {
    /// Rows, by their positions.
    pub fn rows(&self, space: &Space, tile: &CubeTile) -> Feed<'a, F, N> {
        Feed::<'a, F, N> { vectors: self.vectors, walk: space.row_walk(tile, &self.strides) }
    }

    /// Columns of head `head`, by their positions.
    pub fn columns(&self, space: &Space, tile: &CubeTile, head: usize) -> Feed<'a, F, N> {
        Feed::<'a, F, N> {
            vectors: self.vectors,
            walk: space.column_walk(tile, &self.strides, head),
        }
    }

    /// Additional tokens, by their numbers.
    pub fn additional(&self, space: &Space, tile: &CubeTile) -> Feed<'a, F, N> {
        Feed::<'a, F, N> { vectors: self.vectors, walk: space.additional_walk(tile, &self.strides) }
    }
}

#[cube]
impl<'a, F: Float, N: Size> InputPair<'a, F, N> {
    /// Columns of head `head`, by their positions.
    pub fn columns(&self, space: &Space, tile: &CubeTile, head: usize) -> FeedPair<'a, F, N> {
        FeedPair::<'a, F, N> {
            first: self.first.columns(space, tile, head),
            second: self.second.columns(space, tile, head),
        }
    }

    /// Additional tokens, by their numbers.
    pub fn additional(&self, space: &Space, tile: &CubeTile) -> FeedPair<'a, F, N> {
        FeedPair::<'a, F, N> {
            first: self.first.additional(space, tile),
            second: self.second.additional(space, tile),
        }
    }
}

/// A tensor as it is launched with: its memory, and the elements between neighbors (batch, z, y, x, heads).
pub(crate) type Tensor<'a> = (&'a Handle, [usize; 5]);

impl<F: Float, N: Size> Input<'static, F, N> {
    /// Launch argument for a tensor that is read in vectors of `vector` elements.
    pub fn argument((handle, strides): Tensor<'_>, vector: usize) -> InputLaunch<'static, F, N> {
        InputLaunch::new(buffer(handle), Strides::argument(strides, vector))
    }

    /// What a kernel is compiled for in its place.
    #[cfg(feature = "cuda")]
    pub fn compilation() -> InputCompilationArg<'static, F, N> {
        let vectors = BufferCompilationArg { inplace: None };
        InputCompilationArg { vectors, strides: Strides::compilation() }
    }
}

impl<F: Float, N: Size> InputPair<'static, F, N> {
    /// Launch argument for two tensors.
    pub fn argument(
        [first, second]: [Tensor<'_>; 2],
        vector: usize,
    ) -> InputPairLaunch<'static, F, N> {
        InputPairLaunch::new(Input::argument(first, vector), Input::argument(second, vector))
    }

    /// What a kernel is compiled for in its place.
    #[cfg(feature = "cuda")]
    pub fn compilation() -> InputPairCompilationArg<'static, F, N> {
        InputPairCompilationArg { first: Input::compilation(), second: Input::compilation() }
    }
}

/// A kernel argument. The kernels take every length from the problem, so that the one given here only has
/// to be inside the buffer.
pub(crate) fn buffer(handle: &Handle) -> BufferArg {
    // SAFETY: a length of zero is inside any buffer.
    unsafe { BufferArg::from_raw_parts(handle.clone(), 0) }
}

/// What a kernel is compiled for in place of a buffer that there may be.
#[cfg(feature = "cuda")]
pub(crate) fn optional_buffer<T>(is_there: bool) -> ComptimeOptionCompilationArg<T>
where
    T: LaunchArg<CompilationArg = BufferCompilationArg>,
{
    match is_there {
        true => ComptimeOptionCompilationArg::Some(BufferCompilationArg { inplace: None }),
        false => ComptimeOptionCompilationArg::None,
    }
}

/// Fails unless a device has an element type that CubeCL's kernels know without matrix units.
pub(crate) fn check_type(client: &Client, dtype: ElemType) -> Result<(), KernelError> {
    let is_known =
        matches!(dtype, ElemType::Float(FloatKind::F16 | FloatKind::BF16 | FloatKind::F32));
    if is_known && client.properties().supports_type(dtype) {
        return Ok(());
    }
    let known = "f16, bf16 and f32, where the device has them";
    Err(KernelError::ElementType { known, got: dtype })
}

/// The indices of a kernel whose largest tensor has so many elements. The signed bound leaves room for the units past the end of the last cube.
pub(crate) fn addresses(client: &Client, largest: usize) -> Result<AddressType, KernelError> {
    let address_type = AddressType::from_len_signed(largest);
    match client.properties().supports_address(address_type) {
        true => Ok(address_type),
        false => Err(KernelError::Addressing(largest)),
    }
}

/// The same with room for as many again: cubes of several rows count those behind the last one that there is.
pub(crate) fn addresses_with_room(
    client: &Client,
    largest: usize,
) -> Result<AddressType, KernelError> {
    addresses(client, 2 * largest.max(1)).map_err(|_| KernelError::Addressing(largest))
}

/// The element type that sums are held in.
pub(crate) const F32: ElemType = ElemType::Float(FloatKind::F32);

/// The most elements that the device loads at once and that a row of `dim` divides into.
pub(crate) fn widest_of(client: &Client, dim: usize, dtype: ElemType) -> usize {
    let sizes = client.io_optimized_vector_sizes(dtype.size());
    sizes.filter(|size| dim.is_multiple_of(*size)).max().unwrap_or(1)
}

/// A grid of at least `cubes` cubes.
pub(crate) fn grid(client: &Client, cubes: usize) -> CubeCount {
    let (widest, _, _) = client.properties().hardware.max_cube_count;
    let along_x = cubes.clamp(1, widest as usize);
    CubeCount::Static(along_x as u32, cubes.div_ceil(along_x) as u32, 1)
}

/// Units of a cube on a GPU where units do not work together: small cubes spread better.
const CUBE_UNITS: u32 = 64;

/// A grid of at least `units` units that do not work together.
pub(crate) fn grid_of_units(client: &Client, units: usize) -> (CubeCount, CubeDim) {
    let hardware = &client.properties().hardware;
    let cube_dim = if hardware.num_cpu_cores.is_some() {
        CubeDim::new(client, units)
    } else {
        CubeDim::new_1d(CUBE_UNITS.min(hardware.max_units_per_cube))
    };
    let cube_count = cubecl::calculate_cube_count_elemwise(client, units, cube_dim);
    (cube_count, cube_dim)
}

/// A grid of at least `cubes` cubes, and how many units work together in each: `units`, or one on a CPU, where each is a
/// thread and barriers are slow.
pub(crate) fn grid_of_cubes(client: &Client, cubes: usize, units: u32) -> (CubeCount, CubeDim) {
    let hardware = &client.properties().hardware;
    let units = match hardware.num_cpu_cores {
        Some(_) => 1,
        None => units.min(hardware.max_units_per_cube),
    };
    (grid(client, cubes), CubeDim::new_1d(units))
}
