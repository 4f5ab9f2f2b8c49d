//! Launches: what the kernels take, and the checks before they run.

use std::sync::{Arc, LazyLock, Mutex};

use cubecl::client::Client;
use cubecl::ir::{AddressType, ElemType, FloatKind};
use cubecl::server::Handle;

use super::layout::Strided;
use super::tune::{fastest, representative, shortlist};
use super::{
    Blueprint, Capability, Choice, Instruction, candidates, plan, plan_tiled, unsupported,
};
use crate::Problem;
use crate::choices::{Choices, remembered};

/// Why nothing was launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorCoreError {
    /// The device has no matrix units, or none that CubeCL gives the kernels.
    #[error(
        "the device has no matrix units that multiply f16 and bf16 and sum in f32 as these kernels need it"
    )]
    Device,
    /// The kernels do not know the element type.
    #[error(
        "the tensor-core kernels run in f16, bf16 and tf32, where the device sums it in f32, not in {0:?}"
    )]
    ElementType(ElemType),
    /// The kernels do not cover the problem.
    #[error("the tensor-core kernels do not cover it: {0}")]
    Problem(String),
    /// A buffer has too many elements for 32-bit indices, and the device has no others.
    #[error("a buffer of {0} elements needs 64-bit indices, which this device does not have")]
    Addressing(usize),
    /// A buffer is smaller than the problem says.
    #[error("the buffer of {name} has {actual} bytes, but the problem needs {expected}")]
    Buffer {
        /// Which buffer.
        name: &'static str,
        /// Bytes it has to have.
        expected: u64,
        /// Bytes it has.
        actual: u64,
    },
    /// The tokens of a tensor do not lie in one line, as additional tokens need it.
    #[error("the tokens of {0} lie in no one line, as the gradients of additional tokens need it")]
    Layout(&'static str),
    /// The problem has additional tokens without buffers for them, or the other way round.
    #[error("the problem has {0} additional tokens, which does not fit the buffers given for them")]
    Additional(usize),
}

/// What [`forward()`] reads, in f16 or bf16, or in f32 that is rounded to tf32 where it is multiplied.
#[derive(Clone, Debug)]
pub struct ForwardInputs {
    /// `[batch, queries, heads, head_dim]`.
    pub query: Strided,
    /// `[batch, keys, heads_kv, head_dim]`.
    pub key: Strided,
    /// `[batch, keys, heads_kv, head_dim_v]`.
    pub value: Strided,
    /// Key and value of the additional tokens, `[batch, 1, 1, tokens, heads_kv, dim]`: there if, and
    /// only if, [`Problem::additional`] is not zero.
    pub additional: Option<(Strided, Strided)>,
}

/// What [`forward()`] writes; both contiguous.
#[derive(Clone, Debug)]
pub struct ForwardOutputs {
    /// `[batch, queries, heads, head_dim_v]`, in the inputs' element type.
    pub out: Handle,
    /// `[batch, queries, heads]`, `f32`.
    pub lse: Handle,
}

/// Attention with logsumexp, by the blueprint that `choice` takes.
///
/// With [`FloatKind::TF32`] as the type, tensors are f32 and products round it. f32 itself is refused.
///
/// Returns when the work is enqueued; the first use of a blueprint compiles it.
///
/// # Errors
///
/// If the device cannot run the problem or a buffer is too small; then nothing was launched.
pub fn forward(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    choice: Choice,
    inputs: &ForwardInputs,
    outputs: &ForwardOutputs,
) -> Result<(), TensorCoreError> {
    let capability = capability(client, dtype)?;
    static KNOWN: Choices<How, Blueprint> = LazyLock::new(Mutex::default);
    let vector = vector(problem, inputs, dtype);
    let blueprint = chosen(&KNOWN, problem, (capability, vector, dtype, choice), || {
        if choice == Choice::Measured && problem.queries() > 0 {
            return measured(client, problem, dtype, &capability, vector, inputs, outputs);
        }
        let tiling = choice.tiling();
        let tiled = tiling.and_then(|tiling| plan_tiled(problem, &capability, vector, tiling));
        Ok(tiled.or_else(|| plan(problem, &capability, vector)))
    })?;
    forward_with(client, &blueprint, problem, dtype, inputs, outputs)
}

