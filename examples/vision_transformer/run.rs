//! From flags to a trained model and a report.

use std::path::PathBuf;
use std::time::Instant;

use burn::data::dataloader::batcher::Batcher;
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde_json::json;

use crate::Failure;
use crate::cli::Args;
use crate::common::report::{self, Confusion};
use crate::common::runs;
use crate::common::training::newest_checkpoint;
use crate::data::{self, Picture, Pictures};
use crate::folder::Resize;
use crate::loader::{Batch, PictureBatcher};
use crate::model::VisionTransformerConfig;
use crate::resample::mix_sizes;
use crate::tokens::Tokens;
use crate::{folder, losses, members, picture, training};

/// Trains, tests, and tells where everything is.
pub fn run(args: &Args) -> Result<(), Failure> {
    let started = Instant::now();
    let (source, pictures) = read(args)?;
    let model = model_config(args, &pictures)?;
    if let Some(path) = &args.losses {
        return losses::run(args, &model, &pictures, path);
    }
    let devices = members::open(args)?;
    let device = devices[0].clone();
    // The seed decides on the pictures for the test.
    let run = json!({
        "model": model, "data": source, "mixed_sizes": args.mixed_sizes, "seed": args.seed,
        "dtype": format!("{:?}", args.dtype), "optimizer": args.optimizer,
    });
    let files = runs::folder(&args.output, &run, args.resume)?;
    let from = match args.resume {
        true => Some(newest_checkpoint(&files, &device, || model.init(&device))?),
        false => None,
    };
    println!(
        "{} pictures of {} classes: {} to train, {} to validate, {} to test",
        pictures.train.len() + pictures.valid.len() + pictures.test.len(),
        pictures.classes.len(),
        pictures.train.len(),
        pictures.valid.len(),
        pictures.test.len()
    );
    if let Some(epoch) = from {
        println!("continuing after epoch {epoch}");
    }

    let trained = training::train(&model, &pictures, args, &devices, &files, from)?;
    if trained.is_stopped {
        println!("stopped before the last epoch; --resume continues");
    }
    let batcher = PictureBatcher::new(&pictures);
    let seen = predict(
        |images| trained.model.forward(images),
        &batcher,
        &pictures.test,
        args.batch_size,
        &device,
    )?;
    let attention = args.output.join("attention.png");
    picture::save(&attention, &trained.model, &batcher, &pictures, &seen, &device)?;
    let weights = args.output.join("model.bpk");
    let parameters = trained.model.num_params();
    trained.model.save_file(&weights).map_err(|error| Failure::cannot_write(&weights, &error))?;

    let classes = pictures.test.iter().map(|picture| picture.class);
    let confusion = Confusion::new(&pictures.classes, classes.zip(seen.iter().copied()));
    let (right, all) = confusion.right();
    println!("\n{}", confusion.table());
    println!("test accuracy  {} ({right} of {all})", report::percent(right, all));
    let time = trained.time.as_secs_f64();
    match trained.is_stopped {
        true => println!("training time  {time:.1} s"),
        false => {
            let step = 1e3 * time / trained.steps.max(1) as f64;
            println!(
                "training time  {time:.1} s, {step:.2} ms for each of {} steps",
                trained.steps
            );
        }
    }
    println!("total time     {:.1} s", started.elapsed().as_secs_f64());
    println!("model          {} ({parameters} parameters)", weights.display());
    println!("attention      {}", attention.display());
    Ok(())
}

/// Where the pictures are, and the pictures.
fn read(args: &Args) -> Result<(PathBuf, Pictures), Failure> {
    if let Some(folder) = &args.images {
        let resize = match args.mixed_sizes {
            true => Resize::Longer(args.image_size),
            false => Resize::Squares(args.image_size),
        };
        return Ok((folder.clone(), folder::images(folder, resize, args.seed)?));
    }
    let path = args.data.clone().unwrap_or_else(data::default_digits);
    let digits = data::digits(&path)?;
    Ok((path, if args.mixed_sizes { mix_sizes(digits, args.seed) } else { digits }))
}

