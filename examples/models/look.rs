//! Pictures of what a point attends to.

use std::path::Path;

use burn::tensor::Tensor;
use image::{DynamicImage, Rgb, RgbImage};

use crate::Failure;
use crate::classifier::Classifier;
use crate::cli::Classify;
use crate::common::attention::Attention;
use crate::common::panels::{Area, Canvas, FAINT, GLYPH, TEXT};

const PANEL: u32 = 224;
const GAP: u32 = 12;
const MARGIN: u32 = 20;
const LINE: u32 = 2 * GLYPH;
/// Part of the heat in the color of a token.
const OPACITY: f32 = 0.65;

/// A layer, and what its queries at the point attend to.
struct Row {
    name: String,
    window: String,
    /// Height and width of the picture in tokens; the map may be larger.
    tokens: [usize; 2],
    attention: Attention,
}

/// Draws a row for each layer: the picture, the mean of all heads, and the heads asked for.
pub fn save(
    path: &Path,
    model: &Classifier,
    input: Tensor<4>,
    picture: &DynamicImage,
    args: &Classify,
) -> Result<(), Failure> {
    let rows = rows(model, input, args)?;
    let columns = 2 + args.head.len() as u32;
    let mut canvas = Canvas::new(
        2 * MARGIN + columns * (PANEL + GAP) - GAP,
        2 * MARGIN + rows.len() as u32 * (PANEL + GAP + LINE) - GAP,
    );
    let picture = picture.to_rgb8();
    for (index, row) in (0..).zip(&rows) {
        let top = MARGIN + index * (PANEL + GAP + LINE);
        let area = |column: u32| Area {
            x: MARGIN + column * (PANEL + GAP),
            y: top + LINE,
            width: PANEL,
            height: PANEL,
        };
        let mut write = |column: u32, text: &str, color: Rgb<u8>| {
            canvas.write(text, [area(column).x, top], 1, color);
        };
        write(0, &row.name, TEXT);
        write(1, &format!("mean of {} heads", row.attention.heads.len()), FAINT);
        for (column, head) in (2..).zip(&args.head) {
            write(column, &format!("head {head}, {}", row.window), FAINT);
        }
        row.paint(&mut canvas, area(0), &picture);
        row.attention.mark(&mut canvas, area(0));
        let heads = args.head.iter().map(|head| row.attention.heads[*head].clone());
        for (column, weights) in (1..).zip(std::iter::once(row.attention.mean()).chain(heads)) {
            row.paint(&mut canvas, area(column), &picture);
            row.attention.draw(&mut canvas, area(column), &weights, OPACITY);
        }
    }
    canvas.into_image().save(path).map_err(|error| Failure::cannot_write(path, &error))
}

impl Row {
    /// Draws the picture over as many tokens as it has; padding stays dark.
    fn paint(&self, canvas: &mut Canvas, area: Area, picture: &RgbImage) {
        let area = area.cells(self.attention.grid, [0, self.tokens[0]], [0, self.tokens[1]]);
        let grid = [picture.height() as usize, picture.width() as usize];
        canvas.paint(area, grid, |row, column| *picture.get_pixel(column as u32, row as u32));
    }
}

fn rows(model: &Classifier, input: Tensor<4>, args: &Classify) -> Result<Vec<Row>, Failure> {
    let blocks = model.blocks();
    let last = |level: usize| [level, blocks[level].len().saturating_sub(1)];
    let layers = match &args.layer[..] {
        [] => (0..blocks.len()).filter(|level| !blocks[*level].is_empty()).map(last).collect(),
        layers => layers.to_vec(),
    };
    for [level, block] in &layers {
        let usage = |text: String| Err(Failure::Usage(format!("--layer: {text}")));
        let Some(blocks) = blocks.get(*level) else {
            return usage(format!("level is {level}, must be below {}", blocks.len()));
        };
        let Some(found) = blocks.get(*block) else {
            let count = blocks.len();
            return usage(format!("block is {block}, must be below {count} in level {level}"));
        };
        let heads = found.attn.num_heads;
        if let Some(head) = args.head.iter().find(|head| **head >= heads) {
            let text = format!("--head: is {head}, must be below {heads} in layer {level}.{block}");
            return Err(Failure::Usage(text));
        }
    }
    let inputs = model.inputs(input);
    let row = |[level, block]: [usize; 2]| {
        let (input, layer) = (inputs[level][block].clone(), &blocks[level][block]);
        let [_, height, width, _] = input.dims();
        // A point at the very edge is in the last token.
        let place = |part: f64, length: usize| ((part * length as f64) as usize).min(length - 1);
        let query = [place(args.at[1], height), place(args.at[0], width)];
        let [queries, keys, _] = layer.attn.query_key_value(layer.norm1.forward(input));
        let attention = Attention::of(queries, keys, layer.attn.options(), query)?;
        let (kernel_size, dilation) = (layer.attn.kernel_size, layer.attn.dilation);
        Ok(Row {
            name: format!("layer {level}.{block}"),
            window: format!("{kernel_size}x{kernel_size} by {dilation}"),
            tokens: [height, width],
            attention,
        })
    };
    layers.into_iter().map(row).collect()
}
