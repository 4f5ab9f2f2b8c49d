//! Draws what queries see, how windows are cut into tiles, and what sparse attention reads.
//!
//! ```text
//! cargo run --example visualize -- see --length 24 24 --kernel-size 7 --query 0,0 --query 12,12
//! cargo run --example visualize -- tiles --length 32 32 --kernel-size 13 --q-tile 4 4
//! cargo run --example visualize -- blocks --length 32 32 --block 8 --pattern window --kernel-size 13
//! cargo run --example visualize -- sparse --length 128 --num-selected 5
//! cargo run --example visualize -- all            # the pictures in docs/pictures
//! ```
//!
//! Nothing here knows what a window is: visibility comes from [`burn_natten::Axis::window`], tiles
//! from `burn_natten_kernels::tiling`, weights from [`burn_natten::na2d_qk`], lists of blocks from
//! [`burn_natten::block_lists`] and [`burn_natten::select_blocks`].

mod args;
mod blocks;
mod book;
mod drawing;
mod grid;
mod png;
mod see;
mod sparse;
mod svg;
mod tiles;
mod weights;
mod words;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command, See, Tiles};
use drawing::Drawing;

/// Why nothing was drawn. The text is one line and says what to change.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A flag is wrong, or does not fit the others.
    #[error("{0}")]
    Usage(String),
    /// A file could not be written.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What the system said.
        reason: String,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(if matches!(failure, Failure::Usage(_)) { 2 } else { 1 })
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::See(See { windows, query, output }) => {
            let queries: Vec<_> = query.into_iter().map(|query| query.0).collect();
            save(&see::draw(&windows.axes()?, &queries)?, &output)
        }
        Command::Tiles(flags) => save(&tile_map(&flags)?, &flags.output),
        Command::Blocks(flags) => save(&blocks::draw(&flags)?, &flags.output),
        Command::Sparse(flags) => {
            let drawing = book::row(sparse::draw(&flags)?, -8.0, sparse::legend(&flags));
            save(&drawing, &flags.output)
        }
        Command::All { folder } => {
            fs::create_dir_all(&folder).map_err(|error| failure(&folder, error))?;
            for (name, drawing) in book::pictures()? {
                save(&drawing, &folder.join(format!("{name}.svg")))?;
            }
            Ok(())
        }
    }
}

fn tile_map(flags: &Tiles) -> Result<Drawing, Failure> {
    let axes = flags.windows.axes()?;
    let tiling = flags.tiling(axes.len())?;
    let mut drawing = tiles::draw(&args::problem(&axes), &tiling, axes.len())?;
    let height = drawing.size[1];
    drawing.place(tiles::legend(), [0.0, height - 8.0]);
    Ok(drawing)
}

fn save(drawing: &Drawing, path: &Path) -> Result<(), Failure> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => {
            fs::write(path, svg::render(drawing)).map_err(|error| failure(path, error))?;
        }
        Some("png") => png::render(drawing).save(path).map_err(|error| failure(path, error))?,
        _ => {
            let text = format!("--output: is {}, must end in .svg or .png", path.display());
            return Err(Failure::Usage(text));
        }
    }
    println!("{}", path.display());
    Ok(())
}

fn failure(path: &Path, reason: impl ToString) -> Failure {
    Failure::File { path: path.display().to_string(), reason: reason.to_string() }
}
