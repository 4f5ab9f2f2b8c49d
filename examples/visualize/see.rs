//! Which keys queries see.

use burn_natten::Axis;

use crate::Failure;
use crate::drawing::{Anchor, Drawing, FAINT, HUES, INK, TINT};
use crate::grid::Grid;
use crate::words::{self, SMALL, TITLE};

/// The longest axis that is drawn; cells of a longer one would be too small to tell apart.
pub const LONGEST: usize = 256;

/// Planes in a row of a picture of three axes.
const PLANES_IN_ROW: usize = 6;

/// Whether the query at these coordinates sees the key at those.
pub fn sees(axes: &[Axis], query: &[usize], key: &[usize]) -> bool {
    axes.iter().zip(query).zip(key).all(|((axis, query), key)| {
        let (first, count) = axis.window(*query);
        (0..count).any(|i| first + i * axis.dilation == *key)
    })
}

/// The picture of any number of axes. Without `queries` it shows three, or all of a single axis.
pub fn draw(axes: &[Axis], queries: &[Vec<usize>]) -> Result<Drawing, Failure> {
    if let Some((index, axis)) = axes.iter().enumerate().find(|(_, axis)| axis.keys > LONGEST) {
        let text = format!("--length: axis {index} is {}, must be at most {LONGEST}", axis.keys);
        return Err(Failure::Usage(text));
    }
    for query in queries {
        check(axes, query)?;
    }
    let queries = if queries.is_empty() { three(axes) } else { queries.to_vec() };
    let mut drawing = match axes {
        [axis] => matrix(axis, &words::windows(axes)),
        [y, x] => plane(&[*y, *x], &queries, &words::windows(axes)),
        _ => planes(axes, &queries, &words::windows(axes)),
    };
    let height = drawing.size[1];
    if axes.len() > 1 {
        drawing.place(legend(axes, &queries), [0.0, height - 8.0]);
    }
    Ok(drawing)
}

fn check(axes: &[Axis], query: &[usize]) -> Result<(), Failure> {
    if query.len() != axes.len() {
        let (got, expected) = (query.len(), axes.len());
        let text = format!("--query: has {got} coordinates, must have {expected} as --length");
        return Err(Failure::Usage(text));
    }
    for (index, (axis, query)) in axes.iter().zip(query).enumerate() {
        if *query >= axis.queries {
            let text = format!("--query: axis {index} is {query}, must be below {}", axis.queries);
            return Err(Failure::Usage(text));
        }
    }
    Ok(())
}

/// A query in a corner, one at an edge and one in the centre.
fn three(axes: &[Axis]) -> Vec<Vec<usize>> {
    let lengths: Vec<usize> = axes.iter().map(|axis| axis.queries).collect();
    let mut edge: Vec<usize> = lengths.iter().map(|length| length / 2).collect();
    let centre: Vec<usize> = lengths.iter().map(|length| (length - 1) * 2 / 5).collect();
    if let (Some(last), Some(length)) = (edge.last_mut(), lengths.last()) {
        *last = length - 1;
    }
    vec![vec![0; axes.len()], edge, centre]
}

/// One axis: a row for each query, a column for each key, a colour for each dilation group.
pub fn matrix(axis: &Axis, title: &str) -> Drawing {
    let (mut drawing, grid) = panel(title, "", axis.queries, axis.keys, [40.0, 34.0]);
    let axes = std::slice::from_ref(axis);
    let group = |index: usize| index % axis.dilation;
    for (number, hue) in HUES.iter().enumerate().take(axis.dilation) {
        let has_hue = |query: usize| group(query) % HUES.len() == number;
        grid.fill(&mut drawing, *hue, TINT, |query, key| {
            has_hue(query) && query != key && sees(axes, &[query], &[key])
        });
        grid.fill(&mut drawing, *hue, 1.0, |query, key| has_hue(query) && query == key);
    }
    grid.rule(&mut drawing);
    let bounds = grid.bounds();
    for (tick, at) in words::ticks(axis.queries).map(|tick| (tick, tick as f64 + 0.5)) {
        let (x, y) = (bounds.x + at * grid.cell, bounds.y + at * grid.cell);
        let [left, bottom] = [bounds.x - 5.0, bounds.y + bounds.height + 13.0];
        drawing.label(tick.to_string(), [left, y + 3.5], SMALL, FAINT, Anchor::End);
        drawing.label(tick.to_string(), [x, bottom], SMALL, FAINT, Anchor::Middle);
    }
    let middle = [bounds.x + bounds.width / 2.0, bounds.y + bounds.height / 2.0];
    let bottom = bounds.y + bounds.height + 28.0;
    drawing.label("key", [middle[0], bottom], SMALL + 1.0, INK, Anchor::Middle);
    drawing.label_upwards("query", [bounds.x - 24.0, middle[1]], SMALL + 1.0, INK);
    drawing.reach([0.0, bottom]);
    drawing
}

