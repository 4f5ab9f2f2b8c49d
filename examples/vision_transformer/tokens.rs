//! Pictures and what becomes of them: a token for each place of a grid, whatever the grids' sizes.
//!
//! ```text
//! values  | picture 0 | picture 1 | picture 2      |   [1, total, channels]
//! grids     [8, 8]      [8, 8]      [9, 12]
//! ```
//!
//! Nothing is padded. What works on single tokens takes all of them at once, and so does attention; convolutions take the grids of
//! one size as a batch, and then those of the next.

use std::iter::repeat_n;

use burn::nn::conv::Conv2d;
use burn::tensor::{Device, Tensor, TensorData};
use burn_natten::nn::{NeighborhoodTransformerBlock, conv2d};
use burn_natten::packed::{pack, unpack};
use burn_natten::{Spaces, Window};

/// Tokens of one picture behind those of the other. Pictures of the same size are best neighbors.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// `[1, total, channels]`.
    values: Tensor<3>,
    /// Height and width of each picture in tokens.
    grids: Spaces<2>,
}

impl Tokens {
    /// The values of all tokens, `[1, total, channels]`, and the grids they stand on.
    pub fn new(values: Tensor<3>, grids: Spaces<2>) -> Self {
        assert_eq!(values.dims()[..2], [1, grids.tokens()], "tokens of other grids");
        Self { values, grids }
    }

    /// Pixels, channel after channel of each token.
    pub fn from_pixels(pixels: Vec<f32>, sizes: Vec<[usize; 2]>, device: &Device) -> Self {
        let grids = Spaces::new(sizes);
        let shape = [1, grids.tokens(), pixels.len() / grids.tokens().max(1)];
        Self::new(Tensor::from_data(TensorData::new(pixels, shape), device), grids)
    }

    /// Height and width of each picture in tokens.
    pub fn sizes(&self) -> &[[usize; 2]] {
        self.grids.as_slice()
    }

    /// The values of all tokens, `[1, total, channels]`.
    pub fn values(&self) -> Tensor<3> {
        self.values.clone()
    }

    /// Applies what works on single tokens.
    pub fn map(self, layer: impl Fn(Tensor<3>) -> Tensor<3>) -> Self {
        Self::new(layer(self.values), self.grids)
    }

    /// Applies a convolution to each picture; at its edge are zeros, as if it were alone.
    pub fn convolve(self, convolution: &Conv2d) -> Self {
        self.by_size(|grids| conv2d(convolution, grids))
    }

    /// Applies a block. Its windows shrink where a picture is smaller than they are.
    pub fn attend(self, block: &NeighborhoodTransformerBlock) -> Self {
        let window = window(block);
        let windows: Vec<_> = self.sizes().iter().map(|size| window.within(*size)).collect();
        // Pictures of one size are a batch like any other.
        if self.runs().len() == 1 && windows[0] == window {
            return self.by_size(|grids| block.forward(grids));
        }
        let grids = self.grids.clone().with_windows(windows);
        self.map(|values| block.forward_packed(values, &grids))
    }

    /// The mean of each picture's tokens, `[pictures, channels]`.
    pub fn mean(self) -> Tensor<2> {
        let means = self.by_size(|grids| grids.mean_dim(1).mean_dim(2));
        means.values.squeeze_dim::<2>(0)
    }

    /// Applies a layer to the neighboring pictures of each size, as a batch of them: `[pictures, height, width, channels]` become as
    /// many of another size or of other channels.
    pub fn by_size(self, layer: impl Fn(Tensor<4>) -> Tensor<4>) -> Self {
        let runs = self.runs();
        let channels = self.values.dims()[2];
        // The pictures of a size, one below the other, are a picture, too.
        let tall: Vec<_> =
            runs.iter().map(|(count, [height, width])| [count * height, *width]).collect();
        let parts = unpack::<2, 3>(self.values, &Spaces::new(tall)).expect("these are its grids");
        let mut grids = Vec::with_capacity(self.grids.len());
        let mut outputs = Vec::with_capacity(runs.len());
        for (part, (count, [height, width])) in parts.into_iter().zip(runs) {
            let output = layer(part.reshape([count, height, width, channels]));
            let [count, height, width, channels] = output.dims();
            grids.extend(repeat_n([height, width], count));
            outputs.push(output.reshape([count * height, width, channels]));
        }
        let (values, _) = pack::<2, 3>(outputs).expect("one layer made them all, of some picture");
        Self::new(values, Spaces::new(grids))
    }

    /// How many neighbors share a size, and the size.
    fn runs(&self) -> Vec<(usize, [usize; 2])> {
        self.sizes().chunk_by(|a, b| a == b).map(|run| (run.len(), run[0])).collect()
    }
}

/// The window of a block, where a picture is large enough for it.
pub fn window(block: &NeighborhoodTransformerBlock) -> Window<2> {
    let attention = &block.attention;
    Window::new(attention.kernel_size)
        .with_stride(attention.stride)
        .with_dilation(attention.dilation)
}

#[cfg(test)]
mod tests {
    use burn::nn::PaddingConfig2d;
    use burn::nn::conv::Conv2dConfig;
    use burn::tensor::Distribution;

    use super::*;
    use crate::alone::alone;

    #[test]
    fn layers_see_each_picture_alone() {
        let _alone = alone();
        let device = Device::flex();
        let sizes = [[4, 4], [4, 4], [3, 5], [1, 2], [4, 4]];
        let pictures =
            sizes.map(|[h, w]| Tensor::<3>::random([h, w, 3], Distribution::Default, &device));
        let (values, grids) = pack::<2, 3>(pictures.to_vec()).expect("of one kind");
        let tokens = Tokens::new(values, grids);
        let halve = Conv2dConfig::new([3, 6], [3, 3])
            .with_stride([2, 2])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .init(&device);
        let halved = tokens.clone().convolve(&halve);
        assert_eq!(halved.sizes(), [[2, 2], [2, 2], [2, 3], [1, 1], [2, 2]]);
        let means = tokens.mean();
        assert_eq!(means.dims(), [5, 3]);
        for (index, (picture, range)) in pictures.into_iter().zip(halved.grids.ranges()).enumerate()
        {
            let alone = picture.clone().unsqueeze::<4>().permute([0, 3, 1, 2]);
            let alone = halve.forward(alone).permute([0, 2, 3, 1]);
            let got = halved.values.clone().narrow(1, range.start, range.len());
            assert!(got.all_close(alone.reshape([1, range.len(), 6]), None, Some(1e-6)));
            let mean = picture.mean_dim(0).mean_dim(1).reshape([1, 3]);
            assert!(means.clone().narrow(0, index, 1).all_close(mean, None, Some(1e-6)));
        }
    }
}
