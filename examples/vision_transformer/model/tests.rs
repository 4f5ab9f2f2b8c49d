use burn::data::dataloader::batcher::Batcher;
use burn::module::Param;
use burn::tensor::{Distribution, Gradients};
use burn_natten::packed::pack;

use super::*;
use crate::alone::alone;
use crate::data;
use crate::loader::PictureBatcher;

fn random(sizes: &[[usize; 2]], channels: usize, device: &Device) -> Vec<Tensor<3>> {
    let image = |[height, width]: [usize; 2]| {
        Tensor::random([height, width, channels], Distribution::Normal(0.0, 1.0), device)
    };
    sizes.iter().copied().map(image).collect()
}

fn packed(images: &[Tensor<3>]) -> Tokens {
    let (values, grids) = pack::<2, 3>(images.to_vec()).expect("is at least one");
    Tokens::new(values, grids)
}

fn gradient<const D: usize>(weight: &Param<Tensor<D>>, gradients: &Gradients) -> Tensor<1> {
    weight.val().grad(gradients).expect("the weight is used").reshape([-1])
}

#[test]
fn every_size_of_picture_gives_logits() {
    let _alone = alone();
    let device = Device::flex();
    for (channels, side, first) in [(1, 8, 8), (3, 24, 24), (3, 25, 13), (1, 70, 18)] {
        assert_eq!(VisionTransformerConfig::first_side(side), first);
        let model = VisionTransformerConfig::new(channels, side, 5, 7, 1)
            .with_dims([16, 32])
            .with_depths([1, 2])
            .init(&device);
        let images = packed(&random(&[[side, side], [side, side]], channels, &device));
        assert_eq!(model.tokens(images.clone()).sizes(), [[first, first]; 2]);
        assert_eq!(model.forward(images).dims(), [2, 5]);
    }
}

/// Alone it is a batch of one, with attention that knows nothing of packing.
#[test]
fn a_picture_among_others_is_what_it_is_alone() {
    let _alone = alone();
    let device = Device::flex().autodiff();
    device.seed(5);
    for (side, sizes) in [
        (8, vec![[8, 8], [8, 12], [11, 9], [11, 9], [12, 12]]),
        // Halved once; some are smaller than windows.
        (32, vec![[32, 24], [9, 32], [32, 1], [2, 3], [32, 24]]),
    ] {
        let model = VisionTransformerConfig::new(2, side, 5, 3, 2)
            .with_dims([16, 32])
            .with_drop_path(0.0)
            .init(&device);
        let images = random(&sizes, 2, &device);
        let factors =
            Tensor::<2>::random([sizes.len(), 5], Distribution::Normal(0.0, 1.0), &device);
        let gradients = |logits: Tensor<2>| {
            let gradients = (logits * factors.clone()).sum().backward();
            [
                gradient(&model.stem[0].weight, &gradients),
                gradient(&model.positions.table, &gradients),
                gradient(&model.first[1].attention.qkv.weight, &gradients),
                gradient(&model.second[1].expand.weight, &gradients),
            ]
        };
        let together = model.forward(packed(&images));
        let alone = images.iter().map(|image| model.forward(packed(std::slice::from_ref(image))));
        let alone = Tensor::cat(alone.collect(), 0);
        let difference: f32 = (together.clone() - alone.clone()).abs().max().into_scalar();
        assert!(difference < 1e-5, "logits differ by {difference} at {side}");
        for (got, expected) in gradients(together).into_iter().zip(gradients(alone)) {
            let largest: f32 = expected.clone().abs().max().into_scalar();
            let difference: f32 = (got - expected).abs().max().into_scalar();
            assert!(largest > 1e-2 && difference < 1e-4 * largest, "{difference} of {largest}");
        }
    }
}

/// What several devices do, on one: the mean of the members' gradients is the gradient of the batch.
#[test]
fn shares_of_different_size_have_the_gradient_of_their_batch() {
    let _alone = alone();
    let device = Device::flex().autodiff();
    let pictures = data::digits(&data::default_digits()).expect("is beside the sources");
    let config = VisionTransformerConfig::new(1, 8, 10, 3, 2).with_dims([16, 16]);
    let model = config.with_drop_path(0.0).init(&device);
    let step = |model: VisionTransformer, batch: Batch| {
        let gradients = TrainStep::step(&model, batch).grads;
        gradients.get::<4>(model.halve.weight.id).expect("is trained")
    };
    let batcher = PictureBatcher::new(&pictures);
    let expected = step(model.clone(), batcher.batch(pictures.train[..7].to_vec(), &device));
    let batcher = batcher.with_members(2);
    let [one, other] = std::thread::scope(|scope| {
        let start = |some: &[data::Picture]| {
            let (model, batch) = (model.clone(), batcher.batch(some.to_vec(), &device));
            // As on a device of its own, with a tape of its own.
            let model = model.fork(&device);
            scope.spawn(move || step(model, batch))
        };
        let threads = [start(&pictures.train[..2]), start(&pictures.train[2..7])];
        threads.map(|thread| thread.join().expect("has met the other"))
    });
    let mean = (one + other) / 2.0;
    assert!(mean.all_close(expected, Some(1e-4), Some(1e-6)));
}
