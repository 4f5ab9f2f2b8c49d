//! One launch for all sequences of a packed batch. Their tokens are cut out of wider ones, and between these is NaN.

use burn_natten_kernels::tensor_core::offline::sequences;
use burn_natten_kernels::tensor_core::{
    Blueprint, Capability, Pass, backward_candidates, plan_backward_packed, plan_packed,
    widest_vector,
};
use burn_natten_kernels::{Axis, Packed, Problem};
use rand::{Rng, SeedableRng, rngs::StdRng};
use test_support::compare::format;
use test_support::cpp::compiler;
use test_support::element::Element;
use test_support::oracle::compute;
use test_support::packed::{images, packed, random, texts, videos};
use test_support::{Data, Results};

use crate::arguments::{factor, sizes_of};
use crate::backward::{self, gradients_of, statistics};
use crate::forward::{self, attend};
use crate::problems::{BACKWARD, FORWARD, spoiled};
use crate::program::{Program, decode, decode_f32, encode, encode_f32};

/// Elements behind a token that belong to none.
const GAP: usize = 16;

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

/// A kernel for all sequences.
struct Kernel {
    program: Program,
    blueprint: Blueprint,
    element: Element,
    packed: Packed,
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
        let (packed, blueprint) = (packed(problems), *blueprint);
        assert!(blueprint.fits_packed(&packed), "{blueprint}: {packed:?}");
        Self { program: Program::build(compiler, &blueprint, element), blueprint, element, packed }
    }

    /// What the pass writes, two tensors.
    fn run(&self, samples: &[Sample]) -> [Written; 2] {
        let (blueprint, line, element) = (&self.blueprint, self.packed.line(), self.element);
        let Problem { heads, heads_kv, head_dim, head_dim_v, scale, .. } = *line;
        let query: Tensor = (|data| &data.query, heads, head_dim);
        let dout: Tensor = (|data| &data.dout, heads, head_dim_v);
        let key: Tensor = (|data| &data.key, heads_kv, head_dim);
        let value: Tensor = (|data| &data.value, heads_kv, head_dim_v);
        // Behind what is read are those of the additional tokens, in place of which there is something else.
        let (tensors, written) = match blueprint.pass {
            Pass::Forward => (vec![query, key, value, key, value], [heads * head_dim_v, heads]),
            Pass::Queries => {
                (vec![query, dout, key, value, query, dout], [heads * head_dim, heads * head_dim_v])
            }
            Pass::Keys => (
                vec![key, value, query, dout, key, value],
                [heads_kv * head_dim, heads_kv * head_dim_v],
            ),
        };
        let (table, cubes) = sequences(blueprint, &self.packed).expect("few cubes");
        let is_keys = blueprint.pass == Pass::Keys;
        let row_tile = blueprint.row_tile();
        let (_, mut sizes) = sizes_of(line, is_keys, row_tile, blueprint.vector, &[]);
        *sizes.last_mut().expect("the number of cubes") = cubes;
        let mut buffers = vec![];
        for (of, heads, dim) in tensors {
            let token = heads * dim + GAP;
            sizes.extend([0, 0, 0, token, dim].map(|stride| stride / blueprint.vector));
            let tokens = samples.iter().flat_map(|sample| of(&sample.data).chunks(heads * dim));
            let values: Vec<f64> =
                tokens.flat_map(|token| [token, &[f64::NAN; GAP][..]].concat()).collect();
            buffers.push(encode(element, &values));
        }
        if blueprint.pass != Pass::Forward {
            let statistics = samples.iter().flat_map(|Sample { problem, data, exact }| {
                statistics(blueprint, problem, element, data, exact)
            });
            buffers.push(statistics.collect());
        }
        buffers.push(table.into_iter().flat_map(u32::to_le_bytes).collect());
        let rows = |problem: &Problem| if is_keys { problem.keys() } else { problem.queries() };
        let all: usize = samples.iter().map(|sample| rows(&sample.problem)).sum();
        let is_lse = blueprint.pass == Pass::Forward;
        let [first, second] = written.map(|elements| vec![f64::NAN; all * elements]);
        buffers.push(encode(element, &first));
        buffers.push(if is_lse { encode_f32(&second) } else { encode(element, &second) });
        let factors = [factor(blueprint.exponential, scale), scale];
        let results = self.program.run(cubes, (&sizes, &factors), &buffers, 2);
        let first = decode(element, &results[0]);
        let second = if is_lse { decode_f32(&results[1]) } else { decode(element, &results[1]) };
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

    /// Fails if one of the samples is not right.
    fn check(&self, what: &str, samples: &[Sample], [first, second]: &[Written; 2]) {
        let Blueprint { pass, has_first, has_second, .. } = self.blueprint;
        for (number, Sample { problem, exact, .. }) in samples.iter().enumerate() {
            let (first, second) = (&first[number], &second[number]);
            let of = |name: &str| {
                format!("{}, {what}: {name} of sequence {number}, {problem:?}", self.blueprint)
            };
            let right = |name: &str, actual: &[f64], expected: &[f64]| {
                backward::assert_right(&of(name), self.element, actual, expected);
            };
            match pass {
                Pass::Forward => {
                    forward::assert_right(of, self.element, (first, second), exact);
                }
                Pass::Queries => right("dq", first, &exact.dq),
                Pass::Keys => {
                    if has_first {
                        right("dk", first, &exact.dk);
                    }
                    if has_second {
                        right("dv", second, &exact.dv);
                    }
                }
            }
        }
    }

    /// What the kernel for one problem with the same tiles writes for each sample.
    fn one_by_one(&self, compiler: &str, samples: &[Sample]) -> [Written; 2] {
        let blueprint = Blueprint { is_packed: false, ..self.blueprint };
        let (program, element) = (Program::build(compiler, &blueprint, self.element), self.element);
        let all = samples.iter().map(|Sample { problem, data, exact }| {
            if blueprint.pass == Pass::Forward {
                return attend(&program, &blueprint, problem, element, data);
            }
            let given = (problem, false);
            let all = gradients_of(&program, &blueprint, given, element, data, exact);
            let mut all = all.into_iter().map(|(_, actual, _)| actual);
            (all.next().unwrap_or_default(), all.next().unwrap_or_default())
        });
        let (first, second) = all.unzip();
        [first, second]
    }
}