/// The classes that a model sees in pictures, by its logits.
fn predict(
    model: impl Fn(Tokens) -> Tensor<2>,
    batcher: &PictureBatcher,
    pictures: &[Picture],
    batch_size: usize,
    device: &Device,
) -> Result<Vec<usize>, Failure> {
    let mut classes = vec![0; pictures.len()];
    for (pictures, classes) in pictures.chunks(batch_size).zip(classes.chunks_mut(batch_size)) {
        let Batch { images, order, .. } = batcher.batch(pictures.to_vec(), device);
        for (index, class) in order.into_iter().zip(report::largest(model(images))?) {
            classes[index] = class;
        }
    }
    Ok(classes)
}

/// The model for these pictures, if the windows fit into it.
fn model_config(args: &Args, pictures: &Pictures) -> Result<VisionTransformerConfig, Failure> {
    let side = VisionTransformerConfig::first_side(pictures.side);
    let too_large = |flag, got, max| {
        let text = format!("{flag}: is {got}, must be at most {max} in a stage of {side} x {side}");
        Err(Failure::Usage(text))
    };
    if args.kernel_size > side {
        return too_large("--kernel-size", args.kernel_size, side);
    }
    let most = side / args.kernel_size;
    let dilation = args.dilation.unwrap_or(most.min(2));
    if dilation > most {
        return too_large("--dilation", dilation, most);
    }
    let config = VisionTransformerConfig::new(
        pictures.channels,
        pictures.side,
        pictures.classes.len(),
        args.kernel_size,
        dilation,
    );
    let of_head = config.head_dim;
    match args.dims.iter().find(|dim| !dim.is_multiple_of(of_head)) {
        Some(dim) => {
            let text = format!("--dims: is {dim}, must be a multiple of {of_head}");
            Err(Failure::Usage(text))
        }
        None => Ok(config.with_dims(args.dims).with_depths(args.depths)),
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Int, TensorData};

    use super::*;
    use crate::common::flags::{Parsed, parse};

    fn config(flags: &[&str]) -> Result<VisionTransformerConfig, String> {
        let Ok(Parsed::Run(args)) = parse::<Args>(["vision_transformer"].iter().chain(flags))
        else {
            panic!("{flags:?} are refused");
        };
        let pictures = data::digits(&data::default_digits()).expect("is beside the sources");
        model_config(&args, &pictures).map_err(|failure| failure.to_string())
    }

    #[test]
    fn windows_have_to_fit_into_the_first_stage() {
        assert_eq!(config(&[]).expect("the defaults fit").dilation, 2);
        assert_eq!(config(&["--kernel-size", "5"]).expect("fits").dilation, 1);
        assert_eq!(
            config(&["--kernel-size", "9"]).expect_err("is too large"),
            "--kernel-size: is 9, must be at most 8 in a stage of 8 x 8"
        );
        assert_eq!(
            config(&["--dilation", "3"]).expect_err("is too large"),
            "--dilation: is 3, must be at most 2 in a stage of 8 x 8"
        );
    }

    #[test]
    fn stages_are_as_wide_and_deep_as_asked_for() {
        let larger = config(&["--dims", "64,96", "--depths", "3,4"]).expect("fits");
        assert_eq!((larger.dims, larger.depths), ([64, 96], [3, 4]));
        assert_eq!(
            config(&["--dims", "32,40"]).expect_err("is no multiple"),
            "--dims: is 40, must be a multiple of 16"
        );
    }

    #[test]
    fn what_is_seen_in_pictures_comes_in_their_order() {
        let device = Device::flex();
        let path = data::default_digits();
        let pictures = mix_sizes(data::digits(&path).expect("is beside the sources"), 1);
        // Sees how high a picture is.
        let model = |images: Tokens| {
            let heights = images.sizes().iter().map(|[height, _]| *height as i32).collect();
            let heights = TensorData::new::<i32, _>(heights, [images.sizes().len()]);
            Tensor::<1, Int>::from_data(heights, &device).one_hot::<2>(13).float()
        };
        let some = &pictures.test[..30];
        let seen = predict(model, &PictureBatcher::new(&pictures), some, 7, &device);
        let heights: Vec<_> = some.iter().map(|picture| picture.size[0]).collect();
        assert_eq!(seen.expect("can be read"), heights);
    }
}
