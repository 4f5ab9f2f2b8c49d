use burn::backend::Dispatch;
use burn::module::Param;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::{DType, Tensor};
use burn_natten_kernels::tokens::PatchGrid;

use super::{check, one_type};
use crate::backend::tokens::{ConvolutionPlan, TokenOps};

/// Applies a convolution to a map whose channels come last, as [`Conv2d::forward`] does to one whose channels come first, with gradients that
/// are fast on a GPU.
///
/// On CubeCL's backends it is a [linear layer](super::linear) of the patches of the map, which are written out, and again for the weight's
/// gradient: `kernel_size / stride` times the map along each axis, as a workspace; the map's gradient
/// is summed from as much. A convolution that has groups, a dilation or
/// [`PaddingConfig2d::Same`] is Burn's own, and so are all on Flex.
///
/// # Shapes
///
/// - map: `[batch, height, width, channels_in]`
/// - output: `[batch, height, width, channels_out]`, its sides those of [`Conv2d::forward`]
///
/// A map of another type than the weight is computed with in that of the weight, and its output is of its own type.
///
/// # Panics
///
/// If the map has other channels than the convolution, or with its padding is smaller than the convolution's kernel, or weight and bias are of
/// two types.
///
/// ```rust
/// use burn::nn::conv::Conv2dConfig;
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::nn::conv2d;
///
/// let device = Device::flex();
/// let halving = Conv2dConfig::new([8, 16], [3, 3]).with_stride([2, 2]).init(&device);
/// let map = Tensor::<4>::random([2, 9, 7, 8], Distribution::Default, &device);
/// assert_eq!(conv2d(&halving, map).dims(), [2, 4, 3, 16]);
/// ```
#[track_caller]
pub fn conv2d(layer: &Conv2d, map: Tensor<4>) -> Tensor<4> {
    let (weight, bias) = (layer.weight.val(), layer.bias.as_ref().map(Param::val));
    let padding = match layer.padding {
        PaddingConfig2d::Valid => Some([[0, 0], [0, 0]]),
        PaddingConfig2d::Explicit(top, left, bottom, right) => Some([[top, bottom], [left, right]]),
        PaddingConfig2d::Same => None,
    };
    // As Burn has it, not the layer's `kernel_size`.
    let [outputs, channels, rows, columns] = weight.dims();
    check(&map, channels * layer.groups, "channels_in");
    let is_quantized = matches!(weight.dtype(), DType::QFloat(_));
    if !is_quantized {
        one_type(&weight, bias.as_ref());
        if weight.dtype() != map.dtype() {
            let dtype = map.dtype();
            return conv2d(layer, map.cast(weight.dtype())).cast(dtype);
        }
    }
    let is_plain = layer.dilation == [1, 1] && layer.groups == 1 && outputs > 0 && !is_quantized;
    let Some(padding) = padding.filter(|_| is_plain) else {
        return layer.forward(map.permute([0, 3, 1, 2])).permute([0, 2, 3, 1]);
    };
    let grid = PatchGrid { size: [rows, columns], stride: layer.stride, padding };
    let [_, height, width, _] = map.dims();
    assert!(
        grid.count([height, width]).is_some(),
        "map: is {height} x {width}, with its padding must be at least {rows} x {columns} (weight)"
    );
    let (bias, plan) = (bias.map(Tensor::into_dispatch).into(), ConvolutionPlan { grid });
    let (map, weight) = (map.into_dispatch(), weight.into_dispatch());
    Tensor::from_dispatch(Dispatch::token_convolution(map, weight, bias, plan))
}
