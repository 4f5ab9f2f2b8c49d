//! What the tests share: devices, an oracle, and a way to run a problem on a device.

pub mod check;
pub mod layout;
pub mod oracle;
pub mod problem;
pub mod run;

use burn::tensor::{DType, Device};
use burn_natten::{Capabilities, Context, Strategy};

/// A device that the tests run on.
#[derive(Clone, Debug)]
pub struct TestDevice {
    pub name: &'static str,
    pub device: Device,
}

impl TestDevice {
    /// Whether every operation costs the compilation of a kernel first, so that tests sample.
    pub fn compiles_kernels(&self) -> bool {
        self.name != "flex"
    }

    /// One problem in so many runs here.
    pub fn sampling(&self, on_compiled: usize) -> usize {
        if self.compiles_kernels() { on_compiled } else { 1 }
    }

    /// `Auto`, and `Reference` where it adds something and is affordable.
    pub fn strategies(&self) -> Vec<Strategy> {
        if self.compiles_kernels() {
            vec![Strategy::Auto]
        } else {
            vec![Strategy::Auto, Strategy::Reference]
        }
    }

    /// [`strategies`](Self::strategies) in f16 and bf16: the native kernels are asked for by name where
    /// they run, and the kernels that they replace are tested as well.
    pub fn half_strategies(&self) -> Vec<Strategy> {
        match Capabilities::of(&self.device) {
            Some(Capabilities { has_hopper: true, .. }) => {
                vec![Strategy::Hopper, Strategy::TensorCore, Strategy::Portable]
            }
            Some(Capabilities { tensor_cores: Some(cores), .. })
                if cores.has_run() || is_experimental() =>
            {
                vec![Strategy::TensorCore, Strategy::Portable]
            }
            _ => self.strategies(),
        }
    }

    /// Those for block-sparse attention of blocks and vectors that native kernels do not know: where they run otherwise, `Auto` says that
    /// they do not, which fails the test.
    pub fn half_block_strategies(&self) -> Vec<Strategy> {
        match Capabilities::of(&self.device) {
            Some(Capabilities { has_hopper: true, .. }) => vec![Strategy::Portable],
            _ => self.strategies(),
        }
    }

    /// The strategies that know a relative position bias, in any type.
    pub fn bias_strategies(&self) -> Vec<Strategy> {
        if self.compiles_kernels() {
            vec![Strategy::Portable, Strategy::Reference]
        } else {
            vec![Strategy::Auto, Strategy::Reference]
        }
    }

    /// Those, and the tiers that know it in f16 and bf16.
    pub fn half_bias_strategies(&self) -> Vec<Strategy> {
        let is_native =
            |strategy: &Strategy| matches!(strategy, Strategy::Hopper | Strategy::TensorCore);
        let native = self.half_strategies().into_iter().filter(is_native);
        native.chain(self.bias_strategies()).collect()
    }

    /// The strategies that compute in f64. CubeCL's kernels do not: there, `Auto` goes on to tensor
    /// operations, with a line that fails the test.
    pub fn f64_strategies(&self) -> Vec<Strategy> {
        if self.compiles_kernels() {
            vec![Strategy::Reference]
        } else {
            vec![Strategy::Auto, Strategy::Reference]
        }
    }

    pub fn supports(&self, dtype: DType) -> bool {
        self.device.supports_dtype(dtype)
    }
}

/// Fails the test in which an operator falls back to another tier: a fallback gives right results,
/// and would hide that the kernels under test do not run.
struct NoFallback;

/// What is no fallback on a Hopper GPU: block-sparse problems of tests, with few heads and rows, that its tiles of 64 rows are not made
/// for, and vectors and a scale of 0 that its kernels do not take and those of the next tiers do. And where there are cooperative
/// matrices, that they have to be allowed, and that they do not multiply TF32.
const EXPECTED: [&str; 5] = [
    "rows of a tile of 64, fewer than",
    "not a multiple of 8 up to 256",
    "scale is 0, below 1e-6",
    "Context::with_allow_experimental allows them",
    "matrix units have no TF32",
];

impl log::Log for NoFallback {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("burn_natten") && metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        let text = record.args().to_string();
        let is_expected = EXPECTED.iter().any(|part| text.contains(part));
        assert!(!self.enabled(record.metadata()) || is_expected, "{}", record.args());
    }

    fn flush(&self) {}
}

/// Every device under test.
pub fn devices() -> Vec<TestDevice> {
    static NO_FALLBACK: std::sync::Once = std::sync::Once::new();
    NO_FALLBACK.call_once(|| {
        log::set_logger(&NoFallback).expect("no other logger in the tests");
        log::set_max_level(log::LevelFilter::Warn);
        if is_experimental() {
            Context::current().with_allow_experimental(true, true).set_global();
        }
    });
    #[allow(unused_mut)]
    let mut devices = vec![TestDevice { name: "flex", device: Device::flex() }];
    #[cfg(feature = "cpu")]
    devices.push(TestDevice { name: "cubecl-cpu", device: Device::cpu() });
    #[cfg(feature = "cuda")]
    if asked_for("BURN_NATTEN_TEST_CUDA") {
        devices.push(TestDevice { name: "cuda", device: Device::cuda(0) });
    }
    #[cfg(feature = "wgpu")]
    if asked_for("BURN_NATTEN_TEST_WGPU") {
        let device = Device::wgpu(burn::tensor::DeviceKind::DefaultDevice);
        devices.push(TestDevice { name: "wgpu", device });
    }
    if let Ok(name) = std::env::var("BURN_NATTEN_TEST_ONLY") {
        devices.retain(|device| device.name == name);
        assert!(!devices.is_empty(), "BURN_NATTEN_TEST_ONLY={name} is no device under test");
    }
    devices
}

/// Every device under test but CubeCL's CPU, which translates each kernel for seconds: for what many kernels are needed, and others test
/// there.
pub fn quick_devices() -> Vec<TestDevice> {
    devices().into_iter().filter(|device| device.name != "cubecl-cpu").collect()
}

/// Whether kernels are tested that have to be allowed where they have not run: tiles and cooperative matrices.
fn is_experimental() -> bool {
    asked_for("BURN_NATTEN_TEST_EXPERIMENTAL")
}

fn asked_for(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| value == "1")
}
