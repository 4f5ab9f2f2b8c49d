//! Checks of packed batches: from lengths or spaces to the problems of their sequences.

use burn_natten_kernels::Problem;

use super::{BATCH, Shapes, TOKENS, Windows, dense, neighborhood, same};
use crate::packed::{Lengths, Spaces, Window};
use crate::{AttentionError, CausalAlignment};

/// Neighboring sequences of a packed batch that have the same shape: a batch of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Run {
    /// What is computed of each, with as many samples as there are sequences.
    pub problem: Problem,
    /// Where their queries begin, and their keys.
    pub query: usize,
    pub key: usize,
    /// Number of the first sequence.
    pub sequence: usize,
    /// Whether they have no keys but the additional ones, which are those of the problem then.
    pub has_additional_alone: bool,
}

/// The runs of packed attention over sequences.
pub(crate) fn sequences(
    shapes: Shapes<'_>,
    lengths: &Lengths,
    causal: Option<CausalAlignment>,
    scale: Option<f64>,
) -> Result<Vec<Run>, AttentionError> {
    let count = lengths.len();
    if lengths.keys().len() != count {
        let (parameter, got) = ("lengths of keys", lengths.keys().len());
        let bound = format!("{count} (lengths of queries)");
        return Err(AttentionError::Parameter { parameter, got, bound });
    }
    let tokens = [lengths.tokens(), lengths.key_tokens()];
    packed(shapes, tokens, count, "lengths", scale)?;
    let mut runs = Runs::default();
    for (number, (queries, keys)) in lengths.queries().iter().zip(lengths.keys()).enumerate() {
        let tokens = [[*queries], [*keys]];
        let one = One::new(shapes, [&tokens[0], &tokens[1]]);
        let problem =
            dense(one.shapes(), causal, scale).map_err(|error| error.of_sequence(number))?;
        let has_additional_alone = *keys == 0 && *queries > 0 && problem.additional > 0;
        let problem = match has_additional_alone {
            true => problem.of_additional(),
            false => problem,
        };
        runs.push(problem, [*queries, *keys], has_additional_alone);
    }
    Ok(runs.all)
}

/// The runs of packed attention over windows.
pub(crate) fn spaces<const N: usize>(
    shapes: Shapes<'_>,
    spaces: &Spaces<N>,
    windows: Windows<'_>,
    scale: Option<f64>,
) -> Result<Vec<Run>, AttentionError> {
    let count = spaces.len();
    if let Some(windows) = spaces.windows()
        && windows.len() != count
    {
        let (parameter, got) = ("windows of spaces", windows.len());
        return Err(AttentionError::Parameter {
            parameter,
            got,
            bound: format!("{count} (spaces)"),
        });
    }
    packed(shapes, [spaces.tokens(); 2], count, "spaces", scale)?;
    let mut runs = Runs::default();
    for (number, space) in spaces.as_slice().iter().enumerate() {
        let of_sequence = |error: AttentionError| error.of_sequence(number);
        let tokens = space.iter().fold(1, |tokens: usize, length| tokens.saturating_mul(*length));
        let problem = if tokens == 0 {
            // No window fits into it, and there is nothing to see.
            let one = One::new(Shapes { bias: None, ..shapes }, [&[0], &[0]]);
            dense(one.shapes(), None, scale)
        } else {
            let one = One::new(shapes, [space, space]);
            let own = spaces.windows().map(|windows| &windows[number]);
            neighborhood(one.shapes(), own.map_or(windows, |own| own.as_windows(windows)), scale)
        };
        runs.push(problem.map_err(of_sequence)?, [tokens; 2], false);
    }
    Ok(runs.all)
}

impl<const N: usize> Window<N> {
    fn as_windows<'a>(&'a self, common: Windows<'a>) -> Windows<'a> {
        let Self { kernel_size, stride, dilation } = self;
        Windows { kernel_size, stride, dilation, is_causal: common.is_causal }
    }
}

/// The checks of what all sequences share, which hold without any, too.
fn packed(
    shapes: Shapes<'_>,
    [queries, keys]: [usize; 2],
    sequences: usize,
    other: &'static str,
    scale: Option<f64>,
) -> Result<(), AttentionError> {
    let tensors = [
        ("query", shapes.query, queries),
        ("key", shapes.key, keys),
        ("value", shapes.value, keys),
    ];
    for (argument, shape, tokens) in tensors {
        same(shape, argument, &[1], "a packed batch", 0, BATCH)?;
        same(shape, argument, &[1, tokens], other, 1, TOKENS)?;
    }
    if let Some((key, value)) = &shapes.additional {
        same(key, "additional_keys", &[sequences], other, 0, "sequences")?;
        same(value, "additional_values", &[sequences], other, 0, "sequences")?;
    }
    let none = One::new(Shapes { bias: None, ..shapes }, [&[0], &[0]]);
    dense(none.shapes(), None, scale).map(|_| ())
}

/// The shapes of one sequence.
struct One<'a> {
    shapes: Shapes<'a>,
    query: Vec<usize>,
    key: Vec<usize>,
    value: Vec<usize>,
}

impl<'a> One<'a> {
    /// Of packed tensors, with these queries and keys along the axes.
    fn new(shapes: Shapes<'a>, [queries, keys]: [&[usize]; 2]) -> Self {
        let of = |packed: &[usize], space: &[usize]| [&[1], space, &packed[2..]].concat();
        let (query, key) = (of(shapes.query, queries), of(shapes.key, keys));
        Self { query, key, value: of(shapes.value, keys), shapes }
    }

    fn shapes(&self) -> Shapes<'_> {
        let sample = |[_, tokens, heads, dim]: [usize; 4]| [1, tokens, heads, dim];
        Shapes {
            query: &self.query,
            key: &self.key,
            value: &self.value,
            additional: self.shapes.additional.map(|(key, value)| (sample(key), sample(value))),
            bias: self.shapes.bias,
        }
    }
}

/// Runs as sequences come.
#[derive(Default)]
struct Runs {
    all: Vec<Run>,
    /// What lies before the next sequence: queries, keys, sequences.
    query: usize,
    key: usize,
    sequence: usize,
}

impl Runs {
    fn push(&mut self, problem: Problem, [queries, keys]: [usize; 2], has_additional_alone: bool) {
        let Self { query, key, sequence, .. } = *self;
        match self.all.last_mut() {
            Some(run)
                if run.problem.with_batch(1) == problem
                    && run.has_additional_alone == has_additional_alone =>
            {
                run.problem.batch += 1;
            }
            _ => self.all.push(Run { problem, query, key, sequence, has_additional_alone }),
        }
        self.query += queries;
        self.key += keys;
        self.sequence += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbors_of_one_shape_are_a_batch() {
        let query = [1, 20, 4, 8];
        let shapes =
            Shapes { query: &query, key: &query, value: &query, additional: None, bias: None };
        let lengths = Lengths::new([5, 5, 0, 0, 10]);
        let runs = sequences(shapes, &lengths, None, None).expect("fits");
        let seen: Vec<_> = runs
            .iter()
            .map(|run| (run.problem.batch, run.problem.queries(), run.query, run.sequence))
            .collect();
        assert_eq!(seen, [(2, 5, 0, 0), (2, 0, 10, 2), (1, 10, 10, 4)]);
        // As many tokens, but another plane.
        let of = Spaces::new([[2, 5], [5, 2]]);
        let windows = Windows {
            kernel_size: &[2, 2],
            stride: &[1, 1],
            dilation: &[1, 1],
            is_causal: &[false, false],
        };
        assert_eq!(spaces(shapes, &of, windows, None).expect("fits").len(), 2);
    }
}
