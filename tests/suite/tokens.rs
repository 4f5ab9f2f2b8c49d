//! Layers of tokens against their definitions, on every device: values and gradients, of views too.

use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::{DType, Distribution, Tensor, TensorData};
use burn_natten::nn::{LayerNorm, linear};

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
                for has_bias in [true, false] {
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
