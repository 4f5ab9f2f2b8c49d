//! Packed batches on a device: one launch a pass for all sequences.

use cubecl::client::Client;
use cubecl::server::Handle;

use super::backward::load;
use super::forward::hopper;
use super::program::Program;
use super::{BackwardPlan, Element, Schedule, planned_packed, planned_packed_backward};
use crate::native::backward::Parts;
use crate::native::packed as launches;
use crate::tiling::Tiling;
use crate::{KernelError, Operands, Outputs, Packed, Saved, Strided};

/// [Attention](super::forward()) of the sequences of a packed batch, each on its own. Tensors are those of [`Packed::line`].
///
/// # Errors
///
/// [`KernelError`] if nothing was launched.
pub fn forward_packed(
    client: &Client,
    packed: &Packed,
    element: Element,
    tiling: Option<Tiling>,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let schedule = planned_packed(packed, element, tiling).map_err(KernelError::Problem)?;
    check_fits([&schedule], packed);
    let device = hopper(client)?;
    let cut = schedule.cut();
    launches::check_forward(&cut, packed, inputs, outputs)?;
    let cubin = Program::Attention(schedule).load(&device)?;
    launches::enqueue_forward(client, &device, (cut, &cubin), packed, inputs, outputs);
    Ok(())
}

/// Its [gradients](super::backward()).
///
/// # Errors
///
/// [`KernelError`] if nothing was launched.
pub fn backward_packed(
    client: &Client,
    packed: &Packed,
    element: Element,
    tiling: Option<Tiling>,
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let plan = planned_packed_backward(packed, element, tiling).map_err(KernelError::Problem)?;
    check_fits(plan.schedules(), packed);
    let device = hopper(client)?;
    launches::check_backward(plan.schedules().map(Schedule::cut), packed, inputs, outputs)?;
    let wanted = outputs.as_ref().map(|_, gradient| gradient.is_some());
    let BackwardPlan { queries, keys, .. } = plan.wanted(&wanted);
    let parts = Parts {
        queries: load(&queries, &device)?,
        keys: load(&keys, &device)?,
        additional: vec![],
        delta: Program::Delta(element, packed.line().head_dim_v, true).load(&device)?,
        bias_sum: None,
    };
    launches::enqueue_backward(client, &device, &parts, packed, inputs, outputs);
    Ok(())
}

/// Compiles the kernels of a packed batch, so that their first launch does not wait: those of the forward pass and, for training, of
/// the backward pass.
///
/// # Errors
///
/// [`KernelError`] if they cannot run on the device.
pub fn warm_up_packed(
    client: &Client,
    packed: &Packed,
    element: Element,
    tiling: Option<Tiling>,
    is_training: bool,
) -> Result<(), KernelError> {
    let device = hopper(client)?;
    let schedule = planned_packed(packed, element, tiling).map_err(KernelError::Problem)?;
    Program::Attention(schedule).load(&device)?;
    if is_training {
        let plan =
            planned_packed_backward(packed, element, tiling).map_err(KernelError::Problem)?;
        load(&plan.queries, &device)?;
        load(&plan.keys, &device)?;
        Program::Delta(element, packed.line().head_dim_v, true).load(&device)?;
    }
    Ok(())
}

fn check_fits<'a>(schedules: impl IntoIterator<Item = &'a Schedule>, packed: &Packed) {
    for schedule in schedules {
        let fits = packed.problems().all(|problem| schedule.fits(problem));
        assert!(schedule.is_packed && fits, "{schedule} is no schedule for the packed batch");
    }
}
