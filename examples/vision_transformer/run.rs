//! From flags to a trained model and a report.

use std::fs;
use std::path::{Path, PathBuf};

use burn::config::Config;
use burn::module::Module;

use crate::Failure;
use crate::cli::Args;
use crate::data::{self, Pictures};
use crate::loader::PictureBatcher;
use crate::model::VisionTransformerConfig;
use crate::report::{self, Confusion};
use crate::{device, folder, picture, training};

/// What a checkpoint has to agree with.
#[derive(Config, Debug)]
pub struct RunConfig {
    /// The model.
    pub model: VisionTransformerConfig,
    /// The data set.
    pub data: PathBuf,
    /// The seed, which decides on the pictures for the test.
    pub seed: u64,
    /// Type of the weights.
    pub dtype: String,
}

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
    let config = RunConfig::new(model.clone(), source, args.seed, format!("{:?}", args.dtype));
    let files = training_folder(args, &config)?;
    let from = match args.resume {
        true => Some(training::newest_checkpoint(&files, &model, &device)?),
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
    let seen = report::predict(&trained.model, &batcher, &pictures.test, args.batch_size, &device)?;
    let attention = args.output.join("attention.png");
    picture::save(&attention, &trained.model, &batcher, &pictures, &seen, &device)?;
    let weights = args.output.join("model.bpk");
    let parameters = trained.model.num_params();
    trained.model.save_file(&weights).map_err(|error| cannot_write(&weights, &error))?;

    let confusion = Confusion::new(&pictures, &seen);
    let (right, all) = confusion.right();
    println!("\n{}", confusion.table());
    println!("test accuracy  {} ({right} of {all})", report::percent(right, all));
    println!("training time  {:.1} s", trained.time.as_secs_f64());
    println!("model          {} ({parameters} parameters)", weights.display());
    println!("attention      {}", attention.display());
    Ok(())
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

/// The folder of checkpoints and logs: that of an earlier run to resume, otherwise an empty one.
fn training_folder(args: &Args, config: &RunConfig) -> Result<PathBuf, Failure> {
    let (files, record) = (args.output.join("training"), args.output.join("run.json"));
    if args.resume {
        let earlier = RunConfig::load(&record).map_err(|_| {
            Failure::Usage(format!("--resume: {} is no run to continue", args.output.display()))
        })?;
        return match difference(&earlier, config) {
            None => Ok(files),
            Some(text) => Err(Failure::Usage(format!("--resume: {text}"))),
        };
    }
    if files.exists() {
        // Checkpoints of an earlier run would be mistaken for those of this one.
        if RunConfig::load(&record).is_err() {
            let (files, record) = (files.display(), record.display());
            let text = format!("--output: {files} exists, but not {record}; choose another folder");
            return Err(Failure::Usage(text));
        }
        fs::remove_dir_all(&files).map_err(|error| cannot_write(&files, &error))?;
    }
    fs::create_dir_all(&files).map_err(|error| cannot_write(&files, &error))?;
    config.save(&record).map_err(|error| cannot_write(&record, &error))?;
    Ok(files)
}

fn cannot_write(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Run(format!("{}: cannot be written, {error}", path.display()))
}

/// What differs between an earlier run and this one.
fn difference(earlier: &RunConfig, now: &RunConfig) -> Option<String> {
    let (earlier, now) = (serde_json::to_value(earlier).ok()?, serde_json::to_value(now).ok()?);
    let names = ["/data", "/seed", "/dtype"].map(String::from).into_iter();
    let model = now.get("model")?.as_object()?.keys().map(|name| format!("/model/{name}"));
    names.chain(model).find_map(|name| {
        let (before, after) = (earlier.pointer(&name), now.pointer(&name));
        let show = |value: Option<&serde_json::Value>| value.map_or("-".into(), |v| v.to_string());
        let name = name.rsplit('/').next().unwrap_or_default();
        (before != after).then(|| {
            format!("{name} is {}, must be {} as in the earlier run", show(after), show(before))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Parsed, parse};

    fn config(flags: &[&str]) -> Result<VisionTransformerConfig, String> {
        let Ok(Parsed::Run(args)) = parse(["vision_transformer"].iter().chain(flags)) else {
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
    fn a_run_is_resumed_as_it_was_started() {
        let model = VisionTransformerConfig::new(1, 8, 10, 3, 2);
        let run = RunConfig::new(model.clone(), "a".into(), 1, "F32".into());
        assert_eq!(difference(&run, &run.clone()), None);
        let seed = RunConfig::new(model, "a".into(), 2, "F32".into());
        let expected = "seed is 2, must be 1 as in the earlier run";
        assert_eq!(difference(&run, &seed).as_deref(), Some(expected));
        let model = VisionTransformerConfig::new(1, 8, 10, 5, 2);
        let kernel = RunConfig::new(model, "a".into(), 1, "F32".into());
        let expected = "kernel_size is 5, must be 3 as in the earlier run";
        assert_eq!(difference(&run, &kernel).as_deref(), Some(expected));
    }
}
