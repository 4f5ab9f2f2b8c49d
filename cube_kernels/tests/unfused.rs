//! Kernels of the unfused operators that a CPU would not choose, against those that it does.
//!
//! `cargo test -p burn-natten-kernels --features cpu --test unfused`; what the products are is held to an oracle by the operators' tests.

use burn_natten_kernels::portable::unfused::{DotsInputs, LineTile, Tokens, dots_with};
use burn_natten_kernels::{Axis, Operand, Problem, Strided};
use test_support::format::{BF16, F32, Format};
use test_support::portable::client;

/// Numbers without a pattern.
fn numbers(count: usize, format: Format) -> Vec<f64> {
    let mut state = count as u64 + 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (format.round)((state >> 33) as f64 / f64::from(1u32 << 30) - 1.0)
    };
    (0..count).map(|_| next()).collect()
}

fn problems() -> Vec<Problem> {
    let along = |length, kernel_size, stride, dilation, is_causal| {
        Axis::neighborhood(length, kernel_size)
            .with_stride(stride)
            .with_dilation(dilation)
            .with_causal(is_causal)
    };
    vec![
        Problem::new([along(9, 3, 1, 1, false)], 2, 8),
        Problem::new([along(23, 5, 3, 2, true)], 4, 6).with_heads_kv(2).with_batch(2),
        Problem::new([along(5, 3, 1, 1, true), along(11, 4, 4, 2, false)], 2, 16),
        Problem::new(
            [along(3, 2, 2, 1, false), along(4, 3, 1, 1, true), along(7, 7, 1, 1, false)],
            1,
            4,
        ),
    ]
}

#[test]
fn lines_give_what_rows_give() {
    let client = client();
    for (index, problem) in problems().into_iter().enumerate() {
        for (format, tolerance) in [(F32, 1e-5), (BF16, 1e-2)] {
            let read = |operand: Operand| {
                let shape = operand.shape(&problem);
                let values = numbers(shape.elements(), format);
                Strided::contiguous(format.upload(&client, &values), shape)
            };
            let (rows, tokens) = (read(Operand::Query), read(Operand::Key));
            let count = problem.heads * problem.bias_entries();
            let bias = format.upload(&client, &numbers(count, format));
            let bias = (index % 2 == 1).then_some(&bias);
            let inputs = DotsInputs {
                rows: &rows,
                tokens: Tokens { space: &tokens, additional: None },
                bias,
            };
            let count = problem.batch * problem.queries() * problem.heads * problem.slots();
            let run = |tile| {
                let weights = format.poisoned(&client, count);
                let elem = format.elem();
                dots_with(&client, tile, &problem, elem, f32::NEG_INFINITY, &inputs, &weights)
                    .expect("launched");
                format.download(&client, &weights, count)
            };
            let want = run(None);
            assert!(want.iter().all(|x| !x.is_nan()));
            // A CPU may have no more than two units.
            for (queries, units) in [(1, 1), (2, 2), (1, 2)] {
                let got = run(Some(LineTile { queries, units }));
                for (place, (got, want)) in got.iter().zip(&want).enumerate() {
                    let is_close = got == want || (got - want).abs() <= tolerance;
                    assert!(is_close, "{problem:?} {queries} {units} {place}: {got}, not {want}");
                }
            }
        }
    }
}
