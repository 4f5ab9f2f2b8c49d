//! Block-sparse attention of queries that have lists of their own, or share them with so few that the heads of a group do not fill a tile
//! of 64 rows: warps have sixteen rows, and what neighbouring queries list is loaded once. See `cuda/union.cuh`.

use std::fmt::{self, Write};

mod by_block;
#[cfg(feature = "cuda")]
mod launch;

#[cfg(feature = "cuda")]
pub(super) use launch::{
    BackwardPrograms, GradientPrograms, Programs, VisitPrograms, check_backward, check_forward,
    enqueue_backward, enqueue_forward, enqueue_gradients, enqueue_visits,
};

use super::plan::unsupported_lists;
use super::schedule::{SHARED_MEMORY, TILE};
use super::source::{gradient_products, visit_products};
use crate::BlockSparse;
use crate::native::Element;

/// Warps that multiply, and rows of each.
const WARPS: usize = 8;
const WARP_ROWS: usize = 16;
/// Queries of a warp: those of a CTA have 32 bits.
const MOST_WARP_QUERIES: usize = 4;
/// Rows of a list's queries from which on tiles of 64 are not too wasteful.
const TILED_ROWS: usize = 8;
/// Rows of queries that a CTA gathers for a block of keys.
const MOST_VISITORS: usize = 1 << 16;
/// Entries of the lists of a head: twice as many are counted in 32 bits.
const MOST_LISTED: usize = 1 << 29;
/// Entries of their lists: each is compared with all others.
const MOST_ENTRIES: usize = 4096;
/// Longest vectors: beyond them a warp's rows do not fit into its registers.
const LONGEST: usize = 128;
/// Blocks in flight. More wait for nothing.
const MOST_STAGES: usize = 12;

/// Parts of inverse lists that are longer than a part, of a sample and key head: each has memory for its sums.
const MOST_LONG: usize = 1024;

/// Rows of a step of the kernel for keys.
const KEYS_ROWS: usize = 32;

/// The kernels of a pass, besides that which joins lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnionKernel {
    /// The forward pass.
    Forward,
    /// The gradient of queries.
    Queries,
    /// How key blocks are shared among CTAs.
    Parts,
    /// The gradients of keys and values.
    Keys,
    /// The sum of those of parts of a block.
    Sums,
    /// The forward pass by blocks, with a result for each entry of a list.
    Visits,
    /// Its results, put together.
    Merge,
    /// All gradients by blocks, those of queries with a row for each entry of a list.
    VisitGradients,
    /// These rows, added up.
    MergeGradients,
    /// The sum of gradients of parts of a block.
    VisitSums,
}

impl UnionKernel {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Forward,
        Self::Queries,
        Self::Parts,
        Self::Keys,
        Self::Sums,
        Self::Visits,
        Self::Merge,
        Self::VisitGradients,
        Self::MergeGradients,
        Self::VisitSums,
    ];
}

/// What the kernels are specialised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Union {
    /// Element type of all tensors but the logsumexp.
    pub element: Element,
    /// Length of a query or key vector.
    pub head_dim: usize,
    /// Length of a value vector.
    pub head_dim_v: usize,
    /// Heads of the queries that share a list, and keys and values.
    pub group: usize,
    /// Keys of a block.
    pub keys: usize,
    /// Whether a query sees no key behind it.
    pub is_causal: bool,
    /// Entries of a block's inverse list that a CTA takes: the sums of longer lists are added up by another kernel.
    pub part: usize,
    /// Bytes of results of entries at once, for kernels that go from block to block: those of as many samples and key heads as fit, and of
    /// one at least.
    pub results: usize,
}

