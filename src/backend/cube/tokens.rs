//! Normalization, linear layers, GELU and convolutions of tokens: kernels and, on CUDA, cuBLASLt's products, or else tensor operations.

use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::ops::{ActivationOps, FloatTensorOps, ModuleOps};
use burn::backend::{DType, TensorMetadata};
use burn::tensor::{Shape, Slice};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use burn_natten_kernels::KernelError;
use burn_natten_kernels::tokens::{self, Maps, Matrix, NormInputs};
use cubecl::client::Client;
use cubecl::zspace::metadata::Metadata;

use super::linear;
use super::memory::empty;
use crate::backend::log_once;
use crate::backend::tokens::{
    ConvolutionPlan, NormGradients, NormPlan, Thirds, TokenGradientOps, TokenOps, convolution,
    convolution_input, convolution_weight, convolved, flattened, gelu_gradient, norm,
    norm_gradients, third_of, thirds,
};
use crate::backend::unfused::Optional;

/// Whether there is nothing to be launched over.
pub(super) fn is_empty(tensor: &CubeTensor) -> bool {
    tensor.shape().num_elements() == 0
}

/// The rows of a tensor.
pub(super) fn matrix(tensor: &CubeTensor) -> Matrix<'_> {
    let dtype = dtype_to_storage_type(tensor.dtype());
    Matrix::new(&tensor.client, flattened(&tensor.shape()), dtype)
}

/// Whether something was launched; else tensor operations are, which is said once.
pub(super) fn is_launched(result: Result<(), KernelError>) -> bool {
    let Err(error) = result else { return true };
    log_once(format!("tokens pass through tensor operations, because {error}"));
    false
}

/// The patches that a weight is multiplied with, `[patches, size * size * channels]`; `None` where there are none, or no kernel for
/// them.
fn unfolded(input: &CubeTensor, weight: &CubeTensor, plan: ConvolutionPlan) -> Option<CubeTensor> {
    let [batch, rows, columns, outputs] =
        convolved(&input.shape(), &weight.shape(), plan).dims::<4>();
    let [_, channels, height, width] = weight.shape().dims::<4>();
    let shape = [batch * rows * columns, height * width * channels];
    if shape.contains(&0) || outputs == 0 {
        return None;
    }
    let input = into_contiguous(input.clone());
    let patches = empty(&input, Shape::new(shape), input.dtype());
    let result = maps(&input, plan).unfold(&input.handle, &patches.handle);
    is_launched(result).then_some(patches)
}

/// The weight of a convolution, `[outputs, channels, size, size]`, as that of a linear layer of patches,
/// `[size * size * channels, outputs]`.
fn matrix_of(weight: CubeTensor) -> CubeTensor {
    let [outputs, channels, height, width] = weight.shape().dims::<4>();
    let weight = CubeBackend::float_permute(weight, &[2, 3, 1, 0]);
    CubeBackend::float_reshape(weight, Shape::new([height * width * channels, outputs]))
}

/// The patches of maps.
fn maps(maps: &CubeTensor, plan: ConvolutionPlan) -> Maps<'_> {
    let shape = maps.shape();
    Maps {
        client: &maps.client,
        batch: shape[0],
        sides: [shape[1], shape[2]],
        channels: shape[3],
        dtype: dtype_to_storage_type(maps.dtype()),
        grid: plan.grid,
    }
}

/// A third of the last axis as it lies in memory; `None` where a view may not begin there.
///
/// Burn's own slices are copies unless they begin where CubeCL's buffers may, at multiples of 512 bytes on CUDA.
fn third(input: &CubeTensor, part: usize) -> Option<CubeTensor> {
    // What vectors and TMA want.
    const CUDA: usize = 16;
    let alignment = match is_cuda(&input.client) {
        true => CUDA,
        false => input.client.properties().memory.alignment as usize,
    };
    let mut shape = input.shape();
    let last = shape.num_dims() - 1;
    let (channels, stride) = (shape[last] / 3, input.meta.strides()[last]);
    let third = channels * stride * input.dtype().size();
    if is_empty(input) || input.meta.is_tiled() || !third.is_multiple_of(alignment) {
        return None;
    }
    shape[last] = channels;
    let [before, after] = [part, 2 - part].map(|parts| (parts * third) as u64);
    Some(CubeTensor::new(
        input.client.clone(),
        input.handle.clone().offset_start(before).offset_end(after),
        Metadata::new(shape, input.meta.strides().clone()),
        input.device.clone(),
        input.dtype(),
    ))
}

#[cfg(feature = "cuda")]
fn is_cuda(client: &Client) -> bool {
    burn_natten_kernels::native::device_info(client).is_some()
}

#[cfg(not(feature = "cuda"))]
fn is_cuda(_client: &Client) -> bool {
    false
}

