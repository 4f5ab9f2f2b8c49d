//! The relative position bias, as kernels add it to scores.
//!
//! A score of the query and the key at two positions of a dilation group gets the entry that belongs to their distance. Entries
//! are read where the bias lies, through the first level of cache: those of neighboring rows and columns are neighbors.
//!
//! Scores are products that the softmax scales, so what is added is divided by the scale. Tiles hold pairs whose distance no
//! window has. They read some other entry, and are masked behind this.
//!
//! Whether there is a bias is known when a kernel is compiled ([`ComptimeOption`]), so that kernels without one have no trace of
//! it.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::blueprint::{Blueprint, COLUMNS, ROWS};
use super::cooperative::Place;
use super::fragments::Fragments;
use super::geometry::{Position, Space};
use super::work::Work;
use crate::MAX_RANK;
use crate::cube::row_position;

/// The bias of one head. Places are numbers that wrap, so that one which is below zero is large.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Bias<'a, F: Float> {
    values: &'a [F],
    /// Where the head's entries begin.
    head: usize,
    /// Entries between neighbors along the two slower axes.
    z: u32,
    y: u32,
    /// The place that a query and a key at the same positions have.
    origin: u32,
    /// The last one.
    last: u32,
}

#[cube]
impl<'a, F: Float> Bias<'a, F> {
    /// That of a head of the queries.
    pub fn of_head(values: &'a [F], head: usize, space: &Space) -> Bias<'a, F> {
        let y = space.x.distances();
        let z = space.y.distances() * y;
        let entries = space.z.distances() * z;
        let (at_z, at_y, at_x) =
            (space.z.no_distance(), space.y.no_distance(), space.x.no_distance());
        Bias::<'a, F> {
            values,
            head: head * entries as usize,
            z,
            y,
            origin: at_z * z + at_y * y + at_x,
            last: entries - 1,
        }
    }

    fn place(&self, query: &Position, key: &Position) -> u32 {
        let z = key.z as u32 - query.z as u32;
        let y = key.y as u32 - query.y as u32;
        let x = key.x as u32 - query.x as u32;
        self.origin + z * self.z + y * self.y + x
    }

    /// The same of a row and a column.
    fn place_of(&self, row: &Position, column: &Position, #[comptime] is_inverse: bool) -> u32 {
        if comptime!(is_inverse) { self.place(column, row) } else { self.place(row, column) }
    }

    /// The entry at a place, or another one where there is none.
    fn at(&self, place: u32) -> f32 {
        f32::cast_from(self.values[self.head + min(place, self.last) as usize])
    }
}

/// Position in a box of column number `column` that this unit owns, from its first column on. Its own bits and those that are
/// known when a kernel is compiled are different ones, so that positions add up.
fn beyond(column: usize, [_, y, x]: [usize; MAX_RANK]) -> [u32; MAX_RANK] {
    [column / (x * y), column / x % y, column % x].map(|at| at as u32)
}

/// That of a query and a key that it sees, where there is one.
#[cube]
pub(super) fn of_pair<F: Float>(
    bias: ComptimeOption<Bias<'_, F>>,
    query: &Position,
    key: &Position,
) -> ComptimeOption<f32> {
    bias.map(|bias| bias.at(bias.place(query, key)))
}

/// Adds the bias to the plane's scores with the tile of columns at `corner`.
#[cube]
pub(super) fn add_bias<F: Float>(
    scores: &mut Fragments<f32>,
    bias: ComptimeOption<Bias<'_, F>>,
    corner: &Position,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    if comptime!(blueprint.has_bias) {
        let bias = bias.unwrap();
        let inverse = 1.0 / work.scale;
        let cut = comptime!(blueprint.cut());
        let matrices = comptime!(blueprint.columns() / COLUMNS);
        let first = row_position(corner, work.lane % 4 * 2, comptime!(cut.column_tile));
        #[unroll]
        for row in 0..comptime!(2 * blueprint.blocks) {
            let (block, half) = comptime!((row / 2, row % 2));
            let number = work.first_row + work.lane / 4 + comptime!(block * ROWS + half * 8);
            let at = work.tile.position(number, cut);
            let place = bias.place_of(&at, &first, comptime!(cut.is_inverse));
            #[unroll]
            for matrix in 0..matrices {
                let fragment = scores.index_mut(comptime!(block * matrices + matrix));
                let mut pair = fragment[half];
                #[unroll]
                for element in 0..2usize {
                    let [z, y, x] = comptime!(beyond(matrix * COLUMNS + element, cut.column_tile));
                    let distance = bias.z * z + bias.y * y + x;
                    let mut place = place;
                    if comptime!(cut.is_inverse) {
                        place -= distance;
                    } else {
                        place += distance;
                    }
                    pair.insert(element, fma(bias.at(place), inverse, pair.extract(element)));
                }
                fragment[half] = pair;
            }
        }
    }
}

/// The same where scores lie in shared memory: adds it to this unit's.
#[cube]
pub(super) fn add_to_shared<F: Float>(
    scores: &mut [f32],
    bias: ComptimeOption<Bias<'_, F>>,
    own: &Place,
    corner: &Position,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    if comptime!(blueprint.has_bias) {
        let bias = bias.unwrap();
        let inverse = 1.0 / work.scale;
        let cut = comptime!(blueprint.cut());
        let stripes = comptime!(blueprint.stripes());
        let row = work.tile.position(own.row, cut);
        for turn in 0..comptime!(blueprint.columns() / stripes) {
            let column = own.stripe + turn * stripes;
            let at = row_position(corner, column, comptime!(cut.column_tile));
            let place = bias.place_of(&row, &at, comptime!(cut.is_inverse));
            scores[own.scores + column] += bias.at(place) * inverse;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiling::boxes;

    #[test]
    fn positions_of_a_units_columns_add_up() {
        for rank in 1..=MAX_RANK {
            for tile in boxes(64, rank) {
                for column in 0..64 {
                    // The bits of a unit are those of 2, 4 and 6.
                    let [own, known] = [column & 6, column & !6].map(|part| beyond(part, tile));
                    let sum: Vec<u32> = own.iter().zip(known).map(|(a, b)| a + b).collect();
                    assert_eq!(sum, beyond(column, tile), "column {column} of {tile:?}");
                }
            }
        }
    }
}
