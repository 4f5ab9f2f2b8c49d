//! The programs of the kernels, compiled once.

use std::sync::{Arc, LazyLock, Mutex};

use super::source::{delta_source, inverse_source, lists_source};
use super::{ARCHITECTURE, Element, OPTIONS, Schedule, SelectSchedule, Union, UnionKernel};
use crate::native::compile::{self, CompileError, Cubin, Programs, Source};
use crate::native::launch::DeviceInfo;
use crate::native::{bias, splits};

/// What a program is specialised by.
// Nearly all are of the largest kind, and a box would be allocated for every launch.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Program {
    /// A kernel of either pass.
    Attention(Schedule),
    /// What prepares a backward pass, reading so many elements of a row of the output, and of a packed batch or not.
    Delta(Element, usize, bool),
    /// What surrounds kernels that add a bias.
    Bias(Element),
    /// What adds up the gradients of keys and values where CTAs share the heads of a group.
    Splits(Element),
    /// What turns lists of blocks into what kernels walk over; of lists that were turned around or not.
    Lists(bool),
    /// A kernel for queries that have lists of their own.
    Union(Union, UnionKernel),
    /// What joins their lists.
    UnionLists(Union),
    /// What turns lists around.
    Inverse,
    /// What selects blocks.
    Select(SelectSchedule),
}

impl Program {
    /// The program, whose text is written only when it is asked for the first time.
    pub(super) fn load(self, device: &DeviceInfo) -> Result<Arc<Cubin>, CompileError> {
        static KNOWN: Programs<Program> = LazyLock::new(Mutex::default);
        compile::load(&KNOWN, self, device.driver, || self.source())
    }

    fn source(self) -> Source {
        let (name, code) = match self {
            Self::Attention(schedule) => (schedule.to_string(), schedule.source()),
            Self::Delta(element, head_dim_v, is_packed) => {
                delta_source(element, head_dim_v, is_packed)
            }
            Self::Bias(element) => bias::source(element),
            Self::Splits(element) => splits::source(element),
            Self::Lists(is_turned) => lists_source(is_turned),
            Self::Union(of, kernel) => (of.name(kernel), of.source(kernel)),
            Self::UnionLists(of) => of.lists_source(),
            Self::Inverse => inverse_source(),
            Self::Select(schedule) => (schedule.to_string(), schedule.source()),
        };
        let options = OPTIONS.map(String::from).to_vec();
        Source { name: format!("{name}_{ARCHITECTURE}"), code, options }
    }
}
