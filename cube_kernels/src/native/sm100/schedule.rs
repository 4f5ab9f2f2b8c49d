use std::fmt;

use super::Architecture;
use crate::native::macros::{axes_bits, sides};
use crate::native::{Cut, Element};
use crate::problem::{NAMES, axes_suffix, flags_suffix, tile_name};
use crate::tiling::Tiling;
use crate::{MAX_RANK, Pass, Problem};

/// Rows of a tile, and columns of a block: the lanes of tensor memory.
pub(super) const TILE: usize = 128;
/// Shared memory that a CTA can have.
const SHARED_MEMORY: usize = 227 * 1024;
/// Columns of tensor memory, all of which a CTA takes.
pub(super) const TENSOR_MEMORY: usize = 512;

/// Longest vectors whose sums leave room for two tiles of queries, or for two gradients.
const NARROW: usize = 128;

/// Registers of a thread of the softmax and of the correction in the forward kernel; other warps have what these leave of 512, or in CTAs
/// of 384 threads of 504. With these no specialisation was seen to spill.
const SOFTMAX_REGISTERS: usize = 168;
const CORRECTION_REGISTERS: usize = 72;
/// The same for long vectors.
const WIDE_SOFTMAX_REGISTERS: usize = 200;
const WIDE_CORRECTION_REGISTERS: usize = 144;
/// Registers of a thread that computes weights and slopes.
const BACKWARD_REGISTERS: usize = 192;

/// What a kernel is specialised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// What it computes: the forward pass; the gradient of queries; those of keys and values.
    pub pass: Pass,
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
    /// Queries of a tile or, where they are columns, of a block, slowest axis first: 128.
    pub q_tile: [usize; MAX_RANK],
    /// Keys of a block or, where they are rows, of a tile: 128.
    pub kv_tile: [usize; MAX_RANK],
    /// Axis along which the two tiles of a CTA of the forward pass are stacked, and the slowest axis of the order in which blocks
    /// are visited.
    pub stack: usize,
    /// Keys or values in turn (forward), or steps, that shared memory holds; of long vectors, chunks of 64 elements.
    pub stages: usize,
}

impl Schedule {
    /// The schedule's tiles, as the cost model takes them.
    pub fn tiling(&self) -> Tiling {
        Tiling { q_tile: self.q_tile, kv_tile: self.kv_tile }
    }

    /// Rows of a tile along each axis.
    pub fn row_tile(&self) -> [usize; MAX_RANK] {
        if self.pass == Pass::Keys { self.kv_tile } else { self.q_tile }
    }

    /// Columns of a block along each axis.
    pub fn column_tile(&self) -> [usize; MAX_RANK] {
        if self.pass == Pass::Keys { self.q_tile } else { self.kv_tile }
    }

    /// Whether vectors are so long that one sum of them takes half of tensor memory.
    pub fn is_wide(&self) -> bool {
        self.head_dim.max(self.head_dim_v) > NARROW
    }

    /// Tiles of rows that a CTA works on at once.
    pub fn tiles(&self) -> usize {
        if self.pass == Pass::Forward && !self.is_wide() { 2 } else { 1 }
    }

    /// Rows of a CTA along each axis.
    pub fn cta_tile(&self) -> [usize; MAX_RANK] {
        let mut tile = self.row_tile();
        tile[self.stack] *= self.tiles();
        tile
    }

    /// Threads of a CTA.
    pub fn threads(&self) -> usize {
        if self.tiles() == 2 { 512 } else { 384 }
    }

    /// Columns of tensor memory that a CTA allocates.
    pub fn tensor_memory(&self) -> usize {
        TENSOR_MEMORY
    }

    /// Registers of a thread of the warps that have most.
    pub fn registers(&self) -> usize {
        match self.pass {
            Pass::Forward => self.forward_registers()[0],
            Pass::Queries | Pass::Keys => BACKWARD_REGISTERS,
        }
    }

    /// Of a thread of the softmax, and of the correction.
    fn forward_registers(&self) -> [usize; 2] {
        match self.is_wide() {
            true => [WIDE_SOFTMAX_REGISTERS, WIDE_CORRECTION_REGISTERS],
            false => [SOFTMAX_REGISTERS, CORRECTION_REGISTERS],
        }
    }

    /// The shape of a CTA and its pipeline in a few words.
    pub fn summary(&self) -> String {
        let Self { stages, .. } = self;
        let axis = ["slowest axis", "middle axis", "fastest axis"][self.stack];
        match self.pass {
            _ if self.is_wide() => {
                let [rows, columns] = match self.pass {
                    Pass::Keys => ["keys", "queries"],
                    Pass::Forward | Pass::Queries => ["queries", "keys"],
                };
                format!("{TILE} {rows}, {stages} x 64 elements of {TILE} {columns}")
            }
            Pass::Forward => {
                format!("2 x {TILE} queries along the {axis}, {stages} x {TILE} keys or values")
            }
            Pass::Queries => format!("{TILE} queries, {stages} x {TILE} keys"),
            Pass::Keys => format!("{TILE} keys, {stages} x {TILE} queries"),
        }
    }