/// Whether both are the same, bit by bit.
fn is_same(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// One kernel on one batch: what it gives is right, the same as for one problem after the other if `is_exact`, and a number
/// that is not finite stays in its sequence.
fn check(
    compiler: &str,
    blueprint: &Blueprint,
    problems: &[Problem],
    element: Element,
    is_exact: bool,
) {
    let kernel = Kernel::build(compiler, blueprint, element, problems);
    let is_forward = blueprint.pass == Pass::Forward;
    let round = if is_forward { |x| x } else { format(element).round };
    let numbered = problems.iter().zip(5..);
    let samples: Vec<_> = numbered
        .map(|(problem, seed)| {
            Sample::new(*problem, Data::random(problem, seed, format(element).round), round)
        })
        .collect();
    let clean = kernel.run(&samples);
    kernel.check("clean", &samples, &clean);
    if is_exact {
        let own = kernel.one_by_one(compiler, &samples);
        for (all, own) in clean.iter().zip(own) {
            for (number, (all, own)) in all.iter().zip(&own).enumerate() {
                let is_written = !own.is_empty() && own.iter().any(|value| !value.is_nan());
                assert!(!is_written || is_same(all, own), "{blueprint}: sequence {number}");
            }
        }
    }
    let poisons = if is_forward { FORWARD.to_vec() } else { [&FORWARD[..], &BACKWARD].concat() };
    for (turn, poison) in poisons.into_iter().enumerate() {
        let place = turn % samples.len();
        let Sample { problem, data, .. } = &samples[place];
        for (what, data) in spoiled(problem, data, &[poison]).into_iter().skip(1) {
            let mut samples = samples.clone();
            samples[place] = Sample::new(*problem, data, round);
            let spoiled = kernel.run(&samples);
            kernel.check(&what, &samples, &spoiled);
            for (spoiled, clean) in spoiled.iter().zip(&clean) {
                for number in (0..samples.len()).filter(|number| *number != place) {
                    let is_clean = is_same(&spoiled[number], &clean[number]);
                    assert!(is_clean, "{blueprint}, {what} of sequence {place}: {number}");
                }
            }
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
        check(compiler, blueprint, problems, element, is_exact);
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
    check(compiler, &blueprint, &problems, Element::F16, true);
}

#[test]
fn images_with_asynchronous_copies() {
    let like = Problem::new([Axis::UNIT], 2, 16);
    check_all(&crate::asynchronous(), &images(like), Element::F16, true);
}

#[test]
fn videos_with_loads_through_registers() {
    let like = Problem::new([Axis::UNIT], 2, 24).with_heads_kv(1).with_head_dim_v(40);
    check_all(&crate::plain(), &videos(like), Element::Bf16, true);
}

#[test]
fn cooperative_matrices() {
    let like = Problem::new([Axis::UNIT], 2, 16).with_heads_kv(1);
    check_all(&crate::cooperative(16), &images(like), Element::F16, false);
    check_all(&crate::cooperative(8), &texts(like), Element::F16, false);
}

#[test]
fn tf32() {
    let like = Problem::new([Axis::UNIT], 2, 16).with_head_dim_v(24);
    check_all(&crate::tf32(crate::asynchronous()), &videos(like), Element::Tf32, false);
}

#[test]
fn random_batches() {
    let number = |name: &str| std::env::var(name).map(|text| text.parse().expect("a number"));
    let count = number("BURN_NATTEN_TEST_PROBLEMS").unwrap_or(1);
    let mut rng = StdRng::seed_from_u64(number("BURN_NATTEN_TEST_SEED").unwrap_or(0) as u64);
    for _ in 0..count {
        let problems = random(&mut rng);
        let element = Element::ALL[rng.random_range(0..Element::ALL.len())];
        let ways: Vec<_> = crate::ways().iter().filter_map(|way| element.of(*way)).collect();
        let way = ways[rng.random_range(0..ways.len())];
        check_all(&way, &problems, element, false);
    }
}
