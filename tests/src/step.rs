//! Settings of a step on the goldens' models, for the tests that drive it directly.

use hearth_engine::config::{LoraConfig, Settings, Target};

/// Rank 4 and alpha 8 on all linear layers, as the goldens' adapters; two sequences of at most 128 tokens.
pub fn settings() -> Settings {
    Settings {
        lora: LoraConfig { rank: 4, alpha: 8.0, dropout: 0.0, targets: Target::ALL.to_vec() },
        length: 128,
        packing: true,
        micro_batch: 2,
        head_rows: 7,
        learning_rate: 1e-3,
        ..Settings::default()
    }
}
