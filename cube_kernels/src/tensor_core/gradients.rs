//! Launches of the backward pass.

use std::sync::{Arc, LazyLock, Mutex};

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::server::Handle;

use super::backward::{STATISTICS, Tensors, launch, launch_statistics};
use super::launch::{
    How, Named, capability, check, check_buffer, check_instruction, chosen, common_vector, named,
    stored,
};
use super::layout::Strided;
use super::plan::additional_problem;
use super::tune::{fastest, representative, shortlist};
use super::{
    BackwardPlan, Blueprint, Capability, Choice, Pass, TensorCoreError, backward_candidates,
    plan_backward,
};
use crate::Problem;
use crate::choices::Choices;

/// What [`backward()`] reads, in the type of the forward pass but for the logsumexp and its gradient.
#[derive(Clone, Debug)]
pub struct BackwardInputs {
    /// `[batch, queries, heads, head_dim]`.
    pub query: Strided,
    /// `[batch, keys, heads_kv, head_dim]`.
    pub key: Strided,
    /// `[batch, keys, heads_kv, head_dim_v]`.
    pub value: Strided,
    /// Key and value of the additional tokens, `[batch, 1, 1, tokens, heads_kv, dim]`: there if, and
    /// only if, [`Problem::additional`] is not zero.
    pub additional: Option<(Strided, Strided)>,
    /// The forward pass's output, `[batch, queries, heads, head_dim_v]`.
    pub out: Strided,
    /// Gradient of the output, of its shape.
    pub dout: Strided,
    /// The forward pass's logsumexp, contiguous `[batch, queries, heads]`, `f32`.
    pub lse: Handle,
    /// Gradient of the logsumexp, of its shape, `f32`.
    pub dlse: Handle,
}

/// What [`backward()`] writes; all contiguous, in the inputs' element type.
#[derive(Clone, Debug)]
pub struct BackwardOutputs {
    /// Of the shape of the query.
    pub dq: Handle,
    /// Of the shape of the key.
    pub dk: Handle,
    /// Of the shape of the value.
    pub dv: Handle,
    /// Of the shapes of the additional key and value, where there are some.
    pub additional: Option<(Handle, Handle)>,
}

/// The gradients of attention, by the blueprints that `choice` takes. With the same blueprints results repeat bit by
/// bit. Workspace: 8 bytes for each row of the queries.
///
/// Returns when the work is enqueued; the first use of a blueprint compiles it.
///
/// # Errors
///
/// If the device cannot run the problem or a buffer is too small; then nothing was launched.
pub fn backward(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    choice: Choice,
    inputs: &BackwardInputs,
    outputs: &BackwardOutputs,
) -> Result<(), TensorCoreError> {
    static KNOWN: Choices<How, Arc<BackwardPlan>> = LazyLock::new(Mutex::default);
    let capability = capability(client, dtype)?;
    let vector = backward_vector(problem, inputs, dtype);
    let plan = chosen(&KNOWN, problem, (capability, vector, dtype, choice), || {
        let Some(mut plan) = plan_backward(problem, &capability, vector) else { return Ok(None) };
        match choice {
            Choice::Modelled => {}
            Choice::Tiled(tiling) => {
                plan = plan.with_tiling(problem, &capability, vector, tiling);
            }
            Choice::Measured => {
                measure(client, &mut plan, problem, dtype, &capability, vector, inputs, outputs)?;
            }
        }
        Ok(Some(Arc::new(plan)))
    })?;
    backward_with(client, &plan, problem, dtype, inputs, outputs)
}

/// Takes the fastest kernels on these tensors into the plan: that of the queries, and that of the keys where it is one. Those
/// of the additional tokens stay.
#[allow(clippy::too_many_arguments)]
fn measure(
    client: &Client,
    plan: &mut BackwardPlan,
    problem: &Problem,
    dtype: ElemType,
    capability: &Capability,
    vector: usize,
    inputs: &BackwardInputs,
    outputs: &BackwardOutputs,
) -> Result<(), TensorCoreError> {
    if problem.batch * problem.queries() * problem.heads == 0 {
        return Ok(());
    }
    let like = representative(problem);
    let measured = |plan: &BackwardPlan, pass| {
        let all = backward_candidates(&like, capability, vector, pass);
        let launch = {
            let (client, plan, problem) = (client.clone(), plan.clone(), *problem);
            let (inputs, outputs) = (inputs.clone(), outputs.clone());
            move |blueprint: &Blueprint| {
                let plan = match pass {
                    Pass::Keys => BackwardPlan { keys: vec![*blueprint], ..plan.clone() },
                    _ => BackwardPlan { queries: *blueprint, ..plan.clone() },
                };
                run(&client, &plan, &problem, dtype, &inputs, &outputs, Some(pass))
            }
        };
        let blueprints = shortlist(all, &like);
        fastest(client, capability, &like, dtype, blueprints, Arc::new(launch))
    };
    plan.queries = measured(plan, Pass::Queries)?;
    if plan.keys.len() == 1 {
        plan.keys = vec![measured(plan, Pass::Keys)?];
    }
    Ok(())
}

/// [`backward()`] by given blueprints, which have to be ones for the problem.
///
/// # Errors
///
/// If the device cannot run the problem or a buffer is too small; then nothing was launched.
///
/// # Panics
///
/// If a blueprint is none for the problem or the type.
pub fn backward_with(
    client: &Client,
    plan: &BackwardPlan,
    problem: &Problem,
    dtype: ElemType,
    inputs: &BackwardInputs,
    outputs: &BackwardOutputs,
) -> Result<(), TensorCoreError> {
    run(client, plan, problem, dtype, inputs, outputs, None)
}

