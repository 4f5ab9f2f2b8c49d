//! The checks of block-sparse attention.

use burn_natten_kernels::{Axis, BlockSparse};

use super::{BATCH, HEADS, SPACE, Shapes, at_least, finish, same};
use crate::options::BlockSparseOptions;
use crate::{AttentionError, CausalAlignment};

/// The axes of lists of blocks.
const BLOCKS: &str = "blocks";

/// Attention to listed blocks, over `N` axes: `shapes` of query, key and value, and that of the lists.
pub(crate) fn block_sparse<const N: usize>(
    shapes: Shapes<'_>,
    blocks: [usize; 4],
    options: &BlockSparseOptions<N>,
) -> Result<BlockSparse, AttentionError> {
    for axis in 1..=N {
        same(shapes.value, "value", shapes.key, "key", axis, SPACE)?;
    }
    for axis in 0..N {
        at_least("query_block", axis, options.query_block[axis], 1)?;
        at_least("key_block", axis, options.key_block[axis], 1)?;
    }
    let axes: [Axis; N] = std::array::from_fn(|axis| {
        let (queries, keys) = (shapes.query[axis + 1], shapes.key[axis + 1]);
        let along = Axis::dense(queries, keys, options.is_causal[axis]);
        match (options.edge, options.common.alignment) {
            (Some(edge), _) => along.with_origin(edge.origin),
            (None, CausalAlignment::Start) => along.with_origin(0),
            (None, CausalAlignment::End) => along,
        }
    });
    let problem = finish(shapes, &axes, options.common.scale)?;
    // A block that is longer than its axis is as long.
    let within = |blocks: [usize; N], shape: &[usize]| -> [usize; N] {
        std::array::from_fn(|axis| blocks[axis].min(shape[axis + 1].max(1)))
    };
    let query_block = within(options.query_block, shapes.query);
    let sparse = BlockSparse::new(problem, query_block, within(options.key_block, shapes.key));
    let sparse = match options.edge {
        Some(edge) => sparse.with_step(edge.step),
        None => sparse,
    };
    let [batch, query_blocks, heads, entries] = blocks;
    same(&[batch], BLOCKS, shapes.query, "query", 0, BATCH)?;
    let expected = sparse.query_blocks();
    if query_blocks != expected {
        return Err(AttentionError::Shape {
            argument: BLOCKS,
            axis: 1,
            name: "blocks of queries",
            got: query_blocks,
            expected,
            other: "query and query_block",
        });
    }
    if heads == 0 {
        return Err(AttentionError::Empty { argument: BLOCKS, axis: 2, name: HEADS });
    }
    if heads != problem.heads && heads != problem.heads_kv {
        let (got, heads, heads_kv) = (heads, problem.heads, problem.heads_kv);
        return Err(AttentionError::ListHeads { got, heads, heads_kv });
    }
    Ok(sparse.with_lists(heads, entries))
}
