//! From flags to a Burn device.

use burn::tensor::{Device, DeviceConfig, FloatDType};

use super::Failure;
use super::flags::{Backend, Precision};

/// The device asked for, of those of its kind the one of this number, with the dtype asked for as its default.
pub fn open(backend: Backend, number: usize, precision: Precision) -> Result<Device, Failure> {
    if number > 0 && backend != Backend::Cuda {
        let text = format!("--devices: is {number}, must be 0 but for --device cuda");
        return Err(Failure::Usage(text));
    }
    let mut device = match backend {
        Backend::Flex => Device::flex(),
        Backend::Cpu => cpu()?,
        Backend::Wgpu => wgpu()?,
        Backend::Cuda => cuda(number)?,
    };
    let dtype = match precision {
        Precision::F32 => FloatDType::F32,
        Precision::F16 => FloatDType::F16,
        Precision::Bf16 => FloatDType::BF16,
    };
    if !device.supports_dtype(dtype) {
        let text = format!("--dtype: is {dtype:?}, which --device {backend:?} cannot compute in");
        return Err(Failure::Usage(text.to_lowercase()));
    }
    // Has to come before the first tensor, which locks the defaults.
    if device.settings().float_dtype != dtype {
        device
            .configure(DeviceConfig::default().float_dtype(dtype))
            .map_err(|error| Failure::Run(format!("cannot configure {backend:?}: {error}")))?;
    }
    Ok(device)
}

#[cfg(feature = "cpu")]
fn cpu() -> Result<Device, Failure> {
    Ok(Device::cpu())
}

/// A Burn device exists even if the machine has no such hardware, and its first tensor then
/// panics, so CubeCL is asked first.
#[cfg(feature = "wgpu")]
fn wgpu() -> Result<Device, Failure> {
    match cubecl::Device::wgpu(cubecl::device::WgpuDeviceKind::default()) {
        Ok(_) => Ok(Device::wgpu(burn::tensor::DeviceKind::DefaultDevice)),
        Err(_) => Err(Failure::Usage("--device wgpu: this machine has no such device".into())),
    }
}

/// As for `wgpu`: no driver, no device.
#[cfg(feature = "cuda")]
fn cuda(number: usize) -> Result<Device, Failure> {
    match cubecl::Device::cuda(number) {
        Ok(_) => Ok(Device::cuda(number)),
        Err(_) => {
            let text = format!("--device cuda: this machine has no such device {number}");
            Err(Failure::Usage(text))
        }
    }
}

#[cfg(not(feature = "cpu"))]
fn cpu() -> Result<Device, Failure> {
    Err(not_built("cpu"))
}

#[cfg(not(feature = "wgpu"))]
fn wgpu() -> Result<Device, Failure> {
    Err(not_built("wgpu"))
}

#[cfg(not(feature = "cuda"))]
fn cuda(_number: usize) -> Result<Device, Failure> {
    Err(not_built("cuda"))
}

#[cfg(not(all(feature = "cpu", feature = "wgpu", feature = "cuda")))]
fn not_built(name: &str) -> Failure {
    Failure::Usage(format!("--device {name}: is not in this build, add --features {name}"))
}

#[cfg(all(test, not(feature = "cuda")))]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_is_not_built_names_its_feature() {
        let error = open(Backend::Cuda, 0, Precision::F32).expect_err("is not built");
        assert_eq!(error.to_string(), "--device cuda: is not in this build, add --features cuda");
    }
}
