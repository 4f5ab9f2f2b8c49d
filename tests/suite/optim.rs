//! AdamW against its definition: parameters of every type, views, and states that are written and read.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{
    AdamWConfig as BurnConfig, GradientsParams, Optimizer, RecordState, StateSink, StateSource,
};
use burn::store::ModuleRecord;
use burn::tensor::{DType, Device, Tensor};
use burn_natten::nn::NeighborhoodTransformerBlockConfig;
use burn_natten::optim::{AdamW, AdamWConfig, AdamWState};
use half::{bf16, f16};

use crate::support::devices;

const RATE: f64 = 0.02;

fn config() -> AdamWConfig {
    AdamWConfig::new().with_epsilon(1e-7).with_weight_decay(0.3)
}

fn host(tensor: &Tensor<2>) -> Vec<f64> {
    tensor.to_data().convert::<f64>().try_into_vec::<f64>().expect("f64")
}

/// Gradients of both signs and of all sizes, some of them 0.
fn gradient(step: usize, count: usize) -> Vec<f32> {
    let size = |i: usize| if i.is_multiple_of(7) { 0.0 } else { 10.0f32.powi(i as i32 % 9 - 5) };
    (0..count).map(|i| size(i) * ((i * 5 + step * 3) % 11) as f32 - size(i) * 4.0).collect()
}

fn rounded(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F16 => f16::from_f64(value).to_f64(),
        DType::BF16 => bf16::from_f64(value).to_f64(),
        DType::F32 => f64::from(value as f32),
        _ => value,
    }
}

/// The weights after so many steps, and the state.
struct Exact {
    weights: Vec<f64>,
    first: Vec<f64>,
    second: Vec<f64>,
    steps: i32,
}

impl Exact {
    fn step(&mut self, gradient: &[f64]) {
        self.steps += 1;
        let (a, b) = (1.0 - 0.9f64.powi(self.steps), 1.0 - 0.999f64.powi(self.steps));
        for (i, g) in gradient.iter().enumerate() {
            self.first[i] = 0.9 * self.first[i] + 0.1 * g;
            self.second[i] = 0.999 * self.second[i] + 0.001 * g * g;
            let step = self.first[i] / a / ((self.second[i] / b).sqrt() + 1e-7);
            self.weights[i] = self.weights[i] * (1.0 - RATE * 0.3) - RATE * step;
        }
    }
}

fn steps_of(device: &Device, dtype: DType) -> (Tensor<2>, AdamWState<2>, Exact) {
    const SHAPE: [usize; 2] = [9, 14];
    let count = SHAPE[0] * SHAPE[1];
    let start: Vec<f32> = (0..count).map(|i| (i as f32 * 0.37).sin()).collect();
    let on = |values: &[f32]| {
        // Height and width exchanged in memory.
        let [rows, columns] = SHAPE;
        let tensor = Tensor::<1>::from_data(values, device).cast(dtype);
        tensor.reshape([columns, rows]).swap_dims(0, 1)
    };
    let mut parameter = on(&start);
    let exact = host(&parameter);
    let zeros = || vec![0.0; count];
    let mut exact = Exact { weights: exact, first: zeros(), second: zeros(), steps: 0 };
    let optimizer: AdamW = config().build();
    let mut state = None;
    for step in 0..12 {
        let gradient = on(&gradient(step, count));
        exact.step(&host(&gradient));
        (parameter, state) = optimizer.step(RATE, parameter, gradient, state);
        assert_eq!(parameter.dtype(), dtype);
    }
    (parameter, state.expect("a state"), exact)
}

#[test]
fn steps_are_what_they_are_defined_as() {
    for device in devices() {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            if !device.supports(dtype) {
                continue;
            }
            let (parameter, state, exact) = steps_of(&device.device, dtype);
            let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
            assert_eq!([state.moment_1.dtype(), state.moment_2.dtype()], [wide; 2]);
            let is_half = matches!(dtype, DType::F16 | DType::BF16);
            assert_eq!(state.weight.as_ref().map(Tensor::dtype), is_half.then_some(wide));
            let tolerance = if dtype == DType::F64 { 1e-12 } else { 2e-6 };
            let weights = state.weight.as_ref().map_or_else(|| host(&parameter), host);
            for (got, want) in weights.iter().zip(&exact.weights) {
                let what = format!("{}, {dtype:?}: {got}, not {want}", device.name);
                assert!((got - want).abs() < tolerance * want.abs().max(1.0), "{what}");
            }
            // What a model computes with is what is kept, rounded once.
            for (got, weight) in host(&parameter).iter().zip(&weights) {
                assert_eq!(*got, rounded(dtype, *weight), "{}, {dtype:?}", device.name);
            }
        }
    }
}

