//! The device behind a client.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use cubecl::client::Client;
use cudarc::driver::{result, sys};

use super::Server;
use crate::native::stand_in;

/// What the native path has to know of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Compute capability: 90 for Hopper.
    pub capability: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of the last level of cache.
    pub l2_bytes: usize,
    /// Version of the driver's CUDA interface, 13000 for 13.0.
    pub driver: i32,
}

impl DeviceInfo {
    /// Whether a launch may begin before the one ahead of it ends.
    pub(in crate::native) fn has_early_launches(&self) -> bool {
        self.capability >= 90
    }
}

/// The CUDA device behind a client; `None` for any other runtime.
pub fn device_info(client: &Client) -> Option<DeviceInfo> {
    if let Some(stand_in) = stand_in::current() {
        return Some(stand_in.info());
    }
    static KNOWN: LazyLock<Mutex<HashMap<u16, DeviceInfo>>> = LazyLock::new(Mutex::default);
    let service = client.service_id();
    if service.service != core::any::TypeId::of::<Server>() {
        return None;
    }
    let ordinal = service.device.index_id;
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(info) = known.get(&ordinal) {
        return Some(*info);
    }
    let info =
        query_device(ordinal).inspect_err(|error| log::warn!("CUDA device {ordinal}: {error:?}"));
    known.extend(info.ok().map(|info| (ordinal, info)));
    known.get(&ordinal).copied()
}

fn query_device(ordinal: u16) -> Result<DeviceInfo, result::DriverError> {
    use sys::CUdevice_attribute::*;
    let device = result::device::get(i32::from(ordinal))?;
    // SAFETY: `device` comes from the driver, which the server has initialised.
    let attribute = |which| unsafe { result::device::get_attribute(device, which) };
    let mut driver = 0;
    // SAFETY: the driver writes one integer.
    unsafe { sys::cuDriverGetVersion(&mut driver).result()? };
    Ok(DeviceInfo {
        capability: (10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
            + attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?) as u32,
        multiprocessors: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        l2_bytes: attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
        driver,
    })
}
