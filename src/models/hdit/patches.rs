//! Patches of pixels or tokens become one token, and one token becomes a patch.

use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear};
use burn::tensor::{Device, Tensor};

use super::layers::{linear, zero_linear};
use crate::nn::linear as apply;

/// Makes one token of each patch.
#[derive(Module, Debug)]
pub struct TokenMerge {
    /// From the channels of all pixels of a patch, (row, column, channel).
    pub proj: Linear,
    /// Height and width of a patch.
    pub patch_size: [usize; 2],
}

impl TokenMerge {
    pub(super) fn new(
        inputs: usize,
        outputs: usize,
        patch_size: [usize; 2],
        device: &Device,
    ) -> Self {
        let [rows, columns] = patch_size;
        Self { proj: linear(rows * columns * inputs, outputs, device), patch_size }
    }

    /// Merges every patch into a token.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, height, width, inputs]`, height and width multiples of the patch
    /// - output: `[batch, height / rows, width / columns, outputs]`
    ///
    /// # Panics
    ///
    /// If height or width is no multiple.
    #[track_caller]
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let [batch, height, width, channels] = input.dims();
        let [rows, columns] = self.patch_size;
        for (name, got, patch) in [("height", height, rows), ("width", width, columns)] {
            assert!(
                got >= patch && got.is_multiple_of(patch),
                "input: {name} of a level is {got}, must be a positive multiple of {patch}"
            );
        }
        let (height, width) = (height / rows, width / columns);
        let patches = input
            .reshape([batch, height, rows, width, columns, channels])
            .permute([0, 1, 3, 2, 4, 5])
            .reshape([batch, height, width, rows * columns * channels]);
        apply(&self.proj, patches)
    }
}

/// Makes a patch of each token.
#[derive(Module, Debug)]
pub struct TokenSplit {
    /// To the channels of all pixels of a patch, (row, column, channel).
    pub proj: Linear,
    /// How much of the patches is taken where they are mixed with a skip connection, `[1]`.
    pub fac: Option<Param<Tensor<1>>>,
    /// Height and width of a patch.
    pub patch_size: [usize; 2],
}

impl TokenSplit {
    /// Of 2 x 2 tokens, which starts at an even mixture with the skip connection.
    pub(super) fn of_tokens(inputs: usize, outputs: usize, device: &Device) -> Self {
        Self {
            proj: linear(inputs, 4 * outputs, device),
            fac: Some(Initializer::Constant { value: 0.5 }.init([1], device)),
            patch_size: [2, 2],
        }
    }

    /// Of pixels, which starts at zero.
    pub(super) fn of_pixels(
        inputs: usize,
        channels: usize,
        patch_size: [usize; 2],
        device: &Device,
    ) -> Self {
        let [rows, columns] = patch_size;
        Self { proj: zero_linear(inputs, rows * columns * channels, device), fac: None, patch_size }
    }

    /// Splits every token into a patch, and mixes it with a skip connection.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, height, width, inputs]`
    /// - skip: `[batch, height * rows, width * columns, outputs]`, used where there is a `fac`
    /// - output: `[batch, height * rows, width * columns, outputs]`
    pub fn forward(&self, input: Tensor<4>, skip: Option<Tensor<4>>) -> Tensor<4> {
        let [batch, height, width, _] = input.dims();
        let [rows, columns] = self.patch_size;
        let patches = apply(&self.proj, input);
        let channels = patches.dims()[3] / (rows * columns);
        let pixels = patches
            .reshape([batch, height, width, rows, columns, channels])
            .permute([0, 1, 3, 2, 4, 5])
            .reshape([batch, height * rows, width * columns, channels]);
        match (&self.fac, skip) {
            (Some(fac), Some(skip)) => {
                skip.clone() + fac.val().reshape([1, 1, 1, 1]) * (pixels - skip)
            }
            _ => pixels,
        }
    }
}
