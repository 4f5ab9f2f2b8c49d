//! Packed batches: sequences of every kind, and one launch a pass held to what is right for each.

use std::ops::Range;

use burn_natten_kernels::{
    Axis, KernelError, MAX_RANK, Operand, Operands, Outputs, Packed, Problem, Saved, Sequence,
    Shape, Strided,
};
use cubecl::client::Client;
use cubecl::future::block_on;
use cubecl::server::Handle;
use cubecl_core::MemoryScope;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::compare::{differs, half_ulp, is_webgpu, magnitude};
use crate::format::Format;
use crate::oracle::compute;
use crate::tier::upload_products;
use crate::{Data, Results, axis};

/// Sequences of problems that differ in their axes alone, in their order in memory.
fn batch(like: Problem, axes: &[&[Axis]]) -> Vec<Problem> {
    axes.iter().map(|axes| like.with_axes(axes)).collect()
}

/// Causal, of one token, of fewer and of more keys than queries, and longer than a tile.
pub fn texts(like: Problem) -> Vec<Problem> {
    let axis = |queries, keys| [Axis::dense(queries, keys, true)];
    let axes = [axis(16, 16), axis(1, 1), axis(70, 20), axis(150, 150), axis(9, 90)];
    batch(like, &axes.each_ref().map(|axis| &axis[..]))
}

/// With windows of their own, which may cover the image; a line, a single token.
pub fn images(like: Problem) -> Vec<Problem> {
    batch(
        like,
        &[
            &[axis(7, 3, 1, 2, false), axis(19, 5, 2, 1, false)],
            &[Axis::UNIT, Axis::UNIT],
            &[axis(11, 11, 1, 1, false), axis(5, 5, 1, 1, false)],
            &[axis(1, 1, 1, 1, false), axis(21, 4, 3, 2, false)],
            &[axis(12, 2, 1, 3, false), axis(9, 9, 1, 1, false)],
        ],
    )
}

/// Causal along the slowest axis.
pub fn videos(like: Problem) -> Vec<Problem> {
    batch(
        like,
        &[
            &[axis(2, 2, 1, 1, true), axis(3, 3, 1, 1, false), axis(5, 2, 1, 2, false)],
            &[axis(5, 3, 2, 1, true), axis(6, 3, 1, 1, false), axis(9, 4, 1, 2, false)],
            &[axis(1, 1, 1, 1, true), axis(7, 4, 1, 1, false), axis(6, 6, 1, 1, false)],
        ],
    )
}

/// Random batches that follow each other and are of one kind: whoever takes some of them has few kernels to compile.
pub const OF_A_KIND: usize = 50;

/// The random batches that a test takes, by their numbers: `few`, each of another kind, or, where `BURN_NATTEN_TEST_PROBLEMS` asks for so
/// many, those of share `BURN_NATTEN_TEST_SEED` of all that there are. Processes with different seeds take different ones.
pub fn numbers(few: usize) -> Vec<usize> {
    let number =
        |name: &str| std::env::var(name).ok().map(|text| text.parse::<usize>().expect("a number"));
    let seed = number("BURN_NATTEN_TEST_SEED").unwrap_or(0);
    match number("BURN_NATTEN_TEST_PROBLEMS") {
        Some(count) => (seed * count..(seed + 1) * count).collect(),
        None => (seed * few..(seed + 1) * few).map(|kind| kind * OF_A_KIND).collect(),
    }
}

/// A random batch of up to six sequences, some windows of which cover what they lie in. Those of a kind share the axes that are causal,
/// heads and vectors, and whether windows have strides and dilations.
pub fn random(number: usize) -> Vec<Problem> {
    let kind = &mut StdRng::seed_from_u64((number / OF_A_KIND) as u64);
    let rng = &mut StdRng::seed_from_u64(number as u64);
    let rank = kind.random_range(1..=MAX_RANK);
    let is_dense = rank == 1 && kind.random();
    let is_causal: [bool; MAX_RANK] = std::array::from_fn(|_| kind.random_bool(0.3));
    let dims = [(16, 16), (32, 32), (64, 64), (40, 72), (12, 20), (48, 16)];
    let (head_dim, head_dim_v) = dims[kind.random_range(0..dims.len())];
    let heads_kv = kind.random_range(1..=2);
    let like = Problem::new([Axis::UNIT], heads_kv * kind.random_range(1..=2), head_dim)
        .with_heads_kv(heads_kv)
        .with_head_dim_v(head_dim_v);
    let [has_strides, has_dilations]: [bool; 2] = kind.random();
    let mut random_axis = |is_causal: bool| {
        let length = rng.random_range(1..=[100, 14, 7][rank - 1]);
        if is_dense {
            return Axis::dense(length, rng.random_range(1..=100), is_causal);
        }
        let dilation = match length {
            1 => 1,
            _ if !has_dilations || rng.random() => 1,
            _ => rng.random_range(1..=length / 2),
        };
        let kernel_size = rng.random_range(1..=length / dilation);
        let stride =
            if !has_strides || rng.random() { 1 } else { rng.random_range(1..=kernel_size) };
        axis(length, kernel_size, stride, dilation, is_causal)
    };
    let sequences = (0..6).map(|_| {
        let axes: Vec<_> = is_causal[..rank].iter().map(|bit| random_axis(*bit)).collect();
        like.with_axes(axes)
    });
    let sequences: Vec<_> = sequences.collect();
    sequences[rng.random_range(0..6)..].to_vec()
}

