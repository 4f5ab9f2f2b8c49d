//! A learned embedding of places, for pictures of any size.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Tensor, TensorData};

use crate::resample::place;

/// Learned for the places of a square, and stretched over pictures of other sizes.
#[derive(Module, Debug)]
pub struct Positions {
    /// `[side, side, channels]`.
    pub table: Param<Tensor<3>>,
}

impl Positions {
    /// For a square of this side.
    pub fn new(side: usize, channels: usize, device: &Device) -> Self {
        let table =
            Initializer::Normal { mean: 0.0, std: 0.1 }.init([side, side, channels], device);
        Self { table }
    }

    /// Adds its embedding to each place of `[batch, height, width, channels]`.
    pub fn add(&self, grids: Tensor<4>) -> Tensor<4> {
        let [_, height, width, _] = grids.dims();
        grids + self.stretched([height, width]).unsqueeze::<4>()
    }

    /// `[height, width, channels]`: between four places of the square, the linear mean of them.
    fn stretched(&self, [height, width]: [usize; 2]) -> Tensor<3> {
        let table = self.table.val();
        let [side, _, channels] = table.dims();
        if [height, width] == [side, side] {
            return table;
        }
        let (device, dtype) = (table.device(), table.dtype());
        let stretch = |length: usize| {
            let weights = TensorData::new(weights(length, side), [length, side]);
            Tensor::<2>::from_data(weights, (&device, dtype))
        };
        let rows = stretch(height).matmul(table.reshape([side, side * channels]));
        let rows = rows.reshape([height, side, channels]);
        stretch(width).unsqueeze::<3>().expand([height, width, side]).matmul(rows)
    }
}

/// How much of each of `side` places lies at each of `length`, when both cover the same.
fn weights(length: usize, side: usize) -> Vec<f32> {
    let last = (side - 1) as f32;
    let place = |index: usize| place(index, side, length).clamp(0.0, last);
    let of = |index: usize| {
        (0..side).map(move |other| (1.0 - (place(index) - other as f32).abs()).max(0.0))
    };
    (0..length).flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lie_between_those_of_the_square() {
        assert_eq!(weights(2, 2), [1.0, 0.0, 0.0, 1.0]);
        assert_eq!(weights(4, 2), [1.0, 0.0, 0.75, 0.25, 0.25, 0.75, 0.0, 1.0]);
        assert_eq!(weights(1, 4), [0.0, 0.5, 0.5, 0.0]);
        for (length, side) in [(12, 8), (9, 8), (3, 8), (1, 1), (5, 1)] {
            let all = weights(length, side);
            assert!(all.chunks(side).all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-6));
        }
    }

    #[test]
    fn an_embedding_that_grows_steadily_does_so_in_every_size() {
        let device = Device::flex();
        // Ten times the row, and the column.
        let table = (0..16).map(|place| (place / 4 * 10 + place % 4) as f32).collect();
        let table = Tensor::from_data(TensorData::new::<f32, _>(table, [4, 4, 1]), &device);
        let positions = Positions { table: Param::from_tensor(table.clone()) };
        assert!(positions.stretched([4, 4]).equal(table).all().into_scalar::<bool>());
        let got = positions.add(Tensor::ones([2, 2, 8, 1], &device));
        // The edges of a picture have nothing beyond them.
        let columns = [0.0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.0];
        let expected: Vec<f32> =
            [5.0, 25.0].iter().flat_map(|row| columns.map(|column| 1.0 + row + column)).collect();
        let expected = Tensor::<4>::from_data(TensorData::new(expected, [1, 2, 8, 1]), &device);
        assert!(got.all_close(expected.expand([2, 2, 8, 1]), None, Some(1e-5)));
    }
}
