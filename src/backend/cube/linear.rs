//! The products of linear layers by the library of the device, where it has one: cuBLASLt on CUDA.
//!
//! Burn's own products are measured or guessed at their first use: a model has some hundred of different sizes.

pub(super) use library::{forward, of_input, of_weight};

#[cfg(feature = "cuda")]
mod library {
    use burn::backend::TensorMetadata;
    use burn::backend::cubecl::dtype_to_storage_type;
    use burn::tensor::Shape;
    use burn_cubecl::kernel::into_contiguous;
    use burn_cubecl::tensor::CubeTensor;
    use burn_natten_kernels::KernelError;
    use burn_natten_kernels::native::{cublas, device_info};

    use crate::backend::cube::memory::empty;
    use crate::backend::log_once;
    use crate::backend::tokens::flattened;
    use crate::backend::unfused::with_last;

    /// `input * weight + bias`, of `[.., channels]`, `[channels, outputs]` and `[outputs]`; `None` where there is no library.
    pub fn forward(
        input: &CubeTensor,
        weight: &CubeTensor,
        bias: Option<&CubeTensor>,
    ) -> Option<CubeTensor> {
        let [rows, channels] = flattened(&input.shape());
        let outputs = weight.shape()[1];
        let layer = layer(input, [rows, channels, outputs])?;
        let [input, weight] = [input, weight].map(|tensor| into_contiguous(tensor.clone()));
        let bias = bias.map(|bias| into_contiguous(bias.clone()));
        let bias = bias.as_ref().map(|bias| &bias.handle);
        let output = empty(&input, with_last(&input.shape(), outputs), input.dtype());
        let result = layer.forward(&input.handle, &weight.handle, bias, &output.handle);
        is_computed(result).then_some(output)
    }

    /// The gradient of the input, `gradient * weight^T`.
    pub fn of_input(weight: &CubeTensor, gradient: &CubeTensor) -> Option<CubeTensor> {
        let [rows, outputs] = flattened(&gradient.shape());
        let channels = weight.shape()[0];
        let layer = layer(gradient, [rows, channels, outputs])?;
        let [weight, gradient] = [weight, gradient].map(|tensor| into_contiguous(tensor.clone()));
        let to = empty(&gradient, with_last(&gradient.shape(), channels), gradient.dtype());
        let result = layer.input_gradient(&weight.handle, &gradient.handle, &to.handle);
        is_computed(result).then_some(to)
    }

    /// The gradient of the weight, `input^T * gradient`.
    pub fn of_weight(input: &CubeTensor, gradient: &CubeTensor) -> Option<CubeTensor> {
        let [rows, channels] = flattened(&input.shape());
        let [_, outputs] = flattened(&gradient.shape());
        let layer = layer(input, [rows, channels, outputs])?;
        let [input, gradient] = [input, gradient].map(|tensor| into_contiguous(tensor.clone()));
        let to = empty(&input, Shape::new([channels, outputs]), input.dtype());
        let result = layer.weight_gradient(&input.handle, &gradient.handle, &to.handle);
        is_computed(result).then_some(to)
    }

    /// A layer whose products the library has; `None` for other devices than CUDA's, and where there is nothing to multiply.
    fn layer(tensor: &CubeTensor, shape: [usize; 3]) -> Option<cublas::Linear<'_>> {
        let client = &tensor.client;
        if device_info(client).is_none() || shape.contains(&0) {
            return None;
        }
        let [rows, channels, outputs] = shape;
        let dtype = dtype_to_storage_type(tensor.dtype());
        is_computed(cublas::is_available(client)).then_some(())?;
        Some(cublas::Linear { client, rows, channels, outputs, dtype })
    }

    fn is_computed(result: Result<(), KernelError>) -> bool {
        let Err(error) = result else { return true };
        log_once(format!("linear layers are Burn's own matrix products, because {error}"));
        false
    }
}

#[cfg(not(feature = "cuda"))]
mod library {
    use burn_cubecl::tensor::CubeTensor;

    pub fn forward(
        _input: &CubeTensor,
        _weight: &CubeTensor,
        _bias: Option<&CubeTensor>,
    ) -> Option<CubeTensor> {
        None
    }

    pub fn of_input(_weight: &CubeTensor, _gradient: &CubeTensor) -> Option<CubeTensor> {
        None
    }

    pub fn of_weight(_input: &CubeTensor, _gradient: &CubeTensor) -> Option<CubeTensor> {
        None
    }
}
