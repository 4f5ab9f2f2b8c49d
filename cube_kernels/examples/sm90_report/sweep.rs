//! What the compile gate builds.

use std::collections::{BTreeMap, HashSet};

use burn_natten_kernels::native::sm90::{
    Element, Pass, Schedule, SelectSchedule, Union, backward_candidates, candidates, estimate,
    plan, plan_backward, planned_blocks, planned_blocks_backward,
};
use burn_natten_kernels::sparse::Selection;
use burn_natten_kernels::{Axis, BlockSparse, MAX_RANK, Problem, catalogue};

/// The table of all that the sweep compiles.
const REPORT: &str = include_str!("../../REPORT.md");

/// Schedules that the table lacks of which a sample takes one each, at most.
const UNLISTED: usize = 24;

/// How much is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// What the planner chooses for the catalogue, one of every kind, and what the table lacks.
    Sample,
    /// What the table has.
    Sweep,
    /// Every candidate of the catalogue, and a wider sweep.
    All,
}

/// Each class of head dimensions: the accumulators and the tiles of shared memory differ.
pub fn dims(all: bool) -> &'static [(usize, usize)] {
    match all {
        false => &[
            (8, 8),
            (40, 24),
            (64, 64),
            (64, 128),
            (96, 72),
            (128, 128),
            (136, 8),
            (8, 256),
            (256, 256),
        ],
        true => &[
            (8, 8),
            (16, 64),
            (24, 24),
            (32, 32),
            (40, 72),
            (48, 48),
            (56, 56),
            (64, 64),
            (72, 40),
            (80, 80),
            (96, 96),
            (104, 104),
            (112, 112),
            (120, 120),
            (128, 64),
            (128, 128),
            (136, 136),
            (160, 160),
            (192, 128),
            (192, 192),
            (224, 224),
            (248, 248),
            (256, 64),
            (64, 256),
            (256, 256),
        ],
    }
}

/// What is compiled, each schedule once.
pub fn schedules(extent: Extent) -> Vec<Schedule> {
    let all = extent == Extent::All;
    let mut schedules = BTreeMap::new();
    for entry in catalogue::all() {
        add(&mut schedules, planned(&entry.problem, Element::Bf16));
        if all {
            add(&mut schedules, planned(&entry.problem, Element::F16));
            add(&mut schedules, every(&entry.problem).into_iter().flatten());
        }
    }
    for sparse in blocks(&[64, 128], &[false]) {
        add(&mut schedules, planned_of_blocks(&sparse));
    }
    let chosen = schedules.clone();
    for sparse in blocks(&[8, 40, 64, 96, 128], &[false, true]) {
        add(&mut schedules, planned_of_blocks(&sparse));
    }
    sweep(&mut schedules, all);
    if extent == Extent::Sample { sample(chosen, schedules) } else { schedules }
        .into_values()
        .collect()
}

/// Schedules by their names.
type Schedules = BTreeMap<String, Schedule>;

fn add(schedules: &mut Schedules, more: impl IntoIterator<Item = Schedule>) {
    schedules.extend(more.into_iter().map(|schedule| (schedule.to_string(), schedule)));
}

/// Head dimensions, ranks, options and shapes of CTA, until every value of every macro and every
/// tile with every stacking axis has been met.
fn sweep(schedules: &mut Schedules, all: bool) {
    let problems: Vec<Problem> = dims(all)
        .iter()
        .flat_map(|dims| {
            (1..=MAX_RANK)
                .flat_map(move |rank| OPTIONS_OF_AXES.map(|option| problem(*dims, rank, option)))
        })
        .collect();
    for problem in shifted().into_iter().chain(biased()) {
        add(schedules, planned(&problem, Element::Bf16));
    }
    for (index, problem) in problems.iter().enumerate() {
        // Every other problem in the other type, or both.
        let elements = [Element::Bf16, Element::F16];
        let taken = if all { &elements[..] } else { &elements[index % 2..][..1] };
        for element in taken {
            add(schedules, planned(problem, *element));
        }
        if (problem.head_dim, problem.head_dim_v) == (64, 64) || all {
            let kernels = every(problem).into_iter();
            add(schedules, kernels.flat_map(|all| best_of_each_shape(problem, all)));
        }
    }
    // What has not been met so far.
    let mut seen: HashSet<_> = schedules.values().flat_map(traits).collect();
    for problem in &problems {
        for schedule in every(problem).into_iter().flatten() {
            let before = seen.len();
            seen.extend(traits(&schedule));
            if seen.len() > before {
                schedules.insert(schedule.to_string(), schedule);
            }
        }
    }
}

