//! One launch for all sequences of a packed batch. Their tokens are cut out of wider ones, and between these is NaN.

use burn_natten_kernels::tensor_core::offline::sequences;
use burn_natten_kernels::tensor_core::{
    Blueprint, Capability, Compiler, Exponential, Pass, backward_candidates, plan_backward_packed,
    plan_packed, widest_vector,
};
use burn_natten_kernels::{Axis, MAX_RANK, Packed, Problem, portable};
use cubecl::ir::{ElemType, FloatKind};
use rand::{Rng, SeedableRng, rngs::StdRng};
use test_support::compare::format;
use test_support::cpp::compiler;
use test_support::element::Element;
use test_support::oracle::compute;
use test_support::packed::{images, numbers, packed, random, texts, videos};
use test_support::{Data, Results};

use crate::arguments::{factor, sizes_of};
use crate::backward::{self, gradients_of, statistics};
use crate::forward::{self, attend};
use crate::problems::{Input, spoiled};
use crate::program::{Program, decode, decode_f32, encode, encode_f32};

/// Elements behind a token that belong to none.
const GAP: usize = 16;

/// What is put into one sequence after the other; the last two in backward passes.
const POISONS: [(f64, Input); 4] = [
    (f64::NAN, Input::Key),
    (f64::INFINITY, Input::Value),
    (f64::NAN, Input::Query),
    (f64::INFINITY, Input::Dout),
];

/// What is random in a sequence, and what is right.
#[derive(Clone)]
struct Sample {
    problem: Problem,
    data: Data,
    exact: std::rc::Rc<Results>,
}

impl Sample {
    fn new(problem: Problem, data: Data, round: fn(f64) -> f64) -> Self {
        let exact = compute(&problem, &data, round).into();
        Self { problem, data, exact }
    }
}

/// What is written for each sequence.
type Written = Vec<Vec<f64>>;

/// A kernel for all sequences, of either tier.
struct Kernel {
    program: Program,
    name: String,
    element: Element,
    packed: Packed,
    pass: Pass,
    row_tile: [usize; MAX_RANK],
    vector: usize,
    exponential: Exponential,
    /// The table, and the cubes.
    sequences: (Vec<u32>, usize),
    /// Which of two tensors it writes.
    writes: [bool; 2],
    /// Whether it is one of the Portable tier, which leaves rows that are not finite to others.
    is_portable: bool,
}

/// A packed tensor that a kernel reads: a sample's part of it, and its heads and the elements of each.
type Tensor = (fn(&Data) -> &Vec<f64>, usize, usize);

impl Kernel {
    fn build(
        compiler: &str,
        blueprint: &Blueprint,
        element: Element,
        problems: &[Problem],
    ) -> Self {
        let packed = packed(problems);
        assert!(blueprint.fits_packed(&packed), "{blueprint}: {packed:?}");
        let Blueprint { pass, vector, exponential, has_first, has_second, .. } = *blueprint;
        Self {
            program: Program::build(compiler, blueprint, element),
            name: blueprint.to_string(),
            element,
            sequences: sequences(blueprint, &packed).expect("few cubes"),
            packed,
            pass,
            row_tile: blueprint.row_tile(),
            vector,
            exponential,
            writes: if pass == Pass::Forward { [true; 2] } else { [has_first, has_second] },
            is_portable: false,
        }
    }

    /// Of tiles in f32.
    fn portable(compiler: &str, blueprint: &portable::Blueprint, problems: &[Problem]) -> Self {
        let (packed, name) = (packed(problems), blueprint.to_string());
        let f32 = ElemType::Float(FloatKind::F32);
        let code = portable::offline::translate(blueprint, f32, 80, Compiler::Cpp)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let portable::Blueprint { pass, vector, .. } = *blueprint;
        Self {
            program: Program::compile(compiler, &code, name.clone(), blueprint.units()),
            name,
            // Whose elements are f32.
            element: Element::Tf32,
            sequences: portable::offline::sequences(blueprint, &packed).expect("few cubes"),
            packed,
            pass,
            row_tile: blueprint.row_tile(),
            vector,
            exponential: Exponential::Library,
            writes: [true, pass != Pass::Queries],
            is_portable: true,
        }
    }

