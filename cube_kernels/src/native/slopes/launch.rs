//! The memory that they are in, as launches see it.

use std::ops::Range;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::{BLOCK_BYTES, Blocks, lanes};
use crate::native::backward::STATISTICS_MAP;
use crate::native::grid::{Grid, parameters};
use crate::native::launch::{Argument, Buffer, MapElement, TensorMap};
use crate::tiling::Tiling;
use crate::{MAX_RANK, Pass, Problem};

/// Slopes of some heads after the others, in lanes.
pub(in crate::native) struct Slopes {
    /// Of each lane, apart: memory of other sizes is easier to have again.
    memory: Vec<Handle>,
    blocks: Blocks,
    /// (sample, key head) pairs, and those of a launch, which divide them.
    all: usize,
    at_once: usize,
}

/// `Slopes` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    pointers: [u64; 1],
    first_head: i32,
    first_tile: i32,
    of_head: i32,
    width: i32,
    tail: i32,
    keys: [i32; MAX_RANK],
    pitch: [i32; MAX_RANK],
    padding: i32,
}

const _: () = assert!(size_of::<Params>() == 8 + 4 * 12);

/// Blocks are eight rows of a map.
const ROWS: usize = 8;

impl Slopes {
    /// Memory for those of so many key heads, in the tiles of the kernels.
    ///
    /// # Panics
    ///
    /// If the kernels keep no slopes of the problem.
    pub(in crate::native) fn new(
        client: &Client,
        problem: &Problem,
        tiling: &Tiling,
        at_once: usize,
    ) -> Self {
        let blocks = Blocks::of(problem, tiling).expect("the schedules fit");
        let all = problem.batch * problem.heads_kv;
        let lane = |_| client.empty(at_once * blocks.bytes(problem));
        Self { memory: (0..lanes(all, at_once)).map(lane).collect(), blocks, all, at_once }
    }

    /// The lane of a launch.
    pub(in crate::native) fn lane(&self, grid: &Grid<'_>) -> usize {
        grid.key_heads.start / self.at_once % self.memory.len()
    }

    /// The key heads of each launch.
    pub(in crate::native) fn key_heads(&self) -> impl Iterator<Item = Range<usize>> {
        (0..self.all).step_by(self.at_once).map(|first| first..first + self.at_once)
    }

    /// Hands them to a kernel.
    pub(in crate::native) fn add(
        &self,
        grid: &Grid<'_>,
        buffers: &mut Vec<Buffer>,
        arguments: &mut [Argument],
    ) {
        let slot = buffers.len();
        let group = grid.problem.group_size();
        buffers.push(match grid.cut.pass {
            Pass::Keys => Buffer::written(&self.memory[self.lane(grid)]),
            Pass::Forward | Pass::Queries => {
                arguments[STATISTICS_MAP] = Argument::TensorMap(self.map(slot, group));
                Buffer::read(&self.memory[self.lane(grid)])
            }
        });
        let (mut width, mut tail) = (0, 0);
        let (mut keys, mut pitch) = ([1; MAX_RANK], [0; MAX_RANK]);
        match self.blocks {
            Blocks::Line { width: blocks, tail: last, .. } => (width, tail) = (blocks, last),
            Blocks::Boxes { queries, keys: rings, .. } => {
                keys = rings;
                let mut blocks = rings.iter().product();
                for index in (0..MAX_RANK).rev() {
                    pitch[index] = blocks;
                    blocks *= queries[index];
                }
            }
        }
        let params = Params {
            pointers: [0],
            first_head: (grid.key_heads.start * group) as i32,
            first_tile: grid.first_tile() as i32,
            of_head: self.blocks.of_head() as i32,
            width: width as i32,
            tail: tail as i32,
            keys: keys.map(|boxes| boxes as i32),
            pitch: pitch.map(|blocks| blocks as i32),
            padding: 0,
        };
        // SAFETY: the assertion above counts every byte.
        let params = unsafe { parameters(params, &[slot]) };
        arguments.last_mut().expect("parameters come last").append(params);
    }

    /// A map of nothing but bytes: a block is a box of it.
    fn map(&self, buffer: usize, group: usize) -> TensorMap {
        let width = BLOCK_BYTES / ROWS;
        let rows = ROWS * self.at_once * group * self.blocks.of_head();
        TensorMap {
            buffer,
            offset: 0,
            element: MapElement::F32,
            sizes: [width / size_of::<f32>(), rows, 1, 1, 1].map(|size| size as u64),
            strides: [width; 4].map(|stride| stride as u64),
            tile: [(width / size_of::<f32>()) as u32, ROWS as u32, 1, 1, 1],
            steps: [1; 5],
        }
    }
}
