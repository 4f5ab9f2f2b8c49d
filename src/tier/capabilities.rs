use burn::backend::DispatchDevice;
use burn::tensor::Device;
#[cfg(feature = "cuda")]
use burn_natten_kernels::native::{sm90, sm100};
pub use burn_natten_kernels::tensor_core::Capability as TensorCores;

/// What the selection knows of a device.
///
/// Read from a device with [`Capabilities::of`], or written down to ask what would run elsewhere:
///
/// ```rust
/// use burn::tensor::DType;
/// use burn_natten::plan::Sizes;
/// use burn_natten::{Capabilities, Context, Strategy, TensorCores, Tier, select};
///
/// # fn main() -> Result<(), burn_natten::AttentionError> {
/// let some_gpu = Capabilities::cube();
/// let problem = Sizes::new(64).dense(1024, 1024, true, None)?;
/// let context = Context::new();
/// let tier = select(&problem, Strategy::Auto, DType::BF16, some_gpu, context)?;
/// assert_eq!(tier, Tier::Portable);
/// let ampere = some_gpu.with_tensor_cores(TensorCores::cuda(80));
/// let tier = select(&problem, Strategy::Auto, DType::BF16, ampere, context)?;
/// assert_eq!(tier, Tier::TensorCore);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Whether Burn's Flex backend runs there.
    pub is_flex: bool,
    /// Whether a CubeCL runtime runs there.
    pub is_cube: bool,
    /// Whether kernels can index more than 2^31 elements.
    pub has_wide_indices: bool,
    /// The matrix units for f16, bf16 and TF32 that CubeCL gives the kernels there, if any.
    pub tensor_cores: Option<TensorCores>,
    /// Whether native Hopper kernels can be compiled and run: compute capability 9.0, the feature
    /// `cuda`, and NVRTC where the loader finds it.
    pub has_hopper: bool,
    /// Whether native Blackwell kernels can be compiled: compute capability 10.0 or 10.3, the feature `cuda`, and NVRTC where
    /// the loader finds it. Whether they do there what they are to do is found at their first use.
    pub has_blackwell: bool,
}

impl Capabilities {
    /// Those of Burn's Flex backend.
    pub const fn flex() -> Self {
        Self {
            is_flex: true,
            is_cube: false,
            has_wide_indices: true,
            tensor_cores: None,
            has_hopper: false,
            has_blackwell: false,
        }
    }

    /// Those that every CubeCL runtime has.
    pub const fn cube() -> Self {
        Self { is_flex: false, is_cube: true, has_wide_indices: false, ..Self::flex() }
    }

    /// The same with 64-bit indices, or without them.
    pub const fn with_wide_indices(self, has_wide_indices: bool) -> Self {
        Self { has_wide_indices, ..self }
    }

    /// The same with these matrix units.
    pub const fn with_tensor_cores(self, tensor_cores: Option<TensorCores>) -> Self {
        Self { tensor_cores, ..self }
    }

    /// The same with native Hopper kernels, or without them.
    pub const fn with_hopper(self, has_hopper: bool) -> Self {
        Self { has_hopper, ..self }
    }

    /// The same with native Blackwell kernels, or without them.
    pub const fn with_blackwell(self, has_blackwell: bool) -> Self {
        Self { has_blackwell, ..self }
    }

    /// Reads the capabilities of a device; `None` if this build has no operators for its backend.
    ///
    /// ```rust
    /// use burn::tensor::Device;
    /// use burn_natten::Capabilities;
    ///
    /// let flex = Capabilities::of(&Device::flex()).expect("the feature `flex` is on");
    /// assert!(flex.is_flex && !flex.is_cube);
    /// ```
    pub fn of(device: &Device) -> Option<Self> {
        match device.clone().without_autodiff().as_dispatch() {
            #[cfg(feature = "flex")]
            DispatchDevice::Flex(_) => Some(Self::flex()),
            #[cfg(feature = "cube")]
            DispatchDevice::Cube(device) => {
                let client = device.client();
                let is_wide = burn_natten_kernels::portable::has_wide_indices(&client);
                let plain = Self::cube()
                    .with_wide_indices(is_wide)
                    .with_tensor_cores(TensorCores::of(&client));
                #[cfg(feature = "cuda")]
                let plain = plain
                    .with_hopper(sm90::is_available(&client))
                    .with_blackwell(sm100::is_available(&client));
                Some(plain)
            }
            #[allow(unreachable_patterns)]
            _ => None,
        }
    }
}
