//! Settings of a step on the goldens' models, for the tests that drive it directly.

use hearth_engine::config::{
    BaseFormat, CheckpointConfig, LoraConfig, OptimizerKind, OverLength, Recompute, ScheduleKind, Settings, Target,
};

/// Rank 4 and alpha 8 on all linear layers, as the goldens' adapters; two sequences of at most 128 tokens.
pub fn settings() -> Settings {
    Settings {
        base: BaseFormat::F32,
        lora: LoraConfig { rank: 4, alpha: 8.0, dropout: 0.0, targets: Target::ALL.to_vec() },
        length: 128,
        over_length: OverLength::Drop,
        packing: true,
        micro_batch: 2,
        accumulation: 1,
        recompute: Recompute::N,
        head_rows: 7,
        optimizer: OptimizerKind::AdamW32,
        learning_rate: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
        max_grad_norm: 1.0,
        schedule: ScheduleKind::Constant,
        warmup_steps: 0,
        n_steps: 1,
        evaluate_every_steps: 1,
        patience: None,
        n_samples: 0,
        checkpoints: CheckpointConfig::default(),
        seed: 0,
    }
}
