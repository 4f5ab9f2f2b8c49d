use std::fmt;

pub use crate::Pass;
use crate::native::Cut;
pub use crate::native::Element;
use crate::native::slopes::{BLOCK_BYTES, Blocks};
use crate::problem::{NAMES, axes_suffix};
use crate::tiling::Tiling;
use crate::{BlockSparse, MAX_RANK, Problem};

/// How keys outside a row's window are kept out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mask {
    /// Not at all: every query of a warpgroup sees every key of each block that it visits.
    None,
    /// By comparing positions, in blocks that are not visible whole. One axis.
    Linear,
    /// By a product of one-hot coordinates on the tensor cores. Two and three axes.
    OneHot,
    /// By comparing positions, in the last steps of a list of blocks.
    ByItem,
}

/// Heads whose vectors lie in one box, where columns are those of listed blocks: the heads that share a list fill what few tokens leave of
/// 64 rows or columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listed {
    /// Of a box of rows.
    pub row_heads: usize,
    /// Of a box of columns.
    pub column_heads: usize,
}

/// The gradients that a kernel of a backward pass sums. Accumulators are many: what does not fit is left to
/// further kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gradients {
    /// First element of the vectors of the query's or the key's gradient.
    pub start: usize,
    /// Elements from there on; 0 for none.
    pub width: usize,
    /// Whether the gradient of the value is among them.
    pub value: bool,
    /// Whether that of the bias is.
    pub bias: bool,
}

impl Gradients {
    /// Of the forward pass.
    pub const NONE: Self = Self { start: 0, width: 0, value: false, bias: false };
}

/// Rows of a warpgroup's tile, and columns of a block, or most of them.
pub(super) const TILE: usize = 64;
/// Shared memory that a CTA can have.
pub(super) const SHARED_MEMORY: usize = 227 * 1024;
/// Shared memory of a multiprocessor, of which every CTA takes [`RESERVED`] besides its own.
const SHARED_MEMORY_OF_SM: usize = 228 * 1024;
const RESERVED: usize = 1024;

/// What a kernel is specialised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// What it computes.
    pub pass: Pass,
    /// Of a backward pass, which gradients.
    pub gradients: Gradients,
    /// Element type of all tensors but the logsumexp.
    pub element: Element,
    /// Length of a query or key vector.
    pub head_dim: usize,
    /// Length of a value vector.
    pub head_dim_v: usize,
    /// Number of axes, 1 to 3.
    pub rank: usize,
    /// Which axes are causal.
    pub is_causal: [bool; MAX_RANK],
    /// Whether some axis may have a stride.
    pub is_strided: bool,
    /// Whether some axis has a dilation.
    pub is_dilated: bool,
    /// Whether queries of some axis stand elsewhere than keys of the same number.
    pub has_origin: bool,
    /// Whether there are additional tokens.
    pub has_additional: bool,
    /// Entries along each axis of the relative position bias that is added to the scores; `None` for none.
    pub bias: Option<[usize; MAX_RANK]>,
    /// Steps of a tile whose sums of the bias' gradient are kept apart, see `cuda/bias_sums.cuh`.
    pub sum_slots: usize,
    /// Queries of one warpgroup or, where they are columns, of a block; slowest axis first: 64, or a few less.
    pub q_tile: [usize; MAX_RANK],
    /// Keys of a block or, where they are rows, of one warpgroup, likewise. Of a block they are a multiple of 8.
    pub kv_tile: [usize; MAX_RANK],
    /// Axis along which the tiles of a CTA's warpgroups are stacked, and the slowest axis of the
    /// order in which blocks are visited.
    pub stack: usize,
    /// Warpgroups that compute, of one pipeline.
    pub warpgroups: usize,
    /// Pipelines of a CTA, each with tiles of its own, as if it were a CTA: one, or of a forward pass four, of one warpgroup each.
    pub teams: usize,
    /// Blocks of a step of the pipeline: 1 or 2.
    pub blocks: usize,
    /// Steps that shared memory holds.
    pub stages: usize,
    /// CTAs that a multiprocessor runs at once.
    pub ctas: usize,
    /// CTAs that share the heads of a group in a kernel for keys, whose gradients one more kernel adds up then: a divisor of the group.
    pub splits: usize,
    /// Whether the warpgroups of a CTA have the same rows, and take steps in turn, in place of rows of their own: where blocks are listed.
    pub shares_rows: bool,
    /// How windows are enforced.
    pub mask: Mask,
    /// Axes along which no tile sees more than one block of columns, where masks are one-hot: their coordinates move along the others only.
    pub one_block: [bool; MAX_RANK],
    /// Of a backward pass, whether dP of a step is begun only when its scores are there, which saves
    /// registers.
    pub is_late: bool,
    /// Of a kernel for queries, whether it makes their statistics itself, and leaves them to those for keys; see `cuda/own_statistics.cuh`.
    pub makes_statistics: bool,
    /// Of a kernel for keys, whether it leaves the slopes of all pairs in memory; of one for queries, whether it sums what such a kernel
    /// left, in place of computing slopes itself; see `cuda/slopes.cuh`.
    pub keeps_slopes: bool,
    /// Whether it computes the sequences of a packed batch, with no more axes than `rank` and some of the other traits.
    pub is_packed: bool,
    /// Whether the columns are those of listed blocks. Boxes of rows may then have fewer than 64, and boxes of columns a power of two
    /// from 8 to 64.
    pub listed: Option<Listed>,
}

