//! What a run tells the world: one JSON line per event in `events.jsonl`, the same lines on `hearth train --json`.
//!
//! The loop speaks only through events; every chart and every status can be redrawn from them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::error::ErrorReport;
use crate::hardware::CardReading;
use crate::plan::ladder::Rung;
use crate::run::{Pace, Rehearsal};

/// One line of `events.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct EventLine {
    /// Milliseconds since the Unix epoch.
    #[ts(type = "number")]
    pub time_ms: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: TrainEvent,
}

/// What happened in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case")]
#[ts(export)]
pub enum TrainEvent {
    /// A process took the run up, at its start or again.
    Started {
        /// Run id, the folder's name.
        run_id: String,
        /// Process id of the engine.
        pid: u32,
        /// Steps done before.
        step: usize,
        /// Steps of the whole run.
        n_steps: usize,
        /// True where an earlier process left off.
        resumed: bool,
    },
    /// Something that takes a while began ("reading the model", "preparing examples", "evaluating").
    Phase {
        /// Stable name: `load_model`, `prepare_data`, `allocate`, `rehearse`, `train`, `evaluate`, `checkpoint`, `export`, `prove`.
        name: String,
    },
    /// One optimizer step.
    Step {
        /// Steps done, counting this one; the first is 1.
        step: usize,
        /// Passes over the data so far.
        epoch: f64,
        /// Mean negative log-likelihood per supervised token (nats).
        loss: f64,
        /// Rate used in this step.
        learning_rate: f64,
        /// Global gradient norm before clipping.
        grad_norm: f64,
        /// Tokens processed in this step.
        n_tokens: usize,
        /// Of these, supervised.
        n_supervised_tokens: usize,
        /// Wall time.
        step_ms: f64,
        /// Seconds left, weighted by tokens; absent while warming up.
        eta_s: Option<f64>,
        /// Memory after the step.
        memory: MemoryReading,
        /// The whole card, where the run trains on one and its driver answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[ts(optional = nullable)]
        card: Option<CardReading>,
    },
    /// Loss on the held-out examples.
    Evaluation {
        /// Steps done.
        step: usize,
        /// Mean negative log-likelihood per supervised token (nats).
        loss: f64,
        /// Lowest so far.
        best: bool,
        /// Supervised tokens it is the mean of.
        n_supervised_tokens: usize,
    },
    /// What a rehearsal before the first step measured, beside what the plan predicted.
    Rehearsal {
        /// All of it.
        rehearsal: Rehearsal,
    },
    /// The governor slows the run down, pauses it, or lets it go on.
    Governor {
        /// What it does from now on.
        pace: Pace,
        /// Stable name of the reason, `governor.quiet_hours`; empty at full speed.
        code: String,
        /// The reason in words, with the values.
        message: String,
        /// When a pause ends, milliseconds since the Unix epoch, where that is known.
        #[ts(type = "number | null")]
        until_ms: Option<u64>,
    },
    /// A held-out prompt answered by the model as it is now.
    Sample {
        /// Steps done.
        step: usize,
        /// Which of the held-out prompts, from 0.
        index: usize,
        /// What was asked, readable.
        prompt: String,
        /// What the model answers (greedy).
        answer: String,
        /// What the file says.
        wanted: String,
    },
    /// A complete checkpoint is on disk.
    Checkpoint {
        /// Steps done.
        step: usize,
        /// Its size.
        #[ts(type = "number")]
        bytes: u64,
        /// True where it has the lowest evaluation loss.
        best: bool,
    },
    /// Memory ran out, and the run goes on with less: the same training, computed with fewer bytes.
    Rung {
        /// Steps done.
        step: usize,
        /// What ran out.
        reason: String,
        /// What changed and what did not.
        words: String,
        /// Before.
        from: Rung,
        /// From here on.
        to: Rung,
    },
    /// In f16: the gradient of the loss is multiplied with another power of two from here on, and nothing else changes.
    LossScale {
        /// Steps done.
        step: usize,
        /// A gradient that overflowed, in a step that is taken again, or many steps without one.
        reason: String,
        /// Before.
        from: u32,
        /// From here on.
        to: u32,
        /// How often it was halved in this run.
        n_halved: u32,
    },
    /// Something the person should know; the run goes on.
    Warning {
        /// Stable name.
        code: String,
        /// What, the values, what to do.
        message: String,
    },
    /// An export finished and was proven or not.
    Exported {
        /// `adapter` or `merged`.
        kind: String,
        /// Where.
        path: PathBuf,
        /// Outcome of the proof.
        proven: bool,
    },
    /// The run ended and can be used.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Steps done.
        step: usize,
        /// Step with the lowest evaluation loss, where evaluated.
        best_step: Option<usize>,
    },
    /// The run ended by a fault. What was checkpointed is safe.
    Failed {
        /// What failed, the values, what to do.
        error: ErrorReport,
    },
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum FinishReason {
    /// All steps done.
    Completed,
    /// The evaluation loss did not improve for `patience` evaluations.
    EarlyStopped,
    /// Asked to stop; can be resumed.
    Stopped,
}

/// Memory of the run's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct MemoryReading {
    /// Bytes the plan foresees.
    #[ts(type = "number")]
    pub planned_bytes: u64,
    /// Bytes the process grew by since before the model was loaded (anonymous memory); on a card, all that it takes of the
    /// card: its pool, and what the driver and CUDA's libraries need beside it.
    #[ts(type = "number")]
    pub used_bytes: u64,
    /// The highest `used_bytes` so far.
    #[ts(type = "number")]
    pub peak_bytes: u64,
    /// The pool that tensors on a card are from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional = nullable)]
    pub pool: Option<PoolReading>,
}

/// The pool that tensors on a card are from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct PoolReading {
    /// Bytes in tensors.
    #[ts(type = "number")]
    pub used_bytes: u64,
    /// Bytes taken of the card: these, and what freed tensors left for the next ones.
    #[ts(type = "number")]
    pub reserved_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::Throttle;

    const OLDER: &str = r#"{"time_ms":5,"type":"step","step":3,"epoch":0.5,"loss":1.5,"learning_rate":0.0001,"grad_norm":1.0,"n_tokens":10,"n_supervised_tokens":5,"step_ms":2.0,"eta_s":null,"memory":{"planned_bytes":1,"used_bytes":2,"peak_bytes":3}}"#;

    #[test]
    fn a_step_from_before_cards_were_read_is_read_and_written_as_it_was() {
        let line: EventLine = serde_json::from_str(OLDER).expect("read");
        let TrainEvent::Step { memory, card, .. } = &line.event else { panic!("{line:?}") };
        assert_eq!((memory.pool, card), (None, &None));
        assert_eq!(serde_json::to_string(&line).expect("written"), OLDER);
    }

    #[test]
    fn a_step_on_a_card_reads_back_what_it_wrote() {
        let mut line: EventLine = serde_json::from_str(OLDER).expect("read");
        let TrainEvent::Step { memory, card, .. } = &mut line.event else { panic!("{line:?}") };
        memory.pool = Some(PoolReading { used_bytes: 7, reserved_bytes: 8 });
        let reading =
            CardReading { used_bytes: 9, total_bytes: 10, throttle: vec![Throttle::Heat], ..Default::default() };
        *card = Some(reading);
        let text = serde_json::to_string(&line).expect("written");
        assert_eq!(serde_json::from_str::<EventLine>(&text).expect("read"), line);
    }
}
