//! The products of the unfused operators on tensor cores, against sums in float64.

use burn_natten_kernels::native::unfused::{dots, spread, sums};
use burn_natten_kernels::portable::unfused::{DotsInputs, Tokens};
use burn_natten_kernels::{Axis, KernelError, Operand, Problem, Shape, Strided};
use cubecl::client::Client;
use cubecl::server::Handle;
use test_support::format::{BF16, F16, Format};

use crate::run::{Machine, Policy};
use crate::ways::client;
use test_support::cpp::compiler;

/// Numbers without a pattern, between -1 and 1.
fn numbers(count: usize, seed: u64, format: Format) -> Vec<f64> {
    let mut state = count as u64 + 7919 * seed + 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (format.round)((state >> 33) as f64 / f64::from(1u32 << 30) - 1.0)
    };
    (0..count).map(|_| next()).collect()
}

/// A problem with its tensors.
struct Case {
    problem: Problem,
    format: Format,
    rows: Vec<f64>,
    tokens: Vec<f64>,
    weights: Vec<f64>,
    bias: Option<Vec<f64>>,
}

impl Case {
    fn new(problem: Problem, format: Format, has_bias: bool) -> Self {
        let of = |operand: Operand| operand.shape(&problem).elements();
        let entries = problem.heads * problem.bias_entries();
        let mut weights = numbers(problem.weights(), 3, format);
        // What nobody is to read.
        let slots = problem.slots();
        for (place, weight) in weights.iter_mut().enumerate() {
            let query = place / slots / problem.heads % problem.queries();
            if problem.slot_key(query, place % slots).is_none() {
                *weight = f64::NAN;
            }
        }
        Self {
            problem,
            format,
            rows: numbers(of(Operand::Query), 1, format),
            tokens: numbers(of(Operand::Key), 2, format),
            weights,
            bias: has_bias.then(|| numbers(entries, 4, format)),
        }
    }

    /// Calls `of` with the places of a weight, of a row's vector and of a token's, and of an entry of the bias, for each weight;
    /// those of a token and of an entry are missing where it is hidden.
    fn each(&self, mut of: impl FnMut(usize, usize, Option<(usize, usize)>)) {
        let Problem { batch, heads, heads_kv, head_dim, .. } = self.problem;
        let (slots, queries, keys) =
            (self.problem.slots(), self.problem.queries(), self.problem.keys());
        for row in 0..batch * queries * heads {
            let (head, query) = (row % heads, row / heads % queries);
            let sample = row / heads / queries;
            for slot in 0..slots {
                let key = self.problem.slot_key(query, slot).map(|key| {
                    let token = (sample * keys + key) * heads_kv + head / (heads / heads_kv);
                    let entry = self.problem.slot_offset(query, slot).expect("it is seen");
                    (token * head_dim, head * self.problem.bias_entries() + entry)
                });
                of(row * slots + slot, row * head_dim, key);
            }
        }
    }

    fn exact(&self, hidden: f64) -> [Vec<f64>; 3] {
        let (dim, scale) = (self.problem.head_dim, self.problem.scale);
        let mut dots = vec![hidden; self.weights.len()];
        let mut sums = vec![0.0; self.rows.len()];
        let mut spread = vec![0.0; self.tokens.len()];
        self.each(|weight, row, key| {
            let Some((token, entry)) = key else { return };
            let products = (0..dim).map(|d| self.rows[row + d] * self.tokens[token + d]);
            dots[weight] =
                scale * products.sum::<f64>() + self.bias.as_ref().map_or(0.0, |bias| bias[entry]);
            for d in 0..dim {
                let factor = self.weights[weight] * scale;
                sums[row + d] += factor * self.tokens[token + d];
                spread[token + d] += factor * self.rows[row + d];
            }
        });
        [dots, sums, spread]
    }

    fn upload(&self, client: &Client, operand: Operand, values: &[f64]) -> Strided {
        let handle = self.format.upload(client, values);
        Strided::contiguous(handle, operand.shape(&self.problem))
    }

    /// Weights in rows that lie `pitch` elements apart, with NaN between them, and `behind` elements behind the last one.
    fn pitched(&self, client: &Client, pitch: usize, behind: usize) -> Strided {
        let shape = Shape::weights(&self.problem);
        let mut values = vec![];
        for row in self.weights.chunks(shape.dim) {
            values.extend(row);
            values.resize(values.len() + pitch - shape.dim, f64::NAN);
        }
        values.truncate(values.len() - (pitch - shape.dim) + behind);
        let strides = Shape { dim: pitch, ..shape }.strides();
        Strided { handle: self.format.upload(client, &values), strides }
    }

