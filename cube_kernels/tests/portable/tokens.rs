//! Layer normalization and sums over tokens, against their definitions.

use burn_natten_kernels::tokens::{
    BlockGrid, GateInputs, GateStatistics, Maps, Matrix, NormInputs, PatchGrid, TokenBlocks,
    branch_sum, column_sums, gated_sum, gated_sum_backward, gated_sum_statistics, gelu,
    gelu_backward, layer_norm, layer_norm_backward,
};
use test_support::compare::{differs, half_ulp};
use test_support::format::{BF16, F16, F32, Format};
use test_support::portable::client;

const EPSILON: f64 = 1e-5;

/// Numbers without a pattern, around an average that a sum of squares alone would lose.
fn numbers(count: usize, seed: u64, average: f64, format: Format) -> Vec<f64> {
    let mut state = seed.wrapping_mul(2862933555777941757) + 3037000493;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (format.round)(average + (state >> 33) as f64 / f64::from(1u32 << 30) - 1.0)
    };
    (0..count).map(|_| next()).collect()
}

/// A normalised row, and the inverse of its deviation.
fn normalised(row: &[f64]) -> (Vec<f64>, f64) {
    let count = row.len() as f64;
    let mean = row.iter().sum::<f64>() / count;
    let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    let scale = 1.0 / (variance + EPSILON).sqrt();
    (row.iter().map(|x| (x - mean) * scale).collect(), scale)
}

struct Case {
    shape: [usize; 2],
    /// Units of a cube, fewer than the device has.
    units: usize,
    format: Format,
}

/// Rows that fill cubes and that do not, channels in vectors of every size.
fn cases() -> Vec<Case> {
    let client = client();
    let most = client.properties().hardware.max_units_per_cube as usize;
    let units = if most >= 256 { vec![64, 256] } else { vec![1, 2.min(most)] };
    let mut shapes = vec![[1, 8], [5, 7], [301, 24], [64, 56], [1030, 16]];
    if most >= 256 {
        // Units that hold several vectors, and rows of more than 32 units.
        shapes.extend([[40, 192], [9, 1536], [5, 1023], [3, 8192]]);
    }
    let known = [F32, F16, BF16].into_iter();
    let formats = known.filter(|format| client.properties().supports_type(format.elem()));
    let formats: Vec<Format> = formats.collect();
    let of_shape = |shape| {
        // A unit holds 32 channels at most.
        let of_units =
            |units: usize| formats.iter().map(move |&format| Case { shape, units, format });
        let of_length = units.iter().copied().filter(|units| shape[1] <= 32 * units || *units <= 2);
        of_length.flat_map(of_units).collect::<Vec<_>>()
    };
    shapes.into_iter().flat_map(of_shape).collect()
}

/// What a rounded result may differ by, where numbers of such a size are added.
fn allowed(format: Format, size: f64) -> impl Fn(usize, f64) -> f64 {
    let rounding = if format.elem().size() == 4 { 0.0 } else { half_ulp(format) };
    move |_, exact| 1.01 * rounding * exact.abs() + 2e-6 * size
}

#[test]
fn rows_are_normalised() {
    let client = client();
    for Case { shape, units, format } in cases() {
        let [rows, channels] = shape;
        let count = rows * channels;
        let input = numbers(count, 1, 3.0, format);
        let gamma = numbers(channels, 2, 1.0, format);
        let beta = numbers(channels, 3, 0.0, format);
        let matrix = Matrix { units, ..Matrix::new(&client, shape, format.elem()) };
        let upload = |values: &[f64]| format.upload(&client, values);
        let (from, of_gamma, of_beta) = (upload(&input), upload(&gamma), upload(&beta));
        for with_beta in [true, false] {
            let to = format.poisoned(&client, count);
            let of_beta = with_beta.then_some(&of_beta);
            layer_norm(&matrix, &from, &of_gamma, of_beta, EPSILON, &to).expect("launched");
            let row = |row: &[f64]| {
                let scaled = normalised(row).0.into_iter().zip(&gamma).map(|(x, gamma)| x * gamma);
                let moved = |(x, beta)| if with_beta { x + beta } else { x };
                scaled.zip(&beta).map(moved).collect::<Vec<_>>()
            };
            let exact: Vec<f64> = input.chunks(channels).flat_map(row).collect();
            let actual = format.download(&client, &to, count);
            let difference = differs(&actual, &exact, allowed(format, 10.0));
            assert_eq!(difference, None, "{shape:?}, {units} units, beta {with_beta}");
        }
    }
}

