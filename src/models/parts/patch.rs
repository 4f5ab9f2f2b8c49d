use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::{Device, Tensor};

use super::pad_to;
use crate::nn::{LayerNorm, conv2d};

/// One token for each patch, by a convolution whose stride is its kernel.
#[derive(Module, Debug)]
pub struct PatchEmbed {
    /// The convolution.
    pub proj: Conv2d,
    /// Normalization, if the model has one here.
    pub norm: Option<LayerNorm>,
}

impl PatchEmbed {
    pub(in crate::models) fn new(
        [channels, dim]: [usize; 2],
        patch_size: usize,
        norm: bool,
        device: &Device,
    ) -> Self {
        let proj = Conv2dConfig::new([channels, dim], [patch_size; 2])
            .with_stride([patch_size; 2])
            .init(device);
        Self { proj, norm: norm.then(|| LayerNorm::new(dim, device)) }
    }

    /// Embeds an image, padded with zeros at the bottom and at the right to a multiple of the patch.
    ///
    /// # Shapes
    ///
    /// - image: `[batch, channels, height, width]`
    /// - output: `[batch, height / patch_size, width / patch_size, dim]`, rounded up
    pub fn forward(&self, image: Tensor<4>) -> Tensor<4> {
        let [_, _, height, width] = image.dims();
        let [rows, columns] = self.proj.stride;
        let target = [height.next_multiple_of(rows), width.next_multiple_of(columns)];
        let tokens = conv2d(&self.proj, pad_to(image.permute([0, 2, 3, 1]), target));
        match &self.norm {
            Some(norm) => norm.forward(tokens),
            None => tokens,
        }
    }
}