/// Lengths of some causal sequences, other ones for each number.
pub fn lengths(number: usize) -> Vec<Problem> {
    let rng = &mut StdRng::seed_from_u64(number as u64);
    let text = |length| Problem::new([Axis::dense(length, length, true)], 1, 16);
    let count = rng.random_range(2..=12);
    // So that no two numbers have the same.
    let own = [1 + number % 32, 1 + number / 32];
    own.into_iter().chain((0..count).map(|_| rng.random_range(1..=64))).map(text).collect()
}

/// The batch of sequences that lie one behind the other.
pub fn packed(problems: &[Problem]) -> Packed {
    let mut tokens = [0, 0];
    let sequences: Vec<_> = problems
        .iter()
        .map(|problem| {
            let [query, key] = tokens;
            tokens = [query + problem.queries(), key + problem.keys()];
            Sequence { problem: *problem, query, key }
        })
        .collect();
    Packed::new(sequences, tokens).expect("one launch")
}

/// Packed tensors on a device, and what is right.
struct Tensors {
    packed: Packed,
    exact: Results,
    saved: Saved<Strided>,
    /// See [`upload_products`].
    products: Saved<Strided>,
}

impl Tensors {
    fn new(client: &Client, format: Format, problems: &[Problem], round: fn(f64) -> f64) -> Self {
        let packed = packed(problems);
        let empty = Data {
            query: vec![],
            key: vec![],
            value: vec![],
            additional_key: vec![],
            additional_value: vec![],
            bias: vec![],
            dout: vec![],
            dlse: vec![],
        };
        let none = || (vec![], vec![], vec![], vec![], vec![]);
        let (mut data, (mut out, mut lse, mut dq, mut dk, mut dv)) = (empty, none());
        for (problem, seed) in problems.iter().zip(7..) {
            let own = Data::random(problem, seed, format.round);
            let exact = compute(problem, &own, round);
            data.query.extend(own.query);
            data.key.extend(own.key);
            data.value.extend(own.value);
            data.dout.extend(own.dout);
            data.dlse.extend(own.dlse);
            out.extend(exact.out);
            lse.extend(exact.lse);
            dq.extend(exact.dq);
            dk.extend(exact.dk);
            dv.extend(exact.dv);
        }
        let saved = format.saved(client, packed.line(), &data, [&out, &lse]);
        let (additional_dk, additional_dv, dbias) = (vec![], vec![], vec![]);
        let exact = Results { out, lse, dq, dk, dv, additional_dk, additional_dv, dbias };
        let products = upload_products(client, format, packed.line(), &data, &exact);
        Self { packed, exact, saved, products }
    }
}

/// Memory of a packed batch that nothing has been written to, to be launched on.
pub struct Unwritten {
    pub packed: Packed,
    pub saved: Saved<Strided>,
    pub gradients: Operands<Option<Handle>>,
}

impl Unwritten {
    pub fn new(client: &Client, format: Format, problems: &[Problem]) -> Self {
        let packed = packed(problems);
        let line = packed.line();
        let empty = |shape: Shape, bytes: usize| {
            Strided::contiguous(client.empty(bytes * shape.elements().max(1)), shape)
        };
        let size = format.elem().size();
        let rows = || Outputs {
            out: empty(Shape::out(line), size),
            lse: empty(Shape::lse(line), size_of::<f32>()),
        };
        let of = |operand: Operand| empty(operand.shape(line), size);
        let operands = Operands::of(line);
        let saved = Saved {
            operands: operands.map(|operand, ()| of(operand)),
            outputs: rows(),
            gradients: rows(),
            has_out: true,
        };
        let gradients = Operands::of(line).map(|operand, ()| Some(of(operand).handle));
        Self { packed, saved, gradients }
    }

