//! Launches of the forward kernel.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use cubecl::client::Client;
use cubecl::server::Handle;

use super::schedule::TILE;
use super::{ARCHITECTURE, Element, OPTIONS, Schedule, plan, plan_tiled, unsupported};
use crate::native::compile::{CompileError, Cubin, Source, compile, has_compiler};
use crate::native::launch::{Argument, Buffer, DeviceInfo, Kernel, TensorMap, device_info, launch};
use crate::tiling::Tiling;
use crate::{Axis, MAX_RANK, Problem, window};

#[cfg(test)]
mod tests;

/// Why nothing was launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HopperError {
    /// The device is no NVIDIA GPU of compute capability 9.0.
    #[error("the device has no compute capability 9.0 (Hopper)")]
    Device,
    /// The kernels do not cover the problem.
    #[error("the Hopper kernels do not cover it: {0}")]
    Problem(String),
    /// A tensor is laid out as TMA cannot read it.
    #[error("{0} is laid out as TMA cannot read it")]
    Layout(&'static str),
    /// There is no program.
    #[error(transparent)]
    Compile(#[from] CompileError),
}

/// An input tensor `[batch, x, y, z, heads, vector]`, whose vectors are contiguous.
#[derive(Clone, Debug)]
pub struct Strided {
    /// The memory.
    pub handle: Handle,
    /// Elements between neighbors: batch, x, y, z, heads. Those of an axis of one element do not
    /// matter, but all five are zero only for a tensor that TMA cannot read at all.
    pub strides: [usize; 5],
}

impl Strided {
    /// A contiguous tensor `[batch, tokens.., heads, dim]`.
    pub fn contiguous(handle: Handle, tokens: [usize; MAX_RANK], heads: usize, dim: usize) -> Self {
        let z = heads * dim;
        let y = tokens[2] * z;
        let x = tokens[1] * y;
        Self { handle, strides: [tokens[0] * x, x, y, z, dim] }
    }
}

/// What [`forward()`] reads. Elements are those of the schedule.
#[derive(Clone, Debug)]
pub struct ForwardInputs {
    /// `[batch, queries, heads, head_dim]`.
    pub query: Strided,
    /// `[batch, keys, heads_kv, head_dim]`.
    pub key: Strided,
    /// `[batch, keys, heads_kv, head_dim_v]`.
    pub value: Strided,
    /// Key and value of the additional tokens, `[batch, 1, 1, tokens, heads_kv, dim]`: there if, and
    /// only if, [`Problem::additional`] is not zero.
    pub additional: Option<(Strided, Strided)>,
}

/// What [`forward()`] writes; both contiguous.
#[derive(Clone, Debug)]
pub struct ForwardOutputs {
    /// `[batch, queries, heads, head_dim_v]`, in the schedule's element type.
    pub out: Handle,
    /// `[batch, queries, heads]`, `f32`.
    pub lse: Handle,
}

/// Attention with logsumexp, by the schedule that [`plan()`] chooses, or [`plan_tiled()`] where one has
/// the tiles that are asked for.
///
/// Returns when the work is enqueued; the first use of a schedule compiles it.
///
/// # Errors
///
/// [`HopperError`] if nothing was launched.
pub fn forward(
    client: &Client,
    problem: &Problem,
    element: Element,
    tiling: Option<Tiling>,
    inputs: &ForwardInputs,
    outputs: &ForwardOutputs,
) -> Result<(), HopperError> {
    let schedule = schedule(problem, element, tiling)?;
    forward_with(client, &schedule, problem, inputs, outputs)
}

/// What the choice of a schedule depends on: a problem without its scale.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    element: Element,
    tiling: Option<Tiling>,
    axes: [Axis; MAX_RANK],
    sizes: [usize; 6],
}