    fn computed(&self, machine: &Machine, hidden: f32) -> [Vec<f64>; 3] {
        let weights = self.pitched(&client(), Shape::weights(&self.problem).dim, 0);
        self.computed_of(machine, hidden, &weights)
    }

    fn computed_of(&self, machine: &Machine, hidden: f32, weights: &Strided) -> [Vec<f64>; 3] {
        let (client, problem, dtype) = (client(), &self.problem, self.format.elem());
        let rows = self.upload(&client, Operand::Query, &self.rows);
        let tokens = self.upload(&client, Operand::Key, &self.tokens);
        let bias = self.bias.as_ref().map(|bias| self.format.upload(&client, bias));
        let run = |count: usize, launch: &dyn Fn(&Handle) -> Result<(), KernelError>| {
            let result = self.format.poisoned(&client, count);
            let launched = machine.run(|| launch(&result));
            launched
                .unwrap_or_else(|fault| panic!("{problem:?}: {fault}"))
                .unwrap_or_else(|error| panic!("{problem:?}: {error}"));
            self.format.download(&client, &result, count)
        };
        let space = Tokens { space: &tokens, additional: None };
        let inputs = DotsInputs { rows: &rows, tokens: space, bias: bias.as_ref() };
        [
            run(self.weights.len(), &|to| dots(&client, problem, dtype, hidden, &inputs, to)),
            run(self.rows.len(), &|to| sums(&client, problem, dtype, weights, &space, to)),
            run(self.tokens.len(), &|to| {
                let tokens = Tokens { space: to, additional: None };
                spread(&client, problem, dtype, weights, &rows, &tokens)
            }),
        ]
    }
}

fn along(length: usize, kernel_size: usize, stride: usize, dilation: usize, causal: bool) -> Axis {
    Axis::neighborhood(length, kernel_size)
        .with_stride(stride)
        .with_dilation(dilation)
        .with_causal(causal)
}

fn machine() -> Option<Machine> {
    compiler().map(|compiler| Machine {
        compiler,
        capability: 90,
        policy: Policy::Late,
        change: None,
    })
}

fn check(problem: Problem, format: Format, has_bias: bool) {
    let Some(machine) = machine() else { return };
    let case = Case::new(problem, format, has_bias);
    let hidden = f32::NEG_INFINITY;
    compare(&case, &case.computed(&machine, hidden), hidden);
}

fn compare(case: &Case, computed: &[Vec<f64>; 3], hidden: f32) {
    let (problem, format) = (&case.problem, case.format);
    let exact = case.exact(f64::from(hidden));
    let unit = if format.elem() == BF16.elem() { 1.0 / 256.0 } else { 1.0 / 2048.0 };
    for (name, (got, want)) in
        ["dots", "sums", "spread"].into_iter().zip(computed.iter().zip(&exact))
    {
        for (place, (got, want)) in got.iter().zip(want).enumerate() {
            let is_close = got == want || (got - want).abs() <= unit * want.abs() + 1e-4;
            assert!(is_close, "{name} of {problem:?}, {place}: {got}, not {want}");
        }
    }
}

#[test]
fn planes() {
    let side = |length| along(length, 7, 1, 1, false);
    check(Problem::new([side(16), side(24)], 2, 32).with_batch(2), BF16, false);
    check(Problem::new([side(14), side(22)], 4, 32), F16, true);
    check(Problem::new([along(13, 5, 1, 2, false), along(19, 4, 1, 3, false)], 3, 48), BF16, true);
}

#[test]
fn causal_axes_strides_and_shared_heads() {
    let axes = [along(11, 4, 1, 1, true), along(21, 6, 3, 2, false)];
    check(Problem::new(axes, 4, 64).with_heads_kv(2), BF16, true);
    let axes = [along(9, 3, 2, 1, false), along(17, 5, 4, 1, true)];
    check(Problem::new(axes, 2, 16).with_heads_kv(1).with_batch(2), F16, false);
}

#[test]
fn lines_and_boxes() {
    check(Problem::new([along(70, 9, 1, 1, false)], 2, 32).with_batch(2), BF16, false);
    check(Problem::new([along(75, 11, 4, 3, true)], 1, 128), F16, true);
    let axes = [along(5, 3, 1, 1, true), along(6, 3, 1, 2, false), along(9, 4, 2, 1, false)];
    check(Problem::new(axes, 2, 16).with_batch(2), BF16, true);
    let axes = [along(4, 2, 1, 2, false), along(6, 3, 1, 1, false), along(9, 4, 1, 1, false)];
    check(Problem::new(axes, 2, 32).with_heads_kv(1), BF16, false);
}