impl Schedule {
    /// Of one warpgroup, one tile and one block, with none of what a problem may have besides vectors and causal axes, and with no stages yet.
    pub(super) fn plain(
        problem: &Problem,
        element: Element,
        pass: Pass,
        gradients: Gradients,
    ) -> Self {
        Self {
            pass,
            gradients,
            element,
            head_dim: problem.head_dim,
            head_dim_v: problem.head_dim_v,
            rank: problem.rank(),
            is_causal: problem.axes.map(|axis| axis.is_causal),
            is_strided: false,
            is_dilated: false,
            has_origin: false,
            has_additional: false,
            bias: None,
            sum_slots: 1,
            q_tile: [1; MAX_RANK],
            kv_tile: [1; MAX_RANK],
            stack: MAX_RANK - 1,
            warpgroups: 1,
            teams: 1,
            blocks: 1,
            stages: 0,
            ctas: 1,
            splits: 1,
            shares_rows: false,
            mask: Mask::None,
            one_block: [false; MAX_RANK],
            is_late: false,
            makes_statistics: false,
            keeps_slopes: false,
            is_packed: false,
            listed: None,
        }
    }

    /// What sums the slopes that this kernel for keys leaves, in the same tiles.
    pub(super) fn summing_slopes(&self, problem: &Problem) -> Option<Self> {
        let gradients = Gradients { width: problem.head_dim, ..Gradients::NONE };
        let plain = Self::plain(problem, self.element, Pass::Queries, gradients);
        let Self { is_strided, q_tile, kv_tile, stack, .. } = *self;
        Self { is_strided, q_tile, kv_tile, stack, warpgroups: 2, keeps_slopes: true, ..plain }
            .with_stages()
    }

    /// Whether it leaves slopes or sums them, if that is asked of it: where windows are made of whole blocks, or it masks what boxes have ahead of
    /// who sees a key.
    pub(super) fn can_keep_slopes(&self, problem: &Problem) -> bool {
        let is_masked = match Blocks::of(problem, &self.tiling()) {
            None => false,
            Some(Blocks::Line { .. }) => true,
            Some(Blocks::Boxes { begins_whole, .. }) => match self.mask {
                Mask::OneHot => true,
                Mask::None => begins_whole || self.pass == Pass::Queries,
                Mask::Linear | Mask::ByItem => false,
            },
        };
        is_masked && self.splits == 1 && self.blocks == 1 && self.one_block == [false; MAX_RANK]
    }