/// The schedule for a problem. A choice among hundreds is not made at every call.
fn schedule(
    problem: &Problem,
    element: Element,
    tiling: Option<Tiling>,
) -> Result<Schedule, HopperError> {
    static KNOWN: LazyLock<Mutex<HashMap<Key, Schedule>>> = LazyLock::new(Mutex::default);
    if let Some(reason) = unsupported(problem) {
        return Err(HopperError::Problem(reason));
    }
    let Problem { batch, heads, heads_kv, head_dim, head_dim_v, additional, axes, .. } = *problem;
    let sizes = [batch, heads, heads_kv, head_dim, head_dim_v, additional];
    let key = Key { element, tiling, axes, sizes };
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(schedule) = known.get(&key) {
        return Ok(*schedule);
    }
    let schedule = tiling
        .and_then(|tiling| plan_tiled(problem, element, tiling))
        .or_else(|| plan(problem, element))
        .ok_or_else(|| HopperError::Problem("no schedule fits".to_string()))?;
    known.insert(key, schedule);
    Ok(schedule)
}

/// Compiles what [`forward()`] will need for a problem, so that its first call does not wait.
///
/// # Errors
///
/// [`HopperError`] if the problem cannot run on the device.
pub fn warm_up(client: &Client, problem: &Problem, element: Element) -> Result<(), HopperError> {
    let device = hopper(client)?;
    program(&schedule(problem, element, None)?, &device).map(drop)
}

/// Whether the kernels can be compiled and run on the device of a client.
pub fn is_available(client: &Client) -> bool {
    hopper(client).is_ok() && has_compiler()
}

fn hopper(client: &Client) -> Result<DeviceInfo, HopperError> {
    device_info(client).filter(|info| info.capability == 90).ok_or(HopperError::Device)
}

fn program(schedule: &Schedule, device: &DeviceInfo) -> Result<Arc<Cubin>, HopperError> {
    static KNOWN: LazyLock<Mutex<HashMap<Schedule, Arc<Cubin>>>> = LazyLock::new(Mutex::default);
    let known = || KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(cubin) = known().get(schedule) {
        return Ok(cubin.clone());
    }
    let source = Source {
        name: format!("{schedule}_{ARCHITECTURE}"),
        code: schedule.source(),
        options: OPTIONS.map(String::from).to_vec(),
    };
    let cubin = compile(&source, device.driver)?;
    known().insert(*schedule, cubin.clone());
    Ok(cubin)
}

/// [`forward()`] by a given schedule, which has to be one of the problem's candidates.
///
/// # Errors
///
/// [`HopperError`] if nothing was launched.
///
/// # Panics
///
/// If the schedule is none for the problem.
pub fn forward_with(
    client: &Client,
    schedule: &Schedule,
    problem: &Problem,
    inputs: &ForwardInputs,
    outputs: &ForwardOutputs,
) -> Result<(), HopperError> {
    assert!(schedule.fits(problem), "{schedule} is no schedule for {problem:?}");
    let device = hopper(client)?;
    let tensors = [("query", &inputs.query), ("key", &inputs.key), ("value", &inputs.value)];
    for (name, tensor) in tensors {
        let tokens = if name == "query" {
            problem.axes.map(|axis| axis.queries)
        } else {
            problem.axes.map(|axis| axis.keys)
        };
        check_layout(name, tensor, tokens, problem, schedule)?;
    }
    if let Some((key, value)) = &inputs.additional {
        let tokens = [1, 1, problem.additional];
        check_layout("additional key", key, tokens, problem, schedule)?;
        check_layout("additional value", value, tokens, problem, schedule)?;
    }
    let cubin = program(schedule, &device)?;
    for residues in launches(schedule, problem) {
        let launch_of = Launch { schedule, problem, inputs, device: &device, residues };
        let kernel = Kernel {
            cubin: cubin.clone(),
            entry: c"attention_forward",
            grid: launch_of.grid(),
            block: schedule.threads() as u32,
            shared_memory: schedule.shared_memory() as u32,
        };
        launch(client, kernel, launch_of.buffers(outputs), launch_of.arguments());
    }
    Ok(())
}

