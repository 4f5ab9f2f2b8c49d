//! Which blocks of keys each block of queries is to see, as block-sparse attention is told.

use std::path::PathBuf;

use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_natten::NeighborhoodOptions;
use burn_natten::block_lists::{self, BlockGrid};
use burn_natten_kernels::MAX_RANK;
use clap::{Args, ValueEnum};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::Failure;
use crate::args::{at_least_one, per_axis};
use crate::drawing::{Anchor, Drawing, HUES, INK};
use crate::see;
use crate::words::{self, SMALL};

/// The most blocks of queries, or of keys, that are drawn.
const MOST: usize = 256;

/// Flags of `blocks`.
#[derive(Args, Clone, Debug)]
pub struct Blocks {
    /// Tokens along each of one to three axes, slowest first
    #[arg(short, long, num_args = 1..=MAX_RANK, required = true, value_parser = at_least_one)]
    pub length: Vec<usize>,

    /// Tokens of a block, along each axis
    #[arg(short, long, num_args = 1..=MAX_RANK, required = true, value_parser = at_least_one)]
    pub block: Vec<usize>,

    /// What the lists hold
    #[arg(short, long, value_enum, default_value_t = Pattern::Sliding)]
    pub pattern: Pattern,

    /// Of sliding: blocks to either side along each axis
    #[arg(long, default_value_t = 1)]
    pub radius: usize,

    /// Of windows: keys of a window along each axis
    #[arg(short, long, num_args = 1..=MAX_RANK, default_value = "7")]
    pub kernel_size: Vec<usize>,

    /// Of random and top: entries of a list
    #[arg(short, long, default_value_t = 4, value_parser = at_least_one)]
    pub num_selected: usize,

    /// Of random: the seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Where to write the picture, .svg or .png
    #[arg(short, long, value_name = "FILE", default_value = "blocks.svg")]
    pub output: PathBuf,
}

/// What lists hold.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// All blocks
    Dense,
    /// Those around the block of queries
    Sliding,
    /// Those that windows of neighborhood attention reach into
    Window,
    /// Any
    Random,
    /// Those whose mean is the most similar to that of the queries
    Top,
}

/// The lists of the flags as a matrix: a row for each block of queries, a column for each of keys.
pub fn draw(flags: &Blocks) -> Result<Drawing, Failure> {
    match flags.length.len() {
        1 => of_rank::<1>(flags),
        2 => of_rank::<2>(flags),
        _ => of_rank::<3>(flags),
    }
}

fn of_rank<const N: usize>(flags: &Blocks) -> Result<Drawing, Failure> {
    let length = per_axis::<N, _>("--length", &flags.length)?;
    let block = per_axis::<N, _>("--block", &flags.block)?;
    let grid = BlockGrid::new(length, block);
    let blocks = grid.query_blocks();
    if blocks > MOST {
        let text = format!("--block: makes {blocks} blocks, must make at most {MOST}");
        return Err(Failure::Usage(text));
    }
    let device = Device::flex();
    let (lists, title) = match flags.pattern {
        Pattern::Dense => (block_lists::dense(&grid, [1, 1], &device), "dense".to_string()),
        Pattern::Sliding => {
            let lists = block_lists::sliding(&grid, flags.radius, [1, 1], &device);
            (lists, format!("sliding, radius {}", flags.radius))
        }
        Pattern::Window => {
            let kernel_size = per_axis::<N, _>("--kernel-size", &flags.kernel_size)?;
            let windows = NeighborhoodOptions::<N>::new(kernel_size);
            let lists = block_lists::window(&grid, &windows, [1, 1], &device)
                .map_err(|error| Failure::Usage(error.to_string()))?;
            (lists, format!("windows of {}", words::product(&kernel_size)))
        }
        Pattern::Random => {
            let lists = block_lists::top_n(random(blocks, flags.seed), flags.num_selected);
            (lists, format!("random, {} each", flags.num_selected))
        }
        Pattern::Top => {
            let lists = block_lists::top_n(similarity(blocks), flags.num_selected);
            (lists, format!("the best {}", flags.num_selected))
        }
    };
    block_lists::validate_blocks(&lists, grid.key_blocks())
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let subtitle =
        format!("{} tokens in blocks of {}", words::product(&length), words::product(&block));
    matrix(&title, &subtitle, blocks, &entries(lists)?)
}

