//! A picture of what pixels attend to.

use std::path::Path;

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::Device;
use burn_natten::NeighborhoodOptions;
use image::Rgb;

use crate::Failure;
use crate::common::attention::Attention;
use crate::common::panels::{Area, Canvas, FAINT, GLYPH, QUERY, TEXT, WINDOW, heat};
use crate::data::{Picture, Pictures};
use crate::loader::PictureBatcher;
use crate::model::VisionTransformer;
use crate::tokens::window;

/// The name of a class that is wrong.
const WRONG: Rgb<u8> = Rgb([255, 105, 97]);

/// As many pictures as are shown.
const SHOWN: usize = 10;
const PANEL: u32 = 128;
const GAP: u32 = 12;
const MARGIN: u32 = 20;
const LABELS: u32 = 176;
const LINE: u32 = 24;

/// Draws pictures of the test, one of each class where there are enough, and for every block of
/// the first stage how much a pixel attends to each other.
pub fn save(
    path: &Path,
    model: &VisionTransformer,
    batcher: &PictureBatcher,
    pictures: &Pictures,
    seen: &[usize],
    device: &Device,
) -> Result<(), Failure> {
    let shown = choose(pictures);
    let rows = model.first.len() as u32 + 1;
    let mut canvas = Canvas::new(
        2 * MARGIN + LABELS + shown.len() as u32 * (PANEL + GAP) - GAP,
        2 * MARGIN + 4 * LINE + rows * (PANEL + GAP),
    );
    let panel = |row: usize, column: usize| Area {
        x: MARGIN + LABELS + column as u32 * (PANEL + GAP),
        y: MARGIN + 2 * LINE + row as u32 * (PANEL + GAP),
        width: PANEL,
        height: PANEL,
    };
    label_rows(&mut canvas, model, |row| panel(row, 0));
    for (column, index) in shown.into_iter().enumerate() {
        let picture = &pictures.test[index];
        let top = within(panel(0, column), picture.size);
        let is_right = seen[index] == picture.class;
        let names = [("is", picture.class, TEXT), ("seen as", seen[index], FAINT)];
        for (line, (what, class, color)) in (0..).zip(names) {
            let color = if is_right { color } else { WRONG };
            let text: String = format!("{what} {}", pictures.classes[class]);
            let text: String = text.chars().take((PANEL / GLYPH) as usize).collect();
            canvas.write(
                &text,
                [panel(0, column).x, MARGIN + line * LINE / 2 + LINE / 2],
                1,
                color,
            );
        }
        draw_pixels(&mut canvas, top, picture, pictures);

        let mut tokens = model.tokens(batcher.batch(vec![picture.clone()], device).images);
        let grid = tokens.sizes()[0];
        let query = striking(picture, pictures, grid);
        canvas.frame(top.cell(grid, query), 3, QUERY);
        for (row, block) in model.first.iter().enumerate() {
            let area = within(panel(row + 1, column), picture.size);
            draw_pixels(&mut canvas, area, picture, pictures);
            let normal = block.norm_attention.forward(tokens.values());
            let [height, width] = grid;
            let normal = normal.reshape([1, height as i32, width as i32, -1]);
            let [queries, keys, _] = block.attention.query_key_value(normal);
            let window = window(block).within(grid);
            let options = NeighborhoodOptions::new(window.kernel_size())
                .with_stride(window.stride())
                .with_dilation(window.dilation());
            let weights = Attention::of(queries, keys, options, query)?;
            weights.draw(&mut canvas, area, &weights.mean(), 1.0);
            tokens = tokens.attend(block);
        }
    }
    legend(&mut canvas, MARGIN + 2 * LINE + rows * (PANEL + GAP) + LINE / 2);
    let image = canvas.into_image();
    image.save(path).map_err(|error| Failure::cannot_write(path, &error))
}

