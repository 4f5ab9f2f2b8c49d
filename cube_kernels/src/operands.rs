//! The tensors of an attention, and something about each of them.
//!
//! What is said of every tensor is said of [`Operands`]: views, shapes, gradients, or whether one is wanted. A further
//! operand is a field here and an [`Operand`], and the compiler shows where it has to be thought of.

use crate::{MAX_RANK, Problem};

/// A tensor that an attention reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// The queries.
    Query,
    /// The keys.
    Key,
    /// The values.
    Value,
    /// The keys of the additional tokens.
    AdditionalKey,
    /// The values of the additional tokens.
    AdditionalValue,
    /// The relative position bias.
    Bias,
}

impl Operand {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Query,
        Self::Key,
        Self::Value,
        Self::AdditionalKey,
        Self::AdditionalValue,
        Self::Bias,
    ];

    /// What an error calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Key => "key",
            Self::Value => "value",
            Self::AdditionalKey => "additional key",
            Self::AdditionalValue => "additional value",
            Self::Bias => "bias",
        }
    }

    /// What an error calls its gradient.
    pub fn gradient_name(self) -> &'static str {
        match self {
            Self::Query => "dq",
            Self::Key => "dk",
            Self::Value => "dv",
            Self::AdditionalKey => "additional dk",
            Self::AdditionalValue => "additional dv",
            Self::Bias => "dbias",
        }
    }

    /// Whether a problem has it.
    pub fn is_in(self, problem: &Problem) -> bool {
        match self {
            Self::Query | Self::Key | Self::Value => true,
            Self::AdditionalKey | Self::AdditionalValue => problem.additional > 0,
            Self::Bias => problem.has_bias,
        }
    }

    /// Its shape in a problem.
    pub fn shape(self, problem: &Problem) -> Shape {
        let queries = problem.axes.map(|axis| axis.queries);
        let keys = problem.axes.map(|axis| axis.keys);
        let additional = [1, 1, problem.additional];
        let Problem { batch, heads, heads_kv, head_dim, head_dim_v, .. } = *problem;
        match self {
            Self::Query => Shape { batch, tokens: queries, heads, dim: head_dim },
            Self::Key => Shape { batch, tokens: keys, heads: heads_kv, dim: head_dim },
            Self::Value => Shape { batch, tokens: keys, heads: heads_kv, dim: head_dim_v },
            Self::AdditionalKey => {
                Shape { batch, tokens: additional, heads: heads_kv, dim: head_dim }
            }
            Self::AdditionalValue => {
                Shape { batch, tokens: additional, heads: heads_kv, dim: head_dim_v }
            }
            // In memory heads come first, and it is the same for all samples.
            Self::Bias => Shape { batch: 1, tokens: problem.bias_extents(), heads, dim: 1 },
        }
    }

    /// Elements between neighbors along [`Shape::lengths`] in a contiguous tensor. The heads of a bias come first.
    pub fn strides(self, problem: &Problem) -> [usize; 5] {
        let shape = self.shape(problem);
        match self {
            Self::Bias => {
                let [z, y, x] = shape.tokens;
                [z * y * x * shape.heads, y * x, x, 1, z * y * x]
            }
            _ => shape.strides(),
        }
    }
}

/// The shape of a tensor, heads last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Samples.
    pub batch: usize,
    /// Tokens along each axis, slowest first.
    pub tokens: [usize; MAX_RANK],
    /// Heads.
    pub heads: usize,
    /// Length of a vector.
    pub dim: usize,
}

impl Shape {
    /// The shape of the output of a problem.
    pub fn out(problem: &Problem) -> Self {
        Self { dim: problem.head_dim_v, ..Operand::Query.shape(problem) }
    }

    /// The shape of the logsumexp of a problem, as one of vectors of one element.
    pub fn lse(problem: &Problem) -> Self {
        Self { dim: 1, ..Operand::Query.shape(problem) }
    }

    /// The shape of attention weights, as one of vectors of a slot for each token and each additional one.
    pub fn weights(problem: &Problem) -> Self {
        let dim = problem.slots() + problem.additional;
        Self { dim, ..Operand::Query.shape(problem) }
    }

    /// Lengths of all axes but that of the vectors.
    pub fn lengths(&self) -> [usize; 5] {
        let [z, y, x] = self.tokens;
        [self.batch, z, y, x, self.heads]
    }

    /// Elements between neighbors along [`lengths`](Self::lengths) in a contiguous tensor.
    pub fn strides(&self) -> [usize; 5] {
        let [_, y, x] = self.tokens;
        let token = self.heads * self.dim;
        let sample = self.tokens.iter().product::<usize>() * token;
        [sample, y * x * token, x * token, token, self.dim]
    }

    /// Elements.
    pub fn elements(&self) -> usize {
        self.batch * self.strides()[0]
    }

