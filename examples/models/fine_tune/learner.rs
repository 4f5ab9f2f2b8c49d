//! A model and its average, as they are trained.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor};
use burn::train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};

use crate::classifier::Classifier;
use crate::half::ToHalf;

/// Part of the target that is spread over all classes, as when the models were trained.
const SMOOTHING: f32 = 0.1;

/// Pictures and their classes.
#[derive(Clone, Debug)]
pub struct Batch {
    /// `[batch, 3, side, side]`, normalized.
    pub images: Tensor<4>,
    /// `[batch]`.
    pub classes: Tensor<1, Int>,
}

/// A model, and the average of its weights over the steps:
///
/// ```text
/// keep    = min(average, (1 + step) / (10 + step))
/// average = keep * average + (1 - keep) * weights
/// ```
///
/// The first steps are kept less, lest a short training stays at its new head's beginning. All of it is
/// in a checkpoint.
#[derive(Module, Debug)]
pub struct FineTuned {
    /// What the gradients are of, in f32.
    pub weights: Classifier,
    /// What is validated and saved.
    pub average: Classifier,
    /// Steps so far, `[1]`.
    steps: Param<Tensor<1>>,
    keep: f64,
    /// Whether activations are in bf16.
    is_half: bool,
}

impl FineTuned {
    /// Begins with an average that is the weights. `new` is a model of the same configuration.
    pub fn new(weights: Classifier, new: Classifier, keep: f64, dtype: FloatDType) -> Self {
        let device: Device = weights.devices().first().cloned().unwrap_or_default();
        let steps = Tensor::zeros([1], (&device.inner(), DType::F32));
        let average = new.map(&mut Follow { values: values(&weights), part: None }).no_grad();
        Self {
            weights,
            average,
            steps: Param::from_tensor(steps).set_require_grad(false),
            keep,
            is_half: dtype == FloatDType::BF16,
        }
    }

    /// What the average sees, `[batch, classes]` in f32.
    pub fn logits(&self, images: Tensor<4>) -> Tensor<2> {
        self.forward(&self.average, images)
    }

    fn forward(&self, model: &Classifier, images: Tensor<4>) -> Tensor<2> {
        if !self.is_half {
            return model.forward(images);
        }
        // The gradients of the cast arrive at the weights in f32.
        let half = model.clone().map(&mut ToHalf);
        half.forward(images.cast(FloatDType::BF16)).cast(FloatDType::F32)
    }

    /// Moves the average towards the weights.
    fn follow(self) -> Self {
        let steps = self.steps.val().without_autodiff();
        // On the device, so that no step waits for a number.
        let keep = ((steps.clone() + 1.0) / (steps.clone() + 10.0)).clamp_max(self.keep);
        let part = Some(keep.neg() + 1.0);
        let values = values(&self.weights);
        let average = self.average.map(&mut Follow { values, part });
        let steps = self.steps.map(|_| steps + 1.0);
        Self { average, steps, ..self }
    }
}

fn output(
    logits: Tensor<2>,
    classes: Tensor<1, Int>,
    smoothing: Option<f32>,
) -> ClassificationOutput {
    let loss = CrossEntropyLossConfig::new()
        .with_smoothing(smoothing)
        .init(&logits.device())
        .forward(logits.clone(), classes.clone());
    ClassificationOutput::new(loss, logits, classes)
}

impl TrainStep for FineTuned {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let logits = self.forward(&self.weights, batch.images);
        let output = output(logits, batch.classes, Some(SMOOTHING));
        TrainOutput::new(self, output.loss.backward(), output)
    }

    fn optimize(
        self,
        optimizer: &mut ModuleOptimizer,
        rates: ModuleLearningRate,
        gradients: GradientsParams,
    ) -> Self {
        optimizer.step(rates, self, gradients).follow()
    }
}

impl InferenceStep for FineTuned {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        output(self.logits(batch.images), batch.classes, None)
    }
}

