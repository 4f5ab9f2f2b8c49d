//! Moving a tensor to another device of its backend, and its gradient back.
//!
//! Burn's own `to_device` does that, too, and between CUDA devices arrives wrong with CubeCL 0.11.3: NCCL runs on a stream of its own, and
//! two of four waits are missing. The memory of the source may be used again before it is sent, and memory is received into that
//! queued kernels still read. So a move is
//!
//! 1. a wait of the destination's communication for the kernels that are queued there, by an event;
//! 2. the move itself, which begins when the source has computed what is sent, and which the destination's kernels wait for;
//! 3. a wait of the source's kernels for the communication, by an event: whatever takes the memory of the tensor waits, too.
//!
//! The host waits for nothing, so that a step of a model can be queued whole. Nothing else may be queued between them, or memory changes hands. In a backward pass other operators' gradients would be, were the
//! waits operators around `to_device`: therefore the move is one operator with its waits inside, in either direction.

use std::sync::{Mutex, PoisonError};

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
#[cfg(feature = "cube")]
use burn::backend::{DeviceOps, DispatchDevice};
use burn::tensor::Device;
#[cfg(feature = "cube")]
use cubecl::{
    ir::{ElemType, FloatKind},
    server::ReduceOperation,
};

/// From where to where.
#[derive(Clone, Debug)]
pub struct Route {
    from: Device,
    to: Device,
}

impl Route {
    pub(crate) fn new(from: &Device, to: &Device) -> Self {
        let [from, to] = [from, to].map(|device| device.clone().without_autodiff());
        Self { from, to }
    }

    /// Whether the operator of this module is needed, and not what Burn has: between devices with a transport of their own. What
    /// passes through the host is in order.
    pub(crate) fn has_transport(&self) -> bool {
        self.transport() == Transport::Devices
    }

    /// Whether two CUDA devices have nothing but the host between them.
    pub(crate) fn lacks_transport(&self) -> bool {
        self.transport() == Transport::Lacking
    }

    #[cfg(feature = "cube")]
    fn transport(&self) -> Transport {
        let (Some(from), Some(to)) = (cube(&self.from), cube(&self.to)) else {
            return Transport::Host;
        };
        if from == to || from.runtime() != to.runtime() {
            Transport::Host
        } else if from.client().has_device_transport() {
            Transport::Devices
        } else if from.runtime() == cubecl::RuntimeId::Cuda {
            Transport::Lacking
        } else {
            Transport::Host
        }
    }

    #[cfg(not(feature = "cube"))]
    fn transport(&self) -> Transport {
        Transport::Host
    }

    #[cfg(feature = "autodiff")]
    fn reversed(self) -> Self {
        Self { from: self.to, to: self.from }
    }
}

/// What tensors travel by.
#[cfg_attr(not(feature = "cube"), allow(dead_code))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    /// From device to device.
    Devices,
    /// Through the host, which is all that such devices have; or not at all.
    Host,
    /// Through the host, between devices that should have better.
    Lacking,
}

/// The operator.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Autodiff: cfg(feature = "autodiff"),
)]
pub trait ExchangeOps: Backend {
    /// A tensor of one end of the route at its other end.
    fn exchange_float(tensor: FloatTensor<Self>, route: Route) -> FloatTensor<Self>;
}

#[cfg(feature = "flex")]
impl ExchangeOps for burn::backend::flex::Flex {
    fn exchange_float(tensor: FloatTensor<Self>, route: Route) -> FloatTensor<Self> {
        // There is one such device.
        guarded(&route, || tensor)
    }
}

// With fusion or without: fused tensors are computed before they move.
#[cfg(feature = "cube")]
impl ExchangeOps for burn::backend::Cube {
    fn exchange_float(tensor: FloatTensor<Self>, route: Route) -> FloatTensor<Self> {
        match cube(&route.to) {
            Some(device) => carry::<Self>(tensor, &route, device),
            None => unreachable!("a route within CubeCL ends at {:?}", route.to),
        }
    }
}

#[cfg(feature = "cube")]
fn carry<B: Backend>(tensor: FloatTensor<B>, route: &Route, to: &B::Device) -> FloatTensor<B> {
    guarded(route, || B::float_to_device(tensor, to))
}

/// One exchange at a time: two threads that exchange at once could each wait for what the other has not sent.
static ORDER: Mutex<()> = Mutex::new(());

/// Moves something between the waits that it needs.
pub(crate) fn guarded<T>(route: &Route, exchange: impl FnOnce() -> T) -> T {
    let _one_at_a_time = ORDER.lock().unwrap_or_else(PoisonError::into_inner);
    expect(&route.to);
    let arrived = exchange();
    hold(&route.from);
    arrived
}

