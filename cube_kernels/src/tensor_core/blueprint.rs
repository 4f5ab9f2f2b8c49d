//! What a kernel is specialised by.

use std::fmt;

use crate::tiling::Tiling;
use crate::{MAX_RANK, Problem};

/// Rows of the matrix that one instruction multiplies.
pub(super) const ROWS: usize = 16;
/// Columns of its result.
pub(super) const COLUMNS: usize = 8;
/// Elements that it sums over.
pub(super) const DEPTH: usize = 16;
/// Units of a plane.
pub(super) const PLANE: usize = 32;
/// Elements, 16 bytes of them, between the end of a row in shared memory and the next one. Rows are an
/// even number of such pieces long, so that with one more, eight rows read at once lie in different
/// banks.
pub(super) const PADDING: usize = 8;

/// How tiles get from global into shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Staging {
    /// Through registers: loads are issued before a product, and stored behind it.
    Registers,
    /// By asynchronous copies, which take no registers.
    Async,
}

/// How exponentials are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exponential {
    /// By the runtime's own `exp`, about eight instructions on NVIDIA GPUs.
    Library,
    /// By the instruction for powers of two, in inline assembly.
    Instruction,
}

impl Exponential {
    /// The factor that makes an argument of a difference of scores.
    pub(super) fn factor(self, scale: f64) -> f32 {
        match self {
            Self::Library => scale as f32,
            Self::Instruction => (scale * std::f64::consts::LOG2_E) as f32,
        }
    }
}

/// Compile-time parameters of a forward kernel. Lengths of axes are none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blueprint {
    /// Number of axes, 1 to 3.
    pub rank: usize,
    /// Which axes are causal, slowest first.
    pub is_causal: [bool; MAX_RANK],
    /// Queries of a cube along each axis; powers of two.
    pub q_tile: [usize; MAX_RANK],
    /// Keys of a step along each axis; powers of two.
    pub kv_tile: [usize; MAX_RANK],
    /// Planes of a cube. Each owns `16 * blocks` queries.
    pub planes: usize,
    /// Matrices of 16 queries that a plane multiplies with each piece of the keys.
    pub blocks: usize,
    /// Length of a query or key vector.
    pub head_dim: usize,
    /// Length of a value vector.
    pub head_dim_v: usize,
    /// Elements of a load: divides both lengths.
    pub vector: usize,
    /// Whether the queries' fragments stay in registers.
    pub holds_queries: bool,
    /// How tiles reach shared memory.
    pub staging: Staging,
    /// How exponentials are computed.
    pub exponential: Exponential,
    /// Whether there is any key beside the additional ones.
    pub has_keys: bool,
    /// Whether there are additional keys.
    pub has_additional: bool,
}

impl Blueprint {
    /// The tiles, as the cost model takes them.
    pub fn tiling(&self) -> Tiling {
        Tiling { q_tile: self.q_tile, kv_tile: self.kv_tile }
    }

    /// Queries of a cube.
    pub fn rows(&self) -> usize {
        self.q_tile.iter().product()
    }

    /// Keys of a step.
    pub fn columns(&self) -> usize {
        self.kv_tile.iter().product()
    }

    /// Units of a cube.
    pub fn units(&self) -> usize {
        self.planes * PLANE
    }

    /// The shape of a cube and its steps in a few words.
    pub fn summary(&self) -> String {
        format!(
            "{} planes of {} queries, {} keys a step",
            self.planes,
            self.blocks * ROWS,
            self.columns()
        )
    }

    /// Length of a query or key vector in whole matrices.
    pub(super) fn dim(&self) -> usize {
        self.head_dim.next_multiple_of(DEPTH)
    }

    /// Length of a value vector in whole pairs of matrices.
    pub(super) fn dim_v(&self) -> usize {
        self.head_dim_v.next_multiple_of(DEPTH)
    }

    /// Vectors between two rows of queries or keys in shared memory.
    pub(super) fn pitch(&self) -> usize {
        (self.dim() + PADDING) / self.vector
    }

    /// Vectors between two rows of values in shared memory.
    pub(super) fn pitch_v(&self) -> usize {
        (self.dim_v() + PADDING) / self.vector
    }

    /// Elements of a vector of the output.
    pub(super) fn vector_out(&self) -> usize {
        self.vector.min(2)
    }

    /// Bytes of shared memory: queries, keys and values of a step, the rows' windows.
    pub fn shared_memory(&self) -> usize {
        let key = (self.dim() + PADDING) * 2;
        let value = (self.dim_v() + PADDING) * 2;
        let windows = if self.has_keys { 2 * MAX_RANK * size_of::<u32>() } else { 0 };
        self.rows() * (key + windows) + self.columns() * (key + value)
    }

    /// Whether the blueprint is one for `problem`: shapes and flags fit.
    pub fn fits(&self, problem: &Problem) -> bool {
        self.head_dim == problem.head_dim
            && self.head_dim_v == problem.head_dim_v
            && self.rank >= problem.rank()
            && self.has_keys == (problem.keys() > 0)
            && self.has_additional == (problem.additional > 0)
            && problem.axes.iter().zip(self.is_causal).all(|(axis, bit)| axis.is_causal == bit)
    }
}

/// The name of the specialisation.
impl fmt::Display for Blueprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape =
            |tile: &[usize]| tile.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
        let first = MAX_RANK - self.rank;
        write!(f, "forward_d{}", self.head_dim)?;
        if self.head_dim_v != self.head_dim {
            write!(f, "v{}", self.head_dim_v)?;
        }
        write!(f, "_q{}_k{}", shape(&self.q_tile[first..]), shape(&self.kv_tile[first..]))?;
        write!(f, "_{}p{}b", self.planes, self.blocks)?;
        f.write_str(if self.holds_queries { "_held" } else { "" })?;
        f.write_str(match self.staging {
            Staging::Registers => "_registers",
            Staging::Async => "_async",
        })?;
        f.write_str(match self.exponential {
            Exponential::Library => "_exp",
            Exponential::Instruction => "_ex2",
        })?;
        let causal = self.is_causal.iter().zip(["x", "y", "z"]).filter(|(bit, _)| **bit);
        let causal: String = causal.map(|(_, name)| name).collect();
        if !causal.is_empty() {
            write!(f, "_causal_{causal}")?;
        }
        f.write_str(if self.has_additional { "_additional" } else { "" })
    }
}
