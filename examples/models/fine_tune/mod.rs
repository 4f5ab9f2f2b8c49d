//! Training a model further on a folder of pictures.
//!
//! The weights stay in f32, and so does their average over the steps, which is validated and
//! saved: in bf16 both would lose most of what a step changes. Activations may be bf16.

mod learner;
mod loader;
mod photos;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use burn::data::dataloader::DataLoader;
use burn::module::Module;
use burn::tensor::{Device, FloatDType};
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{ExecutionStrategy, Learner, SupervisedTraining};
use burn_natten::models::LoadOptions;
use serde_json::json;

use crate::Failure;
use crate::classify::recipe;
use crate::cli::FineTune;
use crate::common::flags::{Backend, Precision};
use crate::common::progress::PlainProgress;
use crate::common::report::{self, Confusion};
use crate::common::training::{Optimizer, newest_checkpoint, schedule};
use crate::common::{device, runs};
use crate::recipe::Recipe;

use learner::{Batch, FineTuned};
use loader::{Loader, Way};
use photos::Photos;

/// As good as none: so the authors train further at 384 x 384.
const WEIGHT_DECAY: f64 = 1e-8;

/// Trains, validates, and tells where everything is.
pub fn run(args: &FineTune) -> Result<(), Failure> {
    let photos = Photos::find(args)?;
    let mut recipe = recipe(&args.model)?;
    *recipe.model.num_classes() = photos.classes.len();
    if let Some(rate) = args.drop_path {
        *recipe.model.drop_path_rate() = rate;
    }
    let device = device::open(args.device, 0, Precision::F32)?;
    let dtype = activations(args, &device)?;
    let job = Job { args, photos, recipe, device };
    // Weights that do not fit must not cost the folder of an earlier run.
    let learner = job.learner(dtype)?;

    let files = runs::folder(&args.output, &job.record(dtype), args.resume)?;
    let from = match args.resume {
        true => Some(newest_checkpoint(&files, &job.device, || learner.clone())?),
        false => None,
    };
    println!(
        "{} pictures of {} classes to train, {} to validate; activations in {dtype:?}",
        job.photos.train.len(),
        job.photos.classes.len(),
        job.photos.valid.len()
    );
    if let Some(epoch) = from {
        println!("continuing after epoch {epoch}");
    }

    let started = Instant::now();
    let learned = job.train(learner, &files, from)?;
    let time = started.elapsed();
    let confusion = job.validate(&learned)?;
    let weights = job.save(&learned)?;
    let (right, all) = confusion.right();
    println!("\n{}", confusion.table());
    println!("validation     {} ({right} of {all})", report::percent(right, all));
    println!("training time  {:.1} s", time.as_secs_f64());
    println!("model          {}", weights.display());
    Ok(())
}

/// The type of activations: the one asked for, or bf16 where a GPU computes in it.
fn activations(args: &FineTune, device: &Device) -> Result<FloatDType, Failure> {
    let is_gpu = [Backend::Cuda, Backend::Wgpu].contains(&args.device);
    let dtype = match args.dtype {
        None if is_gpu && device.supports_dtype(FloatDType::BF16) => FloatDType::BF16,
        None | Some(Precision::F32) => FloatDType::F32,
        Some(Precision::Bf16) => FloatDType::BF16,
        Some(Precision::F16) => {
            // Its small gradients would be zero without a scale of the loss.
            return Err(Failure::Usage("--dtype: is f16, must be f32 or bf16 to train".into()));
        }
    };
    if !device.supports_dtype(dtype) {
        let text =
            format!("--dtype: is {dtype:?}, which --device {:?} cannot compute in", args.device);
        return Err(Failure::Usage(text.to_lowercase()));
    }
    Ok(dtype)
}

/// What is trained, with what, and where.
struct Job<'a> {
    args: &'a FineTune,
    photos: Photos,
    recipe: Recipe,
    device: Device,
}

