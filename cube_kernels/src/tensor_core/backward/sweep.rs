//! How a cube goes through the columns of its rows.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::bias::Bias;
use super::super::blueprint::{Blueprint, Pass};
use super::super::geometry::{FeedPair, Position};
use super::super::mask::{mask_behind, sight};
use super::super::products::{accumulate, add_scores, no_scores};
use super::super::staging::{Stage, bring, receive, send, settle};
use super::super::work::Work;
use super::arguments::Inputs;
use super::kernel::Tiles;
use super::pair::{take_keys, take_values};
use super::part::{Part, Role};
use super::statistics::STATISTICS;
use super::step::{Rows, Sums, columns, differentiate, take};

/// Takes all columns that the cube's rows see into the sums, tile by tile; where rows are keys, those of
/// one head of the queries after the other. The next columns are on their way during a step.
#[cube]
pub(super) fn sweep_windows<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    rows: &Rows<'_, F, N>,
    tiles: &mut Tiles<F, N>,
    sums: &mut Sums,
    work: &Work,
    #[comptime] part: Part,
) {
    let blueprint = comptime!(part.blueprint);
    let (space, tile, unit) = (&work.space, &work.tile, work.unit);
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let (staging, cut) = comptime!((blueprint.staging, blueprint.cut()));
    let of_step = comptime!(blueprint.columns());
    let shape = comptime!(blueprint.column_tile());
    let first_stage = comptime!(Stage::new(&blueprint, first, blueprint.head_dim, shape));
    let second_stage = comptime!(Stage::new(&blueprint, second, blueprint.head_dim_v, shape));
    let is_keys = comptime!(blueprint.pass == Pass::Keys);
    let first_size = comptime!(of_step * first.pitch);
    let second_size = comptime!(of_step * second.pitch);
    let numbers = comptime!(STATISTICS * of_step);

    let mut head = tile.head / space.group_size;
    let mut steps = tile.steps(cut);
    if comptime!(is_keys) {
        head = tile.head * space.group_size;
        steps *= space.group_size;
    }
    let mut number = Position { z: 0usize, y: 0usize, x: 0usize };
    if steps > 0 {
        let corner = tile.corner(&number, cut);
        let feed = inputs.columns.columns(space, tile, head);
        let to = &mut tiles.first[0..first_size];
        let sent = send::<F, N>(&feed.first, to, &corner, true, unit, first_stage);
        receive::<F, N>(&sent, to, unit, first_stage);
        let to = &mut tiles.second[0..second_size];
        let sent = send::<F, N>(&feed.second, to, &corner, true, unit, second_stage);
        receive::<F, N>(&sent, to, unit, second_stage);
        if comptime!(is_keys) && unit < of_step {
            let place = column_statistics(&corner, head, work, blueprint);
            tiles.statistics[unit] = inputs.statistics[place];
            tiles.statistics[unit + of_step] = inputs.statistics[place + 1];
        }
    }
    for step in 0..steps {
        let corner = tile.corner(&number, cut);
        let sight = sight(&rows.windows, &corner, work, blueprint);
        let now = step % 2;
        let then = 1 - now;
        let is_more = step + 1 < steps;
        let bias = inputs.bias.map(|values| {
            if comptime!(is_keys) {
                Bias::of_head(values, head, space)
            } else {
                Bias::of_head(values, tile.head, space)
            }
        });
        tile.advance(&mut number, cut);
        if comptime!(is_keys) && number.x + number.y + number.z == 0 && is_more {
            head += 1;
        }
        let next = tile.corner(&number, cut);
        let feed = inputs.columns.columns(space, tile, head);
        let mut next_lse = 0.0f32;
        let mut next_delta = 0.0f32;
        settle(staging);
        sync_cube();
        if comptime!(is_keys) && unit < of_step {
            let place = column_statistics(&next, head, work, blueprint);
            next_lse = inputs.statistics[place];
            next_delta = inputs.statistics[place + 1];
        }
        let then_first = then * first_size;
        let then_second = then * second_size;
        let to = &mut tiles.first[then_first..then_first + first_size];
        let sent = send::<F, N>(&feed.first, to, &next, is_more, unit, first_stage);
        let to = &mut tiles.second[then_second..then_second + second_size];
        let sent_second = send::<F, N>(&feed.second, to, &next, is_more, unit, second_stage);
        let at = columns::<F, N>(
            &tiles.first[now * first_size..now * first_size + first_size],
            &tiles.second[now * second_size..now * second_size + second_size],
            &tiles.statistics[now * numbers..now * numbers + numbers],
            bias,
            sight,
        );
        match comptime!(part.role) {
            Role::Both => {
                if sight.is_any {
                    take::<F, N>(&at, rows, sums, &mut tiles.slopes, work, blueprint);
                }
            }
            Role::Values => {
                take_values::<F, N>(&at, rows, &mut tiles.handed, sums, work, blueprint);
            }
            Role::Keys => {
                take_keys::<F, N>(&at, rows, &tiles.handed, sums, work, blueprint);
            }
        }
        let to = &mut tiles.first[then_first..then_first + first_size];
        receive::<F, N>(&sent, to, unit, first_stage);
        let to = &mut tiles.second[then_second..then_second + second_size];
        receive::<F, N>(&sent_second, to, unit, second_stage);
        if comptime!(is_keys) && unit < of_step {
            tiles.statistics[then * numbers + unit] = next_lse;
            tiles.statistics[then * numbers + of_step + unit] = next_delta;
        }
    }
    sync_cube();
}

/// Where the statistics are of the query that is this unit's of the tile at `corner`, or of the nearest one there is.
#[cube]
fn column_statistics(
    corner: &Position,
    head: usize,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) -> usize {
    let (space, tile) = (&work.space, &work.tile);
    let shape = comptime!(blueprint.column_tile());
    let at = space.nearest_column(tile, corner, work.unit, shape);
    STATISTICS * space.column_place(tile, &at, head, space.heads * space.group_size)
}

/// Takes the additional columns, which every row sees, into the sums.
#[cube]
pub(super) fn sweep_additional<F: Float, N: Size>(
    feed: &FeedPair<'_, F, N>,
    rows: &Rows<'_, F, N>,
    tiles: &mut Tiles<F, N>,
    sums: &mut Sums,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let of_step = comptime!(blueprint.columns());
    let line = comptime!([1, 1, of_step]);
    let first_stage = comptime!(Stage::new(&blueprint, first, blueprint.head_dim, line));
    let second_stage = comptime!(Stage::new(&blueprint, second, blueprint.head_dim_v, line));
    let count = work.space.additional;
    for step in 0..count.div_ceil(of_step) {
        let token = step * of_step;
        let corner = Position { z: 0usize, y: 0usize, x: token };
        bring::<F, N>(&feed.first, &mut tiles.first, &corner, work.unit, first_stage);
        bring::<F, N>(&feed.second, &mut tiles.second, &corner, work.unit, second_stage);
        sync_cube();
        let mut weights = no_scores(first);
        add_scores::<F, N>(&mut weights, &rows.first, &tiles.first, work, first);
        let mut gradients = no_scores(second);
        add_scores::<F, N>(&mut gradients, &rows.second, &tiles.second, work, second);
        let own = rows.statistics;
        differentiate(&mut weights, &mut gradients, &tiles.statistics, own, work, blueprint);
        if token + of_step > count {
            mask_behind(&mut gradients, 0.0, count - token, work, blueprint);
        }
        accumulate::<F, N>(&mut sums.first, &gradients, &tiles.first, work.lane, first);
        sync_cube();
    }
}
