//! Registers and shared memory.

use super::{Mask, Schedule, TILE};
use crate::Pass;
use crate::native::slopes::BLOCK_BYTES;

/// Shared memory that a CTA can have.
pub(in crate::native::sm90) const SHARED_MEMORY: usize = 227 * 1024;
/// Shared memory of a multiprocessor, of which every CTA takes [`RESERVED`] besides its own.
const SHARED_MEMORY_OF_SM: usize = 228 * 1024;
const RESERVED: usize = 1024;

impl Schedule {
    /// Rows of shared memory that they take: products sum over 16.
    pub(super) fn stage_rows(&self) -> usize {
        self.columns().next_multiple_of(16)
    }

    /// Whether the fragments of the rows stay in registers for a whole tile.
    pub fn rows_in_registers(&self) -> bool {
        let longest = self.head_dim.max(self.head_dim_v);
        match self.pass {
            Pass::Forward => {
                longest <= 128 && self.warpgroups < 3 && self.teams == 1 && self.columns() <= 128
            }
            Pass::Queries => {
                let fits = self.ctas < 3 && (self.is_late || self.warpgroups < 3);
                // What sums a bias' gradient needs the registers.
                longest <= 128
                    && self.blocks == 1
                    && fits
                    && !self.gradients.bias
                    && !self.keeps_slopes
            }
            // Where tiles are long: else the loads ahead of a tile cost as much as a step gains.
            Pass::Keys => {
                longest <= 64
                    && self.warpgroups == 1
                    && self.rank == 1
                    && self.mask == Mask::None
                    && !self.has_additional
                    && self.listed.is_none()
            }
        }
    }

    /// Tiles of rows in shared memory. A second one is loaded while the first is worked on, where vectors are
    /// short and rows do not move to registers.
    pub(super) fn row_buffers(&self) -> usize {
        let most = match self.pass {
            Pass::Keys => 64,
            // What sums a bias' gradient keeps the CTA's warps together for longer between tiles.
            Pass::Queries if self.gradients.bias => 32,
            Pass::Queries | Pass::Forward => 0,
        };
        if self.head_dim.max(self.head_dim_v) <= most || self.teams > 1 { 2 } else { 1 }
    }

    /// Registers of a thread of the producer, and of a consumer. All of a CTA's threads start with
    /// what the register file gives to `ctas` CTAs; the producer hands over what it does not need.
    pub fn registers(&self) -> (usize, usize) {
        let at_launch = (65536 / (self.ctas * self.threads()) / 8 * 8).min(232);
        // Least where consumers can do with what is left. Parameters of a packed batch lie in memory, and take registers.
        let producer = match (self.warpgroups, self.ctas) {
            // Who finds blocks of slopes has more to keep than consumers.
            _ if self.sums_slopes() => 96,
            (1, 2) => 32,
            (2, 1) if self.is_packed && self.pass == Pass::Forward => 40,
            _ => 24,
        };
        let consumers = self.warpgroups * self.teams;
        let consumer = (at_launch * (consumers + 1) - producer) / consumers / 8 * 8;
        (producer, consumer.min(240))
    }

    /// Bytes of a row of shared memory: half as many where all vectors are short, and the rest would be zeros.
    pub(super) fn swizzle(&self) -> usize {
        if self.head_dim.max(self.head_dim_v) <= 32 { 64 } else { 128 }
    }

    /// Rows that a vector takes.
    pub(super) fn chunks(&self, dim: usize) -> usize {
        (2 * dim).div_ceil(self.swizzle())
    }

