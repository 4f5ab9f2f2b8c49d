use std::fmt::Write;

use super::{Element, Gradients, Pass, Schedule, SelectSchedule};
use crate::native::{blocks, delta};

#[cfg(test)]
mod tests;

/// What NVRTC compiles for.
pub const ARCHITECTURE: &str = "sm_90a";

/// NVRTC's options.
pub const OPTIONS: [&str; 4] =
    ["--gpu-architecture=sm_90a", "--std=c++17", "--use_fast_math", "--ptxas-options=-v"];

impl Schedule {
    /// The CUDA C++ of the specialisation.
    pub fn source(&self) -> String {
        let mut text = String::new();
        for (name, value) in self.macros() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "#define {name} {value}");
        }
        text += include_str!("../cuda/device.cuh");
        text += include_str!("../cuda/window.cuh");
        text += include_str!("../cuda/tile.cuh");
        text += include_str!("../cuda/walk.cuh");
        text += include_str!("../cuda/tma.cuh");
        text += include_str!("../cuda/boxes.cuh");
        text += include_str!("../cuda/sequences.cuh");
        if self.listed.is_some() {
            text += include_str!("../cuda/listed.cuh");
        }
        text += include_str!("cuda/wgmma.cuh");
        text += &self.wgmma();
        text += include_str!("cuda/pipeline.cuh");
        text += include_str!("cuda/mask.cuh");
        text += include_str!("cuda/score.cuh");
        text += include_str!("../cuda/bias_params.cuh");
        text += include_str!("cuda/bias.cuh");
        text += include_str!("cuda/finish.cuh");
        if self.keeps_slopes {
            text += include_str!("../cuda/slopes.cuh");
        }
        text += match self.pass {
            Pass::Forward => concat!(
                include_str!("../cuda/forward_params.cuh"),
                include_str!("../cuda/packed.cuh"),
                include_str!("../cuda/row_sum.cuh"),
                include_str!("../cuda/forward_repair.cuh"),
                include_str!("cuda/forward.cu"),
            ),
            Pass::Queries if self.sums_slopes() => concat!(
                include_str!("../cuda/backward_params.cuh"),
                include_str!("../cuda/packed.cuh"),
                include_str!("../cuda/row_gradients.cuh"),
                include_str!("../cuda/backward_repair.cuh"),
                include_str!("cuda/slope_sums.cu"),
            ),
            Pass::Queries | Pass::Keys => concat!(
                include_str!("../cuda/backward_params.cuh"),
                include_str!("../cuda/packed.cuh"),
                include_str!("cuda/backward_layout.cuh"),
                include_str!("../cuda/row_gradients.cuh"),
                include_str!("../cuda/backward_repair.cuh"),
                include_str!("../cuda/query_statistics.cuh"),
                include_str!("cuda/own_statistics.cuh"),
                include_str!("cuda/bias_sums.cuh"),
                include_str!("cuda/backward.cu"),
            ),
        };
        text
    }

    /// One function for each wgmma shape. The instruction takes its accumulators one by one, so
    /// that the operand lists are as long as the shape is wide.
    fn wgmma(&self) -> String {
        let element = self.element.name();
        let keys = self.columns();
        let half = format!("k16.f32.{element}.{element}");
        // An operand in shared memory could be transposed, and says that it is not.
        let (a, tail) = match self.rows_in_registers() {
            true => (A::Registers, ", 1, 1, 0"),
            false => (A::Shared, ", 1, 1, 0, 0"),
        };
        let scores =
            Wgmma { name: "wgmma_scores", n: keys, types: &half, a, accumulate: None, tail };
        let (types, accumulate, tail) = match self.begins_with_bias() {
            true => ("k16.f32.bf16.bf16", true, ", 1, 1, 0"),
            false => ("k32.f32.e5m2.e5m2", false, ", 1, 1"),
        };
        let mask = Wgmma {
            name: "wgmma_mask",
            n: keys,
            types,
            a: A::Registers,
            accumulate: Some(accumulate),
            tail,
        };
        // The second operand is transposed: its rows are what is summed over.
        let sum = |name, n| Wgmma {
            name,
            n,
            types: &half,
            a: A::Registers,
            accumulate: Some(true),
            tail: ", 1, 1, 1",
        };
        if self.sums_slopes() {
            // Slopes lie in memory as their transpose.
            let (a, tail) = (A::Shared, ", 1, 1, 1, 1");
            return Wgmma { a, tail, ..sum("wgmma_first", self.head_dim) }.function();
        }
        let sums = match self.pass {
            Pass::Forward => vec![sum("wgmma_values", self.head_dim_v)],
            Pass::Queries | Pass::Keys => {
                let Gradients { width, value, .. } = self.gradients;
                let first = (width > 0).then(|| sum("wgmma_first", width));
                first
                    .into_iter()
                    .chain(value.then(|| sum("wgmma_second", self.head_dim_v)))
                    .collect()
            }
        };
        [scores, mask].iter().chain(&sums).map(Wgmma::function).collect()
    }
}