/// The values of all weights in a row, in the order of the model.
fn values(model: &Classifier) -> std::vec::IntoIter<Tensor<1>> {
    let mut values = Values(Vec::new());
    model.visit(&mut values);
    values.0.into_iter()
}

struct Values(Vec<Tensor<1>>);

impl ModuleVisitor for Values {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(param.val().without_autodiff().reshape([-1]));
    }
}

/// Moves each weight by a part of the way to the next of `values`, or all of it.
struct Follow {
    values: std::vec::IntoIter<Tensor<1>>,
    /// `[1]`.
    part: Option<Tensor<1>>,
}

impl ModuleMapper for Follow {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(value) = self.values.next() else { return param };
        param.map(|average| {
            let average = average.without_autodiff();
            let value = value.reshape(average.shape());
            match &self.part {
                None => value,
                Some(part) => average.clone() + (value - average) * part.clone().reshape([1; D]),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use burn_natten::models::nat::NatConfig;

    use super::*;
    use crate::alone::alone;

    fn model(device: &Device) -> Classifier {
        let config = NatConfig::new(8, vec![1], vec![2]).with_kernel_size(3).with_num_classes(2);
        Classifier::Nat(config.init(device))
    }

    fn numbers(model: &Classifier) -> Vec<f32> {
        let of = |values: Tensor<1>| values.into_data().try_to_vec::<f32>().expect("is f32");
        values(model).flat_map(of).collect()
    }

    #[test]
    fn the_average_follows_the_weights() {
        let _alone = alone();
        let device = Device::flex().autodiff();
        let first = model(&device);
        let mut learned = FineTuned::new(first.clone(), model(&device), 0.5, FloatDType::F32);
        assert_eq!(numbers(&learned.average), numbers(&first));
        let second = model(&device);
        learned.weights = second.clone();
        let mut expected = numbers(&first);
        for keep in [0.1f32, 2.0 / 11.0, 0.25, 4.0 / 13.0, 5.0 / 14.0] {
            learned = learned.follow();
            for (average, value) in expected.iter_mut().zip(numbers(&second)) {
                *average = keep * *average + (1.0 - keep) * value;
            }
            let got = numbers(&learned.average);
            assert!(got.iter().zip(&expected).all(|(got, want)| (got - want).abs() < 1e-6));
        }
    }

    #[test]
    fn gradients_in_half_are_those_of_the_weights() {
        let _alone = alone();
        let device = Device::flex().autodiff();
        let weights = model(&device);
        let gradients = |dtype| {
            let learner = FineTuned::new(weights.clone(), model(&device), 0.5, dtype);
            let shape = [2, 3, 16, 16];
            let values: Vec<f32> =
                (0..2 * 3 * 256).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
            let images = Tensor::<1>::from_floats(values.as_slice(), &device).reshape(shape);
            let classes = Tensor::from_ints([0, 1], &device);
            let output = TrainStep::step(&learner, Batch { images, classes });
            let Classifier::Nat(model) = &learner.weights else { panic!("is a NAT") };
            let weight = &model.levels[0].blocks[0].attn.rpb;
            let gradient: Tensor<3> = output.grads.get(weight.id).expect("has a gradient");
            let average = learner.average.clone();
            let mut count = Count(&output.grads, 0);
            average.visit(&mut count);
            assert_eq!(count.1, 0, "the average has no gradients");
            gradient.into_data().convert::<f32>().try_to_vec::<f32>().expect("is f32")
        };
        let (exact, half) = (gradients(FloatDType::F32), gradients(FloatDType::BF16));
        let largest = exact.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        assert!(largest > 0.0);
        assert!(exact.iter().zip(&half).all(|(a, b)| (a - b).abs() < 0.05 * largest));
        assert_ne!(exact, half);
    }

    struct Count<'a>(&'a GradientsParams, usize);

    impl ModuleVisitor for Count<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1 += usize::from(self.0.get::<D>(param.id).is_some());
        }
    }
}
