//! Layers of tokens against their definitions, on every device: values and gradients, of views too.

use burn::module::Param;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, PaddingConfig2d};
use burn::tensor::{DType, Device, Distribution, Tensor, TensorData};
use burn_natten::nn::{LayerNorm, conv2d, gelu, linear};

use crate::support::{TestDevice, devices};

/// Values on the host.
fn host<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    tensor.to_data().convert::<f64>().try_into_vec::<f64>().expect("f64")
}

/// The greatest difference over the greatest value.
fn difference(actual: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let most = expected.iter().fold(1e-3, |most: f64, x| most.max(x.abs()));
    let apart = |(a, b): (&f64, &f64)| if a.is_nan() { f64::INFINITY } else { (a - b).abs() };
    actual.iter().zip(expected).map(apart).fold(0.0, f64::max) / most
}

fn error<const D: usize>(actual: &Tensor<D>, expected: &Tensor<D>) -> f64 {
    assert_eq!(actual.dims(), expected.dims());
    difference(&host(actual), &host(expected))
}

/// Random numbers that every device gets alike.
fn random<const D: usize>(shape: [usize; D], seed: u64) -> TensorData {
    let device = burn::tensor::Device::flex();
    let count: usize = shape.iter().product();
    let angles = Tensor::<1>::from_data(
        (0..count)
            .map(|i| (i as f32 + 1.0) * (1.7 + seed as f32 * 0.37))
            .collect::<Vec<_>>()
            .as_slice(),
        &device,
    );
    (angles.clone().sin() + (angles * 0.31).cos() * 0.5).reshape(shape).to_data()
}

/// The same numbers in f64 on Flex, where Burn's own layers are the definition.
fn exact<const D: usize>(tensor: &Tensor<D>) -> Tensor<D> {
    let device = burn::tensor::Device::flex().autodiff();
    Tensor::from_data(tensor.to_data().convert::<f64>(), (&device, DType::F64))
}

/// A tensor, and the same as a view: every second of twice as many rows, or with its first two axes exchanged in memory.
fn views(device: &TestDevice, dtype: DType) -> Vec<Tensor<3>> {
    let shape = [5, 37, 24];
    let options = (&device.device.clone().autodiff(), dtype);
    let straight = Tensor::<3>::from_data(random(shape, 1), options);
    let wide = Tensor::<3>::from_data(random([5, 74, 30], 2), options);
    let swapped = Tensor::<3>::from_data(random([37, 5, 24], 3), options);
    vec![straight, wide.narrow(1, 20, 37).narrow(2, 3, 24), swapped.swap_dims(0, 1)]
}

/// Numbers like a tensor, with its first two axes exchanged in memory, and of few digits, so that every type has the same.
fn cotangent(like: &Tensor<3>) -> Tensor<3> {
    let [a, b, c] = like.dims();
    let numbers = Tensor::<3>::from_data(random([b, a, c], 4), (&like.device(), like.dtype()));
    ((numbers * 64.0).round() / 64.0).swap_dims(0, 1)
}

/// What a step of training asks for: the output, and the gradients of input and parameters, of a loss that weighs outputs through a view.
fn step<const P: usize>(
    input: &Tensor<3>,
    parameters: [Option<Tensor<1>>; 2],
    weight: Option<&Tensor<P>>,
    forward: impl Fn(Tensor<3>) -> Tensor<3>,
) -> (Tensor<3>, Tensor<3>, Vec<Tensor<1>>, Option<Tensor<P>>) {
    let input = input.clone().detach().require_grad();
    let output = forward(input.clone());
    let cotangent = cotangent(&output);
    let gradients = (output.clone() * cotangent).sum().backward();
    let of = parameters
        .into_iter()
        .flatten()
        .map(|parameter| parameter.grad(&gradients).expect("a gradient"));
    let of_weight = weight.map(|weight| weight.grad(&gradients).expect("a gradient"));
    (output.inner(), input.grad(&gradients).expect("a gradient"), of.collect(), of_weight)
}

fn tolerances(device: &TestDevice) -> Vec<(DType, f64)> {
    let all = [(DType::F32, 2e-5), (DType::F16, 4e-3), (DType::BF16, 3e-2)];
    all.into_iter().filter(|(dtype, _)| device.supports(*dtype)).collect()
}

