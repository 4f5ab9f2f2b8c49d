//! Slots and offsets along one axis, inside a kernel: what [`slots`](crate::slots) says on the host.

// `#[cube]` adds items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::geometry::{
    AxisGeometry, AxisGeometryExpand, Geometry, GeometryExpand, Position, Span,
};

/// The windows of a query.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(in crate::portable) struct Windows {
    pub z: Span,
    pub y: Span,
    pub x: Span,
}

#[cube]
impl Geometry {
    pub fn windows(&self, query: &Position) -> Windows {
        Windows { z: self.z.window(query.z), y: self.y.window(query.y), x: self.x.window(query.x) }
    }

    /// Slots of a window, without those of additional tokens.
    pub fn window_slots(&self) -> usize {
        self.z.kernel_size * self.y.kernel_size * self.x.kernel_size
    }

    /// Slots of a query.
    pub fn slots(&self) -> usize {
        self.window_slots() + self.additional
    }

    /// Entries of a bias of one head.
    pub fn offsets(&self) -> usize {
        self.z.offsets() * self.y.offsets() * self.x.offsets()
    }
}

#[cube]
impl AxisGeometry {
    /// Entries of a bias.
    pub fn offsets(&self) -> usize {
        2 * self.kernel_size - 1
    }

    /// The entry for a query and a key that it sees.
    pub fn offset(&self, query: usize, key: usize) -> usize {
        key / self.dilation + self.kernel_size - 1 - query / self.dilation
    }

    /// The slot of a key that `query` sees.
    pub fn slot(&self, query: usize, key: usize) -> usize {
        (key - self.window(query).first) / self.dilation
    }

    /// The slot of a query that has this entry, or one behind all slots where it has none.
    pub fn slot_of_offset(&self, query: usize, offset: usize) -> usize {
        let window = self.window(query);
        // Both in positions of the dilation group, moved on by `kernel_size - 1`.
        let key = query / self.dilation + offset;
        let first = window.first / self.dilation + self.kernel_size - 1;
        let mut slot = self.kernel_size;
        if key >= first && key < first + window.count {
            slot = key - first;
        }
        slot
    }
}
