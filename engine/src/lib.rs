//! Hearth's engine. The data walks one way, and the modules are named after its stops:
//!
//! ```text
//! hardware ─┐
//!           ├─> plan ──────────────┐
//! model ────┘                      v
//! data: file -> Example -> chat text + loss spans -> Tokens(ids, labels) -> packed Batch
//!                                  │
//!                                  v
//!               step: Batch -> block driver (forward, backward) -> gradients -> optimizer
//!                                  │
//!                                  v
//!               run: events.jsonl, checkpoints  ──> studio charts, report
//!                                  │
//!                                  v
//!               export: adapter, merged ──> proof
//! ```

pub use hearth_ops as ops;

pub mod config;
pub mod data;
pub mod disk;
pub mod error;
pub mod event;
pub mod export;
pub mod format;
pub mod generate;
pub mod gpu_setup;
pub mod hardware;
pub mod model;
pub mod named;
pub mod near;
pub mod plan;
pub mod report;
pub mod run;
pub mod step;
