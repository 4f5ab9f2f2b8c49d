//! What kernels that add a relative position bias take, and the sums of its gradient.

use std::mem::offset_of;
use std::sync::Arc;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::Element;
use super::compile::Cubin;
use super::grid::{Grid, parameters};
use super::launch::{Argument, Buffer, Kernel, launch};
use crate::Problem;

/// Name and CUDA C++ of the program that adds up sums of the gradient.
pub(crate) fn source(element: Element) -> (String, String) {
    let macros = format!("#define BF16 {}\n", usize::from(element == Element::Bf16));
    let code = concat!(include_str!("cuda/device.cuh"), include_str!("cuda/bias.cu"));
    (format!("bias_{}", element.name()), macros + code)
}

/// A bias on the device, as the kernels of a pass have it.
pub(crate) struct Bias {
    entries: Handle,
    /// Entries of a head.
    extent: usize,
    heads: usize,
    /// A row for each CTA of the launches that sum the gradient, for each head.
    rows: usize,
    sums: Option<Handle>,
}

impl Bias {
    /// With room for the sums of some launches.
    pub(crate) fn new(
        client: &Client,
        problem: &Problem,
        entries: &Handle,
        summing: &[&Grid<'_>],
    ) -> Self {
        let rows = summing.iter().map(|grid| grid.ctas() as usize).sum();
        let (extent, heads) = (problem.bias_extents().iter().product(), problem.heads);
        let bytes = size_of::<f32>() * heads * rows * extent;
        let sums = (bytes > 0).then(|| client.empty(bytes));
        Self { entries: entries.clone(), extent, heads, rows, sums }
    }

    /// The buffers that a kernel takes: of `bias`, or some other address where there is none.
    pub(crate) fn buffers(bias: Option<&Self>, other: &Handle) -> [Buffer; 2] {
        let entries = bias.map_or(other, |bias| &bias.entries);
        // Without sums some other memory takes their place, which is not written to.
        let sums = bias.and_then(|bias| bias.sums.as_ref());
        [Buffer::read(entries), sums.map_or(Buffer::read(entries), Buffer::written)]
    }

    /// What a launch is told of `bias`.
    pub(crate) fn params(bias: Option<&Self>, grid: &Grid<'_>) -> BiasParams {
        let Some(bias) = bias else { return BiasParams::default() };
        BiasParams {
            samples: grid.samples_of_heads() as i32,
            rows: bias.rows as i32,
            ..BiasParams::default()
        }
    }

    /// An argument whose [`BiasParams`] at this byte get the addresses of two buffers; sums begin with a row.
    pub(crate) fn address(
        bias: Option<&Self>,
        argument: Argument,
        byte: usize,
        [entries, sums]: [usize; 2],
        row: usize,
    ) -> Argument {
        let Argument::Struct { words, mut pointers } = argument else { return argument };
        let first = bias.map_or(0, |bias| size_of::<f32>() * row * bias.extent);
        let word = |offset| (byte + offset) / size_of::<u64>();
        pointers.push((word(offset_of!(BiasParams, entries)), entries, 0));
        pointers.push((word(offset_of!(BiasParams, sums)), sums, first));
        Argument::Struct { words, pointers }
    }

    /// Enqueues the adding up of all CTAs' sums, if there are any.
    pub(crate) fn launch_sum(&self, client: &Client, cubin: &Arc<Cubin>, gradient: &Handle) {
        let Some(sums) = &self.sums else { return };
        let kernel = Kernel {
            cubin: cubin.clone(),
            entry: c"bias_sum",
            grid: (self.heads * self.extent.div_ceil(32)) as u32,
            block: 1024,
            shared_memory: 0,
        };
        let (rows, entries) = (self.rows as i32, self.extent as i32);
        // SAFETY: the assertion below counts every byte.
        let params = unsafe { parameters(SumParams { pointers: [0; 2], rows, entries }, &[0, 1]) };
        let buffers = vec![Buffer::written(gradient), Buffer::read(sums)];
        launch(client, kernel, buffers, vec![params]);
    }
}

/// `Bias` of the kernels, the last of their parameters.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct BiasParams {
    entries: u64,
    sums: u64,
    samples: i32,
    rows: i32,
}

const _: () = assert!(size_of::<BiasParams>() == 8 * 2 + 4 * 2);

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
    use crate::MAX_RANK;
    use crate::native::Element;
    use crate::native::sm90::{self, Pass, Schedule, backward_candidates, plan_backward};
    use crate::{Axis, Problem, window};

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
                // The slowest axis runs on by a block where steps have two.
                let more = schedule.blocks > 1 && schedule.stack == index;
                let end = start + (blocks + usize::from(more)) * columns - 1;
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
                let table = schedule.bias_table().expect("it has a bias");
                let first = MAX_RANK - problem.rank();
                for (index, held) in table.into_iter().enumerate().skip(first) {
                    let (least, greatest) = reach(&schedule, problem, index);
                    // As the kernels count: from the entry of the distance zero.
                    let rows = schedule.cut().cta_tile[index];
                    let origin = (problem.bias_extents()[index] / 2 + rows - 1) as isize;
                    let held = -origin..held as isize - origin;
                    assert!(
                        held.contains(&least) && held.contains(&greatest),
                        "{schedule}, {problem:?}: {least}..={greatest} of {held:?}"
                    );
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
                    let has_room = dim <= 192 || windows.len() < 3;
                    assert_eq!(sm90::unsupported(&problem).is_none(), has_room, "{problem:?}");
                    if !has_room {
                        continue;
                    }
                    assert!(sm90::plan(&problem, Element::F16).is_some(), "{problem:?}");
                    assert!(plan_backward(&problem, Element::F16, None).is_some(), "{problem:?}");
                }
            }
        }
    }
}
