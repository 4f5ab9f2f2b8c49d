//! The sequences of a packed batch, and how a cube finds the one that it is of.
//!
//! They lie in a table of 32-bit words in memory. It begins with the number of sequences, then comes the number of the first
//! cube of each, and then a record of each: its first row and its first column among the packed tokens, and for every axis that
//! the kernel knows, slowest first, what [`AxisSpace`] has.
//!
//! A cube looks for its sequence by the first cubes, in ten reads for a thousand sequences, which all cubes share. Kernels that
//! take one row at a time have a table of the same form, with first rows in place of first cubes.

// `#[cube]` adds items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::axis::{AXIS_WORDS, AxisSpace};
use super::cut::Cut;
use super::space::{CubeTile, Firsts, Space, SpaceLaunch};
use super::tables::table;
use crate::{KernelError, MAX_RANK, Packed, Problem, Sequence};

/// Words of a record before those of its axes.
const FIRSTS: usize = 2;

/// What a cube is of, and what it owns of that.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Own {
    pub space: Space,
    pub tile: CubeTile,
}

/// What cube number `index` is of: the launch's space, or, where there is a table, one of its sequences.
#[cube]
pub(crate) fn own(
    space: Space,
    sequences: ComptimeOption<&[u32]>,
    index: usize,
    #[comptime] cut: Cut,
) -> Own {
    if comptime!(sequences.is_some()) {
        of_sequence(sequences.unwrap(), space, index, cut)
    } else {
        let firsts = Firsts { row: 0usize, column: 0usize };
        Own { space, tile: space.tile(index, firsts, cut) }
    }
}

/// The sequence that cube number `index` is of, with the heads of the launch's space.
#[cube]
fn of_sequence(table: &[u32], launch: Space, index: usize, #[comptime] cut: Cut) -> Own {
    let found = find(table, index, cut);
    let axes = found.axes;
    let space = Space {
        z: AxisSpace::of_sequence(table, axes, 0usize, cut),
        y: AxisSpace::of_sequence(table, axes, 1usize, cut),
        x: AxisSpace::of_sequence(table, axes, 2usize, cut),
        heads: launch.heads,
        group_size: launch.group_size,
        additional: launch.additional,
        cubes: launch.cubes,
        is_packed: comptime!(true),
    };
    Own { space, tile: space.tile(index - found.first, found.firsts, cut) }
}

/// The record of a sequence.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Found {
    /// The number by which it was found: of its first cube, or its first row.
    pub first: usize,
    pub firsts: Firsts,
    /// Where the words of its axes begin.
    pub axes: usize,
}

/// The last sequence that begins with a number up to `index`.
#[cube]
pub(crate) fn find(table: &[u32], index: usize, #[comptime] cut: Cut) -> Found {
    let count = table[0] as usize;
    let mut number = 0usize;
    let mut end = count;
    while end - number > 1 {
        let middle = (number + end) / 2;
        if table[1 + middle] as usize <= index {
            number = middle;
        } else {
            end = middle;
        }
    }
    let record = 1 + count + number * comptime!(record_words(&cut));
    Found {
        first: table[1 + number] as usize,
        firsts: Firsts { row: table[record] as usize, column: table[record + 1] as usize },
        axes: record + FIRSTS,
    }
}

/// Words of a sequence's record.
fn record_words(cut: &Cut) -> usize {
    FIRSTS + cut.rank * AXIS_WORDS
}

/// What a launch goes through: a problem, or the sequences of a packed batch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Extent<'a> {
    Problem(&'a Problem),
    Packed(&'a Packed),
}

impl<'a> Extent<'a> {
    /// The problem, or one that has the shapes of the packed tensors.
    pub fn problem(self) -> &'a Problem {
        match self {
            Self::Problem(problem) => problem,
            Self::Packed(packed) => packed.line(),
        }
    }
}

/// The cubes of a launch: how many there are, and what tells each what it is of.
pub(crate) struct Cubes {
    pub count: usize,
    pub space: SpaceLaunch,
    pub sequences: Option<Handle>,
}

impl Cubes {
    /// Those of a problem, or of all sequences.
    ///
    /// # Errors
    ///
    /// If there are more cubes or tokens than the table has numbers for.
    pub fn new(client: &Client, extent: Extent<'_>, cut: &Cut) -> Result<Self, KernelError> {
        match extent {
            Extent::Problem(problem) => {
                let count = cut.cubes(problem);
                Ok(Self { count, space: Space::argument(problem, count, cut), sequences: None })
            }
            Extent::Packed(packed) => {
                let (words, count) = sequences(packed, cut)?;
                let space = Space::argument(packed.line(), count, cut);
                Ok(Self { count, space, sequences: Some(table(client, words)) })
            }
        }
    }
}

/// The table of so many sequences, without first numbers and records.
fn begin(count: usize, cut: &Cut) -> Vec<u32> {
    let mut words = Vec::with_capacity(1 + count * (1 + record_words(cut)));
    words.resize(1 + count, count as u32);
    words
}

