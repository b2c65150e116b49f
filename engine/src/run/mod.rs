//! Runs: a folder per run, the loop that trains it, and everything that keeps its work safe.
//!
//! ```text
//! RunConfig ── prepare: every refusal ──> RunFolder ── session: model, adapter, buffers ──> training: the loop
//!                                            ^                                                 │
//!                                            └── events.jsonl, checkpoints/<step>/ <───────────┘
//! ```
//!
//! A run is begun by [`create`] or [`train`] and taken up, as often as needed, by [`resume`]; both go the same way from
//! the run folder on. Nothing else writes into a run folder.

mod alarm;
mod checkpoint;
mod control;
mod cursor;
mod detach;
mod error;
mod eta;
mod evaluation;
mod events;
mod governor;
mod inspection;
pub mod interrupt;
mod learner;
mod lock;
pub mod memory;
pub mod output;
mod prepare;
pub mod process;
mod prompts;
mod rehearsal;
mod schedule;
mod session;
pub mod store;
#[cfg(test)]
mod toy;
mod training;

pub use checkpoint::{Best, Checkpoints, State};
pub use detach::detach;
pub use error::{Error, FolderReason};
pub use events::{Follower, History, Notice};
pub use governor::Pace;
pub use inspection::{InspectedDataset, InspectedExample, InspectedModel, InspectedToken, Inspection, inspect};
pub use prepare::{Opened, sentence};
pub use prompts::{Prompt, prompts};
pub use rehearsal::{Expectation, Rehearsal, TimedBatch, remember_outcome};
pub use schedule::{Schedule, dropout_seed};
pub use session::{Resumed, ask_continue, ask_pause, ask_stop, create, govern, load_adapter, resume, train};
pub use store::{Inputs, RunFolder, RunRecord, RunState, RunSummary, home, list, runs_dir};
pub use training::Outcome;
