//! Launches on a device.

use std::sync::{Arc, LazyLock, Mutex};

use cubecl::client::Client;
use cubecl::server::Handle;

use super::append::{self, NewToken};
use super::plan::{List, Splits};
use super::{Decoding, Schedule};
use crate::native::compile::{self, CompileError, Cubin, Programs};
use crate::native::grid::parameters;
use crate::native::launch::{Buffer, DeviceInfo, Kernel, Launch, launch_all};
use crate::native::{Element, ampere};
use crate::view::check_buffer;
use crate::{KernelError, KeyValue, Shape, Strided};

/// Bytes of an element, and elements of what is copied at a time.
pub(super) const ELEMENT: usize = 2;
const VECTOR: usize = 8;
/// Words that parts of the workspace begin at multiples of.
const PLACE: usize = 32;

/// Something for each branch, in the order of the gates.
#[derive(Clone, Copy, Debug)]
pub struct Branches<T> {
    /// Of compressed blocks.
    pub compressed: T,
    /// Of selected blocks.
    pub selected: T,
    /// Of the window.
    pub window: T,
}

impl<T> Branches<T> {
    pub(super) fn as_array(&self) -> [&T; 3] {
        [&self.compressed, &self.selected, &self.window]
    }
}

/// What is read.
#[derive(Clone, Debug)]
pub struct Inputs<T> {
    /// `[batch, 1, heads, head_dim]`
    pub query: T,
    /// `[batch, 1, heads, 3]`
    pub gates: T,
    /// `[batch, .., heads_kv, head_dim]` and `[batch, .., heads_kv, head_dim_v]`, of compressed blocks, of all tokens, and of those that
    /// the window may see.
    pub tokens: Branches<KeyValue<T>>,
    /// Keys and values of the new token where they are not among those yet: then the launch writes to `tokens`. The compressed block that is
    /// complete with it, if one is, becomes the mean of its tokens.
    pub new: Option<KeyValue<NewToken<T>>>,
}

/// What is written, without gaps.
#[derive(Clone, Debug)]
pub struct Outputs<T> {
    /// `[batch, 1, heads, head_dim_v]`
    pub out: T,
    /// The same of each branch.
    pub outs: Branches<T>,
    /// `[batch, 1, heads]`, in f32.
    pub logsumexps: Branches<T>,
    /// `[batch, 1, heads_kv, num_selected]`, in i32.
    pub lists: T,
}

/// Compiles the kernels of a problem.
///
/// # Errors
///
/// Why it cannot be computed, whatever its tensors are.
pub fn prepare(client: &Client, of: &Decoding, element: Element) -> Result<(), KernelError> {
    Plan::new(client, of, element).map(|_| ())
}

/// The kernels and what they share.
struct Plan {
    schedule: Schedule,
    splits: Splits,
    cubin: Arc<Cubin>,
    /// Whether launches begin before those ahead of them end.
    is_early: bool,
}

impl Plan {
    fn new(client: &Client, of: &Decoding, element: Element) -> Result<Self, KernelError> {
        let device = ampere::device(client)?;
        let schedule = Schedule::plan(of, element).map_err(KernelError::Problem)?;
        let splits = schedule.splits(of, device.multiprocessors as usize);
        let splits = splits.map_err(KernelError::Problem)?;
        let is_early = device.has_early_launches();
        Ok(Self { schedule, splits, cubin: load(schedule, &device)?, is_early })
    }

    fn kernel(&self, entry: &'static std::ffi::CStr, grid: usize) -> Kernel {
        Kernel {
            cubin: self.cubin.clone(),
            entry,
            grid: grid as u32,
            block: self.schedule.threads() as u32,
            shared_memory: self.schedule.shared_memory() as u32,
        }
    }
}

/// The program of a schedule.
fn load(schedule: Schedule, device: &DeviceInfo) -> Result<Arc<Cubin>, CompileError> {
    static KNOWN: Programs<(Schedule, u32)> = LazyLock::new(Mutex::default);
    let source = || ampere::source(schedule, schedule.source(), device);
    compile::load(&KNOWN, (schedule, device.capability), device.driver, source)
}

