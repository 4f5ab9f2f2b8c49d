//! What the times were taken on, and with which code.

use std::process::Command;

use chrono::Local;

/// Columns that are the same for all rows of a run.
#[derive(Clone, Debug)]
pub struct Machine {
    pub device: String,
    /// Version of the driver, or the number of cores of a CPU.
    pub driver: String,
    /// `YYYY-MM-DD`
    pub date: String,
    pub commit: String,
}

impl Machine {
    /// `device` is the name given on the command line.
    pub fn read(device: &str) -> Self {
        let (device, driver) = match device.split_once(':').unwrap_or((device, "0")) {
            ("cuda", index) => gpu(index).unwrap_or_else(|| ("CUDA device".into(), "".into())),
            ("flex" | "cpu", _) => cpu(),
            #[cfg(feature = "wgpu")]
            ("wgpu" | "vulkan", _) => adapter(device),
            (other, _) => (other.to_string(), String::new()),
        };
        Self { device, driver, date: Local::now().format("%Y-%m-%d").to_string(), commit: commit() }
    }
}

fn gpu(index: &str) -> Option<(String, String)> {
    let query = ["--query-gpu=name,driver_version", "--format=csv,noheader", "-i", index];
    let line = output("nvidia-smi", &query)?;
    let (name, driver) = line.split_once(',')?;
    Some((name.trim().to_string(), format!("driver {}", driver.trim())))
}

/// What the driver calls the default device, and the language of its kernels.
#[cfg(feature = "wgpu")]
fn adapter(kind: &str) -> (String, String) {
    let name = cubecl::Device::wgpu(Default::default())
        .map_or("no device".into(), |device| device.client().properties().identity.name.clone());
    (name, format!("as {kind}"))
}

fn cpu() -> (String, String) {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    (model.unwrap_or("CPU").to_string(), format!("{cores} cores"))
}

/// The commit of the sources; `BURN_NATTEN_COMMIT` where a binary runs without them.
fn commit() -> String {
    std::env::var("BURN_NATTEN_COMMIT")
        .ok()
        .or_else(|| output("git", &["describe", "--always", "--dirty", "--abbrev=7"]))
        .unwrap_or_else(|| "unknown".to_string())
}

fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let line = text.lines().next()?.trim();
    (output.status.success() && !line.is_empty()).then(|| line.to_string())
}