/// TMA takes strides in multiples of 16 bytes. In three dimensions, samples and the slowest axis
/// are one dimension of the map, so that a sample must follow the other without a gap.
fn check_layout(
    name: &'static str,
    tensor: &Strided,
    tokens: [usize; MAX_RANK],
    problem: &Problem,
    schedule: &Schedule,
) -> Result<(), HopperError> {
    let [batch, x, ..] = tensor.strides;
    let sizes = [problem.batch, tokens[0], tokens[1], tokens[2], problem.heads];
    let aligned =
        tensor.strides.iter().zip(sizes).all(|(stride, size)| {
            size == 1 || (*stride > 0 && stride % 8 == 0 && *stride < 1 << 39)
        });
    let folds = tokens[0] == 1 || problem.batch == 1 || batch == x * tokens[0];
    // A sample of a group that is launched alone does not begin at a multiple of the group's stride.
    let whole = problem.batch == 1
        || tokens[0] == 1
        || schedule.dilates_in_kernel(&problem.axes[0], 0)
        || tokens[0].is_multiple_of(problem.axes[0].dilation);
    let offset = tensor.handle.offset_start.unwrap_or(0);
    let readable = tensor.strides != [0; 5] && offset.is_multiple_of(16);
    if readable && aligned && folds && whole { Ok(()) } else { Err(HopperError::Layout(name)) }
}

/// The dilation groups, along each axis, that a launch covers: all of those that TMA can step over,
/// one of the others.
fn launches(schedule: &Schedule, problem: &Problem) -> Vec<[usize; MAX_RANK]> {
    let mut launches = vec![[0; MAX_RANK]];
    for (index, axis) in problem.axes.iter().enumerate() {
        if schedule.dilates_in_kernel(axis, index) {
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

/// Buffers of a launch, in order.
#[derive(Clone, Copy)]
enum Slot {
    Query,
    Key,
    Value,
    MoreKey,
    MoreValue,
    Out,
    Lse,
}

/// The kernel's `AxisParams`.
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
}

/// The kernel's `Params`. Addresses are filled in when it is enqueued.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    pointers: [u64; 7],
    query_strides: [i64; 5],
    key_strides: [i64; 5],
    value_strides: [i64; 5],
    more_key_strides: [i64; 3],
    more_value_strides: [i64; 3],
    axes: [AxisParams; 3],
    batch: i32,
    heads: i32,
    group_size: i32,
    chunk: i32,
    tiles: i32,
    additional: i32,
    scale_log2: f32,
    batch_step: i32,
    padding: i32,
}

struct Launch<'a> {
    schedule: &'a Schedule,
    problem: &'a Problem,
    inputs: &'a ForwardInputs,
    device: &'a DeviceInfo,
    residues: [usize; MAX_RANK],
}

