//! What a kernel is specialised by.

use std::fmt;

pub use crate::Pass;
use crate::problem::{axes_suffix, tile_name};
use crate::tiling::Tiling;
use crate::{MAX_RANK, Packed, Problem};

/// Rows of the matrix that one instruction multiplies.
pub(super) const ROWS: usize = 16;
/// Columns of its result.
pub(super) const COLUMNS: usize = 8;
/// Elements of two bytes that it sums over.
pub(super) const DEPTH: usize = 16;
/// Elements of tf32 that it sums over.
pub(super) const TF32_DEPTH: usize = 8;
/// Units of a plane.
pub(super) const PLANE: usize = 32;
/// Bytes between the end of a row in shared memory and the next one. Rows are an even number of such pieces
/// long, so that with one more, eight rows read at once lie in different banks.
pub(super) const PADDING: usize = 16;

/// Bytes of the buffers in shared memory that a kernel has no use for, which are an element long, with what aligns the next.
const IDLE: usize = 64;

/// How tiles get from global into shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Staging {
    /// Through registers: loads are issued before a product, and stored behind it.
    Registers,
    /// By asynchronous copies, which take no registers.
    Async(Compiler),
}

/// CubeCL's compilers for CUDA, which are told about an instruction of the GPU in ways of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compiler {
    /// To C++, with inline assembly.
    Cpp,
    /// Through LLVM, with intrinsics.
    Llvm,
}

/// The instruction that multiplies matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// 16 x 8 x 16, with fragments laid out as NVIDIA GPUs do.
    Mma,
    /// 16 x 8 x 8 on f32 rounded to tf32, with fragments laid out as NVIDIA GPUs do.
    Tf32,
    /// Rows, columns and depth of a cooperative matrix product, whose fragments are the runtime's.
    Cmma([usize; 3]),
}

impl Instruction {
    /// Bytes of an element that it multiplies.
    pub fn size(self) -> usize {
        if self == Self::Tf32 { size_of::<f32>() } else { size_of::<u16>() }
    }

    /// Whether fragments are laid out as NVIDIA GPUs do.
    pub fn is_mma(self) -> bool {
        matches!(self, Self::Mma | Self::Tf32)
    }

    /// Rows, columns and depth of a product of matrices.
    pub(super) fn shape(self) -> [usize; 3] {
        match self {
            Self::Mma => [ROWS, COLUMNS, DEPTH],
            Self::Tf32 => [ROWS, COLUMNS, TF32_DEPTH],
            Self::Cmma(shape) => shape,
        }
    }

    /// Elements of the widest load, 16 bytes of them.
    pub(super) fn widest_vector(self) -> usize {
        16 / self.size()
    }
}

/// How exponentials are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exponential {
    /// By the runtime's own `exp`, about eight instructions on NVIDIA GPUs.
    Library,
    /// By the instruction for powers of two.
    Instruction(Compiler),
}

impl Exponential {
    /// The factor that makes an argument of a difference of scores.
    pub(super) fn factor(self, scale: f64) -> f32 {
        match self {
            Self::Library => scale as f32,
            Self::Instruction(_) => (scale * std::f64::consts::LOG2_E) as f32,
        }
    }
}

/// Vectors of rows and of columns that are multiplied with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Operand {
    /// Length of a vector in whole matrices.
    pub dim: usize,
    /// Vectors, as memory is read, between two of them in shared memory.
    pub pitch: usize,
    /// Elements that memory is read in.
    pub vector: usize,
    /// Matrices of 16 rows of a plane.
    pub blocks: usize,
    /// Matrices of 8 columns.
    pub matrices: usize,
    /// Whether fragments of the rows stay in registers.
    pub is_held: bool,
    /// Whether elements are f32, to be rounded to tf32.
    pub is_tf32: bool,
    /// Whether those of the columns are rounded in shared memory.
    pub has_rounded_columns: bool,
}

impl Operand {
    /// Elements that a product sums over.
    pub fn depth(&self) -> usize {
        if self.is_tf32 { TF32_DEPTH } else { DEPTH }
    }
}

