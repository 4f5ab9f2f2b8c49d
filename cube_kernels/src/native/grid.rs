//! How a launch covers a problem: its tiles, the boxes of its tensor maps, and what the kernels are told of
//! them. Nothing here needs a device.

use std::ffi::CStr;
use std::ops::Range;
use std::sync::Arc;

use super::compile::Cubin;
use super::forward::ELEMENT;
use super::launch::{Argument, DeviceInfo, Kernel, MapElement, TensorMap};
use super::statistics::{STATISTICS, pitch, places};
use super::{Cut, Element, runs};
use crate::{Axis, KernelError, MAX_RANK, Pass, Problem, Shape, Strided, window};

#[cfg(test)]
mod tests;

/// The dilation groups, along each axis, that a launch covers: all of those that TMA can step over,
/// one of the others.
pub(crate) fn launches(cut: &Cut, problem: &Problem) -> Vec<[usize; MAX_RANK]> {
    let mut launches = vec![[0; MAX_RANK]];
    for (index, axis) in problem.axes.iter().enumerate() {
        if cut.dilates_in_kernel(axis, index) {
            continue;
        }
        launches = (0..axis.dilation)
            .flat_map(|residue| {
                launches.iter().map(move |launch| {
                    let mut launch = *launch;
                    launch[index] = residue;
                    launch
                })
            })
            .collect();
    }
    launches
}

/// The launches of a schedule on a device.
pub(crate) fn grids<'a>(
    cut: Cut,
    problem: &'a Problem,
    device: &DeviceInfo,
) -> impl Iterator<Item = Grid<'a>> {
    let multiprocessors = device.multiprocessors as usize;
    let grids = launches(&cut, problem)
        .into_iter()
        .map(move |residues| Grid::new(cut, problem, multiprocessors, residues));
    // Of a part of an axis, some groups may have no rows.
    grids.filter(|grid| grid.tiles() > 0)
}

/// A launch of a schedule: the dilation groups it covers on a device.
pub(crate) struct Grid<'a> {
    pub(crate) cut: Cut,
    pub(crate) problem: &'a Problem,
    pub(crate) multiprocessors: usize,
    pub(crate) residues: [usize; MAX_RANK],
    /// The (sample, key head) pairs whose rows it has.
    pub(crate) key_heads: Range<usize>,
}

/// Counters of a launch of a backward pass: of the tiles that are handed out, for each member of a chunk.
pub(crate) const COUNTERS: usize = 32;

/// The kernels' `AxisParams`.
#[repr(C)]
#[derive(Clone, Copy)]
struct AxisParams {
    queries: i32,
    keys: i32,
    kernel: i32,
    stride: i32,
    groups: i32,
    dilation: i32,
    residue: i32,
    tiles: i32,
    step: i32,
    pitch: i32,
}

/// The kernels' `Space`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Space {
    axes: [AxisParams; MAX_RANK],
    heads: i32,
    chunk: i32,
    tiles: i32,
    batch_step: i32,
}

impl<'a> Grid<'a> {
    /// Of all heads.
    pub(crate) fn new(
        cut: Cut,
        problem: &'a Problem,
        multiprocessors: usize,
        residues: [usize; MAX_RANK],
    ) -> Self {
        Self {
            cut,
            problem,
            multiprocessors,
            residues,
            key_heads: 0..problem.batch * problem.heads_kv,
        }
    }

    fn in_kernel(&self, index: usize) -> bool {
        self.cut.dilates_in_kernel(&self.problem.axes[index], index)
    }

    /// The dilation groups that this launch covers along an axis.
    pub(crate) fn covered(&self, index: usize) -> std::ops::Range<usize> {
        let first = if self.in_kernel(index) { 0 } else { self.residues[index] };
        first..first + self.groups(index)
    }

    /// Dilation groups that this launch covers along an axis.
    fn groups(&self, index: usize) -> usize {
        if self.in_kernel(index) { self.problem.axes[index].dilation } else { 1 }
    }

    /// Tiles of a CTA in the longest group.
    pub(crate) fn tiles_of(&self, index: usize) -> usize {
        let axis = &self.problem.axes[index];
        let length = match self.cut.pass {
            Pass::Forward | Pass::Queries => axis.queries,
            Pass::Keys => axis.keys,
        };
        let rows = window::group_length(length, axis.dilation, self.residues[index]);
        rows.div_ceil(self.cut.cta_tile[index])
    }

