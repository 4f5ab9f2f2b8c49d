use std::ops::Range;

use burn::tensor::{Slice, Tensor};

use super::Spaces;
use crate::AttentionError;
use crate::functional::inputs::matches;
use crate::problem::same;

/// Tensors of different spaces as one packed tensor, and their spaces. Differentiable; [`unpack`] is the way back.
///
/// # Shapes
///
/// `D` is `N + 1`.
///
/// - tensors: `[*space, channels]` each, at least one
/// - returns `[1, total, channels]`
///
/// # Errors
///
/// [`AttentionError`] if there is no tensor, or one has other channels, another type or another device than the first.
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
    const OTHER: &str = "the first of them";
    let Some(first) = tensors.first().cloned() else {
        let bound = "at least 1".to_string();
        return Err(AttentionError::Parameter { parameter: "tensors", got: 0, bound });
    };
    let channels = first.dims();
    let mut spaces = vec![];
    let mut lines = vec![];
    for tensor in tensors {
        let dims = tensor.dims();
        same(&dims, "tensors", &channels, OTHER, N, "channels")?;
        matches(("tensors", &tensor), (OTHER, &first))?;
        let mut space = [0; N];
        space.copy_from_slice(&dims[..N]);
        spaces.push(space);
        // Burn takes a length of 0 for another of the tensor's.
        if !space.contains(&0) {
            lines.push(tensor.reshape([1, space.iter().product(), dims[N]]));
        }
    }
    let packed = match lines.is_empty() {
        true => Tensor::empty([1, 0, channels[N]], (&first.device(), first.dtype())),
        false => Tensor::cat(lines, 1),
    };
    Ok((packed, Spaces::new(spaces)))
}

/// The tensors of a packed one. Differentiable; to pool or to add up by space, [`Spaces::sequences`] is cheaper.
///
/// # Shapes
///
/// `D` is `N + 1`.
///
/// - packed: `[1, total, channels]`
/// - returns `[*space, channels]` of each
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
    let empty = (packed.device(), packed.dtype());
    let tensor = |(tokens, space): (Option<Tensor<3>>, &[usize; N])| {
        let mut shape = [dims[2]; D];
        shape[..N].copy_from_slice(space);
        match tokens {
            Some(tokens) => tokens.reshape(shape),
            None => Tensor::empty(shape, (&empty.0, empty.1)),
        }
    };
    let ranges: Vec<_> = spaces.ranges().collect();
    let mut lines = Vec::with_capacity(ranges.len());
    split(packed, &ranges, &mut lines);
    Ok(lines.into_iter().zip(spaces.as_slice()).map(tensor).collect())
}

/// The tokens of these neighboring ranges, which are all that `tokens` has; `None` where there are none.
///
/// By halves: the gradient of a slice has the size of what it was cut from, so that slices of the whole would take as much time and
/// memory as there are sequences, times all tokens.
fn split(tokens: Tensor<3>, ranges: &[Range<usize>], lines: &mut Vec<Option<Tensor<3>>>) {
    match ranges {
        [] => {}
        [range] => lines.push((!range.is_empty()).then_some(tokens)),
        _ => {
            let [_, total, _] = tokens.dims();
            let (left, right) = ranges.split_at(ranges.len() / 2);
            let length = right[0].start - left[0].start;
            for (half, range) in [(left, 0..length), (right, length..total)] {
                let is_empty = range.is_empty();
                let slices = [Slice::full(), Slice::from(range), Slice::full()];
                // Burn takes an empty range for another.
                match is_empty {
                    true => lines.extend(half.iter().map(|_| None)),
                    false => split(tokens.clone().slice(slices), half, lines),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn spaces_without_tokens_are_there() {
        let device = Device::flex();
        let of = |space: [usize; 2]| Tensor::<3>::ones([space[0], space[1], 3], &device);
        let sizes = [[0, 6], [2, 2], [5, 0]];
        let (packed, spaces) = pack::<2, 3>(sizes.map(of).to_vec()).expect("of one kind");
        assert_eq!((packed.dims(), spaces.as_slice()), ([1, 4, 3], &sizes[..]));
        let back = unpack::<2, 3>(packed, &spaces).expect("fits");
        assert!(back.iter().map(Tensor::dims).eq(sizes.map(|[a, b]| [a, b, 3])));
        let (none, spaces) = pack::<2, 3>(vec![of([0, 6])]).expect("of one kind");
        assert_eq!((none.dims(), spaces.tokens()), ([1, 0, 3], 0));
    }
}