/// A step changes tensors in place, but none that anyone else has, nor a part of a larger one.
#[test]
fn tensors_of_others_stay_as_they_are() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            if !device.supports(dtype) {
                continue;
            }
            let values = |step| {
                let values = Tensor::<1>::from_data(gradient(step, 24).as_slice(), &device.device);
                values.cast(dtype).reshape([4, 6])
            };
            let (whole, gradient) = (values(1), values(2));
            let optimizer = config().build();
            let step = |parameter, state| {
                let (next, state) =
                    optimizer.step(RATE, parameter, gradient.clone().narrow(0, 1, 2), state);
                (next, state.expect("a state"))
            };
            let (next, state) = step(whole.clone().narrow(0, 1, 2), None);
            assert_eq!(host(&whole), host(&values(1)), "{}, {dtype:?}", device.name);
            let all = |next: &Tensor<2>, state: &AdamWState<2>| {
                let weight = state.weight.as_ref().map(host);
                (host(next), host(&state.moment_1), host(&state.moment_2), weight, state.steps)
            };
            let before = all(&next, &state);
            let (after, later) = step(next.clone(), Some(state.clone()));
            assert_eq!(all(&next, &state), before, "{}, {dtype:?}", device.name);
            assert_eq!(host(&gradient), host(&values(2)), "{}, {dtype:?}", device.name);
            // In place, the same.
            let shared = all(&after, &later);
            drop((after, later));
            let (after, later) = step(next, Some(state));
            assert_eq!(all(&after, &later), shared, "{}, {dtype:?}", device.name);
        }
    }
}

/// Steps that a bf16 parameter would lose add up.
#[test]
fn small_steps_are_not_lost() {
    for device in devices().into_iter().filter(|device| device.supports(DType::BF16)) {
        let options = (&device.device, DType::BF16);
        let (mut parameter, mut state) = (Tensor::<1>::ones([4], options), None);
        let optimizer = AdamWConfig::new().with_weight_decay(0.0).with_epsilon(1e-8).build();
        for _ in 0..64 {
            let gradient = Tensor::ones([4], options);
            (parameter, state) = optimizer.step(1e-4, parameter, gradient, state);
        }
        let got: f32 = parameter.sum().into_scalar();
        // 64 steps of 1e-4 from 1, as bf16 has it.
        assert_eq!(got, 4.0 * bf16::from_f32(1.0 - 64e-4).to_f32(), "{}", device.name);
    }
}

/// A parameter that something else has changed is taken as it is.
#[test]
fn a_changed_parameter_counts() {
    for device in devices().into_iter().filter(|device| device.supports(DType::BF16)) {
        let options = (&device.device, DType::BF16);
        let optimizer = AdamWConfig::new().with_weight_decay(0.0).with_epsilon(1e-8).build();
        let gradient = || Tensor::<1>::ones([6], options);
        let (parameter, state) = optimizer.step(1e-3, Tensor::ones([6], options), gradient(), None);
        let halves = parameter.clone().narrow(0, 3, 3) * 0.5;
        let changed = Tensor::cat(vec![parameter.narrow(0, 0, 3), halves], 0);
        let (_, state) = optimizer.step(1e-3, changed, gradient(), state);
        let weight = state.and_then(|state| state.weight).expect("is kept");
        let got = weight.to_data().try_into_vec::<f32>().expect("f32");
        for (i, got) in got.iter().enumerate() {
            let want = if i < 3 { 0.998 } else { 0.499 - 1e-5 };
            let near = if i < 3 { 1e-6 } else { 2e-3 };
            assert!((got - want).abs() < near, "{}: {got}, not {want}", device.name);
        }
    }
}

fn trained(mut layer: Linear, mut step: impl FnMut(Linear, GradientsParams) -> Linear) -> Linear {
    let device = layer.weight.device();
    for number in 0..6 {
        let input = Tensor::<2>::from_data([[1.0, -0.5, 0.25]], &device) * (number + 1) as f32;
        let gradients = layer.forward(input).powi_scalar(2).sum().backward();
        let gradients = GradientsParams::from_grads(gradients, &layer);
        layer = step(layer, gradients);
    }
    layer
}

