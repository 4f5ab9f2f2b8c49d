//! What kernels of Ampere's instructions share, which run on every device since: where that is, and how they are compiled there.

use core::fmt::Display;

use cubecl::client::Client;

use super::compile::{Source, has_compiler};
use super::launch::{DeviceInfo, device_info};
use crate::KernelError;

/// The least compute capability, Ampere's: it has products of bfloat16.
const CAPABILITY: u32 = 80;

/// Whether kernels can be compiled and run on the device of a client.
pub fn is_available(client: &Client) -> bool {
    device(client).is_ok() && has_compiler()
}

/// The device of a client.
pub(super) fn device(client: &Client) -> Result<DeviceInfo, KernelError> {
    device_info(client)
        .filter(|info| info.capability >= CAPABILITY)
        .ok_or(KernelError::Device("compute capability 8.0 (Ampere)"))
}

/// A program for a device.
pub(super) fn source(name: impl Display, code: String, device: &DeviceInfo) -> Source {
    let options = [
        format!("--gpu-architecture=sm_{}", device.capability),
        "--std=c++17".into(),
        "--use_fast_math".into(),
        "--ptxas-options=-v".into(),
    ];
    Source { name: format!("{name}_sm_{}", device.capability), code, options: options.into() }
}
