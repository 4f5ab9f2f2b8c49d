mod bias;
mod room;
mod text;

pub(super) use self::room::SHARED_MEMORY;
pub use crate::Pass;
use crate::native::Cut;
pub use crate::native::Element;
use crate::native::slopes::Blocks;
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

    /// Threads of a CTA.
    pub fn threads(&self) -> usize {
        128 * (self.warpgroups * self.teams + 1)
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

    /// Whether it is a kernel for queries that sums slopes which one for keys has left.
    pub(super) fn sums_slopes(&self) -> bool {
        self.pass == Pass::Queries && self.keeps_slopes
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
