//! Weights from files, and into files.

mod names;
mod read;
mod shapes;
mod transformers;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::{DType, Device};
use burn_store::{
    ApplyError, BurnToPyTorchAdapter, FloatCastAdapter, ModuleAdapter, ModuleSnapshot, ModuleStore,
    PyTorchToBurnAdapter, SafetensorsStore,
};

use read::Tensors;

/// How weights are loaded.
///
/// ```rust
/// use burn_natten::models::LoadOptions;
///
/// // All but the head, from the averaged weights of a training run.
/// let options = LoadOptions::new().with_top_level_key("model_ema").without("head");
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Whether keys may be missing or unused. What is missing stays as it was initialized.
    pub partial: bool,
    /// Which part of the file holds the weights, such as `model_ema`. Without it, the parts
    /// `state_dict`, `model` and `model_state_dict` are looked for, then the file itself is taken.
    /// `model` is also taken off inside of a `state_dict`, as Lightning writes it.
    pub top_level_key: Option<String>,
    /// Keys that begin so are neither loaded nor missed. Each must be one of the model or of the file.
    pub without: Vec<String>,
}

impl LoadOptions {
    /// Every key must fit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether keys may be missing or unused.
    pub fn with_partial(mut self, partial: bool) -> Self {
        self.partial = partial;
        self
    }

    /// Says which part of the file holds the weights.
    pub fn with_top_level_key(mut self, key: impl Into<String>) -> Self {
        self.top_level_key = Some(key.into());
        self
    }

    /// Leaves out a parameter or a module: `head` is `head.weight` and `head.bias`.
    pub fn without(mut self, key: impl Into<String>) -> Self {
        self.without.push(key.into());
        self
    }

    fn leaves_out(&self, key: &str) -> bool {
        self.without.iter().any(|without| is_below(key, without))
    }
}

/// Whether a key is this parameter, or one of this module.
fn is_below(key: &str, module: &str) -> bool {
    key.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// What was loaded, by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadReport {
    /// Parameters that the file gave a value.
    pub loaded: Vec<String>,
    /// Parameters that the file has no value for, left as they were initialized.
    pub missing: Vec<String>,
    /// Tensors of the file that the model has no place for.
    pub unused: Vec<String>,
    /// Parameters left out by [`LoadOptions::without`].
    pub left_out: Vec<String>,
}

/// Why weights cannot be loaded or saved. The text is one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The file cannot be read, or is no checkpoint.
    #[error("{}: cannot be read, {reason}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file has no such part.
    #[error("{}: has no part {key}, has {found}", .path.display())]
    TopLevelKey {
        /// The file.
        path: PathBuf,
        /// The part that was asked for.
        key: String,
        /// The parts that there are.
        found: String,
    },
    /// There is nothing to leave out.
    #[error("without: is {key}, must be a key of the model or of {}", .path.display())]
    Without {
        /// The file.
        path: PathBuf,
        /// What was to be left out.
        key: String,
    },
    /// Keys do not fit those of the model.
    #[error("{}: does not fit the model, {}", .path.display(), keys(.missing, .unused))]
    Keys {
        /// The file.
        path: PathBuf,
        /// Keys of the model that the file does not have.
        missing: Vec<String>,
        /// Keys of the file that the model does not have.
        unused: Vec<String>,
    },
    /// A tensor has the wrong shape.
    #[error("{}: {key} has shape {got:?}, must have {expected:?}", .path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        key: String,
        /// The shape it has.
        got: Vec<usize>,
        /// The shape the model has.
        expected: Vec<usize>,
    },
    /// A tensor does not hold floating-point numbers.
    #[error("{}: {key} has dtype {got:?}, must be a float", .path.display())]
    DType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        key: String,
        /// Its element type.
        got: DType,
    },
    /// A tensor cannot be read.
    #[error("{}: {key} cannot be read, {reason}", .path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The file cannot be written.
    #[error("{}: cannot be written, {reason}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
}

/// Keys that an error names before it only counts.
const NAMED: usize = 3;

