//! The best of some scores.

use crate::backend::flex::simd::Real;

/// Memory of a choice.
pub(super) struct Best<A> {
    /// The best so far, the best one first.
    scores: Vec<(A, usize)>,
    numbers: Vec<usize>,
}

impl<A> Default for Best<A> {
    fn default() -> Self {
        Self { scores: Vec::new(), numbers: Vec::new() }
    }
}

impl<A: Real> Best<A> {
    /// The numbers of the `count` greatest scores, ascending; the lower number wins among equals. Numbers come in ascending
    /// order. What is NaN comes last.
    pub fn of(
        &mut self,
        scores: impl Iterator<Item = (usize, A)>,
        count: usize,
    ) -> std::iter::Copied<std::slice::Iter<'_, usize>> {
        self.scores.clear();
        for (number, score) in scores {
            let score = if score.is_nan() { A::neg_infinity() } else { score };
            if self.scores.len() == count {
                match self.scores.last() {
                    Some((least, _)) if score > *least => self.scores.pop(),
                    _ => continue,
                };
            }
            let place = self.scores.partition_point(|(other, _)| *other >= score);
            self.scores.insert(place, (score, number));
        }
        self.numbers.clear();
        self.numbers.extend(self.scores.iter().map(|(_, number)| *number));
        self.numbers.sort_unstable();
        self.numbers.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(scores: &[f32], count: usize) -> Vec<usize> {
        Best::default().of(scores.iter().copied().enumerate(), count).collect()
    }

    #[test]
    fn the_lower_number_wins_among_equals() {
        assert_eq!(best(&[1.0, 3.0, 2.0, 3.0, 3.0], 2), [1, 3]);
        assert_eq!(best(&[0.0; 5], 3), [0, 1, 2]);
        assert_eq!(best(&[5.0, 1.0, 4.0], 2), [0, 2]);
    }

    #[test]
    fn too_few_are_all_chosen() {
        assert_eq!(best(&[1.0, 2.0], 5), [0, 1]);
        assert!(best(&[1.0, 2.0], 0).is_empty());
        assert_eq!(best(&[f32::NAN, -1.0, f32::NAN], 2), [0, 1]);
    }
}