    /// What the pass writes, two tensors.
    fn run(&self, samples: &[Sample]) -> [Written; 2] {
        let (line, element, vector) = (self.packed.line(), self.element, self.vector);
        let Problem { heads, heads_kv, head_dim, head_dim_v, scale, .. } = *line;
        let query: Tensor = (|data| &data.query, heads, head_dim);
        let dout: Tensor = (|data| &data.dout, heads, head_dim_v);
        let key: Tensor = (|data| &data.key, heads_kv, head_dim);
        let value: Tensor = (|data| &data.value, heads_kv, head_dim_v);
        // Those of additional tokens, in place of which there is something else, come last.
        let (mut tensors, written) = match self.pass {
            Pass::Forward => (vec![query, key, value, key, value], [heads * head_dim_v, heads]),
            Pass::Queries => {
                (vec![query, dout, key, value, query, dout], [heads * head_dim, heads * head_dim_v])
            }
            Pass::Keys => (
                vec![key, value, query, dout, key, value],
                [heads_kv * head_dim, heads_kv * head_dim_v],
            ),
        };
        let (is_forward, is_keys) = (self.pass == Pass::Forward, self.pass == Pass::Keys);
        if self.is_portable && !is_forward {
            tensors.truncate(4);
        }
        let (table, cubes) = &self.sequences;
        let (_, mut sizes) = sizes_of(line, is_keys, self.row_tile, vector, &[]);
        *sizes.last_mut().expect("the number of cubes") = *cubes;
        let mut buffers = vec![];
        for (of, heads, dim) in tensors {
            let token = heads * dim + GAP;
            sizes.extend([0, 0, 0, token, dim].map(|stride| stride / vector));
            let tokens = samples.iter().flat_map(|sample| of(&sample.data).chunks(heads * dim));
            let values: Vec<f64> =
                tokens.flat_map(|token| [token, &[f64::NAN; GAP][..]].concat()).collect();
            buffers.push(encode(element, &values));
        }
        if !is_forward {
            let statistics = samples.iter().flat_map(|Sample { problem, data, exact }| {
                statistics(self.exponential, problem, element, data, exact)
            });
            buffers.push(statistics.collect());
        }
        buffers.push(table.iter().flat_map(|word| word.to_le_bytes()).collect());
        let rows = |problem: &Problem| if is_keys { problem.keys() } else { problem.queries() };
        let all: usize = samples.iter().map(|sample| rows(&sample.problem)).sum();
        let [first, second] = written.map(|elements| vec![f64::NAN; all * elements]);
        buffers.push(encode(element, &first));
        let mut outputs = 1;
        if !self.is_portable || self.writes[1] {
            buffers.push(if is_forward { encode_f32(&second) } else { encode(element, &second) });
            outputs = 2;
        }
        let factors = [factor(self.exponential, scale), scale];
        let factors = if self.is_portable { &factors[1..] } else { &factors };
        let results = self.program.run(*cubes, (&sizes, factors), &buffers, outputs);
        let first = decode(element, &results[0]);
        let second = match results.get(1) {
            Some(bytes) if is_forward => decode_f32(bytes),
            Some(bytes) => decode(element, bytes),
            None => second,
        };
        let split = |values: Vec<f64>, elements: usize| -> Written {
            let mut rest = &values[..];
            let parts = samples.iter().map(|sample| {
                let (own, behind) = rest.split_at(rows(&sample.problem) * elements);
                rest = behind;
                own.to_vec()
            });
            parts.collect()
        };
        [split(first, written[0]), split(second, written[1])]
    }