/// Scores that the seed draws. Burn's own draws are those of all threads.
fn random(blocks: usize, seed: u64) -> Tensor<4> {
    let mut random = StdRng::seed_from_u64(seed);
    let scores: Vec<f32> = (0..blocks * blocks).map(|_| random.random_range(0.0..1.0)).collect();
    Tensor::from_data(TensorData::new(scores, [1, blocks, 1, blocks]), &Device::flex())
}

/// Products of means of blocks in a text that comes back to its themes, each time a little otherwise.
fn similarity(blocks: usize) -> Tensor<4> {
    let mean = |block: usize| {
        let at = block as f32;
        [(at * 1.3).cos(), (at * 1.3).sin(), 0.3 * (at * 0.11).cos(), 0.3 * (at * 0.11).sin()]
    };
    let means: Vec<f32> = (0..blocks).flat_map(mean).collect();
    let means = Tensor::<1>::from_floats(means.as_slice(), &Device::flex()).reshape([blocks, 4]);
    means.clone().matmul(means.transpose()).reshape([1, blocks, 1, blocks])
}

/// Lists of the first sample and head.
pub fn entries(lists: Tensor<4, Int>) -> Result<Vec<Vec<i64>>, Failure> {
    let [_, rows, _, entries] = lists.dims();
    let lists = lists.narrow(0, 0, 1).narrow(2, 0, 1).into_data().convert::<i64>();
    let numbers: Vec<i64> = lists
        .try_to_vec()
        .map_err(|error| Failure::Usage(format!("the lists cannot be read: {error:?}")))?;
    Ok((0..rows).map(|row| numbers[row * entries..][..entries].to_vec()).collect())
}

fn matrix(
    title: &str,
    subtitle: &str,
    blocks: usize,
    lists: &[Vec<i64>],
) -> Result<Drawing, Failure> {
    let (mut drawing, grid) = see::panel(title, subtitle, blocks, blocks, [34.0, 50.0]);
    let is_listed = |row: usize, column: usize| lists[row].contains(&(column as i64));
    grid.fill(&mut drawing, HUES[0], 1.0, is_listed);
    grid.rule(&mut drawing);
    let bounds = grid.bounds();
    let (x, y) = (bounds.x + bounds.width / 2.0, bounds.y + bounds.height / 2.0);
    let bottom = bounds.y + bounds.height + 16.0;
    drawing.label("block of keys", [x, bottom], SMALL + 1.0, INK, Anchor::Middle);
    drawing.label_upwards("block of queries", [bounds.x - 10.0, y], SMALL + 1.0, INK);
    drawing.reach([x, bottom]);
    Ok(drawing)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn flags(text: &str) -> Blocks {
        let arguments = ["visualize", "blocks"].into_iter().chain(text.split_whitespace());
        match Cli::try_parse_from(arguments).expect("is valid").command {
            Command::Blocks(flags) => flags,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_pattern_is_drawn_on_every_rank() {
        for shape in ["-l 60 -b 8", "-l 9 10 -b 2 3", "-l 4 5 6 -b 2"] {
            for pattern in ["dense", "sliding", "window -k 3", "random", "top"] {
                draw(&flags(&format!("{shape} -p {pattern}"))).expect("is drawn");
            }
        }
    }

    #[test]
    fn refusals_name_the_flag_and_the_value() {
        for (text, expected) in [
            ("-l 9 9 -b 3 3 3", "--block: has 3 values, must have 1 or 2 as --length"),
            ("-l 999 -b 3", "--block: makes 333 blocks, must make at most 256"),
            ("-l 9 -b 3 -p window -k 10", "kernel_size: axis 0 is 10, must be at most 9"),
        ] {
            let error = draw(&flags(text)).expect_err(text).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
