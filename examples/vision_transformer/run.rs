//! From flags to a trained model and a report.

use burn::data::dataloader::batcher::Batcher;
use burn::module::Module;
use burn::tensor::Device;
use serde_json::json;

use crate::Failure;
use crate::cli::Args;
use crate::common::report::{self, Confusion};
use crate::common::training::newest_checkpoint;
use crate::common::{device, runs};
use crate::data::{self, Picture, Pictures};
use crate::loader::PictureBatcher;
use crate::model::{VisionTransformer, VisionTransformerConfig};
use crate::{folder, picture, training};

/// Trains, tests, and tells where everything is.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (source, pictures) = match &args.images {
        Some(images) => (images.clone(), folder::images(images, args.image_size, args.seed)?),
        None => {
            let path = args.data.clone().unwrap_or_else(data::default_digits);
            let pictures = data::digits(&path)?;
            (path, pictures)
        }
    };
    let model = model_config(args, &pictures)?;
    let device = device::open(args.device, args.dtype)?;
    // The seed decides on the pictures for the test.
    let run = json!({
        "model": model, "data": source, "seed": args.seed, "dtype": format!("{:?}", args.dtype),
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

    let trained = training::train(&model, &pictures, args, &device, &files, from)?;
    if trained.is_stopped {
        println!("stopped before the last epoch; --resume continues");
    }
    let batcher = PictureBatcher::new(&pictures);
    let seen = predict(&trained.model, &batcher, &pictures.test, args.batch_size, &device)?;
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
    println!("training time  {:.1} s", trained.time.as_secs_f64());
    println!("model          {} ({parameters} parameters)", weights.display());
    println!("attention      {}", attention.display());
    Ok(())
}

/// The classes that the model sees in pictures.
fn predict(
    model: &VisionTransformer,
    batcher: &PictureBatcher,
    pictures: &[Picture],
    batch_size: usize,
    device: &Device,
) -> Result<Vec<usize>, Failure> {
    let mut classes = Vec::with_capacity(pictures.len());
    for pictures in pictures.chunks(batch_size) {
        let logits = model.forward(batcher.batch(pictures.to_vec(), device).images);
        classes.extend(report::largest(logits)?);
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
    Ok(VisionTransformerConfig::new(
        pictures.channels,
        pictures.side,
        pictures.classes.len(),
        args.kernel_size,
        dilation,
    ))
}

#[cfg(test)]
mod tests {
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
}
