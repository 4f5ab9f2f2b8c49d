//! Three small diagrams of a comparison, from length to bits, milliseconds and memory.

use image::Rgb;

use crate::common::panels::{Area, Canvas, FAINT, GLYPH, TEXT};
use crate::compare::Row;

const PANEL: u32 = 260;
const LEFT: u32 = 84;
const TOP: u32 = 56;
const BOTTOM: u32 = 56;
/// Half the width of a point.
const POINT: u32 = 3;
const GRID: Rgb<u8> = Rgb([52, 54, 66]);
/// The attentions, each with a colour that can be told from the other without colour vision too.
const LINES: [(&str, Rgb<u8>); 2] =
    [("sparse", Rgb([86, 180, 233])), ("dense", Rgb([230, 159, 0]))];

/// A number of a row.
type Number = fn(&Row) -> f64;

/// Draws all rows; both axes are logarithmic but that of the bits.
pub fn draw(rows: &[Row]) -> Canvas {
    let panels: [(&str, Number, bool); 3] = [
        ("bits a byte", |row| row.bits, false),
        ("ms a step", |row| row.step_ms, true),
        ("memory in MiB", |row| row.memory_mib, true),
    ];
    let width = (LEFT + PANEL) * panels.len() as u32 + 24;
    let mut canvas = Canvas::new(width, TOP + PANEL + BOTTOM);
    let mut x = LEFT;
    for (name, color) in LINES {
        canvas.fill(Area { x, y: 20, width: 16, height: 4 }, color);
        canvas.write(&format!("{name} attention"), [x + 24, 18], 1, TEXT);
        x += 200;
    }
    for (place, (name, number, is_log)) in (0..).zip(panels) {
        let area = Area { x: LEFT + place * (LEFT + PANEL), y: TOP, width: PANEL, height: PANEL };
        canvas.write(name, [area.x, area.y - 14], 1, TEXT);
        diagram(&mut canvas, area, rows, number, is_log);
    }
    canvas
}

/// A direction of a diagram.
struct Scale {
    least: f64,
    most: f64,
    is_log: bool,
}

impl Scale {
    fn new(values: impl Iterator<Item = f64> + Clone, is_log: bool) -> Self {
        let least = values.clone().fold(f64::INFINITY, f64::min);
        let most = values.fold(f64::NEG_INFINITY, f64::max);
        match is_log {
            true => Self { least: least.max(1e-9) / 1.2, most: most.max(1e-9) * 1.2, is_log },
            false => Self { least: 0.0, most: most.max(1e-9) * 1.1, is_log },
        }
    }

    /// From 0 at the least to 1 at the most.
    fn part(&self, value: f64) -> f64 {
        let along = |value: f64| if self.is_log { value.max(1e-9).ln() } else { value };
        (along(value) - along(self.least)) / (along(self.most) - along(self.least))
    }

    /// Powers of two, or whole numbers; fewer where there are many.
    fn ticks(&self) -> Vec<f64> {
        let all: Vec<f64> = match self.is_log {
            true => (-20..40).map(|power| 2f64.powi(power)).collect(),
            false => (0..=8).map(f64::from).collect(),
        };
        let inside: Vec<f64> =
            all.into_iter().filter(|tick| (0.0..=1.0).contains(&self.part(*tick))).collect();
        let every = inside.len().div_ceil(7).max(1);
        inside.into_iter().step_by(every).collect()
    }
}

fn diagram(canvas: &mut Canvas, area: Area, rows: &[Row], number: Number, is_log: bool) {
    let across = Scale::new(rows.iter().map(|row| row.length as f64), true);
    let up = Scale::new(rows.iter().map(number), is_log);
    let x = |value: f64| area.x + (across.part(value) * f64::from(area.width)) as u32;
    let y = |value: f64| area.y + area.height - (up.part(value) * f64::from(area.height)) as u32;
    for tick in up.ticks() {
        canvas.fill(Area { x: area.x, y: y(tick), width: area.width, height: 1 }, GRID);
        let text = if tick < 1.0 { format!("{tick:.2}") } else { format!("{tick}") };
        let left = area.x.saturating_sub(8 + text.len() as u32 * GLYPH);
        canvas.write(&text, [left, y(tick).saturating_sub(GLYPH / 2)], 1, FAINT);
    }
    for tick in across.ticks() {
        canvas.fill(Area { x: x(tick), y: area.y, width: 1, height: area.height }, GRID);
        let text = format!("{tick}");
        let left = x(tick).saturating_sub(text.len() as u32 * GLYPH / 2);
        canvas.write(&text, [left, area.y + area.height + 8], 1, FAINT);
    }
    canvas.write("bytes of a sequence", [area.x, area.y + area.height + 28], 1, FAINT);
    for (name, color) in LINES {
        let of = rows.iter().filter(|row| row.attention == name);
        let mut points: Vec<[u32; 2]> =
            of.map(|row| [x(row.length as f64), y(number(row))]).collect();
        points.sort_unstable();
        for pair in points.windows(2) {
            line(canvas, pair[0], pair[1], color);
        }
        for [x, y] in points {
            let (left, top) = (x.saturating_sub(POINT), y.saturating_sub(POINT));
            let side = 2 * POINT + 1;
            canvas.fill(Area { x: left, y: top, width: side, height: side }, color);
        }
    }
}

/// A straight line, two pixels wide.
fn line(canvas: &mut Canvas, from: [u32; 2], to: [u32; 2], color: Rgb<u8>) {
    let steps = (0..2).map(|axis| from[axis].abs_diff(to[axis])).max().unwrap_or(0).max(1);
    for step in 0..=steps {
        let part = f64::from(step) / f64::from(steps);
        let [x, y] = [0, 1].map(|axis| {
            (f64::from(from[axis]) + part * (f64::from(to[axis]) - f64::from(from[axis]))) as u32
        });
        canvas.fill(Area { x, y, width: 2, height: 2 }, color);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_join_what_was_measured() {
        let row = |length, attention, step_ms| Row {
            length,
            attention,
            bits: 2.0,
            step_ms,
            memory_mib: 9.0,
        };
        let rows = [
            row(512, "sparse", 10.0),
            row(512, "dense", 20.0),
            row(1024, "sparse", 11.0),
            row(1024, "dense", 44.0),
        ];
        let image = draw(&rows).into_image();
        let has = |color| image.pixels().filter(|pixel| **pixel == color).count();
        assert!(LINES.iter().all(|(_, color)| has(*color) > 400));
    }

    #[test]
    fn ticks_are_few_and_inside() {
        for (least, most) in [(1.0, 1.0), (0.3, 900.0), (512.0, 131072.0)] {
            let scale = Scale::new([least, most].into_iter(), true);
            assert!(scale.ticks().len() <= 7, "{:?}", scale.ticks());
            assert!(scale.part(least) > 0.0 && scale.part(most) < 1.0);
        }
    }
}