/// What kernels that multiply a type may use of the device.
pub(super) fn capability(client: &Client, dtype: ElemType) -> Result<Capability, TensorCoreError> {
    let capability = Capability::of(client).ok_or(TensorCoreError::Device)?;
    match dtype {
        ElemType::Float(FloatKind::F16) => Some(capability),
        ElemType::Float(FloatKind::BF16) => capability.has_bf16.then_some(capability),
        ElemType::Float(FloatKind::TF32) => capability.with_tf32(),
        _ => None,
    }
    .ok_or(TensorCoreError::ElementType(dtype))
}

/// What a type that kernels multiply is in memory.
pub(super) fn stored(dtype: ElemType) -> ElemType {
    match dtype {
        ElemType::Float(FloatKind::TF32) => ElemType::Float(FloatKind::F32),
        _ => dtype,
    }
}

/// The blueprint that is the fastest on these tensors.
fn measured(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    capability: &Capability,
    vector: usize,
    inputs: &ForwardInputs,
    outputs: &ForwardOutputs,
) -> Result<Option<Blueprint>, TensorCoreError> {
    let like = representative(problem);
    let blueprints = shortlist(candidates(&like, capability, vector), &like);
    if blueprints.is_empty() {
        return Ok(None);
    }
    let launch = {
        let (client, problem) = (client.clone(), *problem);
        let (inputs, outputs) = (inputs.clone(), outputs.clone());
        move |blueprint: &Blueprint| {
            forward_with(&client, blueprint, &problem, dtype, &inputs, &outputs)
        }
    };
    fastest(client, capability, &like, dtype, blueprints, Arc::new(launch)).map(Some)
}

/// Blueprints are chosen by what may be used of the device, the elements that are read at a time, their type and the
/// manner of choice.
pub(super) type How = (Capability, usize, ElemType, Choice);

/// What `choose` gives for a problem that the kernels cover, or gave.
pub(super) fn chosen<T: Clone>(
    choices: &Choices<How, T>,
    problem: &Problem,
    how: How,
    choose: impl FnOnce() -> Result<Option<T>, TensorCoreError>,
) -> Result<T, TensorCoreError> {
    if let Some(reason) = unsupported(problem) {
        return Err(TensorCoreError::Problem(reason));
    }
    let mut failure = TensorCoreError::Problem("no blueprint fits the device".to_string());
    let choose = || match choose() {
        Ok(choice) => choice,
        Err(error) => {
            failure = error;
            None
        }
    };
    remembered(choices, problem, how, choose).ok_or(failure)
}

/// [`forward()`] by a given blueprint, which has to be one of the problem's candidates.
///
/// # Errors
///
/// If the device cannot run the problem or a buffer is too small; then nothing was launched.
///
/// # Panics
///
/// If the blueprint is none for the problem or the type.
pub fn forward_with(
    client: &Client,
    blueprint: &Blueprint,
    problem: &Problem,
    dtype: ElemType,
    inputs: &ForwardInputs,
    outputs: &ForwardOutputs,
) -> Result<(), TensorCoreError> {
    assert!(blueprint.fits(problem), "{blueprint} is no blueprint for {problem:?}");
    let address_type =
        check(client, problem, dtype, &tensors(problem, inputs), &inputs.additional)?;
    check_instruction(blueprint, dtype);
    let rows = (problem.batch * problem.queries() * problem.heads) as u64;
    check_buffer(
        "out",
        &outputs.out,
        stored(dtype).size() as u64 * rows * problem.head_dim_v as u64,
    )?;
    check_buffer("lse", &outputs.lse, 4 * rows)?;
    if rows > 0 {
        let dtype = stored(dtype);
        super::forward::launch(client, problem, dtype, blueprint, address_type, inputs, outputs);
    }
    Ok(())
}