impl TokenOps for CubeBackend {
    fn token_norm(
        input: CubeTensor,
        gamma: CubeTensor,
        beta: Optional<Self>,
        plan: NormPlan,
    ) -> CubeTensor {
        if is_empty(&input) {
            return norm::<Self>(input, gamma, beta.into_option(), plan);
        }
        let (input, gamma) = (into_contiguous(input), into_contiguous(gamma));
        let beta = beta.into_option().map(into_contiguous);
        let output = empty(&input, input.shape(), input.dtype());
        let result = tokens::layer_norm(
            &matrix(&input),
            &input.handle,
            &gamma.handle,
            beta.as_ref().map(|beta| &beta.handle),
            plan.epsilon,
            &output.handle,
        );
        if is_launched(result) { output } else { norm::<Self>(input, gamma, beta, plan) }
    }

    fn token_linear(input: CubeTensor, weight: CubeTensor, bias: Optional<Self>) -> CubeTensor {
        let bias = bias.into_option();
        linear::forward(&input, &weight, bias.as_ref())
            .unwrap_or_else(|| Self::linear(input, weight, bias))
    }

    fn token_convolution(
        input: CubeTensor,
        weight: CubeTensor,
        bias: Optional<Self>,
        plan: ConvolutionPlan,
    ) -> CubeTensor {
        match unfolded(&input, &weight, plan) {
            Some(patches) => {
                let shape = convolved(&input.shape(), &weight.shape(), plan);
                let output = Self::token_linear(patches, matrix_of(weight), bias);
                Self::float_reshape(output, shape)
            }
            None => convolution::<Self>(input, weight, bias.into_option(), plan),
        }
    }

    fn token_thirds(input: CubeTensor) -> Thirds<Self> {
        match [0, 1, 2].map(|part| third(&input, part)) {
            [Some(first), Some(second), Some(third)] => Thirds { first, second, third },
            _ => thirds::<Self>(input),
        }
    }

    fn token_gelu(input: CubeTensor) -> CubeTensor {
        if is_empty(&input) {
            return Self::gelu(input);
        }
        let input = into_contiguous(input);
        let output = empty(&input, input.shape(), input.dtype());
        let result = tokens::gelu(&matrix(&input), &input.handle, &output.handle);
        if is_launched(result) { output } else { Self::gelu(input) }
    }
}

impl TokenGradientOps for CubeBackend {
    fn token_norm_gradients(
        input: CubeTensor,
        gamma: CubeTensor,
        gradient: CubeTensor,
        plan: NormPlan,
    ) -> NormGradients<Self> {
        if is_empty(&input) {
            return norm_gradients::<Self>(input, gamma, gradient, plan);
        }
        let [input, gamma, gradient] = [input, gamma, gradient].map(into_contiguous);
        let [_, channels] = flattened(&input.shape());
        let of_input = empty(&input, input.shape(), input.dtype());
        let of_parameters = empty(&input, Shape::new([2, channels]), input.dtype());
        let inputs =
            NormInputs { input: &input.handle, gamma: &gamma.handle, gradient: &gradient.handle };
        let result = tokens::layer_norm_backward(
            &matrix(&input),
            &inputs,
            plan.epsilon,
            &of_input.handle,
            &of_parameters.handle,
        );
        if is_launched(result) {
            return NormGradients { input: of_input, parameters: of_parameters };
        }
        norm_gradients::<Self>(input, gamma, gradient, plan)
    }

    fn token_sums(rows: CubeTensor) -> CubeTensor {
        if is_empty(&rows) {
            return Self::linear_bias_backward(rows);
        }
        let rows = into_contiguous(rows);
        let matrix = matrix(&rows);
        let sums = empty(&rows, Shape::new([matrix.channels]), rows.dtype());
        let result = tokens::column_sums(&matrix, &rows.handle, &sums.handle);
        if is_launched(result) { sums } else { Self::linear_bias_backward(rows) }
    }

    fn token_whole(first: CubeTensor, second: CubeTensor, third: CubeTensor) -> CubeTensor {
        let mut shape = first.shape();
        let last = shape.num_dims() - 1;
        let channels = shape[last];
        shape[last] = 3 * channels;
        // Burn's own may have gaps behind rows, which linear layers would have to copy.
        let whole = empty(&first, shape, first.dtype());
        [first, second, third].into_iter().enumerate().fold(whole, |whole, (part, tensor)| {
            Self::float_slice_assign(whole, &third_of(last, channels, part), tensor)
        })
    }

    fn token_linear_input(weight: CubeTensor, gradient: CubeTensor) -> CubeTensor {
        linear::of_input(&weight, &gradient)
            .unwrap_or_else(|| Self::linear_x_backward(weight, gradient))
    }

