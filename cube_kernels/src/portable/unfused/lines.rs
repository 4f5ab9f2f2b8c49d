//! [`dots`](super::dots()) with the tokens of a line of queries in shared memory.
//!
//! A cube owns neighboring queries of one dilation group along the fastest axis, of one head. They have the same windows along the slower
//! axes, so that the cube takes their tokens line by line: for each line of slots, the tokens that any of them sees go into shared memory
//! once, and each unit has its query in registers and takes every `units / queries`-th slot. Weights are gathered in shared memory too, and
//! written row by row, where neighbors in a row lie next to each other.
//!
//! Shared memory: the tokens of a line, in their own type, with a vector between rows so that units that read neighboring tokens read
//! different banks; and the weights of all queries.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::geometry::{Geometry, Position, geometry_as_is};
use super::super::plan::Launch;
use super::super::selection::Limits;
use super::launch::{DotsInputs, is_strided, tensor};
use crate::Problem;
use crate::cube::{Input, buffer, grid, narrow};

/// Most bytes of shared memory: what four cubes of a large GPU share, and what every GPU of NVIDIA gives a cube.
const MAX_SHARED: usize = 48 << 10;
/// Most elements of a row, which a unit holds in registers.
const MAX_DIM: usize = 64;

/// Queries and units of a cube.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LineTile {
    /// Queries of a cube.
    pub queries: usize,
    /// Units, a multiple of the queries.
    pub units: usize,
}

impl LineTile {
    /// The tile for a problem on a device, or none where rows are better off each for itself.
    pub fn plan(problem: &Problem, limits: &Limits, size: usize) -> Option<Self> {
        let longest = problem.axes[2].group(0).0;
        let queries = if longest > 32 { 64 } else { 32 };
        let tile = Self { queries, units: 2 * queries };
        let is_worth = !limits.is_cpu && limits.allows_tiles && longest > 8;
        (is_worth && tile.fits(problem, limits, size)).then_some(tile)
    }

    /// Whether the kernel computes a problem of elements of `size` bytes within the limits of a device.
    pub fn fits(&self, problem: &Problem, limits: &Limits, size: usize) -> bool {
        let bytes = size * (self.token_rows(problem) * (problem.head_dim + 16 / size))
            + size * self.queries * problem.slots();
        problem.additional == 0
            && problem.head_dim <= MAX_DIM
            && self.units.is_multiple_of(self.queries)
            && self.units <= limits.units
            && bytes <= limits.shared_memory.min(MAX_SHARED)
    }

    /// The most tokens of a line that its queries see.
    fn token_rows(&self, problem: &Problem) -> usize {
        // Windows of neighbors begin at most a stride apart.
        self.queries + problem.axes[2].kernel_size + problem.axes[2].stride
    }

    /// Cubes along the fastest axis for each dilation group.
    fn tiles(&self, problem: &Problem) -> usize {
        problem.axes[2].group(0).0.div_ceil(self.queries)
    }
}

#[derive(CubeType, CubeLaunch)]
struct Inputs<'a, F: Float, N: Size> {
    rows: Input<'a, F, N>,
    space: Input<'a, F, N>,
    bias: &'a [F],
}

/// Compile-time parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Flags {
    tile: LineTile,
    /// Vectors of a row.
    lines: usize,
    /// Rows of tokens in shared memory.
    token_rows: usize,
    /// Slots of a window, and those along the fastest axis.
    slots: usize,
    along_x: usize,
    is_strided: bool,
    has_bias: bool,
}

impl Flags {
    /// Vectors between rows in shared memory: an odd number.
    fn pitch(&self) -> usize {
        self.lines | 1
    }
}

