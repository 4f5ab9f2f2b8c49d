//! The operators as an extension of Burn's backends.

use burn::backend::{Backend, ExtensionType, backend_extension, tensor::FloatTensor};

use super::{Plan, merge, reference};

/// The tokens that every query sees besides its window.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub enum AdditionalKv<B: Backend> {
    /// There are none.
    None,
    /// Keys `[batch, tokens, heads_kv, head_dim]` and values `[batch, tokens, heads_kv,
    /// head_dim_v]`.
    Tokens {
        /// The keys, or their gradient.
        key: FloatTensor<B>,
        /// The values, or their gradient.
        value: FloatTensor<B>,
    },
}

impl<B: Backend> AdditionalKv<B> {
    /// What `of` makes of key and value; `None` if there are none.
    pub(super) fn pair<T>(&self, of: impl Fn(&FloatTensor<B>) -> T) -> Option<(T, T)> {
        match self {
            Self::Tokens { key, value } => Some((of(key), of(value))),
            Self::None => None,
        }
    }

    /// The tensors that `of` makes of key and value.
    pub(super) fn map<C: Backend>(
        &self,
        of: impl Fn(&FloatTensor<B>) -> FloatTensor<C>,
    ) -> AdditionalKv<C> {
        match self.pair(of) {
            Some((key, value)) => AdditionalKv::Tokens { key, value },
            None => AdditionalKv::None,
        }
    }
}

/// Forward operators.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Autodiff: cfg(feature = "autodiff"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait AttentionOps: Backend {
    /// Attention over the windows of `plan`: `(out, logsumexp)`.
    #[fusion(meta = meta::forward)]
    fn attention_forward(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        #[extension_type] additional: AdditionalKv<Self>,
        plan: Plan,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        reference::forward::<Self>(query, key, value, additional, &plan)
    }

    /// Merges `outs` `[parts, rows, head_dim]` by their `lses` `[parts, rows]`: `(out [rows,
    /// head_dim], lse [rows])`.
    #[fusion(meta = meta::merge)]
    fn merge_forward(
        outs: FloatTensor<Self>,
        lses: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        merge::forward::<Self>(outs, lses)
    }
}

/// Backward operators. They are asked of the inner backend only: first derivatives.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait AttentionBackwardOps: Backend {
    /// Gradients of query, key, value and the additional tokens, from the forward pass' inputs and
    /// outputs and the gradients of both outputs.
    #[allow(clippy::too_many_arguments)]
    #[fusion(meta = meta::backward)]
    fn attention_backward(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        #[extension_type] additional: AdditionalKv<Self>,
        out: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        grad_out: FloatTensor<Self>,
        grad_lse: FloatTensor<Self>,
        plan: Plan,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, AdditionalKv<Self>) {
        let saved = reference::Saved { query, key, value, additional, out, lse };
        reference::backward::<Self>(saved, grad_out, grad_lse, &plan)
    }

    /// Gradients of `outs` and `lses`.
    #[fusion(meta = meta::merge_backward)]
    fn merge_backward(
        outs: FloatTensor<Self>,
        lses: FloatTensor<Self>,
        out: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        grad_out: FloatTensor<Self>,
        grad_lse: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        merge::backward::<Self>(outs, lses, out, lse, grad_out, grad_lse)
    }
}

/// What fusion must know of an output before it is computed.
#[cfg(feature = "fusion")]
mod meta {
    use super::{AdditionalKvMetadata, Plan};
    use crate::backend::dispatch::accumulator;
    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::Shape;

    pub fn forward(
        query: &TensorSpec,
        _key: &TensorSpec,
        value: &TensorSpec,
        _additional: &AdditionalKvMetadata,
        _plan: &Plan,
    ) -> (TensorSpec, TensorSpec) {
        let rows = &query.shape.as_slice()[..query.shape.num_dims() - 1];
        let head_dim_v = value.shape[value.shape.num_dims() - 1];
        let out = Shape::from([rows, &[head_dim_v]].concat());
        (
            TensorSpec::new(out, query.dtype),
            TensorSpec::new(Shape::from(rows.to_vec()), accumulator(query.dtype)),
        )
    }

    #[allow(clippy::too_many_arguments)]
    pub fn backward(
        query: &TensorSpec,
        key: &TensorSpec,
        value: &TensorSpec,
        additional: &AdditionalKvMetadata,
        _out: &TensorSpec,
        _lse: &TensorSpec,
        _grad_out: &TensorSpec,
        _grad_lse: &TensorSpec,
        _plan: &Plan,
    ) -> (TensorSpec, TensorSpec, TensorSpec, AdditionalKvMetadata) {
        (query.clone(), key.clone(), value.clone(), additional.clone())
    }

    pub fn merge(outs: &TensorSpec, lses: &TensorSpec) -> (TensorSpec, TensorSpec) {
        let first = |spec: &TensorSpec| {
            TensorSpec::new(Shape::from(spec.shape.as_slice()[1..].to_vec()), spec.dtype)
        };
        (first(outs), first(lses))
    }

    pub fn merge_backward(
        outs: &TensorSpec,
        lses: &TensorSpec,
        _out: &TensorSpec,
        _lse: &TensorSpec,
        _grad_out: &TensorSpec,
        _grad_lse: &TensorSpec,
    ) -> (TensorSpec, TensorSpec) {
        (outs.clone(), lses.clone())
    }
}
