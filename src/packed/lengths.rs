use std::iter::repeat_n;
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::AttentionError;

/// How many tokens each sequence of a packed batch has.
///
/// ```rust
/// use burn_natten::Lengths;
///
/// let lengths = Lengths::new([3, 0, 5]);
/// assert_eq!((lengths.len(), lengths.tokens()), (3, 8));
/// // The same, as FlashAttention has it.
/// assert_eq!(Lengths::from_cumulative(&[0, 3, 3, 8]), Ok(lengths.clone()));
///
/// // Of other keys than queries.
/// let cross = lengths.with_keys([10, 7, 0]);
/// assert_eq!((cross.tokens(), cross.key_tokens()), (8, 17));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lengths {
    queries: Arc<[usize]>,
    keys: Arc<[usize]>,
}

impl Lengths {
    /// Sequences of these lengths, which may be zero; as many keys as queries.
    pub fn new(lengths: impl Into<Vec<usize>>) -> Self {
        let queries: Arc<[usize]> = lengths.into().into();
        Self { keys: queries.clone(), queries }
    }

    /// The same with other keys than queries: sequence `i` has `lengths[i]` of them. The operators refuse them if there are not as
    /// many as sequences.
    pub fn with_keys(self, lengths: impl Into<Vec<usize>>) -> Self {
        Self { keys: lengths.into().into(), ..self }
    }

    /// Sequences that begin and end at neighboring numbers of `cumulative`, which begins with 0 and never falls.
    ///
    /// # Errors
    ///
    /// [`AttentionError::Parameter`] if it does not.
    pub fn from_cumulative(cumulative: &[usize]) -> Result<Self, AttentionError> {
        let parameter = "cumulative lengths";
        let refused = |got, bound: String| Err(AttentionError::Parameter { parameter, got, bound });
        match cumulative {
            [] => return refused(0, "at least 1 number, the first of them 0".into()),
            [0, ..] => {}
            [first, ..] => return refused(*first, "0 (the first of them)".into()),
        }
        for (index, pair) in cumulative.windows(2).enumerate() {
            if pair[1] < pair[0] {
                let bound =
                    format!("at least {} (number {} after number {index})", pair[0], index + 1);
                return refused(pair[1], bound);
            }
        }
        Ok(Self::new(cumulative.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>()))
    }

    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.queries.len()
    }

    /// Whether there is no sequence.
    pub fn is_empty(&self) -> bool {
        self.queries.is_empty()
    }

    /// Queries of each sequence.
    pub fn queries(&self) -> &[usize] {
        &self.queries
    }

    /// Keys of each sequence.
    pub fn keys(&self) -> &[usize] {
        &self.keys
    }

    /// Queries of all sequences.
    pub fn tokens(&self) -> usize {
        total(self.queries.iter().copied())
    }

    /// Keys of all sequences.
    pub fn key_tokens(&self) -> usize {
        total(self.keys.iter().copied())
    }

    /// The queries of each sequence among the packed ones.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        ranges(self.queries.iter().copied())
    }

    /// Number of the sequence that each query is of, `[total]`.
    pub fn sequences(&self, device: &Device) -> Tensor<1, Int> {
        numbers(
            self.queries.iter().enumerate().flat_map(|(number, length)| repeat_n(number, *length)),
            device,
        )
    }

    /// Where each query stands in its sequence, `[total]`: for rotary embeddings.
    pub fn positions(&self, device: &Device) -> Tensor<1, Int> {
        numbers(self.queries.iter().flat_map(|length| 0..*length), device)
    }
}

/// The sum, or the largest number there is: no tensor has as many tokens.
pub(super) fn total(lengths: impl Iterator<Item = usize>) -> usize {
    lengths.fold(0, usize::saturating_add)
}

/// Where sequences of these lengths lie.
pub(crate) fn ranges(lengths: impl Iterator<Item = usize>) -> impl Iterator<Item = Range<usize>> {
    lengths.scan(0usize, |end, length| {
        let start = *end;
        *end = end.saturating_add(length);
        Some(start..*end)
    })
}

/// Integers on a device.
pub(super) fn numbers(values: impl Iterator<Item = usize>, device: &Device) -> Tensor<1, Int> {
    let values: Vec<i64> = values.map(|value| value as i64).collect();
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cumulative_lengths_begin_with_zero_and_never_fall() {
        let text = |numbers: &[usize]| {
            Lengths::from_cumulative(numbers).expect_err("is to be refused").to_string()
        };
        assert_eq!(
            text(&[]),
            "cumulative lengths: is 0, must be at least 1 number, the first of them 0"
        );
        assert_eq!(text(&[1, 4]), "cumulative lengths: is 1, must be 0 (the first of them)");
        assert_eq!(
            text(&[0, 4, 3]),
            "cumulative lengths: is 3, must be at least 4 (number 2 after number 1)"
        );
        let none = Lengths::from_cumulative(&[0]).expect("no sequence");
        assert!(none.is_empty() && none.tokens() == 0);
        assert_eq!(none, Lengths::new([]));
    }

    #[test]
    fn tokens_know_their_sequence_and_their_place() {
        let device = Device::flex();
        let lengths = Lengths::new([2, 0, 3]);
        let values =
            |tensor: Tensor<1, Int>| tensor.into_data().convert::<i64>().try_to_vec::<i64>();
        assert_eq!(values(lengths.sequences(&device)).expect("is i64"), [0, 0, 2, 2, 2]);
        assert_eq!(values(lengths.positions(&device)).expect("is i64"), [0, 1, 0, 1, 2]);
        assert!(lengths.ranges().eq([0..2, 2..2, 2..5]));
    }
}
