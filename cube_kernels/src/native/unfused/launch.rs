//! Launches on a device.

use std::sync::{Arc, LazyLock, Mutex};

use cubecl::client::Client;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::server::Handle;

use super::plan::{ELEMENT, MAX_SAMPLE, VECTOR, total_heads};
use super::{Product, Schedule};
use crate::native::compile::{self, CompileError, Cubin, Programs};
use crate::native::divisor::Divisor;
use crate::native::grid::parameters;
use crate::native::launch::{Argument, Buffer, DeviceInfo, Kernel, launch};
use crate::native::{Element, ampere};
use crate::portable::unfused::{DotsInputs, Tokens};
use crate::view::check_buffer;
use crate::{Axis, KernelError, MAX_RANK, Operand, Problem, Shape, Strided};

/// [`dots`](crate::portable::unfused::dots()) on tensor cores.
///
/// # Errors
///
/// If the device cannot run the problem, no kernel is for it, a tensor lies as kernels cannot read it or a buffer is too small; then
/// nothing was launched.
pub fn dots(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    hidden: f32,
    inputs: &DotsInputs<'_>,
    weights: &Handle,
) -> Result<(), KernelError> {
    if let Some(bias) = inputs.bias {
        check_buffer("bias", bias, dtype.size() * problem.heads * problem.bias_entries())?;
    }
    let tensors = Tensors {
        weights: Tensor::written("weights", weights, Shape::weights(problem)),
        rows: Tensor::read("rows", inputs.rows),
        tokens: Tensor::read("tokens", inputs.tokens.space),
        bias: inputs.bias,
    };
    enqueue(client, problem, Product::Dots, dtype, hidden, tensors)
}

/// [`sums`](crate::portable::unfused::sums()) on tensor cores.
///
/// # Errors
///
/// As [`dots`].
pub fn sums(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    weights: &Strided,
    tokens: &Tokens<&Strided>,
    rows: &Handle,
) -> Result<(), KernelError> {
    let tensors = Tensors {
        weights: Tensor::read("weights", weights),
        rows: Tensor::written("rows", rows, Operand::Query.shape(problem)),
        tokens: Tensor::read("tokens", tokens.space),
        bias: None,
    };
    enqueue(client, problem, Product::Sums, dtype, 0.0, tensors)
}

/// [`spread`](crate::portable::unfused::spread()) on tensor cores.
///
/// # Errors
///
/// As [`dots`].
pub fn spread(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    weights: &Strided,
    rows: &Strided,
    tokens: &Tokens<&Handle>,
) -> Result<(), KernelError> {
    let tensors = Tensors {
        weights: Tensor::read("weights", weights),
        rows: Tensor::read("rows", rows),
        tokens: Tensor::written("tokens", tokens.space, Operand::Key.shape(problem)),
        bias: None,
    };
    enqueue(client, problem, Product::Spread, dtype, 0.0, tensors)
}

struct Tensor {
    name: &'static str,
    view: Strided,
    is_output: bool,
}

impl Tensor {
    fn read(name: &'static str, view: &Strided) -> Self {
        Self { name, view: view.clone(), is_output: false }
    }

    fn written(name: &'static str, handle: &Handle, shape: Shape) -> Self {
        Self { name, view: Strided::contiguous(handle.clone(), shape), is_output: true }
    }

    /// Checked as vectors of 16 bytes.
    fn check(&self, shape: Shape, size: usize) -> Result<(), KernelError> {
        self.view.check(self.name, shape, size)?;
        if (Shape { batch: 1, ..shape }).extent(self.view.strides) >= MAX_SAMPLE {
            let reason = format!("a sample of {} lies over 2^31 elements or more", self.name);
            return Err(KernelError::Problem(reason));
        }
        match self.view.widest(shape, size) * size {
            16 => Ok(()),
            _ => {
                let reason = "its vectors have to begin at multiples of 16 bytes";
                Err(KernelError::Layout { name: self.name, reason })
            }
        }
    }

    fn buffer(&self) -> Buffer {
        let of = if self.is_output { Buffer::written } else { Buffer::read };
        of(&self.view.handle)
    }
}

struct Tensors<'a> {
    weights: Tensor,
    rows: Tensor,
    tokens: Tensor,
    bias: Option<&'a Handle>,
}

fn enqueue(
    client: &Client,
    problem: &Problem,
    product: Product,
    dtype: ElemType,
    hidden: f32,
    tensors: Tensors<'_>,
) -> Result<(), KernelError> {
    let device = ampere::device(client)?;
    let element = match dtype {
        ElemType::Float(FloatKind::F16) => Element::F16,
        ElemType::Float(FloatKind::BF16) => Element::Bf16,
        got => return Err(KernelError::ElementType { known: "f16 and bf16", got }),
    };
    let Tensors { weights, rows, tokens, bias } = tensors;
    let offset = weights.view.handle.offset_start.unwrap_or(0) as usize;
    let plan = |pitch| Schedule::plan(problem, product, element, bias.is_some(), offset, pitch);
    let pitch = pitch(problem, &weights.view);
    let schedule = match pitch.map(plan) {
        Some(Ok(schedule)) => schedule,
        // What there are no kernels for is not worth a copy.
        _ => {
            let contiguous = plan(problem.slots()).map_err(KernelError::Problem)?;
            if pitch != Some(problem.slots()) {
                let reason = "rows of slots have to lie as far from each other as all others";
                return Err(KernelError::Layout { name: weights.name, reason });
            }
            contiguous
        }
    };
    weights.view.check(weights.name, Shape::weights(problem), dtype.size())?;
    rows.check(Operand::Query.shape(problem), dtype.size())?;
    tokens.check(Operand::Key.shape(problem), dtype.size())?;
    let cubin = load(schedule, &device)?;
    let ctas = schedule.ctas(problem, &device);
    if ctas == 0 {
        return Ok(());
    }
    let kernel = Kernel {
        cubin,
        entry: schedule.entry(),
        grid: ctas as u32,
        block: schedule.threads() as u32,
        shared_memory: schedule.shared_memory() as u32,
    };
    let argument = schedule.params(problem, &rows.view, &tokens.view, hidden, ctas);
    let bias = Buffer::read(bias.unwrap_or(&weights.view.handle));
    let buffers = vec![weights.buffer(), rows.buffer(), tokens.buffer(), bias];
    launch(client, kernel, buffers, vec![argument]);
    Ok(())
}

