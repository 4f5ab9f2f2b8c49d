//! What a launch needs besides its buffers: vector and slice sizes, grid, addressing, checks.

use cubecl::client::Client;
use cubecl::ir::{AddressType, ElemType};
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::geometry::window_run;
use super::rows::Slicing;
use crate::cube::{Cut, addresses, check_type, grid_of_units, sequences_of_rows, table};
use crate::slicing::vector_size;
use crate::tensor_core::All;
use crate::{KernelError, KeyValue, MAX_RANK, Packed, Problem};

/// Most rows that are taken at once.
const MAX_BLOCK: usize = 8;

/// Buffers that a kernel binds at most: five of queries and tokens, bias, table of sequences, and two results. WebGPU promises 8,
/// of which CubeCL takes one for sizes; devices have more.
const BUFFERS: u32 = 9;

/// Compile-time parameters of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RowPlan {
    /// Query and key rows.
    pub key: Slicing,
    /// Value and output rows.
    pub value: Slicing,
    /// Rows taken at once.
    pub block: usize,
    /// Whether there is any key beside the additional ones.
    pub has_keys: bool,
    /// Whether there are additional keys.
    pub has_additional: bool,
    /// Whether queries may stand elsewhere than keys of the same number, and see nothing.
    pub has_origin: bool,
    /// Whether only those slices are computed that are there already but not finite.
    pub repairs: bool,
    /// Elements of a line.
    pub vector: usize,
    /// How sequences of a packed batch are found, where there are some.
    pub sequences: Option<Cut>,
}

impl RowPlan {
    /// The plan for slices that are there already but not finite, if `repairs`.
    pub fn repairing(self, repairs: bool) -> Self {
        Self { repairs, ..self }
    }
}

/// A problem on a device.
pub(crate) struct Launch<'a> {
    pub client: &'a Client,
    pub problem: &'a Problem,
    pub dtype: ElemType,
    pub vector_size: usize,
    pub address_type: AddressType,
    /// The sequences of a packed batch, of which `problem` is the line.
    pub packed: Option<(&'a Packed, All)>,
}

impl<'a> Launch<'a> {
    /// Fails if the device lacks the element type or 64-bit indices that the problem needs, or room for the buffers.
    pub fn new(
        client: &'a Client,
        problem: &'a Problem,
        dtype: ElemType,
    ) -> Result<Self, KernelError> {
        check_type(client, dtype)?;
        if client.properties().hardware.max_bindings < BUFFERS {
            return Err(KernelError::Device("room for 9 buffers in a kernel"));
        }
        let vector_size = vector_size(problem);
        let address_type = addresses(client, problem.largest_tensor())?;
        Ok(Self { client, problem, dtype, vector_size, address_type, packed: None })
    }

    /// For all sequences of a packed batch.
    pub fn packed(
        client: &'a Client,
        packed: &'a Packed,
        dtype: ElemType,
    ) -> Result<Self, KernelError> {
        let line = packed.line();
        // Of rows, tiles and tokens, none of which are more; some dilation groups have a tile less.
        let most = 2 * line.queries().max(line.keys()) * line.heads;
        if u32::try_from(most).is_err() {
            let text = format!("the sequences may have {most} cubes, more than {}", u32::MAX);
            return Err(KernelError::Problem(text));
        }
        let launch = Self::new(client, line, dtype)?;
        Ok(Self { packed: Some((packed, All::of(packed))), ..launch })
    }

    /// Whether every query sees every key, so that what is not finite reaches every row in any case.
    pub fn is_full(&self) -> bool {
        self.packed.is_none() && self.problem.is_full()
    }

    /// How rows, keys or queries, find their sequence.
    fn cut(&self, is_inverse: bool) -> Option<Cut> {
        let (packed, all) = self.packed?;
        let (row_tile, column_tile) = ([1; MAX_RANK], [1; MAX_RANK]);
        let is_causal = all.like.axes.map(|axis| axis.is_causal);
        let (rank, has_origin) = (packed.rank(), all.has_origin);
        Some(Cut { rank, is_causal, has_origin, row_tile, column_tile, is_inverse })
    }

    /// The table in which they find it, for kernels with such a plan.
    pub(super) fn sequences(&self, plan: &RowPlan) -> Option<Handle> {
        let ((packed, _), cut) = (self.packed?, plan.sequences?);
        Some(table(self.client, sequences_of_rows(packed, &cut)))
    }

