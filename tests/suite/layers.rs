//! The layers: shapes, gradients, files, and what their configurations refuse.

use burn::config::Config;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Distribution, Gradients, Tensor};
use burn_natten::nn::{
    NeighborhoodAttention1dConfig, NeighborhoodAttention2dConfig, NeighborhoodAttention3dConfig,
    NeighborhoodTransformerBlock, NeighborhoodTransformerBlockConfig,
};
use burn_natten::packed::{pack, unpack};
use burn_natten::{NeighborhoodOptions, Spaces, na2d};
use rstest::rstest;

fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

fn close<const D: usize>(a: &Tensor<D>, b: &Tensor<D>) -> bool {
    a.clone().all_close(b.clone(), Some(1e-5), Some(1e-5))
}

fn block_config() -> NeighborhoodTransformerBlockConfig {
    NeighborhoodTransformerBlockConfig::new(8, 2, [3, 2]).with_stride([2, 1]).with_dilation([1, 2])
}

#[test]
fn layers_keep_the_shape_of_their_input() {
    let device = Device::flex();
    let input = random([2, 9, 8], &device);
    let layer = NeighborhoodAttention1dConfig::new(8, 2, [4]).with_is_causal([true]).init(&device);
    assert_eq!(layer.forward(input).dims(), [2, 9, 8]);

    let input = random([2, 5, 6, 8], &device);
    let layer = NeighborhoodAttention2dConfig::new(8, 4, [5, 3]).with_dilation([1, 2]);
    assert_eq!(layer.init(&device).forward(input).dims(), [2, 5, 6, 8]);

    let input = random([1, 3, 4, 5, 8], &device);
    let layer = NeighborhoodAttention3dConfig::new(8, 1, [2, 3, 4]).with_stride([2, 1, 3]);
    assert_eq!(layer.init(&device).forward(input).dims(), [1, 3, 4, 5, 8]);
}

#[test]
fn forward_is_the_operator_between_its_projections() {
    let device = Device::flex();
    let config = NeighborhoodAttention2dConfig::new(8, 2, [3, 3])
        .with_stride([2, 1])
        .with_dilation([1, 2])
        .with_is_causal([false, true])
        .with_qk_scale(Some(0.3));
    let layer = config.init(&device);
    let input = random([2, 6, 7, 8], &device);

    let qkv = layer.qkv.forward(input.clone()).reshape([2, 6, 7, 3, 2, 4]);
    let part = |i: usize| qkv.clone().slice_dim(3, i..i + 1).squeeze_dim::<5>(3);
    let options = NeighborhoodOptions::<2>::new(3)
        .with_stride([2, 1])
        .with_dilation([1, 2])
        .with_causal([false, true])
        .with_scale(0.3);
    let attended = na2d(part(0), part(1), part(2), options).reshape([2, 6, 7, 8]);
    assert!(close(&layer.proj.forward(attended), &layer.forward(input)));
}

#[test]
fn channels_are_independent_of_positions_outside_the_window() {
    let device = Device::flex();
    let layer = NeighborhoodAttention1dConfig::new(4, 2, [3]).init(&device);
    let input = random([1, 12, 4], &device);
    let changed = Tensor::cat(vec![input.clone().narrow(1, 0, 8), random([1, 4, 4], &device)], 1);
    let (before, after) = (layer.forward(input), layer.forward(changed));
    // Query 6 is the last whose window, 5..8, ends before the change.
    assert!(close(&before.clone().narrow(1, 0, 7), &after.clone().narrow(1, 0, 7)));
    assert!(!close(&before.narrow(1, 7, 1), &after.narrow(1, 7, 1)));
}

/// Counts parameters, and those that a gradient other than zero has reached.
struct Reached<'a> {
    gradients: &'a Gradients,
    parameters: usize,
    reached: usize,
}

impl ModuleVisitor for Reached<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.parameters += 1;
        if let Some(gradient) = param.val().grad(self.gradients) {
            let largest: f32 = gradient.abs().max().into_scalar();
            self.reached += usize::from(largest > 0.0);
        }
    }
}

#[test]
fn gradients_reach_every_parameter_of_a_block() {
    let device = Device::flex().autodiff();
    let block = block_config().init(&device);
    let output = block.forward(random([2, 6, 6, 8], &device));
    // Random weights, since the mean of squares of something normalized would be flat.
    let weights = random(output.dims(), &device);
    let gradients = (output * weights).sum().backward();
    let mut visitor = Reached { gradients: &gradients, parameters: 0, reached: 0 };
    block.visit(&mut visitor);
    // Weights and biases of two norms and of four linear layers.
    assert_eq!((visitor.parameters, visitor.reached), (12, 12));
}

