//! Slots along one axis, inside a kernel: what [`slots`](crate::slots) says on the host.
//!
//! Kernels that walk along an axis do so by positions of one dilation group, which costs no division for each query.

// `#[cube]` adds items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::geometry::{
    AxisGeometry, AxisGeometryExpand, Geometry, GeometryExpand, Position, Span,
};
use crate::window::{group_length, window_end, window_start};

/// The windows of a query.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(in crate::portable) struct Windows {
    pub z: Span,
    pub y: Span,
    pub x: Span,
}

/// One dilation group of an axis.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(in crate::portable) struct Group {
    /// Members: as many queries as keys.
    pub length: usize,
    kernel_size: usize,
    stride: usize,
    #[cube(comptime)]
    is_causal: bool,
}

/// The queries that see a key: positions of its group.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(in crate::portable) struct Visitors {
    group: Group,
    /// Where the key stands.
    key: usize,
    /// Where the first of them stands.
    first: usize,
    pub count: usize,
    /// The first query.
    pub query: usize,
}

#[cube]
impl Visitors {
    /// The slot that visitor number `i` has the key in.
    pub fn slot(&self, i: usize) -> usize {
        self.key - self.group.start(self.first + i)
    }
}

#[cube]
impl Group {
    /// The first position that the query at a position sees.
    pub fn start(&self, position: usize) -> usize {
        let causal = comptime!(self.is_causal);
        window_start(position, self.length, self.kernel_size, self.stride, causal)
    }

    /// One past the last position that the query at a position sees.
    pub fn end(&self, position: usize) -> usize {
        let causal = comptime!(self.is_causal);
        let start = self.start(position);
        window_end(position + 1, start, self.length, self.kernel_size, causal)
    }

    /// The slot in which the query at a position has a key `offset + 1 - kernel_size` positions from it, or one behind all slots where it
    /// does not see that key.
    pub fn slot_of_offset(&self, position: usize, offset: usize) -> usize {
        let start = self.start(position);
        let end = self.end(position);
        // Moved on by `kernel_size - 1`, so that nothing is below zero.
        let (key, first) = (position + offset, start + self.kernel_size - 1);
        let mut slot = self.kernel_size;
        if key >= first && key - first < end - start {
            slot = key - first;
        }
        slot
    }
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
}

#[cube]
impl AxisGeometry {
    /// Dilation group number `index`.
    pub fn group(&self, index: usize, #[comptime] is_strided: bool) -> Group {
        let stride = if comptime!(is_strided) { self.stride } else { 1usize.runtime() };
        Group {
            length: group_length(self.keys, self.dilation, index),
            kernel_size: self.kernel_size,
            stride,
            is_causal: comptime!(self.is_causal),
        }
    }

    /// The queries that see `key`: the first of them, and how many there are. They are a dilation apart.
    pub fn visitors_of(&self, key: usize, #[comptime] is_strided: bool) -> Visitors {
        let visitors = self.visitors(key);
        Visitors {
            group: self.group(key % self.dilation, is_strided),
            key: key / self.dilation,
            first: visitors.first / self.dilation,
            count: visitors.count,
            query: visitors.first,
        }
    }

    /// [`Group::slot_of_offset`] of a query.
    pub fn slot_of_offset(
        &self,
        query: usize,
        offset: usize,
        #[comptime] is_strided: bool,
    ) -> usize {
        let group = self.group(query % self.dilation, is_strided);
        group.slot_of_offset(query / self.dilation, offset)
    }
}
