//! The relative position bias of a step's scores.
//!
//! Places are linear in the positions of queries and keys: a row and the first of a unit's columns give one, and those of
//! its other columns are neighbors. Pairs that are not seen may have a place outside the head's entries, or below zero,
//! which is above everything: places are held inside the buffer, and masks drop what is read there.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::blueprint::Blueprint;
use super::source::{SourcePair, Work};
use crate::Problem;
use crate::cube::{Position, row_position};
use crate::tensor_core::Pass;

/// One axis of the entries of a head.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct AxisPlaces {
    /// Entries between neighbors.
    pitch: usize,
    /// By how many positions queries stand ahead of keys of the same number.
    ahead: usize,
}

/// Where the biases of a problem stand.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Places {
    /// That of a query and the key where it stands, for head 0.
    center: usize,
    /// The last one of all heads.
    last: usize,
    /// Entries of a head.
    entries: usize,
    z: AxisPlaces,
    y: AxisPlaces,
    x: AxisPlaces,
}

/// The biases of one head.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct HeadBias<'a, B: Float> {
    values: &'a [B],
    places: Places,
    /// The place of a query and the key where it stands.
    center: usize,
}

/// The biases of a unit's rows and columns in a step.
#[derive(CubeType)]
pub(super) struct StepBias<'a, B: Float> {
    values: &'a [B],
    /// The place of each row and the first column.
    firsts: Array<usize>,
    last: usize,
    /// Whether rows are keys: places descend along queries.
    #[cube(comptime)]
    is_inverse: bool,
}

/// A tile of keys with their values, and the biases of the cube's head if they have any.
#[derive(CubeType)]
pub(super) struct Keys<'a, F: Float, N: Size, B: Float> {
    pub vectors: SourcePair<'a, F, N>,
    pub bias: ComptimeOption<HeadBias<'a, B>>,
}

#[cube]
pub(super) fn keys<'a, F: Float, N: Size, B: Float>(
    vectors: SourcePair<'a, F, N>,
    bias: ComptimeOption<HeadBias<'a, B>>,
) -> Keys<'a, F, N, B> {
    Keys::<'a, F, N, B> { vectors, bias }
}

/// `score` of row number `i` and column number `j` of a unit, with its bias.
#[cube]
pub(super) fn with_bias<B: Float>(
    score: f32,
    bias: &ComptimeOption<StepBias<'_, B>>,
    #[comptime] i: usize,
    #[comptime] j: usize,
) -> f32 {
    let biased: ComptimeOption<f32> = bias.as_ref().map(|bias| score + bias.of(i, j));
    biased.unwrap_or(score)
}

#[cube]
impl Places {
    /// Entries from the first key to the one at a position.
    fn of_key(&self, at: &Position) -> usize {
        at.z * self.z.pitch + at.y * self.y.pitch + at.x * self.x.pitch
    }

    /// Entries from the first key to where the query at a position stands.
    fn of_query(&self, at: &Position) -> usize {
        let (z, y, x) = (at.z + self.z.ahead, at.y + self.y.ahead, at.x + self.x.ahead);
        z * self.z.pitch + y * self.y.pitch + x * self.x.pitch
    }
}

#[cube]
impl<'a, B: Float> HeadBias<'a, B> {
    pub fn new(values: &'a [B], places: Places, head: usize) -> HeadBias<'a, B> {
        HeadBias::<'a, B> { values, places, center: places.center + head * places.entries }
    }

    /// Those of a unit's rows and its columns in the tile at `corner`, which are neighbors along the fastest axis.
    pub fn of_step(
        &self,
        corner: &Position,
        work: &Work,
        #[comptime] blueprint: Blueprint,
    ) -> StepBias<'a, B> {
        let (rows_each, is_inverse) =
            comptime!((blueprint.rows_each, blueprint.pass == Pass::Keys));
        let first = work.unit % comptime!(blueprint.across) * comptime!(blueprint.columns_each);
        let column = row_position(corner, first, comptime!(blueprint.column_tile()));
        let mut firsts = Array::<usize>::new(rows_each);
        #[unroll]
        for i in 0..rows_each {
            let row = work.tile.position(work.row(i, blueprint), comptime!(blueprint.cut()));
            if comptime!(is_inverse) {
                firsts[i] = self.center + self.places.of_key(&row) - self.places.of_query(&column);
            } else {
                firsts[i] = self.center + self.places.of_key(&column) - self.places.of_query(&row);
            }
        }
        StepBias::<'a, B> { values: self.values, firsts, last: self.places.last, is_inverse }
    }
}

#[cube]
impl<'a, B: Float> StepBias<'a, B> {
    /// That of row number `i` and column number `j`.
    pub fn of(&self, #[comptime] i: usize, #[comptime] j: usize) -> f32 {
        let first = self.firsts[i];
        let place = if comptime!(self.is_inverse) { first - j } else { first + j };
        f32::cast_from(self.values[min(place, self.last)])
    }
}

impl Places {
    /// Launch argument for a problem with a bias, the first of which stands at `first`.
    pub fn argument(problem: &Problem, first: usize) -> PlacesLaunch {
        let [z, y, x] = problem.bias_extents();
        let entries = z * y * x;
        let pitches = [y * x, x, 1];
        let [z, y, x] = std::array::from_fn(|i| {
            let axis = &problem.axes[i];
            // Queries stand among the keys, as was checked.
            AxisPlacesLaunch::new(pitches[i], axis.origin.unsigned_abs() / axis.dilation)
        });
        // As many entries precede it as follow it: their number is odd along every axis.
        let center = first + entries / 2;
        PlacesLaunch::new(center, first + problem.heads * entries - 1, entries, z, y, x)
    }

    /// What a kernel is compiled for in its place.
    #[cfg(feature = "cuda")]
    pub fn compilation() -> PlacesCompilationArg {
        let axis = || AxisPlacesCompilationArg { pitch: (), ahead: () };
        let (z, y, x) = (axis(), axis(), axis());
        PlacesCompilationArg { center: (), last: (), entries: (), z, y, x }
    }

    /// The same where there may be none.
    #[cfg(feature = "cuda")]
    pub fn compilation_if(has_bias: bool) -> ComptimeOptionCompilationArg<Self> {
        match has_bias {
            true => ComptimeOptionCompilationArg::Some(Self::compilation()),
            false => ComptimeOptionCompilationArg::None,
        }
    }
}
