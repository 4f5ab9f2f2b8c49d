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
            names: HashMap::new(),
            train: Vec::new(),
            valid: Vec::new(),
        }
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

    fn start_split(&mut self, _: &str, _: usize) {}
    fn update_split(&mut self, _: usize) {}
    fn end_split(&mut self) {}
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
