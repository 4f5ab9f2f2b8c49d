//! How the selection of blocks is specialised: see `cuda/select.cu`.

use super::Element;
use super::schedule::SHARED_MEMORY;
use crate::sparse::Selection;

/// Keys of a step, and steps on their way: the kernel's `KEYS` and `STAGES`.
const KEYS: usize = 64;
const STAGES: usize = 4;
/// Entries of a list, which the lanes of a warp hold.
const MOST_ENTRIES: usize = 32;
/// Rows of a warpgroup.
pub(super) const ROWS: usize = 64;

/// The compile-time parameters of the kernel that selects blocks or super-blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SelectSchedule {
    /// Element type of queries and keys.
    pub element: Element,
    /// Length of a query.
    pub head_dim: usize,
    /// Heads that share a list.
    pub group: usize,
    /// Warpgroups of a CTA.
    pub warpgroups: usize,
    /// Compressed blocks from one block to the next.
    pub ratio: usize,
    /// Compressed blocks that overlap a point.
    pub reach: usize,
    /// Whether blocks are super-blocks.
    pub is_super: bool,
}

impl core::fmt::Display for SelectSchedule {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { head_dim, group, warpgroups, ratio, reach, .. } = self;
        let (element, kind) = (self.element.name(), if self.is_super { "_super" } else { "" });
        write!(f, "select_{element}_d{head_dim}_g{group}_w{warpgroups}_{ratio}_{reach}{kind}")
    }
}

impl SelectSchedule {
    /// The kernel for a problem on a device with so many multiprocessors.
    ///
    /// # Errors
    ///
    /// What it cannot compute.
    pub fn plan(
        selection: &Selection,
        element: Element,
        is_super: bool,
        multiprocessors: usize,
    ) -> Result<Self, String> {
        let (head_dim, group) = (selection.head_dim, selection.heads / selection.heads_kv);
        let entries = match is_super {
            true => selection.cmp_top.unwrap_or_default(),
            false => selection.num_selected,
        };
        if head_dim % 8 != 0 || head_dim > 256 {
            return Err(format!("head_dim is {head_dim}, not a multiple of 8 up to 256"));
        }
        if group > ROWS {
            return Err(format!("{group} heads share a list, more than {ROWS}"));
        }
        if entries > MOST_ENTRIES {
            return Err(format!("a list has {entries} entries, more than {MOST_ENTRIES}"));
        }
        // The mask is of infinities, and differences of scores are finite.
        if !(1e-6..=1e6).contains(&selection.scale.abs()) {
            return Err(format!("scale is {}, not 1e-6 to 1e6 in magnitude", selection.scale));
        }
        let most = (1 << 30) - 1;
        if selection.tokens.saturating_add(selection.query_tile) > most
            || selection.cmp_block.max(selection.slc_block).max(selection.cmp_group) > most
            || selection.num_init.max(selection.num_local) > most
            || selection.lists() > most
            || selection.batch > 1 << 24
        {
            return Err("there are 2^30 or more tokens or lists".into());
        }
        let (ratio, reach) = selection.overlap(is_super);
        let of = |warpgroups| Self { element, head_dim, group, warpgroups, ratio, reach, is_super };
        let all: Vec<_> = [8, 6, 4, 2, 1].map(of).into_iter().filter(Self::has_room).collect();
        // As many rows as there can be share what TMA brings, unless multiprocessors would have nothing to do.
        let busy = all.iter().find(|schedule| schedule.ctas(selection) >= multiprocessors);
        let chosen = busy.or(all.last()).copied();
        chosen.ok_or_else(|| format!("{ratio} compressed blocks to a block are too many"))
    }

    /// Rows of a list: a power of two.
    pub(super) fn group_rows(&self) -> usize {
        self.group.next_power_of_two()
    }

    /// Lists of a CTA.
    pub(super) fn lists(&self) -> usize {
        ROWS * self.warpgroups / self.group_rows()
    }

    /// CTAs of a problem.
    pub(super) fn ctas(&self, selection: &Selection) -> usize {
        selection.tiles().div_ceil(self.lists()) * selection.batch * selection.heads_kv
    }

    /// Probabilities of a ring.
    fn ring(&self) -> usize {
        KEYS.saturating_add(self.ratio).saturating_add(self.reach).min(1 << 20).next_power_of_two()
    }

    /// Whether there are shared memory and registers: `sm90_report` finds which kernels spill.
    fn has_room(&self) -> bool {
        // A warp that has many lists holds more, and so does one of four that have one.
        let has_registers = match self.warpgroups {
            0..=4 => true,
            5..=6 => self.group_rows() >= 4,
            _ => (8..=32).contains(&self.group_rows()),
        };
        has_registers && self.shared_memory() <= SHARED_MEMORY
    }

    /// Bytes of a CTA: steps of keys, as much for the rows of a warpgroup, a ring for each sum of a warp, a list's bounds, barriers.
    pub(super) fn shared_memory(&self) -> usize {
        let tiles = (STAGES + self.warpgroups) * self.head_dim.div_ceil(64) * KEYS * 128;
        let sums = 4 * self.warpgroups * (16 / self.group_rows()).max(1);
        tiles + 4 * self.ring() * sums + 16 * self.lists() + 16 * STAGES
    }

    pub(super) fn macros(&self) -> [(&'static str, usize); 9] {
        [
            ("BF16", usize::from(self.element == Element::Bf16)),
            ("DIM", self.head_dim),
            ("GROUP", self.group),
            ("GROUP_ROWS", self.group_rows()),
            ("WARPGROUPS", self.warpgroups),
            ("RATIO", self.ratio),
            ("REACH", self.reach),
            ("RING", self.ring()),
            ("SUPER", usize::from(self.is_super)),
        ]
    }
}
