//! Means of blocks of tokens by a kernel, or else by tensor operations.

use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use burn_natten_kernels::tokens::{BlockGrid, TokenBlocks};

use super::memory::empty;
use super::tokens::{is_empty, is_launched};
use crate::backend::means::{BlockMeanGradientOps, BlockMeanOps, gradient, means};
use crate::backend::rows::with_rows;

/// So many tokens of samples like these.
fn blocks(of: &CubeTensor, tokens: usize, grid: BlockGrid) -> TokenBlocks<'_> {
    let shape = of.shape();
    TokenBlocks {
        client: &of.client,
        batch: shape[0],
        tokens,
        channels: shape[2] * shape[3],
        dtype: dtype_to_storage_type(of.dtype()),
        grid,
    }
}

impl BlockMeanOps for CubeBackend {
    fn block_means(tokens: CubeTensor, grid: BlockGrid) -> CubeTensor {
        let shape = tokens.shape();
        let to = with_rows(&shape, grid.count(shape[1]));
        if to.num_elements() == 0 {
            return means::<Self>(tokens, grid);
        }
        let tokens = into_contiguous(tokens);
        let output = empty(&tokens, to, tokens.dtype);
        let result = blocks(&tokens, shape[1], grid).means(&tokens.handle, &output.handle);
        if is_launched(result) { output } else { means::<Self>(tokens, grid) }
    }
}

impl BlockMeanGradientOps for CubeBackend {
    fn block_means_gradient(of: CubeTensor, tokens: usize, grid: BlockGrid) -> CubeTensor {
        if is_empty(&of) {
            return gradient::<Self>(of, tokens, grid);
        }
        let of = into_contiguous(of);
        let output = empty(&of, with_rows(&of.shape(), tokens), of.dtype);
        let result = blocks(&of, tokens, grid).gradient(&of.handle, &output.handle);
        if is_launched(result) { output } else { gradient::<Self>(of, tokens, grid) }
    }
}
