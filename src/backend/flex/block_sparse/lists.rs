//! Lists of blocks of keys, and their inverse.

use std::ops::Range;

use burn::backend::flex::FlexTensor;
use burn::tensor::DType;
use burn_natten_kernels::BlockSparse;
use rayon::prelude::*;

/// An entry that names no block.
const ABSENT: usize = usize::MAX;

/// `[batch, query_blocks, list_heads, entries]`
pub(super) struct Lists {
    entries: Vec<usize>,
    shape: [usize; 3],
}

impl Lists {
    pub fn new(tensor: &FlexTensor, sparse: &BlockSparse) -> Self {
        let tensor = &tensor.to_contiguous();
        let blocks = sparse.key_blocks();
        let entries = match tensor.dtype() {
            DType::I64 => known::<i64>(tensor, blocks),
            DType::I32 => known::<i32>(tensor, blocks),
            DType::I16 => known::<i16>(tensor, blocks),
            DType::I8 => known::<i8>(tensor, blocks),
            DType::U64 => known::<u64>(tensor, blocks),
            DType::U32 => known::<u32>(tensor, blocks),
            DType::U16 => known::<u16>(tensor, blocks),
            _ => known::<u8>(tensor, blocks),
        };
        Self { entries, shape: [sparse.query_blocks(), sparse.list_heads, sparse.entries] }
    }

    /// The blocks of a list, in its order.
    pub fn of(
        &self,
        [sample, list_head, query_block]: [usize; 3],
    ) -> impl Iterator<Item = usize> + use<'_> {
        let [blocks, heads, entries] = self.shape;
        let list = (sample * blocks + query_block) * heads + list_head;
        let list = &self.entries[list * entries..][..entries];
        list.iter().copied().filter(|block| *block != ABSENT)
    }
}

/// The entries, [`ABSENT`] for those that name none of so many blocks.
fn known<I>(tensor: &FlexTensor, blocks: usize) -> Vec<usize>
where
    I: burn::tensor::Element + bytemuck::Pod + TryInto<usize>,
{
    let entries = tensor.as_slice::<I>().expect("a contiguous tensor of the dispatched dtype");
    let known = |entry: &I| (*entry).try_into().ok().filter(|block| *block < blocks);
    entries.par_iter().map(|entry| known(entry).unwrap_or(ABSENT)).collect()
}

/// The lists that name each block of keys, those of a sample and head of the keys one block after the other.
pub(super) struct Inverse {
    parts: Vec<Part>,
    heads_kv: usize,
}

/// The lists of a sample and head of the keys.
struct Part {
    /// Where the visitors of each block begin, and the end of the last ones.
    starts: Vec<usize>,
    visitors: Vec<Visitor>,
}

/// A list that names a block.
#[derive(Clone, Copy, Default)]
pub(super) struct Visitor {
    pub list_head: usize,
    pub query_block: usize,
}

impl Inverse {
    pub fn new(lists: &Lists, sparse: &BlockSparse) -> Self {
        let heads_kv = sparse.problem.heads_kv;
        let group = sparse.list_heads / heads_kv;
        let part = |index: usize| {
            let (sample, head) = (index / heads_kv, index % heads_kv);
            Part::new(lists, sparse, sample, head * group..(head + 1) * group)
        };
        let count = sparse.problem.batch * heads_kv;
        Self { parts: (0..count).into_par_iter().map(part).collect(), heads_kv }
    }

    /// Lists that name a block come in the order of their heads, then of their blocks, as often as they name it.
    pub fn of(&self, sample: usize, head: usize, block: usize) -> &[Visitor] {
        let part = &self.parts[sample * self.heads_kv + head];
        &part.visitors[part.starts[block]..part.starts[block + 1]]
    }
}

impl Part {
    /// A counting sort: twice over the lists, and no order but theirs.
    fn new(lists: &Lists, sparse: &BlockSparse, sample: usize, heads: Range<usize>) -> Self {
        let visitors = || {
            heads.clone().flat_map(|list_head| {
                (0..sparse.query_blocks())
                    .map(move |query_block| Visitor { list_head, query_block })
            })
        };
        let named = |Visitor { list_head, query_block }: Visitor| {
            lists.of([sample, list_head, query_block])
        };
        let mut starts = vec![0; sparse.key_blocks() + 1];
        for block in visitors().flat_map(named) {
            starts[block + 1] += 1;
        }
        for block in 1..starts.len() {
            starts[block] += starts[block - 1];
        }
        let mut next = starts.clone();
        let mut sorted = vec![Visitor::default(); starts[sparse.key_blocks()]];
        for visitor in visitors() {
            for block in named(visitor) {
                sorted[next[block]] = visitor;
                next[block] += 1;
            }
        }
        Self { starts, visitors: sorted }
    }
}
