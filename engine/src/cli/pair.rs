//! A base model and, beside it, the adapter of a run.

use std::path::PathBuf;

use candle_core::Device;
use hearth_engine::config::{BaseFormat, LoraConfig};
use hearth_engine::data::Encoder;
use hearth_engine::hardware::{TrainOn, detect};
use hearth_engine::model::weights::Precision;
use hearth_engine::model::{Adapter, Model, ModelSource};
use hearth_engine::plan::{Family, Plan};
use hearth_engine::run::{self, RunFolder, RunRecord};
use hearth_engine::step;

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
        let encoder = match record.as_ref().and_then(|record| record.date.as_deref()) {
            Some(date) => Encoder::on_date(&bundle, date)?,
            None => Encoder::new(&bundle)?,
        };
        let (Some(folder), Some(record)) = (&folder, &record) else {
            let model = Model::load(&source, &LoraConfig::none(), Precision::f32(BaseFormat::F32), &Device::Cpu)?;
            return Ok(Self { encoder, model, adapter: None });
        };
        let settings = &record.resolved;
        let step = checkpoint.step(folder)?;
        let load = |precision, device: &Device| -> Result<Self, Failure> {
            let (adapter, _) = run::load_adapter(folder, record, &source, step, device)?;
            let model = Model::load(&source, &settings.lora, precision, device)?;
            Ok(Self { encoder, model, adapter: Some(adapter) })
        };
        match card(folder, record) {
            Some(card) => load(settings.into(), &card),
            None => load(Precision::f32(settings.base), &Device::Cpu),
        }
    }
}

/// What answers want of a card beside the weights: CUDA itself, keys and values, the rows in flight.
const BESIDE_WEIGHTS_BYTES: u64 = 5 << 29;

/// The card that a run trained on, where this engine has kernels, the run has ended and there is room: then answers are computed as
/// the training did. Elsewhere the processor gives them, in f32.
fn card(folder: &RunFolder, record: &RunRecord) -> Option<Device> {
    if record.resolved.train_on != TrainOn::Card || folder.is_running() {
        return None;
    }
    let free_bytes = detect().training_card()?.memory_free_bytes?;
    if free_bytes < needed_bytes(&folder.plan().ok()?) {
        return None;
    }
    // It may be another card than the run's.
    step::device(TrainOn::Card).ok().filter(|card| step::check_compute(card, record.resolved.compute).is_ok())
}

/// What must be free. The copies of weights that a step keeps dequantised are the step's.
fn needed_bytes(plan: &Plan) -> u64 {
    let weights = plan.items.iter().filter(|item| item.family == Family::Weights && item.name != "weight_cache");
    weights.map(|item| item.bytes).sum::<u64>() + BESIDE_WEIGHTS_BYTES
}

#[cfg(test)]
mod tests {
    use hearth_engine::config::{OptimizerKind, Recompute, RunConfig};
    use hearth_engine::hardware::profile;
    use hearth_engine::model::Catalogue;
    use hearth_engine::plan::{assumed_examples, outline};

    use super::*;

    #[test]
    fn weights_that_a_step_keeps_dequantised_are_none_that_answers_need() {
        let shape = &Catalogue::bundled().find("llama-3.1-8b").expect("bundled").shape;
        let hardware = profile("rtx-3060-12gb").expect("bundled").hardware();
        let plan = |n_layers_cached| {
            let mut config = RunConfig::new("model".into(), "data.jsonl".into());
            config.data.length = Some(512);
            (config.micro_batch, config.accumulation) = (Some(1), Some(1));
            (config.base, config.recompute) = (Some(BaseFormat::Nf4), Some(Recompute::C1));
            config.optimizer.kind = Some(OptimizerKind::AdamW8);
            config.n_layers_cached = Some(n_layers_cached);
            outline(shape, &assumed_examples(512), &config, &hardware).expect("planned")
        };
        let (with, without) = (plan(1), plan(0));
        assert!(with.planned_bytes > without.planned_bytes);
        assert_eq!(needed_bytes(&with), needed_bytes(&without));
    }
}