/// Output and gradients by their definition: of the input, `gamma` and `beta`.
fn by_definition(input: &[f64], gamma: &[f64], beta: &[f64], cotangent: &[f64]) -> [Vec<f64>; 4] {
    let channels = gamma.len();
    let count = channels as f64;
    let (mut output, mut of_input) = (vec![], vec![]);
    let (mut of_gamma, mut of_beta) = (vec![0.0; channels], vec![0.0; channels]);
    for (row, dy) in input.chunks(channels).zip(cotangent.chunks(channels)) {
        let mean = row.iter().sum::<f64>() / count;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        let deviation = (variance + 1e-5).sqrt();
        let normal: Vec<f64> = row.iter().map(|x| (x - mean) / deviation).collect();
        output.extend((0..channels).map(|i| normal[i] * gamma[i] + beta[i]));
        let scaled: Vec<f64> = (0..channels).map(|i| dy[i] * gamma[i]).collect();
        let mean = scaled.iter().sum::<f64>() / count;
        let along = (0..channels).map(|i| scaled[i] * normal[i]).sum::<f64>() / count;
        of_input.extend((0..channels).map(|i| (scaled[i] - mean - normal[i] * along) / deviation));
        for i in 0..channels {
            of_gamma[i] += dy[i] * normal[i];
            of_beta[i] += dy[i];
        }
    }
    [output, of_input, of_gamma, of_beta]
}

#[test]
fn normalization_is_what_it_is_defined_as() {
    for device in devices() {
        for (dtype, tolerance) in tolerances(&device) {
            let options = (&device.device.clone().autodiff(), dtype);
            for (number, input) in views(&device, dtype).iter().enumerate() {
                for has_beta in [true, false] {
                    let parameter = |seed| Tensor::<1>::from_data(random([24], seed), options);
                    let mut norm = LayerNorm::new(24, options.0);
                    norm.gamma = Param::from_tensor(parameter(5));
                    norm.beta = has_beta.then(|| Param::from_tensor(parameter(6)));
                    let (gamma, beta) = (norm.gamma.val(), norm.beta.as_ref().map(Param::val));
                    let known = beta.as_ref().map_or(vec![0.0; 24], host);
                    let cotangent = host(&cotangent(input));
                    let want = by_definition(&host(input), &host(&gamma), &known, &cotangent);
                    let parameters = [Some(gamma), beta];
                    let got = step::<1>(input, parameters, None, |x| norm.forward(x));
                    let case =
                        format!("{}, {dtype:?}, view {number}, beta {has_beta}", device.name);
                    let check = |name: &str, got: Vec<f64>, want: &Vec<f64>| {
                        let error = difference(&got, want);
                        assert!(error < tolerance, "{name}: {error}, {case}");
                    };
                    check("output", host(&got.0), &want[0]);
                    check("input", host(&got.1), &want[1]);
                    for (got, want) in got.2.iter().zip(&want[2..]) {
                        check("parameters", host(got), want);
                    }
                }
            }
        }
    }
}

#[test]
fn linear_layers_are_burns() {
    for device in devices() {
        for (dtype, tolerance) in tolerances(&device) {
            let options = (&device.device.clone().autodiff(), dtype);
            // Enough rows for several groups of products. Burn's own take minutes on CubeCL's CPU.
            let many = Tensor::<3>::from_data(random([4, 512, 24], 7), options);
            let inputs = match (device.name, dtype) {
                ("cubecl-cpu", DType::F32) => views(&device, dtype).into_iter().take(2).collect(),
                ("cubecl-cpu", _) => continue,
                _ => [views(&device, dtype), vec![many]].concat(),
            };
            for (number, input) in inputs.into_iter().enumerate() {
                let weight = Tensor::<2>::from_data(random([24, 40], 8), options);
                let bias = Tensor::<1>::from_data(random([40], 9), options);
                // There each view has one case.
                let cases = match device.name {
                    "cubecl-cpu" => vec![number == 0],
                    _ => vec![true, false],
                };
                for has_bias in cases {
                    let layer = |weight: Tensor<2>, bias: Tensor<1>| Linear {
                        weight: Param::from_tensor(weight),
                        bias: has_bias.then(|| Param::from_tensor(bias)),
                    };
                    let ours = layer(weight.clone(), bias.clone());
                    let theirs = layer(exact(&weight), exact(&bias));
                    let parameters = |layer: &Linear| [None, layer.bias.as_ref().map(Param::val)];
                    let of = ours.weight.val();
                    let got = step(&input, parameters(&ours), Some(&of), |x| linear(&ours, x));
                    let burns = layer(weight.clone(), bias.clone());
                    let of = burns.weight.val();
                    let burns = step(&input, parameters(&burns), Some(&of), |x| burns.forward(x));
                    let of = theirs.weight.val();
                    let want =
                        step(&exact(&input), parameters(&theirs), Some(&of), |x| theirs.forward(x));
                    let case =
                        format!("{}, {dtype:?}, view {number}, bias {has_bias}", device.name);
                    // Burn's own products round as the device does.
                    let check = |name: &str, ours: f64, burns: f64| {
                        assert!(
                            ours < tolerance + 2.0 * burns,
                            "{name}: {ours}, Burn {burns}, {case}"
                        );
                    };
                    check("output", error(&got.0, &want.0), error(&burns.0, &want.0));
                    check("input", error(&got.1, &want.1), error(&burns.1, &want.1));
                    for ((got, burns), want) in got.2.iter().zip(&burns.2).zip(&want.2) {
                        check("bias", error(got, want), error(burns, want));
                    }
                    let [got, burns, want] = [got, burns, want].map(|of| of.3.expect("a weight"));
                    check("weight", error(&got, &want), error(&burns, &want));
                }
            }
        }
    }
}

