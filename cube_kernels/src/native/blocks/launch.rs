//! What is handed to the kernels.

use std::sync::Arc;

use cubecl::client::Client;
use cubecl::server::Handle;

use crate::native::Cut;
use crate::native::compile::Cubin;
use crate::native::grid::{Grid, parameters};
use crate::native::launch::{Argument, Buffer, DeviceInfo, Kernel, launch};
use crate::native::{backward, forward};
use crate::sparse::{Inverse, check_lists};
use crate::view::KeyGradients;
use crate::{
    BlockSparse, KernelError, KeyValue, MAX_RANK, Operands, Outputs, Pass, Saved, Strided,
};

/// Bytes of what a list has in the table, and of an item.
const ENTRY: usize = 16;
const ITEM: usize = 8;
/// Warps of a CTA that makes items, each of which has a list.
const WARPS: usize = 4;
/// How many times as long as others a list is that is taken first.
const LONG: usize = 4;

/// How a kernel cuts block-sparse attention into boxes.
#[derive(Clone, Copy, Debug)]
pub(in crate::native) struct Boxes {
    pub cut: Cut,
    /// Heads of a box of rows.
    pub row_heads: usize,
    /// Heads of a box of columns.
    pub column_heads: usize,
    /// Boxes of rows that a CTA has.
    pub row_tiles: usize,
    /// Columns of a step.
    pub columns: usize,
}

/// Rows and columns of a pass: blocks along each axis, what is in them, and boxes of a block.
struct Side {
    lengths: [usize; MAX_RANK],
    block: [usize; MAX_RANK],
    blocks: [usize; MAX_RANK],
    tile: [usize; MAX_RANK],
}

impl Side {
    fn queries(sparse: &BlockSparse, cut: &Cut) -> Self {
        let lengths = sparse.problem.axes.map(|axis| axis.queries);
        Self { lengths, block: sparse.query_block, blocks: sparse.query_grid(), tile: cut.q_tile }
    }

    fn keys(sparse: &BlockSparse, cut: &Cut) -> Self {
        let lengths = sparse.problem.axes.map(|axis| axis.keys);
        Self { lengths, block: sparse.key_block, blocks: sparse.key_grid(), tile: cut.kv_tile }
    }

    /// Tokens of a block along each axis, of which none has more than the axis.
    fn extent(&self) -> [usize; MAX_RANK] {
        std::array::from_fn(|axis| self.block[axis].min(self.lengths[axis]))
    }

    /// Boxes of a block along each axis.
    fn boxes(&self) -> [usize; MAX_RANK] {
        let extent = self.extent();
        std::array::from_fn(|axis| extent[axis].div_ceil(self.tile[axis]))
    }

    fn boxes_of_block(&self) -> usize {
        self.boxes().iter().product()
    }

    /// All blocks.
    fn count(&self) -> usize {
        self.blocks.iter().product()
    }
}

/// What a kernel's lists come to.
pub(in crate::native) struct Walk<'a> {
    sparse: &'a BlockSparse,
    boxes: Boxes,
    rows: Side,
    columns: Side,
    /// Lists, one for each block of rows.
    lists: usize,
    items: usize,
}

fn ints(values: [usize; MAX_RANK]) -> [i32; MAX_RANK] {
    values.map(|value| value as i32)
}

/// An axis of the kernel that makes items.
#[repr(C)]
#[derive(Clone, Copy)]
struct ListAxis {
    rows: i32,
    columns: i32,
    row_block: i32,
    column_block: i32,
    row_blocks: i32,
    column_blocks: i32,
    tile: i32,
    boxes: i32,
    origin: i32,
    step: i32,
    is_causal: i32,
}

/// Its `Params`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ListParams {
    pointers: [u64; 5],
    axes: [ListAxis; MAX_RANK],
    lists: i32,
    heads: i32,
    entries: i32,
    boxes_of_step: i32,
    padding: i32,
}

const _: () = assert!(size_of::<ListParams>() == 8 * 5 + 4 * (33 + 5));

