//! What a plane makes of one tile of columns.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::{Share, Sums, Tiles};
use crate::cube::narrow;
use crate::tensor_core::bias::{Bias, add_to_shared};
use crate::tensor_core::blueprint::{Blueprint, Pass};
use crate::tensor_core::cooperative::{accumulate, score};
use crate::tensor_core::geometry::Position;
use crate::tensor_core::power::power;
use crate::tensor_core::work::Work;

/// What is seen of a tile of columns, and what is added to its scores.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Seen<'a, F: Float> {
    /// A bit for each of this unit's scores.
    pub visible: u32,
    /// Whether any of the plane's rows sees a column.
    pub is_any: bool,
    pub corner: Position,
    pub bias: ComptimeOption<Bias<'a, F>>,
}

#[cube]
pub(super) fn seen<'a, F: Float>(
    visible: u32,
    is_any: bool,
    corner: Position,
    bias: ComptimeOption<Bias<'a, F>>,
) -> Seen<'a, F> {
    Seen::<'a, F> { visible, is_any, corner, bias }
}

/// Takes the tile of columns that has been put into shared memory into the sums, if any of the plane's rows sees one of
/// them.
#[cube]
pub(super) fn take<F: Float, N: Size>(
    tiles: &mut Tiles<F, N>,
    share: &Share,
    sums: &mut Sums,
    seen: &Seen<'_, F>,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let plane = work.group;
    let mut weights = Array::<f32>::new(comptime!(blueprint.columns() / blueprint.stripes()));
    sync_cube();
    if seen.is_any {
        let (rows, columns) = (&tiles.row_first, &tiles.column_first);
        score::<F, N>(rows, columns, &mut tiles.scores, plane, first, blueprint);
    }
    sync_cube();
    if seen.is_any {
        if comptime!(seen.bias.is_some()) {
            let scores = &mut tiles.scores;
            add_to_shared(scores, seen.bias, &share.place, &seen.corner, work, blueprint);
        }
        weigh::<F, N>(tiles, share, &mut weights, seen.visible, work, blueprint);
    }
    sync_cube();
    if seen.is_any {
        if comptime!(blueprint.has_second) {
            let (from, columns) = (&tiles.weights, &tiles.column_second);
            accumulate::<F, N>(from, columns, &mut sums.second, plane, second, blueprint);
        }
        if comptime!(blueprint.has_first) {
            let (rows, columns) = (&tiles.row_second, &tiles.column_second);
            score::<F, N>(rows, columns, &mut tiles.scores, plane, second, blueprint);
        }
    }
    sync_cube();
    if comptime!(blueprint.has_first) {
        if seen.is_any {
            differentiate::<F, N>(tiles, share, &weights, seen.visible, blueprint);
        }
        sync_cube();
        if seen.is_any {
            let (from, columns) = (&tiles.weights, &tiles.column_first);
            accumulate::<F, N>(from, columns, &mut sums.first, plane, first, blueprint);
        }
        sync_cube();
    }
}

/// Makes weights of this unit's scores, and keeps them; for the sums of second vectors they lie in shared memory, too.
#[cube]
fn weigh<F: Float, N: Size>(
    tiles: &mut Tiles<F, N>,
    share: &Share,
    weights: &mut Array<f32>,
    visible: u32,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let stripes = comptime!(blueprint.stripes());
    let mut lse = share.lse;
    #[unroll]
    for turn in 0..comptime!(blueprint.columns() / stripes) {
        let column = share.place.stripe + comptime!(turn * stripes);
        if comptime!(blueprint.pass == Pass::Keys) {
            lse = tiles.statistics[column];
        }
        let argument = fma(tiles.scores[share.place.scores + column], work.factor, -lse);
        let weight = power(argument, comptime!(blueprint.exponential));
        let weight = select(visible & comptime!(1u32 << turn) != 0, weight, 0.0f32);
        weights[turn] = weight;
        if comptime!(blueprint.has_second) {
            tiles.weights[share.place.weights + column] = narrow::<F>(weight);
        }
    }
}

/// Makes gradients of this unit's scores of those of the weights.
#[cube]
fn differentiate<F: Float, N: Size>(
    tiles: &mut Tiles<F, N>,
    share: &Share,
    weights: &Array<f32>,
    visible: u32,
    #[comptime] blueprint: Blueprint,
) {
    let stripes = comptime!(blueprint.stripes());
    let columns = comptime!(blueprint.columns());
    let mut delta = share.delta;
    #[unroll]
    for turn in 0..comptime!(columns / stripes) {
        let column = share.place.stripe + comptime!(turn * stripes);
        if comptime!(blueprint.pass == Pass::Keys) {
            delta = tiles.statistics[column + columns];
        }
        let gradient = weights[turn] * (tiles.scores[share.place.scores + column] - delta);
        // Zero times what is not finite is no zero, and would have the row computed again.
        let gradient = select(visible & comptime!(1u32 << turn) != 0, gradient, 0.0f32);
        tiles.weights[share.place.weights + column] = narrow::<F>(gradient);
    }
}