/// The error function by its series, or one where nothing is left of the rest.
fn erf(x: f64) -> f64 {
    if x.abs() > 5.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..120 {
        let n = f64::from(n);
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn gelu_and_its_gradient_are_what_they_are_defined_as() {
    for device in devices() {
        for (dtype, tolerance) in tolerances(&device) {
            for (number, input) in views(&device, dtype).iter().enumerate() {
                // From -9 to 9: what is far below passes nothing, and no infinity.
                let input = input.clone() * 6.0;
                let numbers = host(&input);
                let dy = host(&cotangent(&input));
                let below = |x: f64| 0.5 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2));
                let density = |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
                let output: Vec<f64> = numbers.iter().map(|&x| x * below(x)).collect();
                let slopes = numbers.iter().map(|&x| below(x) + x * density(x));
                let of_input: Vec<f64> = slopes.zip(&dy).map(|(slope, dy)| slope * dy).collect();
                let got = step::<1>(&input, [None, None], None, gelu);
                let case = format!("{}, {dtype:?}, view {number}", device.name);
                for (name, got, want) in [("output", got.0, output), ("input", got.1, of_input)] {
                    let error = difference(&host(&got), &want);
                    assert!(error < tolerance, "{name}: {error}, {case}");
                }
            }
        }
    }
}

/// A convolution by its definition: output, and gradients of map, weight and bias.
fn convolved(
    layer: &Conv2d,
    [map, weight, bias, cotangent]: [&[f64]; 4],
    [batch, height, width, channels]: [usize; 4],
    padding: [[usize; 2]; 2],
) -> [Vec<f64>; 4] {
    let ([size_y, size_x], [stride_y, stride_x]) = (layer.kernel_size, layer.stride);
    let outputs = layer.weight.val().dims()[0];
    let count = |side: usize, axis: usize| {
        let padded = side + padding[axis][0] + padding[axis][1];
        (padded - layer.kernel_size[axis]) / layer.stride[axis] + 1
    };
    let (rows, columns) = (count(height, 0), count(width, 1));
    let mut output = vec![0.0; batch * rows * columns * outputs];
    let mut of = [vec![0.0; map.len()], vec![0.0; weight.len()], vec![0.0; outputs]];
    for place in 0..batch * rows * columns {
        let (b, row, column) = (place / columns / rows, place / columns % rows, place % columns);
        for o in 0..outputs {
            let at = place * outputs + o;
            output[at] = bias[o];
            of[2][o] += cotangent[at];
            for i in 0..size_y * size_x {
                let y = (row * stride_y + i / size_x).wrapping_sub(padding[0][0]);
                let x = (column * stride_x + i % size_x).wrapping_sub(padding[1][0]);
                if y >= height || x >= width {
                    continue;
                }
                for c in 0..channels {
                    let from = ((b * height + y) * width + x) * channels + c;
                    let by = (o * channels + c) * size_y * size_x + i;
                    output[at] += map[from] * weight[by];
                    of[0][from] += cotangent[at] * weight[by];
                    of[1][by] += cotangent[at] * map[from];
                }
            }
        }
    }
    let [of_map, of_weight, of_bias] = of;
    [output, of_map, of_weight, of_bias]
}