    /// The strides of a tensor with these strides, its tokens taken as one axis, the fastest; `None` where they lie in no
    /// such order.
    pub fn line(&self, [batch, z, y, x, head]: [usize; 5]) -> Option<[usize; 5]> {
        // From the fastest to the slowest axis that has neighbors.
        let (mut step, mut length) = (0, 1);
        for (stride, size) in [(x, self.tokens[2]), (y, self.tokens[1]), (z, self.tokens[0])] {
            if size == 1 {
                continue;
            }
            if length > 1 && stride != step * length {
                return None;
            }
            step = if length == 1 { stride } else { step };
            length *= size;
        }
        Some([batch, 0, 0, step, head])
    }

    /// Elements from the first one to behind the last one of a tensor with these strides.
    pub fn extent(&self, strides: [usize; 5]) -> usize {
        if self.elements() == 0 {
            return 0;
        }
        let last: usize =
            strides.iter().zip(self.lengths()).map(|(stride, length)| stride * (length - 1)).sum();
        last + self.dim
    }
}

/// Something for each tensor that an attention reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operands<T> {
    /// For the queries, `[batch, queries, heads, head_dim]`.
    pub query: T,
    /// For the keys, `[batch, keys, heads_kv, head_dim]`.
    pub key: T,
    /// For the values, `[batch, keys, heads_kv, head_dim_v]`.
    pub value: T,
    /// For the additional tokens: there if, and only if, [`Problem::additional`] is not zero.
    pub additional: Option<KeyValue<T>>,
    /// For the relative position bias, `[heads, 2 * kernel_size - 1, ..]`: there if, and only if,
    /// [`Problem::has_bias`].
    pub bias: Option<T>,
}

/// Something for keys and for values `[batch, tokens, heads_kv, head_dim(_v)]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyValue<T> {
    /// For the keys.
    pub key: T,
    /// For the values.
    pub value: T,
}

impl<T> KeyValue<T> {
    /// What `of` makes of both.
    pub fn map<U>(self, mut of: impl FnMut(T) -> U) -> KeyValue<U> {
        KeyValue { key: of(self.key), value: of(self.value) }
    }

    /// The same by reference.
    pub fn as_ref(&self) -> KeyValue<&T> {
        KeyValue { key: &self.key, value: &self.value }
    }
}

impl Operands<()> {
    /// A place for each operand of a problem.
    pub fn of(problem: &Problem) -> Self {
        let additional = (problem.additional > 0).then_some(KeyValue { key: (), value: () });
        let bias = problem.has_bias.then_some(());
        Self { query: (), key: (), value: (), additional, bias }
    }
}

impl<T> Operands<T> {
    /// Without additional tokens and without a bias.
    pub fn new(query: T, key: T, value: T) -> Self {
        Self { query, key, value, additional: None, bias: None }
    }

    /// What `of` makes of each.
    pub fn map<U>(self, mut of: impl FnMut(Operand, T) -> U) -> Operands<U> {
        Operands {
            query: of(Operand::Query, self.query),
            key: of(Operand::Key, self.key),
            value: of(Operand::Value, self.value),
            additional: self.additional.map(|KeyValue { key, value }| KeyValue {
                key: of(Operand::AdditionalKey, key),
                value: of(Operand::AdditionalValue, value),
            }),
            bias: self.bias.map(|bias| of(Operand::Bias, bias)),
        }
    }

    /// What `of` makes of each, or the first error.
    pub fn try_map<U, E>(
        self,
        mut of: impl FnMut(Operand, T) -> Result<U, E>,
    ) -> Result<Operands<U>, E> {
        Ok(Operands {
            query: of(Operand::Query, self.query)?,
            key: of(Operand::Key, self.key)?,
            value: of(Operand::Value, self.value)?,
            additional: match self.additional {
                Some(KeyValue { key, value }) => Some(KeyValue {
                    key: of(Operand::AdditionalKey, key)?,
                    value: of(Operand::AdditionalValue, value)?,
                }),
                None => None,
            },
            bias: self.bias.map(|bias| of(Operand::Bias, bias)).transpose()?,
        })
    }

    /// Both for each; what is optional where both have it.
    pub fn zip<U>(self, other: Operands<U>) -> Operands<(T, U)> {
        let additional = self
            .additional
            .zip(other.additional)
            .map(|(a, b)| KeyValue { key: (a.key, b.key), value: (a.value, b.value) });
        Operands {
            query: (self.query, other.query),
            key: (self.key, other.key),
            value: (self.value, other.value),
            additional,
            bias: self.bias.zip(other.bias),
        }
    }

    /// The same by reference.
    pub fn as_ref(&self) -> Operands<&T> {
        Operands {
            query: &self.query,
            key: &self.key,
            value: &self.value,
            additional: self.additional.as_ref().map(KeyValue::as_ref),
            bias: self.bias.as_ref(),
        }
    }

