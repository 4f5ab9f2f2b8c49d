//! A grid of square cells.

use crate::drawing::{Area, Color, Drawing, EMPTY, PAPER};

/// Rows and columns of square cells.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// The top left corner.
    pub origin: [f64; 2],
    /// The side of a cell.
    pub cell: f64,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub columns: usize,
}

impl Grid {
    /// The rectangle of some rows and columns, each as first and number.
    pub fn area(&self, rows: [usize; 2], columns: [usize; 2]) -> Area {
        Area {
            x: self.origin[0] + columns[0] as f64 * self.cell,
            y: self.origin[1] + rows[0] as f64 * self.cell,
            width: columns[1] as f64 * self.cell,
            height: rows[1] as f64 * self.cell,
        }
    }

    /// The whole grid.
    pub fn bounds(&self) -> Area {
        self.area([0, self.rows], [0, self.columns])
    }

    /// Draws the cells as empty.
    pub fn draw(&self, drawing: &mut Drawing) {
        let bounds = self.bounds();
        drawing.fill(vec![bounds], EMPTY, 1.0);
        drawing.reach([bounds.x + bounds.width, bounds.y + bounds.height]);
    }

    /// Draws the lines between the cells, over whatever is in them.
    pub fn rule(&self, drawing: &mut Drawing) {
        let bounds = self.bounds();
        let down = (1..self.columns).map(|column| Area {
            x: bounds.x + column as f64 * self.cell,
            width: 0.0,
            ..bounds
        });
        let across = (1..self.rows).map(|row| Area {
            y: bounds.y + row as f64 * self.cell,
            height: 0.0,
            ..bounds
        });
        // A line as wide as a cell would hide what is in it.
        drawing.outline(down.chain(across).collect(), PAPER, (self.cell / 10.0).min(1.0));
    }

    /// Fills the cells, by row and column, that `is_inside` says; neighbors become one rectangle.
    pub fn fill(
        &self,
        drawing: &mut Drawing,
        color: Color,
        opacity: f64,
        is_inside: impl Fn(usize, usize) -> bool,
    ) {
        let mut done: Vec<[[usize; 2]; 2]> = Vec::new();
        let mut open: Vec<[[usize; 2]; 2]> = Vec::new();
        for row in 0..self.rows {
            let mut next = Vec::new();
            for run in runs(self.columns, |column| is_inside(row, column)) {
                let above = open.iter().position(|[_, columns]| *columns == run);
                // A run below an equal one makes its rectangle longer.
                let rows = above.map_or([row, 1], |i| open.swap_remove(i)[0]);
                let length = row + 1 - rows[0];
                next.push([[rows[0], length], run]);
            }
            done.append(&mut open);
            open = next;
        }
        done.append(&mut open);
        done.sort_unstable();
        let areas = done.into_iter().map(|[rows, columns]| self.area(rows, columns)).collect();
        drawing.fill(areas, color, opacity);
    }
}

/// The runs of numbers below `count` that are inside, as first and length.
fn runs(count: usize, is_inside: impl Fn(usize) -> bool) -> Vec<[usize; 2]> {
    let mut runs: Vec<[usize; 2]> = Vec::new();
    for i in (0..count).filter(|i| is_inside(*i)) {
        match runs.last_mut() {
            Some([first, length]) if *first + *length == i => *length += 1,
            _ => runs.push([i, 1]),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drawing::{Element, HUES};

    #[test]
    fn filled_rectangles_cover_exactly_the_cells_inside() {
        let grid = Grid { origin: [0.0, 0.0], cell: 1.0, rows: 9, columns: 11 };
        let is_inside = |row: usize, column: usize| (row * 5 + column * 3) % 7 < 4 || row == 4;
        let mut drawing = Drawing::new();
        grid.fill(&mut drawing, HUES[0], 1.0, is_inside);
        let [Element::Fill { areas, .. }] = drawing.elements.as_slice() else {
            panic!("one element");
        };
        for row in 0..grid.rows {
            for column in 0..grid.columns {
                let (x, y) = (column as f64 + 0.5, row as f64 + 0.5);
                let covers = |area: &&Area| {
                    (area.x..area.x + area.width).contains(&x)
                        && (area.y..area.y + area.height).contains(&y)
                };
                let count = areas.iter().filter(covers).count();
                assert_eq!(count, usize::from(is_inside(row, column)), "{row}, {column}");
            }
        }
    }

    #[test]
    fn a_block_is_one_rectangle() {
        let grid = Grid { origin: [2.0, 3.0], cell: 10.0, rows: 6, columns: 6 };
        let mut drawing = Drawing::new();
        grid.fill(&mut drawing, HUES[0], 1.0, |row, column| (1..4).contains(&row) && column > 2);
        let area = Area { x: 32.0, y: 13.0, width: 30.0, height: 30.0 };
        let (color, opacity) = (HUES[0], 1.0);
        assert_eq!(drawing.elements, [Element::Fill { areas: vec![area], color, opacity }]);
    }
}