/// Native sparse attention of one more token for each sequence.
///
/// Returns when the work is enqueued; the first use of a schedule compiles it.
///
/// # Errors
///
/// [`KernelError`] if nothing was launched.
pub fn decode(
    client: &Client,
    of: &Decoding,
    element: Element,
    inputs: &Inputs<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let plan = Plan::new(client, of, element)?;
    check_inputs(of, inputs)?;
    check_outputs(of, outputs)?;
    if of.pairs() == 0 {
        return Ok(());
    }
    let (places, words) = Workspace::new(of, &plan.splits);
    let workspace = client.empty(4 * words);
    let launches = Launches { of, plan: &plan, places, workspace, inputs, outputs };
    let all = [launches.compressed(), launches.select(), launches.tokens()];
    launch_all(client, all.into());
    Ok(())
}

fn check_inputs(of: &Decoding, inputs: &Inputs<Strided>) -> Result<(), KernelError> {
    let Inputs { query, gates, tokens, new: _ } = inputs;
    gates.check("gates", of.gates_shape(), ELEMENT)?;
    check_vectors("query", query, of.query_shape())?;
    let shapes = of.key_shapes().into_iter().zip(of.value_shapes());
    for (KeyValue { key, value }, (of_key, of_value)) in tokens.as_array().into_iter().zip(shapes) {
        check_vectors("key", key, of_key)?;
        check_vectors("value", value, of_value)?;
    }
    append::check(of, inputs)
}

/// Vectors are read 16 bytes at a time.
pub(super) fn check_vectors(
    name: &'static str,
    tensor: &Strided,
    shape: Shape,
) -> Result<(), KernelError> {
    if shape.elements() == 0 {
        return Ok(());
    }
    tensor.check(name, shape, ELEMENT)?;
    let is_far = tensor
        .strides
        .iter()
        .zip(shape.lengths())
        .any(|(stride, length)| length > 1 && *stride >= 1 << 40);
    match tensor.widest(shape, ELEMENT) == VECTOR && !is_far {
        true => Ok(()),
        false => {
            let reason = "its vectors have to begin at multiples of 16 bytes";
            Err(KernelError::Layout { name, reason })
        }
    }
}

fn check_outputs(of: &Decoding, outputs: &Outputs<Handle>) -> Result<(), KernelError> {
    let rows = of.selection.batch * of.selection.heads;
    for out in [&outputs.out].into_iter().chain(outputs.outs.as_array()) {
        check_buffer("out", out, ELEMENT * rows * of.head_dim_v)?;
        // Four are written at a time.
        if !out.offset_start.unwrap_or(0).is_multiple_of(8) {
            let reason = "it has to begin at a multiple of 8 bytes";
            return Err(KernelError::Layout { name: "out", reason });
        }
    }
    for lse in outputs.logsumexps.as_array() {
        check_buffer("logsumexp", lse, size_of::<f32>() * rows)?;
    }
    let entries = of.pairs() * of.selection.num_selected;
    check_buffer("blocks", &outputs.lists, size_of::<i32>() * entries)
}

/// The kernels' `Workspace`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Workspace {
    counters: i64,
    scores: i64,
    statistics: [i64; 2],
    sums: [i64; 2],
    best: i64,
}

impl Workspace {
    /// Where its parts are, and how many words it has.
    fn new(of: &Decoding, splits: &Splits) -> (Self, usize) {
        let (pairs, list) = (of.pairs(), of.list());
        let group = of.selection.heads / of.selection.heads_kv;
        let mut words = 0;
        let mut place = |count: usize| {
            let at = words;
            words += (pairs * count).next_multiple_of(PLACE);
            at as i64
        };
        let both = [splits.compressed, splits.selected + splits.window];
        let places = Self {
            counters: place(2),
            scores: place(of.selection.compressed() * group),
            statistics: both.map(|splits| place(2 * splits * group)),
            sums: both.map(|splits| place(splits * group * of.head_dim_v)),
            best: place(if list.is_scored() { 2 * splits.parts * list.free } else { 0 }),
        };
        (places, words)
    }
}