    /// Bytes of shared memory with `stages` steps in flight.
    pub(super) fn shared_memory_with(&self, stages: usize) -> usize {
        if self.sums_slopes() {
            let keys = self.chunks(self.head_dim) * self.stage_rows() * self.swizzle();
            let (slopes, slots) = (self.warpgroups * BLOCK_BYTES, 2);
            return stages * (keys + slopes) + 128 * slots + 8 * 2 * (stages + slots);
        }
        let (first, second) = (self.chunks(self.head_dim), self.chunks(self.head_dim_v));
        let step = (first + second) * self.stage_rows() * self.swizzle();
        let one_hot = if self.mask == Mask::OneHot { self.columns() * 32 } else { 0 };
        // Query; or query and its output's gradient, and perhaps the output; or key and value.
        let rows = first + if self.pass == Pass::Forward { 0 } else { second };
        let rows = rows + if self.makes_statistics { second } else { 0 };
        let rows = self.row_tiles() * rows * TILE * self.swizzle();
        // Sums of a warpgroup lie where rows were.
        let sums = size_of::<f32>() * TILE * self.head_dim.max(self.head_dim_v);
        let rows = self.row_buffers() * if self.shares_rows { rows.max(sums) } else { rows };
        let row_barriers = 2 * self.row_buffers();
        // Logsumexp and delta of columns that are queries.
        let statistics = if self.pass == Pass::Keys { self.columns() * 16 } else { 0 };
        let (tiles, barriers) = match self.pass {
            Pass::Forward => (self.row_buffers(), 4 * stages + row_barriers),
            Pass::Queries | Pass::Keys => {
                let slots = if self.finds_early() { 4 } else { 2 * self.row_buffers() };
                (slots, 2 * stages + row_barriers)
            }
        };
        // Warpgroups have tiles of their own where blocks are listed.
        let tiles = match (self.listed, self.pass) {
            (None, _) => tiles,
            (Some(_), Pass::Forward) => 2 * self.row_tiles(),
            (Some(_), _) => tiles * self.row_tiles(),
        };
        let pipeline = rows + stages * (step + statistics) + 128 * tiles + 8 * barriers;
        self.teams * (pipeline + self.bias_bytes()) + one_hot
    }

    /// Bytes of shared memory.
    pub fn shared_memory(&self) -> usize {
        let table = self.bias_table().unwrap_or_default().iter().product();
        let second = if self.bias_copies() > 1 { Self::second_copy(table) } else { 0 };
        self.shared_memory_with(self.stages) + self.teams * size_of::<f32>() * second
    }

    /// Bytes of shared memory that a CTA may have.
    pub(super) fn room(&self) -> usize {
        (SHARED_MEMORY_OF_SM / self.ctas - RESERVED).min(SHARED_MEMORY)
    }

    /// The same with as many stages as fit, up to four; `None` if not even two do, or four for warpgroups that take them in turn. Slots for
    /// the sums of a bias are one where all of them leave no room: some would be shared by steps that have little in common.
    pub(in crate::native::sm90) fn with_stages(mut self) -> Option<Self> {
        let room = self.room();
        for slots in [self.sum_slots, 1] {
            self.sum_slots = slots;
            let fits = |stages: &usize| self.shared_memory_with(*stages) <= room;
            // With two in turn a warpgroup would wait for a step that needs the stage it holds; with an odd number, see `backward.cu`.
            let least = if self.shares_rows { 4 } else { 2 };
            if let Some(stages) = (least..=4).rev().find(fits) {
                self.stages = stages;
                return Some(self);
            }
        }
        None
    }

    /// Whether the tile behind the next one of a backward pass is found, and its rows are prefetched, while rows are in use. Kernels for
    /// keys and ones with a bias have no registers for it.
    pub(super) fn finds_early(&self) -> bool {
        let is_plain = self.listed.is_none() && self.bias.is_none() && !self.keeps_slopes;
        self.is_packed || self.pass == Pass::Queries && is_plain
    }

    /// Whether a kernel for queries has no registers for more than it does: where it sums the gradient of a bias in three CTAs, and of
    /// long vectors with dilations, strides and additional tokens.
    pub(super) fn is_short_of_registers(&self) -> bool {
        let has_all = self.is_dilated && self.is_strided && self.has_additional;
        self.gradients.bias && self.ctas == 3 || has_all && self.head_dim.max(self.head_dim_v) > 64
    }
}
