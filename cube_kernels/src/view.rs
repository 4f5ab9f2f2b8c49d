//! Tensors in memory, as launches take them, and the checks that all launches share.

use cubecl::server::Handle;

use crate::{KernelError, Operand, Operands, Outputs, Problem, Saved, Shape};

/// A tensor `[batch, z, y, x, heads, vector]`, whose vectors are contiguous.
#[derive(Clone, Debug)]
pub struct Strided {
    /// The memory.
    pub handle: Handle,
    /// Elements between neighbors: batch, z, y, x, heads. Those of an axis of one element do not
    /// matter.
    pub strides: [usize; 5],
}

impl Strided {
    /// A contiguous tensor.
    pub fn contiguous(handle: Handle, shape: Shape) -> Self {
        Self { handle, strides: shape.strides() }
    }

    /// The same with its tokens as one axis, the fastest; `None` where they lie in no such order.
    pub fn line(&self, shape: Shape) -> Option<Self> {
        let strides = shape.line(self.strides)?;
        Some(Self { handle: self.handle.clone(), strides })
    }

    /// Whether it lies without gaps, in order.
    pub fn is_contiguous(&self, shape: Shape) -> bool {
        let all = self.strides.iter().zip(shape.strides()).zip(shape.lengths());
        all.into_iter().all(|((stride, contiguous), length)| length == 1 || *stride == contiguous)
    }

    /// Fails if the last element that is read, of `size` bytes, lies outside the buffer.
    ///
    /// # Errors
    ///
    /// [`KernelError::Buffer`].
    pub fn check(&self, name: &'static str, shape: Shape, size: usize) -> Result<(), KernelError> {
        check_buffer(name, &self.handle, size * shape.extent(self.strides))
    }
}

/// Fails if a buffer is smaller than `expected` bytes.
pub(crate) fn check_buffer(
    name: &'static str,
    handle: &Handle,
    expected: usize,
) -> Result<(), KernelError> {
    let (expected, actual) = (expected as u64, handle.size_in_used());
    if actual < expected {
        return Err(KernelError::Buffer { name, expected, actual });
    }
    Ok(())
}

/// Checks that the additional tokens of a problem are there.
fn check_additional<T>(problem: &Problem, operands: &Operands<T>) -> Result<(), KernelError> {
    match operands.additional.is_some() == (problem.additional > 0) {
        true => Ok(()),
        false => Err(KernelError::Additional(problem.additional)),
    }
}

/// Checks the extents of what both passes read, of elements of `size` bytes.
pub(crate) fn check_operands(
    problem: &Problem,
    operands: &Operands<Strided>,
    size: usize,
) -> Result<(), KernelError> {
    check_additional(problem, operands)?;
    for (operand, tensor) in operands.iter() {
        tensor.check(operand.name(), operand.shape(problem), size)?;
    }
    Ok(())
}

/// Checks the extents of what a forward pass writes.
pub(crate) fn check_outputs(
    problem: &Problem,
    outputs: &Outputs<Handle>,
    size: usize,
) -> Result<(), KernelError> {
    check_buffer("out", &outputs.out, size * Shape::out(problem).elements())?;
    check_buffer("lse", &outputs.lse, size_of::<f32>() * Shape::lse(problem).elements())
}

/// Checks the extents of what a backward pass reads.
pub(crate) fn check_saved(
    problem: &Problem,
    saved: &Saved<Strided>,
    size: usize,
) -> Result<(), KernelError> {
    check_operands(problem, &saved.operands, size)?;
    let Saved { outputs, gradients, .. } = saved;
    let (out, lse) = (Shape::out(problem), Shape::lse(problem));
    outputs.out.check("out", out, size)?;
    outputs.lse.check("lse", lse, size_of::<f32>())?;
    gradients.out.check("dout", out, size)?;
    gradients.lse.check("dlse", lse, size_of::<f32>())
}

