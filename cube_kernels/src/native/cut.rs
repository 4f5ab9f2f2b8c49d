use crate::native::Element;
use crate::{Axis, MAX_RANK, Pass};

/// The largest element stride of TMA.
pub(crate) const MAX_STEP: usize = 8;

/// How a schedule of any architecture cuts a problem: what launches and tensor maps have to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// What it computes.
    pub pass: Pass,
    /// Element type of all tensors but the logsumexp.
    pub element: Element,
    /// Queries of a box, slowest axis first.
    pub q_tile: [usize; MAX_RANK],
    /// Keys of a box.
    pub kv_tile: [usize; MAX_RANK],
    /// Rows of a CTA.
    pub cta_tile: [usize; MAX_RANK],
    /// The slowest axis of the order in which tiles and blocks are visited.
    pub stack: usize,
    /// CTAs that a multiprocessor runs at once.
    pub ctas: usize,
    /// Pipelines of a CTA, each with tiles of its own.
    pub teams: usize,
    /// Bytes of a row of shared memory, of which vectors take as many as they need: what TMA swizzles.
    pub swizzle: usize,
    /// Whether tiles of all samples that lie alike follow each other, a head after the other.
    pub samples_first: bool,
    /// CTAs that share the heads of a group, where rows are keys: each sums what its own heads contribute, in single precision.
    pub splits: usize,
    /// Threads of a CTA.
    pub threads: usize,
    /// Bytes of shared memory of a CTA.
    pub shared_memory: usize,
}

impl Cut {
    /// Columns of a box.
    pub fn column_tile(&self) -> [usize; MAX_RANK] {
        if self.pass == Pass::Keys { self.q_tile } else { self.kv_tile }
    }

    /// Whether the dilation of an axis is one of TMA's element strides, so that all its groups are
    /// one launch. Otherwise every group is a launch of its own.
    pub fn dilates_in_kernel(&self, axis: &Axis, index: usize) -> bool {
        let extent = self.q_tile[index].max(self.kv_tile[index]);
        axis.dilation <= MAX_STEP && extent * axis.dilation <= 256
    }
}