/// The `Order` of the kernel that says in which order lists are taken.
#[repr(C)]
#[derive(Clone, Copy)]
struct Order {
    pointers: [u64; 2],
    pairs: i32,
    row_blocks: i32,
    lists_of_pair: i32,
    longest: i32,
}

const _: () = assert!(size_of::<Order>() == 8 * 2 + 4 * 4);

/// The kernels' `Listed`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Listed {
    pointers: [u64; 4],
    tiles: i32,
    parts: i32,
    blocks: [i32; MAX_RANK],
    extent: [i32; MAX_RANK],
    boxes: [i32; MAX_RANK],
    members: i32,
    pairs: i32,
    heads: i32,
    lists_of_pair: i32,
    origin: [i32; MAX_RANK],
    step: [i32; MAX_RANK],
    padding: i32,
}

const _: () = assert!(size_of::<Listed>() == 8 * 4 + 4 * 22);

impl<'a> Walk<'a> {
    /// Fails where numbers of items have no room in 32 bits.
    pub(in crate::native) fn new(
        boxes: Boxes,
        sparse: &'a BlockSparse,
    ) -> Result<Self, KernelError> {
        let (queries, keys) = (Side::queries(sparse, &boxes.cut), Side::keys(sparse, &boxes.cut));
        let (rows, columns) = match boxes.cut.pass {
            Pass::Forward | Pass::Queries => (queries, keys),
            Pass::Keys => (keys, queries),
        };
        let pairs = sparse.problem.batch * sparse.list_heads;
        let lists = pairs * rows.count();
        let listed = pairs * sparse.query_blocks() * sparse.entries * columns.boxes_of_block();
        let mut walk = Self { sparse, boxes, rows, columns, lists, items: 0 };
        // Each list may have a step that is not full.
        walk.items = listed + lists * walk.boxes_of_step();
        let (items, tiles) = (walk.items, walk.tiles());
        if items.max(tiles) > i32::MAX as usize {
            let reason = format!(
                "32-bit numbers cannot count {items} boxes of listed blocks, or {tiles} tiles"
            );
            return Err(KernelError::Problem(reason));
        }
        Ok(walk)
    }