/// Elements from one row of weights to the next, where all of them are as far apart, and kernels can read them.
///
/// With gaps between them, as tensors lie that Burn makes on CUDA, each begins at 16 bytes, and is read in whole vectors, the last of which
/// may end in the gap, but not behind the memory.
fn pitch(problem: &Problem, weights: &Strided) -> Option<usize> {
    let shape = Shape::weights(problem);
    if weights.is_contiguous(shape) {
        return Some(shape.dim);
    }
    let mut axes = weights.strides.into_iter().zip(shape.lengths());
    let (pitch, _) = axes.rfind(|(_, length)| *length > 1)?;
    let rows = shape.elements() / shape.dim;
    let bytes = ELEMENT * ((rows - 1) * pitch + shape.dim).next_multiple_of(VECTOR);
    let offset = weights.handle.offset_start.unwrap_or(0);
    let is_read = problem.axes[0].kernel_size == 1
        && pitch >= shape.dim
        && pitch.is_multiple_of(VECTOR)
        && offset.is_multiple_of((ELEMENT * VECTOR) as u64)
        && rows / problem.batch * pitch < MAX_SAMPLE
        && weights.is_contiguous(Shape { dim: pitch, ..shape })
        && bytes as u64 <= weights.handle.size_in_used();
    is_read.then_some(pitch)
}

/// The program of a kernel.
fn load(schedule: Schedule, device: &DeviceInfo) -> Result<Arc<Cubin>, CompileError> {
    static KNOWN: Programs<(Schedule, u32)> = LazyLock::new(Mutex::default);
    let source = || ampere::source(format_args!("{schedule:?}"), schedule.source(), device);
    compile::load(&KNOWN, (schedule, device.capability), device.driver, source)
}

/// The kernels' `Axis`.
#[repr(C)]
#[derive(Clone, Copy)]
struct AxisParams {
    length: i32,
    kernel: i32,
    stride: i32,
    unused: i32,
    dilation: Divisor,
    tiles: Divisor,
}

/// The kernels' `Params`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    pointers: [u64; 4],
    samples: [i64; 2],
    strides: [[i32; 4]; 2],
    axes: [AxisParams; MAX_RANK],
    parts: Divisor,
    positions: Divisor,
    elements: i64,
    heads: i32,
    scale: f32,
    hidden: f32,
    steps: i32,
    longer: i32,
    unused: i32,
}

const _: () = assert!(size_of::<Params>() == 8 * (4 + 2 + 1) + 4 * (8 + 3 * 12 + 8 + 6));

impl Schedule {
    /// Tokens of a tile along an axis.
    fn tile_of(&self, index: usize) -> usize {
        [1, self.tile[0], self.tile[1]][index]
    }

    /// Tiles of a dilation group along an axis.
    fn tiles(&self, axis: &Axis, index: usize) -> usize {
        axis.group(0).0.div_ceil(self.tile_of(index))
    }

    fn parts(&self, problem: &Problem) -> usize {
        total_heads(problem, self.product) / self.heads
    }

    /// Tiles of all strips, some of which may be empty.
    fn steps(&self, problem: &Problem) -> usize {
        let [z, y, x] = &problem.axes;
        let tiles = y.dilation * self.tiles(y, 1) * x.dilation * self.tiles(x, 2);
        problem.batch * z.queries * tiles * self.parts(problem)
    }

    /// CTAs of a launch: one for each tile, or as many as the device has at once, which share them.
    fn ctas(&self, problem: &Problem, device: &DeviceInfo) -> usize {
        let steps = self.steps(problem);
        match self.is_walking() {
            true => steps.min(device.multiprocessors as usize * self.ctas_at_once()),
            false => steps,
        }
    }

    fn params(
        &self,
        problem: &Problem,
        rows: &Strided,
        tokens: &Strided,
        hidden: f32,
        ctas: usize,
    ) -> Argument {
        let steps = self.steps(problem);
        let axis = |index: usize| {
            let axis = &problem.axes[index];
            AxisParams {
                length: axis.queries as i32,
                kernel: axis.kernel_size as i32,
                stride: axis.stride as i32,
                unused: 0,
                dilation: Divisor::new(axis.dilation),
                tiles: Divisor::new(self.tiles(axis, index)),
            }
        };
        let params = Params {
            pointers: [0; 4],
            samples: [rows, tokens].map(|tensor| tensor.strides[0] as i64),
            // Those of an axis of one element may be anything.
            strides: [rows, tokens]
                .map(|tensor| [1, 2, 3, 4].map(|index| tensor.strides[index] as i32)),
            axes: [0, 1, 2].map(axis),
            parts: Divisor::new(self.parts(problem)),
            positions: Divisor::new(problem.axes[0].queries),
            elements: problem.weights() as i64,
            heads: problem.heads as i32,
            scale: problem.scale as f32,
            hidden,
            steps: (steps / ctas) as i32,
            longer: (steps % ctas) as i32,
            unused: 0,
        };
        // SAFETY: the assertion above counts every byte.
        unsafe { parameters(params, &[0, 1, 2, 3]) }
    }
}
