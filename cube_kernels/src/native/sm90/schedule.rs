use std::fmt;

use crate::tiling::Tiling;
use crate::{Axis, MAX_RANK, Problem};

/// An element type of the tensor cores that the kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl Element {
    /// The name that PTX has for it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

/// How keys outside a row's window are kept out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mask {
    /// Not at all: every query of a warpgroup sees every key of each block that it visits.
    None,
    /// By comparing positions, in blocks that are not visible whole. One axis.
    Linear,
    /// By a product of one-hot coordinates on the tensor cores. Two and three axes.
    OneHot,
}

/// Queries of a warpgroup's tile, and keys of a block.
pub(super) const TILE: usize = 64;
/// The largest element stride of TMA.
pub(super) const MAX_STEP: usize = 8;
/// Shared memory that a CTA can have.
const SHARED_MEMORY: usize = 227 * 1024;
/// Shared memory of a multiprocessor, of which every CTA takes [`RESERVED`] besides its own.
const SHARED_MEMORY_OF_SM: usize = 228 * 1024;
const RESERVED: usize = 1024;

/// What the forward kernel is specialised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
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
    /// Whether some axis has a stride.
    pub is_strided: bool,
    /// Whether some axis has a dilation.
    pub is_dilated: bool,
    /// Whether there are additional tokens.
    pub has_additional: bool,
    /// Queries of one warpgroup, slowest axis first: 64.
    pub q_tile: [usize; MAX_RANK],
    /// Keys of a block: 64.
    pub kv_tile: [usize; MAX_RANK],
    /// Axis along which the tiles of a CTA's warpgroups are stacked, and the slowest axis of the
    /// order in which blocks are visited.
    pub stack: usize,
    /// Warpgroups that compute.
    pub warpgroups: usize,
    /// Blocks of a step of the pipeline: 1 or 2.
    pub blocks: usize,
    /// Steps that shared memory holds.
    pub stages: usize,
    /// CTAs that a multiprocessor runs at once.
    pub ctas: usize,
    /// How windows are enforced.
    pub mask: Mask,
}

impl Schedule {
    /// The schedule's tiles, as the cost model takes them.
    pub fn tiling(&self) -> Tiling {
        Tiling { q_tile: self.q_tile, kv_tile: self.kv_tile }
    }

    /// Queries of a CTA along each axis.
    pub fn cta_tile(&self) -> [usize; MAX_RANK] {
        let mut tile = self.q_tile;
        tile[self.stack] *= self.warpgroups;
        tile
    }

    /// Threads of a CTA.
    pub fn threads(&self) -> usize {
        128 * (self.warpgroups + 1)
    }

    /// Whether query fragments stay in registers for a whole tile.
    pub fn query_in_registers(&self) -> bool {
        self.head_dim <= 128 && self.head_dim_v <= 128 && self.warpgroups < 3
    }

    /// Registers of a thread of the producer, and of a consumer. All of a CTA's threads start with
    /// what the register file gives to `ctas` CTAs; the producer hands over what it does not need.
    pub fn registers(&self) -> (usize, usize) {
        let at_launch = (65536 / (self.ctas * self.threads()) / 8 * 8).min(232);
        let producer = 24;
        let consumer = (at_launch * (self.warpgroups + 1) - producer) / self.warpgroups / 8 * 8;
        (producer, consumer.min(240))
    }

    /// The shape of a CTA and its pipeline in a few words.
    pub fn summary(&self) -> String {
        let mask = match self.mask {
            Mask::None => "no mask",
            Mask::Linear => "masks by position",
            Mask::OneHot => "one-hot masks",
        };
        let Self { warpgroups, blocks, stages, ctas, .. } = self;
        let axis = ["slowest axis", "middle axis", "fastest axis"][self.stack];
        let keys = blocks * TILE;
        format!("{ctas} x {warpgroups} warpgroups along the {axis}, {stages} x {keys} keys, {mask}")
    }

    fn chunks(dim: usize) -> usize {
        dim.div_ceil(64)
    }

    /// Bytes of shared memory with `stages` steps in flight.
    fn shared_memory_with(&self, stages: usize) -> usize {
        let (key, value) = (Self::chunks(self.head_dim), Self::chunks(self.head_dim_v));
        let query = self.warpgroups * key * TILE * 128;
        let step = self.blocks * (key + value) * TILE * 128;
        let one_hot = if self.mask == Mask::OneHot { self.blocks * TILE * 32 } else { 0 };
        let tile = 128;
        query + stages * step + one_hot + tile + 8 * (4 * stages + 2)
    }