/// Compile-time parameters of a kernel. Lengths of axes are none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blueprint {
    /// What it computes.
    pub pass: Pass,
    /// Number of axes, 1 to 3.
    pub rank: usize,
    /// Which axes are causal, slowest first.
    pub is_causal: [bool; MAX_RANK],
    /// Whether queries may stand elsewhere than keys of the same number, and see nothing.
    pub has_origin: bool,
    /// Queries of a cube, or of a step, along each axis; powers of two.
    pub q_tile: [usize; MAX_RANK],
    /// Keys of a step, or of a cube, along each axis; powers of two.
    pub kv_tile: [usize; MAX_RANK],
    /// Planes of a cube. Each owns `16 * blocks` rows, or each two of them do.
    pub planes: usize,
    /// Whether planes work in pairs that own the same rows: one makes weights and sums gradients of values, the
    /// other those of keys. In the keys' pass only.
    pub is_paired: bool,
    /// Matrices of 16 rows that a plane multiplies with each piece of the columns.
    pub blocks: usize,
    /// Length of a query or key vector.
    pub head_dim: usize,
    /// Length of a value vector.
    pub head_dim_v: usize,
    /// Elements of a load: divides both lengths.
    pub vector: usize,
    /// Whether the rows' fragments stay in registers.
    pub holds_rows: bool,
    /// Whether it sums gradients of the rows' first vectors, queries or keys. Always, but in the forward
    /// pass, unless the sums of both take too many registers for one kernel.
    pub has_first: bool,
    /// Whether it sums gradients of values. In the keys' pass only.
    pub has_second: bool,
    /// What multiplies.
    pub instruction: Instruction,
    /// How tiles reach shared memory.
    pub staging: Staging,
    /// How exponentials are computed.
    pub exponential: Exponential,
    /// Whether there is any key beside the additional ones.
    pub has_keys: bool,
    /// Whether there are additional keys.
    pub has_additional: bool,
    /// Whether a relative position bias is added to scores. Those of additional keys have none.
    pub has_bias: bool,
    /// Room for so many sums of the gradient of a head's bias; 0 where the kernel sums none. In the queries' pass only.
    pub bias_sums: usize,
    /// Whether it goes through the sequences of a packed batch, each a problem of its own.
    pub is_packed: bool,
}

impl Blueprint {
    /// The tiles, as the cost model takes them.
    pub fn tiling(&self) -> Tiling {
        Tiling { q_tile: self.q_tile, kv_tile: self.kv_tile }
    }

    /// Rows of a cube along each axis.
    pub fn row_tile(&self) -> [usize; MAX_RANK] {
        if self.pass == Pass::Keys { self.kv_tile } else { self.q_tile }
    }

    /// Columns of a step along each axis.
    pub fn column_tile(&self) -> [usize; MAX_RANK] {
        if self.pass == Pass::Keys { self.q_tile } else { self.kv_tile }
    }

    /// Rows of a cube.
    pub fn rows(&self) -> usize {
        self.row_tile().iter().product()
    }

    /// Columns of a step.
    pub fn columns(&self) -> usize {
        self.column_tile().iter().product()
    }

    /// Rows of a plane.
    pub(super) fn plane_rows(&self) -> usize {
        match self.instruction {
            Instruction::Mma | Instruction::Tf32 => ROWS * self.blocks,
            Instruction::Cmma([m, ..]) => m,
        }
    }

    /// Rows, columns and depth of a product of matrices.
    pub(super) fn shape(&self) -> [usize; 3] {
        self.instruction.shape()
    }

    /// Planes that own the same rows.
    pub(super) fn partners(&self) -> usize {
        if self.is_paired { 2 } else { 1 }
    }

    /// Sets of rows that a plane, or a pair of planes, owns.
    pub(super) fn groups(&self) -> usize {
        self.planes / self.partners()
    }

    /// Pairs of weights that one plane of a pair hands to the other, of all pairs.
    pub(super) fn handed(&self) -> usize {
        if self.is_paired { self.rows() * self.columns() / 2 } else { 1 }
    }

    /// Units that share a row where scores lie in shared memory.
    pub(super) fn stripes(&self) -> usize {
        PLANE / self.plane_rows()
    }

    /// Scores between two rows in shared memory.
    pub(super) fn score_pitch(&self) -> usize {
        self.columns() + 4
    }

    /// Weights between two rows in shared memory.
    pub(super) fn weight_pitch(&self) -> usize {
        self.columns() + 8
    }

    /// Units of a cube.
    pub fn units(&self) -> usize {
        self.planes * PLANE
    }

    /// The shape of a cube and its steps in a few words.
    pub fn summary(&self) -> String {
        let (rows, columns) = match self.pass {
            Pass::Forward | Pass::Queries => ("queries", "keys"),
            Pass::Keys => ("keys", "queries"),
        };
        format!(
            "{} planes of {} {rows}, {} {columns} a step",
            self.planes,
            self.plane_rows(),
            self.columns()
        )
    }

    /// What vectors are filled up to multiples of: whole matrices, or pairs of them where two are read at once.
    fn piece(&self) -> usize {
        if self.instruction == Instruction::Tf32 { TF32_DEPTH } else { DEPTH }
    }

    /// Length of a query or key vector in whole matrices.
    pub(super) fn dim(&self) -> usize {
        self.head_dim.next_multiple_of(self.piece())
    }

    /// Length of a value vector in whole matrices, or pairs of them.
    pub(super) fn dim_v(&self) -> usize {
        self.head_dim_v.next_multiple_of(self.piece())
    }

    /// Queries and keys.
    pub(super) fn first(&self) -> Operand {
        self.operand(self.dim())
    }

    /// Values, and in the backward pass the output's gradient.
    pub(super) fn second(&self) -> Operand {
        self.operand(self.dim_v())
    }

