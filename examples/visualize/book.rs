//! The pictures of the documentation.

use burn_natten::Axis;
use burn_natten_kernels::tiling::Tiling;

use crate::blocks::{self, Blocks, Pattern};
use crate::drawing::{Drawing, HUES, TINT};
use crate::sparse::{self, Sparse};
use crate::{Failure, args, see, tiles, weights, words};

/// File names without their extension, and what is drawn.
pub fn pictures() -> Result<Vec<(&'static str, Drawing)>, Failure> {
    Ok(vec![
        ("queries-2d", queries()),
        ("windows-1d", windows()),
        ("planes-3d", planes()),
        ("tile-map", tile_map()?),
        ("attention-weights", weights()?),
        ("block-lists", lists()?),
        ("native-sparse", native_sparse()?),
    ])
}

fn axis(length: usize, kernel_size: usize) -> Axis {
    Axis::neighborhood(length, kernel_size)
}

/// Panels side by side, and a line below them.
pub fn row(panels: Vec<Drawing>, gap: f64, below: Drawing) -> Drawing {
    let mut drawing = Drawing::new();
    let mut x = 0.0;
    for panel in panels {
        let width = panel.size[0];
        drawing.place(panel, [x, 0.0]);
        x += width + gap;
    }
    let height = drawing.size[1];
    drawing.place(below, [0.0, height - 8.0]);
    drawing
}

/// Two axes: a query in a corner, one at an edge and one in the centre.
fn queries() -> Drawing {
    let queries = [vec![0, 0], vec![8, 15], vec![7, 6]];
    let plain = axis(16, 5);
    let dilated = plain.with_dilation(2);
    let causal = plain.with_causal(true);
    let panels = [[plain, plain], [dilated, dilated], [plain, causal]]
        .map(|axes| see::plane(&axes, &queries, &words::windows(&axes)));
    let names = ["in a corner", "at an edge", "in the centre"];
    let entries: Vec<_> =
        names.iter().zip(HUES).map(|(name, hue)| (hue, 1.0, format!("a query {name}"))).collect();
    let mut below = words::legend(&entries);
    let note = words::note("Pale: the keys that the query sees, itself among them.");
    below.place(note, [0.0, 24.0]);
    row(panels.to_vec(), 0.0, below)
}

/// One axis: what each parameter does.
fn windows() -> Drawing {
    let plain = axis(16, 5);
    let panels = [plain, plain.with_stride(4), plain.with_dilation(3), plain.with_causal(true)];
    let panels = panels.map(|axis| see::matrix(&axis, &words::windows(&[axis])));
    let mut below = words::legend(&[
        (HUES[0], TINT, "seen".to_string()),
        (HUES[0], 1.0, "the query's own key".to_string()),
    ]);
    let note = words::note("One axis of 16 tokens. A colour for each dilation group.");
    below.place(note, [0.0, 24.0]);
    row(panels.to_vec(), -14.0, below)
}

/// Three axes: a video that is causal in time.
fn planes() -> Drawing {
    let axes = [axis(6, 3).with_causal(true), axis(10, 5), axis(10, 5)];
    let queries = [vec![1, 0, 0], vec![4, 5, 6]];
    let mut drawing = see::planes(&axes, &queries, &words::windows(&axes));
    let height = drawing.size[1];
    drawing.place(see::legend(&axes, &queries), [0.0, height - 8.0]);
    drawing
}

/// Two ways to cut the same windows into tiles of sixteen.
fn tile_map() -> Result<Drawing, Failure> {
    let axes = [axis(32, 13), axis(32, 13)];
    let problem = args::problem(&axes);
    let title = format!("{}, {}", words::space(&axes), words::windows(&axes));
    let panels = [[1, 1, 16], [1, 4, 4]]
        .map(|tile| tiles::draw(&problem, &Tiling::square(tile), axes.len()));
    let panels = panels.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut below = tiles::legend();
    below.place(words::note(&format!("{title}, in tiles of 16 tokens.")), [0.0, 24.0]);
    Ok(row(panels, 0.0, below))
}

/// Two axes: weights of one query by features, dilation and position.
fn weights() -> Result<Drawing, Failure> {
    let mut below = weights::legend();
    let note = "Features are those of slanted stripes. softmax(na2d_qk(features, features)).";
    below.place(words::note(note), [0.0, 24.0]);
    Ok(row(weights::draw()?, 0.0, below))
}

/// Lists of sixteen blocks.
fn lists() -> Result<Drawing, Failure> {
    let line = Blocks {
        length: vec![128],
        block: vec![8],
        pattern: Pattern::Dense,
        radius: 1,
        kernel_size: vec![13],
        num_selected: 4,
        seed: 1,
        output: Default::default(),
    };
    let plane =
        Blocks { length: vec![16, 16], block: vec![4, 4], kernel_size: vec![5], ..line.clone() };
    let panels = [
        Blocks { pattern: Pattern::Sliding, ..line.clone() },
        Blocks { pattern: Pattern::Window, ..plane },
        Blocks { pattern: Pattern::Top, ..line.clone() },
        Blocks { pattern: Pattern::Random, ..line },
    ];
    let panels = panels.iter().map(blocks::draw).collect::<Result<Vec<_>, _>>()?;
    let note = words::note(
        "A row is the list of a block of queries. Boxes of the second are numbered row-major.",
    );
    Ok(row(panels, -10.0, note))
}

/// The three branches of native sparse attention.
fn native_sparse() -> Result<Drawing, Failure> {
    let flags = Sparse::default();
    Ok(row(sparse::draw(&flags)?, -8.0, sparse::legend(&flags)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svg;

    /// An empty line would end the picture where it is embedded in Markdown.
    #[test]
    fn no_line_is_empty() {
        for (name, drawing) in pictures().expect("drawings") {
            let text = svg::render(&drawing);
            assert!(text.lines().all(|line| !line.trim().is_empty()), "{name}");
        }
    }

    #[test]
    fn the_committed_pictures_are_what_is_drawn() {
        for (name, drawing) in pictures().expect("drawings") {
            let path = format!("{}/docs/pictures/{name}.svg", env!("CARGO_MANIFEST_DIR"));
            let committed =
                std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
            assert!(
                committed == svg::render(&drawing),
                "{path} is not up to date: cargo run --example visualize -- all"
            );
        }
    }
}
