//! The repository's golden cases, and the launches that Hopper's kernels are tested with.

use burn_natten_kernels::native::Element;
use burn_natten_kernels::native::sm100::unsupported;
use burn_natten_kernels::{Axis, MAX_RANK, Problem};
use test_support::compare::{for_each_case, format};
use test_support::oracle::compute;
use test_support::{Data, error};

use super::ways::{
    blackwell, check, check_one_backward, check_one_forward, in_turn, planned, planned_backward,
};
use crate::golden::{several, tiny};
use crate::run::Policy;
use crate::ways::client;

const TEXT: &str = include_str!("../../../../tests/golden/cases.json");
const NUMBERS: &[u8] = include_bytes!("../../../../tests/golden/cases.bin");

/// A case of the file: what is in the braces of one.
struct Golden<'a>(&'a str);

impl<'a> Golden<'a> {
    fn all() -> Vec<Golden<'a>> {
        TEXT.split("{\"space\"").skip(1).map(Golden).collect()
    }

    /// The words of a list. That of the axes has no name here: the case begins with it.
    fn words(&self, name: &str) -> Vec<&'a str> {
        let (_, rest) = self.0.split_once(name).expect("the file is as described");
        let (_, rest) = rest.split_once('[').expect("a list");
        let (list, _) = rest.split_once(']').expect("a list");
        list.split(',').map(str::trim).collect()
    }

    fn numbers(&self, name: &str) -> Vec<usize> {
        self.words(name).into_iter().map(|word| word.parse().expect("a number")).collect()
    }

    /// Shape and elements of a tensor, if it has one of this name.
    fn tensor(&self, name: &str) -> Option<(Vec<usize>, Vec<f64>)> {
        let name = format!("\"{name}\": {{\"offset\": ");
        let (_, rest) = self.0.split_once(&name)?;
        let (offset, _) = rest.split_once(',').expect("an offset");
        let offset: usize = offset.parse().expect("a number");
        let shape = Golden(rest).numbers("\"shape\"");
        let bytes = &NUMBERS[4 * offset..][..4 * shape.iter().product::<usize>()];
        let number = |b: &[u8; 4]| f64::from(f32::from_le_bytes(*b));
        Some((shape, bytes.as_chunks().0.iter().map(number).collect()))
    }

    fn values(&self, name: &str) -> Vec<f64> {
        self.tensor(name).map_or(vec![], |(_, values)| values)
    }

    fn problem(&self) -> Problem {
        let space = self.numbers("");
        let (kernel, stride) = (self.numbers("\"kernel\""), self.numbers("\"stride\""));
        let (dilation, causal) = (self.numbers("\"dilation\""), self.words("\"causal\""));
        let mut axes = [Axis::UNIT; MAX_RANK];
        for (index, axis) in axes[MAX_RANK - space.len()..].iter_mut().enumerate() {
            *axis = test_support::axis(
                space[index],
                kernel[index],
                stride[index],
                dilation[index],
                causal[index] == "true",
            );
        }
        let shape = |name: &str| self.tensor(name).map(|(shape, _)| shape);
        let (query, value) = (shape("q").expect("queries"), shape("v").expect("values"));
        let last_two = |shape: &[usize]| [shape[shape.len() - 2], shape[shape.len() - 1]];
        let ([heads, dim], [heads_kv, dim_v]) = (last_two(&query), last_two(&value));
        Problem::new(axes, heads, dim)
            .with_batch(query[0])
            .with_heads_kv(heads_kv)
            .with_head_dim_v(dim_v)
            .with_additional(shape("extra_k").map_or(0, |shape| shape[1]))
    }

    /// The inputs; there is no gradient of the logsumexp.
    fn data(&self, problem: &Problem) -> Data {
        let mut data = Data::random(problem, 0, |x| x);
        data.query = self.values("q");
        (data.key, data.value) = (self.values("k"), self.values("v"));
        (data.additional_key, data.additional_value) =
            (self.values("extra_k"), self.values("extra_v"));
        data.dout = self.values("dout");
        data.dlse.fill(0.0);
        data
    }
}

/// In this type: the oracle gives what the file has, and the kernels what it gives for inputs of the type.
fn check_golden(cases: &[(usize, Golden<'_>)], element: Element) {
    let client = client();
    for_each_case(cases, |(number, golden), _| {
        let problem = golden.problem();
        let mut data = golden.data(&problem);
        let exact = compute(&problem, &data, |x| x);
        for (name, key) in
            [("out", "out"), ("lse", "lse"), ("dq", "dq"), ("dk", "dk"), ("dv", "dv")]
                .into_iter()
                .chain([("additional dk", "dextra_k"), ("additional dv", "dextra_v")])
        {
            let found = exact.named().into_iter().find(|(known, _)| *known == name);
            let found = found.expect("a result").1;
            let off = error(found, &golden.values(key));
            assert!(off < 1e-6, "case {number}: {name} of the oracle is off by {off:.1e}");
        }
        let round = format(element).round;
        let Data { query, key, value, additional_key, additional_value, dout, .. } = &mut data;
        for values in [query, key, value, additional_key, additional_value, dout] {
            values.iter_mut().for_each(|x| *x = round(*x));
        }
        let Some(machine) = blackwell(Policy::ALL[number % 3]) else { return Ok(0.0) };
        let (forward, backward) = (planned(&problem, element), planned_backward(&problem, element));
        let one = check_one_forward(&machine, &client, &problem, &forward, &data)?;
        let other = check_one_backward(&machine, &client, &problem, &backward, &data)?;
        Ok(one.max(other))
    });
}

fn cases() -> Vec<(usize, Golden<'static>)> {
    let all: Vec<_> = Golden::all().into_iter().enumerate().collect();
    assert_eq!(all.len(), 48);
    all
}

/// A line, a plane with additional tokens, a space: dilated, strided, causal.
#[test]
fn three_golden_cases() {
    let few =
        cases().into_iter().filter(|(number, _)| [4, 9, 16].contains(number)).collect::<Vec<_>>();
    check_golden(&few, Element::Bf16);
}

#[test]
#[ignore = "minutes"]
fn every_golden_case() {
    for element in [Element::F16, Element::Bf16] {
        check_golden(&cases(), element);
    }
}

/// What Hopper's kernels are tested with, but for a bias.
#[test]
#[ignore = "minutes"]
fn what_hopper_runs() {
    let all = tiny().into_iter().chain(several());
    check(&in_turn(all.filter(|problem| unsupported(problem).is_none())));
}
