//! The loss of each step of a short training, to be compared with that on another device or in another type.

use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use burn::module::{Module, ModuleMapper, Param};
use burn::optim::GradientsParams;
use burn::tensor::distributed::{DistributedConfig, DistributedContext, ReduceOperation};
use burn::tensor::{Device, Tensor};
use burn::train::TrainStep;
use clap::ValueEnum;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde::Serialize;

use crate::Failure;
use crate::cli::Args;
use crate::common::training::schedule;
use crate::data::{Picture, Pictures};
use crate::loader::PictureBatcher;
use crate::members::{self, Together};
use crate::model::{VisionTransformer, VisionTransformerConfig};
use crate::training::WEIGHT_DECAY;

/// A line of the file.
#[derive(Serialize)]
struct Row<'a> {
    device: &'a str,
    dtype: &'a str,
    optimizer: &'a str,
    seed: u64,
    step: usize,
    loss: f32,
}

/// Trains for some steps, and writes their losses.
pub fn run(
    args: &Args,
    model: &VisionTransformerConfig,
    pictures: &Pictures,
    path: &Path,
) -> Result<(), Failure> {
    let devices = members::open(args)?;
    let started = Instant::now();
    let losses = losses(args, model, pictures, &devices)?;
    let time = started.elapsed().as_secs_f64();
    let name = |flag: Option<clap::builder::PossibleValue>| {
        flag.map(|flag| flag.get_name().to_owned()).unwrap_or_default()
    };
    let device = match args.devices.len() {
        1 => name(args.device.to_possible_value()),
        members => format!("{members} x {}", name(args.device.to_possible_value())),
    };
    let dtype = name(args.dtype.to_possible_value());
    let optimizer = name(args.optimizer.to_possible_value());
    let fail = |error: csv::Error| Failure::cannot_write(path, &error);
    let mut file = csv::Writer::from_path(path).map_err(fail)?;
    for (step, loss) in losses.iter().copied().enumerate() {
        let (device, dtype, optimizer) = (&device, &dtype, &optimizer);
        file.serialize(Row { device, dtype, optimizer, seed: args.seed, step, loss })
            .map_err(fail)?;
    }
    file.flush().map_err(|error| Failure::cannot_write(path, &error))?;
    if let (Some(first), Some(last)) = (losses.first(), losses.last()) {
        println!("loss           {first:.4} at first, {last:.4} at last");
    }
    println!("training time  {time:.1} s for {} steps", losses.len());
    println!("losses         {}", path.display());
    Ok(())
}

/// The losses of `args.steps` steps.
///
/// Whatever is drawn is drawn on the CPU: weights, the order of the pictures, and their motions. Several devices train on a part of
/// each batch each, by Burn's own engine, and the losses are those of whole batches.
pub fn losses(
    args: &Args,
    model: &VisionTransformerConfig,
    pictures: &Pictures,
    devices: &[Device],
) -> Result<Vec<f32>, Failure> {
    let flex = Device::flex();
    flex.seed(args.seed);
    let model = model.clone().with_drop_path(0.0);
    let weights = model.init(&flex).into_record().cast_to_module_dtype();
    let devices: Vec<_> = devices.iter().map(|device| device.clone().autodiff()).collect();
    let model = model
        .init(&devices[0])
        .try_load_record(weights)
        .map_err(|error| Failure::Run(format!("the weights cannot be moved: {error}")))?;
    let members = devices.len();
    if members == 1 {
        return Ok(read(member(args, model, pictures, (0, &devices), &Together::of(1))?));
    }
    let mean = DistributedConfig { all_reduce_op: ReduceOperation::Mean };
    let _context = DistributedContext::init(devices.clone(), mean);
    let together = Together::of(members);
    let parts = std::thread::scope(|scope| {
        let (devices, together) = (&devices, &together);
        let start = |number: usize| {
            let model = model.clone().fork(&devices[number]).map(&mut Shared);
            let of = (number, &devices[..]);
            scope.spawn(move || member(args, model, pictures, of, together).map(read))
        };
        let threads: Vec<_> = (0..members).map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Vec<f32>, Failure>>| {
            let failed = |_| Err(Failure::Run("a device failed; the log says why".into()));
            thread.join().unwrap_or_else(failed)
        };
        threads.into_iter().map(join).collect::<Result<Vec<_>, _>>()
    })?;
    let mean = |step: usize| parts.iter().map(|losses| losses[step]).sum::<f32>() / members as f32;
    Ok((0..args.steps).map(mean).collect())
}

/// The losses of a member's parts, each by the weight of its part, on the device.
fn member(
    args: &Args,
    mut model: VisionTransformer,
    pictures: &Pictures,
    (number, devices): (usize, &[Device]),
    together: &Together,
) -> Result<Vec<Tensor<1>>, Failure> {
    let mut optimizer = args.optimizer.adamw(WEIGHT_DECAY, None)?;
    let mut rates = schedule(args.learning_rate, args.steps)?;
    let batcher = PictureBatcher::new(pictures).with_motions(args.seed);
    let mut losses = Vec::with_capacity(args.steps);
    for pictures in batches(args, pictures).take(args.steps) {
        let part = Part::of(pictures.len(), number, devices.len());
        let batch = batcher.part(&pictures, part.pictures, &devices[number]);
        let loss = model.classify(batch).loss * part.weight;
        let gradients = together.backward(loss.clone());
        let gradients = GradientsParams::from_grads(gradients, &model);
        losses.push(loss.without_autodiff());
        model = model.optimize(&mut optimizer, rates.step(), gradients);
    }
    Ok(losses)
}

