//! What a tiled kernel is specialised by.

use std::fmt;

use crate::problem::{axes_suffix, tile_name};
use crate::tensor_core::Pass;
use crate::tiling::Tiling;
use crate::{MAX_RANK, Problem};

/// Weights that are read from shared memory at once.
pub(super) const WEIGHTS: usize = 4;

/// Compile-time parameters of a tiled kernel. Lengths of axes are none of them.
///
/// The units of a cube form a grid, `across` by `down`. A unit computes the scores of `rows_each` rows and
/// `columns_each` columns, and of the sums the same rows and every `across`th line of the vectors.
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
    /// Units that share a row.
    pub across: usize,
    /// Units that share a column.
    pub down: usize,
    /// Rows of a unit.
    pub rows_each: usize,
    /// Columns of a unit, 4 or 8; they are neighbors along the fastest axis.
    pub columns_each: usize,
    /// Length of a query or key vector.
    pub head_dim: usize,
    /// Length of a value vector.
    pub head_dim_v: usize,
    /// Elements of a line: divides both lengths.
    pub vector: usize,
    /// Lines of a column that are in shared memory at once.
    pub depth: usize,
    /// Whether the rows stay in shared memory. If not, they pass through it with the columns.
    pub holds_rows: bool,
    /// Whether there are additional keys.
    pub has_additional: bool,
    /// Whether there is a relative position bias.
    pub has_bias: bool,
    /// Whether it goes through the sequences of a packed batch, each a problem of its own.
    pub is_packed: bool,
}

/// Vectors of rows and of columns that are multiplied with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Operand {
    /// Lines of a vector.
    pub lines: usize,
    /// Lines that are in shared memory at once.
    pub depth: usize,
}

impl Operand {
    /// Number of pieces in which columns pass through shared memory.
    pub fn pieces(&self) -> usize {
        self.lines.div_ceil(self.depth)
    }

    /// Lines of a piece.
    pub fn piece(&self, number: usize) -> usize {
        self.depth.min(self.lines - number * self.depth)
    }
}

/// Lines between neighbors in shared memory: odd, so that units that read neighbors at once find them in
/// different banks.
fn pitch(lines: usize) -> usize {
    lines | 1
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
        self.down * self.rows_each
    }

    /// Columns of a step.
    pub fn columns(&self) -> usize {
        self.across * self.columns_each
    }

    /// Units of a cube.
    pub fn units(&self) -> usize {
        self.across * self.down
    }

    /// Queries and keys.
    pub(super) fn first(&self) -> Operand {
        self.operand(self.head_dim)
    }

    /// Values and the output's gradient.
    pub(super) fn second(&self) -> Operand {
        self.operand(self.head_dim_v)
    }

    fn operand(&self, dim: usize) -> Operand {
        let lines = dim / self.vector;
        Operand { lines, depth: self.depth.min(lines) }
    }

    /// Lines of sums that a unit holds of each row, of one operand.
    pub(super) fn lines_each(&self, operand: Operand) -> usize {
        (0..operand.pieces()).map(|piece| operand.piece(piece).div_ceil(self.across)).sum()
    }

    /// Lines of sums of a unit before those of a piece.
    pub(super) fn lines_before(&self, operand: Operand, piece: usize) -> usize {
        (0..piece).map(|piece| operand.piece(piece).div_ceil(self.across)).sum()
    }

    /// Lines between two columns in shared memory.
    pub(super) fn column_pitch(&self) -> usize {
        pitch(self.first().depth.max(self.second().depth))
    }

    /// Lines between two rows in shared memory.
    pub(super) fn row_pitch(&self, operand: Operand) -> usize {
        if self.holds_rows { pitch(operand.lines) } else { self.column_pitch() }
    }

    /// Lines of the rows' first vectors, or of a piece of either.
    pub(super) fn first_rows(&self) -> usize {
        self.rows() * self.row_pitch(self.first())
    }

    /// Lines of the rows' second vectors.
    pub(super) fn second_rows(&self) -> usize {
        let is_held = self.holds_rows && self.pass != Pass::Forward;
        if is_held { self.rows() * self.row_pitch(self.second()) } else { 1 }
    }

    /// Vectors of weights between two rows in shared memory.
    pub(super) fn weight_pitch(&self) -> usize {
        pitch(self.columns() / WEIGHTS)
    }

    /// What a row's units tell each other, between two rows.
    pub(super) fn partial_pitch(&self) -> usize {
        pitch(self.across)
    }

    /// Numbers that the units of all rows tell each other.
    pub(super) fn partials(&self) -> usize {
        if self.pass == Pass::Forward { self.rows() * self.partial_pitch() } else { 1 }
    }

    /// Words of a row's window.
    pub(super) fn window_words(&self) -> usize {
        2 * self.rank
    }

    /// Bytes of shared memory.
    pub fn shared_memory(&self) -> usize {
        let lines = self.first_rows() + self.second_rows() + self.columns() * self.column_pitch();
        let weights = self.rows() * self.weight_pitch() * WEIGHTS;
        let maxima = if self.pass == Pass::Forward { self.rows() } else { 1 };
        let windows = self.rows() * self.window_words();
        4 * (lines * self.vector + weights + self.partials() + maxima + windows)
    }

    /// `f32` registers that a unit needs at least: scores, sums and what it multiplies.
    pub fn registers(&self) -> usize {
        let scores = self.rows_each * self.columns_each;
        let lines = |operand| self.rows_each * self.vector * self.lines_each(operand);
        let fragments = (self.rows_each + 1) * self.vector.max(WEIGHTS);
        let (first, second) = (lines(self.first()), lines(self.second()));
        fragments
            + match self.pass {
                Pass::Forward => scores + second + 2 * self.rows_each,
                Pass::Queries => 2 * scores + first + 2 * self.rows_each,
                Pass::Keys => 2 * scores + first + second,
            }
    }

    /// The shape of a cube and its steps in a few words.
    pub fn summary(&self) -> String {
        let (rows, columns) = match self.pass {
            Pass::Forward | Pass::Queries => ("queries", "keys"),
            Pass::Keys => ("keys", "queries"),
        };
        format!(
            "{} units of {} {rows} and {} {columns}",
            self.units(),
            self.rows_each,
            self.columns_each
        )
    }

    /// Whether the blueprint is one for `problem`: shapes and flags fit.
    pub fn fits(&self, problem: &Problem) -> bool {
        self.head_dim == problem.head_dim
            && self.head_dim_v == problem.head_dim_v
            && self.rank >= problem.rank()
            && self.has_additional == (problem.additional > 0 && self.pass != Pass::Keys)
            && problem.axes.iter().zip(self.is_causal).all(|(axis, bit)| axis.is_causal == bit)
            && (self.has_origin || !problem.has_origin())
            && self.has_bias == problem.has_bias
            && !self.is_packed
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
        write!(f, "_{}x{}", self.down, self.across)?;
        write!(f, "_of_{}x{}", self.rows_each, self.columns_each)?;
        write!(f, "_depth{}", self.depth * self.vector)?;
        f.write_str(if self.holds_rows { "_held" } else { "" })?;
        f.write_str(&axes_suffix("causal", self.is_causal))?;
        f.write_str(if self.has_origin { "_origin" } else { "" })?;
        f.write_str(if self.has_additional { "_additional" } else { "" })?;
        f.write_str(if self.has_bias { "_bias" } else { "" })?;
        f.write_str(if self.is_packed { "_packed" } else { "" })
    }
}