/// Checks the extents of the gradients that a backward pass writes.
pub(crate) fn check_gradients(
    problem: &Problem,
    gradients: &Operands<Handle>,
    size: usize,
) -> Result<(), KernelError> {
    check_additional(problem, gradients)?;
    for (operand, handle) in gradients.iter() {
        let name = match operand {
            Operand::Query => "dq",
            Operand::Key => "dk",
            Operand::Value => "dv",
            Operand::AdditionalKey => "additional dk",
            Operand::AdditionalValue => "additional dv",
        };
        check_buffer(name, handle, size * operand.shape(problem).elements())?;
    }
    Ok(())
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use cubecl_common::device::{DeviceId, ServiceId};
    use cubecl_environment::stream::StreamId;

    use super::*;
    use crate::{Axis, KeyValue};

    /// Buffers without memory.
    fn buffer(bytes: usize) -> Handle {
        let service = ServiceId::of::<()>(DeviceId::new(0, 0));
        Handle::new(service, StreamId { value: 0 }, bytes as u64)
    }

    fn problem() -> Problem {
        Problem::new([Axis::neighborhood(5, 3), Axis::neighborhood(7, 3)], 4, 8)
            .with_batch(2)
            .with_heads_kv(2)
            .with_head_dim_v(16)
            .with_additional(3)
    }

    fn tensors<T>(of: impl Fn(Shape) -> T) -> Operands<T> {
        let operands = Operands {
            additional: Some(KeyValue { key: (), value: () }),
            ..Operands::new((), (), ())
        };
        operands.map(|operand, ()| of(operand.shape(&problem())))
    }

    fn saved() -> Saved<Strided> {
        let tensor =
            |size| move |shape: Shape| Strided::contiguous(buffer(size * shape.elements()), shape);
        let pair = || Outputs {
            out: tensor(2)(Shape::out(&problem())),
            lse: tensor(4)(Shape::lse(&problem())),
        };
        Saved { operands: tensors(tensor(2)), outputs: pair(), gradients: pair() }
    }

    fn culprit(result: Result<(), KernelError>) -> &'static str {
        match result {
            Err(KernelError::Buffer { name, expected, actual }) => {
                assert!(actual < expected);
                name
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_input_has_to_lie_in_its_buffer() {
        type Change = fn(&mut Saved<Strided>);
        check_saved(&problem(), &saved(), 2).expect("all fit");
        let cases: [(&str, Change); 7] = [
            ("query", |saved| saved.operands.query.strides[3] += 1),
            ("key", |saved| saved.operands.key.handle = buffer(2 * 2 * 35 * 2 * 8 - 1)),
            ("value", |saved| saved.operands.value.strides[0] *= 2),
            ("additional key", |saved| {
                if let Some(more) = &mut saved.operands.additional {
                    more.key.handle = buffer(0);
                }
            }),
            ("out", |saved| saved.outputs.out.strides[2] *= 3),
            ("lse", |saved| saved.outputs.lse.handle = buffer(4)),
            ("dlse", |saved| saved.gradients.lse.strides[4] = 8),
        ];
        for (name, change) in cases {
            let mut saved = saved();
            change(&mut saved);
            assert_eq!(culprit(check_saved(&problem(), &saved, 2)), name);
        }
        let mut without = saved();
        without.operands.additional = None;
        assert_eq!(check_saved(&problem(), &without, 2), Err(KernelError::Additional(3)));
    }

    #[test]
    fn every_output_has_to_hold_its_tensor() {
        let gradients = || tensors(|shape| buffer(2 * shape.elements()));
        check_gradients(&problem(), &gradients(), 2).expect("all fit");
        let short = Operands { value: buffer(2), ..gradients() };
        assert_eq!(culprit(check_gradients(&problem(), &short, 2)), "dv");
        let outputs = Outputs { out: buffer(1 << 20), lse: buffer(8) };
        assert_eq!(culprit(check_outputs(&problem(), &outputs, 2)), "lse");
    }
}