    fn token_convolution_input(
        input: CubeTensor,
        weight: CubeTensor,
        gradient: CubeTensor,
        plan: ConvolutionPlan,
    ) -> CubeTensor {
        // Patches of types that no kernel knows are not worth their product.
        if is_empty(&input) || is_empty(&gradient) || input.dtype() == DType::F64 {
            return convolution_input::<Self>(input, weight, gradient, plan);
        }
        let to = empty(&input, input.shape(), input.dtype());
        let rows = flattened(&gradient.shape());
        let rows = Self::float_reshape(gradient.clone(), Shape::new(rows));
        let patches = Self::token_linear_input(matrix_of(weight.clone()), rows);
        let patches = into_contiguous(patches);
        let result = maps(&input, plan).fold(&patches.handle, &to.handle);
        if is_launched(result) {
            return to;
        }
        convolution_input::<Self>(input, weight, gradient, plan)
    }

    fn token_convolution_weight(
        input: CubeTensor,
        weight: CubeTensor,
        gradient: CubeTensor,
        plan: ConvolutionPlan,
    ) -> CubeTensor {
        let Some(patches) = unfolded(&input, &weight, plan) else {
            return convolution_weight::<Self>(input, weight, gradient, plan);
        };
        let rows = flattened(&gradient.shape());
        let rows = Self::float_reshape(gradient, Shape::new(rows));
        let [outputs, channels, height, width] = weight.shape().dims::<4>();
        let sum = Self::token_outer(patches, rows);
        let sum = Self::float_reshape(sum, Shape::new([height, width, channels, outputs]));
        Self::float_permute(sum, &[3, 2, 0, 1])
    }

    fn token_gelu_gradient(input: CubeTensor, gradient: CubeTensor) -> CubeTensor {
        if is_empty(&input) {
            return input;
        }
        let [input, gradient] = [input, gradient].map(into_contiguous);
        let to = empty(&input, input.shape(), input.dtype());
        let handles = (&input.handle, &gradient.handle, &to.handle);
        let result = tokens::gelu_backward(&matrix(&input), handles.0, handles.1, handles.2);
        if is_launched(result) { to } else { gelu_gradient::<Self>(input, gradient) }
    }

    fn token_outer(input: CubeTensor, gradient: CubeTensor) -> CubeTensor {
        if is_empty(&input) || is_empty(&gradient) {
            let [[_, channels], [_, outputs]] =
                [&input, &gradient].map(|of| flattened(&of.shape()));
            let shape = Shape::new([channels, outputs]);
            return Self::float_zeros(shape, &input.device, input.dtype().into());
        }
        if let Some(product) = linear::of_weight(&input, &gradient) {
            return product;
        }
        let [rows, channels] = flattened(&input.shape());
        let [_, outputs] = flattened(&gradient.shape());
        let groups = groups(rows, channels * outputs);
        if groups == 1 {
            return Self::linear_weight_backward(input, gradient);
        }
        let (each, grouped) = (rows / groups, rows / groups * groups);
        let in_rows = |tensor, width| Self::float_reshape(tensor, Shape::new([rows, width]));
        let (input, gradient) = (in_rows(input, channels), in_rows(gradient, outputs));
        let in_groups = |tensor: &CubeTensor, width| {
            let part = Self::float_slice(tensor.clone(), &[Slice::from(0..grouped)]);
            Self::float_reshape(part, Shape::new([groups, each, width]))
        };
        let columns = Self::float_swap_dims(in_groups(&input, channels), 1, 2);
        let products = Self::float_matmul(columns, in_groups(&gradient, outputs));
        let products = Self::float_reshape(products, Shape::new([groups, channels * outputs]));
        let sum = Self::float_reshape(Self::token_sums(products), Shape::new([channels, outputs]));
        if grouped == rows {
            return sum;
        }
        // Fewer rows than there are groups.
        let rest = |tensor| Self::float_slice(tensor, &[Slice::from(grouped..rows)]);
        Self::float_add(sum, Self::linear_weight_backward(rest(input), rest(gradient)))
    }
}

/// Elements of a product's tile, and how many tiles keep a large GPU busy.
const TILE: usize = 128 * 128;
const TILES: usize = 128;
/// Fewest rows of a group.
const MIN_ROWS: usize = 512;

/// How many groups of rows have a product of their own.
fn groups(rows: usize, elements: usize) -> usize {
    TILES.div_ceil(elements.div_ceil(TILE).max(1)).min(rows / MIN_ROWS).max(1)
}

#[cfg(test)]
mod tests {
    use super::groups;

    #[test]
    fn groups_share_out_rows_where_weights_are_few() {
        // 64 images of 56 x 56 tokens, 64 to 192 channels.
        assert_eq!(groups(64 * 56 * 56, 64 * 192), 128);
        // 7 x 7 tokens, 512 to 1536: 48 tiles.
        assert_eq!(groups(64 * 7 * 7, 512 * 1536), 3);
        assert_eq!(groups(100_003, 64 * 192), 128);
        for (rows, elements) in [(0, 0), (0, 1), (511, 64), (1009, 64), (4096, 1 << 24)] {
            assert_eq!(groups(rows, elements), 1, "{rows} rows");
        }
    }
}