    /// All of them, in the order of [`Operand`].
    pub fn iter(&self) -> impl Iterator<Item = (Operand, &T)> {
        let mut all = Vec::with_capacity(Operand::ALL.len());
        self.as_ref().map(|operand, item| all.push((operand, item)));
        all.into_iter()
    }
}

impl<T: Clone> Operands<T> {
    /// Every one of them, where some may be left out: all gradients are wanted.
    pub fn every(&self) -> Operands<Option<T>> {
        self.as_ref().map(|_, item| Some(item.clone()))
    }
}

/// Something for each result of a forward pass, or for their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outputs<T> {
    /// For the output, `[batch, queries, heads, head_dim_v]`.
    pub out: T,
    /// For the logsumexp, `[batch, queries, heads]`, `f32`.
    pub lse: T,
}

impl<T> Outputs<T> {
    /// What `of` makes of both.
    pub fn map<U>(self, mut of: impl FnMut(T) -> U) -> Outputs<U> {
        Outputs { out: of(self.out), lse: of(self.lse) }
    }

    /// The same by reference.
    pub fn as_ref(&self) -> Outputs<&T> {
        Outputs { out: &self.out, lse: &self.lse }
    }
}

/// What a backward pass reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved<T> {
    /// What the forward pass read.
    pub operands: Operands<T>,
    /// What it gave.
    pub outputs: Outputs<T>,
    /// The gradients of what it gave.
    pub gradients: Outputs<T>,
    /// Whether the output counts. Where it does not, it is as if it were zero: the gradient of the logsumexp is then `-rowsum(dout * out)` of
    /// an output that the caller has multiplied already, and nobody has to read twice. Only native kernels know it; the others fail with
    /// [`KernelError::Layout`](crate::KernelError::Layout).
    pub has_out: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Axis;

    #[test]
    fn extents_end_behind_the_last_element() {
        let shape = Shape { batch: 2, tokens: [1, 3, 5], heads: 4, dim: 8 };
        assert_eq!(shape.extent(shape.strides()), shape.elements());
        assert_eq!(shape.extent([0; 5]), 8);
        // An axis of one element takes no step.
        let mut strides = shape.strides();
        strides[1] = 1 << 40;
        assert_eq!(shape.extent(strides), shape.elements());
        assert_eq!(Shape { batch: 0, ..shape }.extent([9; 5]), 0);
    }

    #[test]
    fn tokens_make_a_line_where_each_axis_continues_the_next() {
        let of = |strides, tokens| {
            Shape { batch: 1, tokens, heads: 4, dim: 3 }.line(strides).map(|strides| strides[3])
        };
        assert_eq!(of([0, 300, 60, 12, 3], [2, 5, 5]), Some(12));
        // A crop along the fastest axis, and two axes exchanged.
        assert_eq!(of([0, 300, 60, 12, 3], [2, 5, 4]), None);
        assert_eq!(of([0, 300, 12, 60, 3], [2, 5, 5]), None);
        // What has no neighbors may have any stride.
        assert_eq!(of([0, 7, 60, 12, 3], [1, 5, 5]), Some(12));
        assert_eq!(of([0, 300, 60, 7, 3], [2, 5, 1]), Some(60));
        assert_eq!(of([0, 1, 2, 3, 3], [1, 1, 1]), Some(0));
    }

    #[test]
    fn every_operand_has_its_place() {
        let problem = Problem::new([Axis::dense(5, 7, false)], 4, 8)
            .with_heads_kv(2)
            .with_head_dim_v(6)
            .with_additional(3);
        let additional = Some(KeyValue { key: 3, value: 4 });
        let operands = Operands { additional, bias: Some(5), ..Operands::new(0, 1, 2) };
        let places: Vec<_> =
            operands.iter().map(|(operand, place)| (operand as usize, *place)).collect();
        assert_eq!(places, (0..6).map(|place| (place, place)).collect::<Vec<_>>());
        let parts = |problem: &Problem| Operand::ALL.map(|operand| operand.is_in(problem));
        let whole = problem.with_bias(true);
        assert_eq!((parts(&whole), Operands::of(&whole).iter().count()), ([true; 6], 6));
        let without = problem.with_additional(0);
        assert_eq!(parts(&without), [true, true, true, false, false, false]);
        assert_eq!(Operands::of(&without).iter().count(), 3);
        let elements = operands.map(|operand, _| operand.shape(&problem).elements());
        assert_eq!((elements.query, elements.key, elements.value), (160, 112, 84));
        assert_eq!(elements.additional, Some(KeyValue { key: 48, value: 36 }));
        assert_eq!(elements.bias, Some(4 * 13));
        let plane = Problem::new([Axis::neighborhood(5, 3), Axis::neighborhood(7, 4)], 4, 8);
        assert_eq!(Operand::Bias.strides(&plane), [4 * 35, 35, 7, 1, 35]);
    }
}
