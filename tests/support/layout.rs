//! Tensors that lie otherwise than those of the same values.

use burn::tensor::Tensor;

/// The middle of a longer axis, with NaN beyond.
pub fn cropped<const D: usize>(tensor: Tensor<D>, axis: usize) -> Tensor<D> {
    let mut edge = tensor.dims();
    let length = edge[axis];
    edge[axis] = 1;
    let edge = Tensor::<D>::full(edge, f32::NAN, (&tensor.device(), tensor.dtype()));
    Tensor::cat(vec![edge.clone(), tensor, edge], axis).narrow(axis, 1, length)
}

/// With two axes exchanged in memory.
pub fn swapped<const D: usize>(tensor: Tensor<D>, a: usize, b: usize) -> Tensor<D> {
    (tensor.swap_dims(a, b) * 1.0).swap_dims(a, b)
}

/// A crop along each axis, and every exchange of two: what to call it, and how to lay a tensor so.
pub fn for_each_view<const D: usize>(check: impl Fn(&str, &dyn Fn(Tensor<D>) -> Tensor<D>)) {
    for axis in 0..D {
        // The loss of a crop reads none of the NaN around it.
        check(&format!("cropped along {axis}"), &|tensor| cropped(tensor, axis));
        for other in 0..axis {
            let name = format!("{axis} and {other} exchanged");
            check(&name, &|tensor| swapped(tensor, axis, other));
        }
    }
}