/// Lets what a device receives wait for the kernels that are queued there.
///
/// CubeCL has no call for it, but its reductions begin with that wait, and communication keeps its order. A reduction over one
/// device moves nothing.
#[cfg(feature = "cube")]
fn expect(destination: &Device) {
    if let Some(device) = cube(destination) {
        let mut client = device.client();
        if client.has_device_transport() {
            let nothing = client.empty(size_of::<f32>());
            let dtype = ElemType::Float(FloatKind::F32);
            client.all_reduce(
                nothing.clone(),
                nothing,
                dtype,
                vec![device.id()],
                ReduceOperation::Sum,
            );
        }
    }
}

#[cfg(not(feature = "cube"))]
fn expect(_destination: &Device) {}

/// Has a device begin with what is queued for it. CubeCL keeps tasks of a device until there are enough of them, or somebody waits:
/// members that nobody waits for yet would stand idle.
pub(crate) fn begin(device: &Device) {
    // Nothing is under way that its kernels had to wait for.
    hold(device);
}

/// Lets the kernels of a device wait for what it sends.
#[cfg(feature = "cube")]
fn hold(source: &Device) {
    if let Some(device) = cube(source) {
        let client = device.client();
        if client.has_device_transport() {
            client.sync_collective();
        }
    }
}

#[cfg(not(feature = "cube"))]
fn hold(_source: &Device) {}

/// A device without autodiff as one of CubeCL's, if it is one.
#[cfg(feature = "cube")]
fn cube(device: &Device) -> Option<&burn_cubecl::CubeDevice> {
    match device.as_dispatch() {
        DispatchDevice::Cube(device) => Some(device),
        #[allow(unreachable_patterns)]
        _ => None,
    }
}

#[cfg(feature = "autodiff")]
mod autodiff {
    use burn::backend::autodiff::Autodiff;
    use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
    use burn::backend::autodiff::grads::Gradients;
    use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};

    use super::*;

    #[derive(Debug)]
    struct Exchange;

    impl<B: ExchangeOps> Backward<B, 1> for Exchange {
        type State = Route;

        fn backward(self, ops: Ops<Route, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
            let gradient = grads.consume::<B>(&ops.node);
            let [parent] = ops.parents;
            if let Some(parent) = parent {
                let back = ops.state.reversed();
                grads.register::<B>(parent.id, B::exchange_float(gradient, back));
            }
        }
    }

    impl<B: ExchangeOps, C: CheckpointStrategy> ExchangeOps for Autodiff<B, C> {
        fn exchange_float(tensor: FloatTensor<Self>, route: Route) -> FloatTensor<Self> {
            let inner = tensor.primitive().clone();
            let node = tensor.node();
            drop(tensor);
            let arrived = B::exchange_float(inner, route.clone());
            match Backward::<B, 1>::prepare::<C>(Exchange, [node]).compute_bound().stateful() {
                OpsKind::Tracked(prep) => prep.finish(route, arrived),
                OpsKind::UnTracked(prep) => prep.finish(arrived),
            }
        }
    }
}

#[cfg(all(test, feature = "flex", feature = "autodiff"))]
mod tests {
    use burn::backend::Dispatch;
    use burn::tensor::Tensor;

    use super::*;

    #[test]
    fn values_and_gradients_travel() {
        let device = Device::flex().autodiff();
        let x = Tensor::<2>::from_floats([[1.0, -2.0, 3.0]], &device).require_grad();
        let route = Route::new(&device, &device);
        let moved = Dispatch::exchange_float((x.clone() * 2.0).into_dispatch(), route.clone());
        let moved = Tensor::<2>::from_dispatch(moved);
        assert!(moved.device().is_autodiff());
        let gradients = (moved.clone() * moved).sum().backward();
        let gradient = x.grad(&gradients).expect("is tracked");
        let expected = Tensor::<2>::from_floats([[8.0, -16.0, 24.0]], &Device::flex());
        assert!(gradient.equal(expected).all().into_scalar::<bool>());
        // And without a tape.
        let x = x.detach().without_autodiff();
        let moved = Tensor::<2>::from_dispatch(Dispatch::exchange_float(x.into_dispatch(), route));
        assert!(!moved.device().is_autodiff());
    }

    #[test]
    fn a_device_has_no_transport_to_itself() {
        let device = Device::flex();
        let route = Route::new(&device, &device.clone().autodiff());
        assert!(!route.has_transport() && !route.lacks_transport());
    }
}
