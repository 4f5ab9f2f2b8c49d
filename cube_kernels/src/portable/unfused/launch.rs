//! The products as they are called: buffers and checks.

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::server::Handle;

use super::super::plan::Launch;
use super::super::selection::Limits;
use super::{
    LineTile, Tokens, dots as dots_kernel, lines, offsets as offsets_kernel,
    spread as spread_kernel, sums as sums_kernel,
};
use crate::cube::{Tensor, addresses, widest_of};
use crate::view::check_buffer;
use crate::{KernelError, Operand, Problem, Shape, Strided};

/// What [`dots`] reads.
#[derive(Clone, Copy, Debug)]
pub struct DotsInputs<'a> {
    /// `[batch, *space, heads, head_dim]`
    pub rows: &'a Strided,
    /// Keys or values.
    pub tokens: Tokens<&'a Strided>,
    /// `[heads, *offsets]`, contiguous.
    pub bias: Option<&'a Handle>,
}

/// `weights[q, s] = scale * rows[q] . token(q, s) + bias`, and `hidden` in slots without a token.
///
/// Weights are `[batch, *space, heads, slots]`, without gaps.
///
/// # Errors
///
/// If the device cannot run the problem, a tensor lies as kernels cannot read it or a buffer is too small; then nothing was launched.
pub fn dots(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    hidden: f32,
    inputs: &DotsInputs<'_>,
    weights: &Handle,
) -> Result<(), KernelError> {
    let tile = LineTile::plan(problem, &Limits::of(client), dtype.size());
    dots_with(client, tile, problem, dtype, hidden, inputs, weights)
}

/// [`dots`] with the tokens of lines in shared memory, or by rows each for itself.
///
/// # Errors
///
/// As [`dots`], or if the tile is not for the problem and the device.
pub fn dots_with(
    client: &Client,
    tile: Option<LineTile>,
    problem: &Problem,
    dtype: ElemType,
    hidden: f32,
    inputs: &DotsInputs<'_>,
    weights: &Handle,
) -> Result<(), KernelError> {
    let launch = prepare(client, problem, dtype, Some(inputs.rows), Some(&inputs.tokens))?;
    check_buffer("weights", weights, dtype.size() * problem.weights())?;
    if let Some(bias) = inputs.bias {
        check_buffer("bias", bias, dtype.size() * problem.heads * problem.bias_entries())?;
    }
    if launch.query_rows() == 0 {
        return Ok(());
    }
    match tile {
        None => dots_kernel::launch(&launch, inputs, hidden, weights),
        Some(tile) if tile.fits(problem, &Limits::of(client), dtype.size()) => {
            lines::launch(&launch, tile, inputs, hidden, weights);
        }
        Some(tile) => {
            let reason = format!("{tile:?} is not for this problem on this device");
            return Err(KernelError::Blueprint(reason));
        }
    }
    Ok(())
}

/// `rows[q] = scale * sum over s of weights[q, s] token(q, s)`
///
/// # Errors
///
/// As [`dots`].
pub fn sums(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    weights: &Strided,
    tokens: &Tokens<&Strided>,
    rows: &Handle,
) -> Result<(), KernelError> {
    let launch = prepare(client, problem, dtype, None, Some(tokens))?;
    let weights = weights.contiguous_handle("weights", Shape::weights(problem))?;
    check_buffer("weights", weights, dtype.size() * problem.weights())?;
    check_buffer("rows", rows, dtype.size() * Operand::Query.shape(problem).elements())?;
    if launch.query_rows() > 0 {
        sums_kernel::launch(&launch, weights, tokens, rows);
    }
    Ok(())
}

