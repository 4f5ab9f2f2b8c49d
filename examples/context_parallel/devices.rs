//! From names to devices.

use burn::tensor::Device;

use crate::Failure;

/// A device for each name.
pub fn open(names: &[String]) -> Result<Vec<Device>, Failure> {
    names.iter().map(|name| one(name)).collect()
}

fn one(name: &str) -> Result<Device, Failure> {
    let (kind, number) = name.split_once(':').unwrap_or((name, "0"));
    match (kind, number.parse::<usize>()) {
        ("flex", Ok(0)) => Ok(Device::flex()),
        ("cpu", Ok(0)) => cpu(),
        ("cuda", Ok(number)) => cuda(number),
        _ => Err(Failure::Usage(format!("--devices: '{name}' is none of flex, cpu, cuda:N"))),
    }
}

#[cfg(feature = "cpu")]
fn cpu() -> Result<Device, Failure> {
    Ok(Device::cpu())
}

#[cfg(not(feature = "cpu"))]
fn cpu() -> Result<Device, Failure> {
    Err(not_built("cpu"))
}

/// A Burn device exists even if the machine has no such hardware, and its first tensor then panics, so CubeCL is asked first.
#[cfg(feature = "cuda")]
fn cuda(number: usize) -> Result<Device, Failure> {
    match cubecl::Device::cuda(number) {
        Ok(_) => Ok(Device::cuda(number)),
        Err(_) => {
            let text = format!("--devices: this machine has no cuda:{number}");
            Err(Failure::Usage(text))
        }
    }
}

#[cfg(not(feature = "cuda"))]
fn cuda(_number: usize) -> Result<Device, Failure> {
    Err(not_built("cuda"))
}

#[cfg(not(all(feature = "cpu", feature = "cuda")))]
fn not_built(name: &str) -> Failure {
    Failure::Usage(format!("--devices: {name} is not in this build, add --features {name}"))
}
