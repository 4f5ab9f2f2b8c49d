//! What surrounds kernels that add a relative position bias: the table they read, and the sums of its gradient.

use std::mem::offset_of;
use std::sync::Arc;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::compile::Cubin;
use super::grid::{Grid, parameters};
use super::launch::{Argument, Buffer, Kernel, launch};
use super::{Cut, Element};
use crate::{MAX_RANK, Problem};

/// Name and CUDA C++ of the program that holds both kernels.
pub(crate) fn source(element: Element) -> (String, String) {
    let macros = format!("#define BF16 {}\n", usize::from(element == Element::Bf16));
    let code = concat!(include_str!("cuda/device.cuh"), include_str!("cuda/bias.cu"));
    (format!("bias_{}", element.name()), macros + code)
}

/// How a table of the bias lies: what it holds, and zeros around it, since blocks reach farther than windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Table {
    heads: usize,
    extents: [usize; MAX_RANK],
    margin: [usize; MAX_RANK],
}

impl Table {
    /// One for kernels that are cut like this.
    fn new(problem: &Problem, cuts: impl IntoIterator<Item = Cut>) -> Self {
        let mut margin = [0; MAX_RANK];
        for cut in cuts {
            for (axis, margin) in margin.iter_mut().enumerate() {
                // From the first key that a CTA's first row sees to its last row, and from there to the end of the blocks
                // that its last row's last key is in, and of the block behind them.
                let reach = cut.cta_tile[axis] + 2 * cut.column_tile()[axis] - 2;
                let is_padding = axis < MAX_RANK - problem.rank();
                *margin = (*margin).max(if is_padding { 0 } else { reach });
            }
        }
        Self { heads: problem.heads, extents: problem.bias_extents(), margin }
    }

    fn lengths(&self) -> [usize; MAX_RANK] {
        std::array::from_fn(|axis| self.extents[axis] + 2 * self.margin[axis])
    }

    /// Entries of a head.
    fn head(&self) -> usize {
        self.lengths().iter().product()
    }

    /// Entries of the bias of a head.
    fn entries(&self) -> usize {
        self.extents.iter().product()
    }
}

/// Rows of sums: one for each tile of the launches of the kernel that sums a bias' gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rows {
    /// Of a head of a sample in one launch.
    places: usize,
    /// Of a head in one launch.
    launch: usize,
    /// Of a head.
    all: usize,
}

