//! Checks of packed batches: from lengths or spaces to the problems of their sequences.

use burn_natten_kernels::{Axis, Packed, Problem, Sequence};

use super::{BATCH, Shapes, TOKENS, Windows, dense, neighborhood, same, window_axis};
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

/// The runs of packed attention over sequences, and the same for one launch a pass, if there are several and a launch can have them.
pub(crate) fn sequences(
    shapes: Shapes<'_>,
    lengths: &Lengths,
    causal: Option<CausalAlignment>,
    scale: Option<f64>,
) -> Result<(Vec<Run>, Option<Packed>), AttentionError> {
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
        runs.note(problem);
        let problem = match has_additional_alone {
            true => problem.of_additional(),
            false => problem,
        };
        runs.push(problem, [*queries, *keys], has_additional_alone);
    }
    Ok(runs.done())
}

/// The same of packed attention over windows.
pub(crate) fn spaces<const N: usize>(
    shapes: Shapes<'_>,
    spaces: &Spaces<N>,
    windows: Windows<'_>,
    scale: Option<f64>,
) -> Result<(Vec<Run>, Option<Packed>), AttentionError> {
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
            dense(one.shapes(), None, scale).map_err(of_sequence)?
        } else {
            let one = One::new(shapes, [space, space]);
            let own = spaces.windows().map(|windows| &windows[number]);
            let windows = own.map_or(windows, |own| own.as_windows(windows));
            let problem = neighborhood(one.shapes(), windows, scale).map_err(of_sequence)?;
            // Where windows cover the space, a problem has one axis. Kernels for several have them all.
            let axes = (0..N).map(|axis| window_axis(axis, space[axis], windows));
            let axes: Vec<Axis> = axes.collect::<Result<_, _>>().map_err(of_sequence)?;
            runs.note(problem.with_axes(axes));
            problem
        };
        runs.push(problem, [tokens; 2], false);
    }
    Ok(runs.done())
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
    /// All sequences with the axes of their own.
    alone: Vec<Sequence>,
    /// What lies before the next sequence: queries, keys, sequences.
    query: usize,
    key: usize,
    sequence: usize,
}

impl Runs {
    /// Takes down what is computed of the next sequence, in the axes of its space.
    fn note(&mut self, problem: Problem) {
        self.alone.push(Sequence { problem, query: self.query, key: self.key });
    }

    fn done(self) -> (Vec<Run>, Option<Packed>) {
        let Self { all, mut alone, query, key, .. } = self;
        let is_run = |run: &&Run| run.problem.queries() + run.problem.keys() > 0;
        if all.iter().filter(is_run).count() < 2 {
            // A launch already, of kernels that know more of its shape.
            return (all, None);
        }
        if alone.iter().all(|sequence| sequence.problem.is_full() && !sequence.problem.has_bias) {
            for Sequence { problem, .. } in &mut alone {
                let line = Axis::dense(problem.queries(), problem.keys(), false);
                *problem = problem.with_axes([line]);
            }
        }
        (all, Packed::new(alone, [query, key]).ok())
    }

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
        let (runs, packed) = sequences(shapes, &lengths, None, None).expect("fits");
        assert_eq!(packed.map(|packed| packed.sequences().len()), Some(3));
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
        let (runs, packed) = spaces(shapes, &of, windows, None).expect("fits");
        assert_eq!((runs.len(), packed.map(|packed| packed.rank())), (2, Some(2)));
        // Windows that cover their spaces are one axis, also for all of them.
        let of = Spaces::new([[2, 2], [2, 8]]).with_windows([Window::new(2), Window::new([2, 8])]);
        let (runs, packed) = spaces(shapes, &of, windows, None).expect("fits");
        assert_eq!((runs.len(), packed.map(|packed| packed.rank())), (2, Some(1)));
        // Of one shape there is a launch already.
        let of = Spaces::new([[2, 5], [2, 5], [0, 4]]);
        let (runs, packed) = spaces(shapes, &of, windows, None).expect("fits");
        assert!(runs.len() == 2 && packed.is_none());
    }
}
