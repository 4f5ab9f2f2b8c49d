//! Packed batches: sequences, images or videos that lie one behind the other, each attended on its own, all by one launch a
//! pass.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{Axis, MAX_RANK, Problem, Shape};

/// A sequence of a packed batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sequence {
    /// What is computed of it, of one sample.
    pub problem: Problem,
    /// Number of its first query among those of all sequences.
    pub query: usize,
    /// Number of its first key.
    pub key: usize,
}

impl Sequence {
    /// Where its queries, or what has their shape, begin in a packed tensor with these strides, in elements, and the strides that
    /// they have in their own space.
    pub fn queries_in(&self, packed: [usize; 5]) -> (usize, [usize; 5]) {
        part(self.query, self.problem.axes.map(|axis| axis.queries), packed)
    }

    /// The same of its keys.
    pub fn keys_in(&self, packed: [usize; 5]) -> (usize, [usize; 5]) {
        part(self.key, self.problem.axes.map(|axis| axis.keys), packed)
    }
}

fn part(
    first: usize,
    [_, y, x]: [usize; MAX_RANK],
    [_, _, _, token, head]: [usize; 5],
) -> (usize, [usize; 5]) {
    (first * token, [0, y * x * token, x * token, token, head])
}

/// Sequences that one launch computes: of problems that differ in their axes alone, along which they agree in what is causal.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed {
    sequences: Arc<[Sequence]>,
    line: Problem,
    known: Known,
}

/// What launches have found out about a packed batch, which later ones of it, or of a clone, need not find out again.
#[derive(Clone, Default)]
pub(crate) struct Known(Arc<Mutex<Vec<Arc<dyn Any + Send + Sync>>>>);

/// Most that is kept, what was not used for longest out first: of each pass a choice and a table for each of its kernels, on a few streams.
const MOST: usize = 32;

impl Known {
    /// What `make` gives for a key, or gave.
    pub fn find<K, T>(&self, key: K, make: impl FnOnce(&K) -> T) -> Arc<(K, T)>
    where
        K: PartialEq + Send + Sync + 'static,
        T: Send + Sync + 'static,
    {
        let all = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |one: &Arc<dyn Any + Send + Sync>| {
            one.downcast_ref::<(K, T)>().is_some_and(|(of, _)| *of == key)
        };
        let find = || {
            let mut all = all();
            let place = all.iter().position(is_it)?;
            // What was used last stays longest.
            let found = all.remove(place);
            all.push(found.clone());
            Some(found)
        };
        if let Some(Ok(found)) = find().map(Arc::downcast) {
            return found;
        }
        // Not under the lock: it may take its time.
        let made = make(&key);
        let made = Arc::new((key, made));
        let mut all = all();
        if all.len() == MOST {
            all.remove(0);
        }
        all.push(made.clone());
        made
    }
}

/// Batches are equal, whatever is known of them.
impl PartialEq for Known {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Known")
    }
}