    fn problem(&self) -> &'a crate::Problem {
        &self.sparse.problem
    }

    /// Boxes of columns in a step.
    fn boxes_of_step(&self) -> usize {
        let tokens: usize = self.columns.tile.iter().product();
        self.boxes.columns / (tokens * self.boxes.column_heads)
    }

    /// Heads of a sample that have lists of rows, and heads of rows of each.
    fn pairs(&self) -> [usize; 2] {
        match self.boxes.cut.pass {
            Pass::Forward | Pass::Queries => [self.sparse.list_heads, self.sparse.heads_of_list()],
            Pass::Keys => [self.problem().heads_kv, 1],
        }
    }

    /// Boxes of rows that share a list.
    fn members(&self) -> usize {
        self.pairs()[1] / self.boxes.row_heads * self.rows.boxes_of_block()
    }

    /// Tiles of CTAs that share a list.
    fn parts(&self) -> usize {
        self.members().div_ceil(self.boxes.row_tiles)
    }

    fn tiles(&self) -> usize {
        self.problem().batch * self.pairs()[0] * self.rows.count() * self.parts()
    }

    /// Where query 0 stands. Beyond the first and the last key it makes no difference.
    fn origin(&self) -> [i32; MAX_RANK] {
        std::array::from_fn(|index| {
            let axis = &self.problem().axes[index];
            let end = (axis.keys * self.sparse.steps[index]) as isize;
            axis.origin.clamp(-(axis.queries as isize), end) as i32
        })
    }

    /// Makes the items of lists `[batch, query_blocks, list_heads, entries]`.
    pub(in crate::native) fn make(
        &self,
        client: &Client,
        cubin: &Arc<Cubin>,
        lists: &Handle,
    ) -> Made {
        self.make_of(client, cubin, lists, [0, 0], self.sparse.entries)
    }

    /// The same of lists that were turned around.
    pub(in crate::native) fn make_turned(
        &self,
        client: &Client,
        cubin: &Arc<Cubin>,
        inverse: &Inverse,
    ) -> Made {
        let behind = size_of::<u32>() * inverse.starts;
        let entries = self.sparse.query_blocks() * self.sparse.entries;
        let mut made = self.make_of(client, cubin, &inverse.handle, [behind, 0], entries);
        made.order = Some(self.order(client, cubin, &made.table));
        made
    }

    /// Steps of a list that is not long: some times as many as lists have that are all alike.
    fn longest(&self) -> usize {
        let listed = self.sparse.query_blocks() * self.sparse.entries;
        let boxes = (listed * self.columns.boxes_of_block()).div_ceil(self.rows.count().max(1));
        LONG * boxes.div_ceil(self.boxes_of_step()).max(1)
    }

    /// The order in which blocks of rows are taken, by the table of their lists.
    fn order(&self, client: &Client, cubin: &Arc<Cubin>, table: &Handle) -> Handle {
        let row_blocks = self.rows.count();
        let pairs = self.problem().batch * self.pairs()[0];
        let order = client.empty(size_of::<i32>() * (pairs * row_blocks).max(1));
        let params = Order {
            pointers: [0; 2],
            pairs: pairs as i32,
            row_blocks: row_blocks as i32,
            lists_of_pair: self.lists_of_pair() as i32,
            longest: self.longest().min(i32::MAX as usize) as i32,
        };
        // SAFETY: the assertion above counts every byte.
        let params = unsafe { parameters(params, &[0, 1]) };
        let kernel = Kernel {
            cubin: cubin.clone(),
            entry: c"attention_order",
            grid: 1,
            block: 1024,
            shared_memory: 0,
        };
        let buffers = vec![Buffer::read(table), Buffer::written(&order)];
        launch(client, kernel, buffers, vec![params]);
        order
    }

    /// Lists of the rows of a pair, one for each pass over their columns or one for all.
    fn lists_of_pair(&self) -> usize {
        self.sparse.list_heads / self.pairs()[0]
    }

    /// From memory with lists and their starts so many bytes from its begin.
    fn make_of(
        &self,
        client: &Client,
        cubin: &Arc<Cubin>,
        lists: &Handle,
        places: [usize; 2],
        entries: usize,
    ) -> Made {
        let made = Made {
            table: client.empty(ENTRY * self.lists),
            items: client.empty(ITEM * self.items),
            taken: client.empty(size_of::<i32>()),
            order: None,
        };
        let origin = self.origin();
        let (rows, columns) = (&self.rows, &self.columns);
        let (row_block, column_block, boxes) = (rows.extent(), columns.extent(), columns.boxes());
        let axes = std::array::from_fn(|index| ListAxis {
            rows: rows.lengths[index] as i32,
            columns: columns.lengths[index] as i32,
            row_block: row_block[index] as i32,
            column_block: column_block[index] as i32,
            row_blocks: rows.blocks[index] as i32,
            column_blocks: columns.blocks[index] as i32,
            tile: columns.tile[index] as i32,
            boxes: boxes[index] as i32,
            origin: origin[index],
            step: self.sparse.steps[index] as i32,
            is_causal: i32::from(self.problem().axes[index].is_causal),
        });
        let params = ListParams {
            pointers: [0; 5],
            axes,
            lists: self.lists as i32,
            heads: self.sparse.list_heads as i32,
            entries: entries as i32,
            boxes_of_step: self.boxes_of_step() as i32,
            padding: 0,
        };
        // SAFETY: the assertion above counts every byte.
        let mut params = unsafe { parameters(params, &[0, 1, 2, 3, 3]) };
        if let Argument::Struct { pointers, .. } = &mut params {
            pointers[3].2 = places[0];
            pointers[4].2 = places[1];
        }
        let kernel = Kernel {
            cubin: cubin.clone(),
            entry: c"attention_lists",
            grid: self.lists.div_ceil(WARPS) as u32,
            block: 32 * WARPS as u32,
            shared_memory: 0,
        };
        let mut buffers: Vec<Buffer> =
            [&made.table, &made.items, &made.taken].into_iter().map(Buffer::written).collect();
        buffers.push(Buffer::read(lists));
        launch(client, kernel, buffers, vec![params]);
        made
    }

    /// Whether there is nothing to compute.
    fn is_empty(&self) -> bool {
        self.tiles() == 0
    }

    /// Hands what was made to a kernel, as the last of its buffers and of its parameters.
    fn hand(&self, made: &Made, buffers: &mut Vec<Buffer>, arguments: &mut [Argument]) {
        let listed = Listed {
            pointers: [0; 4],
            tiles: self.tiles() as i32,
            parts: self.parts() as i32,
            blocks: ints(self.rows.blocks),
            extent: ints(self.rows.extent()),
            boxes: ints(self.rows.boxes()),
            members: self.members() as i32,
            pairs: self.pairs()[0] as i32,
            heads: self.pairs()[1] as i32,
            lists_of_pair: self.lists_of_pair() as i32,
            origin: self.origin(),
            step: ints(self.sparse.steps),
            padding: 0,
        };
        let first = buffers.len();
        buffers.extend([
            Buffer::read(&made.table),
            Buffer::read(&made.items),
            Buffer::written(&made.taken),
        ]);
        // Rows that are queries are taken in their order, and their kernels read none.
        let order = made.order.as_ref().map_or(first, |order| {
            buffers.push(Buffer::read(order));
            first + 3
        });
        // SAFETY: the assertion above counts every byte.
        let listed = unsafe { parameters(listed, &[first, first + 1, first + 2, order]) };
        arguments.last_mut().expect("parameters come last").append(listed);
    }

    /// Boxes of several heads, of what backward kernels read of queries: rows or columns, and of columns the statistics.
    fn set_heads(&self, arguments: &mut [Argument]) {
        let (maps, heads): (&[usize], usize) = match self.boxes.cut.pass {
            Pass::Forward | Pass::Queries => (&[0, 1], self.boxes.row_heads),
            Pass::Keys => (&[2, 3, 6], self.boxes.column_heads),
        };
        for map in maps {
            with_heads(&mut arguments[*map], heads);
        }
    }

    /// The launch of a kernel on these lists.
    fn kernel(
        &self,
        grid: &Grid<'_>,
        cubin: &Arc<Cubin>,
        entry: &'static core::ffi::CStr,
    ) -> Kernel {
        let most = grid.multiprocessors * self.boxes.cut.ctas;
        Kernel { grid: self.tiles().min(most).max(1) as u32, ..grid.kernel(cubin, entry) }
    }

    fn grid(&self, device: &DeviceInfo) -> Grid<'a> {
        let multiprocessors = device.multiprocessors as usize;
        Grid::new(self.boxes.cut, self.problem(), multiprocessors, [0; MAX_RANK])
    }
}

