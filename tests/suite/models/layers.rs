//! What the models promise besides what the originals compute.

use burn::config::Config;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, Distribution, Int, Tensor};
use burn_natten::models::dinat_s::DinatSConfig;
use burn_natten::models::hdit::{
    Hdit, HditAttentionConfig, HditConditions, HditConfig, HditLevelConfig, HditMappingConfig,
    positions,
};
use burn_natten::models::isotropic::IsotropicConfig;
use burn_natten::models::nat::NatConfig;
use burn_natten::models::{LoadOptions, Weights};
use rstest::rstest;

use super::golden;

fn images(shape: [usize; 4], device: &Device) -> Tensor<4> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

fn nat() -> NatConfig {
    NatConfig::new(8, vec![2, 2], vec![2, 2]).with_kernel_size(3).with_num_classes(5)
}

fn hdit() -> HditConfig {
    let near = HditAttentionConfig::Neighborhood { d_head: 8, kernel_size: 3 };
    HditConfig::new(
        vec![
            HditLevelConfig::new(1, 16, 16, near),
            HditLevelConfig::new(1, 16, 16, HditAttentionConfig::Global { d_head: 8 }),
        ],
        HditMappingConfig::new(1, 16, 16),
    )
    .with_patch_size([2, 2])
    .with_num_classes(3)
}

#[test]
fn images_of_any_size_are_classified() {
    let device = Device::flex();
    let model = nat().init(&device);
    let dinat_s = DinatSConfig::new(8, vec![1, 1], vec![2, 2]).with_num_classes(5).init(&device);
    let isotropic = IsotropicConfig::new(8, 2, 2).with_num_classes(5).init(&device);
    for [height, width] in [[1, 1], [5, 30], [33, 17], [40, 40]] {
        let images = images([2, 3, height, width], &device);
        let features = model.forward_features(images.clone());
        let sides = |factor: usize| [height.div_ceil(factor), width.div_ceil(factor)];
        let [rows, columns] = sides(4);
        assert_eq!(features.levels[0].dims(), [2, rows, columns, 8]);
        let [rows, columns] = sides(8);
        assert_eq!(features.levels[1].dims(), [2, rows, columns, 16]);
        assert_eq!(features.output.dims(), [2, rows, columns, 16]);
        for logits in [
            model.forward(images.clone()),
            dinat_s.forward(images.clone()),
            isotropic.forward(images),
        ] {
            assert_eq!(logits.dims(), [2, 5]);
            assert!(logits.is_finite().all().into_scalar::<bool>());
        }
    }
}

#[test]
fn views_are_images_too() {
    let device = Device::flex();
    let large = images([2, 3, 50, 70], &device);
    let view = large.narrow(2, 7, 32).narrow(3, 5, 40).swap_dims(2, 3);
    // Computed anew, and so contiguous.
    let contiguous = Tensor::from_data(view.to_data(), &device);
    let (nat, dinat_s) = (nat().init(&device), DinatSConfig::new(8, vec![1, 1], vec![2, 2]));
    let dinat_s = dinat_s.init(&device);
    let same = |a: Tensor<2>, b: Tensor<2>| a.all_close(b, None, Some(1e-6));
    assert!(same(nat.forward(view.clone()), nat.forward(contiguous.clone())));
    assert!(same(dinat_s.forward(view.clone()), dinat_s.forward(contiguous.clone())));

    let map = images([2, 16, 24, 12], &device).narrow(2, 3, 16).permute([0, 3, 1, 2]);
    let map = map.narrow(1, 0, 8);
    let copy = Tensor::from_data(map.to_data(), &device);
    let block = nat.levels[1].blocks[1].forward(map.clone());
    assert!(block.all_close(nat.levels[1].blocks[1].forward(copy), None, Some(1e-6)));
}

#[test]
fn without_classes_the_output_is_the_mean_of_the_features() {
    let device = Device::flex();
    let model = nat().with_num_classes(0).init(&device);
    let images = images([2, 3, 32, 32], &device);
    let mean = model.forward_features(images.clone()).output.mean_dims(&[1, 2]);
    assert!(model.forward(images).all_close(mean.reshape([2, 16]), None, Some(1e-6)));
}

