//! The patches of a map that a convolution multiplies with its weights, and maps from the gradients of patches.
//!
//! A convolution is then a linear layer of patches, whose gradients are matrix products over all tokens.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::client::Client;
use cubecl::ir::{AddressType, ElemType};
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::PatchGrid;
use crate::KernelError;
use crate::cube::{addresses_with_room, buffer, check_type, grid_of_units, narrow_all, widest_of};
use crate::view::check_buffer;

/// Maps `[batch, height, width, channels]` on a device, and the patches that are taken of each.
#[derive(Clone, Copy)]
pub struct Maps<'a> {
    /// Of the device.
    pub client: &'a Client,
    /// Maps.
    pub batch: usize,
    /// Height and width.
    pub sides: [usize; 2],
    /// Elements of each position.
    pub channels: usize,
    /// f16, bf16 or f32.
    pub dtype: ElemType,
    /// Their patches.
    pub grid: PatchGrid,
}

/// Lengths that kernels count with.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Lengths {
    /// Patches, or positions of maps, in all.
    tokens: usize,
    height: usize,
    width: usize,
    /// Patches along each axis.
    rows: usize,
    columns: usize,
    /// Vectors of a position.
    lines: usize,
}

/// A patch, or a position of a map, and a vector of it.
#[derive(CubeType)]
struct Token {
    batch: usize,
    y: usize,
    x: usize,
    line: usize,
}