/// Of `all`, what was `chosen`, one that shows each value of a macro but for the extents of tiles,
/// and some of what the table lacks.
fn sample(chosen: Schedules, all: Schedules) -> Schedules {
    let mut taken = chosen;
    let mut seen: HashSet<_> = taken.values().flat_map(kinds).collect();
    let mut unlisted = vec![];
    for (name, schedule) in all {
        let before = seen.len();
        seen.extend(kinds(&schedule));
        if seen.len() > before {
            taken.insert(name, schedule);
        } else if !REPORT.contains(&format!("| {name} |")) {
            unlisted.push((name, schedule));
        }
    }
    if !unlisted.is_empty() {
        eprintln!(
            "{} more schedules are not in REPORT.md, {UNLISTED} of them are taken",
            unlisted.len()
        );
    }
    let step = unlisted.len().div_ceil(UNLISTED).max(1);
    taken.extend(unlisted.into_iter().step_by(step));
    taken
}

/// Problems whose queries stand elsewhere than keys of the same number, some of them in front of all keys.
fn shifted() -> Vec<Problem> {
    let dims = [(64, 64), (128, 128), (256, 256)];
    let options = [Options::Causal, Options::All];
    let mut problems = vec![];
    for (dims, rank) in
        dims.into_iter().flat_map(|dims| (1..=MAX_RANK).map(move |rank| (dims, rank)))
    {
        for option in options {
            let mut problem = problem(dims, rank, option);
            problem.axes[MAX_RANK - 1] = Axis::dense(200, 128, true);
            problems.push(problem);
        }
    }
    problems
}

/// Problems with a relative position bias: windows that Swin, NAT and videos have, of which a kernel is specialised by the extents.
fn biased() -> Vec<Problem> {
    let dims = [(32, 32), (64, 64), (128, 128), (192, 192)];
    let options = [Options::Window, Options::Causal, Options::All];
    let mut problems = vec![];
    for (dims, rank) in
        dims.into_iter().flat_map(|dims| (1..=MAX_RANK).map(move |rank| (dims, rank)))
    {
        for option in options {
            let mut problem = problem(dims, rank, option);
            for axis in &mut problem.axes[MAX_RANK - rank..] {
                axis.kernel_size = [63, 7, 5][rank - 1];
            }
            problems.push(problem.with_bias(true));
        }
    }
    problems
}

/// Block-sparse attention: of blocks that papers have, of 64 tokens, and of one query whose heads fill a tile.
fn blocks(dims: &[usize], is_causal: &[bool]) -> Vec<BlockSparse> {
    let mut all = vec![];
    for (dim, is_causal) in
        dims.iter().flat_map(|dim| is_causal.iter().map(move |bit| (*dim, *bit)))
    {
        let dense = |lengths: &[usize]| {
            let axes = lengths.iter().enumerate();
            let axes: Vec<_> = axes
                .map(|(index, length)| Axis::dense(*length, *length, is_causal && index == 0))
                .collect();
            Problem::new(axes, 16, dim)
        };
        let (line, plane, space) = (dense(&[4096]), dense(&[96, 96]), dense(&[30, 48, 80]));
        let grouped = line.with_heads_kv(1);
        all.extend([
            BlockSparse::new(line, [128], [128]),
            BlockSparse::new(line, [64], [64]),
            BlockSparse::new(grouped, [1], [64]).with_lists(1, 0),
            BlockSparse::new(grouped, [128], [16]).with_lists(1, 0),
            BlockSparse::new(plane, [8, 16], [8, 16]),
            BlockSparse::new(space, [6, 8, 8], [6, 8, 8]),
            BlockSparse::new(space, [4, 4, 8], [4, 4, 8]),
        ]);
    }
    all
}

/// Kernels for queries that have lists of their own.
pub fn unions(extent: Extent) -> Vec<Union> {
    let (groups, dims): (&[usize], &[usize]) = match extent {
        Extent::Sample => (&[4, 16], &[128]),
        _ => (&[1, 3, 4, 8, 12, 16, 32], &[16, 32, 48, 64, 96, 128]),
    };
    let mut all = vec![];
    for (group, dim) in groups.iter().flat_map(|group| dims.iter().map(move |dim| (*group, *dim))) {
        let problem = Problem::new([Axis::dense(4096, 4096, dim > 32)], group, dim);
        for (keys, dim_v) in [(64, dim), (32, dim), (16, 64)] {
            let problem = problem.with_heads_kv(1).with_head_dim_v(dim_v);
            let sparse = BlockSparse::new(problem, [1], [keys]).with_lists(1, 16);
            all.push(Union::of(&sparse, Element::Bf16).expect("supported"));
        }
    }
    all
}

