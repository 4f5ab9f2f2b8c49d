//! Outputs, features and gradients are those of the originals.
//!
//! In f64 they differ by what rounding the golden values to f32 does. In f32 the original's own
//! distance to f64 is known for each gradient and for the output: ours sums in another order, so
//! that it may be a few times as far; a distance that is small by luck says nothing, so that
//! some roundings are allowed besides.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Gradients, Int, Tensor};
use burn_natten::Strategy;
use burn_natten::models::hdit::{Hdit, HditConditions, positions};
use burn_natten::models::nat::Nat;
use burn_natten::models::{LoadOptions, Weights};

use super::checkpoint::Temporary;
use super::golden::{self, Golden};
use crate::support::check::{close, errors, magnitude};
use crate::support::quick_devices;

/// Allowed in f64: the golden values are rounded to f32, half an ulp of which is 6e-8.
const F64: f64 = 2e-7;

/// Allowed in f32, as a multiple of the original's distance to f64.
const FACTOR: f64 = 4.0;

/// Allowed in f32 besides: eight roundings.
const FLOOR: f64 = 1e-6;

/// A way to compute: the type, and the tolerance for what the original in f32 misses by `error`.
#[derive(Clone, Copy)]
struct Way {
    dtype: DType,
}

impl Way {
    fn tolerance(self, error: f64) -> f64 {
        match self.dtype {
            DType::F64 => F64,
            _ => FACTOR * error + FLOOR,
        }
    }
}

const WAYS: [Way; 2] = [Way { dtype: DType::F32 }, Way { dtype: DType::F64 }];

#[test]
fn models_compute_what_the_originals_do() {
    for device in quick_devices() {
        let has_f64 = device.f64_strategies().contains(&Strategy::Auto);
        let is_there = |way: &Way| match way.dtype {
            DType::F64 => has_f64 && device.supports(DType::F64),
            dtype => device.supports(dtype),
        };
        let device = device.device.clone().autodiff();
        for golden in golden::all() {
            for way in WAYS.into_iter().filter(is_there) {
                if golden.is_hdit() {
                    check_hdit(&golden, way, &device);
                } else if golden.is_dinat_s() {
                    check_dinat_s(&golden, way, &device);
                } else {
                    check_nat(&golden, way, &device);
                }
            }
        }
    }
}

#[test]
fn all_formats_of_weights_are_the_same() {
    let device = Device::flex();
    let is_nat = |golden: &Golden| !golden.is_hdit() && !golden.is_dinat_s();
    let models: Vec<_> = golden::all().into_iter().filter(is_nat).collect();
    assert!(!models.is_empty(), "the repository has one");
    for golden in models {
        let images = golden.tensor::<4>(&golden.input, DType::F32, &device);
        let load = |file: &Path| golden.nat().init_from(file, &device).expect("the weights fit").0;
        // PyTorch's own file, the same weights as safetensors, and whatever else is there.
        let mut files = golden.weights();
        let saved = Temporary::new(&format!("{}.safetensors", golden.name));
        load(&files[0]).save_weights(&saved.0).expect("is writable");
        files.push(saved.0.clone());
        let outputs: Vec<_> =
            files.iter().map(|file| values(load(file).forward(images.clone()))).collect();
        assert!(outputs.windows(2).all(|pair| pair[0] == pair[1]), "{}", golden.name);
    }
}

/// In half types the error is a few times that of the same computation in f32 from rounded weights
/// and inputs: the layers of a model round again.
#[test]
fn models_compute_in_half_types() {
    for golden in golden::all() {
        let expected = golden.values(&golden.logits);
        for dtype in [DType::F16, DType::BF16] {
            let rounded = half_output(&golden, dtype, DType::F32);
            let (_, error) = errors(&rounded, &expected);
            let tolerance = HALF_FACTOR * error / magnitude(&expected);
            let what = format!("{} {dtype:?} output", golden.name);
            close(&what, &half_output(&golden, dtype, dtype), &expected, tolerance);
        }
    }
}

/// Allowed in half types, as a multiple of what rounding weights and inputs does.
const HALF_FACTOR: f64 = 4.0;

/// The output of a model, computed in a type from weights and inputs that are rounded to another.
fn half_output(golden: &Golden, rounded: DType, dtype: DType) -> Vec<f64> {
    let device = Device::flex().autodiff();
    let input = golden.tensor::<4>(&golden.input, rounded, &device).cast(dtype);
    let output = if golden.is_hdit() {
        let model = converted(golden, golden.hdit().init(&device), rounded, dtype);
        let sigma = golden.sigma.as_ref().expect("a diffusion model");
        let sigma = golden.tensor::<1>(sigma, rounded, &device).cast(dtype);
        let conditions = conditions(golden, Way { dtype }, &device);
        model.forward(input, sigma, conditions).reshape([1, -1])
    } else if golden.is_dinat_s() {
        converted(golden, golden.dinat_s().init(&device), rounded, dtype).forward(input)
    } else {
        converted(golden, golden.nat().init(&device), rounded, dtype).forward(input)
    };
    assert_eq!(output.dtype(), dtype);
    values(output)
}