/// An input with its name, the length of its vectors and of its axes.
pub(super) type Named<'a> = (&'static str, &'a Strided, usize, [usize; 5]);

/// Checks what both passes read, and gives the type of their indices.
pub(super) fn check(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    tensors: &[Named<'_>],
    additional: &Option<(Strided, Strided)>,
) -> Result<AddressType, TensorCoreError> {
    if !matches!(dtype, ElemType::Float(FloatKind::F16 | FloatKind::BF16 | FloatKind::TF32)) {
        return Err(TensorCoreError::ElementType(dtype));
    }
    if additional.is_some() != (problem.additional > 0) {
        return Err(TensorCoreError::Additional(problem.additional));
    }
    let mut largest = problem.largest_tensor();
    for (name, tensor, dim, lengths) in tensors {
        tensor.check(name, *dim, *lengths, stored(dtype).size())?;
        let last: usize = tensor.strides.iter().zip(lengths).map(|(s, n)| s * n).sum();
        largest = largest.max(last);
    }
    let address_type = AddressType::from_len_signed(largest);
    if !client.properties().supports_address(address_type) {
        return Err(TensorCoreError::Addressing(largest));
    }
    Ok(address_type)
}

/// Panics if the kernel of a blueprint multiplies other elements.
pub(super) fn check_instruction(blueprint: &Blueprint, dtype: ElemType) {
    let is_tf32 = blueprint.instruction == Instruction::Tf32;
    let is_asked = dtype == ElemType::Float(FloatKind::TF32);
    assert!(is_tf32 == is_asked, "{blueprint} is no blueprint for {dtype:?}");
}

/// Fails if a buffer is smaller than `expected` bytes.
pub(super) fn check_buffer(
    name: &'static str,
    handle: &Handle,
    expected: u64,
) -> Result<(), TensorCoreError> {
    let actual = handle.size_in_used();
    if actual < expected {
        return Err(TensorCoreError::Buffer { name, expected, actual });
    }
    Ok(())
}

fn tensors<'a>(problem: &Problem, inputs: &'a ForwardInputs) -> Vec<Named<'a>> {
    let ForwardInputs { query, key, value, additional } = inputs;
    named(problem, [query, key, value], additional)
}

/// What both passes read.
pub(super) fn named<'a>(
    problem: &Problem,
    [query, key, value]: [&'a Strided; 3],
    more: &'a Option<(Strided, Strided)>,
) -> Vec<Named<'a>> {
    let Problem { batch, heads, heads_kv, head_dim, head_dim_v, additional, .. } = *problem;
    let [q_z, q_y, q_x] = problem.axes.map(|axis| axis.queries);
    let [k_z, k_y, k_x] = problem.axes.map(|axis| axis.keys);
    let keys = [batch, k_z, k_y, k_x, heads_kv];
    let mut tensors = vec![
        ("query", query, head_dim, [batch, q_z, q_y, q_x, heads]),
        ("key", key, head_dim, keys),
        ("value", value, head_dim_v, keys),
    ];
    if let Some((key, value)) = more {
        let lengths = [batch, 1, 1, additional, heads_kv];
        tensors.push(("additional key", key, head_dim, lengths));
        tensors.push(("additional value", value, head_dim_v, lengths));
    }
    tensors
}

/// Elements of a load: the most that every row of every input allows.
pub fn vector(problem: &Problem, inputs: &ForwardInputs, dtype: ElemType) -> usize {
    common_vector(&tensors(problem, inputs), dtype)
}

/// The most elements that every row of all tensors can be read in.
pub(super) fn common_vector(tensors: &[Named<'_>], dtype: ElemType) -> usize {
    let size = stored(dtype).size();
    let all = tensors.iter().map(|(_, tensor, dim, lengths)| tensor.vector(*dim, *lengths, size));
    all.min().unwrap_or(1)
}
