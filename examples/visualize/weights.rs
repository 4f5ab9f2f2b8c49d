//! How much a query attends to each key of its window.

use std::f32::consts::TAU;

use burn::tensor::activation::softmax;
use burn::tensor::{Device, Tensor};
use burn_natten::{NeighborhoodOptions, na2d_qk};

use crate::Failure;
use crate::drawing::{Drawing, FAINT, HUES, INK};
use crate::grid::Grid;
use crate::see::sees;
use crate::words::{self, SMALL, TITLE};

/// Tokens along each axis.
const LENGTH: usize = 16;
/// Keys along each axis of a window.
const KERNEL: usize = 7;
/// The query.
const QUERY: [usize; 2] = [6, 8];
/// Tokens from one stripe to the next.
const PERIOD: f32 = 6.0;
/// Factor on the scores, which are cosines.
const SCALE: f64 = 2.0;
/// Shades from none to all of a colour: a picture must not depend on the last digit of a weight.
const SHADES: usize = 8;

/// Three ways to attend in a map of slanted stripes.
pub fn draw() -> Result<Vec<Drawing>, Failure> {
    let options = || NeighborhoodOptions::<2>::new(KERNEL).with_scale(SCALE);
    Ok(vec![
        panel("stripes attend to stripes", options())?,
        panel("the same, dilation 2", options().with_dilation(2))?,
        panel("with a position bias", options().with_bias(nearness()))?,
    ])
}

/// What the shades mean.
pub fn legend() -> Drawing {
    words::legend(&[
        (HUES[1], 1.0, "the query".to_string()),
        (HUES[0], 1.0, "the largest weight of the panel".to_string()),
        (HUES[0], 1.0 / SHADES as f64, "next to none".to_string()),
    ])
}

/// Tokens of the same stripe have the same features, `[1, LENGTH, LENGTH, 1, 2]`.
fn stripes() -> Tensor<5> {
    let phase = |token: usize| TAU * (token / LENGTH + token % LENGTH) as f32 / PERIOD;
    let features: Vec<f32> =
        (0..LENGTH * LENGTH).flat_map(|token| [phase(token).cos(), phase(token).sin()]).collect();
    Tensor::<1>::from_floats(features.as_slice(), &Device::flex())
        .reshape([1, LENGTH, LENGTH, 1, 2])
}

/// A bias that falls with the distance, `[1, 2 * KERNEL - 1, 2 * KERNEL - 1]`.
fn nearness() -> Tensor<3> {
    let side = 2 * KERNEL - 1;
    let from_middle = |place: usize| place as f32 - (KERNEL - 1) as f32;
    let bias: Vec<f32> = (0..side * side)
        .map(|place| -0.35 * from_middle(place / side).hypot(from_middle(place % side)))
        .collect();
    Tensor::<1>::from_floats(bias.as_slice(), &Device::flex()).reshape([1, side, side])
}

fn panel(title: &str, options: NeighborhoodOptions<2>) -> Result<Drawing, Failure> {
    let axes = options.axes([LENGTH; 2]).map_err(|error| Failure::Usage(error.to_string()))?;
    let weights = softmax(na2d_qk(stripes(), stripes(), options), 4);
    let weights = weights.narrow(1, QUERY[0], 1).narrow(2, QUERY[1], 1);
    let weights: Vec<f32> =
        weights.into_data().try_to_vec().map_err(|error| Failure::Usage(format!("{error:?}")))?;
    let largest = weights.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
    // Slots are the keys of the window in row-major order.
    let shade = |row: usize, column: usize| {
        if !sees(&axes, &QUERY, &[row, column]) {
            return 0;
        }
        let slot = |axis: usize, token: usize| {
            (token - axes[axis].window(QUERY[axis]).0) / axes[axis].dilation
        };
        let weight = weights[slot(0, row) * KERNEL + slot(1, column)];
        ((weight / largest * SHADES as f32).round() as usize).max(1)
    };

    let grid = Grid { origin: [16.0, 50.0], cell: 16.0, rows: LENGTH, columns: LENGTH };
    let mut drawing = Drawing::new();
    drawing.write(title, [16.0, 24.0], TITLE, INK);
    drawing.write(words::windows(&axes), [16.0, 40.0], SMALL + 1.0, FAINT);
    grid.draw(&mut drawing);
    for level in 1..=SHADES {
        let opacity = level as f64 / SHADES as f64;
        grid.fill(&mut drawing, HUES[0], opacity, |row, column| shade(row, column) == level);
    }
    grid.rule(&mut drawing);
    drawing.outline(vec![grid.area([QUERY[0], 1], [QUERY[1], 1])], HUES[1], 2.5);
    Ok(drawing)
}
