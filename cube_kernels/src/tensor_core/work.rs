//! What a unit works on: the prologue of every kernel.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::blueprint::{Blueprint, PLANE};
use super::geometry::{CubeTile, Space};
use crate::cube::own;

/// The problem, the cube's tile of it, and the rows of this unit's plane.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Work {
    pub space: Space,
    pub tile: CubeTile,
    /// Makes exponents of differences of scores: the scale, for powers of e or of two.
    pub factor: f32,
    pub scale: f32,
    pub unit: usize,
    /// Number of the unit in its plane.
    pub lane: usize,
    /// Number of the plane, or of its pair, among those that own different rows. The second half of the planes are partners
    /// of the first, so that each of a multiprocessor's schedulers has planes of both kinds where there are eight.
    pub group: usize,
    /// First row of the plane.
    pub first_row: usize,
}

/// What this unit works on, of a problem or of a packed batch's sequence; units of cubes that have no rows end here.
#[cube]
pub(super) fn work(
    space: Space,
    sequences: ComptimeOption<&[u32]>,
    factor: f32,
    scale: f32,
    #[comptime] blueprint: Blueprint,
) -> Work {
    if CUBE_POS >= space.cubes {
        terminate!();
    }
    let own = own(space, sequences, CUBE_POS, comptime!(blueprint.cut()));
    let tile = own.tile;
    if !tile.has_rows() {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let group = group(unit, blueprint);
    let first_row = group * comptime!(blueprint.plane_rows());
    Work { space: own.space, tile, factor, scale, unit, lane: unit % PLANE, group, first_row }
}

#[cube]
fn group(unit: usize, #[comptime] blueprint: Blueprint) -> usize {
    if comptime!(blueprint.is_paired) {
        unit / PLANE % comptime!(blueprint.groups())
    } else {
        unit / PLANE
    }
}