#[test]
fn branches_are_dropped_while_training_alone_and_more_so_in_later_blocks() {
    let config = nat().with_drop_path_rate(0.9);
    let rates: Vec<_> = config
        .init(&Device::flex())
        .levels
        .iter()
        .flat_map(|level| level.blocks.iter().map(|block| block.drop_path.prob))
        .collect();
    let expected = [0.0, 0.3, 0.6, 0.9];
    assert!(rates.iter().zip(expected).all(|(got, want)| (got - want).abs() < 1e-12), "{rates:?}");

    let device = Device::flex().autodiff();
    let model = config.init(&device);
    let block = &model.levels[1].blocks[1];
    let changed = |device: &Device, block: &burn_natten::models::nat::NatBlock| {
        let input = Tensor::<4>::random([64, 3, 3, 16], Distribution::Default, device);
        let change = (block.forward(input.clone()) - input).abs().reshape([64, 144]).max_dim(1);
        let change: Vec<f32> = change.into_data().try_to_vec().expect("is f32");
        change.into_iter().filter(|&change| change > 0.0).count()
    };
    // Each of two branches stays in one sample of ten.
    let trained = changed(&device, block);
    assert!((1..40).contains(&trained), "{trained} of 64 samples changed");
    assert_eq!(changed(&Device::flex(), &block.valid()), 64);
}

#[test]
fn a_new_hdit_is_zero_and_its_blocks_are_the_identity() {
    let device = Device::flex();
    let model = hdit().init(&device);
    let input = images([2, 3, 16, 24], &device);
    let sigma = Tensor::<1>::from_floats([0.5, 2.0], &device);
    let class = Tensor::<1, Int>::from_data([0, 2], &device);
    let conditions = HditConditions::default().with_class(class);
    let output = model.forward(input.clone(), sigma.clone(), conditions.clone());
    assert_eq!(output.dims(), [2, 3, 16, 24]);
    assert_eq!(output.abs().max().into_scalar::<f32>(), 0.0);
    // Then what is left of the input is known.
    let denoised = model.denoise(input.clone(), sigma.clone(), conditions.clone());
    let kept = Tensor::<1>::from_floats([0.8, 0.2], &device).reshape([2, 1, 1, 1]);
    assert!(denoised.all_close(input * kept, None, Some(1e-6)));

    let map = images([2, 8, 12, 16], &device);
    let condition = model.condition(sigma, conditions);
    let same = model.down_levels[0][0].forward(map.clone(), positions(&map), condition);
    assert!(same.all_close(map, None, Some(1e-6)));
}

#[test]
fn configurations_survive_json() {
    let config = hdit().with_sigma_data(0.5);
    let json = config.to_string();
    let back = HditConfig::load_binary(json.as_bytes()).expect("is JSON");
    assert_eq!(back.to_string(), json);
    let config = NatConfig::dinat_large_384();
    let json = config.to_string();
    let back = NatConfig::load_binary(json.as_bytes()).expect("is JSON");
    assert_eq!((back.to_string(), back.dilations), (json, config.dilations));
}

#[rstest]
#[case(NatConfig::new(8, vec![], vec![]), "depths: has 0 levels, must have 1 to 16")]
#[case(NatConfig::new(8, vec![1, 1], vec![2]), "num_heads: has 1 levels, must have 2 as depths")]
#[case(NatConfig::new(9, vec![1], vec![3]), "embed_dim: is 9, must be a positive even number")]
#[case(
    NatConfig::new(8, vec![1], vec![3]),
    "embed_dim: gives 8 channels, must be a positive multiple of 3 (num_heads)"
)]
#[case(
    nat().with_dilations(Some(vec![vec![1, 1], vec![1]])),
    "dilations: level 1 has 1 blocks, must have 2 as depths"
)]
#[case(nat().with_kernel_size(1), "kernel_size: is 1, must be at least 2")]
#[case(nat().with_drop_path_rate(1.0), "drop_path_rate: is 1, must be at least 0 and below 1")]
#[case(
    nat().with_mlp_ratio(0.1),
    "mlp_ratio: is 0.1, must give 8 channels * mlp_ratio of at least 1"
)]
fn configurations_refuse(#[case] config: NatConfig, #[case] text: &str) {
    assert_eq!(panic_of(move || drop(config.init(&Device::flex()))), text);
}