#[test]
fn convolutions_are_what_they_are_defined_as() {
    // Sides and strides, zeros in front and behind: NAT's, a patch embedding, one that differs by axis with more zeros behind.
    let kinds = [
        ([3, 3], [2, 2], [[1, 1], [1, 1]]),
        ([4, 4], [4, 4], [[0, 0], [0, 0]]),
        ([2, 3], [1, 2], [[0, 1], [2, 0]]),
    ];
    for device in devices() {
        for (dtype, tolerance) in tolerances(&device) {
            // Burn's products take minutes on CubeCL's CPU.
            if device.name == "cubecl-cpu" && dtype != DType::F32 {
                continue;
            }
            let options = (&device.device.clone().autodiff(), dtype);
            // There, one of them: the kernels are held to all of them by tests of their own.
            let skipped = if device.name == "cubecl-cpu" { 2 } else { 0 };
            for (number, (size, stride, padding)) in kinds.into_iter().enumerate().skip(skipped) {
                let [[top, bottom], [left, right]] = padding;
                let mut layer = Conv2dConfig::new([6, 5], size)
                    .with_stride(stride)
                    .with_padding(PaddingConfig2d::Explicit(top, left, bottom, right))
                    .init(options.0);
                let weight = Tensor::<4>::from_data(random([5, 6, size[0], size[1]], 2), options);
                let bias = Tensor::<1>::from_data(random([5], 3), options);
                layer.weight = Param::from_tensor(weight);
                layer.bias = Some(Param::from_tensor(bias));
                // Cropped in front and behind, height and width exchanged in memory.
                let map = Tensor::<4>::from_data(random([2, 12, 8, 6], 4), options);
                let map = map.narrow(1, 1, 9).swap_dims(1, 2).detach().require_grad();
                let cotangent = |like: &Tensor<4>| {
                    let [batch, height, width, channels] = like.dims();
                    let numbers = random([batch, width, height, channels], 5);
                    let numbers = Tensor::<4>::from_data(numbers, options);
                    ((numbers * 64.0).round() / 64.0).swap_dims(1, 2)
                };
                let (weight, bias) = (layer.weight.val(), layer.bias.as_ref().expect("one").val());
                let of = |output: Tensor<4>| {
                    let gradients = (output.clone() * cotangent(&output)).sum().backward();
                    let expect = "a gradient";
                    [
                        host(&output),
                        host(&map.grad(&gradients).expect(expect)),
                        host(&weight.grad(&gradients).expect(expect)),
                        host(&bias.grad(&gradients).expect(expect)),
                    ]
                };
                let output = conv2d(&layer, map.clone());
                let inputs = [host(&map), host(&weight), host(&bias), host(&cotangent(&output))];
                let inputs = inputs.each_ref().map(Vec::as_slice);
                let want = convolved(&layer, inputs, map.dims(), padding);
                let got = of(output);
                // Burn's own sums of half types round as they go.
                let burns = (dtype != DType::F32).then(|| {
                    let first = map.clone().permute([0, 3, 1, 2]);
                    of(layer.forward(first).permute([0, 2, 3, 1]))
                });
                for (i, name) in ["output", "map", "weight", "bias"].into_iter().enumerate() {
                    let error = difference(&got[i], &want[i]);
                    let burns = burns.as_ref().map_or(0.0, |of| difference(&of[i], &want[i]));
                    let case = format!("{}, {dtype:?}, {number}", device.name);
                    assert!(
                        error < tolerance + 2.0 * burns,
                        "{name}: {error}, Burn {burns}, {case}"
                    );
                }
            }
        }
    }
}

/// Those that are Burn's own: groups, dilation, and padding that depends on the map.
#[test]
fn other_convolutions_are_burns() {
    for device in devices().into_iter().filter(|device| device.name != "cubecl-cpu") {
        let map = Tensor::<4>::from_data(random([1, 7, 8, 4], 1), &device.device);
        let config = Conv2dConfig::new([4, 6], [3, 3]);
        for config in [
            config.clone().with_groups(2),
            config.clone().with_dilation([2, 2]),
            config.with_padding(PaddingConfig2d::Same),
        ] {
            let layer = config.init(&device.device);
            let want = layer.forward(map.clone().permute([0, 3, 1, 2])).permute([0, 2, 3, 1]);
            let got = conv2d(&layer, map.clone());
            assert!(error(&got, &want) < 1e-5, "{}, {config}", device.name);
        }
    }
}