    /// Fails if what it writes for a sample is not right.
    fn check(&self, what: &str, number: usize, sample: &Sample, written: &[Written; 2]) {
        let Sample { problem, exact, .. } = sample;
        let [first, second] = written.each_ref().map(|all| &all[number]);
        let of =
            |name: &str| format!("{}, {what}: {name} of sequence {number}, {problem:?}", self.name);
        if self.pass == Pass::Forward {
            return forward::assert_right(of, self.element, (first, second), exact);
        }
        let names = match self.pass {
            Pass::Keys => [("dk", &exact.dk), ("dv", &exact.dv)],
            _ => [("dq", &exact.dq), ("nothing", &exact.dq)],
        };
        for ((actual, (name, expected)), writes) in
            [first, second].into_iter().zip(names).zip(self.writes)
        {
            if writes {
                backward::assert_right(&of(name), self.element, actual, expected);
            }
        }
    }
}

/// What the kernel for one problem with the same tiles writes for each sample.
fn one_by_one(
    compiler: &str,
    blueprint: &Blueprint,
    element: Element,
    samples: &[Sample],
) -> [Written; 2] {
    let blueprint = Blueprint { is_packed: false, ..*blueprint };
    let program = Program::build(compiler, &blueprint, element);
    let all = samples.iter().map(|Sample { problem, data, exact }| {
        if blueprint.pass == Pass::Forward {
            return attend(&program, &blueprint, problem, element, data);
        }
        let all = gradients_of(&program, &blueprint, (problem, false), element, data, exact);
        let mut all = all.into_iter().map(|(_, actual, _)| actual);
        (all.next().unwrap_or_default(), all.next().unwrap_or_default())
    });
    let (first, second) = all.unzip();
    [first, second]
}

