//! Drawing: a canvas, pictures enlarged without smoothing, heat and text.

use font8x8::UnicodeFonts;
use image::{Rgb, RgbImage};

/// Pixels of a character at the scale 1.
pub const GLYPH: u32 = 8;

/// Behind everything.
pub const BACKGROUND: Rgb<u8> = Rgb([20, 21, 28]);
/// Ordinary text.
pub const TEXT: Rgb<u8> = Rgb([225, 226, 230]);
/// Less important text.
pub const FAINT: Rgb<u8> = Rgb([140, 143, 155]);
/// The query.
pub const QUERY: Rgb<u8> = Rgb([60, 220, 255]);
/// The bounds of a window.
pub const WINDOW: Rgb<u8> = Rgb([235, 235, 235]);

/// Colors of a heat map, evenly spaced from cold to hot (matplotlib's inferno).
const HEAT: [[u8; 3]; 6] =
    [[10, 7, 34], [74, 12, 107], [147, 38, 103], [221, 81, 58], [252, 165, 10], [252, 255, 164]];

/// The color of a value from 0 to 1.
pub fn heat(value: f32) -> Rgb<u8> {
    let place = value.clamp(0.0, 1.0) * (HEAT.len() - 1) as f32;
    let below = (place as usize).min(HEAT.len() - 2);
    mix(Rgb(HEAT[below]), Rgb(HEAT[below + 1]), place - below as f32)
}

/// `a` at 0, `b` at 1.
pub fn mix(a: Rgb<u8>, b: Rgb<u8>, part: f32) -> Rgb<u8> {
    let channel = |i: usize| f32::from(a.0[i]) * (1.0 - part) + f32::from(b.0[i]) * part;
    Rgb([0, 1, 2].map(|i| channel(i).round() as u8))
}

/// A rectangle, its right and lower bounds excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Left.
    pub x: u32,
    /// Top.
    pub y: u32,
    /// From left to right.
    pub width: u32,
    /// From top to bottom.
    pub height: u32,
}

impl Area {
    /// Cells `rows` and `columns` of a grid of `[height, width]` cells over this area.
    pub fn cells(self, grid: [usize; 2], rows: [usize; 2], columns: [usize; 2]) -> Self {
        // Bounds are rounded one by one, so that cells of uneven size meet without a gap.
        let at = |cell: usize, size: u32, cells: usize| (cell as u32 * size) / cells as u32;
        let at_x = |cell| at(cell, self.width, grid[1]);
        let at_y = |cell| at(cell, self.height, grid[0]);
        let (x, y) = (at_x(columns[0]), at_y(rows[0]));
        Self {
            x: self.x + x,
            y: self.y + y,
            width: at_x(columns[1]) - x,
            height: at_y(rows[1]) - y,
        }
    }

    /// One of these cells.
    pub fn cell(self, grid: [usize; 2], [row, column]: [usize; 2]) -> Self {
        self.cells(grid, [row, row + 1], [column, column + 1])
    }
}

/// Something to draw on; what lies outside is cut off.
pub struct Canvas {
    image: RgbImage,
}

impl Canvas {
    /// An empty canvas.
    pub fn new(width: u32, height: u32) -> Self {
        Self { image: RgbImage::from_pixel(width, height, BACKGROUND) }
    }

    /// The drawing.
    pub fn into_image(self) -> RgbImage {
        self.image
    }

    /// Fills an area.
    pub fn fill(&mut self, area: Area, color: Rgb<u8>) {
        for y in area.y..(area.y + area.height).min(self.image.height()) {
            for x in area.x..(area.x + area.width).min(self.image.width()) {
                self.image.put_pixel(x, y, color);
            }
        }
    }

    /// Mixes `part` of a color into an area.
    pub fn shade(&mut self, area: Area, color: Rgb<u8>, part: f32) {
        for y in area.y..(area.y + area.height).min(self.image.height()) {
            for x in area.x..(area.x + area.width).min(self.image.width()) {
                let below = *self.image.get_pixel(x, y);
                self.image.put_pixel(x, y, mix(below, color, part));
            }
        }
    }

    /// Fills an area with a grid of `[height, width]` colors, by row and column.
    pub fn paint(&mut self, area: Area, grid: [usize; 2], color: impl Fn(usize, usize) -> Rgb<u8>) {
        for row in 0..grid[0] {
            for column in 0..grid[1] {
                self.fill(area.cell(grid, [row, column]), color(row, column));
            }
        }
    }

    /// Draws a frame just inside an area.
    pub fn frame(&mut self, area: Area, thickness: u32, color: Rgb<u8>) {
        let Area { x, y, width, height } = area;
        let across = thickness.min(width);
        let down = thickness.min(height);
        self.fill(Area { height: down, ..area }, color);
        self.fill(Area { y: y + height - down, height: down, ..area }, color);
        self.fill(Area { width: across, ..area }, color);
        self.fill(Area { x: x + width - across, width: across, ..area }, color);
    }

    /// Writes text to the right of and below a point; a character is `GLYPH * scale` wide.
    pub fn write(&mut self, text: &str, [x, y]: [u32; 2], scale: u32, color: Rgb<u8>) {
        for (place, character) in text.chars().enumerate() {
            let glyph = font8x8::BASIC_FONTS.get(character).unwrap_or([0; GLYPH as usize]);
            let left = x + place as u32 * GLYPH * scale;
            for (row, bits) in (0u32..).zip(glyph) {
                for column in (0..GLYPH).filter(|column| bits >> column & 1 == 1) {
                    let (x, y) = (left + column * scale, y + row * scale);
                    self.fill(Area { x, y, width: scale, height: scale }, color);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_a_grid_meet() {
        let area = Area { x: 5, y: 7, width: 100, height: 100 };
        let mut x = 5;
        for column in 0..24 {
            let cell = area.cells([24, 24], [0, 24], [column, column + 1]);
            assert_eq!((cell.x, cell.y, cell.height), (x, 7, 100));
            x += cell.width;
        }
        assert_eq!(x, 105);
    }

    #[test]
    fn drawing_beyond_the_canvas_is_cut_off() {
        let mut canvas = Canvas::new(10, 10);
        canvas.write("W", [6, 6], 1, TEXT);
        canvas.frame(Area { x: 8, y: 8, width: 8, height: 8 }, 2, QUERY);
        assert_eq!(*canvas.into_image().get_pixel(8, 8), QUERY);
    }

    #[test]
    fn heat_goes_from_cold_to_hot() {
        assert_eq!((heat(-1.0), heat(0.0)), (Rgb(HEAT[0]), Rgb(HEAT[0])));
        assert_eq!((heat(1.0), heat(2.0)), (Rgb(HEAT[5]), Rgb(HEAT[5])));
        assert_eq!(heat(0.2), Rgb(HEAT[1]));
    }
}