#[test]
fn a_layer_may_learn_a_position_bias() {
    let device = Device::flex().autodiff();
    let layer = NeighborhoodAttention3dConfig::new(8, 2, [2, 3, 4]).with_rel_pos_bias(true);
    let rpb = layer.init(&device).rpb.expect("asked for");
    assert_eq!(rpb.val().dims(), [2, 3, 5, 7]);
    let config = NeighborhoodAttention1dConfig::new(128, 64, [65]);
    assert!(config.init(&device).rpb.is_none());
    let rpb = config.with_rel_pos_bias(true).init(&device).rpb.expect("asked for").val();
    assert_eq!(rpb.dims(), [64, 129]);
    let (mean, deviation): (f32, f32) =
        (rpb.clone().mean().into_scalar(), rpb.powi_scalar(2).mean().sqrt().into_scalar());
    assert!(mean.abs() < 1e-3 && (deviation - 0.02).abs() < 1e-3, "{mean} {deviation}");

    let layer = NeighborhoodAttention2dConfig::new(8, 2, [3, 2]).with_rel_pos_bias(true);
    let layer = layer.init(&device);
    let input = random([2, 6, 7, 8], &device);
    let [query, key, value] = layer.query_key_value(input.clone());
    let bias = layer.rpb.as_ref().expect("asked for").val();
    let options = NeighborhoodOptions::<2>::new([3, 2]);
    let plain = na2d(query.clone(), key.clone(), value.clone(), options.clone());
    let attended = na2d(query, key, value, options.with_bias(bias));
    let project = |attended: Tensor<5>| layer.proj.forward(attended.reshape([2, 6, 7, 8]));
    let output = layer.forward(input);
    assert!(close(&project(attended), &output));
    assert!(!close(&project(plain), &output));
}

#[test]
fn a_position_bias_is_trained_saved_and_loaded() {
    let device = Device::flex().autodiff();
    let config = block_config().with_rel_pos_bias(true);
    let block = config.init(&device);
    let output = block.forward(random([2, 6, 6, 8], &device));
    let weights = random(output.dims(), &device);
    let gradients = (output * weights).sum().backward();
    let mut visitor = Reached { gradients: &gradients, parameters: 0, reached: 0 };
    block.visit(&mut visitor);
    // The bias besides the others.
    assert_eq!((visitor.parameters, visitor.reached), (13, 13));

    let input = random([2, 6, 6, 8], &device);
    let expected = block.forward(input.clone());
    let path = std::env::temp_dir().join(format!("burn-natten-bias-{}", std::process::id()));
    let path = path.with_extension("bpk");
    block.save_file(&path).expect("the temporary folder is writable");
    let loaded = config.init(&device).try_load_file(&path).expect("was just written");
    let output = loaded.forward(input);
    let _ = std::fs::remove_file(&path);
    assert_eq!(output.into_data(), expected.into_data());
}

#[test]
fn a_saved_block_gives_equal_outputs_after_loading() {
    let device = Device::flex();
    let block = block_config().init(&device);
    let input = random([2, 6, 6, 8], &device);
    let expected = block.forward(input.clone());

    let path = std::env::temp_dir().join(format!("burn-natten-block-{}", std::process::id()));
    let path = path.with_extension("bpk");
    block.save_file(&path).expect("the temporary folder is writable");
    let loaded = block_config().init(&device).try_load_file(&path).expect("was just written");
    // The parameters are read from the file when they are first used.
    let output = loaded.forward(input);
    let _ = std::fs::remove_file(&path);
    assert_eq!(output.into_data(), expected.into_data());
}

#[test]
fn configurations_survive_json() {
    let config =
        block_config().with_qk_scale(Some(0.25)).with_drop_path(0.1).with_rel_pos_bias(true);
    let json = config.to_string();
    let back = NeighborhoodTransformerBlockConfig::load_binary(json.as_bytes()).expect("is JSON");
    assert_eq!(back.to_string(), json);
    assert_eq!((back.stride, back.qk_scale, back.drop_path), ([2, 1], Some(0.25), 0.1));
    assert!(back.rel_pos_bias && !block_config().rel_pos_bias);
}

fn outputs_of_ones(block: &NeighborhoodTransformerBlock, device: &Device) -> Vec<bool> {
    let input = Tensor::<4>::ones([64, 3, 4, 8], device);
    let changed = (block.forward(input.clone()) - input).abs().reshape([64, 96]).max_dim(1);
    let changed: Vec<f32> = changed.into_data().try_to_vec().expect("is f32");
    changed.into_iter().map(|largest| largest > 0.0).collect()
}

#[test]
fn drop_path_skips_whole_samples_only_while_training() {
    let device = Device::flex().autodiff();
    // Nearly every branch is dropped, so most samples pass through unchanged.
    let block =
        NeighborhoodTransformerBlockConfig::new(8, 2, [3, 2]).with_drop_path(0.9).init(&device);
    let changed = outputs_of_ones(&block, &device).into_iter().filter(|changed| *changed).count();
    assert!(changed < 40, "{changed} of 64 samples changed");
    let changed = outputs_of_ones(&block.valid(), &Device::flex());
    assert!(changed.into_iter().all(|changed| changed));
}