/// Lists as kernels walk over them.
pub(in crate::native) struct Made {
    table: Handle,
    items: Handle,
    taken: Handle,
    order: Option<Handle>,
}

/// Boxes of what has the query's heads, with so many of them.
fn with_heads(argument: &mut Argument, heads: usize) {
    if let Argument::TensorMap(map) = argument {
        map.tile[4] = heads as u32;
    }
}

/// Whether a launch can read and write these tensors and lists.
///
/// # Errors
///
/// [`KernelError`] that says why not.
pub(in crate::native) fn check_forward(
    cut: &Cut,
    sparse: &BlockSparse,
    inputs: &Operands<Strided>,
    lists: &Handle,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    check_lists(sparse, lists)?;
    forward::check(cut, &sparse.problem, inputs, outputs)
}

/// Enqueues the forward pass on tensors that are [checked](check_forward), by the programs of the lists and of attention.
pub(in crate::native) fn enqueue_forward(
    client: &Client,
    device: &DeviceInfo,
    walk: &Walk<'_>,
    [make, cubin]: [&Arc<Cubin>; 2],
    inputs: &Operands<Strided>,
    lists: &Handle,
    outputs: &Outputs<Handle>,
) {
    if walk.is_empty() {
        return;
    }
    let made = walk.make(client, make, lists);
    let grid = walk.grid(device);
    let mut buffers = forward::buffers(inputs, outputs, None);
    let mut arguments = forward::arguments(&grid, inputs, None);
    with_heads(&mut arguments[0], walk.boxes.row_heads);
    walk.hand(&made, &mut buffers, &mut arguments);
    launch(client, walk.kernel(&grid, cubin, c"attention_forward"), buffers, arguments);
}