impl Launch<'_> {
    fn in_kernel(&self, index: usize) -> bool {
        self.schedule.dilates_in_kernel(&self.problem.axes[index], index)
    }

    /// Dilation groups that this launch covers along an axis.
    fn groups(&self, index: usize) -> usize {
        if self.in_kernel(index) { self.problem.axes[index].dilation } else { 1 }
    }

    /// Query tiles of a CTA in the longest group.
    fn q_tiles(&self, index: usize) -> usize {
        let axis = &self.problem.axes[index];
        let queries = window::group_length(axis.queries, axis.dilation, self.residues[index]);
        queries.div_ceil(self.schedule.cta_tile()[index])
    }

    fn tiles(&self) -> usize {
        let space: usize = (0..MAX_RANK).map(|a| self.q_tiles(a) * self.groups(a)).product();
        space * self.problem.batch * self.problem.heads
    }

    fn grid(&self) -> u32 {
        let resident = self.device.multiprocessors as usize * self.schedule.ctas;
        self.tiles().min(resident).max(1) as u32
    }

    /// (sample, head) pairs that advance through space together. One group of heads, whose keys are
    /// the same, leaves most of the cache to the keys of a neighborhood. Where tiles differ in length,
    /// as along a causal axis, enough pairs to fill several rounds of CTAs with tiles that fall in
    /// length: then all CTAs get a like share.
    fn chunk(&self) -> usize {
        let group = self.problem.group_size();
        let uneven = |axis: &Axis| axis.is_causal && 4 * axis.kernel_size > axis.keys;
        if !self.problem.axes.iter().any(uneven) {
            return group;
        }
        let pairs = self.problem.batch * self.problem.heads_kv;
        let space = self.tiles() / (self.problem.batch * self.problem.heads);
        let wanted = (12 * self.grid() as usize).div_ceil(space * group);
        let chunk = (1..=pairs).find(|chunk| pairs.is_multiple_of(*chunk) && *chunk >= wanted);
        group * chunk.unwrap_or(pairs)
    }

    fn buffers(&self, outputs: &ForwardOutputs) -> Vec<Buffer> {
        let input = |tensor: &Strided| Buffer { handle: tensor.handle.clone(), is_output: false };
        let output = |handle: &Handle| Buffer { handle: handle.clone(), is_output: true };
        // The kernel takes the maps of additional tokens in any case.
        let (more_key, more_value) = match &self.inputs.additional {
            Some((key, value)) => (key, value),
            None => (&self.inputs.key, &self.inputs.value),
        };
        let ForwardInputs { query, key, value, .. } = self.inputs;
        let mut buffers: Vec<Buffer> =
            [query, key, value, more_key, more_value].into_iter().map(input).collect();
        buffers.extend([output(&outputs.out), output(&outputs.lse)]);
        buffers
    }

    fn arguments(&self) -> Vec<Argument> {
        let ForwardInputs { query, key, value, additional } = self.inputs;
        let Problem { head_dim, head_dim_v, heads, heads_kv, .. } = *self.problem;
        let queries = self.problem.axes.map(|axis| axis.queries);
        let keys = self.problem.axes.map(|axis| axis.keys);
        let (q_tile, kv_tile) = (self.schedule.q_tile, self.schedule.kv_tile);
        let mut maps = vec![
            self.map(Slot::Query, query, queries, q_tile, heads, head_dim),
            self.map(Slot::Key, key, keys, kv_tile, heads_kv, head_dim),
            self.map(Slot::Value, value, keys, kv_tile, heads_kv, head_dim_v),
        ];
        match additional {
            Some((key, value)) => maps.extend([
                self.map_more(Slot::MoreKey, key, head_dim),
                self.map_more(Slot::MoreValue, value, head_dim_v),
            ]),
            None => maps.extend([maps[1], maps[2]]),
        }
        maps.into_iter().map(Argument::TensorMap).chain([self.params()]).collect()
    }

    /// The dimensions of a map: vector, z, y, x together with the sample, head.
    fn map(
        &self,
        slot: Slot,
        tensor: &Strided,
        tokens: [usize; MAX_RANK],
        tile: [usize; MAX_RANK],
        heads: usize,
        dim: usize,
    ) -> TensorMap {
        let [batch, x, y, z, head] = tensor.strides;
        let mut offset = 0;
        let (mut sizes, mut strides, mut steps) = (tokens, [x, y, z], [1; MAX_RANK]);
        for (index, axis) in self.problem.axes.iter().enumerate() {
            if self.in_kernel(index) {
                steps[index] = axis.dilation;
            } else {
                let residue = self.residues[index];
                offset += residue * strides[index];
                sizes[index] = window::group_length(tokens[index], axis.dilation, residue);
                strides[index] *= axis.dilation;
            }
        }
        if tokens[0] == 1 {
            (sizes[0], strides[0]) = (self.problem.batch, batch);
        } else {
            let step = if self.in_kernel(0) { 1 } else { self.problem.axes[0].dilation };
            sizes[0] += (self.problem.batch - 1) * (tokens[0] / step);
        }
        tensor_map(slot, self.is_bf16(), offset, (sizes, strides, tile, steps), (heads, head, dim))
    }

    fn map_more(&self, slot: Slot, tensor: &Strided, dim: usize) -> TensorMap {
        let [batch, _, _, z, head] = tensor.strides;
        let sizes = [self.problem.batch, 1, self.problem.additional];
        let space = (sizes, [batch, z, z], [1, 1, TILE], [1; MAX_RANK]);
        tensor_map(slot, self.is_bf16(), 0, space, (self.problem.heads_kv, head, dim))
    }

    fn is_bf16(&self) -> bool {
        self.schedule.element == Element::Bf16
    }

    fn params(&self) -> Argument {
        let problem = self.problem;
        let axes: [AxisParams; 3] = std::array::from_fn(|index| {
            let axis = &problem.axes[index];
            let in_kernel = self.in_kernel(index);
            AxisParams {
                queries: axis.queries as i32,
                keys: axis.keys as i32,
                kernel: axis.kernel_size as i32,
                stride: axis.stride as i32,
                groups: self.groups(index) as i32,
                dilation: axis.dilation as i32,
                residue: self.residues[index] as i32,
                tiles: self.q_tiles(index) as i32,
                step: if in_kernel { axis.dilation as i32 } else { 1 },
            }
        });
        let of = |tensor: &Strided| tensor.strides.map(|stride| stride as i64);
        let more = |tensor: &Strided| {
            let [batch, _, _, token, head] = of(tensor);
            [batch, token, head]
        };
        let (more_key, more_value) = match &self.inputs.additional {
            Some((key, value)) => (more(key), more(value)),
            None => ([0; 3], [0; 3]),
        };
        // Along the fused dimension of the maps, samples lie one apart, or an axis.
        let x = problem.axes[0];
        let batch_step = match (x.keys.max(x.queries), self.in_kernel(0)) {
            (1, _) => 1,
            (length, true) => length,
            (length, false) => length / x.dilation,
        };
        let params = Params {
            pointers: [0; 7],
            query_strides: of(&self.inputs.query),
            key_strides: of(&self.inputs.key),
            value_strides: of(&self.inputs.value),
            more_key_strides: more_key,
            more_value_strides: more_value,
            axes,
            batch: problem.batch as i32,
            heads: problem.heads as i32,
            group_size: problem.group_size() as i32,
            chunk: self.chunk() as i32,
            tiles: self.tiles() as i32,
            additional: problem.additional as i32,
            scale_log2: (problem.scale * std::f64::consts::LOG2_E) as f32,
            batch_step: batch_step as i32,
            padding: 0,
        };
        const WORDS: usize = size_of::<Params>() / 8;
        // SAFETY: `Params` has no padding, which the assertion below makes sure of, and any bits
        // are a `u64`.
        let words: [u64; WORDS] = unsafe { std::mem::transmute(params) };
        let order = [
            Slot::Out,
            Slot::Lse,
            Slot::Query,
            Slot::Key,
            Slot::Value,
            Slot::MoreKey,
            Slot::MoreValue,
        ];
        let pointers = order.iter().enumerate().map(|(word, slot)| (word, *slot as usize, 0));
        Argument::Struct { words: words.to_vec(), pointers: pointers.collect() }
    }
}

