//! The choice of schedules, without a device.

use std::fmt::Write;

use super::super::schedule::TILE;
use super::*;
use crate::catalogue;

pub(super) fn axis(
    length: usize,
    kernel_size: usize,
    stride: usize,
    dilation: usize,
    is_causal: bool,
) -> Axis {
    Axis::neighborhood(length, kernel_size)
        .with_stride(stride)
        .with_dilation(dilation)
        .with_causal(is_causal)
}

pub(super) fn problem(axes: &[Axis], dim: usize) -> Problem {
    Problem::new(axes, 4, dim).with_batch(2).with_heads_kv(2)
}

/// Every kind of axis, in one, two and three axes, with and without additional tokens.
pub(super) fn sweep() -> Vec<Problem> {
    let mut problems = vec![];
    for dim in [8, 64, 72, 128, 136, 256] {
        for dim_v in [dim, 8, 256] {
            for line in
                [axis(512, 512, 1, 1, false), axis(300, 21, 1, 1, false), axis(300, 21, 3, 2, true)]
            {
                let side = axis(37, 9, line.stride, line.dilation, line.is_causal);
                let deep = axis(16, 5, 1, 1, false);
                for axes in [&[line][..], &[side, side], &[deep, side, side]] {
                    for additional in [0, 77] {
                        problems.push(
                            problem(axes, dim).with_head_dim_v(dim_v).with_additional(additional),
                        );
                    }
                }
            }
        }
    }
    problems
}

#[test]
fn the_catalogue_is_planned_as_ever() {
    let mut text = String::new();
    for entry in catalogue::all() {
        let schedule = plan(&entry.problem, Element::Bf16).expect("supported");
        let milliseconds = 1e3 * estimate(&schedule, &entry.problem);
        writeln!(text, "{:16} {milliseconds:8.3} ms  {schedule}", entry.name).expect("a string");
    }
    insta::assert_snapshot!(text);
}