/// Indices into the test: the first picture of each class, then others.
fn choose(pictures: &Pictures) -> Vec<usize> {
    let of_class = |class| pictures.test.iter().position(|picture| picture.class == class);
    let mut shown: Vec<usize> = (0..pictures.classes.len()).filter_map(of_class).collect();
    let others: Vec<usize> = (0..pictures.test.len()).filter(|i| !shown.contains(i)).collect();
    shown.extend(others);
    shown.truncate(SHOWN);
    shown
}

/// The part of a panel that a picture of `[height, width]` pixels fills, in the middle.
fn within(panel: Area, [height, width]: [usize; 2]) -> Area {
    let longer = height.max(width) as u32;
    let along = |side: usize| (PANEL * side as u32 / longer).max(1);
    let (height, width) = (along(height), along(width));
    let (x, y) = (panel.x + (PANEL - width) / 2, panel.y + (PANEL - height) / 2);
    Area { x, y, width, height }
}

/// The token of the middle of a picture that differs most from the picture's mean.
fn striking(picture: &Picture, pictures: &Pictures, grid: [usize; 2]) -> [usize; 2] {
    let brightness = |token: [usize; 2]| {
        let center = |axis: usize| (2 * token[axis] + 1) * picture.size[axis] / (2 * grid[axis]);
        let Rgb([r, g, b]) = color(picture, pictures, center(0), center(1));
        f32::from(r) + f32::from(g) + f32::from(b)
    };
    let [height, width] = grid;
    let all = || (0..height).flat_map(|row| (0..width).map(move |column| [row, column]));
    let mean = all().map(brightness).sum::<f32>() / (height * width) as f32;
    let is_middle =
        |place: usize, side: usize| (side / 4..(side - side / 4).max(1)).contains(&place);
    all()
        .filter(|[row, column]| is_middle(*row, height) && is_middle(*column, width))
        .max_by(|a, b| {
            let [a, b] = [a, b].map(|query| (brightness(*query) - mean).abs());
            a.total_cmp(&b)
        })
        .unwrap_or([height / 2, width / 2])
}

fn color(picture: &Picture, pictures: &Pictures, row: usize, column: usize) -> Rgb<u8> {
    let [height, width] = picture.size;
    let plane = |channel: usize| {
        let channel = channel.min(pictures.channels - 1);
        (picture.pixels[(channel * height + row) * width + column] * 255.0).round() as u8
    };
    Rgb([0, 1, 2].map(plane))
}

fn draw_pixels(canvas: &mut Canvas, area: Area, picture: &Picture, pictures: &Pictures) {
    canvas.paint(area, picture.size, |row, column| color(picture, pictures, row, column));
}

fn label_rows(canvas: &mut Canvas, model: &VisionTransformer, panel: impl Fn(usize) -> Area) {
    let mut label = |row: usize, lines: &[String]| {
        let middle = panel(row).y + PANEL / 2 - lines.len() as u32 * LINE / 2;
        for (line, text) in (0..).zip(lines) {
            let (scale, color) = if line == 0 { (2, TEXT) } else { (1, FAINT) };
            canvas.write(text, [MARGIN, middle + line * LINE], scale, color);
        }
    };
    label(0, &["picture".to_string()]);
    for (index, block) in model.first.iter().enumerate() {
        let [[height, width], [dilation, _]] =
            [block.attention.kernel_size, block.attention.dilation];
        let window = format!("window {height} x {width}");
        let lines = [format!("block {}", index + 1), window, format!("dilation {dilation}")];
        label(index + 1, &lines);
    }
}

/// What colors and frames mean.
fn legend(canvas: &mut Canvas, y: u32) {
    let mut x = MARGIN + LABELS;
    for (color, text) in [(QUERY, "the query"), (WINDOW, "bounds of its window")] {
        canvas.frame(Area { x, y, width: 16, height: 16 }, 3, color);
        canvas.write(text, [x + 24, y + 4], 1, FAINT);
        x += 24 + (text.len() as u32 + 4) * GLYPH;
    }
    for step in 0..96u32 {
        canvas.fill(Area { x: x + step, y, width: 1, height: 16 }, heat(step as f32 / 95.0));
    }
    canvas.write("attention, from none to the most in the panel", [x + 104, y + 4], 1, FAINT);
}
