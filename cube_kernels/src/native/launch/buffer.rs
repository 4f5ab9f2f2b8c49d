//! Memory as a launch sees it.

use std::hash::Hash;
use std::sync::Arc;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::Argument;
use crate::native::table::Contents;

/// A buffer that a kernel reads or writes.
#[derive(Clone)]
pub struct Buffer {
    /// The memory.
    pub handle: Handle,
    /// Whether the kernel writes to it.
    pub is_output: bool,
    /// Whether something of what was there before stays, though it is written.
    pub is_kept: bool,
    /// Whether it is filled with zeros ahead of the launch.
    pub is_cleared: bool,
    /// What it has to hold at the launch.
    pub(super) table: Option<Arc<Contents>>,
}

/// Contents of buffers begin at multiples of this: the size of a tensor map.
pub const PLACE: usize = 128;

impl Buffer {
    /// One that the kernel reads.
    pub fn read(handle: &Handle) -> Self {
        Self {
            handle: handle.clone(),
            is_output: false,
            is_kept: false,
            is_cleared: false,
            table: None,
        }
    }

    /// A table with these contents, which the kernel reads.
    pub fn table(client: &Client, contents: &Arc<Contents>) -> Self {
        Self { table: Some(contents.clone()), ..Self::read(&contents.memory(client)) }
    }

    /// What it holds at the launch: each at a multiple of 128 bytes, behind the one before it. They name buffers of the same
    /// launch, as the kernel's arguments do.
    pub fn contents(&self) -> &[Argument] {
        self.table.as_ref().map_or(&[], |contents| contents.arguments())
    }

    /// One that the kernel writes.
    pub fn written(handle: &Handle) -> Self {
        Self { is_output: true, ..Self::read(handle) }
    }

    /// One of which the kernel writes a part, and the rest stays as it is.
    pub fn updated(handle: &Handle) -> Self {
        Self { is_kept: true, ..Self::written(handle) }
    }

    /// One of zeros, which are there ahead of the launch, and which the kernel writes.
    pub fn cleared(handle: &Handle) -> Self {
        Self { is_cleared: true, ..Self::written(handle) }
    }

    /// Where it begins.
    pub fn place(&self) -> impl Eq + Hash + use<> {
        (self.handle.clone().binding().memory.id(), self.handle.offset_start)
    }
}
