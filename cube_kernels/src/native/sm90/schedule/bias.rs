//! What a bias takes of a CTA: its table, and slots for the sums of its gradient.

use super::{Schedule, TILE};
use crate::{MAX_RANK, Problem};

impl Schedule {
    /// Entries along each axis of the table that a CTA has of a bias: those of the bias, and what its rows and the blocks that they
    /// see reach beyond.
    pub(crate) fn bias_table(&self) -> Option<[usize; MAX_RANK]> {
        let (rows, columns) = (self.cta_tile(), self.column_tile());
        let length = |extents: [usize; MAX_RANK], axis: usize| {
            // The slowest axis runs on by a block where steps have two.
            let more = if self.blocks > 1 && axis == self.stack { columns[axis] } else { 0 };
            extents[axis] + 2 * (rows[axis] - 1) + columns[axis] - 1 + more
        };
        self.bias.map(|extents| std::array::from_fn(|axis| length(extents, axis)))
    }

    /// Where the second copy of a table of a bias begins, in entries.
    pub(super) fn second_copy(entries: usize) -> usize {
        (entries + 16) / 32 * 32 + 16
    }

    /// Whether scores begin with the entries of a bias, and products are added to them.
    pub(in crate::native::sm90) fn begins_with_bias(&self) -> bool {
        self.bias.is_some() && self.blocks == 1
    }

    /// Copies of the table of a bias: where there is room for it, a second one that is read in pairs. Beside longer vectors, and
    /// in three CTAs that sum the gradient with dilations or of more than 32 elements, a lane has no register for where it reads.
    pub(super) fn bias_copies(&self) -> usize {
        let Some(table) = self.bias_table() else { return 1 };
        let longest = self.head_dim.max(self.head_dim_v);
        let is_short_of_registers = self.is_dilated || longest > 32;
        let is_paired = self.begins_with_bias()
            && longest <= 64
            && !(self.gradients.bias && self.ctas == 3 && is_short_of_registers)
            && table[MAX_RANK - 1].is_multiple_of(2)
            && self.column_tile()[MAX_RANK - 1].is_multiple_of(2);
        let second = Self::second_copy(table.iter().product()) * size_of::<f32>();
        let taken = self.shared_memory_with(self.stages) + self.teams * second;
        if is_paired && taken <= self.room() { 2 } else { 1 }
    }

    /// Bytes of shared memory for a bias and the sums of its gradient, of one pipeline.
    pub(super) fn bias_bytes(&self) -> usize {
        let (Some(extents), Some(table)) = (self.bias, self.bias_table()) else { return 0 };
        let floats = |count: usize| size_of::<f32>() * count.next_multiple_of(4);
        let table = 16 + floats(table.iter().product());
        if !self.gradients.bias {
            return table;
        }
        // Lines of eight columns by distance: one more than a block has, for a lane's second row, unless blocks share slots along its axis.
        let axis = self.pair_axis();
        let along = if self.rank == 1 { 8 } else { self.column_tile()[axis] };
        let is_aimed_by_tile = !self.is_strided
            && self.sum_slots >= (0..MAX_RANK).map(|axis| self.slots_along(axis)).product();
        let is_shared = is_aimed_by_tile && self.can_share_slots(axis);
        let lines = TILE / 8 / along * (along + usize::from(!is_shared));
        let slot = size_of::<f32>() * 64 * lines + 16;
        let views = if is_aimed_by_tile { 48 } else { 0 };
        let sums = floats(extents.iter().product::<usize>() + 32);
        table + 4 * self.warpgroups * (self.sum_slots * slot + views + sums)
    }

    /// The axis along which the two rows of a lane lie, where it sums the gradient of a bias.
    pub(super) fn pair_axis(&self) -> usize {
        match (self.rank, self.row_tile()) {
            (1, _) => 2,
            (3, [_, 1, _]) => 0,
            _ => 1,
        }
    }

    /// Longest window along an axis, where there is a bias.
    pub(super) fn window(&self, axis: usize) -> usize {
        self.bias.map_or(1, |extents| extents[axis].div_ceil(2))
    }

    /// Whether blocks along an axis can share slots for the sums of a bias, see `cuda/bias_sums.cuh`.
    pub(super) fn can_share_slots(&self, axis: usize) -> bool {
        let seen = self.window(axis) + usize::from(axis == self.pair_axis());
        self.rank > 1 && seen <= self.column_tile()[axis]
    }

    /// Slots along an axis with which every block of a tile has one, but for strides.
    pub(super) fn slots_along(&self, axis: usize) -> usize {
        let seen = self.window(axis) + self.cta_tile()[axis] - 1;
        match self.can_share_slots(axis) {
            true => 1,
            false => seen.div_ceil(self.column_tile()[axis]),
        }
    }

    /// Whether it can sum the gradient of a bias, if it has to: the lines of rows and blocks are eight long.
    pub(in crate::native::sm90) fn sums_bias(&self) -> bool {
        let x = MAX_RANK - 1;
        let is_wide = self.rank == 1 || self.row_tile()[x] == 8 && self.column_tile()[x] == 8;
        !self.gradients.bias || self.blocks == 1 && is_wide
    }

    /// Slots for the sums of a bias: those that all blocks of a tile have, or, with strides, one for each step that most tiles of a problem have.
    pub(in crate::native::sm90) fn slots_wanted(&self, problem: &Problem) -> usize {
        let (rows, columns) = (self.cta_tile(), self.column_tile());
        let blocks = |axis: usize| {
            let seen = problem.axes[axis].kernel_size + rows[axis] - 1;
            seen.min(problem.axes[axis].keys).div_ceil(columns[axis])
        };
        let along = |axis| if self.is_strided { blocks(axis) } else { self.slots_along(axis) };
        (0..MAX_RANK).map(along).product()
    }
}