/// In f32, Burn's own takes the same steps.
#[test]
fn modules_train_as_with_burns_own() {
    for device in devices() {
        let device = device.device.autodiff();
        let layer = LinearConfig::new(3, 2).init(&device);
        let mut ours = config().init();
        let burns = BurnConfig::new().with_epsilon(1e-7).with_weight_decay(0.3);
        let mut theirs = burns.init();
        let got = trained(layer.clone(), |layer, gradients| ours.step(RATE, layer, gradients));
        let want = trained(layer, |layer, gradients| theirs.step(RATE, layer, gradients));
        let weights = |layer: &Linear| host(&layer.weight.val().inner());
        for (got, want) in weights(&got).iter().zip(weights(&want)) {
            assert!((got - want).abs() < 1e-5, "{got}, not {want}");
        }
    }
}

/// The losses of a few steps of a block in f32, from the weights of a record.
fn losses(record: ModuleRecord, device: &Device) -> Vec<f32> {
    let device = &device.clone().autodiff();
    let mut block = block().init(device).load_record(record);
    let mut optimizer = AdamWConfig::new().init();
    let numbers = |step: usize| {
        let angles = (0..3 * 5 * 4 * 8).map(|i| (i as f32 + 1.0) * (0.7 + 0.1 * step as f32));
        let values: Vec<f32> = angles.map(f32::sin).collect();
        Tensor::<1>::from_data(values.as_slice(), (device, DType::F32)).reshape([3, 5, 4, 8])
    };
    let step = |step: usize| {
        let input = numbers(step % 3);
        // What a token is to become is what stands opposite.
        let wanted = input.clone().flip([1, 2]);
        let loss = (block.forward(input) - wanted).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &block);
        block = optimizer.step(1e-2, block.clone(), gradients);
        loss.into_scalar::<f32>()
    };
    (0..9).map(step).collect()
}

fn block() -> NeighborhoodTransformerBlockConfig {
    NeighborhoodTransformerBlockConfig::new(8, 2, [3, 3]).with_rel_pos_bias(true)
}

/// From the same weights and through the same batches, losses are those of Flex. Not on CubeCL's CPU runtime, which takes minutes to compile
/// what Burn's own operators are made of.
#[test]
fn trainings_agree_on_all_devices() {
    let record = block().init(&Device::flex()).into_record();
    let want = losses(record.clone(), &Device::flex());
    assert!(want[8] < 0.8 * want[0], "nothing is learned: {want:?}");
    for device in devices().into_iter().filter(|device| device.name != "cubecl-cpu") {
        // Burn's products may be in TF32 there.
        let most = if device.name.contains("cuda") { 2e-2 } else { 1e-3 };
        let got = losses(record.clone(), &device.device);
        for (step, (got, want)) in got.iter().zip(&want).enumerate() {
            let apart = (got - want).abs() / want;
            assert!(apart < most, "{}, step {step}: {got}, not {want}", device.name);
        }
    }
}

/// A state that was written and read goes on as if it had not been, in the types that it had.
#[test]
fn states_are_kept() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            if !device.supports(dtype) {
                continue;
            }
            let (parameter, state, _) = steps_of(&device.device, dtype);
            let mut sink = StateSink::default();
            state.state_flatten("weight", &mut sink);
            let mut source = StateSource::new(sink.scalars.into_iter().collect());
            for (name, data) in sink.tensors {
                source.insert_tensor(name, data);
            }
            let read = AdamWState::<2>::state_unflatten("weight", &mut source, &device.device);
            let on = |state: AdamWState<2>| {
                let gradient = parameter.clone() * 0.5 + 0.25;
                let (next, state) =
                    config().build().step(RATE, parameter.clone(), gradient, Some(state));
                let state = state.expect("a state");
                let weight = state.weight.as_ref().map(host);
                (host(&next), host(&state.moment_1), host(&state.moment_2), weight, state.steps)
            };
            assert_eq!(on(read.expect("all of it")), on(state), "{}, {dtype:?}", device.name);
            if !device.supports(DType::BF16) {
                continue;
            }
            // One that was kept in the parameter's own type goes on, too, from what is left of it.
            let mut narrow = steps_of(&device.device, dtype).1;
            (narrow.moment_1, narrow.moment_2) =
                (narrow.moment_1.cast(DType::BF16), narrow.moment_2.cast(DType::BF16));
            let (_, moment_1, moment_2, ..) = on(narrow);
            let (_, want_1, want_2, ..) = on(steps_of(&device.device, dtype).1);
            let pairs = moment_1.iter().chain(&moment_2).zip(want_1.iter().chain(&want_2));
            for (got, want) in pairs {
                assert!((got - want).abs() <= 0.01 * want.abs(), "{got}, not {want}");
            }
            let nothing = AdamWState::<2>::state_unflatten("bias", &mut source, &device.device);
            assert!(nothing.is_none());
        }
    }
}