#[rstest]
#[case(config(8, 3), "embed_dim: is 8, must be a positive multiple of num_heads, 3")]
#[case(config(0, 2), "embed_dim: is 0, must be a positive multiple of num_heads, 2")]
#[case(config(8, 0), "num_heads: is 0, must be at least 1")]
#[case(config(8, 2).with_stride([1, 4]), "stride: axis 1 is 4, must be at most 3 (kernel_size)")]
#[case(config(8, 2).with_stride([0, 1]), "stride: axis 0 is 0, must be at least 1")]
#[case(config(8, 2).with_dilation([0, 1]), "dilation: axis 0 is 0, must be at least 1")]
#[case(config(8, 2).with_proj_drop(1.0), "proj_drop: is 1, must be at least 0 and below 1")]
#[case(config(8, 2).with_qk_scale(Some(f64::NAN)), "qk_scale: is NaN, must be finite")]
#[case(
    NeighborhoodAttention2dConfig::new(8, 2, [3, 1]),
    "kernel_size: axis 1 is 1, must be at least 2"
)]
fn configurations_refuse(#[case] config: NeighborhoodAttention2dConfig, #[case] text: &str) {
    let device = Device::flex();
    let panic = std::panic::catch_unwind(|| config.init(&device)).expect_err("is out of range");
    let message = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
    assert_eq!(message.as_deref(), Some(text));
}

fn config(embed_dim: usize, num_heads: usize) -> NeighborhoodAttention2dConfig {
    NeighborhoodAttention2dConfig::new(embed_dim, num_heads, [3, 3])
}

#[test]
fn packed_images_are_as_if_each_were_alone() {
    let device = Device::flex();
    let config = NeighborhoodAttention2dConfig::new(8, 2, [3, 2]).with_dilation([1, 2]);
    let layer = config.with_rel_pos_bias(true).init(&device);
    let sizes = [[5, 7], [3, 4], [3, 4]];
    let images = sizes.map(|[height, width]| random([height, width, 8], &device));
    let (tokens, spaces) = pack::<2, 3>(images.to_vec()).expect("of one kind");
    let attended = unpack::<2, 3>(layer.forward_packed(tokens, &spaces), &spaces).expect("fits");
    for (image, attended) in images.into_iter().zip(attended) {
        assert!(close(&layer.forward(image.unsqueeze()).squeeze_dim(0), &attended));
    }
}

#[test]
fn blocks_of_packed_images_are_as_if_each_were_alone() {
    let device = Device::flex();
    let block = block_config().with_rel_pos_bias(true).init(&device);
    let images =
        [[5, 7], [3, 4], [9, 6]].map(|[height, width]| random([height, width, 8], &device));
    let (tokens, spaces) = pack::<2, 3>(images.to_vec()).expect("of one kind");
    let output = unpack::<2, 3>(block.forward_packed(tokens, &spaces), &spaces).expect("fits");
    for (image, output) in images.into_iter().zip(output) {
        assert!(close(&block.forward(image.unsqueeze()).squeeze_dim(0), &output));
    }
}

#[test]
fn drop_path_skips_whole_packed_images() {
    let device = Device::flex().autodiff();
    let block =
        NeighborhoodTransformerBlockConfig::new(8, 2, [3, 2]).with_drop_path(0.9).init(&device);
    // So many that some are skipped twice, whatever is drawn.
    let spaces = Spaces::new(vec![[3, 4]; 200]);
    let tokens = random([1, spaces.tokens(), 8], &device);
    let output = block.forward_packed(tokens.clone(), &spaces);
    let changed = (output - tokens).abs().reshape([200, 12 * 8]).greater_elem(0.0);
    let any = changed.clone().int().max_dim(1);
    let skipped = 200 - any.sum().into_scalar::<i64>();
    assert!((100..200).contains(&skipped), "{skipped} of 200 are skipped");
    // Not one of an image's tokens is skipped alone.
    let tokens = changed.reshape([200, 12, 8]).int().max_dim(2).reshape([200, 12]);
    assert!(tokens.clone().max_dim(1).equal(tokens.min_dim(1)).all().into_scalar::<bool>());
}

#[test]
fn gradients_of_unpacked_images_are_those_of_their_tokens() {
    let device = Device::flex().autodiff();
    let spaces = Spaces::new([[2, 3], [0, 5], [1, 1], [4, 2], [3, 3]]);
    let tokens = random::<3>([1, spaces.tokens(), 4], &device).require_grad();
    let images = unpack::<2, 3>(tokens.clone(), &spaces).expect("fits");
    let weights: Vec<_> = images.iter().map(|image| random::<3>(image.dims(), &device)).collect();
    // The third one is not used.
    let used = images.into_iter().zip(&weights).enumerate().filter(|(number, _)| *number != 3);
    let losses = used.map(|(_, (image, weights))| (image * weights.clone()).sum());
    let loss: Tensor<1> = losses.reduce(|a, b| a + b).expect("there are several");
    let gradient = tokens.grad(&loss.backward()).expect("is tracked");
    let expected = weights.into_iter().enumerate().filter(|(number, _)| *number != 1);
    let expected: Vec<_> = expected
        .map(|(number, weights)| if number == 3 { weights.zeros_like() } else { weights })
        .map(|weights| weights.clone().reshape([-1, 4]))
        .collect();
    let expected: Tensor<2> = Tensor::cat(expected, 0);
    assert!(gradient.squeeze_dim::<2>(0).equal(expected.inner()).all().into_scalar::<bool>());
}
