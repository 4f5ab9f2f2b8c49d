//! AdamW: moments, weight decay and the step itself in one pass over memory.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::KernelError;
use crate::cube::{F32, addresses_with_room, buffer, check_type, grid_of_units, widest_of};
use crate::view::check_buffer;

/// What a step of AdamW multiplies with.
///
/// ```text
/// moment_1 = beta_1 moment_1 + (1 - beta_1) gradient
/// moment_2 = beta_2 moment_2 + (1 - beta_2) gradient^2
/// weight   = keep weight - step_1 moment_1 / (sqrt(step_2 moment_2) + epsilon)
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// What stays of the mean of gradients.
    pub beta_1: f32,
    /// `1 - beta_1`, rounded once.
    pub rest_1: f32,
    /// What stays of the mean of their squares.
    pub beta_2: f32,
    /// `1 - beta_2`, rounded once.
    pub rest_2: f32,
    /// Added to the root.
    pub epsilon: f32,
    /// What weight decay leaves of a weight.
    pub keep: f32,
    /// Learning rate over `1 - beta_1^steps`.
    pub step_1: f32,
    /// `1 / (1 - beta_2^steps)`.
    pub step_2: f32,
}

#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Factors {
    beta_1: f32,
    rest_1: f32,
    beta_2: f32,
    rest_2: f32,
    epsilon: f32,
    keep: f32,
    step_1: f32,
    step_2: f32,
}

/// Tensors that a step reads and writes.
#[derive(CubeType, CubeLaunch)]
struct State<'a, F: Float, N: Size> {
    parameter: &'a mut [Vector<F, N>],
    weight: &'a mut [Vector<f32, N>],
    moment_1: &'a mut [Vector<f32, N>],
    moment_2: &'a mut [Vector<f32, N>],
}

/// The weight that a parameter stands for: what is kept of it, unless it has changed.
#[cube]
fn current<F: Float, N: Size>(parameter: Vector<F, N>, weight: Vector<f32, N>) -> Vector<f32, N> {
    let is_same = Vector::<F, N>::cast_from(weight).equal(&parameter);
    select_many(is_same, weight, Vector::cast_from(parameter))
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn adamw_kernel<F: Float, G: Float, N: Size>(
    gradient: &[Vector<G, N>],
    state: &mut State<'_, F, N>,
    factors: Factors,
    count: usize,
    #[comptime] keeps_weight: bool,
    #[define(F, G)] _dtypes: [ElemType; 2],
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let mut weight = Vector::<f32, N>::cast_from(state.parameter[at]);
        if comptime!(keeps_weight) {
            weight = current::<F, N>(state.parameter[at], state.weight[at]);
        }
        let gradient = Vector::<f32, N>::cast_from(gradient[at]);
        let new_1 = Vector::new(factors.rest_1) * gradient;
        let new_2 = Vector::new(factors.rest_2) * gradient * gradient;
        let mean = Vector::new(factors.beta_1) * state.moment_1[at] + new_1;
        let square = Vector::new(factors.beta_2) * state.moment_2[at] + new_2;
        let root = (Vector::new(factors.step_2) * square).sqrt() + Vector::new(factors.epsilon);
        let step = Vector::new(factors.step_1) * mean / root;
        weight = Vector::new(factors.keep) * weight - step;
        state.parameter[at] = Vector::cast_from(weight);
        state.moment_1[at] = mean;
        state.moment_2[at] = square;
        if comptime!(keeps_weight) {
            state.weight[at] = weight;
        }
    }
}

/// The tensors that a step changes, contiguous: a parameter, and in f32 its moments and, where it is of a half type, its weight.
#[derive(Clone, Copy, Debug)]
pub struct Tensors<'a> {
    /// The parameter.
    pub parameter: &'a Handle,
    /// What it was rounded from. Where it is another now, it has been changed, and counts.
    pub weight: Option<&'a Handle>,
    /// Mean of gradients.
    pub moment_1: &'a Handle,
    /// Mean of their squares.
    pub moment_2: &'a Handle,
}

impl Tensors<'_> {
    fn check(&self, count: usize, dtype: ElemType) -> Result<(), KernelError> {
        check_buffer("parameter", self.parameter, count * dtype.size())?;
        self.weight.map_or(Ok(()), |weight| check_buffer("weight", weight, count * F32.size()))?;
        check_buffer("moment_1", self.moment_1, count * F32.size())?;
        check_buffer("moment_2", self.moment_2, count * F32.size())
    }
}

/// A step of `count` elements of types `dtypes`, that of the parameter and that of the gradient. The tensors are changed in place, so nobody
/// else may have them.
///
/// # Errors
///
/// If the device lacks a type or 64-bit indices that are needed, or a buffer is too small; then nothing was launched.
pub fn adamw(
    client: &Client,
    (count, dtypes): (usize, [ElemType; 2]),
    by: &AdamW,
    gradient: &Handle,
    tensors: &Tensors<'_>,
) -> Result<(), KernelError> {
    dtypes.iter().try_for_each(|dtype| check_type(client, *dtype))?;
    tensors.check(count, dtypes[0])?;
    check_buffer("gradient", gradient, count * dtypes[1].size())?;
    let address_type = addresses_with_room(client, count)?;
    let vector = widest_of(client, count, F32);
    let (cubes, units) = grid_of_units(client, (count / vector).max(1));
    let AdamW { beta_1, rest_1, beta_2, rest_2, epsilon, keep, step_1, step_2 } = *by;
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        adamw_kernel::launch_unchecked(
            client,
            cubes,
            units,
            address_type,
            vector,
            buffer(gradient),
            StateLaunch::new(
                buffer(tensors.parameter),
                // Where none is kept, a moment stands in for it, and is not touched.
                buffer(tensors.weight.unwrap_or(tensors.moment_1)),
                buffer(tensors.moment_1),
                buffer(tensors.moment_2),
            ),
            FactorsLaunch::new(beta_1, rest_1, beta_2, rest_2, epsilon, keep, step_1, step_2),
            count / vector,
            tensors.weight.is_some(),
            dtypes,
        );
    }
    Ok(())
}