#[test]
fn hdit_refuses() {
    let bad = |change: fn(&mut HditConfig)| {
        let mut config = hdit();
        change(&mut config);
        panic_of(move || drop(config.init(&Device::flex())))
    };
    assert_eq!(bad(|c| c.levels.clear()), "levels: has 0 levels, must have at least 1");
    assert_eq!(
        bad(|c| c.levels[1].attention = HditAttentionConfig::Global { d_head: 4 }),
        "levels[1].attention.d_head: is 4, must be a positive multiple of 8"
    );
    assert_eq!(
        bad(|c| c.levels[0].width = 12),
        "levels[0].width: is 12, must be a positive multiple of 8 (d_head)"
    );
    assert_eq!(bad(|c| c.sigma_data = 0.0), "sigma_data: is 0, must be positive and finite");

    let call = |shape: [usize; 4], conditions: fn(&Device) -> HditConditions| {
        panic_of(move || {
            let device = Device::flex();
            let sigma = Tensor::ones([shape[0]], &device);
            hdit().init(&device).forward(images(shape, &device), sigma, conditions(&device));
        })
    };
    let classes = |device: &Device| {
        HditConditions::default().with_class(Tensor::<1, Int>::zeros([1], device))
    };
    assert_eq!(
        call([1, 3, 16, 16], |_| HditConditions::default()),
        "class: is missing, must be given as the model has classes"
    );
    assert_eq!(
        call([1, 3, 16, 18], classes),
        "input: width of a level is 9, must be a positive multiple of 2"
    );
    assert_eq!(
        call([1, 3, 4, 16], classes),
        "kernel_size: axis 0 is 3, must be at most 2 (the length of the axis)"
    );
    let shapes = |shape: [usize; 4], batch: usize, conditions: fn(&Device) -> HditConditions| {
        panic_of(move || {
            let device = Device::flex();
            let model = hdit().with_mapping_cond_dim(5).init(&device);
            let sigma = Tensor::ones([batch], &device);
            model.forward(images(shape, &device), sigma, conditions(&device));
        })
    };
    fn given(classes: usize, mapping: [usize; 2], device: &Device) -> HditConditions {
        HditConditions::default()
            .with_class(Tensor::<1, Int>::zeros([classes], device))
            .with_mapping(Tensor::<2>::zeros(mapping, device))
    }
    let right = |device: &Device| given(2, [2, 5], device);
    assert_eq!(shapes([2, 4, 16, 16], 2, right), "input: has 4 channels, must have 3");
    assert_eq!(shapes([2, 3, 16, 16], 1, right), "sigma: has shape [1], must have [2]");
    assert_eq!(
        shapes([2, 3, 16, 16], 2, |device| given(3, [2, 5], device)),
        "class: has shape [3], must have [2]"
    );
    assert_eq!(
        shapes([2, 3, 16, 16], 2, |device| given(2, [2, 4], device)),
        "mapping: has shape [2, 4], must have [2, 5]"
    );
    assert_eq!(
        shapes([2, 3, 16, 16], 2, |device| {
            given(2, [2, 5], device).with_augmentation(Tensor::<2>::zeros([2, 8], device))
        }),
        "augmentation: has shape [2, 8], must have [2, 9]"
    );
}

#[rstest]
fn buffers_of_hdit_stay_wide_when_the_weights_are_half(
    #[values(DType::F16, DType::BF16)] dtype: DType,
) {
    let device = Device::flex();
    let golden = golden::carried("hdit_plain");
    let load = |model: Hdit| {
        let (model, _) = model
            .load_weights(golden.weights().remove(0), &LoadOptions::new())
            .expect("the weights fit");
        model
    };
    let exact = load(golden.hdit().init(&device));
    let half = load(golden.hdit().init(&device).map(&mut ToHalf(dtype)));
    assert_eq!(half.patch_in.proj.weight.val().dtype(), dtype);
    assert_eq!(half.time_emb.weight.val().dtype(), DType::F32);

    // The angles are those of the model in f32, to the last bit.
    let numbers = |model: &Hdit| -> [Vec<f32>; 2] {
        let noise = Tensor::<2>::from_floats([[-1.2], [0.7]], &device);
        let map = Tensor::<4>::zeros([1, 48, 64, 32], (&device, dtype));
        let rope = &model.mid_level[0].self_attn.pos_emb;
        let waves = model.time_emb.forward(noise).into_data();
        let theta = rope.theta(positions(&map)).into_data();
        [waves, theta].map(|data| data.try_to_vec().expect("is f32"))
    };
    assert_eq!(numbers(&half), numbers(&exact));

    // The image and sigma need not be half. How near the results are is not asked: the weights are
    // random, and f32 itself loses seven bits in this model.
    let sigma = Tensor::<1>::from_floats([0.7], &device);
    let input = images([1, 1, 48, 64], &device);
    let got = half.denoise(input, sigma, HditConditions::default());
    assert_eq!(got.dtype(), DType::F32);
    assert!(got.is_finite().all().into_scalar::<bool>());
}

/// Casts all but buffers.
struct ToHalf(DType);

impl ModuleMapper for ToHalf {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        // Buffers have a value from the start.
        if param.is_initialized() { param } else { param.map(|weights| weights.cast(self.0)) }
    }
}

#[test]
fn the_configurations_of_k_diffusion_can_be_made() {
    for (config, count) in [
        (HditConfig::oxford_flowers(), 896),
        (HditConfig::cifar10(), 768),
        (HditConfig::mnist(), 256),
    ] {
        let model = config.init(&Device::flex());
        let widths: usize = config.levels.iter().map(|level| level.width).sum();
        assert_eq!((widths, model.merges.len() + 1), (count, config.levels.len()));
    }
}

fn panic_of(call: impl FnOnce() + std::panic::UnwindSafe) -> String {
    let panic = std::panic::catch_unwind(call).expect_err("is refused");
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string())).expect("a text")
}
