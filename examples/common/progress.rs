//! Progress of the training where there is no terminal to draw on: a line for each epoch.

use std::collections::HashMap;
use std::time::Instant;

use burn::train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
use burn::train::metric::{MetricDefinition, MetricId, NumericEntry};
use burn::train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining,
};

/// Prints a line for each epoch.
pub struct PlainProgress {
    epochs: usize,
    started: Instant,
    /// Whether an epoch's training is under way, and not its validation.
    is_training: bool,
    /// When the epoch's first step had ended, and the last so far, and what was trained on until then.
    steps: Option<[(Instant, usize); 2]>,
    names: HashMap<MetricId, String>,
    train: Vec<String>,
    valid: Vec<String>,
}

impl PlainProgress {
    /// Starts the clock of the first epoch.
    pub fn new() -> Self {
        Self {
            epochs: 0,
            started: Instant::now(),
            is_training: false,
            steps: None,
            names: HashMap::new(),
            train: Vec::new(),
            valid: Vec::new(),
        }
    }

    /// Items a second of the epoch's training steps, all but the first: that one waits for its batch, and in the first epoch
    /// for kernels to be compiled.
    fn rate(&self) -> Option<f64> {
        let [(from, before), (to, after)] = self.steps?;
        let items = after.checked_sub(before).filter(|items| *items > 0)?;
        Some(items as f64 / to.duration_since(from).as_secs_f64())
    }

    /// The text of a metric if its value is that of a whole epoch.
    fn of_epoch(&self, state: MetricState) -> Option<String> {
        let MetricState::Numeric(entry, Some(NumericEntry::Final(value))) = state else {
            return None;
        };
        match self.names.get(&entry.metric_id).map(String::as_str)? {
            "Accuracy" => Some(format!("accuracy {value:5.1} %")),
            name => Some(format!("{} {value:.4}", name.to_lowercase())),
        }
    }
}

impl MetricsRendererTraining for PlainProgress {
    fn update_train(&mut self, state: MetricState) {
        let text = self.of_epoch(state);
        self.train.extend(text);
    }

    fn update_valid(&mut self, state: MetricState) {
        let text = self.of_epoch(state);
        self.valid.extend(text);
    }
}

impl TrainingProgressLogger for PlainProgress {
    fn start(&mut self, epochs: usize, _: usize, _: Option<usize>, _: Option<&str>) {
        (self.epochs, self.started) = (epochs, Instant::now());
    }

    fn update_epoch(&mut self, epoch: usize) {
        let rate = self.rate().map(|rate| format!("{rate:.0} pictures/s"));
        self.train.extend(rate);
        let width = self.epochs.to_string().len();
        println!(
            "epoch {epoch:width$}/{}  train {}  validation {}  {:.1} s",
            self.epochs,
            self.train.join(", "),
            self.valid.join(", "),
            self.started.elapsed().as_secs_f64()
        );
        self.train.clear();
        self.valid.clear();
        self.started = Instant::now();
    }

    fn start_split(&mut self, split: &str, _: usize) {
        self.is_training = split == "train";
        if self.is_training {
            self.steps = None;
        }
    }

    // Comes when the loss of a step has been read, and so after the step before it.
    fn update_split(&mut self, items: usize) {
        if self.is_training {
            let now = (Instant::now(), items);
            self.steps = Some([self.steps.map_or(now, |[first, _]| first), now]);
        }
    }

    fn end_split(&mut self) {
        self.is_training = false;
    }
    fn end(&mut self) {}
    fn log_event_training(&mut self, _: String) {}
}

impl MetricsRenderer for PlainProgress {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        self.names.insert(definition.metric_id, definition.name.to_string());
    }
}

// A renderer also has to be able to show evaluations, which the example does itself.
impl MetricsRendererEvaluation for PlainProgress {
    fn update_test(&mut self, _: EvaluationName, _: MetricState) {}
}

impl EvaluationProgressLogger for PlainProgress {
    fn start_global_progress(&mut self, _: usize) {}
    fn start_test(&mut self, _: &str, _: usize) {}
    fn update_test_progress(&mut self, _: usize) {}
    fn end_test(&mut self) {}
    fn end_global_progress(&mut self) {}
    fn log_event_evaluation(&mut self, _: String) {}
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_rate_is_that_of_training_steps_after_the_first() {
        let mut progress = PlainProgress::new();
        progress.start_split("train", 300);
        progress.update_split(100);
        assert_eq!(progress.rate(), None);
        std::thread::sleep(Duration::from_millis(20));
        progress.update_split(300);
        progress.end_split();
        let rate = progress.rate().expect("there were two steps");
        assert!(rate > 0.0 && rate <= 200.0 / 0.02, "{rate}");
        // Validation does not count, and each epoch begins anew.
        progress.start_split("valid", 1000);
        progress.update_split(1000);
        assert_eq!(progress.rate(), Some(rate));
        progress.start_split("train", 300);
        assert_eq!(progress.rate(), None);
    }
}
