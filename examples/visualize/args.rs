//! The flags.

use std::path::PathBuf;

use burn_natten::{Axis, NeighborhoodOptions};
use burn_natten_kernels::tiling::Tiling;
use burn_natten_kernels::{MAX_RANK, Problem};
use clap::{Args, Parser, Subcommand};

use crate::Failure;
use crate::blocks::Blocks;
use crate::sparse::Sparse;

/// Draw what queries see, and how windows are cut into tiles.
#[derive(Parser, Debug)]
#[command(name = "visualize")]
pub struct Cli {
    /// What to draw
    #[command(subcommand)]
    pub command: Command,
}

/// A picture, or all of the documentation's.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Which keys queries see: one axis as a matrix, two as a plane, three as planes side by side
    See(See),
    /// Which pairs of query tile and key tile are computed, and which of them need a mask
    Tiles(Tiles),
    /// Which blocks of keys the lists of block-sparse attention name, as a matrix
    Blocks(Blocks),
    /// What native sparse attention reads: compressed blocks, selected blocks and a window
    Sparse(Sparse),
    /// The pictures of the documentation, as SVG
    All {
        /// Folder to write them to
        #[arg(default_value = "docs/pictures")]
        folder: PathBuf,
    },
}

/// Flags of `see`.
#[derive(Args, Debug)]
pub struct See {
    /// The windows
    #[command(flatten)]
    pub windows: Windows,

    /// Coordinates of a query, as in 3,8; may be given several times [default: three of them;
    /// with one axis all queries are drawn]
    #[arg(short, long, value_name = "X,..", value_parser = coordinates)]
    pub query: Vec<Coordinates>,

    /// Where to write the picture, .svg or .png
    #[arg(short, long, value_name = "FILE", default_value = "see.svg")]
    pub output: PathBuf,
}

/// Flags of `tiles`.
#[derive(Args, Debug)]
pub struct Tiles {
    /// The windows
    #[command(flatten)]
    pub windows: Windows,

    /// Queries of a tile, along each axis
    #[arg(long, num_args = 1..=MAX_RANK, required = true, value_parser = at_least_one)]
    pub q_tile: Vec<usize>,

    /// Keys of a tile, along each axis [default: as the queries]
    #[arg(long, num_args = 1..=MAX_RANK, value_parser = at_least_one)]
    pub kv_tile: Vec<usize>,

    /// Where to write the picture, .svg or .png
    #[arg(short, long, value_name = "FILE", default_value = "tiles.svg")]
    pub output: PathBuf,
}

/// Lengths of the axes and parameters of the windows. A parameter that is given once holds for
/// every axis.
#[derive(Args, Debug)]
pub struct Windows {
    /// Tokens along each of one to three axes, slowest first
    #[arg(short, long, num_args = 1..=MAX_RANK, required = true, value_parser = at_least_one)]
    pub length: Vec<usize>,

    /// Keys of a window
    #[arg(short, long, num_args = 1..=MAX_RANK, required = true)]
    pub kernel_size: Vec<usize>,

    /// Neighboring queries that share a window
    #[arg(short, long, num_args = 1..=MAX_RANK, default_value = "1")]
    pub stride: Vec<usize>,

    /// Distance between the keys of a window
    #[arg(short, long, num_args = 1..=MAX_RANK, default_value = "1")]
    pub dilation: Vec<usize>,

    /// Whether queries see only keys up to their own index: 0 or 1
    #[arg(short, long, num_args = 1..=MAX_RANK, default_value = "0", value_parser = truth)]
    pub causal: Vec<bool>,
}

/// Indices of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coordinates(pub Vec<usize>);

impl Windows {
    /// The axes, checked by the library.
    pub fn axes(&self) -> Result<Vec<Axis>, Failure> {
        match self.length.as_slice() {
            [a] => self.checked([*a]),
            [a, b] => self.checked([*a, *b]),
            [a, b, c] => self.checked([*a, *b, *c]),
            other => Err(Failure::Usage(format!(
                "--length: has {} values, must have 1 to {MAX_RANK}",
                other.len()
            ))),
        }
    }