/// What cubes there are.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Cubes {
    count: usize,
    /// Along the fastest axis for each dilation group.
    tiles: usize,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn lines_kernel<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    weights: &mut [F],
    geometry: Geometry,
    scale: f32,
    hidden: f32,
    cubes: Cubes,
    #[comptime] flags: Flags,
    #[define(F)] _dtype: ElemType,
) {
    if CUBE_POS >= cubes.count {
        terminate!();
    }
    let (queries, units) = comptime!((flags.tile.queries, flags.tile.units));
    let (lines, pitch) = comptime!((flags.lines, flags.pitch()));
    let (slots, along_x) = comptime!((flags.slots, flags.along_x));
    let first = CUBE_POS % cubes.tiles * queries;
    let rest = CUBE_POS / cubes.tiles;
    let member = rest % geometry.x.dilation;
    let rest = rest / geometry.x.dilation;
    let group = geometry.x.group(member, comptime!(flags.is_strided));
    if first >= group.length {
        terminate!();
    }
    let y = rest % geometry.y.queries;
    let rest = rest / geometry.y.queries;
    let z = rest % geometry.z.queries;
    let rest = rest / geometry.z.queries;
    let head = rest % geometry.heads;
    let batch = rest / geometry.heads;
    let there = min(queries, group.length - first);
    let unit = UNIT_POS as usize;

    let mut tokens =
        Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(flags.token_rows * pitch), 16usize);
    let mut gathered = Shared::<[F]>::new_slice(comptime!(queries * slots));
    for turn in 0..comptime!((queries * slots).div_ceil(units)) {
        let place = unit + turn * units;
        if place < comptime!(queries * slots) {
            gathered[place] = F::cast_from(hidden);
        }
    }

    // Behind the last query there is none, and the last one is read again.
    let own = min(unit % queries, there - 1);
    let x = (first + own) * geometry.x.dilation + member;
    let at = Position { z, y, x };
    let place = inputs.rows.strides.vector(batch, z, y, x, head);
    let mut row = Array::<Vector<f32, N>>::new(lines);
    #[unroll]
    for line in 0..lines {
        row[line] = Vector::cast_from(inputs.rows.vectors[place + line]);
    }
    let windows = geometry.windows(&at);
    let start = group.start(first + own);
    let begin = group.start(first);
    let end = group.end(first + there - 1);
    let step = geometry.x.dilation * inputs.space.strides.x;
    let head_kv = head / geometry.group_size();

    for i in 0..windows.z.count {
        let z = windows.z.first + i * geometry.z.dilation;
        for j in 0..windows.y.count {
            let y = windows.y.first + j * geometry.y.dilation;
            let x = begin * geometry.x.dilation + member;
            let place = inputs.space.strides.vector(batch, z, y, x, head_kv);
            sync_cube();
            let count = (end - begin) * lines;
            for turn in 0..count.div_ceil(units) {
                let number = unit + turn * units;
                if number < count {
                    let (token, line) = (number / lines, number % lines);
                    tokens[token * pitch + line] =
                        inputs.space.vectors[place + token * step + line];
                }
            }
            sync_cube();
            let line_of_slots = (i * geometry.y.kernel_size + j) * along_x;
            let mut bias = 0usize;
            if comptime!(flags.has_bias) {
                let along_z = geometry.z.offset(at.z, z);
                let along_y = geometry.y.offset(at.y, y);
                let line = (head * geometry.z.offsets() + along_z) * geometry.y.offsets() + along_y;
                bias = line * geometry.x.offsets() + geometry.x.offset(at.x, windows.x.first);
            }
            for turn in 0..comptime!(along_x.div_ceil(units / queries)) {
                let slot = unit / queries + turn * comptime!(units / queries);
                if slot < windows.x.count && unit % queries < there {
                    let token = (start - begin + slot) * pitch;
                    let mut sum = Vector::<f32, N>::new(0.0f32);
                    #[unroll]
                    for line in 0..lines {
                        sum += row[line] * Vector::<f32, N>::cast_from(tokens[token + line]);
                    }
                    let mut weight = sum.vector_sum() * scale;
                    if comptime!(flags.has_bias) {
                        weight += f32::cast_from(inputs.bias[bias + slot]);
                    }
                    gathered[own * slots + line_of_slots + slot] = narrow::<F>(weight);
                }
            }
        }
    }
    sync_cube();
    let line = (batch * geometry.z.queries + z) * geometry.y.queries + y;
    for turn in 0..comptime!((queries * slots).div_ceil(units)) {
        let place = unit + turn * units;
        let (query, slot) = (place / slots, place % slots);
        if query < there {
            let x = (first + query) * geometry.x.dilation + member;
            let row = (line * geometry.x.queries + x) * geometry.heads + head;
            weights[row * slots + slot] = gathered[place];
        }
    }
}

pub(super) fn launch(
    launch: &Launch<'_>,
    tile: LineTile,
    inputs: &DotsInputs<'_>,
    hidden: f32,
    weights: &Handle,
) {
    let (problem, vector) = (launch.problem, launch.vector_size);
    let [z, y, x] = problem.axes;
    let tiles = tile.tiles(problem);
    let rows = problem.batch * problem.heads * z.queries * y.queries;
    let count = rows * x.dilation * tiles;
    let flags = Flags {
        tile,
        lines: problem.head_dim / vector,
        token_rows: tile.token_rows(problem),
        slots: problem.slots(),
        along_x: x.kernel_size,
        is_strided: is_strided(problem),
        has_bias: inputs.bias.is_some(),
    };
    // SAFETY: every index is below the sizes that the buffers were checked against, and those of shared memory.
    unsafe {
        lines_kernel::launch_unchecked(
            launch.client,
            grid(launch.client, count),
            CubeDim::new_1d(tile.units as u32),
            launch.address_type,
            vector,
            InputsLaunch::new(
                Input::argument(tensor(inputs.rows), vector),
                Input::argument(tensor(inputs.tokens.space), vector),
                buffer(inputs.bias.unwrap_or(&inputs.rows.handle)),
            ),
            buffer(weights),
            geometry_as_is(problem),
            problem.scale as f32,
            hidden,
            CubesLaunch::new(count, tiles),
            flags,
            launch.dtype,
        );
    }
}
