//! The loss of each step of a short training, to be compared with that on another device or in another type.

use std::path::Path;
use std::time::Instant;

use burn::data::dataloader::batcher::Batcher;
use burn::module::Module;
use burn::tensor::Device;
use burn::train::TrainStep;
use clap::ValueEnum;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use serde::Serialize;

use crate::Failure;
use crate::cli::Args;
use crate::common::device;
use crate::common::training::schedule;
use crate::data::{Picture, Pictures};
use crate::loader::PictureBatcher;
use crate::model::VisionTransformerConfig;
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
    let device = device::open(args.device, args.dtype)?;
    let started = Instant::now();
    let losses = losses(args, model, pictures, &device)?;
    let time = started.elapsed().as_secs_f64();
    let name = |flag: Option<clap::builder::PossibleValue>| {
        flag.map(|flag| flag.get_name().to_owned()).unwrap_or_default()
    };
    let device = name(args.device.to_possible_value());
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
/// Whatever is drawn is drawn on the CPU: weights, the order of the pictures, and their motions.
pub fn losses(
    args: &Args,
    model: &VisionTransformerConfig,
    pictures: &Pictures,
    device: &Device,
) -> Result<Vec<f32>, Failure> {
    let flex = Device::flex();
    flex.seed(args.seed);
    let model = model.clone().with_drop_path(0.0);
    let weights = model.init(&flex).into_record().cast_to_module_dtype();
    let mut model = model
        .init(&device.clone().autodiff())
        .try_load_record(weights)
        .map_err(|error| Failure::Run(format!("the weights cannot be moved: {error}")))?;
    let mut optimizer = args.optimizer.adamw(WEIGHT_DECAY, None)?;
    let mut rates = schedule(args.learning_rate, args.steps)?;
    let batcher = PictureBatcher::new(pictures).with_motions(args.seed);
    let mut losses = Vec::with_capacity(args.steps);
    for pictures in batches(args, pictures).take(args.steps) {
        let batch = batcher.batch(pictures, &device.clone().autodiff());
        let output = TrainStep::step(&model, batch);
        losses.push(output.item.loss.without_autodiff());
        model = model.optimize(&mut optimizer, rates.step(), output.grads);
    }
    // Read at the end, so that no step waits for one.
    Ok(losses.into_iter().map(|loss| loss.into_scalar::<f32>()).collect())
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
        losses(&args, &model.with_depths([2, 1]), &pictures, device).expect("it trains")
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
