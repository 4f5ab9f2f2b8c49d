//! What the CubeCL tiers that work on tiles share: which rows a cube owns, which columns it visits, and where their
//! vectors lie in memory.
//!
//! Rows are queries and columns are keys, but in the pass that gives keys their gradients it is the other
//! way round: a row then sees its visitors, an interval along every axis as well.
//!
//! Positions are members of a dilation group, as in [`window`](crate::window). A row of a tile has its
//! coordinates in the bits of its number, for tiles are powers of two long.

mod axis;
mod cut;
mod feed;
pub(crate) mod forward;
mod nearest;
mod packed;
mod space;
mod tables;
mod walk;
mod windows;

pub(crate) use axis::{AXIS_WORDS, Interval};
pub(crate) use cut::Cut;
#[cfg(feature = "cuda")]
pub(crate) use feed::optional_buffer;
pub(crate) use feed::{
    F32, Feed, FeedPair, Input, InputPair, Tensor, addresses, addresses_with_room, buffer,
    check_type, grid, grid_of_cubes, grid_of_units, widest_of,
};
pub(crate) use nearest::{narrow, narrow_all};
#[cfg(feature = "cuda")]
pub(crate) use packed::sequences;
pub(crate) use packed::{Cubes, Extent, find, own, sequences_of_rows};
pub(crate) use space::{CubeTile, Space};
pub(crate) use tables::table;
pub(crate) use walk::{Position, Walk, row_position};
pub(crate) use windows::{is_inside, write_row_windows, write_window};
