//! Tensors in memory, as launches take them, and the checks that all launches share.

use cubecl::server::Handle;

use crate::{KernelError, Operands, Outputs, Problem, Saved, Shape};

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
            crate::Operand::Query => "dq",
            crate::Operand::Key => "dk",
            crate::Operand::Value => "dv",
            crate::Operand::AdditionalKey => "additional dk",
            crate::Operand::AdditionalValue => "additional dv",
        };
        check_buffer(name, handle, size * operand.shape(problem).elements())?;
    }
    Ok(())
}
