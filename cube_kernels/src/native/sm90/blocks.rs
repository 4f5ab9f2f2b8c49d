//! Block-sparse attention on a device.

use cubecl::client::Client;
use cubecl::server::Handle;

use super::backward::load;
use super::forward::hopper;
use super::inverse::{Items, turn_lists};
use super::program::Program;
use super::{
    BackwardPlan, Element, Listed, Schedule, Union, UnionKernel, planned_blocks,
    planned_blocks_backward, union,
};
use crate::native::backward::{Parts, delta_dim};
use crate::native::blocks as launches;
use crate::{BlockSparse, KernelError, Operands, Outputs, Saved, Strided};

/// [Block-sparse attention](crate::portable::blocks::forward) in f16 or bf16: by the kernels of [`Union`] where queries have lists of
/// their own, or by the schedule that is [`planned_blocks`].
///
/// Returns when the work is enqueued; the first use of a kernel compiles it. Workspace, until the kernels ran: 8 bytes for each entry of
/// each query where queries have lists of their own, or 16 for each list, and 8 for each box of at most 64 keys that a list names. Where
/// groups have up to 8 heads, and blocks 64 keys, a value vector for each entry and head of the group instead, for as many samples and key
/// heads at once as take 1.1 GiB, and one at least, of up to 5 GiB.
///
/// # Errors
///
/// [`KernelError`] if nothing was launched.
pub fn forward_blocks(
    client: &Client,
    sparse: &BlockSparse,
    element: Element,
    inputs: &Operands<Strided>,
    lists: &Handle,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    if let Ok(of) = Union::of(sparse, element) {
        return forward_union(client, &of, sparse, inputs, lists, outputs);
    }
    let schedule = planned_blocks(sparse, element).map_err(KernelError::Problem)?;
    forward_blocks_with(client, &schedule, sparse, inputs, lists, outputs)
}

/// [`forward_blocks()`] by given kernels, which have to be those of the problem.
///
/// # Errors
///
/// [`KernelError`] if nothing was launched.
pub fn forward_union(
    client: &Client,
    of: &Union,
    sparse: &BlockSparse,
    inputs: &Operands<Strided>,
    lists: &Handle,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let device = hopper(client)?;
    union::check_forward(of, sparse, inputs, lists, outputs)?;
    if let Some(of) = of.visits(sparse) {
        let load = |kernel| Program::Union(of, kernel).load(&device);
        let programs = union::VisitPrograms {
            inverse: Program::Inverse.load(&device)?,
            parts: load(UnionKernel::Parts)?,
            visits: load(UnionKernel::Visits)?,
            merge: load(UnionKernel::Merge)?,
        };
        return union::enqueue_visits(client, &programs, &of, sparse, inputs, lists, outputs);
    }
    let programs = union::Programs {
        lists: Program::UnionLists(*of).load(&device)?,
        attention: Program::Union(*of, UnionKernel::Forward).load(&device)?,
    };
    union::enqueue_forward(client, &device, &programs, of, sparse, inputs, lists, outputs);
    Ok(())
}

/// [`forward_blocks()`] by a given schedule, which has to be one of the problem's candidates.
///
/// # Errors
///
/// [`KernelError`] if nothing was launched.
///
/// # Panics
///
/// If the schedule is none for the problem.
pub fn forward_blocks_with(
    client: &Client,
    schedule: &Schedule,
    sparse: &BlockSparse,
    inputs: &Operands<Strided>,
    lists: &Handle,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    assert!(schedule.fits_blocks(sparse), "{schedule} is no schedule for {sparse:?}");
    let device = hopper(client)?;
    launches::check_forward(&schedule.cut(), sparse, inputs, lists, outputs)?;
    let walk = launches::Walk::new(boxes(schedule), sparse)?;
    let make = Program::Lists(false).load(&device)?;
    let cubin = Program::Attention(*schedule).load(&device)?;
    launches::enqueue_forward(client, &device, &walk, [&make, &cubin], inputs, lists, outputs);
    Ok(())
}

/// How a schedule cuts block-sparse attention.
fn boxes(schedule: &Schedule) -> launches::Boxes {
    let heads = schedule.listed.unwrap_or(Listed { row_heads: 1, column_heads: 1 });
    launches::Boxes {
        cut: schedule.cut(),
        row_heads: heads.row_heads,
        column_heads: heads.column_heads,
        row_tiles: schedule.row_tiles(),
        columns: schedule.columns(),
    }
}

