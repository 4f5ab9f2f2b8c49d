//! A drawing as pixels, for those who cannot use SVG. Text is in an 8 x 8 pixel font.

use font8x8::UnicodeFonts;
use image::{Rgb, RgbImage};

use crate::drawing::{Anchor, Area, Color, Drawing, Element, PAPER, Text};

/// Pixels of a unit.
const SCALE: f64 = 2.0;

/// Renders a drawing.
pub fn render(drawing: &Drawing) -> RgbImage {
    let [width, height] = drawing.size.map(|size| (size * SCALE).ceil() as u32);
    let mut image = RgbImage::from_pixel(width, height, Rgb(PAPER.0));
    for element in &drawing.elements {
        match element {
            Element::Fill { areas, color, opacity } => {
                for area in areas {
                    fill(&mut image, *area, *color, *opacity);
                }
            }
            Element::Outline { areas, color, width } => {
                for area in areas {
                    outline(&mut image, *area, *color, *width);
                }
            }
            Element::Text(text) => write(&mut image, text),
        }
    }
    image
}

fn fill(image: &mut RgbImage, area: Area, color: Color, opacity: f64) {
    let end = |start: f64, length: f64, limit: u32| {
        (((start + length) * SCALE).round() as u32).min(limit)
    };
    let (width, height) = image.dimensions();
    for y in (area.y * SCALE).round() as u32..end(area.y, area.height, height) {
        for x in (area.x * SCALE).round() as u32..end(area.x, area.width, width) {
            let Rgb(below) = *image.get_pixel(x, y);
            let mixed = std::array::from_fn(|i| {
                let (below, above) = (f64::from(below[i]), f64::from(color.0[i]));
                (below + (above - below) * opacity).round() as u8
            });
            image.put_pixel(x, y, Rgb(mixed));
        }
    }
}

/// Four lines, each with its middle on the bound. A line has at least one pixel.
fn outline(image: &mut RgbImage, area: Area, color: Color, width: f64) {
    let width = width.max(1.0 / SCALE);
    let Area { x, y, width: across, height: down } = area;
    let horizontal = |y: f64| Area {
        x: x - width / 2.0,
        y: y - width / 2.0,
        width: across + width,
        height: width,
    };
    let vertical =
        |x: f64| Area { x: x - width / 2.0, y: y - width / 2.0, width, height: down + width };
    let mut lines = Vec::new();
    if across > 0.0 {
        lines.extend([horizontal(y), horizontal(y + down)]);
    }
    if down > 0.0 {
        lines.extend([vertical(x), vertical(x + across)]);
    }
    for line in lines {
        fill(image, line, color, 1.0);
    }
}

/// The columns of a character that hold something, and all its rows.
fn glyph(character: char) -> (Vec<u32>, [u8; 8]) {
    let fonts = || font8x8::BASIC_FONTS.get(character).or(font8x8::LATIN_FONTS.get(character));
    let rows = fonts().unwrap_or([0; 8]);
    let ink = rows.iter().fold(0, |ink, row| ink | row);
    match (ink.trailing_zeros(), ink.leading_zeros()) {
        (8.., _) => ((0..4).collect(), rows),
        (first, empty) => ((first..8 - empty).collect(), rows),
    }
}

fn write(image: &mut RgbImage, text: &Text) {
    // A character of 8 pixels fills two thirds of the line.
    let pixel = (text.size * SCALE / 12.0).round().max(1.0) / SCALE;
    let advance = |character: char| (glyph(character).0.len() as f64 + 1.0) * pixel;
    let length: f64 = text.text.chars().map(advance).sum();
    let mut along = match text.anchor {
        Anchor::Start => 0.0,
        Anchor::Middle => -length / 2.0,
        Anchor::End => -length,
    };
    for character in text.text.chars() {
        let (columns, rows) = glyph(character);
        for (row, bits) in rows.iter().enumerate() {
            for (place, column) in columns.iter().enumerate() {
                if bits >> column & 1 == 0 {
                    continue;
                }
                // The seventh row stands on the baseline.
                let (right, up) = (along + place as f64 * pixel, (7.0 - row as f64) * pixel);
                let [x, y] = if text.is_vertical {
                    [text.at[0] - up, text.at[1] - right - pixel]
                } else {
                    [text.at[0] + right, text.at[1] - up]
                };
                fill(image, Area { x, y, width: pixel, height: pixel }, text.color, 1.0);
            }
        }
        along += advance(character);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drawing::{HUES, INK};

    #[test]
    fn areas_are_filled_and_mixed() {
        let mut drawing = Drawing { size: [10.0, 10.0], elements: Vec::new() };
        let area = Area { x: 2.0, y: 3.0, width: 4.0, height: 1.0 };
        drawing.fill(vec![area], HUES[0], 0.5);
        let image = render(&drawing);
        assert_eq!(image.dimensions(), (20, 20));
        let mixed = HUES[0].0.map(|channel| ((f64::from(channel) + 255.0) / 2.0).round() as u8);
        assert_eq!(image.get_pixel(4, 6).0, mixed);
        assert_eq!(image.get_pixel(3, 6).0, PAPER.0);
        assert_eq!(image.get_pixel(12, 6).0, PAPER.0);
    }

    #[test]
    fn text_leaves_ink_around_its_anchor_and_nowhere_else() {
        for is_vertical in [false, true] {
            let mut drawing = Drawing { size: [40.0, 40.0], elements: Vec::new() };
            drawing.elements.push(Element::Text(Text {
                text: "×H".to_string(),
                at: [20.0, 20.0],
                size: 12.0,
                anchor: Anchor::Middle,
                color: INK,
                is_vertical,
            }));
            let image = render(&drawing);
            let inked: Vec<_> =
                image.enumerate_pixels().filter(|(_, _, pixel)| pixel.0 == INK.0).collect();
            assert!(inked.len() > 40, "{}", inked.len());
            let near = |(x, y): (u32, u32)| (20..60).contains(&x) && (20..60).contains(&y);
            assert!(inked.iter().all(|(x, y, _)| near((*x, *y))));
        }
    }
}
