//! A base model and, beside it, the adapter of a run.

use std::path::PathBuf;

use candle_core::Device;
use hearth_engine::config::{BaseFormat, LoraConfig};
use hearth_engine::data::Encoder;
use hearth_engine::hardware::{TrainOn, detect};
use hearth_engine::model::weights::Precision;
use hearth_engine::model::{Adapter, Model, ModelSource};
use hearth_engine::plan::Family;
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
        let encoder = Encoder::new(&bundle)?;
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
    let plan = folder.plan().ok()?;
    let weights = plan.items.iter().filter(|item| item.family == Family::Weights);
    let needed_bytes = weights.map(|item| item.bytes).sum::<u64>() + BESIDE_WEIGHTS_BYTES;
    if free_bytes < needed_bytes {
        return None;
    }
    step::device(TrainOn::Card).ok()
}