/// `token = scale * sum over (q, s) that see it of weights[q, s] rows[q]`
///
/// # Errors
///
/// As [`dots`].
pub fn spread(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    weights: &Strided,
    rows: &Strided,
    tokens: &Tokens<&Handle>,
) -> Result<(), KernelError> {
    let launch = prepare(client, problem, dtype, Some(rows), None)?;
    let weights = weights.contiguous_handle("weights", Shape::weights(problem))?;
    check_buffer("weights", weights, dtype.size() * problem.weights())?;
    if tokens.additional.is_some() != (problem.additional > 0) {
        return Err(KernelError::Additional(problem.additional));
    }
    check_buffer("tokens", tokens.space, dtype.size() * Operand::Key.shape(problem).elements())?;
    if let Some(tokens) = tokens.additional {
        let elements = Operand::AdditionalKey.shape(problem).elements();
        check_buffer("additional tokens", tokens, dtype.size() * elements)?;
    }
    if launch.key_rows() > 0 {
        spread_kernel::launch_space(&launch, weights, rows, tokens.space);
    }
    if let Some(tokens) = tokens.additional.filter(|_| launch.additional_rows() > 0) {
        spread_kernel::launch_additional(&launch, weights, rows, tokens);
    }
    Ok(())
}

/// `bias = sum over (q, s) with its offset of weights[q, s]`
///
/// # Errors
///
/// As [`dots`].
pub fn offsets(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    weights: &Handle,
    bias: &Handle,
) -> Result<(), KernelError> {
    let launch = prepare(client, problem, dtype, None, None)?;
    check_buffer("weights", weights, dtype.size() * problem.weights())?;
    check_buffer("bias", bias, dtype.size() * problem.heads * problem.bias_entries())?;
    if launch.query_rows() > 0 {
        offsets_kernel::launch(&launch, weights, bias);
    }
    Ok(())
}

/// Checks the device and the tensors that are read as vectors.
fn prepare<'a>(
    client: &'a Client,
    problem: &'a Problem,
    dtype: ElemType,
    rows: Option<&Strided>,
    tokens: Option<&Tokens<&Strided>>,
) -> Result<Launch<'a>, KernelError> {
    let launch = Launch::new(client, problem, dtype)?;
    let mut views = vec![];
    if let Some(rows) = rows {
        views.push(("rows", rows, Operand::Query.shape(problem)));
    }
    if let Some(tokens) = tokens {
        if tokens.additional.is_some() != (problem.additional > 0) {
            return Err(KernelError::Additional(problem.additional));
        }
        views.push(("tokens", tokens.space, Operand::Key.shape(problem)));
        let shape = Operand::AdditionalKey.shape(problem);
        views.extend(tokens.additional.map(|tensor| ("additional tokens", tensor, shape)));
    }
    if problem.has_origin() {
        // Positions of queries are those of keys.
        let reason = "its queries stand elsewhere than keys of the same number".to_string();
        return Err(KernelError::Problem(reason));
    }
    let mut vector = widest_of(client, problem.head_dim, dtype);
    let mut largest = problem.largest_tensor().max(problem.weights());
    for (name, tensor, shape) in views {
        tensor.check(name, shape, dtype.size())?;
        vector = vector.min(tensor.widest(shape, dtype.size()));
        largest = largest.max(shape.extent(tensor.strides));
    }
    let address_type = addresses(client, largest)?;
    Ok(Launch { vector_size: vector, address_type, ..launch })
}

/// Whether queries share windows. A kernel without divides nothing for each query.
pub(super) fn is_strided(problem: &Problem) -> bool {
    problem.axes.iter().any(|axis| axis.stride > 1)
}

/// A tensor as kernels are launched with.
pub(super) fn tensor(tensor: &Strided) -> Tensor<'_> {
    (&tensor.handle, tensor.strides)
}

/// Tokens as kernels are launched with, with `other` in place of additional ones that are not there: every buffer is bound.
pub(super) fn tokens_argument<'a>(
    tokens: &Tokens<&'a Strided>,
    other: &'a Handle,
) -> [Tensor<'a>; 2] {
    [tensor(tokens.space), tokens.additional.map_or((other, [0; 5]), tensor)]
}