fn converted<M: Weights>(golden: &Golden, model: M, rounded: DType, dtype: DType) -> M {
    loaded(golden, model, Way { dtype: rounded }).map(&mut Cast(dtype))
}

fn conditions(golden: &Golden, way: Way, device: &Device) -> HditConditions {
    let tensor = |slice: &_| golden.tensor::<2>(slice, way.dtype, device);
    let class = |class: &Vec<i64>| Tensor::<1, Int>::from_data(class.as_slice(), device);
    HditConditions::default()
        .with_augmentation(golden.aug_cond.as_ref().map(tensor))
        .with_mapping(golden.mapping_cond.as_ref().map(tensor))
        .with_class(golden.class_cond.as_ref().map(class))
}

fn check_nat(golden: &Golden, way: Way, device: &Device) {
    let model: Nat = loaded(golden, golden.nat().init(device), way);
    let images = golden.tensor::<4>(&golden.input, way.dtype, device);
    let checked = Checked { golden, way };

    let mut state = model.patch_embed.forward(images.clone());
    checked.feature("patch_embed", &state);
    let first = &model.levels[0].blocks[0];
    checked.feature("first_attention", &first.attn.forward(first.norm1.forward(state.clone())));
    let features = model.forward_features(images.clone());
    for (index, level) in model.levels.iter().enumerate() {
        state = level.forward_blocks(state);
        checked.feature(&format!("level_{index}_blocks"), &state);
        checked.feature(&format!("level_{index}_blocks"), &features.levels[index]);
        if let Some(downsample) = &level.downsample {
            state = downsample.forward(state);
        }
        checked.feature(&format!("level_{index}"), &state);
    }
    checked.feature("norm", &features.output);
    checked.output_and_gradients(&model, model.forward(images));
}

fn check_dinat_s(golden: &Golden, way: Way, device: &Device) {
    let model = loaded(golden, golden.dinat_s().init(device), way);
    let images = golden.tensor::<4>(&golden.input, way.dtype, device);
    let checked = Checked { golden, way };

    let mut state = model.patch_embed.forward(images.clone());
    checked.feature("patch_embed", &state);
    let first = &model.layers[0].blocks[0];
    checked.feature("first_attention", &first.attn.forward(first.norm1.forward(state.clone())));
    for (index, level) in model.layers.iter().enumerate() {
        state = level.forward_blocks(state);
        checked.feature(&format!("level_{index}_blocks"), &state);
        if let Some(downsample) = &level.downsample {
            state = downsample.forward(state);
        }
        checked.feature(&format!("level_{index}"), &state);
    }
    checked.feature("norm", &model.forward_features(images.clone()).output);
    checked.output_and_gradients(&model, model.forward(images));
}

fn check_hdit(golden: &Golden, way: Way, device: &Device) {
    let model: Hdit = loaded(golden, golden.hdit().init(device), way);
    let conditions = conditions(golden, way, device);
    let input = golden.tensor::<4>(&golden.input, way.dtype, device);
    let sigma =
        golden.tensor::<1>(golden.sigma.as_ref().expect("a diffusion model"), way.dtype, device);
    let checked = Checked { golden, way };

    let condition = model.condition(sigma.clone(), conditions.clone());
    check_features_of_hdit(&checked, &model, input.clone(), condition);
    let denoised = model.denoise(input.clone(), sigma.clone(), conditions.clone());
    checked.slice("denoised", golden.denoised.as_ref().expect("a diffusion model"), &denoised);
    checked.output_and_gradients(&model, model.forward(input, sigma, conditions));
}

fn check_features_of_hdit(
    checked: &Checked<'_>,
    model: &Hdit,
    input: Tensor<4>,
    condition: Tensor<2>,
) {
    checked.feature("cond", &condition);
    let run = |blocks: &[burn_natten::models::hdit::HditBlock], map: Tensor<4>| {
        let positions = positions(&map);
        blocks
            .iter()
            .fold(map, |map, block| block.forward(map, positions.clone(), condition.clone()))
    };
    let mut state = model.patch_in.forward(input.permute([0, 2, 3, 1]));
    checked.feature("patch_in", &state);
    let first = &model.down_levels[0][0].self_attn;
    checked.feature("first_norm", &first.norm.forward(state.clone(), condition.clone()));
    checked.feature("first_theta", &first.pos_emb.theta(positions(&state)));
    let attended = first.forward(state.clone(), positions(&state), condition.clone());
    checked.feature("first_self_attn", &attended);

    let mut skips = vec![];
    for (index, (level, merge)) in model.down_levels.iter().zip(&model.merges).enumerate() {
        state = run(level, state);
        checked.feature(&format!("down_level_{index}"), &state);
        skips.push(state.clone());
        state = merge.forward(state);
        checked.feature(&format!("merge_{index}"), &state);
    }
    checked.feature("mid_theta", &model.mid_level[0].self_attn.pos_emb.theta(positions(&state)));
    state = run(&model.mid_level, state);
    checked.feature("mid_level", &state);
    for (index, skip) in skips.into_iter().enumerate().rev() {
        state = model.splits[index].forward(state, Some(skip));
        checked.feature(&format!("split_{index}"), &state);
        state = run(&model.up_levels[index], state);
        checked.feature(&format!("up_level_{index}"), &state);
    }
    checked.feature("out_norm", &model.out_norm.forward(state));
}

