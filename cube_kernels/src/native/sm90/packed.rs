//! Packed batches on a device: one launch a kernel for all sequences, or for each part that has a schedule of its own.

use cubecl::client::Client;
use cubecl::server::Handle;

use super::backward::load;
use super::forward::hopper;
use super::program::Program;
use super::{BackwardPlan, Element, Schedule, planned_packed, planned_packed_backward};
use crate::native::backward::{Parts, delta_dim, delta_dims};
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
    let parts = planned_packed(packed, element, tiling).map_err(KernelError::Problem)?;
    check_fits(parts.iter().map(|part| (&*part.packed, &part.plan)));
    let device = hopper(client)?;
    let mut ready = vec![];
    for part in &parts {
        let cut = part.plan.cut();
        launches::check_forward(&cut, &part.packed, inputs, outputs)?;
        ready.push((cut, Program::Attention(part.plan).load(&device)?, &part.packed));
    }
    for (cut, cubin, packed) in ready {
        launches::enqueue_forward(client, &device, (cut, &cubin), packed, inputs, outputs);
    }
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
    let parts = planned_packed_backward(packed, element, tiling).map_err(KernelError::Problem)?;
    let schedules =
        parts.iter().flat_map(|part| part.plan.schedules().map(|one| (&*part.packed, one)));
    check_fits(schedules);
    let device = hopper(client)?;
    let wanted = outputs.as_ref().map(|_, gradient| gradient.is_some());
    let mut ready = vec![];
    for part in &parts {
        let cuts = part.plan.schedules().map(Schedule::cut);
        launches::check_backward(cuts, &part.packed, inputs, outputs)?;
        let BackwardPlan { queries, keys, .. } = part.plan.wanted(&wanted);
        let kernels = Parts {
            queries: load(&queries, &device)?,
            keys: load(&keys, &device)?,
            additional: vec![],
            delta: Some(
                Program::Delta(element, delta_dim(packed.line(), inputs), true).load(&device)?,
            ),
            bias_sum: None,
            slopes: None,
        };
        ready.push((kernels, &part.packed));
    }
    for (kernels, packed) in ready {
        launches::enqueue_backward(client, &device, &kernels, packed, inputs, outputs);
    }
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
    for part in planned_packed(packed, element, tiling).map_err(KernelError::Problem)? {
        Program::Attention(part.plan).load(&device)?;
    }
    if is_training {
        let parts = planned_packed_backward(packed, element, tiling);
        for part in parts.map_err(KernelError::Problem)? {
            load(&part.plan.queries, &device)?;
            load(&part.plan.keys, &device)?;
        }
        for read in delta_dims(packed.line().head_dim_v) {
            Program::Delta(element, read, true).load(&device)?;
        }
    }
    Ok(())
}

/// Of a thousand sequences this takes longer than all else of a launch that has been planned before.
fn check_fits<'a>(parts: impl IntoIterator<Item = (&'a Packed, &'a Schedule)>) {
    for (packed, schedule) in parts.into_iter().filter(|_| cfg!(debug_assertions)) {
        let fits = packed.problems().all(|problem| schedule.fits(problem));
        assert!(schedule.is_packed && fits, "{schedule} is no schedule for the packed batch");
    }
}
