//! Linear layers by cuBLASLt. Need a GPU and the library, which `BURN_NATTEN_REQUIRE_CUBLAS=1` says there is.

use burn_natten_kernels::native::cublas::{Linear, is_available};
use rand::{Rng, SeedableRng, rngs::StdRng};
use test_support::compare::{device, differs, half_ulp};
use test_support::format::{BF16, F16, F32, Format};

/// `[rows, channels]` times `[channels, outputs]`, each transposed first where that is said.
fn product(
    (a, [a_rows, a_columns], turn_a): (&[f64], [usize; 2], bool),
    (b, [b_rows, b_columns], turn_b): (&[f64], [usize; 2], bool),
) -> Vec<f64> {
    let (rows, inner) = if turn_a { (a_columns, a_rows) } else { (a_rows, a_columns) };
    let columns = if turn_b { b_rows } else { b_columns };
    let mut result = vec![0.0; rows * columns];
    for i in 0..rows {
        for k in 0..inner {
            let left = if turn_a { a[k * a_columns + i] } else { a[i * a_columns + k] };
            for j in 0..columns {
                let right = if turn_b { b[j * b_columns + k] } else { b[k * b_columns + j] };
                result[i * columns + j] += left * right;
            }
        }
    }
    result
}

fn numbers(rng: &mut StdRng, count: usize, format: Format) -> Vec<f64> {
    (0..count).map(|_| (format.round)(rng.random_range(-1.0..1.0))).collect()
}

/// The output and both gradients of layers of every type, some with odd lengths, against their definition, and again to the bit.
#[test]
fn linear_layers() {
    let Some(client) = device() else { return };
    if let Err(error) = is_available(&client) {
        assert!(std::env::var("BURN_NATTEN_REQUIRE_CUBLAS").is_err(), "{error}");
        return println!("skipped: {error}");
    }
    let mut rng = StdRng::seed_from_u64(1);
    let shapes =
        [[64, 64, 192], [1, 1, 1], [3, 27, 32], [49, 512, 1000], [3001, 24, 40], [20000, 64, 8]];
    for shape @ [rows, channels, outputs] in shapes {
        for format in [F32, F16, BF16] {
            let input = numbers(&mut rng, rows * channels, format);
            let weight = numbers(&mut rng, channels * outputs, format);
            let bias = numbers(&mut rng, outputs, format);
            let gradient = numbers(&mut rng, rows * outputs, format);
            let upload = |values: &[f64]| format.upload(&client, values);
            let (x, w, b, dy) = (upload(&input), upload(&weight), upload(&bias), upload(&gradient));
            let layer = Linear { client: &client, rows, channels, outputs, dtype: format.elem() };
            let run = || {
                let to = [rows * outputs, rows * outputs, rows * channels, channels * outputs];
                let handles = to.map(|count| format.poisoned(&client, count));
                layer.forward(&x, &w, Some(&b), &handles[0]).expect("with a bias");
                layer.forward(&x, &w, None, &handles[1]).expect("without a bias");
                layer.input_gradient(&w, &dy, &handles[2]).expect("input");
                layer.weight_gradient(&x, &dy, &handles[3]).expect("weight");
                std::array::from_fn::<_, 4, _>(|i| format.download(&client, &handles[i], to[i]))
            };
            let x = (&input[..], [rows, channels]);
            let w = (&weight[..], [channels, outputs]);
            let dy = (&gradient[..], [rows, outputs]);
            let plain = product((x.0, x.1, false), (w.0, w.1, false));
            let biased: Vec<_> =
                plain.iter().enumerate().map(|(i, y)| y + bias[i % outputs]).collect();
            let of_input = product((dy.0, dy.1, false), (w.0, w.1, true));
            let of_weight = product((x.0, x.1, true), (dy.0, dy.1, false));
            let results = run();
            let wanted =
                [(biased, channels), (plain, channels), (of_input, outputs), (of_weight, rows)];
            for (i, (actual, (exact, terms))) in results.iter().zip(&wanted).enumerate() {
                let rounding = if format.elem().size() == 4 { 0.0 } else { half_ulp(format) };
                let sums = 1e-6 * (*terms as f64).sqrt().max(1.0) * 4.0;
                let near = |_: usize, e: f64| 1.01 * rounding * e.abs() + sums;
                assert_eq!(
                    differs(actual, exact, near),
                    None,
                    "{shape:?}, {:?}, result {i}",
                    format.elem()
                );
            }
            assert_eq!(run(), results, "the same bits again: {shape:?}, {:?}", format.elem());
        }
    }
}

#[test]
fn what_cannot_be_multiplied_is_an_error() {
    let Some(client) = device() else { return };
    if is_available(&client).is_err() {
        return;
    }
    let buffer = F32.poisoned(&client, 12);
    let layer = Linear { client: &client, rows: 3, channels: 4, outputs: 4, dtype: F32.elem() };
    let error = layer.forward(&buffer, &buffer, None, &buffer).expect_err("too small");
    assert_eq!(error.to_string(), "the buffer of weight has 48 bytes, but the problem needs 64");
}