/// Writes the record of a sequence, and gives the tiles of one of its heads.
fn write(words: &mut Vec<u32>, sequence: &Sequence, cut: &Cut) -> usize {
    words.extend(cut.firsts(sequence).map(|first| first as u32));
    let mut tiles = 1;
    for index in MAX_RANK - cut.rank..MAX_RANK {
        let axis = &sequence.problem.axes[index];
        let of_group = cut.tiles(axis, index);
        tiles *= axis.dilation * of_group;
        AxisSpace::write(words, axis, of_group, cut);
    }
    tiles
}

/// The table for kernels that take one row at a time: sequences in the order of their first rows. Tokens are numbers of 32
/// bits.
pub(crate) fn sequences_of_rows(packed: &Packed, cut: &Cut) -> Vec<u32> {
    let mut all: Vec<_> = packed.sequences().iter().collect();
    all.sort_unstable_by_key(|sequence| cut.firsts(sequence)[0]);
    let mut words = begin(all.len(), cut);
    for (number, sequence) in all.into_iter().enumerate() {
        words[1 + number] = cut.firsts(sequence)[0] as u32;
        write(&mut words, sequence, cut);
    }
    words
}

/// The table of a packed batch, and the cubes that it takes.
pub(crate) fn sequences(packed: &Packed, cut: &Cut) -> Result<(Vec<u32>, usize), KernelError> {
    let all = packed.sequences();
    let heads = cut.heads(packed.line());
    let mut cubes = 0;
    let mut words = begin(all.len(), cut);
    for (number, sequence) in all.iter().enumerate() {
        words[1 + number] = cubes as u32;
        cubes += heads * write(&mut words, sequence, cut);
    }
    // Every other number is one of tokens or smaller.
    let largest = packed.line().queries().max(packed.line().keys()).max(cubes);
    match u32::try_from(largest) {
        Ok(_) => Ok((words, cubes)),
        Err(_) => Err(KernelError::Problem(format!(
            "the sequences have {largest} tokens or cubes, more than {}",
            u32::MAX
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::time::Instant;

    use super::*;
    use crate::Axis;

    /// Images of many sizes, with windows of 7 x 7 that cover the small ones.
    fn images(count: usize) -> Packed {
        let mut token = 0;
        let image = |number: usize| {
            let axis = |length: usize| Axis::neighborhood(length, 7.min(length));
            let problem =
                Problem::new([axis(1 + number * 7 % 90), axis(1 + number * 11 % 70)], 4, 64);
            let sequence = Sequence { problem, query: token, key: token };
            token += problem.queries();
            sequence
        };
        let sequences: Vec<_> = (0..count).map(image).collect();
        Packed::new(sequences, [token; 2]).expect("one launch")
    }

    fn cut(is_inverse: bool) -> Cut {
        Cut {
            rank: 2,
            is_causal: [false; MAX_RANK],
            has_origin: false,
            row_tile: [1, 8, 8],
            column_tile: [1, 4, 16],
            is_inverse,
        }
    }

    #[test]
    fn every_cube_finds_the_sequence_whose_tiles_it_owns() {
        let packed = images(40);
        for cut in [cut(false), cut(true)] {
            let (words, cubes) = sequences(&packed, &cut).expect("few cubes");
            let count = packed.sequences().len();
            assert_eq!(words.len(), 1 + count * (1 + record_words(&cut)));
            assert_eq!(words[0] as usize, count);
            let mut first = 0;
            for (number, Sequence { problem, query, .. }) in packed.sequences().iter().enumerate() {
                assert_eq!(words[1 + number] as usize, first);
                first += cut.cubes(problem);
                let record = &words[1 + count + number * record_words(&cut)..];
                assert_eq!(record[..2], [*query as u32; 2]);
                let Axis { queries, keys, kernel_size, .. } = problem.axes[1];
                assert_eq!(record[2..5], [queries as u32, keys as u32, kernel_size as u32]);
            }
            assert_eq!(cubes, first);
        }
    }

    #[test]
    fn more_cubes_than_numbers_are_refused() {
        let axis = Axis::dense(1 << 30, 1 << 30, true);
        let problem = Problem::new([axis], 1024, 64);
        let sequence = Sequence { problem, query: 0, key: 0 };
        let packed = Packed::new([sequence], [1 << 30; 2]).expect("one launch");
        let result = sequences(&packed, &Cut { rank: 1, row_tile: [1, 1, 64], ..cut(false) });
        let error = result.expect_err("the cubes are too many").to_string();
        assert!(error.contains("17179869184 tokens or cubes"), "{error}");
    }

    /// Printed with `--nocapture`: machines differ.
    #[test]
    fn how_long_a_table_takes() {
        let (packed, cut, rounds) = (images(1000), cut(false), 20);
        let start = Instant::now();
        for _ in 0..rounds {
            black_box(sequences(black_box(&packed), &cut)).expect("few cubes");
        }
        println!("a table of 1000 sequences: {:?}", start.elapsed() / rounds);
    }
}