    pub fn query_rows(&self) -> usize {
        self.problem.batch * self.problem.queries() * self.problem.heads
    }

    pub fn key_rows(&self) -> usize {
        self.problem.batch * self.problem.keys() * self.problem.heads_kv
    }

    pub fn additional_rows(&self) -> usize {
        self.problem.batch * self.problem.additional * self.problem.heads_kv
    }

    /// Where the bias begins in the workspace of the backward pass, behind the two numbers of each query row; `None`
    /// where no score has one.
    pub fn bias_at(&self) -> Option<usize> {
        let has_scores = self.query_rows() > 0 && self.key_rows() > 0;
        (self.problem.has_bias && has_scores).then(|| 2 * self.query_rows())
    }

    /// For kernels that sum value rows, of which a unit holds `lines`.
    pub(super) fn value_plan(&self, lines: usize) -> RowPlan {
        self.plan(1, self.value_lines().div_ceil(lines), false)
    }

    /// For kernels that sum key rows, of which a unit holds `lines`.
    pub(super) fn key_plan(&self, lines: usize) -> RowPlan {
        self.plan(self.key_lines().div_ceil(lines), 1, false)
    }

    /// For kernels that sum both, in slices of one number, of which a unit holds `lines` of each.
    pub(super) fn gather_plan(&self, lines: usize) -> RowPlan {
        let slices = self.key_lines().max(self.value_lines()).div_ceil(lines);
        self.plan(slices, slices, true)
    }

    fn key_lines(&self) -> usize {
        self.problem.head_dim / self.vector_size
    }

    fn value_lines(&self) -> usize {
        self.problem.head_dim_v / self.vector_size
    }

    fn plan(&self, key_slices: usize, value_slices: usize, is_inverse: bool) -> RowPlan {
        let (run, has_origin) = match self.packed {
            // As many as are taken at once is enough to know of a long one.
            Some((_, all)) => (all.like.axes[MAX_RANK - 1].kernel_size.min(64), all.has_origin),
            None => (window_run(self.problem), self.problem.has_origin()),
        };
        RowPlan {
            key: Slicing::new(self.key_lines(), key_slices),
            value: Slicing::new(self.value_lines(), value_slices),
            block: block_size(run),
            has_keys: self.key_rows() > 0,
            has_additional: self.problem.additional > 0,
            has_origin,
            repairs: false,
            vector: self.vector_size,
            sequences: self.cut(is_inverse),
        }
    }

    /// The grid for at least `units` units.
    pub fn cubes(&self, units: usize) -> (CubeCount, CubeDim) {
        grid_of_units(self.client, units)
    }

    /// Buffers with one row per key, or `other` in their place where there is no key: empty
    /// buffers cannot be bound.
    pub fn keys_or<'b>(&self, other: &'b Handle, keys: [&'b Handle; 2]) -> [&'b Handle; 2] {
        if self.key_rows() > 0 { keys } else { [other; 2] }
    }

    /// Buffers with one row per query, or `other` in their place where there is no query.
    pub fn queries_or<'b>(&self, other: &'b Handle, queries: [&'b Handle; 2]) -> [&'b Handle; 2] {
        if self.query_rows() > 0 { queries } else { [other; 2] }
    }
}

/// The additional keys and values, or `other` in their place where there are none.
pub(super) fn additional_or<'a>(
    other: &'a Handle,
    additional: Option<&'a KeyValue<Handle>>,
) -> [&'a Handle; 2] {
    additional.map_or([other; 2], |tokens| [&tokens.key, &tokens.value])
}

/// Rows to take at once from runs of mostly `run` rows: as many as leave the fewest to be taken one
/// by one.
pub(crate) fn block_size(run: usize) -> usize {
    (2..=MAX_BLOCK)
        .filter(|block| *block <= run)
        .min_by_key(|block| (run % block, MAX_BLOCK - block))
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_fit_the_window() {
        let expected = [(0, 1), (1, 1), (2, 2), (3, 3), (5, 5), (7, 7), (9, 3), (11, 5), (13, 6)];
        for (run, block) in expected {
            assert_eq!(block_size(run), block, "run {run}");
        }
        assert_eq!(block_size(24), 8);
    }
}