    fn operand(&self, dim: usize) -> Operand {
        Operand {
            dim,
            pitch: (dim + PADDING / self.instruction.size()) / self.vector,
            vector: self.vector,
            blocks: self.blocks,
            matrices: self.columns() / COLUMNS,
            is_held: self.holds_rows,
            is_tf32: self.instruction == Instruction::Tf32,
            has_rounded_columns: self.staging == Staging::Registers,
        }
    }

    /// Elements of a vector of the output.
    pub(super) fn vector_out(&self) -> usize {
        self.vector.min(2)
    }

    /// Steps whose columns are in shared memory at once.
    pub(super) fn stages(&self) -> usize {
        match (self.instruction, self.pass) {
            (Instruction::Cmma(_), _) | (_, Pass::Forward) => 1,
            _ => 2,
        }
    }

    /// Bytes of shared memory, at most: vectors of rows and columns, the rows' windows, statistics of columns
    /// that are queries, and scores and weights where fragments are the runtime's.
    pub fn shared_memory(&self) -> usize {
        let size = self.instruction.size();
        let first = self.dim() * size + PADDING;
        let second = self.dim_v() * size + PADDING;
        let windows = if self.has_keys { 2 * MAX_RANK * size_of::<u32>() } else { 0 };
        let of_planes =
            if self.has_keys { self.groups() * 4 * MAX_RANK * size_of::<u32>() } else { 0 };
        let handed = if self.is_paired { self.handed() * 2 * size_of::<f32>() } else { 0 };
        // For gradients of values alone, the cooperative kernel has no use for the values.
        let is_mma = self.instruction.is_mma();
        let row_second = if is_mma || self.has_first { second } else { 0 };
        let (row, column) = match self.pass {
            Pass::Forward => (first, first + second),
            Pass::Queries => (first + second, first + second),
            Pass::Keys => (first + row_second, first + second + 2 * size_of::<f32>()),
        };
        let exchange = match self.instruction {
            Instruction::Mma | Instruction::Tf32 => 0,
            Instruction::Cmma(_) => {
                self.score_pitch() * size_of::<f32>() + self.weight_pitch() * size_of::<u16>()
            }
        };
        self.rows() * (row + windows + exchange)
            + of_planes
            + handed
            + self.sums_words() * size_of::<f32>()
            + self.stages() * self.columns() * column
            + IDLE
    }

    /// Whether the blueprint is one for `problem`: shapes and flags fit.
    pub fn fits(&self, problem: &Problem) -> bool {
        self.head_dim == problem.head_dim
            && self.head_dim_v == problem.head_dim_v
            && self.rank >= problem.rank()
            && self.has_keys == (problem.keys() > 0)
            && self.has_additional == (problem.additional > 0 && self.pass != Pass::Keys)
            && self.has_bias == (problem.has_bias && self.has_keys)
            && (self.bias_sums == 0 || self.bias_sums >= problem.bias_entries())
            && problem.axes.iter().zip(self.is_causal).all(|(axis, bit)| axis.is_causal == bit)
            && (self.has_origin || !problem.has_origin())
            && !self.is_packed
    }

    /// Whether the blueprint is one for the sequences of a packed batch.
    pub fn fits_packed(&self, packed: &Packed) -> bool {
        let each = Self { is_packed: false, ..*self };
        self.is_packed && packed.problems().all(|problem| each.fits(problem))
    }
}

/// The name of the specialisation.
impl fmt::Display for Blueprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = MAX_RANK - self.rank;
        write!(f, "{}_d{}", self.pass.name(), self.head_dim)?;
        if self.head_dim_v != self.head_dim {
            write!(f, "v{}", self.head_dim_v)?;
        }
        write!(f, "_q{}_k{}", tile_name(&self.q_tile[first..]), tile_name(&self.kv_tile[first..]))?;
        write!(f, "_{}p{}b", self.planes, self.blocks)?;
        f.write_str(if self.is_paired { "_pairs" } else { "" })?;
        f.write_str(match (self.pass, self.has_first, self.has_second) {
            (Pass::Keys, true, false) => "_key",
            (Pass::Keys, false, true) => "_value",
            _ => "",
        })?;
        match self.instruction {
            Instruction::Mma => {}
            Instruction::Tf32 => f.write_str("_tf32")?,
            Instruction::Cmma(sides) => write!(f, "_cmma{}", tile_name(&sides))?,
        }
        f.write_str(if self.holds_rows { "_held" } else { "" })?;
        f.write_str(match self.staging {
            Staging::Registers => "_registers",
            Staging::Async(_) => "_async",
        })?;
        f.write_str(match self.exponential {
            Exponential::Library => "_exp",
            Exponential::Instruction(_) => "_ex2",
        })?;
        f.write_str(&axes_suffix("causal", self.is_causal))?;
        f.write_str(if self.has_origin { "_origin" } else { "" })?;
        f.write_str(if self.has_additional { "_additional" } else { "" })?;
        f.write_str(if self.has_bias { "_bias" } else { "" })?;
        f.write_str(if self.is_packed { "_packed" } else { "" })?;
        if self.bias_sums > 0 { write!(f, "_sums{}", self.bias_sums) } else { Ok(()) }
    }
}
