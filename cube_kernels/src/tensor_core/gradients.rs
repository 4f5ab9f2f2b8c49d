//! Launches of the backward pass.

use std::sync::{Arc, LazyLock, Mutex};

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::server::Handle;

use super::backward::{STATISTICS, Tensors, launch, launch_statistics};
use super::launch::{
    How, View, address_type, capability, check_instruction, chosen, common_vector, stored, views,
};
use super::tune::{fastest, representative, shortlist};
use super::{
    BackwardPlan, Blueprint, Capability, Choice, Pass, backward_candidates, plan_backward,
};
use crate::choices::Choices;
use crate::view::{KeyGradients, check_gradients, check_saved};
use crate::{KernelError, KeyValue, Operand, Operands, Problem, Saved, Shape, Strided, portable};

/// The gradients of attention, by the blueprints that `choice` takes. With the same blueprints results repeat bit by
/// bit. What sums none that is wanted, one that has a buffer, is not launched. Workspace: 8 bytes for each row of the queries, and
/// for the gradient of a bias at most 1 GiB of sums, or what the [Portable tier](crate::portable::backward) takes for it.
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
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
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
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    if problem.batch * problem.queries() * problem.heads == 0 {
        return Ok(());
    }
    let like = representative(problem);
    // For all calls to come, whatever they want.
    let outputs = outputs.as_ref().map(|operand, output| {
        let bytes = || stored(dtype).size() * operand.shape(problem).elements();
        output.clone().unwrap_or_else(|| client.empty(bytes().max(1)))
    });
    let measured = |plan: &BackwardPlan, pass| {
        let all = backward_candidates(&like, capability, vector, pass);
        let launch = {
            let (client, plan, problem) = (client.clone(), plan.clone(), *problem);
            let (inputs, mut outputs) = (inputs.clone(), outputs.every());
            if pass == Pass::Keys {
                outputs.query = None;
                outputs.bias = outputs.bias.map(|_| None);
            } else {
                (outputs.key, outputs.value) = (None, None);
            }
            outputs.additional = outputs.additional.map(|more| more.map(|_| None));
            move |blueprint: &Blueprint| {
                let plan = match pass {
                    Pass::Keys => BackwardPlan { keys: vec![*blueprint], ..plan.clone() },
                    _ => BackwardPlan { queries: *blueprint, ..plan.clone() },
                };
                backward_with(&client, &plan, &problem, dtype, &inputs, &outputs)
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
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let additional = problem.of_additional();
    for blueprint in [&plan.queries].into_iter().chain(&plan.keys) {
        assert!(blueprint.fits(problem), "{blueprint} is no blueprint for {problem:?}");
    }
    for blueprint in &plan.additional {
        assert!(blueprint.fits(&additional), "{blueprint} is no blueprint for {additional:?}");
    }
    let size = stored(dtype).size();
    check_saved(problem, inputs, size)?;
    check_gradients(problem, outputs, size)?;
    plan.blueprints().for_each(|blueprint| check_instruction(blueprint, dtype));
    let address_type = address_type(client, problem, dtype, tensors(problem, inputs))?;
    let Saved { operands, outputs: results, gradients } = inputs;
    let lse = results.lse.contiguous_handle("lse", Shape::lse(problem))?;
    let dlse = gradients.lse.contiguous_handle("dlse", Shape::lse(problem))?;
    let dtype = stored(dtype);
    let line = |name, tensor: &Strided| tensor.beside_additional(name, Shape::out(problem));
    let is_joint = plan.blueprints().any(|blueprint| blueprint.has_first && blueprint.has_second);
    let of_keys = KeyGradients { client, problem, size, is_joint };
    let (keys, more) = (of_keys.own(outputs), of_keys.additional(outputs));
    let lines = match &more {
        None => None,
        Some(_) => Some([line("query", &operands.query)?, line("dout", &gradients.out)?]),
    };
    let rows = problem.batch * problem.queries() * problem.heads;
    let is_summed = plan.queries.bias_sums > 0 && rows > 0;
    let summing = match &outputs.bias {
        Some(Some(_)) if is_summed => Some(plan.queries),
        Some(Some(dbias)) => {
            // The first to be launched, since it may be refused.
            launch_bias(client, problem, dtype, inputs, dbias)?;
            None
        }
        _ => None,
    };
    let statistics = client.empty((rows * STATISTICS * size_of::<f32>()).max(1));
    if rows > 0 {
        launch_statistics(
            client,
            problem,
            dtype,
            plan.queries.exponential,
            address_type,
            plan.queries.vector,
            [&results.out, &gradients.out],
            [lse, dlse, &statistics],
        );
        let (queries, sums) = match summing {
            Some(queries) => (queries, Some(sums_of(client, problem, &queries))),
            None => (Blueprint { bias_sums: 0, ..plan.queries }, None),
        };
        // The kernel that sums the gradient of the bias writes that of the queries in any case.
        let unwanted = || client.empty(size * Operand::Query.shape(problem).elements());
        if let Some(dq) = outputs.query.clone().or_else(|| sums.as_ref().map(|_| unwanted())) {
            let tensors = Tensors {
                rows: [&operands.query, &gradients.out],
                columns: [&operands.key, &operands.value],
                additional: operands.additional.as_ref().map(|more| [&more.key, &more.value]),
                statistics: &statistics,
                bias: operands.bias.as_ref(),
                gradients: [&dq, &dq],
                sums: sums.as_ref(),
            };
            launch(client, problem, dtype, &queries, address_type, &tensors);
        }
        if let (Some(sums), Some(Some(dbias))) = (&sums, &outputs.bias) {
            let tiles = queries.query_tiles(problem);
            portable::reduce_tiles(client, problem, dtype, sums, dbias, tiles)?;
        }
    }
    let plan = plan.wanted(&outputs.as_ref().map(|_, gradient| gradient.is_some()));
    if let Some(KeyValue { key: dk, value: dv }) = &keys {
        for blueprint in &plan.keys {
            let tensors = Tensors {
                rows: [&operands.key, &operands.value],
                columns: [&operands.query, &gradients.out],
                additional: None,
                statistics: &statistics,
                bias: operands.bias.as_ref(),
                gradients: [dk, dv],
                sums: None,
            };
            launch(client, problem, dtype, blueprint, address_type, &tensors);
        }
    }
    if let (
        Some(KeyValue { key, value }),
        Some(KeyValue { key: dk, value: dv }),
        Some([query, dout]),
    ) = (&operands.additional, &more, &lines)
    {
        for blueprint in &plan.additional {
            let tensors = Tensors {
                rows: [key, value],
                columns: [query, dout],
                additional: None,
                statistics: &statistics,
                bias: None,
                gradients: [dk, dv],
                sums: None,
            };
            launch(client, &additional, dtype, blueprint, address_type, &tensors);
        }
    }
    Ok(())
}

/// Memory for the sums of all cubes.
fn sums_of(client: &Client, problem: &Problem, blueprint: &Blueprint) -> Handle {
    client.empty((blueprint.all_sums(problem) * size_of::<f32>()).max(1))
}

/// Launches what sums the gradient of the bias where the kernel of the queries has no room for it: the Portable tier's rows.
fn launch_bias(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    inputs: &Saved<Strided>,
    dbias: &Handle,
) -> Result<(), KernelError> {
    let mut outputs = inputs.operands.as_ref().map(|_, _| None);
    outputs.bias = Some(Some(dbias.clone()));
    portable::backward_with(client, &portable::BackwardPlan::ROWS, problem, dtype, inputs, &outputs)
}

/// All inputs of two or four bytes an element.
fn tensors<'a>(problem: &Problem, inputs: &'a Saved<Strided>) -> impl Iterator<Item = View<'a>> {
    let out = Shape::out(problem);
    views(problem, &inputs.operands)
        .chain([(out, &inputs.outputs.out), (out, &inputs.gradients.out)])
}

/// Elements of a load: the most that every row of every input allows.
pub fn backward_vector(problem: &Problem, inputs: &Saved<Strided>, dtype: ElemType) -> usize {
    common_vector(tensors(problem, inputs), dtype)
}
