//! What this process measures of runs.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use slipway_protocol::{RunState, StepState, StepStatus};

use crate::store::to_word;

/// Upper bounds of the buckets for steps, in seconds: from a reboot to an image that takes hours.
const STEP_SECONDS: [f64; 12] = [1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 10800.0];

/// Meters of one process. Copies are the same meters.
#[derive(Clone, Debug)]
pub struct RunMeters {
    /// Seconds that steps took by the server's clock.
    pub step_seconds: Family<StepLabels, Histogram, fn() -> Histogram>,
    /// Runs that ended by a report, or were refused before a disk was erased.
    pub ended: Family<RunLabels, Counter>,
}

/// What a step was, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StepLabels {
    action: String,
    result: String,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RunLabels {
    result: String,
}

impl Default for RunMeters {
    fn default() -> Self {
        let ended = Family::default();
        for state in [RunState::Succeeded, RunState::Failed] {
            // Known from the start, so that the first failure is an increase.
            drop(ended.get_or_create(&RunLabels { result: to_word(&state) }));
        }
        Self { step_seconds: Family::new_with_constructor(|| Histogram::new(STEP_SECONDS)), ended }
    }
}

impl RunMeters {
    /// Counts a step that has ended.
    pub fn step_ended(&self, step: &StepStatus) {
        if let (Some(started), Some(finished)) = (step.started_at, step.finished_at) {
            let labels = StepLabels { action: step.action.clone(), result: to_word(&step.state) };
            let took = Duration::from_millis(finished.saturating_sub(started));
            self.step_seconds.get_or_create(&labels).observe(took.as_secs_f64());
        }
    }

    /// Counts a run that has ended in this state.
    pub fn run_ended(&self, state: RunState) {
        self.ended.get_or_create(&RunLabels { result: to_word(&state) }).inc();
    }
}

/// Whether a step has ended by itself.
pub fn has_ended(state: StepState) -> bool {
    matches!(state, StepState::Succeeded | StepState::Failed | StepState::TimedOut)
}