    /// Bytes of shared memory.
    pub fn shared_memory(&self) -> usize {
        self.shared_memory_with(self.stages)
    }

    /// The same with as many stages as fit, up to four; `None` if not even two do.
    pub(super) fn with_stages(mut self) -> Option<Self> {
        let room = (SHARED_MEMORY_OF_SM / self.ctas - RESERVED).min(SHARED_MEMORY);
        let fits = |stages: &usize| self.shared_memory_with(*stages) <= room;
        self.stages = (2..=4).rev().find(fits)?;
        Some(self)
    }

    /// Whether the dilation of an axis is one of TMA's element strides, so that all its groups are
    /// one launch. Otherwise every group is a launch of its own.
    pub fn dilates_in_kernel(&self, axis: &Axis, index: usize) -> bool {
        let extent = self.q_tile[index].max(self.kv_tile[index]);
        axis.dilation <= MAX_STEP && extent * axis.dilation <= 256
    }

    /// The macros that the source is specialised by.
    pub fn macros(&self) -> Vec<(&'static str, usize)> {
        let bits = self.is_causal.iter().enumerate().map(|(axis, bit)| usize::from(*bit) << axis);
        let (producer, consumer) = self.registers();
        let [qx, qy, qz] = self.q_tile;
        let [kx, ky, kz] = self.kv_tile;
        vec![
            ("BF16", usize::from(self.element == Element::Bf16)),
            ("DIM", self.head_dim),
            ("DIM_V", self.head_dim_v),
            ("RANK", self.rank),
            ("CAUSAL", bits.sum()),
            ("STRIDED", usize::from(self.is_strided)),
            ("DILATED", usize::from(self.is_dilated)),
            ("ADDITIONAL", usize::from(self.has_additional)),
            ("QX", qx),
            ("QY", qy),
            ("QZ", qz),
            ("KX", kx),
            ("KY", ky),
            ("KZ", kz),
            ("STACK", self.stack),
            ("WARPGROUPS", self.warpgroups),
            ("BLOCKS", self.blocks),
            ("STAGES", self.stages),
            ("CTAS", self.ctas),
            ("MASK", self.mask as usize),
            ("Q_IN_REGISTERS", usize::from(self.query_in_registers())),
            ("PINGPONG", usize::from(self.warpgroups > 1)),
            ("PRODUCER_REGISTERS", producer),
            ("CONSUMER_REGISTERS", consumer),
        ]
    }

    /// Whether the schedule is one for `problem`: shapes and flags fit.
    pub fn fits(&self, problem: &Problem) -> bool {
        self.head_dim == problem.head_dim
            && self.head_dim_v == problem.head_dim_v
            && self.rank == rank(problem)
            && self.has_additional == (problem.additional > 0)
            && problem.axes.iter().zip(self.is_causal).all(|(axis, bit)| axis.is_causal == bit)
            && (self.is_strided || problem.axes.iter().all(|axis| axis.stride == 1))
            && (self.is_dilated || problem.axes.iter().all(|axis| axis.dilation == 1))
    }
}

/// Axes that are not padding, at least one.
pub(super) fn rank(problem: &Problem) -> usize {
    let padding = problem.axes.iter().take_while(|axis| **axis == Axis::UNIT).count();
    MAX_RANK - padding.min(MAX_RANK - 1)
}

/// The name of the specialisation, and a key for it.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape =
            |tile: &[usize]| tile.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
        let first = MAX_RANK - self.rank;
        write!(f, "sm90_forward_{}_d{}", self.element.name(), self.head_dim)?;
        if self.head_dim_v != self.head_dim {
            write!(f, "v{}", self.head_dim_v)?;
        }
        write!(f, "_q{}_k{}", shape(&self.q_tile[first..]), shape(&self.kv_tile[first..]))?;
        write!(f, "_{}w{}b{}s{}c", self.warpgroups, self.blocks, self.stages, self.ctas)?;
        write!(f, "_{}", ["x", "y", "z"][self.stack])?;
        f.write_str(match self.mask {
            Mask::None => "_whole",
            Mask::Linear => "_linear",
            Mask::OneHot => "_onehot",
        })?;
        let causal = self.is_causal.iter().zip(["x", "y", "z"]).filter(|(bit, _)| **bit);
        let causal: String = causal.map(|(_, name)| name).collect();
        if !causal.is_empty() {
            write!(f, "_causal_{causal}")?;
        }
        for (flag, name) in [
            (self.is_strided, "_strided"),
            (self.is_dilated, "_dilated"),
            (self.has_additional, "_additional"),
        ] {
            f.write_str(if flag { name } else { "" })?;
        }
        Ok(())
    }
}
