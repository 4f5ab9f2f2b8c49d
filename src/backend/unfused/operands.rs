//! Tensors in the form in which Burn can route them between backends.

use burn::backend::{Backend, ExtensionType, tensor::FloatTensor};

/// Keys or values, or the gradients of those.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct Tokens<B: Backend> {
    /// `[batch, *space, heads_kv, dim]`
    pub space: FloatTensor<B>,
    /// `[batch, tokens, heads_kv, dim]`, what every query sees besides its window.
    #[extension_type]
    pub additional: Optional<B>,
}

/// A tensor that may be missing.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub enum Optional<B: Backend> {
    /// There is none.
    None,
    /// There is one.
    Some {
        /// The tensor.
        tensor: FloatTensor<B>,
    },
}

impl<B: Backend> Optional<B> {
    #[cfg(any(feature = "cuda", feature = "optim"))]
    pub(crate) fn as_option(&self) -> Option<&FloatTensor<B>> {
        match self {
            Self::None => None,
            Self::Some { tensor } => Some(tensor),
        }
    }

    pub(crate) fn into_option(self) -> Option<FloatTensor<B>> {
        match self {
            Self::None => None,
            Self::Some { tensor } => Some(tensor),
        }
    }
}

impl<B: Backend> From<Option<FloatTensor<B>>> for Optional<B> {
    fn from(tensor: Option<FloatTensor<B>>) -> Self {
        match tensor {
            None => Self::None,
            Some(tensor) => Self::Some { tensor },
        }
    }
}