    pub fn outputs(&self) -> Outputs<Handle> {
        self.saved.outputs.as_ref().map(|tensor| tensor.handle.clone())
    }
}

/// Fails if a device's memory for this thread grows from the first quarter of a thousand sets of [`lengths`] on, of which each is launched
/// once. What they fill at first, as tables that stay, is no growth; nor is a larger buffer for a larger set on WebGPU, where each has its
/// own, so that a second round must not make it grow there.
pub fn check_memory(client: &Client, format: Format, launch: impl Fn(&Unwritten)) {
    let reserved = || {
        block_on(client.sync()).expect("the kernels ran");
        client.memory_report(MemoryScope::CurrentStream).usage().bytes_reserved
    };
    let launch_all = |numbers: Range<usize>| {
        numbers.for_each(|number| launch(&Unwritten::new(client, format, &lengths(number))));
        reserved()
    };
    let [first, second] = if is_webgpu() { [0..1000, 0..1000] } else { [0..250, 250..1000] };
    let sets = format!("after sets of lengths {first:?}, and after {second:?}");
    let (before, after) = (launch_all(first), launch_all(second));
    println!("{before} and {after} bytes reserved {sets}");
    assert!(before > 0 && after <= before, "{after} bytes, {before} before");
}

/// Fails if a forward pass over all sequences does not give what is right for each, on buffers full of NaN.
pub fn check_forward(
    client: &Client,
    element: impl Into<Format>,
    problems: &[Problem],
    launch: impl Fn(&Packed, &Operands<Strided>, &Outputs<Handle>) -> Result<(), KernelError>,
) {
    let format = element.into();
    let Tensors { packed, exact, saved, .. } = Tensors::new(client, format, problems, |x| x);
    let outputs = format.poisoned_outputs(client, packed.line());
    launch(&packed, &saved.operands, &outputs).expect("launched");
    let (out, lse) = format.download_outputs(client, packed.line(), &outputs);
    let near = 2.0 * half_ulp(format) * magnitude(&exact.out);
    let out = differs(&out, &exact.out, |_, _| near).map(|place| format!("out: {place}"));
    let lse = differs(&lse, &exact.lse, |_, e| 1e-5 * e.abs().max(1.0));
    if let Some(place) = out.or(lse) {
        panic!("{place}; {problems:?}");
    }
}

/// The same of a backward pass.
pub fn check_backward(
    client: &Client,
    element: impl Into<Format>,
    problems: &[Problem],
    launch: impl Fn(&Packed, &Saved<Strided>, &Operands<Option<Handle>>) -> Result<(), KernelError>,
) {
    let format = element.into();
    let Tensors { packed, exact, saved, .. } = Tensors::new(client, format, problems, format.round);
    check_saved(client, format, (&packed, &exact, &saved), launch);
}

/// The same of one that is given products in place of outputs, and then outputs: tables that a batch keeps must be others then.
pub fn check_products(
    client: &Client,
    element: impl Into<Format>,
    problems: &[Problem],
    launch: impl Fn(&Packed, &Saved<Strided>, &Operands<Option<Handle>>) -> Result<(), KernelError>,
) {
    let format = element.into();
    let Tensors { packed, exact, saved, products } =
        Tensors::new(client, format, problems, format.round);
    for saved in [&products, &saved] {
        check_saved(client, format, (&packed, &exact, saved), &launch);
    }
}

fn check_saved(
    client: &Client,
    format: Format,
    (packed, exact, saved): (&Packed, &Results, &Saved<Strided>),
    launch: impl Fn(&Packed, &Saved<Strided>, &Operands<Option<Handle>>) -> Result<(), KernelError>,
) {
    let gradients = format.poisoned_gradients(client, packed.line());
    launch(packed, saved, &gradients).expect("launched");
    for (name, actual) in format.download_gradients(client, packed.line(), &gradients) {
        let expected = crate::tier::expected(exact, name);
        let near = 2.0 * half_ulp(format) * magnitude(expected).max(1e-2);
        if let Some(place) = differs(&actual, expected, |_, _| near) {
            panic!("{name}: {place}; products: {}; {packed:?}", !saved.has_out);
        }
    }
}