impl Packed {
    /// The packed batch of these sequences, of which all tensors together have so many queries and keys.
    ///
    /// Sequences without queries and keys are left out; the others are sorted by falling length of their longest window, so that
    /// what takes longest begins first.
    ///
    /// # Errors
    ///
    /// Why one launch cannot compute them: there are none, some see nothing, or they have additional tokens or a position bias.
    pub fn new(
        sequences: impl IntoIterator<Item = Sequence>,
        [queries, keys]: [usize; 2],
    ) -> Result<Self, &'static str> {
        let is_there = |sequence: &Sequence| {
            let Sequence { problem, .. } = sequence;
            problem.queries() + problem.keys() > 0
        };
        let mut sequences: Vec<_> = sequences.into_iter().filter(is_there).collect();
        let Some(first) = sequences.first() else { return Err("there is no token") };
        let first = first.problem;
        for Sequence { problem, .. } in &sequences {
            let causal = |problem: &Problem| problem.axes.map(|axis| axis.is_causal);
            let alike = problem.with_axes(first.axes) == first && causal(problem) == causal(&first);
            if !alike || problem.batch != 1 {
                return Err("the sequences differ in more than their axes");
            }
            if problem.queries() == 0 || problem.keys() == 0 {
                return Err("a sequence has no queries, or no keys");
            }
            if problem.additional > 0 {
                return Err("there are additional tokens");
            }
            if problem.has_bias {
                return Err("there is a position bias");
            }
        }
        let seen = |sequence: &Sequence| -> usize {
            sequence.problem.axes.iter().map(|axis| axis.kernel_size).product()
        };
        sequences.sort_by_cached_key(|sequence| std::cmp::Reverse(seen(sequence)));
        let line = first.with_axes([Axis::dense(queries, keys, false)]);
        Ok(Self { sequences: sequences.into(), line, known: Known::default() })
    }

    /// The sequences, those that see most first.
    pub fn sequences(&self) -> &[Sequence] {
        &self.sequences
    }

    /// A problem that has the shapes of the packed tensors: all tokens in one line.
    pub fn line(&self) -> &Problem {
        &self.line
    }

    /// Number of axes of the sequence that has most.
    pub fn rank(&self) -> usize {
        self.problems().map(Problem::rank).max().unwrap_or(1)
    }

    /// What is computed of each sequence.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.sequences.iter().map(|sequence| &sequence.problem)
    }

    /// Which axes are causal, of every sequence.
    pub(crate) fn causal(&self) -> [bool; MAX_RANK] {
        self.sequences[0].problem.axes.map(|axis| axis.is_causal)
    }

    /// Some of the sequences, by their numbers, in tensors of all.
    pub(crate) fn only(&self, is_kept: impl Fn(usize) -> bool) -> Self {
        let kept = self.sequences.iter().enumerate().filter(|(number, _)| is_kept(*number));
        let sequences = kept.map(|(_, sequence)| *sequence).collect();
        Self { sequences, line: self.line, known: Known::default() }
    }

    /// What was found out before.
    pub(crate) fn known(&self) -> &Known {
        &self.known
    }

    /// Shape of the packed output.
    pub fn out(&self) -> Shape {
        Shape::out(&self.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(height: usize, width: usize) -> Problem {
        let axis = |length: usize| Axis::neighborhood(length, 3.min(length));
        Problem::new([axis(height), axis(width)], 4, 8)
    }

    fn sequence(problem: Problem, first: usize) -> Sequence {
        Sequence { problem, query: first, key: first }
    }

    #[test]
    fn a_sequence_is_a_view_of_the_packed_tokens() {
        let image = sequence(problem(5, 7), 12);
        // Tokens of 4 heads of 8 elements, cut out of wider ones.
        assert_eq!(image.queries_in([9000, 0, 0, 96, 8]), (12 * 96, [0, 35 * 96, 7 * 96, 96, 8]));
    }

    #[test]
    fn what_sees_most_comes_first_and_what_is_empty_not_at_all() {
        let line = |length, first| {
            let axis = Axis::dense(length, length, true);
            sequence(Problem::new([axis], 2, 16), first)
        };
        let packed = Packed::new([line(3, 0), line(0, 3), line(9, 3), line(5, 12)], [17, 17]);
        let packed = packed.expect("one launch");
        let first: Vec<_> = packed.sequences().iter().map(|sequence| sequence.query).collect();
        assert_eq!(first, [3, 12, 0]);
        assert_eq!((packed.line().queries(), packed.rank()), (17, 1));
    }

    #[test]
    fn what_is_known_of_a_batch_is_known_of_its_clones() {
        let packed = Packed::new([sequence(problem(5, 7), 0)], [35; 2]).expect("one launch");
        assert_eq!(packed.known().find(3_u8, |key| key + 1).1, 4);
        assert_eq!(
            packed.clone().known().find(3_u8, |_| -> u8 { unreachable!("it is known") }).1,
            4_u8
        );
        // Another kind of key, another value of the same key's kind.
        assert_eq!(packed.known().find(3_u16, |_| 7_u8).1, 7);
        assert_eq!(packed.known().find(3_u8, |_| "text").1, "text");
        for key in 0..MOST {
            packed.known().find(key, |key| *key);
        }
        assert_eq!(packed.known().find(3_u8, |_| 9_u8).1, 9, "the oldest are forgotten");
        assert_eq!(packed, packed.only(|_| true));
    }

    #[test]
    fn what_one_launch_cannot_compute_is_said() {
        let refused =
            |sequences: Vec<Sequence>| Packed::new(sequences, [70, 70]).expect_err("is refused");
        assert_eq!(refused(vec![]), "there is no token");
        let [a, b] = [sequence(problem(5, 7), 0), sequence(problem(5, 7), 35)];
        let with = |problem| vec![a, Sequence { problem, ..b }];
        let other = "the sequences differ in more than their axes";
        assert_eq!(refused(with(b.problem.with_scale(0.5))), other);
        assert_eq!(refused(with(b.problem.with_batch(2))), other);
        let causal = b.problem.axes.map(|axis| axis.with_causal(true));
        assert_eq!(refused(with(b.problem.with_axes(causal))), other);
        let blind = Problem::new([Axis::dense(5, 0, false)], 4, 8);
        assert_eq!(refused(with(blind)), "a sequence has no queries, or no keys");
        let more = a.problem.with_additional(3);
        assert_eq!(refused(vec![sequence(more, 0)]), "there are additional tokens");
        let biased = a.problem.with_bias(true);
        assert_eq!(refused(vec![sequence(biased, 0)]), "there is a position bias");
    }
}
