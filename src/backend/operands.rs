//! The tensors of an attention on a Burn backend: [`Operands`] and [`Outputs`] in the form in which Burn can route them
//! between backends.

use burn::backend::{Backend, ExtensionType, tensor::FloatTensor};
use burn_natten_kernels::{KeyValue, Operands, Outputs};

/// What an attention reads.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct AttentionInputs<B: Backend> {
    /// `[batch, *space, heads, head_dim]`
    pub query: FloatTensor<B>,
    /// `[batch, *space, heads_kv, head_dim]`
    pub key: FloatTensor<B>,
    /// `[batch, *space, heads_kv, head_dim_v]`
    pub value: FloatTensor<B>,
    /// The tokens that every query sees besides its window.
    #[extension_type]
    pub additional: AdditionalKv<B>,
    /// What is added to the scores.
    #[extension_type]
    pub bias: PositionBias<B>,
}

/// The tokens that every query sees besides its window.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub enum AdditionalKv<B: Backend> {
    /// There are none.
    None,
    /// Keys `[batch, tokens, heads_kv, head_dim]` and values `[batch, tokens, heads_kv,
    /// head_dim_v]`.
    Tokens {
        /// The keys.
        key: FloatTensor<B>,
        /// The values.
        value: FloatTensor<B>,
    },
}

/// What is added to the scores by where a key stands from a query.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub enum PositionBias<B: Backend> {
    /// Nothing.
    None,
    /// `[heads, 2 * kernel_size - 1, ..]`
    Relative {
        /// The bias.
        bias: FloatTensor<B>,
    },
}

/// The gradients of what an attention reads. Those of what is not there are [`Gradient::Unwanted`], too.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct AttentionGradients<B: Backend> {
    /// That of the queries.
    #[extension_type]
    pub query: Gradient<B>,
    /// That of the keys.
    #[extension_type]
    pub key: Gradient<B>,
    /// That of the values.
    #[extension_type]
    pub value: Gradient<B>,
    /// That of the additional keys.
    #[extension_type]
    pub additional_key: Gradient<B>,
    /// That of the additional values.
    #[extension_type]
    pub additional_value: Gradient<B>,
    /// That of the bias.
    #[extension_type]
    pub bias: Gradient<B>,
}

/// The gradient of a tensor.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub enum Gradient<B: Backend> {
    /// Nobody asked for it: it was not computed, and has no memory.
    Unwanted,
    /// It has the shape of the tensor.
    Of(FloatTensor<B>),
}

/// What an attention gives, or the gradients of that.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct AttentionResults<B: Backend> {
    /// `[batch, *space, heads, head_dim_v]`
    pub out: FloatTensor<B>,
    /// `[batch, *space, heads]`
    pub lse: FloatTensor<B>,
}

/// The same results as a weighed sum of attentions takes them, where backward no gradients of them arrive: see `autodiff`.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct Weighed<B: Backend> {
    /// As of [`AttentionResults`].
    pub out: FloatTensor<B>,
    /// As of [`AttentionResults`].
    pub lse: FloatTensor<B>,
    /// The same as `lse`.
    pub delta: FloatTensor<B>,
}

/// What an attention gives, of which a weighed sum is made.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct WeighedResults<B: Backend> {
    /// For all else.
    #[extension_type]
    pub results: AttentionResults<B>,
    /// For the sum.
    #[extension_type]
    pub weighed: Weighed<B>,
}

impl<B: Backend> WeighedResults<B> {
    /// Of a backend that knows no gradients.
    pub(crate) fn new(results: AttentionResults<B>) -> Self {
        let AttentionResults { out, lse } = &results;
        let weighed = Weighed { out: out.clone(), lse: lse.clone(), delta: lse.clone() };
        Self { results, weighed }
    }
}

impl<B: Backend> AttentionInputs<B> {
    /// The tensors by operand.
    pub(crate) fn operands(self) -> Operands<FloatTensor<B>> {
        let additional = match self.additional {
            AdditionalKv::Tokens { key, value } => Some(KeyValue { key, value }),
            AdditionalKv::None => None,
        };
        let bias = match self.bias {
            PositionBias::Relative { bias } => Some(bias),
            PositionBias::None => None,
        };
        Operands { additional, bias, ..Operands::new(self.query, self.key, self.value) }
    }

    /// The other way round.
    pub(crate) fn new(operands: Operands<FloatTensor<B>>) -> Self {
        let Operands { query, key, value, additional, bias } = operands;
        let additional = match additional {
            Some(KeyValue { key, value }) => AdditionalKv::Tokens { key, value },
            None => AdditionalKv::None,
        };
        let bias = match bias {
            Some(bias) => PositionBias::Relative { bias },
            None => PositionBias::None,
        };
        Self { query, key, value, additional, bias }
    }
}

impl<B: Backend> Gradient<B> {
    fn new(gradient: Option<FloatTensor<B>>) -> Self {
        gradient.map_or(Self::Unwanted, Self::Of)
    }

    /// The tensor, if it was wanted.
    pub(crate) fn tensor(self) -> Option<FloatTensor<B>> {
        match self {
            Self::Of(gradient) => Some(gradient),
            Self::Unwanted => None,
        }
    }
}

impl<B: Backend> AttentionGradients<B> {
    pub(crate) fn new(gradients: Operands<Option<FloatTensor<B>>>) -> Self {
        let Operands { query, key, value, additional, bias } = gradients;
        let (more_key, more_value) = additional.map_or((None, None), |more| (more.key, more.value));
        Self {
            query: Gradient::new(query),
            key: Gradient::new(key),
            value: Gradient::new(value),
            additional_key: Gradient::new(more_key),
            additional_value: Gradient::new(more_value),
            bias: Gradient::new(bias.flatten()),
        }
    }
}

impl<B: Backend> AttentionResults<B> {
    /// The tensors by what they are.
    pub(crate) fn outputs(self) -> Outputs<FloatTensor<B>> {
        Outputs { out: self.out, lse: self.lse }
    }

    /// The other way round.
    pub(crate) fn new(Outputs { out, lse }: Outputs<FloatTensor<B>>) -> Self {
        Self { out, lse }
    }
}