#[test]
fn gradients_of_a_normalised_row() {
    let client = client();
    for Case { shape, units, format } in cases() {
        let [rows, channels] = shape;
        let count = rows * channels;
        let input = numbers(count, 4, 3.0, format);
        let gamma = numbers(channels, 5, 1.0, format);
        let gradient = numbers(count, 6, 0.1, format);
        let matrix = Matrix { units, ..Matrix::new(&client, shape, format.elem()) };
        let upload = |values: &[f64]| format.upload(&client, values);
        let buffers = [&input, &gamma, &gradient].map(|values| upload(values));
        let inputs = NormInputs { input: &buffers[0], gamma: &buffers[1], gradient: &buffers[2] };
        let run = || {
            let to = format.poisoned(&client, count);
            let parameters = format.poisoned(&client, 2 * channels);
            layer_norm_backward(&matrix, &inputs, EPSILON, &to, &parameters).expect("launched");
            (
                format.download(&client, &to, count),
                format.download(&client, &parameters, 2 * channels),
            )
        };
        let (mut of_input, mut of_parameters) = (vec![], vec![0.0; 2 * channels]);
        for (row, gradient) in input.chunks(channels).zip(gradient.chunks(channels)) {
            let (row, scale) = normalised(row);
            let scaled: Vec<f64> =
                gradient.iter().zip(&gamma).map(|(g, gamma)| g * gamma).collect();
            let mean = scaled.iter().sum::<f64>() / channels as f64;
            let along = scaled.iter().zip(&row).map(|(g, x)| g * x).sum::<f64>() / channels as f64;
            of_input.extend(scaled.iter().zip(&row).map(|(g, x)| scale * (g - mean - x * along)));
            for (channel, (g, x)) in gradient.iter().zip(&row).enumerate() {
                of_parameters[channel] += g * x;
                of_parameters[channels + channel] += g;
            }
        }
        let (actual, parameters) = run();
        let case = format!("{shape:?}, {units} units");
        // Rows of few channels can be nearly constant, and have large gradients.
        let size = of_input.iter().fold(10.0, |most: f64, x| most.max(x.abs()));
        assert_eq!(differs(&actual, &of_input, allowed(format, size)), None, "{case}");
        let size = 10.0 * (rows as f64).sqrt();
        assert_eq!(differs(&parameters, &of_parameters, allowed(format, size)), None, "{case}");
        assert_eq!(run(), (actual, parameters), "the same bits again, {case}");
    }
}

#[test]
fn branches_are_weighed() {
    let client = client();
    for Case { shape, units, format } in cases() {
        let [rows, channels] = shape;
        let count = rows * channels;
        let branches = [10, 11, 12].map(|seed| numbers(count, seed, 0.2, format));
        let gates = numbers(3 * rows, 13, 0.5, format);
        let gradient = numbers(count, 14, 0.1, format);
        let matrix = Matrix { units, ..Matrix::new(&client, shape, format.elem()) };
        let case = format!("{shape:?}, {units} units");

        let upload = |values: &[f64]| format.upload(&client, values);
        let buffers = branches.each_ref().map(|branch| upload(branch));
        let of_gates = upload(&gates);
        let inputs = GateInputs { branches: buffers.each_ref(), gates: &of_gates };
        let to = format.poisoned(&client, count);
        gated_sum(&matrix, &inputs, &to).expect("launched");
        let gate = |at: usize, branch: usize| gates[at / channels * 3 + branch];
        let sum = |at| (0..3).map(|branch| gate(at, branch) * branches[branch][at]).sum::<f64>();
        let exact: Vec<f64> = (0..count).map(sum).collect();
        let actual = format.download(&client, &to, count);
        assert_eq!(differs(&actual, &exact, allowed(format, 3.0)), None, "{case}");

        let to = format.poisoned(&client, count);
        branch_sum(&matrix, buffers.each_ref(), &to).expect("launched");
        let sum = |at: usize| branches.iter().map(|branch| branch[at]).sum::<f64>();
        let exact: Vec<f64> = (0..count).map(sum).collect();
        let actual = format.download(&client, &to, count);
        assert_eq!(differs(&actual, &exact, allowed(format, 3.0)), None, "no gates, {case}");

        let run = || {
            let to = [0; 3].map(|_| format.poisoned(&client, count));
            let to_gates = format.poisoned(&client, 3 * rows);
            let of = GateInputs { branches: to.each_ref(), gates: &to_gates };
            gated_sum_backward(&matrix, &inputs, &upload(&gradient), &of).expect("launched");
            let of_branches = to.map(|handle| format.download(&client, &handle, count));
            (of_branches, format.download(&client, &to_gates, 3 * rows))
        };
        let (of_branches, of_gates) = run();
        for (branch, actual) in of_branches.iter().enumerate() {
            let exact: Vec<f64> = (0..count).map(|at| gate(at, branch) * gradient[at]).collect();
            let difference = differs(actual, &exact, allowed(format, 1.0));
            assert_eq!(difference, None, "branch {branch}, {case}");
        }
        let dot = |at: usize| {
            let values = branches[at % 3].chunks(channels).nth(at / 3).into_iter().flatten();
            values.zip(&gradient[at / 3 * channels..]).map(|(x, g)| x * g).sum::<f64>()
        };
        let exact: Vec<f64> = (0..3 * rows).map(dot).collect();
        let size = 3.0 * (channels as f64).sqrt();
        assert_eq!(differs(&of_gates, &exact, allowed(format, size)), None, "gates, {case}");
        assert_eq!(run(), (of_branches, of_gates), "the same bits again, {case}");
    }
}

