//! The best of a row of scores: each score counts those before it, which is its place.
//!
//! A unit has one score. The units of a row read the same scores at the same time, and no code depends on how many are asked for; what
//! keeps the best in registers is as long as the list.

// `#[cube]` adds items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::KernelError;
use crate::cube::{addresses_with_room, buffer, check_type, grid_of_units};
use crate::view::check_buffer;

/// A score as it is compared: what is no number counts as `least`, which nothing is below.
#[cube]
fn comparable<F: Float>(score: F, least: f32) -> f32 {
    let score = f32::cast_from(score);
    select(score > least, score, least)
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn top_kernel<F: Float>(
    scores: &[F],
    lists: &mut [i32],
    rows: usize,
    count: usize,
    entries: usize,
    least: f32,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < rows * count {
        let (row, number) = (at / count, at % count);
        let own = comparable::<F>(scores[at], least);
        let mut place = 0usize;
        for other in 0..count {
            let score = comparable::<F>(scores[row * count + other], least);
            let is_before = score > own || (score == own && other < number);
            place += select(is_before, 1usize, 0usize);
        }
        if place < entries {
            let is_there = own > least;
            lists[row * entries + place] = select(is_there, number as i32, -1i32);
        }
    }
}

/// The numbers of the `entries` highest of each row of `count` scores, the highest first, and of equals the first; `-1` in place of what is
/// `-inf` or no number. `scores` are `[rows, count]`, `lists` `[rows, entries]` of `i32`, both contiguous.
///
/// # Errors
///
/// If there are fewer scores than entries, the device lacks the type or 64-bit indices that are needed, or a buffer is too small; then nothing
/// was launched.
pub fn top(
    client: &Client,
    dtype: ElemType,
    [rows, count, entries]: [usize; 3],
    scores: &Handle,
    lists: &Handle,
) -> Result<(), KernelError> {
    check_type(client, dtype)?;
    if entries > count || count > i32::MAX as usize {
        let reason = format!("{entries} of {count} scores, at most {}", i32::MAX);
        return Err(KernelError::Problem(reason));
    }
    check_buffer("scores", scores, rows * count * dtype.size())?;
    check_buffer("lists", lists, rows * entries * size_of::<i32>())?;
    let units = rows * count;
    let address_type = addresses_with_room(client, units)?;
    let (cubes, dim) = grid_of_units(client, units.max(1));
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        top_kernel::launch_unchecked(
            client,
            cubes,
            dim,
            address_type,
            buffer(scores),
            buffer(lists),
            rows,
            count,
            entries,
            // WGSL has no way to write it.
            f32::NEG_INFINITY,
            dtype,
        );
    }
    Ok(())
}
