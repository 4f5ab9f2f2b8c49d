//! Pictures that an HDiT makes of noise.

mod document;
mod solver;

use std::path::Path;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_natten::models::hdit::{Hdit, HditConditions};
use burn_natten::models::{LoadOptions, Weights, WeightsError};
use image::{DynamicImage, GrayImage, RgbImage};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::Failure;
use crate::cli::Sample;
use crate::common::device;

use document::Document;

/// The part of k-diffusion's checkpoints with the averaged weights, which it samples with.
const AVERAGED: &str = "model_ema";

/// Makes pictures and writes them.
pub fn run(args: &Sample) -> Result<(), Failure> {
    let document = Document::find(args.config.as_deref(), &args.weights)?;
    let classes = classes(args, &document)?;
    let device = device::open(args.machine.device, 0, args.machine.dtype)?;
    let model = load(args, &document, &device)?;
    std::fs::create_dir_all(&args.output)
        .map_err(|error| Failure::cannot_write(&args.output, &error))?;

    let sigmas = solver::karras(document.sigmas, args.steps);
    let numbers: Vec<usize> = (0..args.count).collect();
    for numbers in numbers.chunks(args.batch_size) {
        let noise = noise(numbers, args.seed, &document, &device);
        let of_class = classes.as_ref().map(|classes| -> Vec<usize> {
            numbers.iter().map(|number| classes[number % classes.len()]).collect()
        });
        let denoiser = Denoiser {
            model: &model,
            classes: of_class,
            // The class that training uses for "no class" comes after the others.
            nothing: document.classes,
            guidance: args.guidance,
        };
        let start = noise * document.sigmas[1];
        let pictures =
            solver::solve(args.sampler, &sigmas, start, |state, sigma| denoiser.call(state, sigma));
        let size = document.size.iter().product::<usize>() * document.model.channels;
        let values: Vec<f32> = pictures
            .into_data()
            .try_to_vec()
            .map_err(|error| Failure::Run(format!("the pictures cannot be read: {error:?}")))?;
        for (number, values) in numbers.iter().zip(values.chunks(size)) {
            let path = args.output.join(format!("{number:05}.png"));
            save(&path, values, document.size)?;
            println!("{}", path.display());
        }
    }
    Ok(())
}

/// The classes of the pictures, in turn; none for a model without classes.
fn classes(args: &Sample, document: &Document) -> Result<Option<Vec<usize>>, Failure> {
    let usage = |text: String| Err(Failure::Usage(text));
    let count = document.classes;
    if count == 0 {
        return match (&args.class[..], args.guidance) {
            ([], 1.0) => Ok(None),
            ([], _) => usage("--guidance: is given, but the model has no classes".into()),
            _ => usage("--class: is given, but the model has no classes".into()),
        };
    }
    if let Some(class) = args.class.iter().find(|class| **class >= count) {
        return usage(format!("--class: is {class}, must be below {count}"));
    }
    Ok(Some(if args.class.is_empty() { (0..count).collect() } else { args.class.clone() }))
}

/// The model with the averaged weights, if the file has some.
fn load(args: &Sample, document: &Document, device: &Device) -> Result<Hdit, Failure> {
    let load = |part: Option<&str>| {
        let mut options = LoadOptions::new();
        options.top_level_key = part.map(str::to_owned);
        document.model.init(device).load_weights(&args.weights, &options)
    };
    let loaded = match &args.part {
        Some(part) => load(Some(part)),
        None => match load(Some(AVERAGED)) {
            Err(WeightsError::TopLevelKey { .. }) => load(None),
            other => other,
        },
    };
    let (model, _) = loaded.map_err(|error| Failure::Run(error.to_string()))?;
    Ok(model)
}

/// Normal noise of pictures with these numbers, `[batch, channels, height, width]` in f32: the same
/// for a seed and a number on every device and in every batch.
fn noise(numbers: &[usize], seed: u64, document: &Document, device: &Device) -> Tensor<4> {
    let [height, width] = document.size;
    let count = document.model.channels * height * width;
    let mut values = Vec::with_capacity(numbers.len() * count);
    for number in numbers {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&(*number as u64).to_le_bytes());
        let mut rng = StdRng::from_seed(bytes);
        let end = values.len() + count;
        while values.len() < end {
            // Box and Muller's transform; 1 - u is above 0.
            let (u, v): (f64, f64) = (rng.random(), rng.random());
            let (sin, cos) = (std::f64::consts::TAU * v).sin_cos();
            let radius = (-2.0 * (1.0 - u).ln()).sqrt();
            values.extend([(radius * cos) as f32, (radius * sin) as f32]);
        }
        values.truncate(end);
    }
    let shape = [numbers.len(), document.model.channels, height, width];
    Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
}

/// A model that is told a class.
struct Denoiser<'a> {
    model: &'a Hdit,
    /// The class of each picture of the batch.
    classes: Option<Vec<usize>>,
    /// The class for "no class".
    nothing: usize,
    guidance: f64,
}

impl Denoiser<'_> {
    /// The pictures without their noise; with guidance
    /// `without class + guidance * (with class - without class)`.
    fn call(&self, state: Tensor<4>, sigma: f64) -> Tensor<4> {
        let batch = state.dims()[0];
        let Some(classes) = &self.classes else {
            return self.denoise(state, sigma, None);
        };
        let mut classes = classes.clone();
        if self.guidance == 1.0 {
            return self.denoise(state, sigma, Some(&classes));
        }
        classes.extend(vec![self.nothing; batch]);
        let both = self.denoise(Tensor::cat(vec![state.clone(), state], 0), sigma, Some(&classes));
        let [with, without] = [0, batch].map(|start| both.clone().narrow(0, start, batch));
        without.clone() + (with - without) * self.guidance
    }

    fn denoise(&self, state: Tensor<4>, sigma: f64, classes: Option<&[usize]>) -> Tensor<4> {
        let (batch, device) = (state.dims()[0], state.device());
        let sigma = Tensor::<1>::full([batch], sigma, (&device, DType::F32));
        let class = classes.map(|classes| {
            let classes: Vec<i64> = classes.iter().map(|class| *class as i64).collect();
            Tensor::<1, Int>::from_data(TensorData::new(classes, [batch]), &device)
        });
        let conditions = HditConditions::default().with_class(class);
        self.model.denoise(state, sigma, conditions)
    }
}

/// Writes a picture from -1 to 1, `[channels, height, width]`, as PNG.
fn save(path: &Path, values: &[f32], [height, width]: [usize; 2]) -> Result<(), Failure> {
    if let Some(bad) = values.iter().find(|value| !value.is_finite()) {
        return Err(Failure::Run(format!("{}: has a pixel of {bad}", path.display())));
    }
    let plane = height * width;
    let pixel = |index: usize| ((values[index].clamp(-1.0, 1.0) + 1.0) * 127.5).round() as u8;
    let place = |x: u32, y: u32| y as usize * width + x as usize;
    let (w, h) = (width as u32, height as u32);
    let picture: DynamicImage = if values.len() == plane {
        GrayImage::from_fn(w, h, |x, y| image::Luma([pixel(place(x, y))])).into()
    } else {
        let color = |x, y| [0, 1, 2].map(|channel| pixel(channel * plane + place(x, y)));
        RgbImage::from_fn(w, h, |x, y| image::Rgb(color(x, y))).into()
    };
    picture.save(path).map_err(|error| Failure::cannot_write(path, &error))
}
