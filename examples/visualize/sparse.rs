//! What queries of native sparse attention read, in each of its branches.

use std::path::PathBuf;

use burn::tensor::{Device, Tensor};
use burn_natten::{
    AttentionError, NativeSparseAttentionOptions, Pooling, try_compress_tokens, try_select_blocks,
};
use clap::Args;

use crate::Failure;
use crate::args::at_least_one;
use crate::blocks::entries;
use crate::drawing::{Anchor, Color, Drawing, HUES, INK};
use crate::see;
use crate::words::{self, SMALL};

/// The longest sequence that is drawn.
const LONGEST: usize = 256;
/// Themes that the sequence comes back to.
const THEMES: usize = 4;
/// Tokens of a theme, before the next one.
const SPAN: usize = 10;

/// Flags of `sparse`.
#[derive(Args, Clone, Debug)]
pub struct Sparse {
    /// Tokens
    #[arg(short, long, default_value_t = 96, value_parser = at_least_one)]
    pub length: usize,

    /// Tokens of a compressed block
    #[arg(long, default_value_t = 8)]
    pub cmp_block: usize,

    /// Tokens from one compressed block to the next
    #[arg(long, default_value_t = 4)]
    pub cmp_stride: usize,

    /// Tokens of a block that can be selected
    #[arg(long, default_value_t = 8)]
    pub slc_block: usize,

    /// Blocks that are selected
    #[arg(short, long, default_value_t = 5)]
    pub num_selected: usize,

    /// Queries that share a list of blocks
    #[arg(long, default_value_t = 1)]
    pub query_tile: usize,

    /// Tokens of the window
    #[arg(short, long, default_value_t = 12)]
    pub window: usize,

    /// Where to write the picture, .svg or .png
    #[arg(short, long, value_name = "FILE", default_value = "sparse.svg")]
    pub output: PathBuf,
}

impl Default for Sparse {
    fn default() -> Self {
        Self {
            length: 96,
            cmp_block: 8,
            cmp_stride: 4,
            slc_block: 8,
            num_selected: 5,
            query_tile: 1,
            window: 12,
            output: PathBuf::from("sparse.svg"),
        }
    }
}

/// A panel for each branch: a row for each query, and a column for each compressed block or token.
pub fn draw(flags: &Sparse) -> Result<Vec<Drawing>, Failure> {
    let tokens = flags.length;
    if tokens > LONGEST {
        let text = format!("--length: is {tokens}, must be at most {LONGEST}");
        return Err(Failure::Usage(text));
    }
    let options = NativeSparseAttentionOptions::new()
        .with_cmp_block(flags.cmp_block)
        .with_cmp_stride(flags.cmp_stride)
        .with_slc_block(flags.slc_block)
        .with_num_selected(flags.num_selected)
        .with_query_tile(flags.query_tile)
        .with_window(flags.window)
        .with_scale(4.0);
    let features = features(tokens);
    let keys = try_compress_tokens(features.clone(), &Pooling::Mean, &options).map_err(usage)?;
    let compressed = keys.dims()[1];
    let lists = try_select_blocks(features, keys, tokens, &options).map_err(usage)?;
    let lists = entries(lists.blocks)?;
    let is_complete = |query: usize, block: usize| block < options.compressed_blocks(query + 1);
    let is_selected = |query: usize, token: usize| {
        let block = (token / flags.slc_block) as i64;
        token <= query && lists[query / flags.query_tile].contains(&block)
    };
    let is_recent = |query: usize, token: usize| token <= query && query < token + flags.window;
    Ok(vec![
        panel("compressed", "compressed block", [tokens, compressed], HUES[0], is_complete),
        panel("selected", "key", [tokens; 2], HUES[1], is_selected),
        panel("window", "key", [tokens; 2], HUES[2], is_recent),
    ])
}

/// What is to be known of the sequence.
pub fn legend(flags: &Sparse) -> Drawing {
    let Sparse { cmp_block, cmp_stride, slc_block, num_selected, window, .. } = flags;
    words::note(&format!(
        "{} tokens that come back to {THEMES} themes. Compressed: {cmp_block} tokens, one block every {cmp_stride}. Selected: \
         {num_selected} blocks of {slc_block}. Window: {window}.",
        flags.length
    ))
}

/// Queries and keys: tokens of a theme are alike, and a little more so the nearer they are.
fn features(tokens: usize) -> Tensor<4> {
    let channels = THEMES + 2;
    let token = |place: usize| {
        let theme = place / SPAN % THEMES;
        let near = place as f32 * 0.05;
        let themes = (0..THEMES).map(move |other| f32::from(u8::from(other == theme)));
        themes.chain([0.4 * near.cos(), 0.4 * near.sin()])
    };
    let values: Vec<f32> = (0..tokens).flat_map(token).collect();
    let values = Tensor::<1>::from_floats(values.as_slice(), &Device::flex());
    values.reshape([1, tokens, 1, channels])
}

fn panel(
    title: &str,
    below: &str,
    [rows, columns]: [usize; 2],
    color: Color,
    is_seen: impl Fn(usize, usize) -> bool,
) -> Drawing {
    let (mut drawing, grid) = see::panel(title, "", rows, columns.max(1), [34.0, 34.0]);
    grid.fill(&mut drawing, color, 1.0, is_seen);
    let bounds = grid.bounds();
    let (x, y) = (bounds.x + bounds.width / 2.0, bounds.y + bounds.height / 2.0);
    let bottom = bounds.y + bounds.height + 16.0;
    drawing.label(below, [x, bottom], SMALL + 1.0, INK, Anchor::Middle);
    drawing.label_upwards("query", [bounds.x - 10.0, y], SMALL + 1.0, INK);
    drawing.reach([x + words::width(below, SMALL + 1.0) / 2.0, bottom]);
    drawing
}

/// What the library says of an option, by the name of its flag.
fn usage(error: AttentionError) -> Failure {
    let text = error.to_string();
    let (name, rest) = text.split_once(':').unwrap_or(("", &text));
    Failure::Usage(format!("--{}:{rest}", name.replace('_', "-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_length_is_drawn() {
        for length in [1, 7, 8, 50] {
            assert_eq!(draw(&Sparse { length, ..Sparse::default() }).expect("fits").len(), 3);
        }
        draw(&Sparse { query_tile: 16, ..Sparse::default() }).expect("fits");
    }

    #[test]
    fn refusals_name_the_flag_and_the_value() {
        let refused = |flags: Sparse| draw(&flags).expect_err("is refused").to_string();
        let error = refused(Sparse { length: 300, ..Sparse::default() });
        assert_eq!(error, "--length: is 300, must be at most 256");
        let error = refused(Sparse { cmp_stride: 3, ..Sparse::default() });
        assert_eq!(error, "--cmp-block: is 8, must be a multiple of 3 (cmp_stride)");
    }
}
