//! The checks of native sparse attention.

use super::{BATCH, HEAD_DIM, HEADS, Shapes, TOKENS, dense, same};
use crate::options::{NativeSparseAttentionOptions, Sizes};
use crate::{AttentionError, Strategy};

/// Fails unless the sizes fit together, whatever they are used on.
pub(crate) fn sizes(options: &NativeSparseAttentionOptions) -> Result<(), AttentionError> {
    let sizes = &options.sizes;
    for (parameter, got) in [
        ("cmp_stride", sizes.cmp_stride),
        ("cmp_block", sizes.cmp_block),
        ("slc_block", sizes.slc_block),
        ("query_tile", sizes.query_tile),
        ("num_local", sizes.num_local),
        ("num_selected", sizes.num_selected),
        ("cmp_group", sizes.cmp_group),
    ] {
        must(parameter, got, got >= 1, || "at least 1".into())?;
    }
    let stride = sizes.cmp_stride;
    for (parameter, got) in [("cmp_block", sizes.cmp_block), ("slc_block", sizes.slc_block)] {
        let bound = || format!("a multiple of {stride} (cmp_stride)");
        must(parameter, got, got.is_multiple_of(stride), bound)?;
    }
    match options.mslk {
        None => causal(sizes),
        Some(_) => mslk(sizes),
    }
}

/// Fails unless every branch has the strategy: that of the selected blocks has the fewest.
pub(crate) fn strategy(options: &NativeSparseAttentionOptions) -> Result<(), AttentionError> {
    let strategy = options.common.strategy;
    match strategy {
        Strategy::Auto | Strategy::Portable | Strategy::Reference => Ok(()),
        _ => {
            let reason = "native sparse attention has Portable and Reference".to_string();
            Err(AttentionError::Strategy { strategy, reason })
        }
    }
}

fn causal(sizes: &Sizes) -> Result<(), AttentionError> {
    let (tile, block) = (sizes.query_tile, sizes.slc_block);
    must("query_tile", tile, tile.is_multiple_of(block) || block.is_multiple_of(tile), || {
        format!("a divisor or a multiple of {block} (slc_block)")
    })?;
    let own = (tile / block).max(1);
    let forced = sizes.num_init.saturating_add(sizes.num_local - 1).saturating_add(own);
    must("num_selected", sizes.num_selected, sizes.num_selected >= forced, || {
        format!(
            "at least {forced} (num_init + num_local - 1 + {own} selection blocks of a query tile)"
        )
    })?;
    let Some(top) = sizes.cmp_top else { return Ok(()) };
    let filling = (tile - 1).div_ceil(sizes.cmp_stride).div_ceil(sizes.cmp_group) + 1;
    must("cmp_top", top, top >= filling, || {
        format!("at least {filling} (super-blocks that fill while a query tile lasts)")
    })
}

fn mslk(sizes: &Sizes) -> Result<(), AttentionError> {
    let block = sizes.cmp_block;
    for (parameter, got) in [("cmp_stride", sizes.cmp_stride), ("slc_block", sizes.slc_block)] {
        must(parameter, got, got == block, || format!("{block} (cmp_block) as MSLK has it"))?;
    }
    match sizes.cmp_top {
        None => Ok(()),
        Some(got) => must("cmp_top", got, false, || "none, as MSLK has it".into()),
    }
}

/// Shapes of all that the branches share, `[batch, tokens, heads, dim]`: keys and values of each branch, and the gates.
pub(crate) fn shapes(
    query: [usize; 4],
    keys: [[usize; 4]; 3],
    values: [[usize; 4]; 3],
    gates: [usize; 4],
    options: &NativeSparseAttentionOptions,
) -> Result<(), AttentionError> {
    sizes(options)?;
    strategy(options)?;
    for (key, value) in keys.iter().zip(&values) {
        for (axis, name) in [(0, BATCH), (1, TOKENS), (2, HEADS), (3, HEAD_DIM)] {
            same(key, "key", &keys[0], "key of the compressed branch", axis, name)?;
            same(value, "value", &values[0], "value of the compressed branch", axis, name)?;
        }
    }
    let [key, value] = [&keys[0], &values[0]];
    let shapes = Shapes { query: &query, key, value, additional: None, bias: None };
    dense(shapes, None, options.common.scale)?;
    for (axis, name) in [(0, BATCH), (1, TOKENS), (2, HEADS)] {
        same(&gates, "gates", &query, "query", axis, name)?;
    }
    let branches = "the number of branches";
    same(&gates, "gates", &[0, 0, 0, 3], branches, 3, "branches")
}

/// Where the first row stands among the tokens, after a check that it may.
pub(crate) fn offset(
    rows: usize,
    tokens: usize,
    options: &NativeSparseAttentionOptions,
) -> Result<usize, AttentionError> {
    let sizes = &options.sizes;
    let Some(offset) = tokens.checked_sub(rows) else {
        let bound = || format!("at most {tokens} (tokens of key)");
        return must("tokens of query", rows, false, bound).map(|()| 0);
    };
    if options.mslk.is_some() {
        must("tokens of query", rows, offset == 0, || format!("{tokens} as MSLK has it"))?;
        for (parameter, size) in [("cmp_block", sizes.cmp_block), ("query_tile", sizes.query_tile)]
        {
            must("tokens of key", tokens, tokens.is_multiple_of(size), || {
                format!("a multiple of {size} ({parameter}) as MSLK has it")
            })?;
        }
    }
    let tile = sizes.query_tile;
    must("tokens of query", rows, offset.is_multiple_of(tile), || {
        format!("{tokens} (tokens of key) less a multiple of {tile} (query_tile)")
    })?;
    Ok(offset)
}

/// Cumulative lengths begin at 0, never fall, and end at the number of tokens.
pub(crate) fn lengths(
    lengths: &[usize],
    batch: usize,
    tokens: usize,
) -> Result<(), AttentionError> {
    must("batch of packed sequences", batch, batch == 1, || "1".into())?;
    let count = lengths.len();
    must("number of cumulative lengths", count, count >= 1, || "at least 1".into())?;
    must("first cumulative length", lengths[0], lengths[0] == 0, || "0".into())?;
    for pair in lengths.windows(2) {
        let bound = || format!("at least {} (the one before)", pair[0]);
        must("cumulative length", pair[1], pair[0] <= pair[1], bound)?;
    }
    let last = lengths[count - 1];
    must("last cumulative length", last, last == tokens, || format!("{tokens} (tokens of query)"))
}

pub(crate) fn must(
    parameter: &'static str,
    got: usize,
    holds: bool,
    bound: impl FnOnce() -> String,
) -> Result<(), AttentionError> {
    match holds {
        true => Ok(()),
        false => Err(AttentionError::Parameter { parameter, got, bound: bound() }),
    }
}