impl Union {
    /// The kernels for a problem, or why there are none.
    ///
    /// # Errors
    ///
    /// What stands in the way.
    pub fn of(sparse: &BlockSparse, element: Element) -> Result<Self, String> {
        if let Some(reason) = unsupported_lists(sparse) {
            return Err(reason);
        }
        let problem = &sparse.problem;
        let [_, _, axis] = problem.axes;
        let [_, _, queries] = sparse.query_block;
        let [_, _, keys] = sparse.key_block;
        let group = sparse.heads_of_list();
        let listed = sparse.query_blocks().saturating_mul(sparse.entries);
        let of = Self {
            element,
            head_dim: problem.head_dim,
            head_dim_v: problem.head_dim_v,
            group,
            keys,
            is_causal: axis.is_causal,
            part: (MOST_VISITORS / queries.min(axis.queries).saturating_mul(group).max(1))
                .max((listed / MOST_LONG).next_power_of_two())
                .max(1),
            results: by_block::RESULTS,
        };
        let rows = queries.min(axis.queries).saturating_mul(group);
        let longest = problem.head_dim.max(problem.head_dim_v);
        if problem.rank() > 1 {
            return Err("tokens have several axes".into());
        }
        if group != problem.group_size() || group == 0 {
            return Err("heads of a group have lists of their own".into());
        }
        if rows > TILE / 2 {
            return Err(format!("{rows} rows share a list, more than {}", TILE / 2));
        }
        if ![16, 32, TILE].contains(&keys) {
            return Err(format!("a key_block of {keys} is none of 16, 32 and {TILE}"));
        }
        if longest > LONGEST || !(problem.head_dim | problem.head_dim_v).is_multiple_of(16) {
            return Err(format!("vectors are no multiples of 16 elements up to {LONGEST}"));
        }
        if group < MOST_WARP_QUERIES && rows >= TILED_ROWS {
            return Err(format!("{group} heads leave most rows of a warp idle"));
        }
        if listed > MOST_LISTED {
            return Err(format!("the lists of a head have more than {MOST_LISTED} entries"));
        }
        let entries = sparse.entries.saturating_mul(of.queries());
        if entries > MOST_ENTRIES {
            return Err(format!(
                "lists of {} neighbouring queries have {entries} entries, more than {MOST_ENTRIES}",
                of.queries()
            ));
        }
        Ok(of)
    }

    /// The kernels that there are for it.
    pub fn kernels(&self) -> impl Iterator<Item = UnionKernel> {
        UnionKernel::ALL.into_iter().filter(|kernel| self.has(*kernel))
    }

    /// Whether there is a kernel for its blocks and groups.
    const fn has(&self, kernel: UnionKernel) -> bool {
        use UnionKernel::{Merge, MergeGradients, VisitGradients, VisitSums, Visits};
        match kernel {
            Visits | Merge => self.keys == TILE && self.group <= by_block::MOST_GROUP,
            VisitGradients | MergeGradients | VisitSums => {
                self.keys == TILE && self.group <= by_block::MOST_GROUP_BACKWARD
            }
            _ => true,
        }
    }

    /// Bytes of shared memory of the kernel that goes from block to block: the block, and two tiles of rows or results for each of two
    /// warpgroups.
    #[cfg(feature = "cuda")]
    const fn visits_memory(&self) -> usize {
        let longest = if self.head_dim > self.head_dim_v { self.head_dim } else { self.head_dim_v };
        self.stage() + 4 * longest.div_ceil(64) * TILE * 128
    }

    /// Bytes of shared memory of the kernel for gradients by blocks: the block, and for each of two warpgroups two tiles of rows, slopes, a
    /// tile of results, and of 64 rows statistics of two tiles, three addresses, and places and limits of four tiles.
    #[cfg(feature = "cuda")]
    const fn gradients_memory(&self) -> usize {
        let [tile, tile_v] =
            [self.head_dim.div_ceil(64) * TILE * 128, self.head_dim_v.div_ceil(64) * TILE * 128];
        let slopes = self.keys * 128;
        let rows = 2 * 8 + 24 + 4 * (8 + 4);
        self.stage() + 2 * (2 * (tile + tile_v) + slopes + tile + TILE * rows)
    }

    /// Warps for the heads of a query.
    const fn parts(&self) -> usize {
        self.group.div_ceil(WARP_ROWS)
    }

    /// Queries of a CTA.
    pub const fn queries(&self) -> usize {
        let of_warp = match self.group {
            WARP_ROWS.. => 1,
            0..MOST_WARP_QUERIES => MOST_WARP_QUERIES,
            group => WARP_ROWS / group,
        };
        WARPS / self.parts() * of_warp
    }

    /// Threads of a CTA.
    #[cfg(feature = "cuda")]
    const fn threads(&self) -> usize {
        32 * WARPS + 128
    }

    /// Bytes of a block of keys and values, whose vectors take rows of 128 bytes.
    const fn stage(&self) -> usize {
        (self.head_dim.div_ceil(64) + self.head_dim_v.div_ceil(64)) * self.keys * 128
    }

    /// Blocks in flight: of each an item and two barriers.
    const fn stages(&self) -> usize {
        let fit = SHARED_MEMORY / (self.stage() + 8 * 3);
        if fit < MOST_STAGES { fit } else { MOST_STAGES }
    }

    /// Bytes of shared memory.
    #[cfg(feature = "cuda")]
    const fn shared_memory(&self) -> usize {
        self.stages() * (self.stage() + 8 * 3)
    }

    /// Bytes of shared memory of the kernel that joins lists.
    #[cfg(feature = "cuda")]
    const fn lists_memory(&self, entries: usize) -> usize {
        4 * (self.queries() * entries + 4)
    }

