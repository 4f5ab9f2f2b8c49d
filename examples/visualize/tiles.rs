//! How a problem is cut into tiles, and which pairs of tiles are computed.

use burn_natten::Problem;
use burn_natten_kernels::tiling::{TileKind, Tiling};

use crate::Failure;
use crate::drawing::{Anchor, Color, Drawing, EMPTY, FAINT, HUES, INK};
use crate::grid::Grid;
use crate::words::{self, SMALL, TITLE};

/// The most tiles along a side of the map.
const MOST: usize = 512;

/// The side of a map, about, and the least of a tile in it.
const SIDE: f64 = 330.0;

const UNMASKED: Color = HUES[0];
const MIXED: Color = HUES[4];

/// A tile map for a problem of `rank` axes, with its counts.
pub fn draw(problem: &Problem, tiling: &Tiling, rank: usize) -> Result<Drawing, Failure> {
    let axis_tiles = |index: usize| tiling.axis_tiles(&problem.axes[index], index).count();
    let q_tiles: usize = (0..problem.axes.len()).map(axis_tiles).product();
    if q_tiles > MOST {
        let text = format!("--q-tile: makes {q_tiles} tiles of queries, must make at most {MOST}");
        return Err(Failure::Usage(text));
    }
    let map = tiling.tile_map(problem);
    if map.kv_tiles > MOST {
        let got = map.kv_tiles;
        let text = format!("--kv-tile: makes {got} tiles of keys, must make at most {MOST}");
        return Err(Failure::Usage(text));
    }
    let mut drawing = Drawing::new();
    let shape = |tile: [usize; 3]| words::product(&tile[3 - rank..]);
    let (q_tile, kv_tile) = (shape(tiling.q_tile), shape(tiling.kv_tile));
    let title = if q_tile == kv_tile {
        format!("tiles of {q_tile}")
    } else {
        format!("tiles of {q_tile} queries and {kv_tile} keys")
    };
    drawing.write(title, [40.0, 24.0], TITLE, INK);
    let count = tiling.count(problem);
    let visited = format!(
        "{} of {} pairs computed, {} of them without a mask",
        count.visited, count.possible, count.unmasked
    );
    let ratio = tiling.work_ratio(problem);
    let ratio = format!("{ratio:.2} scores computed for one that is useful");
    drawing.write(visited.as_str(), [40.0, 40.0], SMALL + 1.0, FAINT);
    drawing.write(ratio.as_str(), [40.0, 54.0], SMALL + 1.0, FAINT);
    drawing.reach([40.0 + words::width(&visited, SMALL + 1.0), 54.0]);

    let cell = (SIDE / map.q_tiles.max(map.kv_tiles) as f64).clamp(1.0, 11.0);
    let cell = if cell > 3.0 { cell.floor() } else { cell };
    let grid = Grid { origin: [40.0, 64.0], cell, rows: map.q_tiles, columns: map.kv_tiles };
    grid.draw(&mut drawing);
    for (kind, color) in [(TileKind::Unmasked, UNMASKED), (TileKind::Mixed, MIXED)] {
        grid.fill(&mut drawing, color, 1.0, |row, column| map.kind(row, column) == kind);
    }
    grid.rule(&mut drawing);
    let bounds = grid.bounds();
    let (x, y) = (bounds.x + bounds.width / 2.0, bounds.y + bounds.height / 2.0);
    let bottom = bounds.y + bounds.height + 16.0;
    drawing.label("tile of keys", [x, bottom], SMALL + 1.0, INK, Anchor::Middle);
    drawing.label_upwards("tile of queries", [bounds.x - 10.0, y], SMALL + 1.0, INK);
    drawing.reach([x, bottom]);
    Ok(drawing)
}

/// What the colours of a map mean.
pub fn legend() -> Drawing {
    words::legend(&[
        (UNMASKED, 1.0, "every query sees every key: no mask".to_string()),
        (MIXED, 1.0, "computed and masked".to_string()),
        (EMPTY, 1.0, "skipped".to_string()),
    ])
}