/// A token that is not finite reaches those that see it, and no others.
#[test]
fn what_is_not_finite_stays_where_it_is_seen() {
    let Some(machine) = machine() else { return };
    let axes = [along(11, 3, 1, 1, false), along(17, 5, 1, 1, false)];
    let problem = Problem::new(axes, 2, 32);
    let mut case = Case::new(problem, BF16, false);
    case.tokens[32 * 2 * 40] = f64::INFINITY;
    case.rows[32 * 2 * 77 + 3] = f64::NAN;
    for (got, want) in case.computed(&machine, 0.0).iter().zip(&case.exact(0.0)) {
        for (got, want) in got.iter().zip(want) {
            let is_close = got == want || (got - want).abs() <= 0.01 * want.abs() + 1e-4;
            assert!(is_close || (got.is_nan() && want.is_nan()), "{got}, not {want}");
        }
    }
}

/// Rows of weights with gaps between them, as Burn makes them on CUDA: nothing of the gaps matters, and the memory may end with the last
/// row's last vector.
#[test]
fn weights_with_gaps() {
    let Some(machine) = machine() else { return };
    let side = |length| along(length, 7, 1, 1, false);
    let far = [along(13, 5, 1, 2, false), along(19, 4, 1, 3, true)];
    let shared = [along(9, 3, 2, 1, false), along(17, 5, 4, 1, true)];
    for (problem, format, pitch) in [
        (Problem::new([side(14), side(22)], 2, 32).with_batch(2), BF16, 64),
        (Problem::new([side(9), side(17)], 1, 16), F16, 56),
        // No line of a tile is without gaps.
        (Problem::new(far, 3, 48), BF16, 32),
        (Problem::new(shared, 4, 16).with_heads_kv(2).with_batch(2), F16, 16),
        (Problem::new([along(70, 9, 1, 1, false)], 2, 32).with_batch(2), BF16, 16),
    ] {
        let case = Case::new(problem, format, false);
        let slots = problem.slots();
        let weights = case.pitched(&client(), pitch, slots.next_multiple_of(8) - slots);
        compare(&case, &case.computed_of(&machine, 0.0, &weights), 0.0);
    }
}

/// Weights that lie otherwise are for a copy, and what has no kernel is not, however they lie.
#[test]
fn weights_that_kernels_cannot_read() {
    let Some(machine) = machine() else { return };
    let (client, side) = (client(), |length| along(length, 7, 1, 1, false));
    let launched = |problem: Problem, lay: &dyn Fn(&Case) -> Strided| {
        let case = Case::new(problem, BF16, false);
        let (weights, rows) = (lay(&case), case.upload(&client, Operand::Query, &case.rows));
        let to = BF16.poisoned(&client, case.tokens.len());
        let tokens = Tokens { space: &to, additional: None };
        let launch = || spread(&client, &problem, BF16.elem(), &weights, &rows, &tokens);
        machine.run(launch).expect("no fault")
    };
    let plane = Problem::new([side(9), side(17)], 2, 16);
    let depth = Problem::new([along(4, 2, 1, 1, false), side(8), side(9)], 1, 16);
    let swapped = |case: &Case| {
        let mut weights = case.pitched(&client, 56, 7);
        weights.strides.swap(2, 3);
        weights
    };
    let inner = |case: &Case| Strided {
        handle: case.pitched(&client, 64, 15).handle.offset_start(2),
        ..case.pitched(&client, 64, 15)
    };
    type Lay<'a> = (&'a str, Problem, &'a dyn Fn(&Case) -> Strided);
    let lays: [Lay; 5] = [
        ("the last vector ends behind the memory", plane, &|case| case.pitched(&client, 56, 6)),
        ("rows begin anywhere", plane, &|case| case.pitched(&client, 50, 1)),
        ("axes are exchanged", plane, &swapped),
        ("the first row does not begin at 16 bytes", plane, &inner),
        ("there are several planes", depth, &|case| case.pitched(&client, 104, 6)),
    ];
    for (what, problem, lay) in lays {
        let error = launched(problem, lay).expect_err(what);
        assert!(matches!(error, KernelError::Layout { name: "weights", .. }), "{what}: {error}");
    }
    let odd = Problem::new([side(9), side(17)], 2, 24);
    let error = launched(odd, &|case| case.pitched(&client, 50, 1)).expect_err("no kernel");
    assert!(matches!(error, KernelError::Problem(_)), "{error}");
}
