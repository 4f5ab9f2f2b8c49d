//! Native sparse attention: compressed, selected and window attention, and gates that weigh them.
//!
//! ```text
//! compressed   over the compressed blocks that are complete where the query stands
//! selected     over the raw tokens of listed blocks, up to the query
//! window       over the last tokens, up to the query
//! out          = sum of gates[.., branch] * out of the branch
//! ```
//!
//! Each branch is one of the crate's operators, and so are its gradients. The [guide](crate::guide::native_sparse_attention) has
//! a page on it.

mod attention;
mod branches;
mod buffer;
mod cache;
mod compress;
#[cfg(feature = "cuda")]
mod decode;
mod memory;
mod packed;
mod select;
mod window;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use crate::backend::rows::RowOps;

pub use attention::{NativeSparseOutput, native_sparse_attention, try_native_sparse_attention};
pub use branches::{compressed_attention, try_compressed_attention};
pub use cache::NativeSparseCache;
pub use compress::{Pooling, compress_tokens, try_compress_tokens};
pub use packed::{native_sparse_attention_packed, try_native_sparse_attention_packed};
pub use select::{SelectedBlocks, select_blocks, try_select_blocks};

/// Something for each branch of native sparse attention.
///
/// As keys or values, a single tensor is that of all branches:
///
/// ```rust
/// use burn::tensor::{Device, Tensor};
/// use burn_natten::nsa::{BranchTokens, PerBranch};
///
/// let key = || Tensor::<4>::zeros([1, 40, 2, 8], &Device::flex());
/// let shared = BranchTokens::from(key());
/// let own = BranchTokens::from(PerBranch { compressed: key(), selected: key(), window: key() });
/// assert!(shared.is_shared() && !own.is_shared());
/// ```
#[derive(Clone, Debug)]
pub struct PerBranch<T> {
    /// Of the branch over compressed blocks.
    pub compressed: T,
    /// Of the branch over selected blocks.
    pub selected: T,
    /// Of the branch over the last tokens.
    pub window: T,
}

impl<T> PerBranch<T> {
    /// In the order of the gates.
    pub fn into_array(self) -> [T; 3] {
        [self.compressed, self.selected, self.window]
    }

    fn of([compressed, selected, window]: [T; 3]) -> Self {
        Self { compressed, selected, window }
    }

    fn as_ref(&self) -> PerBranch<&T> {
        PerBranch { compressed: &self.compressed, selected: &self.selected, window: &self.window }
    }

    fn map<U>(self, change: impl FnMut(T) -> U) -> PerBranch<U> {
        PerBranch::of(self.into_array().map(change))
    }
}

/// Keys, or values, of the branches: the same for all, or each its own.
#[derive(Clone, Debug)]
pub struct BranchTokens {
    pub(crate) tokens: PerBranch<Tensor<4>>,
    is_shared: bool,
}

impl BranchTokens {
    /// Whether all branches have the same.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    fn map(self, change: impl FnMut(Tensor<4>) -> Tensor<4>) -> Self {
        Self { tokens: self.tokens.map(change), ..self }
    }
}

impl From<Tensor<4>> for BranchTokens {
    fn from(tokens: Tensor<4>) -> Self {
        let tokens =
            PerBranch { compressed: tokens.clone(), selected: tokens.clone(), window: tokens };
        Self { tokens, is_shared: true }
    }
}

impl From<PerBranch<Tensor<4>>> for BranchTokens {
    fn from(tokens: PerBranch<Tensor<4>>) -> Self {
        Self { tokens, is_shared: false }
    }
}

/// Tokens of `[batch, tokens, ..]` that a gradient goes back to; there is at least one.
fn cut<const D: usize>(tensor: Tensor<D>, first: usize, count: usize) -> Tensor<D> {
    if count == tensor.dims()[1] {
        return tensor;
    }
    Tensor::from_dispatch(Dispatch::cut_rows(tensor.into_dispatch(), first, count))
}

/// Some tokens of a sequence, `[batch, tokens, ..]`, as a view; there may be none.
fn span(tensor: Tensor<4>, start: usize, count: usize) -> Tensor<4> {
    if count > 0 {
        return tensor.narrow(1, start, count);
    }
    let [batch, _, heads, dim] = tensor.dims();
    Tensor::zeros([batch, 0, heads, dim], (&tensor.device(), tensor.dtype()))
}
