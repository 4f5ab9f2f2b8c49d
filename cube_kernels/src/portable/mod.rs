//! Kernels for any CubeCL runtime: CUDA, HIP, Metal, Vulkan, WGSL and the CPU.
//!
//! They use no plane operation, no shared memory, no atomics and at most 8 buffers, and hold their
//! sums in `f32` registers: one unit per row (see [`forward()`] and [`backward()`]). A key or value
//! that a query does not see is never loaded, so that a NaN in it cannot reach that query.
//!
//! Buffers are contiguous, laid out as [`Problem`] says, and of element type `dtype` (f16, bf16 or
//! f32) except for logsumexp and its gradient, which are `f32`. They are passed as [`Handle`]s;
//! their lengths follow from the problem and are checked.
//!
//! Launches are asynchronous, and CubeCL reports a failed compilation or launch where results are
//! read or the stream is synchronised. Only what is known beforehand is a [`PortableError`].
//!
//! ```no_run
//! use burn_natten_kernels::portable::{ForwardInputs, ForwardOutputs, forward};
//! use burn_natten_kernels::{Axis, Problem};
//! use cubecl::ir::{ElemType, FloatKind};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = cubecl::Device::cpu().expect("the feature `cpu` is on").client();
//! let row = Axis { kernel_size: 7, ..Axis::dense(64, 64, false) };
//! let problem = Problem {
//!     batch: 1,
//!     heads: 4,
//!     heads_kv: 4,
//!     head_dim: 32,
//!     head_dim_v: 32,
//!     additional: 0,
//!     scale: 32f64.powf(-0.5),
//!     axes: [row, row, Axis::UNIT],
//! };
//! let bytes = problem.queries() * 4 * 32 * size_of::<f32>();
//! let inputs = ForwardInputs {
//!     query: client.empty(bytes),
//!     key: client.empty(bytes),
//!     value: client.empty(bytes),
//!     additional: None,
//! };
//! let outputs = ForwardOutputs { out: client.empty(bytes), lse: client.empty(bytes / 32) };
//! forward(&client, &problem, ElemType::Float(FloatKind::F32), &inputs, &outputs)?;
//! # Ok(())
//! # }
//! ```

mod backward;
mod forward;
mod geometry;
mod plan;
mod rows;

use cubecl::client::Client;
use cubecl::ir::{AddressType, ElemType, FloatKind};
use cubecl::server::Handle;

use crate::Problem;
use plan::Launch;

/// Why nothing was launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortableError {
    /// The kernels or the device do not know the element type.
    #[error("portable kernels run in f16, bf16 and f32 where the device has them, not in {0:?}")]
    ElementType(ElemType),
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
    /// The problem has additional tokens without buffers for them, or the other way round.
    #[error("the problem has {0} additional tokens, which does not fit the buffers given for them")]
    Additional(usize),
}

/// A key and a value buffer, or their gradients.
#[derive(Clone, Debug)]
pub struct KeyValue {
    /// `[batch, tokens, heads_kv, head_dim]`.
    pub key: Handle,
    /// `[batch, tokens, heads_kv, head_dim_v]`.
    pub value: Handle,
}

/// What [`forward()`] reads.
#[derive(Clone, Debug)]
pub struct ForwardInputs {
    /// `[batch, queries, heads, head_dim]`.
    pub query: Handle,
    /// `[batch, keys, heads_kv, head_dim]`.
    pub key: Handle,
    /// `[batch, keys, heads_kv, head_dim_v]`.
    pub value: Handle,
    /// Tokens that every query sees: some if, and only if, [`Problem::additional`] is not zero.
    pub additional: Option<KeyValue>,
}

/// What [`forward()`] writes.
#[derive(Clone, Debug)]
pub struct ForwardOutputs {
    /// `[batch, queries, heads, head_dim_v]`.
    pub out: Handle,
    /// `[batch, queries, heads]`, `f32`.
    pub lse: Handle,
}

/// What [`backward()`] reads.
#[derive(Clone, Debug)]
pub struct BackwardInputs {
    /// `[batch, queries, heads, head_dim]`.
    pub query: Handle,
    /// `[batch, keys, heads_kv, head_dim]`.
    pub key: Handle,
    /// `[batch, keys, heads_kv, head_dim_v]`.
    pub value: Handle,
    /// The additional tokens of the forward pass.
    pub additional: Option<KeyValue>,
    /// Output of the forward pass, `[batch, queries, heads, head_dim_v]`.
    pub out: Handle,
    /// Logsumexp of the forward pass, `[batch, queries, heads]`, `f32`.
    pub lse: Handle,
    /// Gradient of `out`.
    pub dout: Handle,
    /// Gradient of `lse`, `f32`.
    pub dlse: Handle,
}

