//! From f32 to a kernel's type, rounded to the nearest.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::intrinsic;
use cubecl::ir::features::TypeUsage;
use cubecl::ir::interfaces::TypedExt;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::prelude::*;

/// Whether the device may drop the bits that a type does not have: SPIR-V leaves that open, and NVIDIA's driver for Vulkan drops those of
/// bf16. What gives away such a device is that it converts bf16 and has no arithmetic of it.
#[cube]
#[allow(clippy::extra_unused_type_parameters)] // What the macro makes of it has it.
fn is_cut<F: Float>() -> comptime_type!(bool) {
    intrinsic!(|scope| {
        let is_bf16 = F::__expand_as_type(scope).is_bfloat16(scope.ctx());
        let properties = scope.state().device_properties.clone();
        let usage = properties.map(|it| it.type_usage(ElemType::Float(FloatKind::BF16)));
        is_bf16
            && usage.is_some_and(|usage| {
                usage.contains(TypeUsage::Conversion) && !usage.contains(TypeUsage::Arithmetic)
            })
    })
}

/// The nearest number of bf16, the even one of two.
#[cube]
fn rounded_even(value: f32) -> f32 {
    let bits = u32::reinterpret(value);
    let up = (bits + 0x7fffu32 + ((bits >> 16u32) & 1u32)) & 0xffff_0000u32;
    let is_finite = (bits & 0x7f80_0000u32) != 0x7f80_0000u32;
    f32::reinterpret(select(is_finite, up, bits))
}

/// A number as the kernel's type has it.
#[cube]
pub(crate) fn narrow<F: Float>(value: f32) -> F {
    let is_cut = is_cut::<F>();
    if comptime!(is_cut) { F::cast_from(rounded_even(value)) } else { F::cast_from(value) }
}

/// The same of a vector.
#[cube]
pub(crate) fn narrow_all<F: Float, N: Size>(value: Vector<f32, N>) -> Vector<F, N> {
    let is_cut = is_cut::<F>();
    if comptime!(is_cut) {
        let mut rounded = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for element in 0..value.vector_size() {
            rounded.insert(element, rounded_even(value.extract(element)));
        }
        Vector::cast_from(rounded)
    } else {
        Vector::cast_from(value)
    }
}