impl SelectSchedule {
    /// The CUDA C++ of the specialisation.
    pub fn source(&self) -> String {
        let mut text = String::new();
        for (name, value) in self.macros() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "#define {name} {value}");
        }
        let element = self.element.name();
        let scores = Wgmma {
            name: "wgmma_scores",
            n: 64,
            types: &format!("k16.f32.{element}.{element}"),
            a: A::Shared,
            accumulate: None,
            tail: ", 1, 1, 0, 0",
        };
        text += include_str!("../cuda/device.cuh");
        text += include_str!("../cuda/tma.cuh");
        text += include_str!("cuda/wgmma.cuh");
        text += &scores.function();
        text += include_str!("cuda/select.cu");
        text
    }
}

/// Name and CUDA C++ of the kernel that prepares a backward pass, reading so many elements of a row of the output, none where products are
/// given; of one problem or of a packed batch.
pub fn delta_source(element: Element, head_dim_v: usize, is_packed: bool) -> (String, String) {
    delta::source("sm90", element, head_dim_v, is_packed)
}

/// Name and CUDA C++ of the kernel that prepares block-sparse attention, from lists of blocks or from ones that were turned around.
pub fn lists_source(is_turned: bool) -> (String, String) {
    blocks::source("sm90", is_turned)
}

/// Name and CUDA C++ of the kernels that turn lists around.
pub fn inverse_source() -> (String, String) {
    let code = concat!(include_str!("../cuda/device.cuh"), include_str!("cuda/inverse.cu"));
    ("sm90_inverse".into(), code.into())
}

/// The products of a block with 64 rows that list it: of vectors, and of weights with values.
pub(super) fn visit_products(element: Element, keys: usize, head_dim_v: usize) -> String {
    let types = format!("k16.f32.{0}.{0}", element.name());
    let product = |name, n, a, tail| Wgmma { name, n, types: &types, a, accumulate: None, tail };
    let scores = product("wgmma_scores", keys, A::Shared, ", 1, 1, 0, 0");
    let values = product("wgmma_values", head_dim_v, A::Registers, ", 1, 1, 1");
    scores.function() + &values.function()
}

/// The products of gradients by blocks: of vectors of a block and of rows, weights and slopes with rows, and slopes with keys. Slopes lie in
/// memory as their transpose.
pub(super) fn gradient_products(
    element: Element,
    rows: usize,
    head_dim: usize,
    head_dim_v: usize,
) -> String {
    let types = format!("k16.f32.{0}.{0}", element.name());
    let product =
        |name, n, a, accumulate, tail| Wgmma { name, n, types: &types, a, accumulate, tail };
    let sum = |name, n| product(name, n, A::Registers, Some(true), ", 1, 1, 1");
    [
        product("wgmma_scores", rows, A::Shared, None, ", 1, 1, 0, 0"),
        sum("wgmma_first", head_dim),
        sum("wgmma_second", head_dim_v),
        product("wgmma_queries", head_dim, A::Shared, None, ", 1, 1, 1, 1"),
    ]
    .iter()
    .map(Wgmma::function)
    .collect()
}

/// Where the first operand is.
#[derive(Clone, Copy, PartialEq)]
enum A {
    Registers,
    Shared,
}

struct Wgmma<'a> {
    name: &'a str,
    /// Columns of the accumulator.
    n: usize,
    /// Depth and element types.
    types: &'a str,
    a: A,
    /// Whether the product is added to the accumulator; `None` for an argument that says so.
    accumulate: Option<bool>,
    /// The immediate operands: signs and transpositions.
    tail: &'a str,
}

impl Wgmma<'_> {
    fn function(&self) -> String {
        let count = self.n / 2;
        let list = |items: Vec<String>| items.join(", ");
        let accumulators = list((0..count).map(|i| format!("%{i}")).collect());
        let outputs = list((0..count).map(|i| format!("\"+f\"(d[{i}])")).collect());
        let mut next = count;
        let mut operand = || {
            next += 1;
            format!("%{}", next - 1)
        };
        let (parameters, a, mut inputs) = match self.a {
            A::Registers => (
                "u32 a0, u32 a1, u32 a2, u32 a3",
                format!("{{{}}}", list((0..4).map(|_| operand()).collect())),
                "\"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3)".to_string(),
            ),
            A::Shared => ("u64 a", operand(), "\"l\"(a)".to_string()),
        };
        let b = operand();
        inputs += ", \"l\"(b)";
        let (parameter, before, accumulate) = match self.accumulate {
            Some(accumulate) => ("", String::new(), u8::from(accumulate).to_string()),
            None => {
                inputs += ", \"r\"(accumulate)";
                let before = format!(".reg .pred p;\\nsetp.ne.b32 p, {}, 0;\\n", operand());
                (", int accumulate", before, "p".to_string())
            }
        };
        let Self { name, n, types, tail, .. } = self;
        format!(
            "DEVICE void {name}(float (&d)[{count}], {parameters}, u64 b{parameter}) {{\n  \
             asm volatile(\"{{\\n{before}wgmma.mma_async.sync.aligned.m64n{n}{types} \
             {{{accumulators}}}, {a}, {b}, {accumulate}{tail};\\n}}\"\n    \
             : {outputs} : {inputs});\n}}\n"
        )
    }
}
