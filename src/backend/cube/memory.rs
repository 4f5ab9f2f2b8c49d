//! Burn's tensors as kernels take them: memory, strides, and copies where no strides describe them.

use burn::backend::{DType, Shape as TensorShape, TensorMetadata};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use burn_natten_kernels::{MAX_RANK, Operand, Operands, Outputs, Problem, Saved, Shape, Strided};

use crate::Tier;
use crate::backend::extension::with_out;

/// Uninitialised outputs of a forward pass.
pub(super) fn empty_outputs(query: &CubeTensor, problem: &Problem) -> Outputs<CubeTensor> {
    let rows = query.shape().as_slice()[..query.shape().num_dims() - 1].to_vec();
    let out = [rows.as_slice(), &[problem.head_dim_v]].concat();
    Outputs {
        out: empty(query, TensorShape::from(out), query.dtype()),
        lse: empty(query, TensorShape::from(rows), DType::F32),
    }
}

/// Uninitialised gradients of those of these inputs for which they are wanted.
pub(super) fn empty_gradients(
    operands: &Operands<CubeTensor>,
    wanted: Operands<bool>,
) -> Operands<Option<CubeTensor>> {
    operands.as_ref().zip(wanted).map(|_, (tensor, is_wanted)| {
        is_wanted.then(|| empty(tensor, tensor.shape(), tensor.dtype()))
    })
}

/// An uninitialised tensor that is contiguous, which others need not be on CUDA.
pub(super) fn empty(like: &CubeTensor, shape: TensorShape, dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape, dtype)
}

/// The same of several, in one piece of memory, which takes as long as one.
#[cfg(feature = "cuda")]
pub(super) fn empty_together<const N: usize>(
    like: &CubeTensor,
    tensors: [(TensorShape, DType); N],
) -> [CubeTensor; N] {
    let descriptor = |(shape, dtype): &(TensorShape, DType)| {
        cubecl::server::MemoryLayoutDescriptor::contiguous(shape.clone(), dtype.size())
    };
    let layouts = like.client.empty_tensors(tensors.iter().map(descriptor).collect());
    let mut layouts = layouts.into_iter();
    tensors.map(|(shape, dtype)| {
        let layout = layouts.next().expect("a layout for each descriptor");
        let (client, device) = (like.client.clone(), like.device.clone());
        CubeTensor::new_contiguous(client, device, shape, layout.memory, dtype)
    })
}

/// What kernels of a tier read: those that are not native read an output that does not count, too, which has to be zero.
pub(super) fn read_by(tier: Tier, saved: &Saved<CubeTensor>) -> Saved<CubeTensor> {
    let is_native = matches!(tier, Tier::Hopper | Tier::Blackwell);
    if saved.has_out || is_native {
        return saved.clone();
    }
    let Saved { operands, outputs, gradients, has_out } = with_out::<CubeBackend>(saved.clone());
    // On CUDA rows of zeros may have gaps in between.
    let outputs = Outputs { out: into_contiguous(outputs.out), lse: outputs.lse };
    Saved { operands, outputs, gradients, has_out }
}

/// How tensors are handed over.
#[derive(Clone, Copy)]
pub(super) enum Lay {
    /// As they are, where strides describe them in the axes of the problem.
    AsTheyAre,
    /// As contiguous copies, but for those that are contiguous.
    Contiguous,
}

impl Lay {
    pub fn operands(self, problem: &Problem, operands: &Operands<CubeTensor>) -> Operands<Strided> {
        operands.as_ref().map(|operand, tensor| match operand {
            // Small, and not heads last: kernels read it in order.
            Operand::Bias => Strided {
                handle: into_contiguous(tensor.clone()).handle,
                strides: operand.strides(problem),
            },
            _ => self.view(tensor, operand.shape(problem)),
        })
    }

    pub fn saved(self, problem: &Problem, saved: &Saved<CubeTensor>) -> Saved<Strided> {
        let out = |tensor| self.view(tensor, Shape::out(problem));
        // What kernels read of a logsumexp they read in order.
        let lse = |tensor| Self::Contiguous.view(tensor, Shape::lse(problem));
        Saved {
            has_out: saved.has_out,
            operands: self.operands(problem, &saved.operands),
            outputs: Outputs { out: out(&saved.outputs.out), lse: lse(&saved.outputs.lse) },
            gradients: Outputs { out: out(&saved.gradients.out), lse: lse(&saved.gradients.lse) },
        }
    }