    /// Whether it is one for block-sparse attention: sizes and flags fit.
    pub fn fits_blocks(&self, sparse: &BlockSparse) -> bool {
        let problem = &sparse.problem;
        let Some(Listed { row_heads, column_heads }) = self.listed else { return false };
        let (of_query, of_key) = match self.pass {
            Pass::Forward | Pass::Queries => (row_heads, column_heads),
            Pass::Keys => (column_heads, row_heads),
        };
        self.head_dim == problem.head_dim
            && self.head_dim_v == problem.head_dim_v
            && self.rank == problem.rank()
            && problem.axes.iter().zip(self.is_causal).all(|(axis, bit)| axis.is_causal == bit)
            && sparse.heads_of_list().is_multiple_of(of_query)
            && of_key == 1
    }

    /// The schedule's tiles, as the cost model takes them.
    pub fn tiling(&self) -> Tiling {
        Tiling { q_tile: self.q_tile, kv_tile: self.kv_tile }
    }

    /// Blocks of its columns, and so many rows.
    pub(super) fn tiling_of(&self, rows: [usize; MAX_RANK]) -> Tiling {
        let columns = self.column_tile();
        match self.pass {
            Pass::Forward | Pass::Queries => Tiling { q_tile: rows, kv_tile: columns },
            Pass::Keys => Tiling { q_tile: columns, kv_tile: rows },
        }
    }

    /// Whether no tile of a CTA sees more than one block of columns along an axis of a problem.
    pub(super) fn has_one_block(&self, problem: &Problem, index: usize) -> bool {
        let (axis, tiling) = (&problem.axes[index], self.tiling_of(self.cta_tile()));
        axis.kernel_size <= self.column_tile()[index]
            && match self.pass {
                Pass::Forward | Pass::Queries => {
                    tiling.axis_tiles(axis, index).all(|tile| tile.kv_tiles <= 1)
                }
                Pass::Keys => tiling.axis_visitors(axis, index).iter().all(|blocks| *blocks <= 1),
            }
    }

    /// Rows of one warpgroup along each axis.
    pub fn row_tile(&self) -> [usize; MAX_RANK] {
        if self.pass == Pass::Keys { self.kv_tile } else { self.q_tile }
    }

    /// Columns of a block along each axis.
    pub fn column_tile(&self) -> [usize; MAX_RANK] {
        if self.pass == Pass::Keys { self.q_tile } else { self.kv_tile }
    }

    /// Rows of a CTA along each axis.
    pub fn cta_tile(&self) -> [usize; MAX_RANK] {
        let mut tile = self.row_tile();
        tile[self.stack] *= self.row_tiles();
        tile
    }

    /// Tiles of rows of a CTA's pipeline.
    pub fn row_tiles(&self) -> usize {
        if self.shares_rows { 1 } else { self.warpgroups }
    }

    /// Columns of a step.
    pub fn columns(&self) -> usize {
        let block = if self.listed.is_some() { TILE } else { self.column_tile().iter().product() };
        self.blocks * block
    }

    /// Rows of shared memory that they take: products sum over 16.
    fn stage_rows(&self) -> usize {
        self.columns().next_multiple_of(16)
    }

