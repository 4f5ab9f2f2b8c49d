//! What a token attends to, as numbers and drawn over a picture.

use burn::tensor::activation::softmax;
use burn::tensor::{FloatDType, Tensor};
use burn_natten::{NeighborhoodOptions, na2d_qk};

use super::Failure;
use super::panels::{Area, BACKGROUND, Canvas, QUERY, WINDOW, heat};

/// How much a token attends to each token of a map.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Height and width of the map.
    pub grid: [usize; 2],
    /// The token.
    pub query: [usize; 2],
    /// For each head a weight for each token, row by row; 0 outside of the window.
    pub heads: Vec<Vec<f32>>,
}

impl Attention {
    /// The weights of one token: `softmax(na2d_qk(query, key))`, put where its keys are.
    ///
    /// Of a batch the first map is taken: `query` and `key` are `[batch, height, width, heads, head_dim]`.
    pub fn of(
        query: Tensor<5>,
        key: Tensor<5>,
        options: NeighborhoodOptions<2>,
        [row, column]: [usize; 2],
    ) -> Result<Self, Failure> {
        let [_, height, width, heads, _] = query.dims();
        let axes = options
            .axes([height, width])
            .map_err(|error| Failure::Run(format!("the weights cannot be computed: {error}")))?;
        let scores = na2d_qk(query.narrow(0, 0, 1), key.narrow(0, 0, 1), options);
        let scores = scores.narrow(1, row, 1).narrow(2, column, 1).cast(FloatDType::F32);
        let weights: Vec<f32> = softmax(scores, 4)
            .into_data()
            .try_to_vec()
            .map_err(|error| Failure::Run(format!("the weights cannot be read: {error:?}")))?;

        let [(first_row, rows), (first_column, columns)] =
            [axes[0].window(row), axes[1].window(column)];
        let slots = axes[0].kernel_size * axes[1].kernel_size;
        let head = |head: usize| {
            let mut map = vec![0.0; height * width];
            for (slot, weight) in weights[head * slots..][..slots].iter().enumerate() {
                let (y, x) = (slot / axes[1].kernel_size, slot % axes[1].kernel_size);
                if y < rows && x < columns {
                    let y = first_row + y * axes[0].dilation;
                    let x = first_column + x * axes[1].dilation;
                    map[y * width + x] = *weight;
                }
            }
            map
        };
        let heads = (0..heads).map(head).collect();
        Ok(Self { grid: [height, width], query: [row, column], heads })
    }

    /// The mean of all heads.
    pub fn mean(&self) -> Vec<f32> {
        let count = self.heads.len() as f32;
        let tokens = 0..self.grid[0] * self.grid[1];
        tokens.map(|token| self.heads.iter().map(|head| head[token]).sum::<f32>() / count).collect()
    }

    /// Covers a picture with `part` of the heat where the query looks, and frames its window.
    pub fn draw(&self, canvas: &mut Canvas, area: Area, weights: &[f32], part: f32) {
        let largest = weights.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
        let (mut rows, mut columns) = ([self.grid[0], 0], [self.grid[1], 0]);
        for (token, weight) in weights.iter().enumerate() {
            let (row, column) = (token / self.grid[1], token % self.grid[1]);
            let cell = area.cell(self.grid, [row, column]);
            if *weight > 0.0 {
                canvas.shade(cell, heat(weight / largest), part);
                rows = [rows[0].min(row), rows[1].max(row + 1)];
                columns = [columns[0].min(column), columns[1].max(column + 1)];
            } else {
                canvas.shade(cell, BACKGROUND, 0.55);
            }
        }
        if rows[0] < rows[1] {
            canvas.frame(area.cells(self.grid, rows, columns), 2, WINDOW);
        }
        self.mark(canvas, area);
    }

    /// Frames the query.
    pub fn mark(&self, canvas: &mut Canvas, area: Area) {
        canvas.frame(area.cell(self.grid, self.query), 3, QUERY);
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution};
    use burn_natten::na2d;

    use super::*;

    #[test]
    fn weights_are_those_that_the_operator_takes_the_mean_with() {
        let device = Device::flex();
        let random = |dim| Tensor::<5>::random([2, 11, 9, 2, dim], Distribution::Default, &device);
        let (query, key) = (random(8), random(8));
        // Each token as a value of its own.
        let value = Tensor::<2>::eye(99, &device).reshape([1, 11, 9, 1, 99]);
        let value = value.expand([2, 11, 9, 2, 99]);
        let options = NeighborhoodOptions::<2>::new([3, 4]).with_dilation([2, 1]);
        let out = na2d(query.clone(), key.clone(), value, options.clone());
        for token in [[0, 5], [6, 8], [10, 0]] {
            let attention =
                Attention::of(query.clone(), key.clone(), options.clone(), token).expect("fits");
            let of_token = out.clone().narrow(0, 0, 1).narrow(1, token[0], 1);
            let expected: Vec<f32> =
                of_token.narrow(2, token[1], 1).into_data().try_to_vec().expect("is f32");
            let got = attention.heads.concat();
            assert!(got.iter().zip(&expected).all(|(got, want)| (got - want).abs() < 1e-5));
            assert_eq!(got.iter().filter(|weight| **weight > 0.0).count(), 2 * 12);
            assert!((attention.mean().iter().sum::<f32>() - 1.0).abs() < 1e-5);
        }
    }
}