#[test]
#[should_panic(expected = "map: is 2 x 9, with its padding must be at least 3 x 3 (weight)")]
fn maps_have_to_hold_a_patch() {
    let device = burn::tensor::Device::flex();
    let layer = Conv2dConfig::new([4, 6], [3, 3]).init(&device);
    conv2d(&layer, Tensor::zeros([1, 2, 9, 4], &device));
}

/// Rows that have products in groups: sums of whole numbers, which nothing rounds.
#[test]
fn products_of_groups_are_added_up() {
    for device in devices() {
        let options = &device.device.clone().autodiff();
        let numbers = |shape: [usize; 2], step: i64| {
            let count = (shape[0] * shape[1]) as i64;
            let numbers: Vec<f32> = (0..count).map(|i| (i * step % 7 - 3) as f32).collect();
            Tensor::<1>::from_data(numbers.as_slice(), options).reshape(shape)
        };
        // Three groups of 512 rows, and a row beside them.
        const ROWS: usize = 1537;
        let (input, cotangent) = (numbers([ROWS, 4], 5), numbers([ROWS, 3], 11));
        let layer = Linear { weight: Param::from_tensor(numbers([4, 3], 1)), bias: None };
        let output = linear(&layer, input.clone());
        let gradients = (output * cotangent.clone()).sum().backward();
        let got = host(&layer.weight.val().grad(&gradients).expect("a gradient"));
        let (input, cotangent) = (host(&input), host(&cotangent));
        let of = |i: usize, j: usize| {
            let products = (0..ROWS).map(|row| input[4 * row + i] * cotangent[3 * row + j]);
            products.sum::<f64>()
        };
        let want: Vec<f64> = (0..12).map(|place| of(place / 3, place % 3)).collect();
        assert_eq!(got, want, "{}", device.name);
    }
}

/// Parameters of which no gradient is wanted have none, and those that are wanted are as before.
#[test]
fn only_wanted_gradients_are_computed() {
    for device in devices() {
        let options = &device.device.clone().autodiff();
        let input = Tensor::<2>::random([30, 24], Distribution::Default, options).require_grad();
        let mut norm = LayerNorm::new(24, options);
        norm.gamma = norm.gamma.set_require_grad(false);
        let gradients = norm.forward(input.clone()).powi_scalar(2).sum().backward();
        assert!(norm.gamma.val().grad(&gradients).is_none(), "{}", device.name);
        let beta = norm.beta.as_ref().expect("a beta").val();
        assert!(beta.grad(&gradients).is_some() && input.grad(&gradients).is_some());

        // Weight, bias and input of a linear layer, each alone and each left out.
        for wanted in [
            [true, false, false],
            [false, true, false],
            [false, false, true],
            [true, true, false],
            [false, true, true],
            [true, false, true],
        ] {
            let of = |options: &Device, forward: fn(&Linear, Tensor<2>) -> Tensor<2>| {
                let layer = Linear {
                    weight: Param::from_tensor(Tensor::from_data(random([24, 4], 1), options))
                        .set_require_grad(wanted[0]),
                    bias: Some(
                        Param::from_tensor(Tensor::from_data(random([4], 2), options))
                            .set_require_grad(wanted[1]),
                    ),
                };
                let input = Tensor::<2>::from_data(random([30, 24], 3), options)
                    .set_require_grad(wanted[2]);
                let gradients = forward(&layer, input.clone()).powi_scalar(2).sum().backward();
                let (weight, bias) = (layer.weight.val(), layer.bias.as_ref().expect("one").val());
                let got = [
                    weight.grad(&gradients).map(|g| host(&g)),
                    bias.grad(&gradients).map(|g| host(&g)),
                    input.grad(&gradients).map(|g| host(&g)),
                ];
                assert_eq!(got.each_ref().map(Option::is_some), wanted, "{}", device.name);
                got.into_iter().flatten().flatten().collect::<Vec<_>>()
            };
            // Burn's own products are rounded to TF32 on CUDA.
            let exact = Device::flex().autodiff();
            let (got, want) = (of(options, linear), of(&exact, |layer, x| layer.forward(x)));
            assert!(difference(&got, &want) < 1e-5, "{}, {wanted:?}", device.name);
        }
    }
}