/// The kernels of all passes, or those of one and the statistics that it reads.
fn run(
    client: &Client,
    plan: &BackwardPlan,
    problem: &Problem,
    dtype: ElemType,
    inputs: &BackwardInputs,
    outputs: &BackwardOutputs,
    only: Option<Pass>,
) -> Result<(), TensorCoreError> {
    let has = |pass| only.is_none_or(|only| only == pass);
    let additional = additional_problem(problem);
    for blueprint in [&plan.queries].into_iter().chain(&plan.keys) {
        assert!(blueprint.fits(problem), "{blueprint} is no blueprint for {problem:?}");
    }
    for blueprint in &plan.additional {
        assert!(blueprint.fits(&additional), "{blueprint} is no blueprint for {additional:?}");
    }
    let tensors = tensors(problem, inputs);
    let address_type = check(client, problem, dtype, &tensors, &inputs.additional)?;
    plan.blueprints().for_each(|blueprint| check_instruction(blueprint, dtype));
    check_buffers(problem, dtype, inputs, outputs)?;
    let dtype = stored(dtype);
    let queries = problem.axes.map(|axis| axis.queries);
    let line = |name, tensor: &Strided| tensor.line(queries).ok_or(TensorCoreError::Layout(name));
    let lines = match problem.additional {
        0 => None,
        _ => Some([line("query", &inputs.query)?, line("dout", &inputs.dout)?]),
    };
    let rows = problem.batch * problem.queries() * problem.heads;
    let statistics = client.empty((rows * STATISTICS * size_of::<f32>()).max(1));
    if rows > 0 {
        launch_statistics(
            client,
            problem,
            dtype,
            plan.queries.exponential,
            address_type,
            plan.queries.vector,
            [&inputs.out, &inputs.dout],
            [&inputs.lse, &inputs.dlse, &statistics],
        );
        let tensors = Tensors {
            rows: [&inputs.query, &inputs.dout],
            columns: [&inputs.key, &inputs.value],
            additional: inputs.additional.as_ref().map(|(key, value)| [key, value]),
            statistics: &statistics,
            gradients: [&outputs.dq, &outputs.dq],
        };
        if has(Pass::Queries) {
            launch(client, problem, dtype, &plan.queries, address_type, &tensors);
        }
    }
    for blueprint in plan.keys.iter().filter(|_| has(Pass::Keys)) {
        let tensors = Tensors {
            rows: [&inputs.key, &inputs.value],
            columns: [&inputs.query, &inputs.dout],
            additional: None,
            statistics: &statistics,
            gradients: [&outputs.dk, &outputs.dv],
        };
        launch(client, problem, dtype, blueprint, address_type, &tensors);
    }
    if only.is_some() {
        return Ok(());
    }
    if let (Some((key, value)), Some((dk, dv)), Some([query, dout])) =
        (&inputs.additional, &outputs.additional, &lines)
    {
        for blueprint in &plan.additional {
            let tensors = Tensors {
                rows: [key, value],
                columns: [query, dout],
                additional: None,
                statistics: &statistics,
                gradients: [dk, dv],
            };
            launch(client, &additional, dtype, blueprint, address_type, &tensors);
        }
    }
    Ok(())
}

/// All inputs that have strides.
fn tensors<'a>(problem: &Problem, inputs: &'a BackwardInputs) -> Vec<Named<'a>> {
    let BackwardInputs { query, key, value, additional, out, dout, .. } = inputs;
    let mut tensors = named(problem, [query, key, value], additional);
    let [z, y, x] = problem.axes.map(|axis| axis.queries);
    let lengths = [problem.batch, z, y, x, problem.heads];
    tensors.push(("out", out, problem.head_dim_v, lengths));
    tensors.push(("dout", dout, problem.head_dim_v, lengths));
    tensors
}

/// Elements of a load: the most that every row of every input allows.
pub fn backward_vector(problem: &Problem, inputs: &BackwardInputs, dtype: ElemType) -> usize {
    common_vector(&tensors(problem, inputs), dtype)
}

/// Checks the buffers that are contiguous.
fn check_buffers(
    problem: &Problem,
    dtype: ElemType,
    inputs: &BackwardInputs,
    outputs: &BackwardOutputs,
) -> Result<(), TensorCoreError> {
    let queries = (problem.batch * problem.queries() * problem.heads) as u64;
    let keys = (problem.batch * problem.keys() * problem.heads_kv) as u64;
    let more = (problem.batch * problem.additional * problem.heads_kv) as u64;
    let size = stored(dtype).size() as u64;
    let (dim, dim_v) = (size * problem.head_dim as u64, size * problem.head_dim_v as u64);
    check_buffer("lse", &inputs.lse, 4 * queries)?;
    check_buffer("dlse", &inputs.dlse, 4 * queries)?;
    check_buffer("dq", &outputs.dq, queries * dim)?;
    check_buffer("dk", &outputs.dk, keys * dim)?;
    check_buffer("dv", &outputs.dv, keys * dim_v)?;
    if outputs.additional.is_some() != (problem.additional > 0) {
        return Err(TensorCoreError::Additional(problem.additional));
    }
    if let Some((dk, dv)) = &outputs.additional {
        check_buffer("additional dk", dk, more * dim)?;
        check_buffer("additional dv", dv, more * dim_v)?;
    }
    Ok(())
}