/// Two axes: the keys of each query in the query's colour.
pub fn plane(axes: &[Axis; 2], queries: &[Vec<usize>], title: &str) -> Drawing {
    let mut counts: Vec<usize> = queries.iter().map(|query| keys(axes, query)).collect();
    counts.sort_unstable();
    counts.dedup();
    let counts: Vec<String> = counts.iter().map(usize::to_string).collect();
    let subtitle = format!("{}, {} keys each", words::space(axes), counts.join(" or "));
    let [y, x] = axes;
    let (mut drawing, grid) = panel(title, &subtitle, y.queries, x.queries, [16.0, 50.0]);
    for (query, hue) in queries.iter().zip(HUES.iter().cycle()) {
        let is_query = |row: usize, column: usize| query.as_slice() == [row, column];
        grid.fill(&mut drawing, *hue, TINT, |row, column| {
            !is_query(row, column) && sees(axes, query, &[row, column])
        });
        grid.fill(&mut drawing, *hue, 1.0, is_query);
    }
    grid.rule(&mut drawing);
    drawing
}

/// Three axes: a panel for each plane of the slowest one.
pub fn planes(axes: &[Axis], queries: &[Vec<usize>], title: &str) -> Drawing {
    let mut drawing = Drawing::new();
    let title = format!("{}, {title}", words::space(axes));
    drawing.write(title.as_str(), [16.0, 26.0], TITLE, INK);
    drawing.reach([16.0 + words::width(&title, TITLE), 26.0]);
    let mut at = [0.0, 24.0];
    for number in 0..axes[0].queries {
        if number > 0 && number.is_multiple_of(PLANES_IN_ROW) {
            at = [0.0, drawing.size[1] - 16.0];
        }
        let name = format!("plane {number}");
        let (mut panel, grid) = panel(&name, "", axes[1].queries, axes[2].queries, [16.0, 32.0]);
        for (query, hue) in queries.iter().zip(HUES.iter().cycle()) {
            let is_query = |row: usize, column: usize| query.as_slice() == [number, row, column];
            grid.fill(&mut panel, *hue, TINT, |row, column| {
                !is_query(row, column) && sees(axes, query, &[number, row, column])
            });
            grid.fill(&mut panel, *hue, 1.0, is_query);
        }
        grid.rule(&mut panel);
        let width = panel.size[0];
        drawing.place(panel, at);
        at[0] += width - 18.0;
    }
    drawing
}

/// What the colours of queries mean.
pub fn legend(axes: &[Axis], queries: &[Vec<usize>]) -> Drawing {
    let entries: Vec<_> = queries
        .iter()
        .zip(HUES.iter().cycle())
        .map(|(query, hue)| {
            let coordinates: Vec<String> = query.iter().map(usize::to_string).collect();
            let count = keys(axes, query);
            (*hue, 1.0, format!("query ({}): {count} keys", coordinates.join(", ")))
        })
        .collect();
    words::legend(&entries)
}

/// Number of keys that a query sees.
fn keys(axes: &[Axis], query: &[usize]) -> usize {
    axes.iter().zip(query).map(|(axis, query)| axis.window(*query).1).product()
}

/// A titled grid, whose cells are as large as fits; `offset` is its top left corner.
pub fn panel(
    title: &str,
    subtitle: &str,
    rows: usize,
    columns: usize,
    offset: [f64; 2],
) -> (Drawing, Grid) {
    let cell = (360.0 / rows.max(columns) as f64).clamp(2.0, 11.0).floor();
    let grid = Grid { origin: offset, cell, rows, columns };
    let mut drawing = Drawing::new();
    drawing.write(title, [offset[0], 24.0], TITLE, INK);
    if !subtitle.is_empty() {
        drawing.write(subtitle, [offset[0], 40.0], SMALL + 1.0, FAINT);
    }
    let width = words::width(title, TITLE).max(words::width(subtitle, SMALL + 1.0));
    drawing.reach([offset[0] + width, 24.0]);
    grid.draw(&mut drawing);
    (drawing, grid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(length: usize, kernel_size: usize) -> Axis {
        Axis::neighborhood(length, kernel_size)
    }

    #[test]
    fn a_key_is_seen_when_it_is_along_every_axis() {
        let axes = [axis(9, 3), axis(9, 3).with_dilation(2)];
        let seen = |query: [usize; 2]| -> Vec<[usize; 2]> {
            let keys = (0..81).map(|key| [key / 9, key % 9]);
            keys.filter(|key| sees(&axes, &query, key)).collect()
        };
        assert_eq!(seen([0, 8])[..4], [[0, 4], [0, 6], [0, 8], [1, 4]]);
        assert_eq!(seen([4, 3]).len(), 9);
        assert_eq!(seen([4, 3])[0], [3, 1]);
    }

    #[test]
    fn queries_must_exist() {
        let text = |query: &[usize]| {
            let error = draw(&[axis(9, 3), axis(7, 3)], &[query.to_vec()]).expect_err("refused");
            error.to_string()
        };
        assert_eq!(text(&[1]), "--query: has 1 coordinates, must have 2 as --length");
        assert_eq!(text(&[8, 7]), "--query: axis 1 is 7, must be below 7");
    }

    #[test]
    fn the_three_queries_exist_whatever_the_lengths() {
        for length in 2..40 {
            let axes = [axis(2, 2), axis(length, 2), axis(length + 1, 2)];
            let queries = three(&axes);
            assert!(queries.iter().all(|query| check(&axes, query).is_ok()), "{length}");
        }
    }
}