/// The kernels' `View`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct View {
    batch: i64,
    token: i64,
    head: i64,
}

impl View {
    pub fn of(tensor: &Strided) -> Self {
        let [batch, _, _, token, head] = tensor.strides.map(|stride| stride as i64);
        Self { batch, token, head }
    }
}

/// The kernels' `CompressedParams`.
#[repr(C)]
#[derive(Clone, Copy)]
struct CompressedParams {
    pointers: [u64; 4],
    places: Workspace,
    views: [View; 3],
    heads_kv: i32,
    count: i32,
    splits: i32,
    steps: i32,
    scale_log2: f32,
    unused: i32,
}

const _: () = assert!(size_of::<CompressedParams>() == 8 * (4 + 7 + 9) + 4 * 6);

/// The kernels' `SelectParams`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SelectParams {
    pointers: [u64; 4],
    places: Workspace,
    count: i32,
    splits: i32,
    parts: i32,
    size: i32,
    sums: i32,
    ratio: i32,
    reach: i32,
    front: i32,
    middle: i32,
    end: i32,
    free: i32,
    blocks: i32,
    entries: i32,
    unused: i32,
}

const _: () = assert!(size_of::<SelectParams>() == 8 * (4 + 7) + 4 * 14);

/// The kernels' `TokensParams`.
#[repr(C)]
#[derive(Clone, Copy)]
struct TokensParams {
    pointers: [u64; 14],
    places: Workspace,
    views: [View; 6],
    heads_kv: i32,
    splits: i32,
    window_splits: i32,
    count: i32,
    entries: i32,
    block: i32,
    first: i32,
    window: i32,
    steps: i32,
    scale_log2: f32,
}

const _: () = assert!(size_of::<TokensParams>() == 8 * (14 + 7 + 18) + 4 * 10);

/// The launches of a problem that is checked.
struct Launches<'a> {
    of: &'a Decoding,
    plan: &'a Plan,
    places: Workspace,
    workspace: Handle,
    inputs: &'a Inputs<Strided>,
    outputs: &'a Outputs<Handle>,
}