    /// Threads of a CTA.
    pub fn threads(&self) -> usize {
        128 * (self.warpgroups * self.teams + 1)
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
    fn row_buffers(&self) -> usize {
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

    /// The shape of a CTA and its pipeline in a few words.
    pub fn summary(&self) -> String {
        let mask = match self.mask {
            Mask::None => "no mask",
            Mask::Linear => "masks by position",
            Mask::OneHot => "one-hot masks",
            Mask::ByItem => "listed blocks",
        };
        let Self { warpgroups, stages, .. } = self;
        let (ctas, joined) = match self.teams {
            1 => (self.ctas, ""),
            teams => (teams, " in one CTA"),
        };
        let axis = ["slowest axis", "middle axis", "fastest axis"][self.stack];
        let (columns, of) =
            (self.columns(), if self.pass == Pass::Keys { "queries" } else { "keys" });
        let shared = if self.shares_rows { ", which share rows" } else { "" };
        let splits = match self.splits {
            1 => String::new(),
            splits => format!(", heads of a group in {splits} splits"),
        };
        let slopes = match (self.keeps_slopes, self.pass) {
            (false, _) => "",
            (true, Pass::Keys) => ", leaves slopes in memory",
            (true, _) => ", sums slopes from memory",
        };
        format!(
            "{ctas} x {warpgroups} warpgroups{joined}{shared} along the {axis}, {stages} x {columns} {of}, {mask}{splits}{slopes}"
        )
    }

    /// The tensors that it writes.
    pub fn writes(&self) -> String {
        let Gradients { start, width, value, bias } = self.gradients;
        let slice = match width < self.head_dim {
            true => format!("[{start}..{}]", start + width),
            false => String::new(),
        };
        match self.pass {
            Pass::Forward => "out, lse".to_string(),
            Pass::Queries if bias => format!("dq{slice}, dbias"),
            Pass::Queries => format!("dq{slice}"),
            Pass::Keys if width == 0 => "dv".to_string(),
            Pass::Keys if value => format!("dk{slice}, dv"),
            Pass::Keys => format!("dk{slice}"),
        }
    }

    /// Multiply-adds of the tensor cores for a score, without those of the mask.
    pub fn multiply_adds(&self) -> usize {
        let (dim, dim_v) = (self.head_dim.next_multiple_of(16), self.head_dim_v);
        let Gradients { width, value, .. } = self.gradients;
        match self.pass {
            Pass::Forward => dim + dim_v,
            Pass::Queries if self.sums_slopes() => width,
            Pass::Queries | Pass::Keys => {
                let first = if width > 0 { dim_v + width } else { 0 };
                dim + first + if value { dim_v } else { 0 }
            }
        }
    }

    /// Bytes of a row of shared memory: half as many where all vectors are short, and the rest would be zeros.
    fn swizzle(&self) -> usize {
        if self.head_dim.max(self.head_dim_v) <= 32 { 64 } else { 128 }
    }

    /// Rows that a vector takes.
    fn chunks(&self, dim: usize) -> usize {
        (2 * dim).div_ceil(self.swizzle())
    }

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
    fn second_copy(entries: usize) -> usize {
        (entries + 16) / 32 * 32 + 16
    }

    /// Whether scores begin with the entries of a bias, and products are added to them.
    pub(super) fn begins_with_bias(&self) -> bool {
        self.bias.is_some() && self.blocks == 1
    }

    /// Copies of the table of a bias: where there is room for it, a second one that is read in pairs. Beside longer vectors, and
    /// in three CTAs that sum the gradient with dilations or of more than 32 elements, a lane has no register for where it reads.
    fn bias_copies(&self) -> usize {
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
    fn bias_bytes(&self) -> usize {
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
    fn pair_axis(&self) -> usize {
        match (self.rank, self.row_tile()) {
            (1, _) => 2,
            (3, [_, 1, _]) => 0,
            _ => 1,
        }
    }

    /// Longest window along an axis, where there is a bias.
    fn window(&self, axis: usize) -> usize {
        self.bias.map_or(1, |extents| extents[axis].div_ceil(2))
    }

    /// Whether blocks along an axis can share slots for the sums of a bias, see `cuda/bias_sums.cuh`.
    fn can_share_slots(&self, axis: usize) -> bool {
        let seen = self.window(axis) + usize::from(axis == self.pair_axis());
        self.rank > 1 && seen <= self.column_tile()[axis]
    }

    /// Slots along an axis with which every block of a tile has one, but for strides.
    fn slots_along(&self, axis: usize) -> usize {
        let seen = self.window(axis) + self.cta_tile()[axis] - 1;
        match self.can_share_slots(axis) {
            true => 1,
            false => seen.div_ceil(self.column_tile()[axis]),
        }
    }

    /// Whether it can sum the gradient of a bias, if it has to: the lines of rows and blocks are eight long.
    pub(super) fn sums_bias(&self) -> bool {
        let x = MAX_RANK - 1;
        let is_wide = self.rank == 1 || self.row_tile()[x] == 8 && self.column_tile()[x] == 8;
        !self.gradients.bias || self.blocks == 1 && is_wide
    }

    /// Bytes of shared memory with `stages` steps in flight.
    fn shared_memory_with(&self, stages: usize) -> usize {
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
    fn room(&self) -> usize {
        (SHARED_MEMORY_OF_SM / self.ctas - RESERVED).min(SHARED_MEMORY)
    }

    /// The same with as many stages as fit, up to four; `None` if not even two do, or four for warpgroups that take them in turn. Slots for
    /// the sums of a bias are one where all of them leave no room: some would be shared by steps that have little in common.
    pub(super) fn with_stages(mut self) -> Option<Self> {
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

    /// Slots for the sums of a bias: those that all blocks of a tile have, or, with strides, one for each step that most tiles of a problem have.
    pub(super) fn slots_wanted(&self, problem: &Problem) -> usize {
        let (rows, columns) = (self.cta_tile(), self.column_tile());
        let blocks = |axis: usize| {
            let seen = problem.axes[axis].kernel_size + rows[axis] - 1;
            seen.min(problem.axes[axis].keys).div_ceil(columns[axis])
        };
        let along = |axis| if self.is_strided { blocks(axis) } else { self.slots_along(axis) };
        (0..MAX_RANK).map(along).product()
    }

    /// Bytes of device memory for the sums of CTAs that share the heads of a group, besides
    /// [`backward_workspace`](crate::native::backward_workspace): 4 for each element of the gradients that it sums and each of the
    /// [`splits`](Self::splits).
    pub fn split_workspace(&self, problem: &Problem) -> usize {
        if self.splits == 1 {
            return 0;
        }
        let values = if self.gradients.value { problem.head_dim_v } else { 0 };
        let rows = problem.batch * problem.keys() * problem.heads_kv;
        size_of::<f32>() * rows * self.splits * (self.gradients.width + values)
    }

    /// What launches and tensor maps have to know of it.
    pub fn cut(&self) -> Cut {
        Cut {
            pass: self.pass,
            element: self.element,
            q_tile: self.q_tile,
            kv_tile: self.kv_tile,
            cta_tile: self.cta_tile(),
            stack: self.stack,
            ctas: self.ctas,
            teams: self.teams,
            swizzle: self.swizzle(),
            samples_first: self.gradients.bias,
            splits: self.splits,
            threads: self.threads(),
            shared_memory: self.shared_memory(),
        }
    }

    /// The macros that the source is specialised by.
    pub fn macros(&self) -> Vec<(&'static str, usize)> {
        let bits = |axes: [bool; MAX_RANK]| {
            let bits = axes.into_iter().enumerate();
            bits.map(|(axis, bit)| usize::from(bit) << axis).sum()
        };
        let (producer, consumer) = self.registers();
        let [row_z, row_y, row_x] = self.row_tile();
        let [column_z, column_y, column_x] = self.column_tile();
        let [bias_z, bias_y, bias_x] = self.bias.unwrap_or([1; MAX_RANK]);
        let mut macros = vec![
            ("BF16", usize::from(self.element == Element::Bf16)),
            ("DIM", self.head_dim),
            ("DIM_V", self.head_dim_v),
            ("RANK", self.rank),
            ("CAUSAL", bits(self.is_causal)),
            ("STRIDED", usize::from(self.is_strided)),
            ("DILATED", usize::from(self.is_dilated)),
            ("ORIGIN", usize::from(self.has_origin)),
            ("ADDITIONAL", usize::from(self.has_additional)),
            ("BIAS", usize::from(self.bias.is_some())),
            ("BIAS_Z", bias_z),
            ("BIAS_Y", bias_y),
            ("BIAS_X", bias_x),
            ("ROW_Z", row_z),
            ("ROW_Y", row_y),
            ("ROW_X", row_x),
            ("COLUMN_Z", column_z),
            ("COLUMN_Y", column_y),
            ("COLUMN_X", column_x),
            ("STACK", self.stack),
            ("WARPGROUPS", self.warpgroups),
            ("TEAMS", self.teams),
            ("BLOCKS", self.blocks),
            ("STAGES", self.stages),
            ("CTAS", self.ctas),
            ("SWIZZLE", self.swizzle()),
            ("MASK", self.mask as usize),
            ("INVERSE", usize::from(self.pass == Pass::Keys)),
            ("PACKED", usize::from(self.is_packed)),
            ("BIAS_COPIES", self.bias_copies()),
            ("PRODUCER_REGISTERS", producer),
            ("CONSUMER_REGISTERS", consumer),
        ];
        if let Some(Listed { row_heads, column_heads }) = self.listed {
            macros.extend([("LISTED", 1), ("ROW_H", row_heads), ("COLUMN_H", column_heads)]);
        }
        if self.one_block.contains(&true) {
            macros.push(("ONE_BLOCK", bits(self.one_block)));
        }
        if self.splits > 1 {
            macros.push(("SPLITS", self.splits));
        }
        if self.shares_rows {
            macros.push(("SHARED_ROWS", 1));
        }
        if self.keeps_slopes {
            macros.push(("SLOPES", 1));
        }
        if !self.sums_slopes() {
            macros.extend([
                ("ROW_BUFFERS", self.row_buffers()),
                ("ROWS_IN_REGISTERS", usize::from(self.rows_in_registers())),
            ]);
        }
        match self.pass {
            Pass::Forward => macros.push(("PINGPONG", usize::from(self.warpgroups > 1))),
            Pass::Queries | Pass::Keys => macros.extend([
                ("SUM_BIAS", usize::from(self.gradients.bias)),
                ("FIRST_START", self.gradients.start),
                ("FIRST_DIM", self.gradients.width),
                ("WITH_FIRST", usize::from(self.gradients.width > 0)),
                ("WITH_SECOND", usize::from(self.gradients.value)),
            ]),
        }
        if self.pass != Pass::Forward && !self.sums_slopes() {
            macros.extend([
                ("SUM_SLOTS", self.sum_slots),
                ("LATE", usize::from(self.is_late)),
                ("EARLY", usize::from(self.finds_early())),
                ("MAKES_STATISTICS", usize::from(self.makes_statistics)),
            ]);
        }
        macros
    }

    /// Whether it is a kernel for queries that sums slopes which one for keys has left.
    pub(super) fn sums_slopes(&self) -> bool {
        self.pass == Pass::Queries && self.keeps_slopes
    }

    /// Whether the tile behind the next one of a backward pass is found, and its rows are prefetched, while rows are in use. Kernels for
    /// keys and ones with a bias have no registers for it.
    fn finds_early(&self) -> bool {
        let is_plain = self.listed.is_none() && self.bias.is_none() && !self.keeps_slopes;
        self.is_packed || self.pass == Pass::Queries && is_plain
    }

    /// Whether it can be made one that [makes statistics](Self::makes_statistics): of a kernel that sees each query once, and where
    /// the dilation groups of an axis are equally long, so that no place in the statistics is without a query.
    pub(super) fn can_make_statistics(&self, problem: &Problem) -> bool {
        self.pass == Pass::Queries
            && self.head_dim.max(self.head_dim_v) <= 128
            && !self.is_packed
            && !self.keeps_slopes
            && self.listed.is_none()
            && !self.is_short_of_registers()
            && Self { makes_statistics: true, ..*self }.shared_memory() <= self.room()
            && problem.axes.iter().all(|axis| axis.queries.is_multiple_of(axis.dilation))
    }

    /// Whether a kernel for queries has no registers for more than it does: where it sums the gradient of a bias in three CTAs, and of
    /// long vectors with dilations, strides and additional tokens.
    fn is_short_of_registers(&self) -> bool {
        let has_all = self.is_dilated && self.is_strided && self.has_additional;
        self.gradients.bias && self.ctas == 3 || has_all && self.head_dim.max(self.head_dim_v) > 64
    }

    /// Whether the schedule is one for `problem`: shapes and flags fit.
    pub fn fits(&self, problem: &Problem) -> bool {
        self.head_dim == problem.head_dim
            && self.head_dim_v == problem.head_dim_v
            && (self.rank == problem.rank() || self.is_packed && self.rank > problem.rank())
            && self.has_additional == (problem.additional > 0 && self.pass != Pass::Keys)
            && problem.axes.iter().zip(self.is_causal).all(|(axis, bit)| axis.is_causal == bit)
            && (self.is_strided || problem.axes.iter().all(|axis| axis.stride == 1))
            && (self.is_dilated || problem.axes.iter().all(|axis| axis.dilation == 1))
            && (self.has_origin || !problem.has_origin())
            && self.bias == problem.has_bias.then(|| problem.bias_extents())
            && self.listed.is_none()
            && (!self.makes_statistics || self.can_make_statistics(problem))
            && (!self.keeps_slopes || self.can_keep_slopes(problem))
            && problem.group_size().is_multiple_of(self.splits)
            && (self.splits == 1 || self.pass == Pass::Keys)
            && (0..MAX_RANK).all(|axis| !self.one_block[axis] || self.has_one_block(problem, axis))
    }
}

/// The name of the specialisation, and a key for it.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape =
            |tile: &[usize]| tile.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
        let first = MAX_RANK - self.rank;
        write!(f, "sm90_{}_{}_d{}", self.pass.name(), self.element.name(), self.head_dim)?;
        if self.head_dim_v != self.head_dim {
            write!(f, "v{}", self.head_dim_v)?;
        }
        let Gradients { start, width, value, bias } = self.gradients;
        match self.pass {
            Pass::Forward => {}
            _ if width == 0 => f.write_str("_value")?,
            _ if width < self.head_dim => write!(f, "_from{start}")?,
            Pass::Keys if !value => f.write_str("_key")?,
            _ => {}
        }
        write!(f, "_q{}_k{}", shape(&self.q_tile[first..]), shape(&self.kv_tile[first..]))?;
        write!(f, "_{}w{}b{}s{}c", self.warpgroups, self.blocks, self.stages, self.ctas)?;
        if self.teams > 1 {
            write!(f, "{}t", self.teams)?;
        }
        write!(f, "_{}", NAMES[self.stack])?;
        f.write_str(if self.is_late { "_late" } else { "" })?;
        if self.splits > 1 {
            write!(f, "_{}splits", self.splits)?;
        }
        f.write_str(if self.shares_rows { "_shared" } else { "" })?;
        f.write_str(match self.mask {
            Mask::None => "_whole",
            Mask::Linear => "_linear",
            Mask::OneHot => "_onehot",
            Mask::ByItem => "_listed",
        })?;
        if let Some(Listed { row_heads, column_heads }) = self.listed {
            for (name, heads) in [("_rh", row_heads), ("_ch", column_heads)] {
                if heads > 1 {
                    write!(f, "{name}{heads}")?;
                }
            }
        }
        f.write_str(&axes_suffix("one", self.one_block))?;
        f.write_str(&axes_suffix("causal", self.is_causal))?;
        for (flag, name) in [
            (self.is_strided, "_strided"),
            (self.is_dilated, "_dilated"),
            (self.has_origin, "_origin"),
            (self.has_additional, "_additional"),
            (self.is_packed, "_packed"),
            (self.makes_statistics, "_statistics"),
            (self.keeps_slopes, "_slopes"),
        ] {
            f.write_str(if flag { name } else { "" })?;
        }
        if let Some(extents) = self.bias {
            write!(f, "_bias{}", shape(&extents[first..]))?;
        }
        if bias { write!(f, "_dbias{}", self.sum_slots) } else { Ok(()) }
    }
}