    /// Heads of the rows: as many as splits for each key head.
    fn heads(&self) -> usize {
        match self.cut.pass {
            Pass::Forward | Pass::Queries => self.problem.heads,
            Pass::Keys => self.problem.heads_kv * self.cut.splits,
        }
    }

    /// Heads of the rows for each one of the keys.
    fn heads_of_key_head(&self) -> usize {
        self.heads() / self.problem.heads_kv
    }

    /// The (sample, head) pairs of the rows.
    fn pairs(&self) -> usize {
        self.key_heads.len() * self.heads_of_key_head()
    }

    /// Tiles of CTAs.
    pub(crate) fn tiles(&self) -> usize {
        self.tiles_of_head() * self.pairs()
    }

    /// Tiles of CTAs ahead of those of the launch, in the order of all.
    pub(crate) fn first_tile(&self) -> usize {
        self.tiles_of_head() * self.key_heads.start * self.heads_of_key_head()
    }

    /// The kernel of a program, to be launched on this grid.
    pub(crate) fn kernel(&self, cubin: &Arc<Cubin>, entry: &'static CStr) -> Kernel {
        Kernel {
            cubin: cubin.clone(),
            entry,
            grid: self.ctas(),
            block: self.cut.threads as u32,
            shared_memory: self.cut.shared_memory as u32,
        }
    }

    /// Tiles of CTAs for a head of a sample.
    pub(crate) fn tiles_of_head(&self) -> usize {
        (0..MAX_RANK).map(|index| self.groups(index) * self.tiles_of(index)).product()
    }

    /// Number of CTAs.
    pub(crate) fn ctas(&self) -> u32 {
        let most = if self.cut.samples_first { runs::MOST } else { usize::MAX };
        self.tiles().min(self.multiprocessors * self.cut.ctas).clamp(1, most) as u32
    }

    /// (sample, head) pairs that advance together through space. One group of heads, whose columns are
    /// the same, leaves most of the cache to the columns of a neighborhood. Where tiles differ in length,
    /// as along a causal axis, enough pairs to fill several rounds of CTAs with tiles that fall in
    /// length: then all CTAs get a like share.
    fn chunk(&self) -> usize {
        if self.cut.samples_first {
            return self.problem.batch;
        }
        let group = match self.cut.pass {
            Pass::Forward | Pass::Queries => self.problem.group_size(),
            Pass::Keys => 1,
        };
        if self.keeps_heads() {
            return self.heads_of_workers();
        }
        if !self.is_uneven() {
            return group;
        }
        let pairs = self.pairs() / group;
        let space = self.tiles_of_head();
        let wanted = (12 * self.ctas() as usize).div_ceil(space * group);
        let chunk = (1..=pairs).find(|chunk| pairs.is_multiple_of(*chunk) && *chunk >= wanted);
        group * chunk.unwrap_or(pairs)
    }

    /// Whether tiles differ in length, as along a causal axis.
    fn is_uneven(&self) -> bool {
        let uneven = |axis: &Axis| axis.is_causal && 4 * axis.kernel_size > axis.keys;
        self.problem.axes.iter().any(uneven)
    }

    /// Whether a pipeline has tiles of one head for as long as possible, whose bias it has in shared memory, while others have those of
    /// the heads beside it in memory.
    fn keeps_heads(&self) -> bool {
        self.problem.has_bias && !self.cut.samples_first && !self.is_uneven()
    }

    /// Most heads of which each has as many pipelines.
    fn heads_of_workers(&self) -> usize {
        let (heads, workers) = (self.heads(), self.ctas() as usize * self.cut.teams);
        let divides =
            |chunk: &usize| heads.is_multiple_of(*chunk) && workers.is_multiple_of(*chunk);
        (1..=heads.min(COUNTERS)).rev().find(divides).unwrap_or(1)
    }

    /// Samples whose tiles follow each other, before those of other heads; 0 where heads of a sample do.
    pub(crate) fn samples_of_heads(&self) -> usize {
        let is_in_turn = self.chunk() > 1 && !self.cut.samples_first && !self.keeps_heads();
        if is_in_turn { 0 } else { self.problem.batch }
    }

    /// The map of the query or of a tensor of its shape, in boxes of the query tile.
    pub(crate) fn query_map(&self, buffer: usize, tensor: &Strided, dim: usize) -> TensorMap {
        let queries = self.problem.axes.map(|axis| axis.queries);
        self.map(buffer, tensor, queries, self.cut.q_tile, self.problem.heads, dim)
    }