/// Whether launches can read and write these tensors and lists.
///
/// # Errors
///
/// [`KernelError`] that says why not.
pub(in crate::native) fn check_backward(
    cuts: impl IntoIterator<Item = Cut>,
    sparse: &BlockSparse,
    inputs: &Saved<Strided>,
    lists: &Handle,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    check_lists(sparse, lists)?;
    backward::check(cuts, &sparse.problem, inputs, outputs)
}

/// The programs of the kernels that make items: of lists, and of lists that were turned around.
pub(in crate::native) struct Makers {
    pub lists: Arc<Cubin>,
    pub turned: Arc<Cubin>,
}

/// Enqueues a backward pass on tensors that are [checked](check_backward). `queries` and `keys` are the walks of the parts' kernels; `turn`
/// turns the lists around.
///
/// # Errors
///
/// [`KernelError`] if lists cannot be turned around. Nothing was launched then.
#[allow(clippy::too_many_arguments)]
pub(in crate::native) fn enqueue_backward(
    client: &Client,
    device: &DeviceInfo,
    parts: &backward::Parts,
    makers: &Makers,
    [queries, keys]: [&[Walk<'_>]; 2],
    inputs: &Saved<Strided>,
    lists: &Handle,
    turn: impl FnOnce() -> Result<Inverse, KernelError>,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let Some(any) = queries.iter().chain(keys).next() else { return Ok(()) };
    let problem = any.problem();
    let is_joint = parts.keys.iter().any(|part| part.is_joint);
    let of_keys = KeyGradients { client, problem, size: forward::ELEMENT, is_joint };
    let pair = |KeyValue { key, value }: KeyValue<Handle>| [key, value];
    let query = outputs.query.clone().map(|dq| [dq.clone(), dq]);
    let of_query = backward::works(&parts.queries, query);
    let of_key = backward::works(&parts.keys, of_keys.own(outputs).map(pair));
    let count = of_query.len() + of_key.len();
    if count == 0 || any.is_empty() {
        return Ok(());
    }
    // What can fail comes first.
    let inverse = (!of_key.is_empty()).then(turn).transpose()?;
    let bytes = crate::native::statistics::statistics_bytes(problem);
    let workspace = backward::Workspace::new(client, bytes, count, None);
    backward::launch_delta(client, parts.delta(), problem, inputs, &workspace);
    let run = |walk: &Walk<'_>, made: &Made, work: &backward::Work<'_>, number: usize| {
        let grid = walk.grid(device);
        let mut buffers = backward::buffers(inputs, &work.outputs, &workspace, number);
        let mut arguments = backward::arguments(&grid, false, inputs, None, 0);
        walk.set_heads(&mut arguments);
        walk.hand(made, &mut buffers, &mut arguments);
        launch(
            client,
            walk.kernel(&grid, &work.part.cubin, c"attention_backward"),
            buffers,
            arguments,
        );
    };
    let mut made = None;
    for (number, (walk, work)) in queries.iter().zip(&of_query).enumerate() {
        let made = made.get_or_insert_with(|| walk.make(client, &makers.lists, lists));
        run(walk, made, work, number);
    }
    let mut made = None;
    for (number, (walk, work)) in keys.iter().zip(&of_key).enumerate() {
        let Some(inverse) = &inverse else { break };
        let made = made.get_or_insert_with(|| walk.make_turned(client, &makers.turned, inverse));
        run(walk, made, work, of_query.len() + number);
    }
    Ok(())
}
