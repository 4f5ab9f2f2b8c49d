//! What takes the place of a CUDA device in tests: it is handed the launches of a thread, as the driver would be.
//!
//! The checks, schedules, grids, tensor maps and parameters of a launch are then those that a device would get; memory is that
//! of any CubeCL runtime.

use std::cell::RefCell;
use std::rc::Rc;

use cubecl::client::Client;

pub use super::launch::{Argument, Buffer, DeviceInfo, Kernel, Launch, MapElement, TensorMap};

/// Something that runs launches in a device's place. A kernel's program is its source.
pub trait StandIn {
    /// What the native path is told of the device.
    fn info(&self) -> DeviceInfo;

    /// Runs a kernel.
    fn launch(&self, client: &Client, launch: Launch);
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<dyn StandIn>>> = const { RefCell::new(None) };
}

/// What stands in for a device on this thread.
pub(super) fn current() -> Option<Rc<dyn StandIn>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Runs `work` with all launches of this thread handed to `stand_in`.
///
/// Programs are kept by their process: one that has used a stand-in is not to use a device of the same kind.
pub fn with<R>(stand_in: Rc<dyn StandIn>, work: impl FnOnce() -> R) -> R {
    struct Restore(Option<Rc<dyn StandIn>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _restore = Restore(CURRENT.replace(Some(stand_in)));
    work()
}