    /// The map of the key or the value, in boxes of the key tile.
    pub(crate) fn key_map(&self, buffer: usize, tensor: &Strided, dim: usize) -> TensorMap {
        let keys = self.problem.axes.map(|axis| axis.keys);
        self.map(buffer, tensor, keys, self.cut.kv_tile, self.problem.heads_kv, dim)
    }

    /// The dimensions of a map: vector, x, y, z together with the sample, head.
    fn map(
        &self,
        buffer: usize,
        tensor: &Strided,
        tokens: [usize; MAX_RANK],
        tile: [usize; MAX_RANK],
        heads: usize,
        dim: usize,
    ) -> TensorMap {
        let [batch, z, y, x, head] = tensor.strides;
        let mut offset = 0;
        let (mut sizes, mut strides, mut steps) = (tokens, [z, y, x], [1; MAX_RANK]);
        for (index, axis) in self.problem.axes.iter().enumerate() {
            if self.in_kernel(index) {
                steps[index] = axis.dilation;
            } else {
                let residue = self.residues[index];
                let members = window::group_length(tokens[index], axis.dilation, residue);
                // Of a group without members, which nothing sees, any box will do.
                offset += if members > 0 { residue * strides[index] } else { 0 };
                sizes[index] = members.max(1);
                strides[index] *= axis.dilation;
            }
        }
        if tokens[0] == 1 {
            (sizes[0], strides[0]) = (self.problem.batch, batch);
        } else {
            let step = if self.in_kernel(0) { 1 } else { self.problem.axes[0].dilation };
            sizes[0] += (self.problem.batch - 1) * (tokens[0] / step);
        }
        tensor_map(
            buffer,
            self.element(),
            offset,
            (self.cut.swizzle, sizes, strides, tile, steps),
            (heads, head, dim),
        )
    }

    /// The map of additional keys or values.
    pub(crate) fn map_more(&self, buffer: usize, tensor: &Strided, dim: usize) -> TensorMap {
        let [batch, _, _, token, head] = tensor.strides;
        let sizes = [self.problem.batch, 1, self.problem.additional];
        let block = self.cut.kv_tile.iter().product();
        let space = (self.cut.swizzle, sizes, [batch, token, token], [1, 1, block], [1; MAX_RANK]);
        tensor_map(buffer, self.element(), 0, space, (self.problem.heads_kv, head, dim))
    }

    fn element(&self) -> MapElement {
        match self.cut.element {
            Element::F16 => MapElement::F16,
            Element::Bf16 => MapElement::Bf16,
        }
    }

    /// By how many positions queries stand ahead of keys of the same number, along each axis. Beyond both lengths
    /// it makes no difference.
    pub(crate) fn shift(&self) -> [i32; MAX_RANK] {
        self.problem.axes.map(|axis| {
            let (ahead, behind) = axis.shift();
            ahead.min(axis.keys) as i32 - behind.min(axis.queries) as i32
        })
    }

    pub(crate) fn space(&self) -> Space {
        let axes = std::array::from_fn(|index| {
            let axis = &self.problem.axes[index];
            AxisParams {
                queries: axis.queries as i32,
                keys: axis.keys as i32,
                kernel: axis.kernel_size as i32,
                stride: axis.stride as i32,
                groups: self.groups(index) as i32,
                dilation: axis.dilation as i32,
                residue: self.residues[index] as i32,
                tiles: self.tiles_of(index) as i32,
                step: if self.in_kernel(index) { axis.dilation as i32 } else { 1 },
                pitch: pitch(axis) as i32,
            }
        });
        // Along the fused dimension of the maps, samples lie one apart, or an axis.
        let z = self.problem.axes[0];
        let batch_step = match (z.keys.max(z.queries), self.in_kernel(0)) {
            (1, _) => 1,
            (length, true) => length,
            (length, false) => length / z.dilation,
        };
        Space {
            axes,
            heads: self.heads() as i32,
            chunk: self.chunk() as i32,
            tiles: self.tiles() as i32,
            batch_step: batch_step as i32,
        }
    }
}