impl Rows {
    fn new(problem: &Problem, launches: &[&Grid<'_>]) -> Self {
        let tiles = launches.iter().map(|grid| grid.tiles_of_head());
        let places = tiles.max().unwrap_or(0);
        let launch = problem.batch * places;
        Self { places, launch, all: launches.len() * launch }
    }
}

/// A bias on the device, as the kernels of a pass have it.
pub(crate) struct Bias {
    table: Table,
    entries: Handle,
    rows: Rows,
    sums: Handle,
}

impl Bias {
    /// Enqueues the making of a table for kernels that are cut like this, and of room for the sums of some launches.
    pub(crate) fn new(
        client: &Client,
        cubin: &Arc<Cubin>,
        problem: &Problem,
        bias: &Handle,
        cuts: impl IntoIterator<Item = Cut>,
        summing: &[&Grid<'_>],
    ) -> Self {
        let (table, rows) = (Table::new(problem, cuts), Rows::new(problem, summing));
        let entries = client.empty(size_of::<u32>() * table.heads * table.head());
        let sums = size_of::<f32>() * table.heads * rows.all * table.entries();
        // Without sums the table takes their place, which is not written to.
        let sums = if sums > 0 { client.empty(sums) } else { entries.clone() };
        let this = Self { table, entries, rows, sums };
        this.launch_table(client, cubin, bias);
        this
    }

    /// The buffers that a kernel takes: of `bias`, or some other address where there is none.
    pub(crate) fn buffers(bias: Option<&Self>, other: &Handle) -> [Buffer; 2] {
        match bias {
            Some(bias) if bias.rows.all > 0 => {
                [Buffer::read(&bias.entries), Buffer::written(&bias.sums)]
            }
            Some(bias) => [Buffer::read(&bias.entries), Buffer::read(&bias.entries)],
            None => [Buffer::read(other), Buffer::read(other)],
        }
    }

    /// What a launch is told of `bias`.
    pub(crate) fn params(bias: Option<&Self>, grid: &Grid<'_>) -> BiasParams {
        let Some(Self { table, rows, .. }) = bias else { return BiasParams::default() };
        let [_, y, x] = table.lengths();
        let [z0, y0, x0]: [usize; MAX_RANK] =
            std::array::from_fn(|axis| table.margin[axis] + table.extents[axis] / 2);
        BiasParams {
            pitch: [(y * x) as i32, x as i32],
            head: table.head() as i32,
            origin: ((z0 * y + y0) * x + x0) as i32,
            tiles: grid.tiles_of_head() as i32,
            places: rows.places as i32,
            rows: rows.all as i32,
            ..BiasParams::default()
        }
    }

    /// An argument whose [`BiasParams`] at this byte get the addresses of two buffers, as one of the launches that make
    /// sums, numbered from 0, has them.
    pub(crate) fn address(
        bias: Option<&Self>,
        argument: Argument,
        byte: usize,
        [table, sums]: [usize; 2],
        launch: usize,
    ) -> Argument {
        let Argument::Struct { words, mut pointers } = argument else { return argument };
        let rows = bias.map_or(0, |bias| launch * bias.rows.launch * bias.table.entries());
        let word = |offset| (byte + offset) / size_of::<u64>();
        pointers.push((word(offset_of!(BiasParams, table)), table, 0));
        pointers.push((word(offset_of!(BiasParams, sums)), sums, size_of::<f32>() * rows));
        Argument::Struct { words, pointers }
    }

    /// Enqueues the filling of the table; sums are set to zero.
    fn launch_table(&self, client: &Client, cubin: &Arc<Cubin>, bias: &Handle) {
        const THREADS: usize = 256;
        let Self { table, rows, .. } = self;
        let sums = table.heads * rows.all * table.entries();
        let blocks = (table.heads * table.head()).max(sums / 4).div_ceil(THREADS).clamp(1, 1 << 12);
        let kernel = Kernel {
            cubin: cubin.clone(),
            entry: c"bias_table",
            grid: blocks as u32,
            block: THREADS as u32,
            shared_memory: 0,
        };
        let params = TableParams {
            pointers: [0; 3],
            sum_count: sums as i64,
            extents: table.extents.map(|extent| extent as i32),
            margin: table.margin.map(|margin| margin as i32),
            heads: table.heads as i32,
            padding: 0,
        };
        // SAFETY: the assertion below counts every byte.
        let params = unsafe { parameters(params, &[0, 1, 2]) };
        let [entries, sums] = [&self.entries, &self.sums].map(Buffer::written);
        launch(client, kernel, vec![entries, Buffer::read(bias), sums], vec![params]);
    }

    /// Enqueues the adding up of all tiles' sums.
    pub(crate) fn launch_sum(&self, client: &Client, cubin: &Arc<Cubin>, gradient: &Handle) {
        let Self { table, rows, .. } = self;
        let kernel = Kernel {
            cubin: cubin.clone(),
            entry: c"bias_sum",
            grid: (table.heads * table.entries().div_ceil(32)) as u32,
            block: 1024,
            shared_memory: 0,
        };
        let (rows, entries) = (rows.all as i32, table.entries() as i32);
        // SAFETY: the assertion below counts every byte.
        let params = unsafe { parameters(SumParams { pointers: [0; 2], rows, entries }, &[0, 1]) };
        let buffers = vec![Buffer::written(gradient), Buffer::read(&self.sums)];
        launch(client, kernel, buffers, vec![params]);
    }
}

/// `Bias` of the kernels, the last of their parameters.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct BiasParams {
    table: u64,
    sums: u64,
    pitch: [i32; 2],
    head: i32,
    origin: i32,
    tiles: i32,
    places: i32,
    rows: i32,
    padding: i32,
}

const _: () = assert!(size_of::<BiasParams>() == 8 * 2 + 4 * 8);

#[repr(C)]
#[derive(Clone, Copy)]
struct TableParams {
    pointers: [u64; 3],
    sum_count: i64,
    extents: [i32; MAX_RANK],
    margin: [i32; MAX_RANK],
    heads: i32,
    padding: i32,
}

const _: () = assert!(size_of::<TableParams>() == 8 * 4 + 4 * 8);

#[repr(C)]
#[derive(Clone, Copy)]
struct SumParams {
    pointers: [u64; 2],
    rows: i32,
    entries: i32,
}

const _: () = assert!(size_of::<SumParams>() == 8 * 2 + 4 * 2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::sm90::{self, Pass, Schedule, backward_candidates, plan_backward};
    use crate::{Axis, window};

    /// The least and the greatest distance, from row to column, of what a CTA's boxes hold along an axis.
    fn reach(schedule: &Schedule, problem: &Problem, index: usize) -> (isize, isize) {
        let (axis, cut) = (&problem.axes[index], schedule.cut());
        let (rows, columns) = (cut.cta_tile[index], cut.column_tile()[index]);
        let mut reach = (0, 0);
        for group in 0..axis.dilation {
            let members = window::group_length(axis.queries, axis.dilation, group);
            let seen = |row: usize| match schedule.pass {
                Pass::Keys => axis.seen_by(group, row.min(members - 1)),
                _ => axis.keys_seen(group, row.min(members - 1)),
            };
            for first in (0..members).step_by(rows) {
                let last = first + rows - 1;
                let start = seen(first).start;
                let blocks = (seen(last).end - start).div_ceil(columns).max(1);
                // The slowest axis runs on by a block.
                let end = start + (blocks + 1) * columns - 1;
                reach.0 = reach.0.min(start as isize - last as isize);
                reach.1 = reach.1.max(end as isize - first as isize);
            }
        }
        reach
    }

    #[test]
    fn no_box_reaches_beyond_the_table() {
        let axes = [
            Axis::neighborhood(40, 7),
            Axis::neighborhood(37, 9).with_stride(4).with_dilation(3),
            Axis::neighborhood(21, 6).with_stride(6).with_causal(true),
            Axis::neighborhood(5, 5),
            Axis::UNIT,
            Axis::neighborhood(9, 4),
        ];
        let problems: Vec<_> = (1..=MAX_RANK)
            .flat_map(|rank| axes.windows(rank))
            .map(|axes| Problem::new(axes, 2, 64).with_bias(true))
            .filter(|problem| sm90::unsupported(problem).is_none())
            .collect();
        assert!(problems.len() > 5);
        for problem in &problems {
            let plan = plan_backward(problem, Element::Bf16, None).expect("it is supported");
            let backward = plan
                .schedules()
                .flat_map(|of| backward_candidates(problem, Element::Bf16, of.pass, of.gradients));
            for schedule in sm90::candidates(problem, Element::Bf16).into_iter().chain(backward) {
                let table = Table::new(problem, [schedule.cut()]);
                for index in MAX_RANK - problem.rank()..MAX_RANK {
                    let (least, greatest) = reach(&schedule, problem, index);
                    let held = (table.margin[index] + table.extents[index] / 2) as isize;
                    assert!(
                        least >= -held && greatest <= held,
                        "{schedule}, {problem:?}: {least}..={greatest} of {held}"
                    );
                    // Keys' kernels look from columns to rows: the table is the same on both sides.
                    assert_eq!(table.lengths()[index] % 2, 1);
                }
            }
        }
    }

    #[test]
    fn what_is_supported_has_schedules() {
        // As many entries as there may be, or nearly.
        let windows: [&[usize]; 4] = [&[430], &[15, 15], &[5, 5, 5], &[2, 2, 48]];
        for (windows, dim) in
            windows.into_iter().flat_map(|of| [8, 32, 64, 128, 192, 256].map(|dim| (of, dim)))
        {
            for (stride, is_causal) in [(1, false), (2, true)] {
                let side = |kernel: &usize| {
                    Axis::neighborhood(3 * kernel, *kernel)
                        .with_stride(stride)
                        .with_dilation(stride)
                        .with_causal(is_causal)
                };
                let axes: Vec<_> = windows.iter().map(side).collect();
                for additional in [0, 9] {
                    let problem =
                        Problem::new(&axes, 2, dim).with_bias(true).with_additional(additional);
                    assert_eq!(sm90::unsupported(&problem), None);
                    assert!(sm90::plan(&problem, Element::F16).is_some(), "{problem:?}");
                    assert!(plan_backward(&problem, Element::F16, None).is_some(), "{problem:?}");
                }
            }
        }
    }
}
