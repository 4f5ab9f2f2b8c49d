//! Rotary positions along two axes.

use std::f64::consts::PI;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};

use super::layers::{buffer, cast, wide, wide_of};

/// The positions of the tokens of a map: the centres of the cells of a grid in a box whose longer
/// side is `[-1, 1]` and whose shorter one is in proportion.
///
/// # Shapes
///
/// - map: `[batch, height, width, channels]`
/// - output: `[height, width, 2]`, (y, x), in f32, or f64 for a map in f64
pub fn positions(map: &Tensor<4>) -> Tensor<3> {
    let [_, height, width, _] = map.dims();
    let longer = height.max(width) as f64;
    let centre = |index: usize, length: usize| {
        let count = 2 * index + 1;
        (count as f64 - length as f64) / longer
    };
    let mut values = Vec::with_capacity(2 * height * width);
    for y in 0..height {
        for x in 0..width {
            values.push(centre(y, height));
            values.push(centre(x, width));
        }
    }
    let dtype = wide(map.dtype());
    let data = TensorData::new(values, [height, width, 2]).convert_dtype(dtype);
    Tensor::from_data(data, (&map.device(), dtype))
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
        let dtype = wide_of(device);
        Self { freqs: buffer(Tensor::from_data(data.convert_dtype(dtype), (device, dtype))) }
    }

    /// The angles, those of the height before those of the width.
    ///
    /// # Shapes
    ///
    /// - positions: `[height, width, 2]`, of [`positions`]
    /// - output: `[height, width, heads, d_head / 4]`, in the type of the positions
    pub fn theta(&self, positions: Tensor<3>) -> Tensor<4> {
        let freqs = cast(self.freqs.val(), positions.dtype()).unsqueeze::<4>();
        let [y, x] = [0, 1].map(|axis| positions.clone().narrow(2, axis, 1).unsqueeze_dim::<4>(3));
        Tensor::cat(vec![y * freqs.clone(), x * freqs], 3)
    }

    /// Rotates the heads by the angles, in the type of these.
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
        let (dtype, wide) = (heads.dtype(), theta.dtype());
        let [cos, sin] = [theta.clone().cos(), theta.sin()];
        let part = |start| cast(heads.clone().narrow(4, start, quarter), wide);
        let (first, second) = (part(0), part(quarter));
        let rotated = [
            first.clone() * cos.clone() - second.clone() * sin.clone(),
            second * cos + first * sin,
        ];
        let [first, second] = rotated.map(|part| cast(part, dtype));
        let rest = heads.narrow(4, 2 * quarter, d_head - 2 * quarter);
        Tensor::cat(vec![first, second, rest], 4)
    }
}