    /// Bytes of a step of rows for keys: vectors, statistics, a limit and two barriers.
    const fn keys_stage(&self) -> usize {
        let vectors = self.head_dim.div_ceil(64) + self.head_dim_v.div_ceil(64);
        KEYS_ROWS * (vectors * 128 + 16 + 4) + 8 * 2
    }

    /// Steps of rows in flight.
    const fn keys_stages(&self) -> usize {
        let fit = (SHARED_MEMORY - self.stage() - 8) / self.keys_stage();
        if fit < MOST_STAGES { fit } else { MOST_STAGES }
    }

    /// Bytes of shared memory of the kernel for keys: their block, and steps.
    #[cfg(feature = "cuda")]
    const fn keys_memory(&self) -> usize {
        self.stage() + self.keys_stages() * self.keys_stage() + 8
    }

    /// Parts of a sample and key head at most, one at least for each block, and those of them that are not alone.
    #[cfg(feature = "cuda")]
    const fn most_parts(&self, blocks: usize, listed: usize) -> [usize; 2] {
        [blocks + listed.div_ceil(self.part), 2 * listed / self.part]
    }

    /// The CUDA C++ of the kernel that has a name.
    pub fn source(&self, kernel: UnionKernel) -> String {
        let stages = match kernel {
            UnionKernel::Keys => self.keys_stages(),
            _ => self.stages(),
        };
        let mut text = self.macros(&[
            ("BF16", usize::from(self.element == Element::Bf16)),
            ("DIM", self.head_dim),
            ("DIM_V", self.head_dim_v),
            ("GROUP", self.group),
            ("STAGES", stages),
            ("PART_ENTRIES", self.part),
        ]);
        if matches!(kernel, UnionKernel::Sums | UnionKernel::VisitSums) {
            let _ = writeln!(text, "#define VISITS {}", u8::from(kernel == UnionKernel::VisitSums));
        }
        const RUNS: &str = concat!(
            include_str!("../cuda/device.cuh"),
            include_str!("../cuda/tma.cuh"),
            include_str!("cuda/wgmma.cuh"),
            include_str!("../cuda/mma.cuh"),
            include_str!("cuda/union_seen.cuh"),
            include_str!("cuda/warp_products.cuh"),
        );
        const ROWS: &str = include_str!("cuda/union.cuh");
        const WORK: &str = concat!(
            include_str!("cuda/union_parts.cuh"),
            include_str!("cuda/finish.cuh"),
            include_str!("../cuda/divisor.cuh"),
            include_str!("cuda/visits.cuh"),
            include_str!("cuda/visits_work.cuh"),
        );
        const LISTS: &str = concat!(
            include_str!("../cuda/divisor.cuh"),
            include_str!("cuda/visits.cuh"),
            include_str!("cuda/visits_lists.cuh")
        );
        text += match kernel {
            UnionKernel::Forward
            | UnionKernel::Queries
            | UnionKernel::Keys
            | UnionKernel::Visits
            | UnionKernel::VisitGradients => RUNS,
            UnionKernel::Parts | UnionKernel::Sums | UnionKernel::VisitSums => {
                include_str!("../cuda/device.cuh")
            }
            UnionKernel::Merge => concat!(
                include_str!("../cuda/device.cuh"),
                "constexpr int BIAS = 0;\n",
                include_str!("cuda/union_seen.cuh"),
                include_str!("../cuda/row_sum.cuh"),
            ),
            UnionKernel::MergeGradients => concat!(
                include_str!("../cuda/device.cuh"),
                "constexpr int BIAS = 0;\n",
                include_str!("cuda/union_seen.cuh"),
                include_str!("../cuda/row_gradients.cuh"),
            ),
        };
        if kernel == UnionKernel::Visits {
            text += &visit_products(self.element, self.keys, self.head_dim_v);
        }
        if kernel == UnionKernel::VisitGradients {
            text += &gradient_products(self.element, TILE, self.head_dim, self.head_dim_v);
        }
        text += match kernel {
            UnionKernel::Forward | UnionKernel::Queries => ROWS,
            UnionKernel::Visits | UnionKernel::VisitGradients => WORK,
            UnionKernel::Merge | UnionKernel::MergeGradients => LISTS,
            _ => include_str!("cuda/union_parts.cuh"),
        };
        text += match kernel {
            UnionKernel::Forward => concat!(
                include_str!("cuda/score.cuh"),
                include_str!("../cuda/row_sum.cuh"),
                include_str!("cuda/finish.cuh"),
                include_str!("cuda/union_forward.cu"),
            ),
            UnionKernel::Queries => concat!(
                include_str!("../cuda/row_gradients.cuh"),
                include_str!("cuda/finish.cuh"),
                include_str!("cuda/union_queries.cu"),
            ),
            UnionKernel::Keys => {
                concat!(include_str!("cuda/finish.cuh"), include_str!("cuda/union_keys.cu"))
            }
            UnionKernel::Parts => include_str!("cuda/union_parts.cu"),
            UnionKernel::Visits => include_str!("cuda/visits_forward.cu"),
            UnionKernel::Merge => include_str!("cuda/visits_merge.cu"),
            UnionKernel::VisitGradients => include_str!("cuda/visits_backward.cu"),
            UnionKernel::MergeGradients => include_str!("cuda/visits_gradients.cu"),
            UnionKernel::Sums | UnionKernel::VisitSums => concat!(
                "constexpr int BIAS = 0;\n",
                include_str!("cuda/union_seen.cuh"),
                include_str!("../cuda/row_gradients.cuh"),
                include_str!("cuda/union_sums.cu"),
            ),
        };
        text
    }