/// Read at the end, so that no step waits for one.
fn read(losses: Vec<Tensor<1>>) -> Vec<f32> {
    losses.into_iter().map(|loss| loss.into_scalar::<f32>()).collect()
}

/// The part of a batch that a member trains on.
#[derive(Debug, PartialEq)]
struct Part {
    pictures: Range<usize>,
    /// See [`members::weight`].
    weight: f32,
}

impl Part {
    /// As even as can be. Who has no picture gets one that does not count, as all have to send gradients.
    fn of(pictures: usize, member: usize, members: usize) -> Self {
        let cut = |member: usize| pictures * member / members;
        let range = cut(member)..cut(member + 1);
        let weight = members::weight(range.len(), members, pictures);
        Self { pictures: if range.is_empty() { 0..1 } else { range }, weight }
    }
}

/// Marks parameters as those whose gradients all devices share.
struct Shared;

impl ModuleMapper for Shared {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        Param::from_mapped_value(id, tensor.set_distributed(id), mapper)
    }
}

/// Shuffled pictures, again and again.
fn batches<'a>(args: &Args, pictures: &'a Pictures) -> impl Iterator<Item = Vec<Picture>> + 'a {
    let (mut rng, size) = (StdRng::seed_from_u64(args.seed), args.batch_size);
    let epochs = std::iter::repeat_with(move || {
        let mut order: Vec<&Picture> = pictures.train.iter().collect();
        order.shuffle(&mut rng);
        order
    });
    epochs.flat_map(move |order| {
        let batches: Vec<Vec<Picture>> =
            order.chunks(size).map(|some| some.iter().copied().cloned().collect()).collect();
        batches
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alone::{Folder, alone};
    use crate::common::flags::{Parsed, parse};
    use crate::data;

    /// The flags of a small run.
    fn args(flags: &[&str]) -> Box<Args> {
        let flags = [&["vision_transformer", "--batch-size", "8"], flags].concat();
        match parse::<Args>(flags) {
            Ok(Parsed::Run(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    fn curve(device: &Device, flags: &[&str]) -> Vec<f32> {
        let args = args(&[&["--losses", "x"], flags].concat());
        let pictures = data::digits(&data::default_digits()).expect("is beside the sources");
        let model = VisionTransformerConfig::new(1, 8, 10, 3, 2).with_dims([16, 16]);
        losses(&args, &model.with_depths([2, 1]), &pictures, std::slice::from_ref(device))
            .expect("it trains")
    }

    #[test]
    fn parts_make_up_a_batch() {
        for (pictures, members) in [(8, 2), (7, 2), (10, 4), (1, 3), (2, 3)] {
            let parts: Vec<_> =
                (0..members).map(|member| Part::of(pictures, member, members)).collect();
            let weights: f32 = parts.iter().map(|part| part.weight).sum();
            assert!((weights - members as f32).abs() < 1e-5, "{parts:?}");
            let counted = parts.iter().filter(|part| part.weight > 0.0);
            let seen: Vec<_> = counted.flat_map(|part| part.pictures.clone()).collect();
            assert_eq!(seen, (0..pictures).collect::<Vec<_>>());
            assert!(parts.iter().all(|part| !part.pictures.is_empty()));
        }
    }

    /// What several devices do, on one: the mean of the members' gradients is the gradient of the batch.
    #[test]
    fn members_gradients_have_the_batchs_as_their_mean() {
        let _alone = alone();
        let device = Device::flex().autodiff();
        let pictures = data::digits(&data::default_digits()).expect("is beside the sources");
        let config = VisionTransformerConfig::new(1, 8, 10, 3, 2).with_dims([16, 16]);
        let model = config.with_drop_path(0.0).init(&device);
        let some = &pictures.train[..5];
        let gradients = |part: Part| {
            let batcher = PictureBatcher::new(&pictures).with_motions(3);
            let loss = model.classify(batcher.part(some, part.pictures, &device)).loss;
            let loss = loss * part.weight;
            let tape = loss.backward();
            let halve = model.halve.weight.grad(&tape).expect("is trained");
            (loss.into_scalar::<f32>(), halve)
        };
        let (loss, want) = gradients(Part::of(5, 0, 1));
        let parts = (0..3).map(|member| gradients(Part::of(5, member, 3)));
        let (losses, gots): (Vec<_>, Vec<_>) = parts.unzip();
        assert!((losses.iter().sum::<f32>() / 3.0 - loss).abs() < 1e-6 * loss, "{losses:?} {loss}");
        let got = gots.into_iter().reduce(|sum, part| sum + part).expect("there are three") / 3.0;
        assert!(got.all_close(want, Some(1e-4), Some(1e-6)));
    }

    #[test]
    fn a_file_has_a_line_for_each_step() {
        let folder = Folder::new("losses");
        let file = folder.file("flex.csv");
        crate::run::run(&args(&["--losses", &file, "--steps", "3"])).expect("it trains");
        let text = std::fs::read_to_string(file).expect("is written");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "device,dtype,optimizer,seed,step,loss");
        assert_eq!(lines.len(), 4);
        assert!(lines[3].starts_with("flex,f32,") && lines[3].contains(",1,2,"), "{}", lines[3]);
    }

    #[test]
    fn losses_repeat_and_fall() {
        let _alone = alone();
        let curve = |steps, seed| curve(&Device::flex(), &["--steps", steps, "--seed", seed]);
        let losses = curve("100", "1");
        assert_eq!(losses.len(), 100);
        let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
        assert!(mean(&losses[80..]) < 0.9 * mean(&losses[..10]), "{losses:?}");
        assert_eq!(curve("3", "2"), curve("3", "2"));
        assert_ne!(curve("1", "1"), curve("1", "2"));
    }
}
