//! Rotary positions along two axes.

use std::f64::consts::PI;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};

use super::layers::buffer;

/// The centres of the cells of a grid in a box whose longer side is `[-1, 1]` and whose shorter one
/// is in proportion: `[height, width, 2]`, (y, x).
pub fn positions(height: usize, width: usize, device: &Device) -> Tensor<3> {
    let longer = height.max(width) as f64;
    let centre = |index: usize, length: usize| {
        ((2 * index + 1) as f64 / length as f64 - 1.0) * (length as f64 / longer)
    };
    let mut values = Vec::with_capacity(2 * height * width);
    for y in 0..height {
        for x in 0..width {
            values.push(centre(y, height) as f32);
            values.push(centre(x, width) as f32);
        }
    }
    Tensor::from_data(TensorData::new(values, [height, width, 2]), device)
}

/// Rotates the first half of a head by angles that grow with the position: a quarter of the
/// channels against the next, half of these pairs by the height and half by the width.
#[derive(Module, Debug)]
pub struct AxialRope {
    /// Radians per unit of position, `[heads, d_head / 8]`, not trained.
    pub freqs: Param<Tensor<2>>,
}

impl AxialRope {
    pub(super) fn new(d_head: usize, num_heads: usize, device: &Device) -> Self {
        let each = d_head / 8;
        let count = num_heads * each;
        // From pi to 10 pi, evenly in the logarithm. Neighboring frequencies are in different heads.
        let frequency = |index: usize| PI * 10f64.powf(index as f64 / count as f64);
        let values: Vec<f32> = (0..num_heads)
            .flat_map(|head| (0..each).map(move |place| place * num_heads + head))
            .map(|index| frequency(index) as f32)
            .collect();
        let data = TensorData::new(values, [num_heads, each]);
        Self { freqs: buffer(Tensor::from_data(data, device)) }
    }

    /// The angles, those of the height before those of the width.
    ///
    /// # Shapes
    ///
    /// - positions: `[height, width, 2]`
    /// - output: `[height, width, heads, d_head / 4]`
    pub fn theta(&self, positions: Tensor<3>) -> Tensor<4> {
        let freqs = self.freqs.val().unsqueeze::<4>();
        let [y, x] = [0, 1].map(|axis| positions.clone().narrow(2, axis, 1).unsqueeze_dim::<4>(3));
        Tensor::cat(vec![y * freqs.clone(), x * freqs], 3)
    }

    /// Rotates the heads by the angles.
    ///
    /// # Shapes
    ///
    /// - heads: `[batch, height, width, heads, d_head]`
    /// - theta: `[height, width, heads, d_head / 4]`
    /// - output: as heads
    pub fn rotate(&self, heads: Tensor<5>, theta: Tensor<4>) -> Tensor<5> {
        let [.., d_head] = heads.dims();
        let quarter = theta.dims()[3];
        let theta = theta.unsqueeze::<5>();
        let [cos, sin] = [theta.clone().cos(), theta.sin()].map(|part| part.cast(heads.dtype()));
        let first = heads.clone().narrow(4, 0, quarter);
        let second = heads.clone().narrow(4, quarter, quarter);
        let rest = heads.narrow(4, 2 * quarter, d_head - 2 * quarter);
        let rotated = [
            first.clone() * cos.clone() - second.clone() * sin.clone(),
            second * cos + first * sin,
        ];
        let [first, second] = rotated;
        Tensor::cat(vec![first, second, rest], 4)
    }
}
