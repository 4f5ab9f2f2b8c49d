//! The products of the unfused operators on tensor cores, against sums in float64.

use burn_natten_kernels::native::unfused::{dots, spread, sums};
use burn_natten_kernels::portable::unfused::{DotsInputs, Tokens};
use burn_natten_kernels::{Axis, KernelError, Operand, Problem, Shape, Strided};
use cubecl::client::Client;
use test_support::format::{BF16, F16, Format};

use crate::run::{Change, Machine, Policy};
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

/// What is computed.
#[derive(Clone, Copy, Debug)]
enum Product {
    Dots,
    Sums,
    Spread,
}

impl Product {
    const ALL: [Self; 3] = [Self::Dots, Self::Sums, Self::Spread];
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

    /// As near as rounding a result to the type lets it be.
    fn is_close(&self, got: f64, want: f64) -> bool {
        let unit = if self.format.elem() == BF16.elem() { 1.0 / 256.0 } else { 1.0 / 2048.0 };
        got == want || (got - want).abs() <= unit * want.abs() + 1e-4
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
        Product::ALL.map(|product| {
            let computed = self.product(machine, hidden, weights, product);
            computed.unwrap_or_else(|fault| panic!("{:?}: {fault}", self.problem))
        })
    }

    /// One of them. An error is the machine's fault.
    fn product(
        &self,
        machine: &Machine,
        hidden: f32,
        weights: &Strided,
        product: Product,
    ) -> Result<Vec<f64>, String> {
        let (client, problem, dtype) = (client(), &self.problem, self.format.elem());
        let rows = self.upload(&client, Operand::Query, &self.rows);
        let tokens = self.upload(&client, Operand::Key, &self.tokens);
        let bias = self.bias.as_ref().map(|bias| self.format.upload(&client, bias));
        let space = Tokens { space: &tokens, additional: None };
        let inputs = DotsInputs { rows: &rows, tokens: space, bias: bias.as_ref() };
        let count = match product {
            Product::Dots => self.weights.len(),
            Product::Sums => self.rows.len(),
            Product::Spread => self.tokens.len(),
        };
        let to = self.format.poisoned(&client, count);
        let launched = machine.run(|| match product {
            Product::Dots => dots(&client, problem, dtype, hidden, &inputs, &to),
            Product::Sums => sums(&client, problem, dtype, weights, &space, &to),
            Product::Spread => {
                let tokens = Tokens { space: &to, additional: None };
                spread(&client, problem, dtype, weights, &rows, &tokens)
            }
        })?;
        launched.unwrap_or_else(|error| panic!("{problem:?}: {error}"));
        Ok(self.format.download(&client, &to, count))
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
    let exact = case.exact(f64::from(hidden));
    for ((product, got), want) in Product::ALL.into_iter().zip(computed).zip(&exact) {
        if let Some(place) = (0..want.len()).find(|place| !case.is_close(got[*place], want[*place]))
        {
            let (got, want) = (got[place], want[place]);
            panic!("{product:?} of {:?}, {place}: {got}, not {want}", case.problem);
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

/// Tiles of several strips, lines and samples for each CTA, whatever comes when.
#[test]
fn strips() {
    let side = |length| along(length, 7, 1, 1, false);
    let odd = [along(23, 5, 2, 1, true), along(45, 4, 1, 2, false)];
    for (problem, format) in [
        (Problem::new([side(21), side(40)], 2, 32).with_batch(3), BF16),
        (Problem::new([side(30), side(11)], 1, 64).with_batch(2), F16),
        (Problem::new(odd, 2, 96).with_heads_kv(1), BF16),
    ] {
        let case = Case::new(problem, format, false);
        let slots = problem.slots();
        let pitch = (slots + 1).next_multiple_of(8);
        let gaps = case.pitched(&client(), pitch, slots.next_multiple_of(8) - slots);
        for policy in Policy::ALL {
            let Some(machine) = machine() else { return };
            let machine = Machine { policy, ..machine };
            compare(&case, &case.computed(&machine, 0.0), 0.0);
            compare(&case, &case.computed_of(&machine, 0.0, &gaps), 0.0);
        }
    }
}

/// Changes of the kernels that go along strips, each of which is a fault.
#[test]
fn faults_of_strips() {
    use Product::{Dots, Spread, Sums};
    let there = "    wait_for_copies();\n    __syncthreads();";
    let strip = "        __syncthreads();\n        lines.load(";
    let ring = "(u32)(y - origin) % RING * STEP;";
    let faults = [
        (Dots, "a tile is multiplied before it is there", there, "    __syncthreads();"),
        (Dots, "a tile is multiplied before others have copied", there, "    wait_for_copies();"),
        (Dots, "a strip comes in the place of the one in use", strip, "        lines.load("),
        (
            Dots,
            "lines come in the place of those in use",
            ring,
            "(u32)(y - origin) % (RING - 2) * STEP;",
        ),
        (Dots, "a line is not copied", "loaded = end;", "loaded = end + 1;"),
        (
            Dots,
            "weights are stored before they are there",
            "  __syncthreads();\n  if (has_before)",
            "  if (has_before)",
        ),
        (
            Dots,
            "the weights of a tile are stored as those of the one before",
            "(stage ^ 1) * STAGE_BYTES);\n    const int to",
            "stage * STAGE_BYTES);\n    const int to",
        ),
        (Sums, "a tile is summed before it is there", there, "    __syncthreads();"),
        (Sums, "a tile is summed before others have copied", there, "    wait_for_copies();"),
        (Sums, "a strip comes in the place of the one in use", strip, "        lines.load("),
        (
            Sums,
            "weights come in the place of those in use",
            "load_weights(next, stage ^ 1);",
            "load_weights(next, stage);",
        ),
        (
            Sums,
            "rows are read before lanes have written them",
            "  __syncwarp();\n#pragma unroll\n  for (int v = lane;",
            "#pragma unroll\n  for (int v = lane;",
        ),
        (Spread, "a tile is summed before it is there", there, "    __syncthreads();"),
        (Spread, "a tile is summed before others have copied", there, "    wait_for_copies();"),
        (
            Spread,
            "a strip comes in the place of the one in use",
            "        __syncthreads();\n        weights.load(",
            "        weights.load(",
        ),
        (
            Spread,
            "weights come in the place of those in use",
            "(u32)(y - origin) % RING * RING_STEP + WEIGHTS;",
            "(u32)(y - origin) % (RING - 2) * RING_STEP + WEIGHTS;",
        ),
    ];
    let Some(machine) = machine() else { return };
    let side = |length| along(length, 7, 1, 1, false);
    let case = Case::new(Problem::new([side(21), side(40)], 2, 32).with_batch(3), BF16, false);
    let weights = case.pitched(&client(), 56, 7);
    let exact = case.exact(0.0);
    for (product, what, from, to) in faults {
        let machine = Machine { change: Some(Change { from, to }), ..machine };
        if let Ok(computed) = case.product(&machine, 0.0, &weights, product) {
            let mut pairs = computed.iter().zip(&exact[product as usize]);
            let is_right = pairs.all(|(got, want)| case.is_close(*got, *want));
            assert!(!is_right, "{product:?}, {what}: nothing was found");
        }
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