    fn checked<const N: usize>(&self, space: [usize; N]) -> Result<Vec<Axis>, Failure> {
        let options = NeighborhoodOptions::<N>::new(per_axis("--kernel-size", &self.kernel_size)?)
            .with_stride(per_axis("--stride", &self.stride)?)
            .with_dilation(per_axis("--dilation", &self.dilation)?)
            .with_causal(per_axis("--causal", &self.causal)?);
        let axes = options.axes(space).map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(axes.to_vec())
    }
}

impl Tiles {
    /// The tiles for `rank` axes.
    pub fn tiling(&self, rank: usize) -> Result<Tiling, Failure> {
        let kv_tile = if self.kv_tile.is_empty() { &self.q_tile } else { &self.kv_tile };
        let padded = |flag, values: &[usize]| match rank {
            1 => Ok([1, 1, per_axis::<1, _>(flag, values)?[0]]),
            2 => per_axis::<2, _>(flag, values).map(|[y, x]| [1, y, x]),
            _ => per_axis::<3, _>(flag, values),
        };
        Ok(Tiling {
            q_tile: padded("--q-tile", &self.q_tile)?,
            kv_tile: padded("--kv-tile", kv_tile)?,
        })
    }
}

/// A problem over these axes; what has no influence on its tiles is one.
pub fn problem(axes: &[Axis]) -> Problem {
    Problem::new(axes, 1, 1)
}

/// A value for every axis: one holds for all.
pub fn per_axis<const N: usize, T: Copy>(flag: &str, values: &[T]) -> Result<[T; N], Failure> {
    match values {
        [value] => Ok([*value; N]),
        values => values.try_into().map_err(|_| {
            let count = values.len();
            Failure::Usage(format!("{flag}: has {count} values, must have 1 or {N} as --length"))
        }),
    }
}

/// A whole number, and not zero.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("must be a whole number of at least 1".to_string()),
    }
}

fn truth(text: &str) -> Result<bool, String> {
    match text {
        "0" | "false" => Ok(false),
        "1" | "true" => Ok(true),
        _ => Err("must be 0, 1, false or true".to_string()),
    }
}

fn coordinates(text: &str) -> Result<Coordinates, String> {
    let numbers: Result<Vec<usize>, _> = text.split(',').map(|part| part.trim().parse()).collect();
    numbers.map(Coordinates).map_err(|_| "must be whole numbers with commas between".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(flags: &str) -> Result<Vec<Axis>, String> {
        let arguments = ["visualize", "see"].into_iter().chain(flags.split_whitespace());
        let cli = Cli::try_parse_from(arguments).map_err(|error| error.to_string())?;
        match cli.command {
            Command::See(see) => see.windows.axes().map_err(|error| error.to_string()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_single_value_holds_for_every_axis() {
        let axes = axes("-l 9 10 11 -k 3 -s 2 -d 1 2 3 -c 0 0 1").expect("valid");
        let axis = |length, dilation, is_causal| {
            Axis::neighborhood(length, 3)
                .with_stride(2)
                .with_dilation(dilation)
                .with_causal(is_causal)
        };
        assert_eq!(axes, [axis(9, 1, false), axis(10, 2, false), axis(11, 3, true)]);
    }

    #[test]
    fn refusals_name_the_flag_and_the_value() {
        for (flags, part) in [
            ("-l 9 9 -k 3 3 3", "--kernel-size: has 3 values, must have 1 or 2"),
            ("-l 9 -k 10", "kernel_size: axis 0 is 10, must be at most 9"),
            ("-l 0 -k 3", "'0'"),
            ("-l 9 -k 3 -c 2", "'2'"),
            ("-l 9 -k 3 -q 1;2", "'1;2'"),
            ("-l 9", "--kernel-size"),
        ] {
            let text = axes(flags).expect_err(flags);
            assert!(text.contains(part), "{flags}: {text}");
        }
    }
}
