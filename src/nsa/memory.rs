//! Keys, or values, that a cache remembers.

#[cfg(feature = "cuda")]
use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::buffer::TokenBuffer;
use super::compress::compress;
use super::{BranchTokens, PerBranch, Pooling};
#[cfg(feature = "cuda")]
use crate::backend::decode::{Memory, NewTokens, Span};
#[cfg(feature = "cuda")]
use crate::backend::unfused::Optional;
use crate::options::Sizes;

/// Those of all branches.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenMemory {
    /// From where the next compressed block begins, unless they are those of the selected branch.
    rest: TokenBuffer,
    compressed: TokenBuffer,
    tokens: TokenBuffer,
    /// Those of the window, unless they are those of the selected branch.
    window: TokenBuffer,
}

/// A token, the memory it goes to, and where what has memory of its own is there with it.
#[cfg(feature = "cuda")]
pub(super) struct Lent {
    pub new: NewTokens<Dispatch>,
    pub memory: Memory<Dispatch>,
    pub rest: Span,
    pub window: Span,
}

impl TokenMemory {
    /// Appends tokens to those `before`, and gives what the branches read.
    pub fn append(
        &mut self,
        new: BranchTokens,
        pooling: &Pooling,
        sizes: &Sizes,
        before: usize,
    ) -> PerBranch<Tensor<4>> {
        let is_shared = new.is_shared();
        let PerBranch { compressed, selected, window } = new.tokens;
        let rows = selected.dims()[1];
        let blocks = sizes.compressed(before + rows) - sizes.compressed(before);
        self.tokens.append(selected.clone(), usize::MAX);
        let kept = not_compressed(before, sizes);
        let rest = match is_shared {
            // Those that are kept are among all tokens.
            true if kept == 0 || blocks == 0 => compressed,
            true => self.tokens.last(kept + rows, &selected),
            false => {
                self.rest.append_recent(compressed, kept, not_compressed(before + rows, sizes))
            }
        };
        if blocks > 0 {
            self.compressed.append(compress(rest, pooling, sizes), usize::MAX);
        }
        let recent = seen_again(sizes);
        let window = match is_shared {
            true => self.tokens.last(in_windows(rows, before, sizes), &selected),
            false => self.window.append_recent(window, recent, recent),
        };
        PerBranch {
            compressed: self.compressed.tokens(&selected),
            selected: self.tokens.tokens(&selected),
            window,
        }
    }

    /// Memory for one more token than those `before`, which kernels are to write there, and where it goes.
    #[cfg(feature = "cuda")]
    pub fn lend(&mut self, new: &BranchTokens, sizes: &Sizes, before: usize) -> Lent {
        let PerBranch { compressed, selected, window } = &new.tokens;
        let blocks = sizes.compressed(before + 1) - sizes.compressed(before);
        let memory_of = |lent: (Tensor<4>, Span)| (lent.0.into_dispatch(), lent.1);
        let token = |tensor: &Tensor<4>| tensor.clone().into_dispatch();
        let has_own = !new.is_shared();
        let own = |lent: Option<(Tensor<4>, Span)>| match lent.map(memory_of) {
            Some((tensor, span)) => (Optional::Some { tensor }, span),
            None => (Optional::None, Span::default()),
        };
        let own_token = |tensor: &Tensor<4>| has_own.then(|| token(tensor)).into();
        let (rest, in_rest) =
            own(has_own.then(|| self.rest.lend(compressed, 1, not_compressed(before, sizes))));
        let (recent, in_window) =
            own(has_own.then(|| self.window.lend(window, 1, seen_again(sizes))));
        Lent {
            new: NewTokens {
                selected: token(selected),
                compressed: own_token(compressed),
                window: own_token(window),
            },
            memory: Memory {
                compressed: memory_of(self.compressed.lend(selected, blocks, usize::MAX)).0,
                selected: memory_of(self.tokens.lend(selected, 1, usize::MAX)).0,
                rest,
                window: recent,
            },
            rest: in_rest,
            window: in_window,
        }
    }

    /// Holds the memory again that was lent, in which the token is now.
    #[cfg(feature = "cuda")]
    pub fn take_back(&mut self, memory: Memory<Dispatch>) {
        self.compressed.take_back(Tensor::from_dispatch(memory.compressed));
        self.tokens.take_back(Tensor::from_dispatch(memory.selected));
        if let Some(rest) = memory.rest.into_option() {
            self.rest.take_back(Tensor::from_dispatch(rest));
        }
        if let Some(window) = memory.window.into_option() {
            self.window.take_back(Tensor::from_dispatch(window));
        }
    }

    /// Memory of all of them, in tokens of a head.
    pub fn capacity(&self) -> usize {
        let all = [&self.rest, &self.compressed, &self.tokens, &self.window];
        all.into_iter().map(TokenBuffer::capacity).sum()
    }
}

/// Those of so many tokens that are in no compressed block, or in the next one as well.
fn not_compressed(tokens: usize, sizes: &Sizes) -> usize {
    tokens - sizes.compressed(tokens) * sizes.cmp_stride
}

/// Tokens that the windows of `rows` behind those `before` have: of keys as of values, whichever of them has tokens of its own for the window.
pub(super) fn in_windows(rows: usize, before: usize, sizes: &Sizes) -> usize {
    before.min(seen_again(sizes)) + rows
}

/// Tokens that the next one's window has as well.
fn seen_again(sizes: &Sizes) -> usize {
    sizes.window.saturating_sub(1)
}