    /// The name of a kernel.
    pub fn name(&self, kernel: UnionKernel) -> String {
        format!("{self}_{}", format!("{kernel:?}").to_lowercase())
    }

    /// Name and CUDA C++ of the kernel that joins lists.
    pub fn lists_source(&self) -> (String, String) {
        let name = format!(
            "sm90_union_lists_q{}_k{}{}",
            self.queries(),
            self.keys,
            if self.is_causal { "_causal_x" } else { "" }
        );
        let text = self.macros(&[("QUERIES", self.queries())]);
        let code = concat!(
            include_str!("../cuda/device.cuh"),
            include_str!("cuda/union_seen.cuh"),
            include_str!("cuda/union_lists.cu"),
        );
        (name, text + code)
    }

    /// What both kernels know, and these.
    fn macros(&self, more: &[(&str, usize)]) -> String {
        let both = [("KEYS", self.keys), ("CAUSAL", usize::from(self.is_causal))];
        let mut text = String::new();
        for (name, value) in more.iter().chain(&both) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "#define {name} {value}");
        }
        text
    }
}

/// The name of the specialisation, and a key for it.
impl fmt::Display for Union {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm90_union_{}_d{}", self.element.name(), self.head_dim)?;
        if self.head_dim_v != self.head_dim {
            write!(f, "v{}", self.head_dim_v)?;
        }
        write!(f, "_g{}_k{}_{}s_p{}", self.group, self.keys, self.stages(), self.part)?;
        f.write_str(if self.is_causal { "_causal_x" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, Problem};

    #[test]
    fn sums_of_parts_have_a_bound() {
        for tokens in [4096, 65_536, 1 << 20, 1 << 24] {
            let problem = Problem::new([Axis::dense(tokens, tokens, true)], 16, 128);
            let sparse = BlockSparse::new(problem.with_heads_kv(1), [1], [64]).with_lists(1, 16);
            let of = Union::of(&sparse, Element::Bf16).expect("is one");
            assert!(of.part >= 4096 && tokens * 16 / of.part <= MOST_LONG, "{}", of.part);
        }
    }

    #[test]
    fn queries_of_a_cta_have_bits() {
        let of = |heads: usize| {
            let problem = Problem::new([Axis::dense(4096, 4096, true)], heads, 128);
            let sparse = BlockSparse::new(problem.with_heads_kv(1), [1], [64]);
            Union::of(&sparse.with_lists(1, 16), Element::Bf16)
                .map(|of| (of.queries(), of.to_string()))
        };
        let name =
            |group| format!("sm90_union_bf16_d128_g{group}_k64_7s_p{}_causal_x", 65536 / group);
        assert_eq!(of(1), Ok((32, name(1))));
        assert_eq!(of(4), Ok((32, name(4))));
        assert_eq!(of(8), Ok((16, name(8))));
        assert_eq!(of(12), Ok((8, name(12))));
        assert_eq!(of(16), Ok((8, name(16))));
        assert_eq!(of(32), Ok((4, name(32))));
        assert_eq!(of(64), Err("64 rows share a list, more than 32".into()));
    }

    #[test]
    fn many_entries_are_refused() {
        let problem = Problem::new([Axis::dense(1 << 16, 1 << 16, true)], 16, 128);
        let sparse = BlockSparse::new(problem.with_heads_kv(1), [1], [64]);
        assert!(Union::of(&sparse.with_lists(1, 512), Element::F16).is_ok());
        assert_eq!(
            Union::of(&sparse.with_lists(1, 513), Element::F16),
            Err("lists of 8 neighbouring queries have 4104 entries, more than 4096".into())
        );
    }
}