/// Its [gradients](crate::portable::blocks::backward), by the schedules that are [`planned_blocks_backward`]. What sums none that is
/// wanted, one that has a buffer, is not launched.
///
/// No atomics on gradients: results repeat bit by bit. Workspace, until the kernels ran: 16 bytes for each query and head, what the forward
/// pass takes for each of the two kernels, and for keys and values 4 bytes for each entry of a list, 4 for each block of keys and each
/// 1,024 entries, and 4 for each block of keys, or, above 58,112 blocks of keys, what [`invert`](crate::sparse::invert) takes; where
/// queries have lists of their own, also sums of long inverse lists in f32, of 65,536 rows of queries or half as many each. Where groups
/// have up to 16 heads, and blocks 64 keys, and gradients of queries as well as of keys or values are wanted: a row for each entry and head
/// of the group, 2 bytes for each element of a query vector and 4, for as many samples and key heads at once as the forward pass has, and
/// sums of inverse lists of more than 2,048 entries.
///
/// # Errors
///
/// [`KernelError`] if nothing was launched.
pub fn backward_blocks(
    client: &Client,
    sparse: &BlockSparse,
    element: Element,
    inputs: &Saved<Strided>,
    lists: &Handle,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    if let Ok(of) = Union::of(sparse, element) {
        return backward_union(client, &of, sparse, inputs, lists, outputs);
    }
    let plan = planned_blocks_backward(sparse, element).map_err(KernelError::Problem)?;
    backward_blocks_with(client, &plan, sparse, inputs, lists, outputs)
}

/// [`backward_blocks()`] by given kernels, which have to be those of the problem.
///
/// # Errors
///
/// [`KernelError`] if nothing was launched.
pub fn backward_union(
    client: &Client,
    of: &Union,
    sparse: &BlockSparse,
    inputs: &Saved<Strided>,
    lists: &Handle,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let device = hopper(client)?;
    union::check_backward(of, sparse, inputs, lists, outputs)?;
    let wants = outputs.query.is_some() && (outputs.key.is_some() || outputs.value.is_some());
    if let Some(of) = of.visits_backward(sparse).filter(|_| wants && sparse.key_blocks() > 0) {
        let load = |kernel| Program::Union(of, kernel).load(&device);
        let programs = union::GradientPrograms {
            delta: Program::Delta(of.element, delta_dim(&sparse.problem, inputs), false)
                .load(&device)?,
            inverse: Program::Inverse.load(&device)?,
            parts: load(UnionKernel::Parts)?,
            blocks: load(UnionKernel::VisitGradients)?,
            queries: load(UnionKernel::MergeGradients)?,
            sums: load(UnionKernel::VisitSums)?,
        };
        return union::enqueue_gradients(client, &programs, &of, sparse, inputs, lists, outputs);
    }
    let load = |kernel| Program::Union(*of, kernel).load(&device);
    let programs = union::BackwardPrograms {
        delta: Program::Delta(of.element, delta_dim(&sparse.problem, inputs), false)
            .load(&device)?,
        lists: Program::UnionLists(*of).load(&device)?,
        inverse: Program::Inverse.load(&device)?,
        queries: load(UnionKernel::Queries)?,
        parts: load(UnionKernel::Parts)?,
        keys: load(UnionKernel::Keys)?,
        sums: load(UnionKernel::Sums)?,
    };
    union::enqueue_backward(client, &device, &programs, of, sparse, inputs, lists, outputs)
}

/// [`backward_blocks()`] by given schedules, which have to be ones for the problem.
///
/// # Errors
///
/// [`KernelError`] if nothing was launched.
///
/// # Panics
///
/// If a schedule is none for the problem.
pub fn backward_blocks_with(
    client: &Client,
    plan: &BackwardPlan,
    sparse: &BlockSparse,
    inputs: &Saved<Strided>,
    lists: &Handle,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    for schedule in plan.schedules() {
        assert!(schedule.fits_blocks(sparse), "{schedule} is no schedule for {sparse:?}");
    }
    let device = hopper(client)?;
    launches::check_backward(plan.schedules().map(Schedule::cut), sparse, inputs, lists, outputs)?;
    let wanted = outputs.as_ref().map(|_, gradient| gradient.is_some());
    let plan = plan.wanted(&wanted);
    let Some(element) = plan.schedules().next().map(|schedule| schedule.element) else {
        return Ok(());
    };
    let walks = |schedules: &[Schedule]| -> Result<Vec<_>, KernelError> {
        schedules.iter().map(|schedule| launches::Walk::new(boxes(schedule), sparse)).collect()
    };
    let (queries, keys) = (walks(&plan.queries)?, walks(&plan.keys)?);
    let parts = Parts {
        queries: load(&plan.queries, &device)?,
        keys: load(&plan.keys, &device)?,
        additional: vec![],
        delta: Some(
            Program::Delta(element, delta_dim(&sparse.problem, inputs), false).load(&device)?,
        ),
        bias_sum: None,
        slopes: None,
    };
    let makers = launches::Makers {
        lists: Program::Lists(false).load(&device)?,
        turned: Program::Lists(true).load(&device)?,
    };
    let walks = [&queries[..], &keys[..]];
    let inverse = Program::Inverse.load(&device)?;
    let turn = || turn_lists(client, &inverse, sparse, lists, Items::Lists);
    launches::enqueue_backward(
        client, &device, &parts, &makers, walks, inputs, lists, turn, outputs,
    )
}
