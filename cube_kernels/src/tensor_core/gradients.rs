//! Launches of the backward pass.

use std::sync::{Arc, LazyLock, Mutex};

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::server::Handle;

use super::backward::{STATISTICS, Tensors, launch, launch_statistics};
use super::geometry::Launching;
use super::launch::{
    How, View, address_type, capability, check_instruction, chosen, common_vector, stored, views,
};
use super::packed::All;
use super::tune::{fastest, representative, shortlist};
use super::{
    BackwardPlan, Blueprint, Capability, Choice, Pass, backward_candidates, plan_backward,
};
use crate::choices::Choices;
use crate::cube::{Cubes, Extent};
use crate::view::{KeyGradients, check_gradients, check_saved_with_out};
use crate::{
    KernelError, KeyValue, Operand, Operands, Packed, Problem, Saved, Shape, Strided, portable,
};

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
    let capability = capability(client, dtype)?;
    let vector = backward_vector(problem, inputs, dtype);
    let plan = chosen(&KNOWN, problem, (capability, vector, dtype, choice), || {
        let Some(mut plan) = planned(problem, &capability, vector, choice) else {
            return Ok(None);
        };
        if choice == Choice::Measured {
            measure(client, &mut plan, problem, dtype, &capability, vector, inputs, outputs)?;
        }
        Ok(Some(Arc::new(plan)))
    })?;
    backward_with(client, &plan, problem, dtype, inputs, outputs)
}

/// What was chosen for problems.
static KNOWN: Choices<How, Arc<BackwardPlan>> = LazyLock::new(Mutex::default);

/// The kernels with the tiles that are asked for, where there are some, and else by the model.
fn planned(
    problem: &Problem,
    capability: &Capability,
    vector: usize,
    choice: Choice,
) -> Option<BackwardPlan> {
    let plan = plan_backward(problem, capability, vector)?;
    Some(match choice.tiling() {
        Some(tiling) => plan.with_tiling(problem, capability, vector, tiling),
        None => plan,
    })
}

/// [`backward()`] of all sequences of a packed batch, in one launch of each kernel. Tensors are the packed ones, of the
/// shapes that [`Packed::line`] has; gradients are contiguous. Kernels are chosen as by
/// [`forward_packed`](super::forward_packed).
///
/// # Errors
///
/// If the device cannot run the sequences or a buffer is too small; then nothing was launched.
pub fn backward_packed(
    client: &Client,
    packed: &Packed,
    dtype: ElemType,
    choice: Choice,
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let capability = capability(client, dtype)?;
    let vector = backward_vector(packed.line(), inputs, dtype);
    let (all, choice) = (All::of(packed), choice.modelled());
    let plan = chosen(&KNOWN, &all.like, (capability, vector, dtype, choice), || {
        Ok(planned(&all.like, &capability, vector, choice).map(Arc::new))
    })?;
    run(client, &all.plan(&plan), Extent::Packed(packed), dtype, inputs, outputs)
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
    run(client, plan, Extent::Problem(problem), dtype, inputs, outputs)
}

/// Checks, and launches the kernels of a plan that fits.
fn run(
    client: &Client,
    plan: &BackwardPlan,
    extent: Extent<'_>,
    dtype: ElemType,
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let problem = extent.problem();
    let size = stored(dtype).size();
    check_saved_with_out(problem, inputs, size)?;
    check_gradients(problem, outputs, size)?;
    plan.blueprints().for_each(|blueprint| check_instruction(blueprint, dtype));
    let address_type = address_type(client, problem, dtype, tensors(problem, inputs))?;
    let Saved { operands, outputs: results, gradients, .. } = inputs;
    let lse = results.lse.contiguous_handle("lse", Shape::lse(problem))?;
    let dlse = gradients.lse.contiguous_handle("dlse", Shape::lse(problem))?;
    let dtype = stored(dtype);
    let on = Launching { client, problem, dtype, address_type };
    let cubes = |blueprint: &Blueprint| Cubes::new(client, extent, &blueprint.cut());
    let line = |name, tensor: &Strided| tensor.beside_additional(name, Shape::out(problem));
    let is_joint = plan.blueprints().any(|blueprint| blueprint.has_first && blueprint.has_second);
    let of_keys = KeyGradients { client, problem, size, is_joint };
    let (keys, more) = (of_keys.own(outputs), of_keys.additional(outputs));
    let lines = match &more {
        None => None,
        Some(_) => Some([line("query", &operands.query)?, line("dout", &gradients.out)?]),
    };
    let wanted = plan.wanted(&outputs.as_ref().map(|_, gradient| gradient.is_some()));
    let of_queries = cubes(&plan.queries)?;
    let of_own_keys = wanted.keys.iter().map(cubes).collect::<Result<Vec<_>, _>>()?;
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
        let Blueprint { exponential, vector, .. } = plan.queries;
        let numbers = [lse, dlse, &statistics];
        launch_statistics(&on, exponential, vector, [&results.out, &gradients.out], numbers);
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
            launch(&on, &queries, of_queries, &tensors);
        }
        if let (Some(sums), Some(Some(dbias))) = (&sums, &outputs.bias) {
            let tiles = queries.query_tiles(problem);
            portable::reduce_tiles(client, problem, dtype, sums, dbias, tiles)?;
        }
    }
    if let Some(KeyValue { key: dk, value: dv }) = &keys {
        for (blueprint, cubes) in wanted.keys.iter().zip(of_own_keys) {
            let tensors = Tensors {
                rows: [&operands.key, &operands.value],
                columns: [&operands.query, &gradients.out],
                additional: None,
                statistics: &statistics,
                bias: operands.bias.as_ref(),
                gradients: [dk, dv],
                sums: None,
            };
            launch(&on, blueprint, cubes, &tensors);
        }
    }
    if let (
        Some(KeyValue { key, value }),
        Some(KeyValue { key: dk, value: dv }),
        Some([query, dout]),
    ) = (&operands.additional, &more, &lines)
    {
        let problem = &problem.of_additional();
        let on = Launching { problem, ..on };
        for blueprint in &wanted.additional {
            let tensors = Tensors {
                rows: [key, value],
                columns: [query, dout],
                additional: None,
                statistics: &statistics,
                bias: None,
                gradients: [dk, dv],
                sums: None,
            };
            let cubes = Cubes::new(client, Extent::Problem(problem), &blueprint.cut())?;
            launch(&on, blueprint, cubes, &tensors);
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
