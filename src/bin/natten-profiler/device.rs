//! From `--device` to a device of Burn's.

use burn::tensor::Device;

use crate::failure::Failure;
use crate::values::{Backend, DeviceName, ElementType};

/// Opens a device and checks that it computes in the element type.
pub fn open(name: DeviceName, dtype: ElementType) -> Result<Device, Failure> {
    let device = match name.backend {
        Backend::Flex => flex(),
        Backend::Cpu => cpu(),
        Backend::Cuda => cuda(name.index),
        Backend::Rocm => rocm(name.index),
        Backend::Wgpu => wgpu(),
        Backend::Vulkan => vulkan(),
        Backend::Metal => metal(),
    };
    let device = device.map_err(|absent| absent.failure(name))?;
    if !device.supports_dtype(dtype.dtype()) {
        let (dtype, backend) = (dtype.name(), name.backend.name());
        let text = format!("--dtype: is {dtype}, which --device {backend} cannot compute in");
        return Err(Failure::Usage(text));
    }
    Ok(device)
}

/// The device as it is called in tables.
pub fn describe(name: DeviceName, device: &Device) -> String {
    let backend = name.backend.name();
    match hardware(device) {
        Some(hardware) => format!("{backend}, {hardware}"),
        None => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            format!("{backend}, {cores} threads")
        }
    }
}

#[cfg(feature = "cube")]
fn hardware(device: &Device) -> Option<String> {
    device.identity().map(|identity| identity.name).filter(|name| !name.is_empty())
}

#[cfg(not(feature = "cube"))]
fn hardware(_device: &Device) -> Option<String> {
    None
}

/// Why a device is not there.
enum Absent {
    /// Not in this build.
    #[allow(dead_code, reason = "a build with every backend has none that is missing")]
    Feature,
    /// Not in this machine.
    #[allow(dead_code, reason = "Flex is in every machine")]
    Hardware,
}

impl Absent {
    fn failure(self, name: DeviceName) -> Failure {
        let backend = name.backend.name();
        Failure::Usage(match self {
            Self::Feature => format!(
                "--device {backend}: is not in this build, add --features {backend} to cargo's flags"
            ),
            Self::Hardware => {
                format!("--device {backend}: this machine has no such device {}", name.index)
            }
        })
    }
}

#[cfg(feature = "flex")]
fn flex() -> Result<Device, Absent> {
    Ok(Device::flex())
}

#[cfg(feature = "cpu")]
fn cpu() -> Result<Device, Absent> {
    Ok(Device::cpu())
}

// A device of Burn's exists even if the machine has no such hardware, and its first tensor then
// panics, so CubeCL is asked first.

#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Result<Device, Absent> {
    cubecl::Device::cuda(index).map_err(|_| Absent::Hardware)?;
    Ok(Device::cuda(index))
}

#[cfg(feature = "rocm")]
fn rocm(index: usize) -> Result<Device, Absent> {
    cubecl::Device::rocm(index).map_err(|_| Absent::Hardware)?;
    Ok(Device::rocm(index))
}

#[cfg(feature = "wgpu")]
fn wgpu() -> Result<Device, Absent> {
    cubecl::Device::wgpu(Default::default()).map_err(|_| Absent::Hardware)?;
    Ok(Device::wgpu(burn::tensor::DeviceKind::DefaultDevice))
}

#[cfg(feature = "vulkan")]
fn vulkan() -> Result<Device, Absent> {
    cubecl::Device::wgpu(Default::default()).map_err(|_| Absent::Hardware)?;
    Ok(Device::vulkan(burn::tensor::DeviceKind::DefaultDevice))
}

#[cfg(feature = "metal")]
fn metal() -> Result<Device, Absent> {
    cubecl::Device::wgpu(Default::default()).map_err(|_| Absent::Hardware)?;
    Ok(Device::metal(burn::tensor::DeviceKind::DefaultDevice))
}

/// Stands in for the backends that this build lacks.
macro_rules! not_built {
    ($($feature:literal $name:ident($($index:ident)?);)*) => {$(
        #[cfg(not(feature = $feature))]
        fn $name($($index: usize)?) -> Result<Device, Absent> {
            $(let _ = $index;)?
            Err(Absent::Feature)
        }
    )*};
}

not_built! {
    "flex" flex();
    "cpu" cpu();
    "cuda" cuda(index);
    "rocm" rocm(index);
    "wgpu" wgpu();
    "vulkan" vulkan();
    "metal" metal();
}
