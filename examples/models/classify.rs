//! What a model sees in a picture.

use std::path::Path;

use burn::tensor::activation::softmax;
use burn::tensor::{FloatDType, Tensor};
use burn_natten::models::LoadOptions;

use crate::classifier::Classifier;
use crate::cli::{Classify, Model};
use crate::common::{device, pictures};
use crate::recipe::Recipe;
use crate::{Failure, look, preparation};

/// Prints the likeliest classes of a picture, and draws attention if that is asked for.
pub fn run(args: &Classify) -> Result<(), Failure> {
    for line in report(args)? {
        println!("{line}");
    }
    Ok(())
}

/// The lines that are printed.
pub fn report(args: &Classify) -> Result<Vec<String>, Failure> {
    let mut recipe = recipe(&args.model)?;
    let picture = pictures::open(&args.picture)?;
    let classes = recipe.model.num_classes();
    *classes = args.num_classes.unwrap_or(*classes);
    let names = match &args.classes {
        Some(path) => Some(names(path, *classes)?),
        None => None,
    };

    let device = device::open(args.machine.device, 0, args.machine.dtype)?;
    let mut options = LoadOptions::new();
    options.top_level_key.clone_from(&args.model.part);
    let (model, _) = recipe.model.init(&device).load(&args.model.weights, &options)?;
    let picture = preparation::middle(&picture, recipe.image_size, recipe.margin);
    let values = preparation::normalized(&picture);
    let input = preparation::batch(values, recipe.image_size, &device);

    let line = |(class, probability): (usize, f32)| {
        let name = names.as_ref().map_or_else(|| class.to_string(), |names| names[class].clone());
        format!("{:6.2} %  {name}", 100.0 * probability)
    };
    let likeliest = likeliest(&model, input.clone(), args.top)?;
    let mut lines: Vec<_> = likeliest.into_iter().map(line).collect();
    if let Some(path) = &args.attention {
        look::save(path, &model, input, &picture, args)?;
        lines.push(format!("attention  {}", path.display()));
    }
    Ok(lines)
}

/// The model and its pictures, as the flags want them.
pub fn recipe(flags: &Model) -> Result<Recipe, Failure> {
    let mut recipe = Recipe::find(&flags.model)?;
    recipe.image_size = flags.image_size.unwrap_or(recipe.image_size);
    Ok(recipe)
}

/// The classes that are most probable, with their probabilities.
fn likeliest(
    model: &Classifier,
    picture: Tensor<4>,
    count: usize,
) -> Result<Vec<(usize, f32)>, Failure> {
    let probabilities = softmax(model.forward(picture).cast(FloatDType::F32), 1);
    let probabilities: Vec<f32> = probabilities
        .into_data()
        .try_to_vec()
        .map_err(|error| Failure::Run(format!("the classes cannot be read: {error:?}")))?;
    if let Some(bad) = probabilities.iter().find(|probability| !probability.is_finite()) {
        return Err(Failure::Run(format!("--weights: give a probability of {bad}")));
    }
    let mut classes: Vec<_> = probabilities.into_iter().enumerate().collect();
    classes.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    classes.truncate(count);
    Ok(classes)
}

/// Names of classes, one on each line.
fn names(path: &Path, classes: usize) -> Result<Vec<String>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::Run(format!("--classes {}: cannot be read, {error}", path.display()))
    })?;
    let names: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
    if names.len() != classes {
        let (path, got) = (path.display(), names.len());
        let text = format!("--classes {path}: has {got} names, must have {classes} as the model");
        return Err(Failure::Usage(text));
    }
    Ok(names)
}