/// What attentions need whose outputs are weighed; a gate of zero among others.
#[test]
fn statistics_of_weighed_branches() {
    let client = client();
    for Case { shape, units, format } in cases() {
        let [rows, channels] = shape;
        let count = rows * channels;
        let branches = [10, 11, 12].map(|seed| numbers(count, seed, 0.2, format));
        let gates = numbers(3 * rows, 13, 0.5, format);
        let gates: Vec<f64> = gates
            .iter()
            .enumerate()
            .map(|(at, gate)| if at % 5 == 2 { 0.0 } else { gate.abs() })
            .collect();
        let gradient = numbers(count, 14, 0.1, format);
        // Rows that see nothing are among them.
        let lses = [15, 16, 17].map(|seed| {
            let mut lse = numbers(rows, seed, 4.0, F32);
            lse[rows / 2] = f64::NEG_INFINITY;
            lse
        });
        let matrix = Matrix { units, ..Matrix::new(&client, shape, format.elem()) };
        let case = format!("{shape:?}, {units} units");

        let buffers = branches.each_ref().map(|branch| format.upload(&client, branch));
        let of_lses = lses.each_ref().map(|lse| F32.upload(&client, lse));
        let (of_gates, of_gradient) =
            (format.upload(&client, &gates), format.upload(&client, &gradient));
        let inputs = GateInputs { branches: buffers.each_ref(), gates: &of_gates };
        let statistics = F32.poisoned(&client, 6 * rows);
        let to_gates = format.poisoned(&client, 3 * rows);
        let to = GateStatistics { statistics: &statistics, gates: &to_gates };
        gated_sum_statistics(&matrix, &inputs, of_lses.each_ref(), &of_gradient, &to)
            .expect("launched");

        let dot = |row: usize, branch: usize| {
            let values = branches[branch][row * channels..(row + 1) * channels].iter();
            values.zip(&gradient[row * channels..]).map(|(x, g)| x * g).sum::<f64>()
        };
        let size = 3.0 * (channels as f64).sqrt();
        let exact: Vec<f64> = (0..3 * rows).map(|at| dot(at / 3, at % 3)).collect();
        let actual = format.download(&client, &to_gates, 3 * rows);
        assert_eq!(differs(&actual, &exact, allowed(format, size)), None, "gates, {case}");

        let actual = F32.download(&client, &statistics, 6 * rows);
        for branch in 0..3 {
            let of_branch = |kind: usize| &actual[(kind * 3 + branch) * rows..][..rows];
            let lse = |row: usize| {
                let gate = gates[row * 3 + branch];
                lses[branch][row]
                    - if gate == 0.0 { f64::from(f32::MIN_POSITIVE) } else { gate }.ln()
            };
            for (row, actual) in of_branch(0).iter().enumerate() {
                let exact = lse(row);
                let is_close =
                    *actual == exact || (actual - exact).abs() <= 1e-5 * exact.abs().max(1.0);
                assert!(is_close, "logsumexp {row} of {branch}, {case}: {actual}, {exact}");
            }
            let exact: Vec<f64> = (0..rows).map(|row| -dot(row, branch)).collect();
            assert_eq!(differs(of_branch(1), &exact, allowed(F32, size)), None, "{branch}, {case}");
        }
    }
}

