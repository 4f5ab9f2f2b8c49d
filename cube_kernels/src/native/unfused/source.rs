//! The text of a kernel.

use std::fmt::Write;

use super::{Product, Schedule};
use crate::native::Element;

impl Schedule {
    /// The entry function.
    #[cfg(feature = "cuda")]
    pub(super) fn entry(&self) -> &'static std::ffi::CStr {
        match self.product {
            Product::Dots => c"unfused_dots",
            Product::Sums => c"unfused_sums",
            Product::Spread => c"unfused_spread",
        }
    }

    /// The CUDA C++ of the specialisation.
    pub fn source(&self) -> String {
        let mut text = String::new();
        for (name, value) in self.macros() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "#define {name} {value}");
        }
        text += include_str!("../cuda/device.cuh");
        text += include_str!("../cuda/window.cuh");
        text += include_str!("../cuda/mma.cuh");
        text += include_str!("../cuda/divisor.cuh");
        text += include_str!("cuda/tile.cuh");
        if self.is_walking() {
            text += include_str!("cuda/walk.cuh");
        }
        text += match (self.product, self.is_walking()) {
            (Product::Dots, false) => include_str!("cuda/dots.cu"),
            (Product::Dots, true) => include_str!("cuda/walk_dots.cu"),
            (Product::Sums, false) => include_str!("cuda/sums.cu"),
            (Product::Sums, true) => include_str!("cuda/walk_sums.cu"),
            (Product::Spread, false) => include_str!("cuda/spread.cu"),
            (Product::Spread, true) => include_str!("cuda/walk_spread.cu"),
        };
        text
    }

    fn macros(&self) -> Vec<(&'static str, usize)> {
        let flag = usize::from;
        let mut macros = vec![
            ("BF16", flag(self.element == Element::Bf16)),
            ("DIM", self.dim),
            ("STRIDED", flag(self.is_strided)),
            ("DILATED", flag(self.is_dilated)),
            ("DEPTH", flag(self.has_depth)),
            ("CTAS", self.ctas_at_once()),
            ("HAS_BIAS", flag(self.has_bias)),
            ("GROUP", self.group),
            ("HEADS", self.heads),
            ("TILE_Y", self.tile[0]),
            ("TILE_X", self.tile[1]),
            ("BAND_X", self.band),
            ("HALO_Y", self.halo[0]),
            ("HALO_X", self.halo[1]),
            ("SPAN_Y", self.span[0]),
            ("SPAN_X", self.span[1]),
            ("THREADS", self.threads()),
            ("WORD", self.word),
            ("SHIFTED", flag(self.is_shifted())),
            ("TOGETHER", flag(self.is_together)),
            ("PITCHED", flag(self.is_pitched())),
            ("ROW", self.row()),
            ("ROW_PITCH", self.pitch),
        ];
        if self.is_walking() {
            macros
                .extend([("RING", self.ring), ("WALK_WIDE", flag(self.product == Product::Dots))]);
        }
        macros.extend(["KERNEL_Z", "KERNEL_Y", "KERNEL_X"].into_iter().zip(self.kernel));
        macros.extend(["CAUSAL_Z", "CAUSAL_Y", "CAUSAL_X"].into_iter().zip(self.causal.map(flag)));
        macros
    }
}
