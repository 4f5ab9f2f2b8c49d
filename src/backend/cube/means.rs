//! Means of blocks of tokens by a kernel, or else by tensor operations.

use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use burn_natten_kernels::tokens::TokenBlocks;

use super::memory::empty;
use super::tokens::{is_empty, is_launched};
use crate::backend::means::{
    BlockMeanGradientOps, BlockMeanOps, BlockPlan, gradient, means, with_rows,
};

/// So many tokens of samples like these.
fn blocks(of: &CubeTensor, tokens: usize, plan: BlockPlan) -> TokenBlocks<'_> {
    let shape = of.shape();
    TokenBlocks {
        client: &of.client,
        batch: shape[0],
        tokens,
        channels: shape[2] * shape[3],
        dtype: dtype_to_storage_type(of.dtype()),
        size: plan.size,
        stride: plan.stride,
    }
}

impl BlockMeanOps for CubeBackend {
    fn block_means(tokens: CubeTensor, plan: BlockPlan) -> CubeTensor {
        let shape = tokens.shape();
        let to = with_rows(&shape, plan.count(shape[1]));
        if to.num_elements() == 0 {
            return means::<Self>(tokens, plan);
        }
        let tokens = into_contiguous(tokens);
        let output = empty(&tokens, to, tokens.dtype);
        let result = blocks(&tokens, shape[1], plan).means(&tokens.handle, &output.handle);
        if is_launched(result) { output } else { means::<Self>(tokens, plan) }
    }
}

impl BlockMeanGradientOps for CubeBackend {
    fn block_means_gradient(of: CubeTensor, tokens: usize, plan: BlockPlan) -> CubeTensor {
        if is_empty(&of) {
            return gradient::<Self>(of, tokens, plan);
        }
        let of = into_contiguous(of);
        let output = empty(&of, with_rows(&of.shape(), tokens), of.dtype);
        let result = blocks(&of, tokens, plan).gradient(&of.handle, &output.handle);
        if is_launched(result) { output } else { gradient::<Self>(of, tokens, plan) }
    }
}