    /// A tensor `[batch, *space, heads, dim]`, or without `dim` where vectors have one element, in the axes of a
    /// problem.
    pub fn view(self, tensor: &CubeTensor, shape: Shape) -> Strided {
        let strides = match self {
            Self::AsTheyAre if !tensor.meta.is_tiled() => {
                strides(tensor.meta.shape(), tensor.meta.strides(), shape)
            }
            _ => None,
        };
        match strides {
            Some(strides) => Strided { handle: tensor.handle.clone(), strides },
            // Strides follow from the shape: those of a contiguous tensor may say anything of an axis of one element.
            None => Strided::contiguous(into_contiguous(tensor.clone()).handle, shape),
        }
    }
}

/// The strides of a tensor `[batch, *space, heads, dim]` along the axes of a problem, whose space is the tensor's, padded at
/// the front, or all of it in one line; `None` if there are none.
fn strides(sizes: &[usize], strides: &[usize], shape: Shape) -> Option<[usize; 5]> {
    let rank = sizes.len();
    if shape.dim > 1 && strides[rank - 1] != 1 {
        return None;
    }
    let mut padded = [strides[0], 0, 0, 0, strides[rank - 2]];
    let mut tokens = [1; MAX_RANK];
    let space = rank - 3;
    padded[4 - space..4].copy_from_slice(&strides[1..rank - 2]);
    tokens[MAX_RANK - space..].copy_from_slice(&sizes[1..rank - 2]);
    if tokens == shape.tokens {
        return Some(padded);
    }
    assert_eq!(shape.tokens, [1, 1, tokens.iter().product()], "{sizes:?}");
    Shape { tokens, ..shape }.line(padded)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLANE: Shape = Shape { batch: 2, tokens: [1, 4, 6], heads: 3, dim: 8 };

    /// Strides of a contiguous tensor, with two of its axes exchanged.
    fn exchanged(sizes: &mut [usize], a: usize, b: usize) -> Vec<usize> {
        sizes.swap(a, b);
        let mut strides = vec![1; sizes.len()];
        for axis in (0..sizes.len() - 1).rev() {
            strides[axis] = strides[axis + 1] * sizes[axis + 1];
        }
        sizes.swap(a, b);
        strides.swap(a, b);
        strides
    }

    #[test]
    fn windows_that_cover_the_space_are_one_line_only_where_the_tensor_is() {
        let line = Shape { tokens: [1, 1, 24], ..PLANE };
        let mut sizes = [2, 4, 6, 3, 8];
        let contiguous = exchanged(&mut sizes, 0, 0);
        assert_eq!(strides(&sizes, &contiguous, PLANE), Some([576, 0, 144, 24, 8]));
        assert_eq!(strides(&sizes, &contiguous, line), Some([576, 0, 0, 24, 8]));
        // Height and width exchanged: strides of both axes, but of no line.
        let swapped = exchanged(&mut sizes, 1, 2);
        assert_eq!(strides(&sizes, &swapped, PLANE), Some([576, 0, 24, 96, 8]));
        assert_eq!(strides(&sizes, &swapped, line), None);
        // Cropped along the width, and along the height.
        let wide = exchanged(&mut [2, 4, 9, 3, 8], 0, 0);
        assert_eq!(strides(&sizes, &wide, line), None);
        let tall = exchanged(&mut [2, 9, 6, 3, 8], 0, 0);
        assert_eq!(strides(&sizes, &tall, line), Some([1296, 0, 0, 24, 8]));
        // Heads exchanged with the width: tokens are neighbors in a line all the same.
        let heads = exchanged(&mut sizes, 2, 3);
        assert_eq!(strides(&sizes, &heads, line), None);
        assert_eq!(strides(&sizes, &heads, PLANE), Some([576, 0, 144, 8, 48]));
    }

    #[test]
    fn vectors_have_to_be_contiguous_unless_they_have_one_element() {
        let mut sizes = [2, 4, 6, 3, 8];
        let last = exchanged(&mut sizes, 3, 4);
        assert_eq!(strides(&sizes, &last, PLANE), None);
        let single = Shape { dim: 1, ..PLANE };
        assert_eq!(strides(&[2, 4, 6, 3, 1], &[72, 18, 3, 1, 3], single), Some([72, 0, 18, 3, 1]));
    }
}
