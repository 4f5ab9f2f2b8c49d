//! Block-sparse attention on a device.

use cubecl::client::Client;
use cubecl::server::Handle;

use super::forward::hopper;
use super::program::Program;
use super::{Element, Listed, Schedule, planned_blocks};
use crate::native::blocks as launches;
use crate::{BlockSparse, KernelError, Operands, Outputs, Strided};

/// [Block-sparse attention](crate::portable::blocks::forward) in f16 or bf16, by the schedule that is [`planned_blocks`].
///
/// Returns when the work is enqueued; the first use of a schedule compiles it. Workspace, until the kernels ran: 16 bytes for each list,
/// and 8 for each box of at most 64 keys that a list names.
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
    let schedule = planned_blocks(sparse, element).map_err(KernelError::Problem)?;
    forward_blocks_with(client, &schedule, sparse, inputs, lists, outputs)
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
        warpgroups: schedule.warpgroups,
        columns: schedule.columns(),
    }
}