#[cube]
fn token(number: usize, height: usize, width: usize, lines: usize) -> Token {
    let (place, line) = (number / lines, number % lines);
    let row = place / width;
    Token { batch: row / height, y: row % height, x: place % width, line }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn unfold_kernel<F: Float, N: Size>(
    maps: &[Vector<F, N>],
    patches: &mut [Vector<F, N>],
    lengths: Lengths,
    #[comptime] grid: PatchGrid,
    #[define(F)] _dtype: ElemType,
) {
    let (size, stride, before) = comptime!((grid.size, grid.stride, grid.before()));
    let lines = lengths.lines;
    let at = ABSOLUTE_POS;
    if at < lengths.tokens * lines {
        let patch = token(at, lengths.rows, lengths.columns, lines);
        let first = at / lines * comptime!(size[0] * size[1]);
        for i in 0..comptime!(size[0]) {
            // With what is padded in front, so that nothing is negative.
            let y = patch.y * comptime!(stride[0]) + i;
            for j in 0..comptime!(size[1]) {
                let x = patch.x * comptime!(stride[1]) + j;
                let mut value = Vector::<F, N>::new(F::new(0.0));
                if y >= comptime!(before[0])
                    && y < lengths.height + comptime!(before[0])
                    && x >= comptime!(before[1])
                    && x < lengths.width + comptime!(before[1])
                {
                    let row = patch.batch * lengths.height + y - comptime!(before[0]);
                    let place = row * lengths.width + x - comptime!(before[1]);
                    value = maps[place * lines + patch.line];
                }
                patches[(first + i * comptime!(size[1]) + j) * lines + patch.line] = value;
            }
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn fold_kernel<F: Float, N: Size>(
    patches: &[Vector<F, N>],
    maps: &mut [Vector<F, N>],
    lengths: Lengths,
    #[comptime] grid: PatchGrid,
    #[define(F)] _dtype: ElemType,
) {
    let (size, stride, before) = comptime!((grid.size, grid.stride, grid.before()));
    let lines = lengths.lines;
    let at = ABSOLUTE_POS;
    if at < lengths.tokens * lines {
        let place = token(at, lengths.height, lengths.width, lines);
        let (y, x) = (place.y + comptime!(before[0]), place.x + comptime!(before[1]));
        let mut sum = Vector::<f32, N>::new(0.0f32);
        for i in 0..comptime!(size[0]) {
            let row = (y - i) / comptime!(stride[0]);
            if y >= i && (y - i) % comptime!(stride[0]) == 0 && row < lengths.rows {
                for j in 0..comptime!(size[1]) {
                    let column = (x - j) / comptime!(stride[1]);
                    if x >= j && (x - j) % comptime!(stride[1]) == 0 && column < lengths.columns {
                        let patch = (place.batch * lengths.rows + row) * lengths.columns + column;
                        let first = patch * comptime!(size[0] * size[1]);
                        let element = first + i * comptime!(size[1]) + j;
                        sum += Vector::cast_from(patches[element * lines + place.line]);
                    }
                }
            }
        }
        maps[at] = narrow_all(sum);
    }
}

/// How a kernel is launched.
struct Launch {
    vector: usize,
    address_type: AddressType,
    lengths: [usize; 5],
}

impl Maps<'_> {
    /// The patches of all maps, `[batch, rows, columns, size, size, channels]`, contiguous as the maps are. What they have beyond a map is
    /// zero.
    ///
    /// # Errors
    ///
    /// If the device lacks the type or 64-bit indices that are needed, or a buffer is too small; then nothing was launched.
    pub fn unfold(&self, maps: &Handle, patches: &Handle) -> Result<(), KernelError> {
        let by = self.launch(maps, patches)?;
        let [_, _, rows, columns, lines] = by.lengths;
        let tokens = self.batch * rows * columns;
        let (cubes, units) = grid_of_units(self.client, (tokens * lines).max(1));
        // SAFETY: every index is below the sizes that the buffers were checked against.
        unsafe {
            unfold_kernel::launch_unchecked(
                self.client,
                cubes,
                units,
                by.address_type,
                by.vector,
                buffer(maps),
                buffer(patches),
                by.argument(tokens),
                self.grid,
                self.dtype,
            );
        }
        Ok(())
    }

    /// The gradient of the maps from that of their patches: each position is the sum of what it is in patches, in their order, in f32.
    ///
    /// # Errors
    ///
    /// As [`unfold`](Self::unfold).
    pub fn fold(&self, patches: &Handle, maps: &Handle) -> Result<(), KernelError> {
        let by = self.launch(maps, patches)?;
        let [height, width, _, _, lines] = by.lengths;
        let tokens = self.batch * height * width;
        let (cubes, units) = grid_of_units(self.client, (tokens * lines).max(1));
        // SAFETY: every index is below the sizes that the buffers were checked against.
        unsafe {
            fold_kernel::launch_unchecked(
                self.client,
                cubes,
                units,
                by.address_type,
                by.vector,
                buffer(patches),
                buffer(maps),
                by.argument(tokens),
                self.grid,
                self.dtype,
            );
        }
        Ok(())
    }

    fn launch(&self, maps: &Handle, patches: &Handle) -> Result<Launch, KernelError> {
        check_type(self.client, self.dtype)?;
        let Self { batch, sides: [height, width], channels, .. } = *self;
        let [rows, columns] = self.grid.count(self.sides).ok_or_else(|| {
            let size = self.grid.size;
            KernelError::Problem(format!("patches of {size:?} in maps of {height} x {width}"))
        })?;
        let of_maps = batch * height * width * channels;
        let of_patches = batch * rows * columns * self.grid.size[0] * self.grid.size[1] * channels;
        check_buffer("maps", maps, of_maps * self.dtype.size())?;
        check_buffer("patches", patches, of_patches * self.dtype.size())?;
        let address_type = addresses_with_room(self.client, of_maps.max(of_patches))?;
        let vector = widest_of(self.client, channels, self.dtype);
        Ok(Launch {
            vector,
            address_type,
            lengths: [height, width, rows, columns, channels / vector],
        })
    }
}

impl Launch {
    fn argument(&self, tokens: usize) -> LengthsLaunch {
        let [height, width, rows, columns, lines] = self.lengths;
        LengthsLaunch::new(tokens, height, width, rows, columns, lines)
    }
}
