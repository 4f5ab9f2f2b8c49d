//! The programs of the kernels, compiled once.

use std::sync::{Arc, LazyLock, Mutex};

use super::source::delta_source;
use super::{Architecture, Schedule};
use crate::native::Element;
use crate::native::compile::{self, CompileError, Cubin, Programs, Source};
use crate::native::launch::DeviceInfo;

/// What a program is specialised by.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Program {
    /// A kernel of either pass.
    Attention(Schedule),
    /// The same, whose waits end after seconds: what a check runs.
    Bounded(Schedule),
    /// What prepares a backward pass, reading so many elements of a row of the output.
    Delta(Element, usize),
}

impl Program {
    /// The program, whose text is written only when it is asked for the first time.
    pub(super) fn load(
        self,
        architecture: Architecture,
        device: &DeviceInfo,
    ) -> Result<Arc<Cubin>, CompileError> {
        static KNOWN: Programs<(Program, Architecture)> = LazyLock::new(Mutex::default);
        let source = || self.source(architecture);
        compile::load(&KNOWN, (self, architecture), device.driver, source)
    }

    fn source(self, architecture: Architecture) -> Source {
        let (name, code) = match self {
            Self::Attention(schedule) => (schedule.to_string(), schedule.source(architecture)),
            Self::Bounded(schedule) => {
                let code = format!("#define BOUNDED 1\n{}", schedule.source(architecture));
                (format!("{schedule}_bounded"), code)
            }
            Self::Delta(element, head_dim_v) => delta_source(element, head_dim_v),
        };
        let name = format!("{name}_{}", architecture.name());
        Source { name, code, options: architecture.options() }
    }
}