/// As Burn's layers: normalization in f32 beside half tokens, and a linear layer of a single token.
#[test]
fn types_may_be_mixed_and_tokens_single() {
    for device in devices().into_iter().filter(|device| device.supports(DType::F16)) {
        let options = &device.device.clone().autodiff();
        let half = Tensor::<2>::from_data(random([3, 24], 1), (options, DType::F16));
        let norm = LayerNorm::new(24, options);
        let same = Tensor::<2>::from_data(half.to_data().convert::<f32>(), (options, DType::F32));
        let (got, want) = (norm.forward(half), norm.forward(same));
        assert_eq!(got.dtype(), DType::F16);
        assert!(difference(&host(&got), &host(&want)) < 1e-3, "{}", device.name);
        let layer = burn::nn::LinearConfig::new(24, 5).init(options);
        // A half input beside weights in f32, for which nothing is rounded but the output.
        let half = Tensor::<2>::from_data(random([3, 24], 1), (options, DType::F16)).require_grad();
        let same = Tensor::<2>::from_data(half.to_data().convert::<f32>(), (options, DType::F32));
        let (got, want) = (linear(&layer, half.clone()), linear(&layer, same));
        assert_eq!(got.dtype(), DType::F16);
        assert!(difference(&host(&got), &host(&want)) < 1e-3, "{}", device.name);
        let gradients = got.sum().backward();
        assert_eq!(half.grad(&gradients).expect("a gradient").dtype(), DType::F16);
        assert!(layer.weight.val().grad(&gradients).is_some());
        let token = Tensor::<1>::from_data(random([24], 2), options);
        let (got, want) = (linear(&layer, token.clone()), layer.forward(token));
        assert!(difference(&host(&got), &host(&want)) < 1e-5, "{}", device.name);
    }
}

#[test]
#[should_panic(expected = "input: has 23 channels, must have 24 (channels)")]
fn channels_have_to_fit() {
    let device = burn::tensor::Device::flex();
    LayerNorm::new(24, &device).forward(Tensor::<2>::zeros([3, 23], &device));
}

#[test]
fn f64_is_computed_in_f64() {
    let device = burn::tensor::Device::flex();
    let options = (&device, DType::F64);
    let input = Tensor::<2>::from_data(random([7, 24], 1), options);
    let mut norm = LayerNorm::new(24, &device);
    norm.gamma = Param::from_tensor(Tensor::ones([24], options));
    norm.beta = None;
    let rows = host(&input);
    let [want, ..] = by_definition(&rows, &[1.0; 24], &[0.0; 24], &rows);
    for (got, want) in host(&norm.forward(input)).iter().zip(want) {
        assert!((got - want).abs() < 1e-12, "{got}, not {want}");
    }
}

/// Parts of rows are gradients side by side, whichever of them are asked for.
#[test]
fn gradients_of_parts_are_side_by_side() {
    use burn_natten::nn::NeighborhoodAttention1dConfig;

    for device in devices() {
        let device = &device.device.clone().autodiff();
        let layer = NeighborhoodAttention1dConfig::new(8, 2, [3]).init(device);
        let input = Tensor::<3>::from_data(random([2, 7, 8], 1), device).require_grad();
        let weigh = |seed: u64| {
            // Of a gradient that is a view.
            Tensor::<4>::from_data(random([2, 2, 7, 4], seed), device).swap_dims(1, 2)
        };
        let qkv = |input: Tensor<3>| linear(&layer.qkv, input);
        for asked in [[true, true, true], [false, true, false], [true, false, true]] {
            let parts = layer.query_key_value(input.clone());
            let sums = parts.into_iter().zip(asked).enumerate().filter(|(_, (_, asked))| *asked);
            let loss = sums.map(|(i, (part, _))| (part * weigh(i as u64 + 2)).sum());
            let gradients = loss.reduce(|a, b| a + b).expect("one").backward();
            let got = input.grad(&gradients).expect("a gradient");
            let whole = qkv(input.clone());
            let weights = (0..3).map(|i| {
                let weight = weigh(i as u64 + 2).reshape([2, 7, 8]);
                if asked[i] { weight } else { weight.zeros_like() }
            });
            let gradients = (whole * Tensor::cat(weights.collect(), 2)).sum().backward();
            let want = input.grad(&gradients).expect("a gradient");
            assert!(error(&got, &want) < 1e-5, "{asked:?}");
        }
    }
}