/// Kernels that select blocks, as many rows a CTA as there can be and few.
pub fn selections(extent: Extent) -> Vec<SelectSchedule> {
    let (groups, dims): (&[usize], &[usize]) = match extent {
        Extent::Sample => (&[4, 16], &[128]),
        _ => (&[1, 2, 3, 4, 8, 16, 32, 64], &[32, 64, 96, 128, 256]),
    };
    let mut all = vec![];
    for (group, dim) in groups.iter().flat_map(|group| dims.iter().map(move |dim| (*group, *dim))) {
        let mut paper = Selection::new(4096, group, dim);
        (paper.heads_kv, paper.cmp_top) = (1, Some(16));
        let mut whole = paper;
        (whole.cmp_block, whole.cmp_stride) = (64, 64);
        for (selection, is_super) in [(paper, false), (whole, false), (whole, true)] {
            for multiprocessors in [1, 1 << 20] {
                let planned =
                    SelectSchedule::plan(&selection, Element::Bf16, is_super, multiprocessors);
                all.push(planned.expect("supported"));
            }
        }
    }
    let mut seen = HashSet::new();
    all.retain(|schedule| seen.insert(*schedule));
    all
}

/// What the selection chooses for both passes of block-sparse attention.
fn planned_of_blocks(sparse: &BlockSparse) -> Vec<Schedule> {
    let forward = planned_blocks(sparse, Element::Bf16).expect("supported");
    let backward = planned_blocks_backward(sparse, Element::Bf16).expect("supported");
    std::iter::once(forward).chain(backward.schedules().copied()).collect()
}

/// What the selection chooses for both passes of a problem.
fn planned(problem: &Problem, element: Element) -> Vec<Schedule> {
    let forward = plan(problem, element).expect("supported");
    let backward = plan_backward(problem, element, None).expect("supported");
    std::iter::once(forward).chain(backward.schedules().copied()).collect()
}

/// All candidates of each kernel of a problem, the forward pass's first.
fn every(problem: &Problem) -> Vec<Vec<Schedule>> {
    let element = Element::Bf16;
    let plan = plan_backward(problem, element, None).expect("supported");
    let kernels = plan.queries.iter().chain(&plan.keys);
    let backward = kernels.map(|of| backward_candidates(problem, element, of.pass, of.gradients));
    std::iter::once(candidates(problem, element)).chain(backward).collect()
}

/// Options of the problems of the sweep, from the fewest instructions to the most.
#[derive(Clone, Copy)]
enum Options {
    Dense,
    Window,
    Causal,
    All,
}

const OPTIONS_OF_AXES: [Options; 4] =
    [Options::Dense, Options::Window, Options::Causal, Options::All];

fn problem((head_dim, head_dim_v): (usize, usize), rank: usize, option: Options) -> Problem {
    let mut axes = [Axis::UNIT; MAX_RANK];
    for (index, axis) in axes.iter_mut().enumerate().skip(MAX_RANK - rank) {
        *axis = Axis::dense(128, 128, false);
        match option {
            Options::Dense => {}
            Options::Window => axis.kernel_size = 21,
            Options::Causal => (axis.kernel_size, axis.is_causal) = (21, true),
            Options::All => {
                (axis.kernel_size, axis.stride, axis.dilation) = (21, 3, 2);
                axis.is_causal = index == MAX_RANK - 1;
            }
        }
    }
    let additional = if matches!(option, Options::All) { 77 } else { 0 };
    Problem::new(axes, 4, head_dim)
        .with_heads_kv(2)
        .with_head_dim_v(head_dim_v)
        .with_additional(additional)
}

/// The most promising of the schedules with each shape of CTA.
fn best_of_each_shape(problem: &Problem, mut schedules: Vec<Schedule>) -> Vec<Schedule> {
    schedules.sort_by(|a, b| estimate(a, problem).total_cmp(&estimate(b, problem)));
    let mut shapes = HashSet::new();
    schedules.retain(|s| shapes.insert((s.warpgroups, s.blocks, s.ctas, s.teams)));
    schedules
}

/// An example of something, in a pass: a macro's value; a tile of queries (0) or keys (1) with the
/// stacking axis.
#[derive(PartialEq, Eq, Hash)]
enum Trait {
    Macro(Pass, &'static str, usize),
    Tile(Pass, usize, [usize; MAX_RANK], usize),
}

/// Macros that spell tiles: they are the sweep's to vary.
const EXTENTS: [&str; 6] = ["ROW_X", "ROW_Y", "ROW_Z", "COLUMN_X", "COLUMN_Y", "COLUMN_Z"];

/// What kinds of kernel a schedule is one of.
fn kinds(schedule: &Schedule) -> impl Iterator<Item = Trait> {
    let pass = schedule.pass;
    let macros = schedule.macros().into_iter().filter(|(name, _)| !EXTENTS.contains(name));
    macros.map(move |(name, value)| Trait::Macro(pass, name, value))
}

/// What a schedule is one example of.
fn traits(schedule: &Schedule) -> Vec<Trait> {
    let pass = schedule.pass;
    let macros = schedule.macros().into_iter();
    let macros = macros.map(|(name, value)| Trait::Macro(pass, name, value));
    let tiles = [schedule.q_tile, schedule.kv_tile].into_iter().enumerate();
    let tiles = tiles.map(|(which, tile)| Trait::Tile(pass, which, tile, schedule.stack));
    macros.chain(tiles).collect()
}
