//! Attention over shards on several devices is that on one, gradients included.
//!
//! Members share a device here, but for `devices` and `exchange`, which have two where there are two.

mod dense;
mod devices;
mod errors;
mod exchange;
mod replicate;
mod run;
mod tokens;
mod views;
mod windows;

use burn::tensor::Device;

/// Devices that are two: two GPUs where `BURN_NATTEN_TEST_CUDA_DEVICES=2` says that there are two, and else Flex and CubeCL on the CPU where
/// the build has both. On the CPU, tensors pass through the host.
fn pair() -> Option<[Device; 2]> {
    #[cfg(feature = "cuda")]
    if has_two_gpus() {
        return Some([Device::cuda(0), Device::cuda(1)]);
    }
    #[cfg(feature = "cpu")]
    let second = Some(Device::cpu());
    #[cfg(not(feature = "cpu"))]
    let second = None;
    second.map(|second| [Device::flex(), second])
}

/// Whether tests may have two.
fn has_two_gpus() -> bool {
    let devices = std::env::var("BURN_NATTEN_TEST_CUDA_DEVICES");
    cfg!(feature = "cuda") && devices.is_ok_and(|devices| devices == "2")
}