fn keys(missing: &[String], unused: &[String]) -> String {
    let list = |what: &str, keys: &[String]| {
        let more = if keys.len() > NAMED { ", .." } else { "" };
        let named = keys[..keys.len().min(NAMED)].join(", ");
        format!("{} {what} ({named}{more})", keys.len())
    };
    match (missing.is_empty(), unused.is_empty()) {
        (false, true) => list("missing", missing),
        (true, false) => list("unused", unused),
        _ => format!("{} and {}", list("missing", missing), list("unused", unused)),
    }
}

/// Models that have weights in files of PyTorch (`.pth`) and safetensors.
///
/// ```rust
/// use burn::tensor::{Device, Tensor};
/// use burn_natten::models::nat::NatConfig;
/// use burn_natten::models::{LoadOptions, Weights};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::flex();
/// let config = NatConfig::new(8, vec![1], vec![2]).with_kernel_size(3).with_num_classes(10);
/// let file = std::env::temp_dir().join(format!("burn-natten-{}.safetensors", std::process::id()));
/// config.init(&device).save_weights(&file)?;
///
/// let (model, _) = config.init_from(&file, &device)?;
/// assert_eq!(model.forward(Tensor::ones([1, 3, 12, 12], &device)).dims(), [1, 10]);
///
/// // Another number of classes needs another head.
/// let options = LoadOptions::new().without("head");
/// let (model, report) = config.with_num_classes(2).init(&device).load_weights(&file, &options)?;
/// assert_eq!(report.left_out, ["head.bias", "head.weight"]);
/// # std::fs::remove_file(&file)?;
/// # Ok(())
/// # }
/// ```
/// It is sealed: another module may have parts whose keys and shapes in PyTorch are not known here.
pub trait Weights: Module + sealed::Sealed {
    /// Takes the weights of a `.pth`, `.pt` or `.safetensors` file; which of them it is, its content
    /// says. Numbers are converted to the float type of the device; buffers of HDiT stay in f32.
    ///
    /// # Errors
    ///
    /// A [`WeightsError`] if the file is none of them or damaged, if a tensor has another shape than
    /// the model's, and, unless [`LoadOptions::partial`], if a key is missing or unused.
    fn load_weights(
        self,
        path: impl AsRef<Path>,
        options: &LoadOptions,
    ) -> Result<(Self, LoadReport), WeightsError> {
        load(self, path.as_ref(), options)
    }

    /// Writes the weights to a safetensors file under the keys of the PyTorch model, in place of
    /// a file that is there.
    ///
    /// # Errors
    ///
    /// A [`WeightsError`] if the file cannot be written.
    fn save_weights(&self, path: impl AsRef<Path>) -> Result<(), WeightsError> {
        let path = path.as_ref();
        let mut store = SafetensorsStore::from_file(path)
            .with_to_adapter(BurnToPyTorchAdapter)
            .skip_enum_variants(true)
            // What loads it in PyTorch asks for this.
            .metadata("format", "pt")
            .overwrite(true);
        store.collect_from(self).map_err(|error| WeightsError::Write {
            path: path.to_owned(),
            reason: read::one_line(&error),
        })
    }