#[test]
fn columns_are_summed() {
    let client = client();
    for Case { shape, units, format } in cases() {
        let [rows, channels] = shape;
        let input = numbers(rows * channels, 7, 0.1, format);
        let matrix = Matrix { units, ..Matrix::new(&client, shape, format.elem()) };
        let from = format.upload(&client, &input);
        let to = format.poisoned(&client, channels);
        column_sums(&matrix, &from, &to).expect("launched");
        let mut exact = vec![0.0; channels];
        for row in input.chunks(channels) {
            exact.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        let actual = format.download(&client, &to, channels);
        let difference = differs(&actual, &exact, allowed(format, 10.0 * (rows as f64).sqrt()));
        assert_eq!(difference, None, "{shape:?}, {units} units");
    }
}

/// Patches of maps, and the sums of what positions are in patches, which the one is the transpose of the other.
#[test]
fn patches_are_taken_and_given_back() {
    let client = client();
    let grids = [
        ([3, 3], [2, 2], [[1, 1], [1, 1]]),
        ([4, 2], [4, 2], [[0, 0], [0, 0]]),
        ([2, 3], [1, 3], [[0, 1], [2, 0]]),
    ];
    for (size, stride, padding) in grids {
        for (format, channels) in [(F32, 3), (F32, 8), (BF16, 8), (F16, 6)] {
            if !client.properties().supports_type(format.elem()) {
                continue;
            }
            let (batch, sides) = (2, [9, 6]);
            let grid = PatchGrid { size, stride, padding };
            let dtype = format.elem();
            let maps = Maps { client: &client, batch, sides, channels, dtype, grid };
            let [rows, columns] = grid.count(sides).expect("patches");
            // The position of each element of each patch.
            let mut from = vec![];
            for place in 0..batch * rows * columns {
                let (row, column) = (place / columns % rows, place % columns);
                for element in 0..size[0] * size[1] * channels {
                    let (tap, channel) = (element / channels, element % channels);
                    let y = (row * stride[0] + tap / size[1]).checked_sub(padding[0][0]);
                    let x = (column * stride[1] + tap % size[1]).checked_sub(padding[1][0]);
                    let is_inside = |at: Option<usize>, side| at.filter(|at| *at < side);
                    let inside = is_inside(y, sides[0]).zip(is_inside(x, sides[1]));
                    let of = place / columns / rows * sides[0];
                    from.push(inside.map(|(y, x)| ((of + y) * sides[1] + x) * channels + channel));
                }
            }
            let count = batch * sides[0] * sides[1] * channels;
            let values = numbers(count, 1, 0.5, format);
            let patches = format.poisoned(&client, from.len());
            maps.unfold(&format.upload(&client, &values), &patches).expect("launched");
            let exact: Vec<f64> = from.iter().map(|at| at.map_or(0.0, |at| values[at])).collect();
            assert_eq!(
                format.download(&client, &patches, from.len()),
                exact,
                "{grid:?}, {:?}",
                format.elem()
            );

            let values = numbers(from.len(), 2, 0.5, format);
            let sums = format.poisoned(&client, count);
            maps.fold(&format.upload(&client, &values), &sums).expect("launched");
            let mut exact = vec![0.0; count];
            for (at, value) in from.iter().zip(&values) {
                if let Some(at) = at {
                    exact[*at] += value;
                }
            }
            let actual = format.download(&client, &sums, count);
            assert_eq!(
                differs(&actual, &exact, allowed(format, 10.0)),
                None,
                "{grid:?}, {:?}",
                format.elem()
            );
        }
    }
}

/// Blocks side by side, that overlap, that leave tokens out, and no block at all.
#[test]
fn blocks_have_means_and_tokens_gradients() {
    let client = client();
    for (tokens, size, stride) in
        [(16, 4, 4), (23, 4, 2), (23, 5, 2), (20, 2, 3), (9, 1, 1), (3, 4, 2)]
    {
        for (format, channels) in [(F32, 3), (F32, 8), (BF16, 8), (F16, 6)] {
            if !client.properties().supports_type(format.elem()) {
                continue;
            }
            let (batch, dtype) = (2, format.elem());
            let grid = BlockGrid { size, stride };
            let of = TokenBlocks { client: &client, batch, tokens, channels, dtype, grid };
            let blocks = grid.count(tokens);
            assert_eq!(
                blocks,
                (0..tokens).step_by(stride).filter(|at| at + size <= tokens).count()
            );
            let case = format!("{size} of {tokens} tokens every {stride}, {channels} of {dtype:?}");
            let share = |token: usize, block: usize| {
                let is_inside = (block * stride..block * stride + size).contains(&token);
                if is_inside { 1.0 / size as f64 } else { 0.0 }
            };
            // Sums over one axis of `count` places, by the share that each has in one of `of`.
            let expected =
                |values: &[f64], [of, count]: [usize; 2], share: &dyn Fn(usize, usize) -> f64| {
                    let at = |place: usize| {
                        let (channel, row) = (place % channels, place / channels);
                        let (sample, row) = (row / of, row % of);
                        let value = |i: usize| values[(sample * count + i) * channels + channel];
                        (0..count).map(|i| share(row, i) * value(i)).sum::<f64>()
                    };
                    (0..batch * of * channels).map(at).collect::<Vec<_>>()
                };
            let [of_tokens, of_means] = [tokens, blocks].map(|rows| batch * rows * channels);

            let values = numbers(of_tokens, 1, 0.5, format);
            let exact = expected(&values, [blocks, tokens], &|block, token| share(token, block));
            let to = format.poisoned(&client, of_means.max(1));
            of.means(&format.upload(&client, &values), &to).expect("launched");
            let actual = format.download(&client, &to, of_means);
            assert_eq!(differs(&actual, &exact, allowed(format, 1.0)), None, "means, {case}");

            let values = numbers(of_means.max(1), 2, 0.1, format);
            let exact = expected(&values, [tokens, blocks], &share);
            let to = format.poisoned(&client, of_tokens);
            of.gradient(&format.upload(&client, &values), &to).expect("launched");
            let actual = format.download(&client, &to, of_tokens);
            assert_eq!(differs(&actual, &exact, allowed(format, 1.0)), None, "gradients, {case}");
        }
    }
}

#[test]
fn gelu_has_the_slope_of_its_values() {
    let client = client();
    let format = F32;
    // Slopes by differences, whose error is of the second order.
    let step = 1e-2;
    let input: Vec<f64> = (-60..=60).map(|i| f64::from(i) * 0.125).collect();
    let matrix = |count| Matrix::new(&client, [1, count], format.elem());
    let value = |values: &[f64]| {
        let to = format.poisoned(&client, values.len());
        gelu(&matrix(values.len()), &format.upload(&client, values), &to).expect("launched");
        format.download(&client, &to, values.len())
    };
    let moved = |by: f64| value(&input.iter().map(|x| x + by).collect::<Vec<_>>());
    let slopes = moved(step).into_iter().zip(moved(-step)).map(|(b, a)| (b - a) / (2.0 * step));
    let to = format.poisoned(&client, input.len());
    let (from, ones) =
        (format.upload(&client, &input), format.upload(&client, &vec![1.0; input.len()]));
    gelu_backward(&matrix(input.len()), &from, &ones, &to).expect("launched");
    let actual = format.download(&client, &to, input.len());
    assert_eq!(differs(&actual, &slopes.collect::<Vec<_>>(), |_, _| 2e-4), None);
    // `x P(x) - (-x) P(-x) = x`, and nothing is left far below.
    let values = value(&input);
    for (i, x) in input.iter().enumerate() {
        let sum = values[i] + values[input.len() - 1 - i];
        assert!((values[i] - values[input.len() - 1 - i] - x).abs() < 1e-5 && sum >= 0.0, "{x}");
    }
    assert!(values[0].abs() < 1e-6 && values[60] == 0.0);
}

#[test]
fn no_rows_have_sums_of_zero() {
    let client = client();
    let matrix = Matrix::new(&client, [0, 8], F32.elem());
    let (from, to) = (F32.poisoned(&client, 8), F32.poisoned(&client, 8));
    column_sums(&matrix, &from, &to).expect("launched");
    assert_eq!(F32.download(&client, &to, 8), [0.0; 8]);
}

#[test]
fn buffers_that_are_too_small_are_refused() {
    let client = client();
    let matrix = Matrix::new(&client, [4, 8], F32.elem());
    let (small, large) = (F32.poisoned(&client, 31), F32.poisoned(&client, 32));
    let error = layer_norm(&matrix, &small, &large, None, EPSILON, &large).expect_err("refused");
    assert_eq!(error.to_string(), "the buffer of input has 124 bytes, but the problem needs 128");
    let error = column_sums(&matrix, &large, &F32.poisoned(&client, 7)).expect_err("refused");
    assert_eq!(error.to_string(), "the buffer of sums has 28 bytes, but the problem needs 32");
}
