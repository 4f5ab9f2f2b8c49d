//! What the tensor-core kernels multiply.

use burn_natten_kernels::tensor_core::Capability;

use super::run::{BF16, F16, Format, TF32};

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
        if self == Self::Tf32 { capability.with_tf32() } else { Some(capability) }
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