    /// The keys of all weights with their shapes in PyTorch, in the order of the model. Takes no
    /// memory for parameters that have not been used yet.
    fn weight_shapes(&self) -> Vec<(String, Vec<usize>)> {
        shapes::of(self)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// Gives models weights.
macro_rules! weights {
    ($($model:ty),+ $(,)?) => {
        $(
            impl sealed::Sealed for $model {}
            impl Weights for $model {}
        )+
    };
}

weights!(super::nat::Nat, super::dinat_s::DinatS, super::isotropic::Isotropic, super::hdit::Hdit,);

/// Defines the short way from a configuration to a model with weights.
macro_rules! init_from {
    ($config:ty, $model:ty) => {
        impl $config {
            /// [`init`](Self::init) with the weights of a file: `load_weights` of
            /// [`Weights`](crate::models::Weights), where every key must fit.
            ///
            /// # Errors
            ///
            /// Those of `load_weights`.
            ///
            /// # Panics
            ///
            /// If a field is out of its range.
            pub fn init_from(
                &self,
                path: impl AsRef<Path>,
                device: &Device,
            ) -> Result<($model, LoadReport), WeightsError> {
                self.init(device).load_weights(path, &LoadOptions::new())
            }
        }
    };
}

init_from!(super::nat::NatConfig, super::nat::Nat);
init_from!(super::dinat_s::DinatSConfig, super::dinat_s::DinatS);
init_from!(super::isotropic::IsotropicConfig, super::isotropic::Isotropic);
init_from!(super::hdit::HditConfig, super::hdit::Hdit);

fn load<M: Module>(
    mut model: M,
    path: &Path,
    options: &LoadOptions,
) -> Result<(M, LoadReport), WeightsError> {
    let places = shapes::of(&model);
    let mut tensors = read::read(path)?;
    tensors = names::select(tensors, options.top_level_key.as_deref(), &places, path)?;
    tensors = transformers::rename(tensors);

    for without in &options.without {
        let mut keys = places.iter().map(|(key, _)| key).chain(tensors.keys());
        if !keys.any(|key| is_below(key, without)) {
            let (path, key) = (path.to_owned(), without.clone());
            return Err(WeightsError::Without { path, key });
        }
    }
    let mut report = LoadReport::default();
    tensors.retain(|key, _| !options.leaves_out(key));
    for (key, shape) in places {
        if options.leaves_out(&key) {
            report.left_out.push(key);
        } else if let Some(tensor) = tensors.get(&key) {
            check(path, &key, tensor.dtype, &tensor.shape, shape)?;
            report.loaded.push(key);
        } else {
            report.missing.push(key);
        }
    }
    let loaded: BTreeSet<_> = report.loaded.iter().collect();
    report.unused = tensors.keys().filter(|key| !loaded.contains(key)).cloned().collect();
    report.left_out.sort();
    report.missing.sort();
    report.loaded.sort();

    let fits = report.missing.is_empty() && report.unused.is_empty();
    if report.loaded.is_empty() || !(fits || options.partial) {
        let LoadReport { missing, unused, .. } = report;
        return Err(WeightsError::Keys { path: path.to_owned(), missing, unused });
    }
    tensors.retain(|key, _| report.loaded.binary_search(key).is_ok());
    apply(&mut model, tensors, path)?;
    Ok((model, report))
}

fn check(
    path: &Path,
    key: &str,
    dtype: DType,
    got: &[usize],
    expected: Vec<usize>,
) -> Result<(), WeightsError> {
    let (path, key) = (path.to_owned(), key.to_owned());
    if got != expected {
        return Err(WeightsError::Shape { path, key, got: got.to_vec(), expected });
    }
    if !dtype.is_float() {
        return Err(WeightsError::DType { path, key, got: dtype });
    }
    Ok(())
}

/// Puts tensors into the model that fit it, each in the type of its place. What can still fail is
/// reading their numbers.
fn apply<M: Module>(model: &mut M, tensors: Tensors, path: &Path) -> Result<(), WeightsError> {
    let device = model.devices().first().cloned().unwrap_or_default();
    let default: DType = device.settings().float_dtype.into();
    let known = shapes::dtypes(model);
    let mut groups: Vec<(DType, Vec<_>)> = vec![];
    for (key, tensor) in tensors {
        let dtype = known.get(&key).copied().unwrap_or(default);
        match groups.iter_mut().find(|(other, _)| *other == dtype) {
            Some((_, group)) => group.push(tensor),
            None => groups.push((dtype, vec![tensor])),
        }
    }
    for (dtype, tensors) in groups {
        let count = tensors.len();
        let adapter = PyTorchToBurnAdapter.chain(FloatCastAdapter::to(dtype));
        let result = model.apply(tensors, None, Some(Box::new(adapter)), true);
        let fail =
            |key: String, reason| Err(WeightsError::Tensor { path: path.to_owned(), key, reason });
        if let Some(error) = result.errors.into_iter().next() {
            let key = match &error {
                ApplyError::ShapeMismatch { path, .. }
                | ApplyError::DTypeMismatch { path, .. }
                | ApplyError::AdapterError { path, .. }
                | ApplyError::LoadError { path, .. } => path.clone(),
            };
            return fail(key, read::one_line(&error));
        }
        // What the report says was loaded is what burn-store has put into the model.
        if let Some(key) = result.unused.into_iter().next() {
            return fail(key, "it was not put into the model".to_owned());
        }
        assert_eq!(result.applied.len(), count, "burn-store applies each tensor once");
    }
    Ok(())
}