/// A model beside what is known of it.
struct Checked<'a> {
    golden: &'a Golden,
    way: Way,
}

impl Checked<'_> {
    fn what(&self, name: &str) -> String {
        format!("{} {:?} {name}", self.golden.name, self.way.dtype)
    }

    fn slice<const D: usize>(&self, name: &str, slice: &golden::Slice, got: &Tensor<D>) {
        let error = slice.f32_error.unwrap_or(self.golden.errors.logits);
        let expected = self.golden.values(slice);
        close(&self.what(name), &values(got.clone()), &expected, self.way.tolerance(error));
    }

    /// A feature, if the golden file has it: those that the repository carries do not.
    fn feature<const D: usize>(&self, name: &str, got: &Tensor<D>) {
        if let Some(slice) = self.golden.features.get(name) {
            self.slice(name, slice, got);
        } else {
            assert!(self.golden.features.is_empty(), "{} has no {name}", self.golden.name);
        }
    }

    fn output_and_gradients<M: Module, const D: usize>(&self, model: &M, output: Tensor<D>) {
        let Golden { logits, loss_weights, .. } = self.golden;
        assert_eq!(output.dims()[..], logits.shape);
        self.slice("output", logits, &output);
        let weights = self.golden.tensor::<D>(loss_weights, self.way.dtype, &output.device());
        let gradients = (output * weights).sum().backward();
        let got = gradients_by_key(model, &gradients);
        for (key, slice) in &self.golden.gradients {
            let error = slice.f32_error.expect("is known of gradients");
            let name = self.what(&format!("gradient of {key}"));
            let got = got.get(key).unwrap_or_else(|| panic!("{name}: is missing"));
            close(&name, got, &self.golden.values(slice), self.way.tolerance(error));
        }
    }
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().convert::<f64>().try_to_vec().expect("f64")
}

fn loaded<M: Weights>(golden: &Golden, model: M, way: Way) -> M {
    let file = golden.weights().remove(0);
    let (model, report) = model.load_weights(file, &LoadOptions::new()).expect("the weights fit");
    assert!(report.missing.is_empty() && report.unused.is_empty());
    let model = model.map(&mut Cast(way.dtype));
    assert_eq!(trained(&model), golden.parameters, "{}", golden.name);
    model
}

/// Moves parameters to another type.
struct Cast(DType);

impl ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let is_trained = param.is_require_grad();
        let (id, tensor, mapper) = param.consume();
        let tensor = tensor.cast(self.0).detach().set_require_grad(is_trained);
        Param::from_mapped_value(id, tensor, mapper)
    }
}

/// Numbers that are trained.
fn trained<M: Module>(model: &M) -> usize {
    struct Count(usize);
    impl ModuleVisitor for Count {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_require_grad() {
                self.0 += param.lazy_shape().num_elements();
            }
        }
    }
    let mut count = Count(0);
    model.visit(&mut count);
    count.0
}

/// The gradients of all parameters in PyTorch's order of axes.
fn gradients_by_key<M: Module>(model: &M, gradients: &Gradients) -> BTreeMap<String, Vec<f64>> {
    struct Collect<'a> {
        gradients: &'a Gradients,
        path: Vec<String>,
        modules: Vec<String>,
        found: BTreeMap<String, Vec<f64>>,
    }
    impl ModuleVisitor for Collect<'_> {
        fn enter_module(&mut self, name: &str, module: &str) {
            self.path.push(name.to_owned());
            self.modules.push(module.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
            self.modules.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let Some(mut gradient) = param.val().grad(self.gradients) else { return };
            if D == 2 && self.modules.last().is_some_and(|module| module == "Struct:Linear") {
                gradient = gradient.swap_dims(0, 1);
            }
            let key = self.path.join(".").replace(".gamma", ".weight").replace(".beta", ".bias");
            let key = key.replace(".weight1", ".gamma1").replace(".weight2", ".gamma2");
            self.found.insert(key, values(gradient));
        }
    }
    let (path, modules, found) = Default::default();
    let mut collect = Collect { gradients, path, modules, found };
    model.visit(&mut collect);
    collect.found
}
