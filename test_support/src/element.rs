//! What the tensor-core kernels multiply.

#[cfg(feature = "cuda")]
use burn_natten_kernels::native::sm90;
use burn_natten_kernels::tensor_core::Capability;
use cubecl::ir::FloatKind;

use crate::format::{BF16, F16, Format};

/// f32 in memory, of which products take the leading 11 bits.
pub const TF32: Format = Format { kind: FloatKind::TF32, round: tf32 };

/// Rounded to the nearest number of tf32, ties away from zero.
fn tf32(x: f64) -> f64 {
    let x = x as f32;
    let rounded = f32::from_bits((x.to_bits() + 0x1000) & !0x1fff);
    f64::from(if x.is_finite() { rounded } else { x })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    F16,
    Bf16,
    /// Numbers of f32 that tf32 has, unless a test says otherwise.
    Tf32,
}

impl Element {
    pub const ALL: [Self; 3] = [Self::F16, Self::Bf16, Self::Tf32];

    /// What of a device's matrix units multiplies it.
    pub fn of(self, capability: Capability) -> Option<Capability> {
        match self {
            Self::F16 => Some(capability),
            Self::Bf16 => capability.has_bf16.then_some(capability),
            Self::Tf32 => capability.with_tf32(),
        }
    }
}

impl From<Element> for Format {
    fn from(element: Element) -> Self {
        match element {
            Element::F16 => F16,
            Element::Bf16 => BF16,
            Element::Tf32 => TF32,
        }
    }
}

#[cfg(feature = "cuda")]
impl From<sm90::Element> for Format {
    fn from(element: sm90::Element) -> Self {
        match element {
            sm90::Element::F16 => F16,
            sm90::Element::Bf16 => BF16,
        }
    }
}
