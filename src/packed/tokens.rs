use burn::tensor::{Slice, Tensor};

use super::Spaces;
use crate::AttentionError;
use crate::problem::same;

/// Tensors of different spaces, `[*space, channels]` each, as one packed tensor `[1, total, channels]`, and their spaces.
///
/// `D` is `N + 1`. Differentiable. [`unpack`] is the way back.
///
/// # Errors
///
/// [`AttentionError`] if there is no tensor, or one has other channels than the first.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::packed::{pack, unpack};
///
/// # fn main() -> Result<(), burn_natten::AttentionError> {
/// let device = Device::flex();
/// let image = |size: [usize; 2]| {
///     Tensor::<3>::random([size[0], size[1], 8], Distribution::Default, &device)
/// };
/// let images = vec![image([4, 6]), image([5, 3])];
/// let (packed, spaces) = pack::<2, 3>(images.clone())?;
/// assert_eq!((packed.dims(), spaces.as_slice()), ([1, 39, 8], &[[4, 6], [5, 3]][..]));
/// let back = unpack::<2, 3>(packed, &spaces)?;
/// assert!(back[1].clone().equal(images[1].clone()).all().into_scalar::<bool>());
/// # Ok(())
/// # }
/// ```
pub fn pack<const N: usize, const D: usize>(
    tensors: Vec<Tensor<D>>,
) -> Result<(Tensor<3>, Spaces<N>), AttentionError> {
    const { assert!(D == N + 1, "a tensor has the axes of its space, and channels") };
    let Some(first) = tensors.first() else {
        let bound = "at least 1".to_string();
        return Err(AttentionError::Parameter { parameter: "tensors", got: 0, bound });
    };
    let channels = first.dims();
    let mut spaces = vec![];
    let mut lines = vec![];
    for tensor in tensors {
        let dims = tensor.dims();
        same(&dims, "tensors", &channels, "the first of them", N, "channels")?;
        let mut space = [0; N];
        space.copy_from_slice(&dims[..N]);
        lines.push(tensor.reshape([1, space.iter().product(), dims[N]]));
        spaces.push(space);
    }
    Ok((Tensor::cat(lines, 1), Spaces::new(spaces)))
}

/// The tensors `[*space, channels]` of a packed one, `[1, total, channels]`. Differentiable.
///
/// `D` is `N + 1`.
///
/// # Errors
///
/// [`AttentionError::Shape`] if it has not the tokens of the spaces.
pub fn unpack<const N: usize, const D: usize>(
    packed: Tensor<3>,
    spaces: &Spaces<N>,
) -> Result<Vec<Tensor<D>>, AttentionError> {
    const { assert!(D == N + 1, "a tensor has the axes of its space, and channels") };
    let dims = packed.dims();
    let expected = [1, spaces.tokens()];
    same(&dims, "packed", &expected, "a packed batch", 0, "batch")?;
    same(&dims, "packed", &expected, "spaces", 1, "tokens")?;
    let tensor = |(range, space): (std::ops::Range<usize>, &[usize; N])| {
        let mut shape = [dims[2]; D];
        shape[..N].copy_from_slice(space);
        packed.clone().slice([Slice::full(), Slice::from(range), Slice::full()]).reshape(shape)
    };
    Ok(spaces.ranges().zip(spaces.as_slice()).map(tensor).collect())
}
