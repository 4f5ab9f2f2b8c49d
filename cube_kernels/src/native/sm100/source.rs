use std::fmt::Write;

use super::{Architecture, Schedule};
use crate::Pass;
use crate::native::{Element, delta};

#[cfg(test)]
mod tests;

impl Schedule {
    /// The CUDA C++ of the specialisation.
    pub fn source(&self, architecture: Architecture) -> String {
        let mut text = String::new();
        for (name, value) in self.macros(architecture) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "#define {name} {value}");
        }
        // All assembly is in device.cuh, tma.cuh and tcgen05.cuh.
        text += concat!(
            include_str!("../cuda/device.cuh"),
            include_str!("../cuda/window.cuh"),
            include_str!("../cuda/tile.cuh"),
            include_str!("../cuda/walk.cuh"),
            include_str!("../cuda/tma.cuh"),
            include_str!("../cuda/boxes.cuh"),
            include_str!("../cuda/bias_params.cuh"),
            include_str!("cuda/tcgen05.cuh"),
            include_str!("cuda/matrix.cuh"),
            include_str!("cuda/view.cuh"),
        );
        text += match self.pass {
            Pass::Forward => concat!(
                include_str!("../cuda/forward_params.cuh"),
                include_str!("../cuda/row_sum.cuh"),
                include_str!("../cuda/forward_repair.cuh"),
                include_str!("cuda/roles.cuh"),
                include_str!("cuda/softmax.cuh"),
                include_str!("cuda/forward_rows.cuh"),
            ),
            Pass::Queries | Pass::Keys => concat!(
                include_str!("../cuda/backward_params.cuh"),
                include_str!("../cuda/row_gradients.cuh"),
                include_str!("../cuda/backward_repair.cuh"),
                include_str!("cuda/roles.cuh"),
                include_str!("cuda/backward_rows.cuh"),
            ),
        };
        text += match (self.pass, self.is_wide()) {
            (Pass::Forward, false) => include_str!("cuda/forward.cu"),
            (Pass::Forward, true) => include_str!("cuda/forward_wide.cu"),
            (Pass::Queries | Pass::Keys, false) => include_str!("cuda/backward.cu"),
            (Pass::Queries | Pass::Keys, true) => include_str!("cuda/backward_wide.cu"),
        };
        text
    }
}

/// Name and CUDA C++ of the kernel that prepares a backward pass, reading so many elements of a row of the output, none where products are given.
pub fn delta_source(element: Element, head_dim_v: usize) -> (String, String) {
    delta::source("sm100", element, head_dim_v, false)
}