/// What [`backward()`] writes.
#[derive(Clone, Debug)]
pub struct BackwardOutputs {
    /// Gradient of `query`.
    pub dq: Handle,
    /// Gradient of `key`.
    pub dk: Handle,
    /// Gradient of `value`.
    pub dv: Handle,
    /// Gradients of the additional tokens, if there are any.
    pub additional: Option<KeyValue>,
}

/// Whether kernels on this device can index buffers of more than 2^31 elements.
pub fn has_wide_indices(client: &Client) -> bool {
    client.properties().supports_address(AddressType::U64)
}

const F32: ElemType = ElemType::Float(FloatKind::F32);

/// `out = softmax(scale * q k) v` over the keys that each query sees, and the logsumexp of its
/// scaled scores.
///
/// A unit owns one query row, or up to 32 vectors of its output; a cube is mostly
/// neighboring queries of one head. Every query has to see a key.
///
/// # Errors
///
/// If the device cannot run the problem or a buffer is too small; then nothing was launched.
pub fn forward(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    inputs: &ForwardInputs,
    outputs: &ForwardOutputs,
) -> Result<(), PortableError> {
    let launch = Launch::new(client, problem, dtype)?;
    check_inputs(&launch, [&inputs.query, &inputs.key, &inputs.value], inputs.additional.as_ref())?;
    let queries = launch.query_rows();
    launch.check("out", &outputs.out, queries, problem.head_dim_v, dtype)?;
    launch.check("lse", &outputs.lse, queries, 1, F32)?;
    if queries > 0 {
        forward::launch(&launch, inputs, outputs);
    }
    Ok(())
}

/// Gradients of [`forward()`] with respect to everything it reads, from those of both its outputs.
///
/// A unit owns a row of dq, or rows of dk and dv together, up to 32 vectors of sums in all. No
/// atomics: results repeat bit by bit. Workspace: 8 bytes per query row, and with additional tokens
/// their gradients once per chunk of queries, in `f32`.
///
/// # Errors
///
/// If the device cannot run the problem or a buffer is too small; then nothing was launched.
pub fn backward(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    inputs: &BackwardInputs,
    outputs: &BackwardOutputs,
) -> Result<(), PortableError> {
    let launch = Launch::new(client, problem, dtype)?;
    check_inputs(&launch, [&inputs.query, &inputs.key, &inputs.value], inputs.additional.as_ref())?;
    let (queries, keys) = (launch.query_rows(), launch.key_rows());
    let (dim, dim_v) = (problem.head_dim, problem.head_dim_v);
    launch.check("out", &inputs.out, queries, dim_v, dtype)?;
    launch.check("lse", &inputs.lse, queries, 1, F32)?;
    launch.check("dout", &inputs.dout, queries, dim_v, dtype)?;
    launch.check("dlse", &inputs.dlse, queries, 1, F32)?;
    launch.check("dq", &outputs.dq, queries, dim, dtype)?;
    launch.check("dk", &outputs.dk, keys, dim, dtype)?;
    launch.check("dv", &outputs.dv, keys, dim_v, dtype)?;
    check_additional(&launch, outputs.additional.as_ref())?;
    backward::launch(&launch, inputs, outputs);
    Ok(())
}

/// Checks what both passes read.
fn check_inputs(
    launch: &Launch,
    [query, key, value]: [&Handle; 3],
    additional: Option<&KeyValue>,
) -> Result<(), PortableError> {
    let (problem, dtype) = (launch.problem, launch.dtype);
    let (queries, keys) = (launch.query_rows(), launch.key_rows());
    launch.check("query", query, queries, problem.head_dim, dtype)?;
    launch.check("key", key, keys, problem.head_dim, dtype)?;
    launch.check("value", value, keys, problem.head_dim_v, dtype)?;
    check_additional(launch, additional)
}

/// Checks the additional tokens, or their gradients.
fn check_additional(launch: &Launch, tokens: Option<&KeyValue>) -> Result<(), PortableError> {
    let problem = launch.problem;
    if tokens.is_some() != (problem.additional > 0) {
        return Err(PortableError::Additional(problem.additional));
    }
    if let Some(tokens) = tokens {
        let rows = launch.additional_rows();
        let (dim, dim_v) = (problem.head_dim, problem.head_dim_v);
        launch.check("additional key", &tokens.key, rows, dim, launch.dtype)?;
        launch.check("additional value", &tokens.value, rows, dim_v, launch.dtype)?;
    }
    Ok(())
}