/// The map of the statistics, in boxes of the query tile.
pub(crate) fn statistics_map(buffer: usize, cut: &Cut, problem: &Problem) -> TensorMap {
    let [z, y, x] = places(problem);
    let [tile_z, tile_y, tile_x] = cut.q_tile;
    let place = STATISTICS * size_of::<f32>();
    TensorMap {
        buffer,
        offset: 0,
        element: MapElement::F32,
        sizes: [STATISTICS, x, y, z, problem.batch * problem.heads].map(|size| size as u64),
        strides: [place, place * x, place * x * y, place * x * y * z].map(|stride| stride as u64),
        tile: [STATISTICS, tile_x, tile_y, tile_z, 1].map(|extent| extent as u32),
        steps: [1; 5],
    }
}

/// A struct of a kernel's parameters, whose addresses come first: those of the buffers `pointers`.
///
/// # Safety
///
/// `T` must have no padding.
pub(crate) unsafe fn parameters<T: Copy>(value: T, pointers: &[usize]) -> Argument {
    let pointers = pointers.iter().enumerate().map(|(word, buffer)| (word, *buffer, 0)).collect();
    // SAFETY: as the caller promises.
    Argument::Struct { words: unsafe { words(value) }, pointers }
}

/// The words of a struct of a kernel's parameters.
///
/// # Safety
///
/// As of [`parameters`].
pub(crate) unsafe fn words<T: Copy>(value: T) -> Vec<u64> {
    const { assert!(size_of::<T>().is_multiple_of(8)) };
    let mut words = vec![0u64; size_of::<T>() / 8];
    // SAFETY: as many bytes as the value has, all of them initialised, and any bits are a `u64`.
    unsafe {
        std::ptr::copy_nonoverlapping(
            (&raw const value).cast::<u8>(),
            words.as_mut_ptr().cast::<u8>(),
            size_of::<T>(),
        );
    }
    words
}

type Boxes = (usize, [usize; MAX_RANK], [usize; MAX_RANK], [usize; MAX_RANK], [usize; MAX_RANK]);

/// A map from the swizzle, sizes, strides in elements, box and steps of z, y and x, and heads, their stride and
/// the length of a vector. Boxes are as wide as the swizzle, the rest of them zero.
fn tensor_map(
    buffer: usize,
    element: MapElement,
    offset: usize,
    (swizzle, sizes, strides, tile, steps): Boxes,
    (heads, head_stride, dim): (usize, usize, usize),
) -> TensorMap {
    // The stride of a dimension of one element is never used, but has to be valid.
    let bytes = |stride: usize, size: usize| if size == 1 { 16 } else { 2 * stride as u64 };
    let extent = |index: usize| (tile[index] * steps[index]) as u32;
    TensorMap {
        buffer,
        offset: 2 * offset,
        element,
        sizes: [dim, sizes[2], sizes[1], sizes[0], heads].map(|size| size as u64),
        strides: [
            bytes(strides[2], sizes[2]),
            bytes(strides[1], sizes[1]),
            bytes(strides[0], sizes[0]),
            bytes(head_stride, heads),
        ],
        tile: [(swizzle / ELEMENT) as u32, extent(2), extent(1), extent(0), 1],
        steps: [1, steps[2] as u32, steps[1] as u32, steps[0] as u32, 1],
    }
}

/// TMA takes strides in multiples of 16 bytes. In three dimensions, samples and the slowest axis
/// are one dimension of the map, so that a sample must follow the other without a gap.
pub(crate) fn check_layout(
    name: &'static str,
    tensor: &Strided,
    shape: Shape,
    problem: &Problem,
    cut: &Cut,
) -> Result<(), KernelError> {
    let ([batch, z, ..], tokens) = (tensor.strides, shape.tokens);
    let aligned =
        tensor.strides.iter().zip(shape.lengths()).all(|(stride, size)| {
            size == 1 || (*stride > 0 && stride % 8 == 0 && *stride < 1 << 39)
        });
    let folds = tokens[0] == 1 || problem.batch == 1 || batch == z * tokens[0];
    // A sample of a group that is launched alone does not begin at a multiple of the group's stride.
    let whole = problem.batch == 1
        || tokens[0] == 1
        || cut.dilates_in_kernel(&problem.axes[0], 0)
        || tokens[0].is_multiple_of(problem.axes[0].dilation);
    let offset = tensor.handle.offset_start.unwrap_or(0);
    let reason = if !aligned || !offset.is_multiple_of(16) {
        "TMA takes addresses and strides in multiples of 16 bytes"
    } else if !folds || !whole {
        "in TMA's five dimensions, one sample has to follow the other without a gap"
    } else {
        return Ok(());
    };
    Err(KernelError::Layout { name, reason })
}
