//! Tensors on their way between members.

use std::ops::Range;

use burn::backend::Dispatch;
use burn::module::Module;
use burn::tensor::{Device, Tensor};

use crate::backend::exchange::{ExchangeOps, Route, begin, guarded};
use crate::{AttentionError, Context};

/// A tensor on another device: `Tensor::to_device`, in an order that is safe to queue, forward and backward. On its own device it stays as it
/// is. Differentiable: the gradient travels back.
///
/// Between CUDA devices Burn's own `to_device` lets memory change hands while it is still read, so that tensors that are queued one
/// behind the other arrive wrong; the guide says [more](crate::guide::multi_gpu#moving-tensors). From other devices, and to them, tensors pass through the host.
///
/// # Panics
///
/// With the text of the [`AttentionError`] that [`try_exchange`] returns; if the destination fails.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Tensor};
/// use burn_natten::parallel::exchange;
///
/// let tensor = Tensor::<2>::ones([2, 3], &Device::flex());
/// assert_eq!(exchange(tensor, &Device::flex()).dims(), [2, 3]);
/// ```
#[track_caller]
pub fn exchange<const D: usize>(tensor: Tensor<D>, device: &Device) -> Tensor<D> {
    match try_exchange(tensor, device) {
        Ok(tensor) => tensor,
        Err(error) => panic!("{error}"),
    }
}

/// [`exchange`], with an error instead of a panic.
///
/// # Errors
///
/// [`AttentionError::NoTransport`] between CUDA devices that have nothing but the host, where
/// [`Context::with_host_exchange`] does not allow it.
pub fn try_exchange<const D: usize>(
    tensor: Tensor<D>,
    device: &Device,
) -> Result<Tensor<D>, AttentionError> {
    can_exchange(&tensor.device(), device, Context::current())?;
    Ok(carry(tensor, device))
}

/// Fails where two devices are not to exchange tensors.
pub(super) fn can_exchange(
    from: &Device,
    to: &Device,
    context: Context,
) -> Result<(), AttentionError> {
    if context.host_exchange() || !Route::new(from, to).lacks_transport() {
        return Ok(());
    }
    let [from, to] = [from, to].map(|device| format!("{:?}", device.clone().without_autodiff()));
    Err(AttentionError::NoTransport { from, to })
}

/// [`exchange`] between devices that can.
pub(super) fn carry<const D: usize>(tensor: Tensor<D>, to: &Device) -> Tensor<D> {
    let from = tensor.device();
    if from == *to {
        return tensor;
    }
    let route = Route::new(&from, to);
    if route.has_transport() {
        return Tensor::from_dispatch(Dispatch::exchange_float(tensor.into_dispatch(), route));
    }
    tensor.to_device(to)
}

/// What is left to move of a module whose float parameters are on a device already.
pub(super) fn carry_others<M: Module>(module: M, from: &[Device], to: &Device) -> M {
    match from.iter().map(|from| Route::new(from, to)).find(Route::has_transport) {
        Some(route) => guarded(&route, || module.to_device(to)),
        None => module.to_device(to),
    }
}

/// The devices of members, each of which can exchange tensors with any other.
pub(super) struct Links {
    devices: Vec<Device>,
}

impl Links {
    /// `guests` hold what all members get.
    pub fn new(
        devices: Vec<Device>,
        guests: &[Device],
        context: Context,
    ) -> Result<Self, AttentionError> {
        for (number, from) in devices.iter().enumerate() {
            let others = devices[..number].iter().chain(guests);
            others.into_iter().try_for_each(|to| can_exchange(from, to, context))?;
        }
        Ok(Self { devices })
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// Has all members begin with what they are to compute.
    pub fn begin(&self) {
        if self.devices.len() > 1 {
            self.devices.iter().for_each(begin);
        }
    }

    /// A tensor on the device of a member.
    pub fn to<const D: usize>(&self, member: usize, tensor: Tensor<D>) -> Tensor<D> {
        carry(tensor, &self.devices[member])
    }

    /// The same tensor, a step further in the graph.
    ///
    /// A backward pass takes operations by their distance from the leaves. An attention that shares a distance with exchanges might be queued in
    /// the midst of them, and then other members wait until it is done.
    pub fn behind<const D: usize>(&self, tensor: Tensor<D>) -> Tensor<D> {
        let shape = tensor.shape();
        tensor.reshape(shape)
    }

    /// Cuts the tensor of each member along an axis, and joins along another what each gets of all: member `i` gets the pieces
    /// `pieces[i]`.
    pub fn regroup<const D: usize>(
        &self,
        tensors: &[Tensor<D>],
        (cut, pieces): (usize, &[Range<usize>]),
        join: usize,
    ) -> Vec<Tensor<D>> {
        let of = |(member, piece): (usize, &Range<usize>)| {
            let parts = tensors
                .iter()
                .map(|tensor| self.to(member, narrow(tensor.clone(), cut, piece.clone())));
            cat(parts.collect(), join)
        };
        pieces.iter().enumerate().map(of).collect()
    }
}

/// Some of a tensor along an axis; all of it as it is.
pub(super) fn narrow<const D: usize>(
    tensor: Tensor<D>,
    axis: usize,
    range: Range<usize>,
) -> Tensor<D> {
    match range.len() == tensor.dims()[axis] {
        true => tensor,
        false => tensor.narrow(axis, range.start, range.len()),
    }
}

/// Tensors one behind the other along an axis; one as it is.
pub(super) fn cat<const D: usize>(mut tensors: Vec<Tensor<D>>, axis: usize) -> Tensor<D> {
    match tensors.len() {
        1 => tensors.remove(0),
        _ => Tensor::cat(tensors, axis),
    }
}
