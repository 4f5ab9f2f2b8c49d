//! Means of blocks of tokens, one of which begins every so many tokens, and their gradient.
//!
//! A unit has a vector of a block, or of a token, and neighbors have those beside it: both passes are worth the bytes of their tensors, as
//! long as tokens that several blocks have stay in a cache.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::client::Client;
use cubecl::ir::{AddressType, ElemType};
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::BlockGrid;
use crate::KernelError;
use crate::cube::{addresses_with_room, buffer, check_type, grid_of_units, narrow_all, widest_of};
use crate::view::check_buffer;

/// Samples of tokens, `[batch, tokens, channels]`, on a device, and the blocks that are taken of each.
#[derive(Clone, Copy)]
pub struct TokenBlocks<'a> {
    /// Of the device.
    pub client: &'a Client,
    /// Samples.
    pub batch: usize,
    /// Tokens of a sample.
    pub tokens: usize,
    /// Elements of a token.
    pub channels: usize,
    /// f16, bf16 or f32.
    pub dtype: ElemType,
    /// Their blocks.
    pub grid: BlockGrid,
}

/// Lengths that kernels count with.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Lengths {
    batch: usize,
    tokens: usize,
    /// Blocks of a sample.
    blocks: usize,
    /// Vectors of a token.
    lines: usize,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn means_kernel<F: Float, N: Size>(
    tokens: &[Vector<F, N>],
    means: &mut [Vector<F, N>],
    lengths: Lengths,
    #[comptime] grid: BlockGrid,
    #[define(F)] _dtype: ElemType,
) {
    let (at, lines) = (ABSOLUTE_POS, lengths.lines);
    if at < lengths.batch * lengths.blocks * lines {
        let (block, line) = (at / lines, at % lines);
        let (sample, block) = (block / lengths.blocks, block % lengths.blocks);
        let first = sample * lengths.tokens + block * comptime!(grid.stride);
        let mut sum = Vector::<f32, N>::new(0.0f32);
        for i in 0..comptime!(grid.size) {
            sum += Vector::cast_from(tokens[(first + i) * lines + line]);
        }
        means[at] = narrow_all(sum / Vector::new(comptime!(grid.size as f32)));
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn gradient_kernel<F: Float, N: Size>(
    means: &[Vector<F, N>],
    tokens: &mut [Vector<F, N>],
    lengths: Lengths,
    #[comptime] grid: BlockGrid,
    #[define(F)] _dtype: ElemType,
) {
    let (at, lines) = (ABSOLUTE_POS, lengths.lines);
    if at < lengths.batch * lengths.tokens * lines {
        let (token, line) = (at / lines, at % lines);
        let (sample, token) = (token / lengths.tokens, token % lengths.tokens);
        let last = token / comptime!(grid.stride);
        let mut sum = Vector::<f32, N>::new(0.0f32);
        // From the last block that has begun backwards.
        for back in 0..comptime!(grid.size.div_ceil(grid.stride)) {
            let block = last - back;
            if last >= back
                && block < lengths.blocks
                && token < block * comptime!(grid.stride) + comptime!(grid.size)
            {
                sum += Vector::cast_from(means[(sample * lengths.blocks + block) * lines + line]);
            }
        }
        tokens[at] = narrow_all(sum / Vector::new(comptime!(grid.size as f32)));
    }
}

/// How a kernel is launched.
struct Launch {
    vector: usize,
    address_type: AddressType,
    lines: usize,
}

impl TokenBlocks<'_> {
    /// The mean of each block, `[batch, blocks, channels]`, from contiguous `tokens`, summed in f32.
    ///
    /// # Errors
    ///
    /// If the device lacks the type or 64-bit indices that are needed, blocks have no tokens or do not advance, or a buffer is too small; then
    /// nothing was launched.
    pub fn means(&self, tokens: &Handle, means: &Handle) -> Result<(), KernelError> {
        let by = self.launch(tokens, means)?;
        let units = self.batch * self.grid.count(self.tokens) * by.lines;
        if units == 0 {
            return Ok(());
        }
        let (cubes, units) = grid_of_units(self.client, units);
        // SAFETY: every index is below the sizes that the buffers were checked against.
        unsafe {
            means_kernel::launch_unchecked(
                self.client,
                cubes,
                units,
                by.address_type,
                by.vector,
                buffer(tokens),
                buffer(means),
                self.lengths(by.lines),
                self.grid,
                self.dtype,
            );
        }
        Ok(())
    }

    /// The gradient of the tokens from that of the means, contiguous: each token's is a sum over its blocks, in f32, zero where it has none.
    /// No atomics: results repeat bit by bit.
    ///
    /// # Errors
    ///
    /// As [`means`](Self::means).
    pub fn gradient(&self, means: &Handle, tokens: &Handle) -> Result<(), KernelError> {
        let by = self.launch(tokens, means)?;
        let units = self.batch * self.tokens * by.lines;
        if units == 0 {
            return Ok(());
        }
        let (cubes, units) = grid_of_units(self.client, units);
        // SAFETY: every index is below the sizes that the buffers were checked against.
        unsafe {
            gradient_kernel::launch_unchecked(
                self.client,
                cubes,
                units,
                by.address_type,
                by.vector,
                buffer(means),
                buffer(tokens),
                self.lengths(by.lines),
                self.grid,
                self.dtype,
            );
        }
        Ok(())
    }

    fn launch(&self, tokens: &Handle, means: &Handle) -> Result<Launch, KernelError> {
        check_type(self.client, self.dtype)?;
        let BlockGrid { size, stride } = self.grid;
        if size == 0 || stride == 0 {
            return Err(KernelError::Problem(format!("blocks of {size} tokens, every {stride}")));
        }
        let of_tokens = self.batch * self.tokens * self.channels;
        let of_means = self.batch * self.grid.count(self.tokens) * self.channels;
        check_buffer("tokens", tokens, of_tokens * self.dtype.size())?;
        check_buffer("means", means, of_means * self.dtype.size())?;
        let address_type = addresses_with_room(self.client, of_tokens)?;
        let vector = widest_of(self.client, self.channels, self.dtype);
        Ok(Launch { vector, address_type, lines: self.channels / vector })
    }

    fn lengths(&self, lines: usize) -> LengthsLaunch {
        LengthsLaunch::new(self.batch, self.tokens, self.grid.count(self.tokens), lines)
    }
}