impl Job<'_> {
    /// What a run that is continued has to agree with.
    fn record(&self, dtype: FloatDType) -> serde_json::Value {
        let args = self.args;
        json!({
            "recipe": self.recipe,
            "weights": args.model.weights,
            "part": args.model.part,
            "keep_head": args.keep_head,
            "images": args.images,
            "validation": args.validation,
            "pictures": self.photos.train.len() + self.photos.valid.len(),
            "epochs": args.epochs,
            "batch_size": args.batch_size,
            "learning_rate": args.learning_rate,
            "average": args.average,
            "seed": args.seed,
            "dtype": format!("{dtype:?}"),
            "optimizer": Optimizer::default(),
        })
    }

    /// The model as the training begins: with the weights of the file and, unless that is to be
    /// kept, a new head.
    fn learner(&self, dtype: FloatDType) -> Result<FineTuned, Failure> {
        let mut options = LoadOptions::new();
        options.top_level_key.clone_from(&self.args.model.part);
        if !self.args.keep_head {
            options = options.without("head");
        }
        self.device.seed(self.args.seed);
        let device = self.device.clone().autodiff();
        let new = || self.recipe.model.init(&device);
        let (weights, _) = new().load(&self.args.model.weights, &options)?;
        Ok(FineTuned::new(weights, new(), self.args.average, dtype))
    }

    fn loader(&self, way: Way, epoch: usize) -> Arc<dyn DataLoader<Batch>> {
        let photos = if way.is_training() { &self.photos.train } else { &self.photos.valid };
        let sizes = [self.recipe.image_size, self.args.batch_size, self.args.workers];
        Arc::new(Loader::new(photos.clone(), way, sizes, epoch, &self.device))
    }

    /// Trains up to the last epoch, from the checkpoint of epoch `from` if there is one.
    fn train(
        &self,
        learner: FineTuned,
        files: &Path,
        from: Option<usize>,
    ) -> Result<FineTuned, Failure> {
        let args = self.args;
        let train = self.loader(Way::Parts(args.seed), from.unwrap_or(0));
        let valid = self.loader(Way::Middle(self.recipe.margin), 0);
        let device = self.device.clone().autodiff();
        let mut training = SupervisedTraining::new(files, train, valid)
            .metrics((AccuracyMetric::new(), LossMetric::new()))
            .with_default_checkpointers()
            .with_training_strategy(ExecutionStrategy::SingleDevice(device).into())
            .num_epochs(args.epochs);
        if let Some(epoch) = from {
            training = training.checkpoint(epoch);
        }
        // On a terminal Burn draws its own dashboard.
        if !std::io::stdout().is_terminal() {
            training = training.renderer(Box::new(PlainProgress::new()));
        }
        let optimizer = Optimizer::default().adamw(WEIGHT_DECAY, None)?;
        let steps = self.photos.train.len().div_ceil(args.batch_size) * args.epochs;
        let rates = schedule(args.learning_rate, steps)?;
        let result = training.launch(Learner::new(learner, optimizer, rates));
        // Closes the dashboard, so that what is printed next stays on the screen.
        drop(result.renderer);
        if let Some(error) = result.error {
            return Err(Failure::Run(format!("the training failed: {error}")));
        }
        if result.interrupted.is_some() {
            println!("stopped before the last epoch; --resume continues");
        }
        Ok(result.model)
    }

    /// Which classes the averaged weights see in the pictures for validation.
    fn validate(&self, learned: &FineTuned) -> Result<Confusion, Failure> {
        let loader = self.loader(Way::Middle(self.recipe.margin), 0);
        let learned = learned.valid();
        let mut seen = Vec::with_capacity(self.photos.valid.len());
        for batch in loader.iter() {
            let batch = batch.map_err(|error| Failure::Run(error.to_string()))?;
            seen.extend(report::largest(learned.logits(batch.images))?);
        }
        let classes = self.photos.valid.iter().map(|photo| photo.class);
        Ok(Confusion::new(&self.photos.classes, classes.zip(seen)))
    }

    /// Writes what `classify` takes: the averaged weights, the recipe and the names of the classes.
    fn save(&self, learned: &FineTuned) -> Result<PathBuf, Failure> {
        let file = |name: &str| self.args.output.join(name);
        self.recipe.write(&file("model.json"))?;
        let names = self.photos.classes.join("\n") + "\n";
        std::fs::write(file("classes.txt"), names)
            .map_err(|error| Failure::cannot_write(&file("classes.txt"), &error))?;
        let weights = file("model.safetensors");
        learned.valid().average.save(&weights)?;
        Ok(weights)
    }
}
