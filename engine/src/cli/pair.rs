//! A base model and, beside it, the adapter of a run.

use std::path::PathBuf;

use hearth_engine::config::{BaseFormat, LoraConfig};
use hearth_engine::data::Encoder;
use hearth_engine::model::weights::Precision;
use hearth_engine::model::{Adapter, Model, ModelSource};
use hearth_engine::run;

use super::failure::Failure;
use super::{Context, export};

/// What answers: the model alone, or with the adapter.
pub(super) struct Pair {
    pub(super) encoder: Encoder,
    pub(super) model: Model,
    /// Absent where no run was named.
    pub(super) adapter: Option<Adapter>,
}

impl Pair {
    /// Loads a model once for both sides. `model` left out is that of the run.
    pub(super) fn open(
        context: &Context,
        model: Option<PathBuf>,
        run: Option<&str>,
        checkpoint: export::Which,
    ) -> Result<Self, Failure> {
        let folder = run.map(|id| context.run(id)).transpose()?;
        let record = folder.as_ref().map(|f| f.record()).transpose()?;
        let path = match (model, &record) {
            (Some(path), _) => path,
            (None, Some(record)) => record.given.model.clone(),
            (None, None) => return Err(Failure::usage("no model given", "Give --model or --run.")),
        };
        let source = ModelSource::open(&path)?;
        let bundle = source.tokenizer()?;
        source.check_vocabulary(&bundle)?;
        let encoder = Encoder::new(&bundle)?;
        let (adapter, lora, base) = match (&folder, &record) {
            (Some(folder), Some(record)) => {
                let (adapter, _) = run::load_adapter(folder, record, &source, checkpoint.step(folder)?)?;
                (Some(adapter), record.resolved.lora.clone(), record.resolved.base)
            }
            _ => (None, LoraConfig::none(), BaseFormat::F32),
        };
        let model = Model::load(&source, &lora, Precision::f32(base), &candle_core::Device::Cpu)?;
        Ok(Self { encoder, model, adapter })
    }
}
