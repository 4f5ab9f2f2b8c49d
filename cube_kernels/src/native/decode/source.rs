//! The text of the kernels.

use std::fmt::Write;

use super::Schedule;
use super::plan::{SELECT_CTAS, SELECT_THREADS};
use crate::native::Element;

impl Schedule {
    /// The CUDA C++ of the specialisation, which has all three kernels.
    pub fn source(&self) -> String {
        let mut text = String::new();
        for (name, value) in self.macros() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "#define {name} {value}");
        }
        text + concat!(
            include_str!("../cuda/device.cuh"),
            include_str!("../cuda/mma.cuh"),
            include_str!("cuda/params.cuh"),
            include_str!("cuda/attend.cuh"),
            include_str!("cuda/append.cuh"),
            include_str!("cuda/compressed.cu"),
            include_str!("cuda/select.cu"),
            include_str!("cuda/tokens.cu"),
        )
    }

    fn macros(&self) -> [(&'static str, usize); 7] {
        [
            ("BF16", usize::from(self.element == Element::Bf16)),
            ("DIM", self.head_dim),
            ("DIM_V", self.head_dim_v),
            ("GROUP", self.group),
            ("KEYS", self.keys()),
            ("SELECT_THREADS", SELECT_THREADS),
            ("SELECT_CTAS", SELECT_CTAS),
        ]
    }
}