// Seven addresses, 21 strides, 27 sizes of axes and 9 more words of four bytes.
const _: () = assert!(size_of::<Params>() == 8 * (7 + 21) + 4 * (27 + 9));

type Space = ([usize; MAX_RANK], [usize; MAX_RANK], [usize; MAX_RANK], [usize; MAX_RANK]);

/// A map from sizes, strides in elements, box and steps of x, y and z, and heads, their stride and
/// the length of a vector. Boxes are 64 elements wide, the rest of them zero.
fn tensor_map(
    slot: Slot,
    is_bf16: bool,
    offset: usize,
    (sizes, strides, tile, steps): Space,
    (heads, head_stride, dim): (usize, usize, usize),
) -> TensorMap {
    // The stride of a dimension of one element is never used, but has to be valid.
    let bytes = |stride: usize, size: usize| if size == 1 { 16 } else { 2 * stride as u64 };
    let extent = |index: usize| (tile[index] * steps[index]) as u32;
    TensorMap {
        buffer: slot as usize,
        offset: 2 * offset,
        is_bf16,
        sizes: [dim, sizes[2], sizes[1], sizes[0], heads].map(|size| size as u64),
        strides: [
            bytes(strides[2], sizes[2]),
            bytes(strides[1], sizes[1]),
            bytes(strides[0], sizes[0]),
            bytes(head_stride, heads),
        ],
        tile: [TILE as u32, extent(2), extent(1), extent(0), 1],
        steps: [1, steps[2] as u32, steps[1] as u32, steps[0] as u32, 1],
    }
}