/// Whether both are the same, bit by bit.
fn is_same(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// A kernel on its batch: what it gives is right, and a number that is not finite stays in its sequence. Gives what is
/// random, and what it wrote.
fn check(kernel: &Kernel, problems: &[Problem]) -> (Vec<Sample>, [Written; 2]) {
    let is_forward = kernel.pass == Pass::Forward;
    let format = format(kernel.element);
    let round = if is_forward || kernel.is_portable { |x| x } else { format.round };
    let numbered = problems.iter().zip(5..);
    let samples: Vec<_> = numbered
        .map(|(problem, seed)| {
            Sample::new(*problem, Data::random(problem, seed, format.round), round)
        })
        .collect();
    let clean = kernel.run(&samples);
    for (number, sample) in samples.iter().enumerate() {
        kernel.check("clean", number, sample, &clean);
    }
    let poisons = if is_forward { &POISONS[..2] } else { &POISONS[..] };
    for (turn, poison) in poisons.iter().enumerate() {
        let place = turn % samples.len();
        let Sample { problem, data, .. } = &samples[place];
        for (what, data) in spoiled(problem, data, &[*poison]).into_iter().skip(1) {
            let mut samples = samples.clone();
            samples[place] = Sample::new(*problem, data, round);
            let spoiled = kernel.run(&samples);
            if !kernel.is_portable {
                kernel.check(&what, place, &samples[place], &spoiled);
            }
            for (spoiled, clean) in spoiled.iter().zip(&clean) {
                for number in (0..samples.len()).filter(|number| *number != place) {
                    let is_clean = is_same(&spoiled[number], &clean[number]);
                    assert!(is_clean, "{}, {what} of sequence {place}: {number}", kernel.name);
                }
            }
        }
    }
    (samples, clean)
}

/// [`check`] of a kernel, which gives the same for one problem after the other if `is_exact` is to be seen.
fn check_one(
    compiler: &str,
    blueprint: &Blueprint,
    problems: &[Problem],
    element: Element,
    is_exact: bool,
) {
    let kernel = Kernel::build(compiler, blueprint, element, problems);
    let (samples, written) = check(&kernel, problems);
    if !is_exact {
        return;
    }
    let own = one_by_one(compiler, blueprint, element, &samples);
    for ((all, own), _) in written.iter().zip(&own).zip(kernel.writes).filter(|(_, it)| *it) {
        for (number, (all, own)) in all.iter().zip(own).enumerate() {
            assert!(is_same(all, own), "{blueprint}: sequence {number}");
        }
    }
}

/// All kernels of a batch.
fn check_all(capability: &Capability, problems: &[Problem], element: Element, is_exact: bool) {
    let Some(compiler) = compiler() else { return };
    let batch = packed(problems);
    let vector = widest_vector(batch.line());
    let forward = plan_packed(&batch, capability, vector).expect("a blueprint");
    let backward = plan_backward_packed(&batch, capability, vector).expect("a plan");
    for blueprint in [&forward].into_iter().chain(backward.blueprints()) {
        check_one(compiler, blueprint, problems, element, is_exact);
    }
}

#[test]
fn texts_with_asynchronous_copies() {
    let like = Problem::new([Axis::UNIT], 4, 32).with_heads_kv(2).with_head_dim_v(16);
    check_all(&crate::asynchronous(), &texts(like), Element::Bf16, true);
}

#[test]
fn pairs_of_planes() {
    let like = Problem::new([Axis::UNIT], 2, 72).with_heads_kv(1).with_head_dim_v(96);
    let (problems, capability) = (texts(like), crate::asynchronous());
    let Some(compiler) = compiler() else { return };
    // One that is not planned for sequences as short as these.
    let all = backward_candidates(&problems[4], &capability, 8, Pass::Keys);
    let pairs = all.into_iter().find(|blueprint| blueprint.is_paired).expect("pairs");
    let blueprint = Blueprint { is_packed: true, ..pairs };
    check_one(compiler, &blueprint, &problems, Element::F16, true);
}

#[test]
fn images_with_asynchronous_copies() {
    let like = Problem::new([Axis::UNIT], 2, 16);
    check_all(&crate::asynchronous(), &images(like), Element::F16, true);
}

#[test]
fn videos_with_loads_through_registers() {
    let like = Problem::new([Axis::UNIT], 2, 24).with_heads_kv(1).with_head_dim_v(40);
    check_all(&crate::plain(), &videos(like), Element::Bf16, false);
}

#[test]
fn cooperative_matrices() {
    let like = Problem::new([Axis::UNIT], 2, 16).with_heads_kv(1);
    check_all(&crate::cooperative(16), &images(like), Element::F16, false);
}

#[test]
fn tf32() {
    let like = Problem::new([Axis::UNIT], 2, 16).with_head_dim_v(24);
    check_all(&crate::tf32(crate::asynchronous()), &videos(like), Element::Tf32, false);
}

#[test]
fn portable_tiles() {
    let Some(compiler) = compiler() else { return };
    let like = Problem::new([Axis::UNIT], 2, 8).with_heads_kv(1).with_head_dim_v(12);
    for (turn, problems) in [texts(like), images(like), videos(like)].into_iter().enumerate() {
        let all = packed(&problems);
        let has_most = problems.iter().max_by_key(|problem| (problem.rank(), problem.queries()));
        let like = has_most.expect("there are some");
        // Each pass on one of them: compiling takes longest.
        let pass = [Pass::Keys, Pass::Forward, Pass::Queries][turn];
        let candidates = portable::candidates(like, &portable::Limits::HOPPER, pass);
        let own = candidates[candidates.len() * turn / 3];
        let has_origin = all.problems().any(Problem::has_origin);
        let blueprint = portable::Blueprint { has_origin, is_packed: true, ..own };
        check(&Kernel::portable(compiler, &blueprint, &problems), &problems);
    }
}

#[test]
fn random_batches() {
    for number in numbers(1) {
        let problems = random(number);
        let mut rng = StdRng::seed_from_u64(number as u64);
        let element = Element::ALL[rng.random_range(0..Element::ALL.len())];
        let ways: Vec<_> = crate::ways().iter().filter_map(|way| element.of(*way)).collect();
        let way = ways[rng.random_range(0..ways.len())];
        check_all(&way, &problems, element, false);
    }
}