    /// The tensors that it writes.
    pub fn writes(&self) -> &'static str {
        match self.pass {
            Pass::Forward => "out, lse",
            Pass::Queries => "dq",
            Pass::Keys => "dk, dv",
        }
    }

    /// Multiply-adds of the tensor cores for a score: vectors are padded.
    pub fn multiply_adds(&self) -> usize {
        let [dim, dim_v] = [self.head_dim, self.head_dim_v].map(|dim| dim.next_multiple_of(16));
        let [width, width_v] = [self.head_dim, self.head_dim_v].map(|dim| dim.next_multiple_of(32));
        match self.pass {
            // Scores are made twice.
            Pass::Keys if self.is_wide() => 2 * dim + dim_v + width + width_v,
            Pass::Forward => dim + width_v,
            Pass::Queries => dim + dim_v + width,
            Pass::Keys => dim + dim_v + width + width_v,
        }
    }

    /// Bytes of shared memory with `stages` in flight, as the kernels lay it out.
    fn shared_memory_with(&self, stages: usize) -> usize {
        let bytes = |dim: usize| dim.div_ceil(64) * TILE * 128;
        let (first, second) = (bytes(self.head_dim), bytes(self.head_dim_v));
        // Two tiles that CTAs work on, and barriers.
        let roles = |barriers: usize| 2 * 256 + 8 * (barriers + 2 * stages);
        let line = size_of::<f32>() * TILE;
        let chunks = stages * TILE * 128;
        match self.pass {
            Pass::Forward if self.is_wide() => first + chunks + 5 * line + roles(18),
            Pass::Queries if self.is_wide() => first + second + chunks + roles(16),
            Pass::Keys if self.is_wide() => first + second + chunks + 4 * line + roles(16),
            Pass::Forward => 2 * first + stages * first.max(second) + 10 * line + roles(24),
            Pass::Queries => (1 + stages) * (first + second) + roles(14),
            Pass::Keys => (1 + stages) * (first + second) + stages * 4 * line + roles(14),
        }
    }

    /// Bytes of shared memory.
    pub fn shared_memory(&self) -> usize {
        self.shared_memory_with(self.stages)
    }

    /// The same with as many stages as fit, up to eight boxes of keys or values. With fewer than two steps nothing would run.
    pub(super) fn with_stages(mut self) -> Self {
        let (least, most) = match self.pass {
            _ if self.is_wide() => (4, 12),
            Pass::Forward => (3, 8),
            Pass::Queries | Pass::Keys => (2, 4),
        };
        let fits = |stages: &usize| self.shared_memory_with(*stages) <= SHARED_MEMORY;
        self.stages = (least..=most).rev().find(fits).unwrap_or(least);
        self
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
            ctas: 1,
            swizzle: 128,
            teams: 1,
            samples_first: false,
            splits: 1,
            threads: self.threads(),
            shared_memory: self.shared_memory(),
        }
    }

    /// The macros that the source is specialised by.
    pub fn macros(&self, architecture: Architecture) -> Vec<(&'static str, usize)> {
        let is_bf16 = self.element == Element::Bf16;
        let mut macros = vec![
            ("BF16", usize::from(is_bf16)),
            ("DIM", self.head_dim),
            ("DIM_V", self.head_dim_v),
            ("RANK", self.rank),
            ("CAUSAL", axes_bits(self.is_causal)),
            ("STRIDED", usize::from(self.is_strided)),
            ("DILATED", usize::from(self.is_dilated)),
            ("ORIGIN", usize::from(self.has_origin)),
            ("ADDITIONAL", usize::from(self.has_additional)),
            // The kernels know no bias; what they share with others does.
            ("BIAS", 0),
        ];
        macros.extend(sides(None, self.row_tile(), self.column_tile()));
        macros.extend([
            ("STACK", self.stack),
            ("WARPGROUPS", self.tiles()),
            ("BLOCKS", 1),
            ("INVERSE", usize::from(self.pass == Pass::Keys)),
            ("STAGES", self.stages),
            ("SHARED_MEMORY", self.shared_memory()),
        ]);
        match self.pass {
            Pass::Forward => macros.extend([
                // Their error disappears in the rounding of bf16, not in that of f16.
                ("EMULATE", if is_bf16 { architecture.polynomials() } else { 0 }),
                ("SOFTMAX_REGISTERS", self.forward_registers()[0]),
                ("CORRECTION_REGISTERS", self.forward_registers()[1]),
            ]),
            Pass::Queries | Pass::Keys => macros.extend([
                ("FIRST_START", 0),
                ("FIRST_DIM", self.head_dim),
                ("WITH_FIRST", 1),
                ("WITH_SECOND", usize::from(self.pass == Pass::Keys)),
                ("COMPUTE_REGISTERS", BACKWARD_REGISTERS),
            ]),
        }
        macros
    }

    /// Whether the schedule is one for `problem`: shapes and flags fit.
    pub fn fits(&self, problem: &Problem) -> bool {
        self.head_dim == problem.head_dim
            && self.head_dim_v == problem.head_dim_v
            && self.rank == problem.rank()
            && self.has_additional == (problem.additional > 0 && self.pass != Pass::Keys)
            && problem.axes.iter().zip(self.is_causal).all(|(axis, bit)| axis.is_causal == bit)
            && (self.is_strided || problem.axes.iter().all(|axis| axis.stride == 1))
            && (self.is_dilated || problem.axes.iter().all(|axis| axis.dilation == 1))
            && (self.has_origin || !problem.has_origin())
            && !problem.has_bias
    }
}

/// The name of the specialisation, and a key for it.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = MAX_RANK - self.rank;
        write!(f, "sm100_{}_{}_d{}", self.pass.name(), self.element.name(), self.head_dim)?;
        if self.head_dim_v != self.head_dim {
            write!(f, "v{}", self.head_dim_v)?;
        }
        write!(f, "_q{}_k{}", tile_name(&self.q_tile[first..]), tile_name(&self.kv_tile[first..]))?;
        write!(f, "_{}s_{}", self.stages, NAMES[self.stack])?;
        f.write_str(&axes_suffix("causal", self.is_causal))?;
        f.write_str(&flags_suffix([
            (self.is_strided, "_strided"),
            (self.is_dilated, "_dilated"),
            (self.has_origin, "_origin"),
            (self.has_additional, "_additional"),
        ]))
    }
}