impl Launches<'_> {
    fn compressed(&self) -> Launch {
        let Self { of, plan, inputs, .. } = self;
        let KeyValue { key, value } = &inputs.tokens.compressed;
        let splits = plan.splits;
        let params = CompressedParams {
            pointers: [0; 4],
            places: self.places,
            views: [&inputs.query, key, value].map(View::of),
            heads_kv: of.selection.heads_kv as i32,
            count: of.selection.compressed() as i32,
            splits: splits.compressed as i32,
            steps: splits.compressed_steps as i32,
            scale_log2: self.scale_log2(),
            unused: 0,
        };
        let mut buffers = vec![
            Buffer::written(&self.workspace),
            Buffer::read(&inputs.query.handle),
            self.read(key, of.key_shapes()[0]),
            self.read(value, of.value_shapes()[0]),
        ];
        // SAFETY: the assertion above counts every byte.
        let argument = unsafe { parameters(params, &[0, 1, 2, 3]) };
        let appended = append::argument(of, inputs, &mut buffers);
        let kernel = plan.kernel(c"decode_compressed", splits.compressed * of.pairs());
        Launch { lane: 0, is_early: false, kernel, buffers, arguments: vec![argument, appended] }
    }

    fn select(&self) -> Launch {
        let Self { of, plan, outputs, .. } = self;
        let (selection, splits) = (&of.selection, plan.splits);
        let List { front, middle, end, free } = of.list();
        let (ratio, reach) = selection.overlap(false);
        let params = SelectParams {
            pointers: [0; 4],
            places: self.places,
            count: selection.compressed() as i32,
            splits: splits.compressed as i32,
            parts: splits.parts as i32,
            size: splits.size as i32,
            sums: splits.sums as i32,
            ratio: ratio as i32,
            reach: reach as i32,
            front: front as i32,
            middle: middle as i32,
            end: end as i32,
            free: free as i32,
            blocks: selection.blocks() as i32,
            entries: selection.num_selected as i32,
            unused: 0,
        };
        let buffers = vec![
            Buffer::written(&self.workspace),
            Buffer::written(&outputs.lists),
            Buffer::written(&outputs.outs.compressed),
            Buffer::written(&outputs.logsumexps.compressed),
        ];
        let kernel = Kernel {
            block: super::plan::SELECT_THREADS as u32,
            shared_memory: plan.schedule.select_memory(of, &splits) as u32,
            ..plan.kernel(c"decode_select", (splits.parts + splits.sums) * of.pairs())
        };
        // SAFETY: the assertion above counts every byte.
        let argument = unsafe { parameters(params, &[0, 1, 2, 3]) };
        Launch { lane: 0, is_early: plan.is_early, kernel, buffers, arguments: vec![argument] }
    }

    fn tokens(&self) -> Launch {
        let Self { of, plan, inputs, outputs, .. } = self;
        let (selection, splits) = (&of.selection, plan.splits);
        let Inputs { query, gates, tokens, .. } = inputs;
        let KeyValue { key, value } = &tokens.selected;
        let KeyValue { key: window_key, value: window_value } = &tokens.window;
        let both = splits.selected + splits.window;
        // The branches are a dimension of the gates that has no gaps.
        let of_gates = View { token: 1, ..View::of(gates) };
        let [of_query, of_key, of_value, of_window_key, of_window_value] =
            [query, key, value, window_key, window_value].map(View::of);
        let params = TokensParams {
            pointers: [0; 14],
            places: self.places,
            views: [of_query, of_key, of_value, of_window_key, of_window_value, of_gates],
            heads_kv: selection.heads_kv as i32,
            splits: both as i32,
            window_splits: splits.window as i32,
            count: selection.tokens as i32,
            entries: selection.num_selected as i32,
            block: selection.slc_block as i32,
            first: (of.window_tokens - of.seen_in_window()) as i32,
            window: of.seen_in_window() as i32,
            steps: splits.token_steps as i32,
            scale_log2: self.scale_log2(),
        };
        let buffers = vec![
            Buffer::written(&self.workspace),
            Buffer::written(&outputs.out),
            Buffer::written(&outputs.outs.selected),
            Buffer::written(&outputs.outs.window),
            Buffer::written(&outputs.logsumexps.selected),
            Buffer::written(&outputs.logsumexps.window),
            Buffer::read(&query.handle),
            self.read(key, of.key_shapes()[1]),
            self.read(value, of.value_shapes()[1]),
            self.read(window_key, of.key_shapes()[2]),
            self.read(window_value, of.value_shapes()[2]),
            Buffer::read(&outputs.outs.compressed),
            Buffer::read(&gates.handle),
            Buffer::read(&outputs.lists),
        ];
        let pointers: Vec<usize> = (0..buffers.len()).collect();
        // SAFETY: the assertion above counts every byte.
        let argument = unsafe { parameters(params, &pointers) };
        let kernel = plan.kernel(c"decode_tokens", both * of.pairs());
        Launch { lane: 0, is_early: plan.is_early, kernel, buffers, arguments: vec![argument] }
    }

    /// Of a tensor without elements there may be no memory: nothing is read of what stands in its place.
    fn read(&self, tensor: &Strided, shape: Shape) -> Buffer {
        match shape.elements() {
            0 => Buffer::read(&self.inputs.query.handle),
            _ => Buffer::read(&tensor.handle),
        }
    }

    fn scale_log2(&self) -> f32 {
        (self.of.selection.scale * std::f64::consts::LOG2_E) as f32
    }
}
