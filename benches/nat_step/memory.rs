//! What steps take of a device's memory.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use burn::tensor::Device;

/// Bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// The most that tensors took at a time.
    pub in_use: u64,
    /// What the allocator holds for them afterwards.
    pub reserved: u64,
}

/// Does `work`, to the end of what it queues, and asks the allocator again and again meanwhile. `None` where the device does not say.
///
/// Each answer comes from between two of the operations that are queued: hundreds of a step. They slow it down.
pub fn of<R>(device: &Device, work: impl FnOnce() -> R) -> Result<Option<Memory>, String> {
    let sync = || device.sync().map_err(|error| error.to_string());
    sync()?;
    // What the work before has left over is not this work's.
    device.memory_cleanup();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = device.memory_pool_usage().map(|usage| usage.bytes_in_use)?;
            while !is_done.load(Ordering::Relaxed) {
                most = most.max(device.memory_pool_usage()?.bytes_in_use);
            }
            Some(Memory { in_use: most, reserved: device.memory_pool_usage()?.bytes_reserved })
        });
        drop(work());
        let synced = sync();
        is_done.store(true, Ordering::Relaxed);
        let memory = watch.join().map_err(|_| "the memory could not be watched".to_string())?;
        synced.map(|()| memory)
    })
}

/// MiB of the GPU that its driver has given away, to all programs; what a process takes beside tensors is among them.
pub fn of_driver(device: &str) -> Option<u64> {
    let index = device.strip_prefix("cuda")?.strip_prefix(':').unwrap_or("0");
    let query = ["--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", index];
    let output = Command::new("nvidia-smi").args(query).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}
