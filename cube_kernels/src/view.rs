//! Tensors in memory, as launches take them, and the checks that all launches share.

use cubecl::server::Handle;

use cubecl::client::Client;

use crate::{KernelError, KeyValue, Operand, Operands, Outputs, Problem, Saved, Shape};

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

    /// The same for the problem of the [additional tokens](Problem::of_additional).
    ///
    /// # Errors
    ///
    /// [`KernelError::Layout`].
    pub(crate) fn beside_additional(
        &self,
        name: &'static str,
        shape: Shape,
    ) -> Result<Self, KernelError> {
        let reason = "with additional tokens, its own have to lie in one line";
        self.line(shape).ok_or(KernelError::Layout { name, reason })
    }

    /// Whether it lies without gaps, in order, as one without elements does.
    pub fn is_contiguous(&self, shape: Shape) -> bool {
        let mut all = self.strides.iter().zip(shape.strides()).zip(shape.lengths());
        shape.elements() == 0
            || all.all(|((stride, contiguous), length)| length == 1 || *stride == contiguous)
    }

    /// The memory, for kernels that know no strides.
    pub(crate) fn contiguous_handle(
        &self,
        name: &'static str,
        shape: Shape,
    ) -> Result<&Handle, KernelError> {
        match self.is_contiguous(shape) {
            true => Ok(&self.handle),
            false => Err(KernelError::Layout { name, reason: "it has to be contiguous" }),
        }
    }

    /// Most elements of `size` bytes, a power of two of them up to 16 bytes, that every row can be read in.
    ///
    /// A stride that is never taken does not count.
    pub(crate) fn widest(&self, shape: Shape, size: usize) -> usize {
        let offset = self.handle.offset_start.unwrap_or(0) as usize / size;
        let taken = self.strides.iter().zip(shape.lengths()).filter(|(_, length)| *length > 1);
        let mut vector = 16 / size;
        for number in [shape.dim, offset].into_iter().chain(taken.map(|(stride, _)| *stride)) {
            while number % vector != 0 {
                vector /= 2;
            }
        }
        vector
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

/// Checks that a problem's optional operands are there, and no others.
fn check_optional<T>(problem: &Problem, operands: &Operands<T>) -> Result<(), KernelError> {
    if operands.additional.is_some() != (problem.additional > 0) {
        return Err(KernelError::Additional(problem.additional));
    }
    if operands.bias.is_some() != problem.has_bias {
        return Err(KernelError::Bias(problem.has_bias));
    }
    // A bias has an entry for every offset within a window, and none for others.
    let outside = problem.axes.iter().find(|axis| !axis.is_among_keys());
    if let (true, Some(axis)) = (problem.has_bias, outside) {
        let reason = "with a position bias, queries have to stand among the keys";
        return Err(KernelError::Problem(format!("{reason}; got {axis:?}")));
    }
    Ok(())
}

/// Checks the extents of what both passes read, of elements of `size` bytes.
pub(crate) fn check_operands(
    problem: &Problem,
    operands: &Operands<Strided>,
    size: usize,
) -> Result<(), KernelError> {
    check_optional(problem, operands)?;
    for (operand, tensor) in operands.iter() {
        tensor.check(operand.name(), operand.shape(problem), size)?;
    }
    match &operands.bias {
        Some(bias) if bias.strides != Operand::Bias.strides(problem) => {
            let reason = "it has to be contiguous";
            Err(KernelError::Layout { name: Operand::Bias.name(), reason })
        }
        _ => Ok(()),
    }
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

/// [`check_saved`] for kernels that read the output, whether it counts or not.
pub(crate) fn check_saved_with_out(
    problem: &Problem,
    saved: &Saved<Strided>,
    size: usize,
) -> Result<(), KernelError> {
    match saved.has_out {
        true => check_saved(problem, saved, size),
        false => Err(KernelError::Layout { name: "out", reason: "it has to count" }),
    }
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
    gradients: &Operands<Option<Handle>>,
    size: usize,
) -> Result<(), KernelError> {
    check_optional(problem, gradients)?;
    for (operand, handle) in gradients.iter() {
        let Some(handle) = handle else { continue };
        let expected = size * operand.shape(problem).elements();
        check_buffer(operand.gradient_name(), handle, expected)?;
    }
    Ok(())
}

/// Where the passes over keys write.
pub(crate) struct KeyGradients<'a> {
    pub client: &'a Client,
    pub problem: &'a Problem,
    /// Bytes of an element.
    pub size: usize,
    /// Whether a kernel writes the gradients of keys and of values together.
    pub is_joint: bool,
}

impl KeyGradients<'_> {
    /// Those of the problem's own keys and values; `None` where nobody wants either.
    pub fn own(&self, gradients: &Operands<Option<Handle>>) -> Option<KeyValue<Handle>> {
        let Operands { key, value, .. } = gradients;
        self.both([(Operand::Key, key), (Operand::Value, value)])
    }

    /// Those of the additional ones; `None` where nobody wants either.
    pub fn additional(&self, gradients: &Operands<Option<Handle>>) -> Option<KeyValue<Handle>> {
        let KeyValue { key, value } = gradients.additional.as_ref()?;
        self.both([(Operand::AdditionalKey, key), (Operand::AdditionalValue, value)])
    }

    /// What one of the two that nobody wants would be written to is memory that is given back behind the launch, or, where
    /// no kernel writes both, the other's.
    fn both(&self, pair: [(Operand, &Option<Handle>); 2]) -> Option<KeyValue<Handle>> {
        let (key, value) = match pair {
            [(_, None), (_, None)] => return None,
            [(_, Some(key)), (_, Some(value))] => (key.clone(), value.clone()),
            [(_, Some(key)), (operand, None)] => (key.clone(), self.instead_of(operand, key)),
            [(operand, None), (_, Some(value))] => (self.instead_of(operand, value), value.clone()),
        };
        Some(KeyValue { key, value })
    }

    fn instead_of(&self, operand: Operand, other: &Handle) -> Handle {
        match self.is_joint {
            true => self.client.empty((self.size * operand.shape(self.problem).elements()).max(1)),
            false => other.clone(),
        }
    }
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
            .with_bias(true)
    }

    fn tensors<T>(of: impl Fn(Operand) -> T) -> Operands<T> {
        let operands = Operands {
            additional: Some(KeyValue { key: (), value: () }),
            bias: Some(()),
            ..Operands::new((), (), ())
        };
        operands.map(|operand, ()| of(operand))
    }

    fn saved() -> Saved<Strided> {
        let tensor =
            |size| move |shape: Shape| Strided::contiguous(buffer(size * shape.elements()), shape);
        let pair = || Outputs {
            out: tensor(2)(Shape::out(&problem())),
            lse: tensor(4)(Shape::lse(&problem())),
        };
        let operands = tensors(|operand| Strided {
            strides: operand.strides(&problem()),
            ..tensor(2)(operand.shape(&problem()))
        });
        Saved { operands, outputs: pair(), gradients: pair(), has_out: true }
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
        let cases: [(&str, Change); 8] = [
            ("query", |saved| saved.operands.query.strides[3] += 1),
            ("key", |saved| saved.operands.key.handle = buffer(2 * 2 * 35 * 2 * 8 - 1)),
            ("value", |saved| saved.operands.value.strides[0] *= 2),
            ("additional key", |saved| {
                if let Some(more) = &mut saved.operands.additional {
                    more.key.handle = buffer(0);
                }
            }),
            ("bias", |saved| {
                if let Some(bias) = &mut saved.operands.bias {
                    bias.handle = buffer(2 * 4 * 25 - 1);
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
        let mut without = saved();
        without.operands.bias = None;
        assert_eq!(check_saved(&problem(), &without, 2), Err(KernelError::Bias(true)));
        let mut heads_last = saved();
        if let Some(bias) = &mut heads_last.operands.bias {
            bias.strides = Operand::Bias.shape(&problem()).strides();
        }
        let error = check_saved(&problem(), &heads_last, 2);
        assert!(matches!(error, Err(KernelError::Layout { name: "bias", .. })), "{error:?}");
    }

    #[test]
    fn every_output_has_to_hold_its_tensor() {
        let gradients =
            || tensors(|operand| Some(buffer(2 * operand.shape(&problem()).elements())));
        check_gradients(&problem(), &gradients(), 2).expect("all fit");
        let short = Operands { value: Some(buffer(2)), ..gradients() };
        assert_eq!(culprit(check_gradients(&problem(), &short, 2)), "dv");
        let short = Operands { bias: Some(Some(buffer(2))), ..gradients() };
        assert_eq!(culprit(check_gradients(&problem(), &short, 2)), "dbias");
        let unwanted = Operands { value: None, ..gradients() };
        check_gradients(&problem(), &unwanted, 2).expect("nobody wants it");
        let outputs = Outputs { out: buffer(1 << 20), lse: buffer(8) };
        assert_eq!(culprit(check_outputs(&problem(), &outputs, 2)), "lse");
    }
}
