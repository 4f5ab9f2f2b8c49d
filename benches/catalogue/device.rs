//! From the name of a device to the device.

use burn::tensor::Device;

const KINDS: [&str; 7] = ["flex", "cpu", "cuda", "rocm", "wgpu", "vulkan", "metal"];

/// Opens `flex`, `cuda`, `cuda:1` and so on.
pub fn open(name: &str) -> Result<Device, String> {
    let (kind, index) = match name.split_once(':') {
        Some((kind, index)) => (kind, Some(index)),
        None => (name, None),
    };
    let index = match index.map(str::parse::<usize>) {
        None => 0,
        Some(Ok(index)) if matches!(kind, "cuda" | "rocm") => index,
        Some(_) => return Err(format!("--device: is {name}, must be a name, or cuda:N or rocm:N")),
    };
    // No feature reads it.
    let _ = index;
    match kind {
        "flex" => Ok(Device::flex()),
        #[cfg(feature = "cpu")]
        "cpu" => Ok(Device::cpu()),
        #[cfg(feature = "cuda")]
        "cuda" => match cubecl::Device::cuda(index) {
            Ok(_) => Ok(Device::cuda(index)),
            Err(_) => Err(format!("--device {name}: this machine has no such device")),
        },
        #[cfg(feature = "rocm")]
        "rocm" => Ok(Device::rocm(index)),
        #[cfg(feature = "wgpu")]
        "wgpu" => Ok(Device::wgpu(burn::tensor::DeviceKind::DefaultDevice)),
        #[cfg(feature = "vulkan")]
        "vulkan" => Ok(Device::vulkan(burn::tensor::DeviceKind::DefaultDevice)),
        #[cfg(feature = "metal")]
        "metal" => Ok(Device::metal(burn::tensor::DeviceKind::DefaultDevice)),
        _ if KINDS.contains(&kind) => {
            Err(format!("--device {name}: is not in this build, add --features {kind}"))
        }
        _ => Err(format!("--device: is {name}, must be among {}", KINDS.join(", "))),
    }
}