#[test]
fn what_is_not_supported_is_said() {
    let whole = problem(&[axis(100, 9, 1, 1, false)], 64);
    assert_eq!(unsupported(&whole), None);
    let reason = |problem: Problem| {
        assert!(
            plan(&problem, Element::F16).is_none() && candidates(&problem, Element::F16).is_empty()
        );
        unsupported(&problem).expect("a reason")
    };
    let deep = problem(&[axis(31, 3, 1, 9, false), axis(5, 3, 1, 1, false), Axis::UNIT], 64);
    let reasons = [
        reason(Problem { head_dim: 0, ..whole }),
        reason(Problem { head_dim: 60, ..whole }),
        reason(whole.with_head_dim_v(264)),
        reason(whole.with_scale(0.0)),
        reason(whole.with_scale(-0.125)),
        reason(whole.with_scale(f64::NAN)),
        reason(problem(&[Axis::dense(10, 0, false)], 64)),
        reason(problem(&[axis(1 << 20, 9, 1, 1, false), axis(9, 9, 1, 1, false)], 64)),
        reason(whole.with_batch(1 << 25)),
        reason(whole.with_batch(1 << 12).with_heads(1 << 12)),
        reason(deep),
    ];
    insta::assert_snapshot!(reasons.join("\n"), @r"
    head_dim is 0, not a multiple of 8 up to 256
    head_dim is 60, not a multiple of 8 up to 256
    head_dim of value is 264, not a multiple of 8 up to 256
    scale is 0, below 1e-6
    scale is -0.125, below 1e-6
    scale is NaN, below 1e-6
    there are no keys
    an axis has 2^20 or more tokens
    there are 2^31 or more tokens, or 2^24 or more heads
    there are 2^31 or more tokens, or 2^24 or more heads
    the slowest axis has a dilation of 9, above 8, that does not divide its length of 31
    ");
    assert_eq!(unsupported(&deep.with_batch(1)), None);
}

#[test]
fn schedules_fit_into_a_multiprocessor() {
    let mut count = 0;
    for problem in sweep() {
        let all = candidates(&problem, Element::Bf16);
        assert!(!all.is_empty(), "{problem:?}");
        count += all.len();
        all.iter().for_each(|schedule| check_resources(schedule, &problem));
    }
    assert!(count > 1000, "{count}");
}

/// Of a square of keys, seven columns in eight would lie outside of a plane that is one key wide.
#[test]
fn the_slanted_edge_of_compressed_attention_has_tiles_of_its_shape() {
    for (queries, tile) in [(16, [1, 4, 16]), (64, [1, 1, 64]), (2, [1, 32, 2])] {
        for dim in [64, 128, 256] {
            let axes = [Axis::dense(900, 900, true), Axis::dense(queries, 1, false)];
            let problem = problem(&axes, dim);
            let backward = plan_backward(&problem, Element::Bf16, None).expect("supported");
            let forward = plan(&problem, Element::Bf16).expect("supported");
            for schedule in backward.schedules().chain([&forward]) {
                assert_eq!((schedule.q_tile, schedule.kv_tile), (tile, [1, TILE, 1]));
                assert_eq!((schedule.mask, schedule.stack), (Mask::Linear, 1));
                check_resources(schedule, &problem);
            }
        }
    }
    // Where no tile holds the queries of a key, squares of queries remain.
    let axes = [Axis::dense(90, 90, true), Axis::dense(48, 1, false)];
    let schedule = plan(&problem(&axes, 64), Element::Bf16).expect("supported");
    assert_eq!((schedule.q_tile, schedule.kv_tile), ([1, 8, 8], [1, 16, 4]));
    assert_eq!(schedule.mask, Mask::OneHot);
}

pub(super) fn check_resources(schedule: &Schedule, problem: &Problem) {
    assert!(schedule.fits(problem), "{schedule}");
    let shared = schedule.shared_memory();
    assert!(shared <= 227 * 1024, "{schedule}: {shared} bytes");
    assert!(schedule.ctas * (shared + 1024) <= 228 * 1024, "{schedule}: {shared} bytes");
    let (producer, consumer) = schedule.registers();
    // What setmaxnreg takes.
    assert!(producer.is_multiple_of(8) && consumer.is_multiple_of(8), "{schedule}");
    assert!((24..=256).contains(&producer) && (24..=256).contains(&consumer), "{schedule}");
    let of_cta = 128 * (producer + schedule.warpgroups * schedule.teams * consumer);
    assert!(schedule.ctas * of_cta <= 65536, "{schedule}: {of_cta} registers");
    assert!((2..=4).contains(&schedule.stages), "{schedule}");
    let rows = schedule.row_tile().iter().product::<usize>();
    assert!((60..=TILE).contains(&rows), "{schedule}");
    let columns = schedule.column_tile().iter().product::<usize>();
    let longest = schedule.head_dim.max(schedule.head_dim_v);
    let others = if longest <= 64 { 40..TILE } else { 2 * TILE + 1..177 };
    let is_other = schedule.blocks == 1 && others.contains(&columns) && columns.is_multiple_of(8);
    assert!(columns == TILE || is_other, "{schedule}");
    if schedule.mask == Mask::OneHot {
        let has_more = columns > TILE || LINES.contains(&schedule.column_tile());
        let most = if has_more { 32 } else { 16 };
        assert!(slots(schedule) <= most, "{schedule}: {} slots", slots(schedule));
        assert!(schedule.bias.is_none() || slots(schedule) <= 16, "{schedule}");
        assert!(schedule.rank > 1, "{schedule}");
    } else if schedule.mask == Mask::Linear {
        // Along the other axes there is nothing to mask, and one tile.
        let is_line = schedule.rank == 1 || schedule.stack == 1 && schedule.kv_tile[2] == 1;
        assert!(is_line, "{schedule}");
    }
}

#[test]
fn names_tell_schedules_apart() {
    let mut named = std::collections::HashMap::new();
    for problem in sweep() {
        for element in [Element::F16, Element::Bf16] {
            for schedule in candidates(&problem, element) {
                let before = named.insert(schedule.to_string(), schedule);
                assert!(before.is_none_or(|before| before == schedule), "{schedule}");
            }
        }
    }
}

/// The tiles of rows along one axis of a CTA: columns that its rows see, first column, blocks of
/// columns.
struct Line {
    seen: Vec<(usize, usize)>,
    first: usize,
    blocks: usize,
}

/// Straight from [`Axis::window`] or [`Axis::visitors`].
fn lines(axis: &Axis, pass: Pass, row_tile: usize, column_tile: usize) -> Vec<Line> {
    let rows = if pass == Pass::Keys { axis.keys } else { axis.queries };
    let see = |row| if pass == Pass::Keys { axis.visitors(row) } else { axis.window(row) };
    let mut lines = vec![];
    for group in 0..axis.dilation {
        let members: Vec<usize> = (group..rows).step_by(axis.dilation).collect();
        for rows in members.chunks(row_tile) {
            let seen: Vec<(usize, usize)> = rows
                .iter()
                .map(|row| see(*row))
                .map(|(first, count)| (first / axis.dilation, first / axis.dilation + count))
                .collect();
            let first = seen.iter().map(|range| range.0).min().expect("a row");
            let end = seen.iter().map(|range| range.1).max().expect("a row");
            lines.push(Line { first, blocks: (end - first).div_ceil(column_tile), seen });
        }
    }
    lines
}

/// Axes of which some, or all, can be cut into whole blocks.
fn blocky() -> Vec<Problem> {
    let axes = [
        axis(64, 64, 1, 1, false),
        axis(128, 128, 1, 1, false),
        axis(128, 64, 64, 1, false),
        axis(192, 64, 1, 1, false),
        axis(16, 8, 8, 1, false),
        axis(8, 8, 1, 1, false),
        axis(16, 8, 8, 2, false),
        axis(16, 16, 1, 1, true),
        axis(12, 8, 4, 1, false),
    ];
    let mut problems: Vec<Problem> = axes.iter().map(|line| problem(&[*line], 64)).collect();
    for one in &axes[4..] {
        for other in &axes[4..] {
            problems.push(problem(&[*one, *other], 64));
            problems.push(problem(&[axis(8, 4, 4, 1, false), *one, *other], 128));
        }
    }
    problems
}

/// Of the schedules of one kernel for each of the [`blocky`] problems.
pub(super) fn check_whole_blocks(candidates: impl Fn(&Problem) -> Vec<Schedule>) {
    let (mut with, mut without, mut one_blocks) = (0, 0, 0);
    for problem in blocky() {
        for schedule in candidates(&problem) {
            let of = |index: usize| {
                let (rows, columns) = (schedule.cta_tile()[index], schedule.column_tile()[index]);
                (lines(&problem.axes[index], schedule.pass, rows, columns), columns)
            };
            let all = [of(0), of(1), of(2)];
            let is_whole = all.iter().all(|(lines, column_tile)| {
                lines.iter().all(|line| {
                    let visited = (line.first, line.first + line.blocks * column_tile);
                    line.seen.iter().all(|range| *range == visited)
                })
            });
            let columns = all.each_ref().map(|(_, columns)| *columns);
            let lines = all.map(|(lines, _)| lines);
            let [z, y, x] = &lines;
            let is_even = z.iter().all(|z| {
                y.iter().all(|y| {
                    x.iter()
                        .all(|x| (z.blocks * y.blocks * x.blocks).is_multiple_of(schedule.blocks))
                })
            });
            let claimed = sees_all(&schedule, &problem);
            assert!(!claimed || (is_whole && is_even), "{schedule}: {problem:?}");
            // A single block a step is never half empty.
            assert!(claimed || !is_whole || schedule.blocks > 1, "{schedule}: {problem:?}");
            assert_eq!(claimed, schedule.mask == Mask::None);
            for (index, one_block) in schedule.one_block.into_iter().enumerate() {
                let is_short = problem.axes[index].kernel_size <= columns[index];
                let has_one = is_short && lines[index].iter().all(|line| line.blocks <= 1);
                let is_masked = schedule.mask == Mask::OneHot && index >= MAX_RANK - problem.rank();
                assert_eq!(one_block, is_masked && has_one, "{schedule}: {problem:?}");
                one_blocks += usize::from(one_block);
            }
            *(if claimed { &mut with } else { &mut without }) += 1;
        }
    }
    assert!(with > 100 && without > 100, "{with} whole, {without} not");
    assert!(one_blocks > 100, "{one_blocks} axes of one block");
}

#[test]
fn whole_blocks_are_seen_by_every_query() {
    check_whole_blocks(|problem| candidates(problem, Element::Bf16));
}
