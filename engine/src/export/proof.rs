//! The proof of an export: it is loaded back from the disk by the ordinary loader and compared with the trained model.
//!
//! What is checked, from the outside in: it loads; its tokenizer encodes alike; every weight is what base and adapter
//! give, rounded once; every adapted layer differs from the base; logits agree within what rounding to the file's
//! format explains; greedy answers are equal.
//!
//! **Tolerance of logits.** Rounding a weight to a format with unit roundoff `u` (2⁻⁸ for bf16, 2⁻¹¹ for f16, 2⁻²⁴ for
//! f32) changes it by a relative error that is uniform within `±u`, standard deviation `u / √3`; sums over `k` products
//! in f32 add `2⁻²⁴ √k`. That is the relative error of one product. A whole network shows three to five times as much,
//! whatever its depth (measured with f16 and bf16 on networks of 2 layers and on SmolLM2-135M with 30): the errors of its
//! layers are as independent as their contributions to the residual stream. The constants are fitted to those networks;
//! the exact check of every weight does not depend on them. With logits of standard deviation `s` over
//! the vocabulary, `σ = 8 s (u / √3 + 2⁻²⁴ √k)` is taken as the bound of a logit's error. The largest of some million
//! logits, of rows with more error than others, may be `16 σ` off; two tokens may change places where they were within
//! `6 σ`; the divergence of the distributions, about half the variance of the errors, may be `σ²` nats.

use std::path::Path;

use candle_core::Device;
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::shard::ExportDtype;
use super::witness::Witness;
use super::{Error, MergeOptions, Written, folder, read, text};
use crate::config::{BaseFormat, LoraConfig, Target};
use crate::generate::Generator;
use crate::model::weights::Precision;
use crate::model::{Adapter, Model, ModelSource, TokenizerBundle};
use draft::Draft;

/// Name of the proof beside an export's files.
pub const PROOF: &str = "proof.json";

/// Outcome of a proof, `proof.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Proof {
    /// What was exported.
    pub kind: ExportKind,
    /// Format of the weights.
    pub dtype: ExportDtype,
    /// The sum of the checks.
    pub verdict: Verdict,
    /// What was checked, with values and limits.
    pub checks: Vec<Check>,
    /// What a person should know, in sentences.
    pub remarks: Vec<String>,
    /// All values behind the checks.
    pub measured: Measured,
}

/// Kinds of exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
#[allow(missing_docs)]
pub enum ExportKind {
    Adapter,
    Merged,
}

/// The sum of a proof's checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum Verdict {
    /// Every check is met and there is nothing to add.
    Proven,
    /// Every check is met; differences within the limits are explained in the remarks.
    ProvenWithRemarks,
    /// A check is not met: the export does not behave like the trained model.
    NotProven,
}

/// One thing that was checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Check {
    /// Stable name: `loads`, `tokenizer`, `weights`, `change`, `tuned`, `logits`, `divergence`, `top1`, `greedy`.
    pub code: String,
    /// In words.
    pub name: String,
    /// What was found.
    pub value: String,
    /// Whether it is within the limit.
    pub ok: bool,
    /// What it has to be.
    pub limit: String,
}

/// The values of a proof. A value that is absent was not reached or is not a number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Measured {
    /// Prompts compared.
    pub n_prompts: usize,
    /// Positions whose logits were compared.
    pub n_logit_rows: usize,
    /// Standard deviation of the trained model's logits over the vocabulary.
    pub logit_scale: f64,
    /// Bound of the standard deviation of a logit's rounding error, see the module.
    pub sigma: f64,
    /// Why the limits are what they are.
    pub tolerance_reason: String,
    /// Largest difference of a logit from the trained model's.
    pub max_abs_difference: Option<f64>,
    /// Mean divergence of the next-token distributions from the trained model's, nats.
    pub mean_kl: Option<f64>,
    /// Largest of these.
    pub max_kl: Option<f64>,
    /// Positions with the trained model's most probable token.
    pub n_top1_equal: Option<usize>,
    /// The same between the trained model and its base: how much the training changed.
    pub base_max_abs_difference: Option<f64>,
    /// Mean divergence of the base's distributions from the trained model's, nats.
    pub base_mean_kl: Option<f64>,
    /// Greedy answers.
    pub answers: Vec<AnswerCheck>,
    /// Change of every adapted layer.
    pub layers: Vec<LayerChange>,
    /// Tensors that are not what base and adapter give.
    pub wrong_tensors: Vec<String>,
}

/// A greedy answer of the export beside the trained model's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct AnswerCheck {
    /// Of the trained model.
    pub n_tokens: usize,
    /// First generated token that differs, from 0.
    pub first_difference: Option<usize>,
    /// How far apart the trained model had the two tokens there; absent where the export's was not among its best.
    pub gap: Option<f64>,
    /// Text of the trained model.
    pub trained: String,
    /// Text of the export.
    pub exported: String,
}

/// What training changed in a layer, as the export has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct LayerChange {
    /// Block, from 0.
    pub layer: usize,
    /// Linear layer.
    pub target: Target,
    /// Frobenius norm of exported minus base weight.
    pub change: f64,
    /// Change over the base weight's norm; absent where the base was not read.
    pub relative: Option<f64>,
    /// Share of the adapter's change that is in the exported weight: 1 but for rounding; absent for an adapter.
    pub retained: Option<f64>,
}

impl Proof {
    /// Writes `proof.json` into the export.
    pub fn save(&self, export: &Path) -> Result<(), Error> {
        let value = serde_json::to_value(self).unwrap_or_default();
        folder::add_file(export, PROOF, &text::pretty(&value))
    }

    /// Whether the export may be used as the trained model.
    pub fn is_proven(&self) -> bool {
        self.verdict != Verdict::NotProven
    }
}

/// Compares a merged export with the trained model. `witness` was recorded from the trained model; `options` are those
/// of the export. Faults of the export make the proof fail; errors are faults of the base or of this machine.
///
/// `progress(done, total)` counts tensors.
pub fn prove_merged(
    source: &ModelSource,
    adapter: &Adapter,
    bundle: &TokenizerBundle,
    witness: &Witness,
    options: &MergeOptions,
    written: &Written,
    device: &Device,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Proof, Error> {
    let mut proof = Draft::new(ExportKind::Merged, written.dtype, source.shape(), witness);
    let opened = ModelSource::open(&written.path).and_then(|export| {
        let tokenizer = export.tokenizer()?;
        export.check_vocabulary(&tokenizer)?;
        Ok((export, tokenizer))
    });
    let (export, tokenizer) = match opened {
        Ok(opened) => opened,
        Err(error) => return Ok(proof.does_not_load(&error)),
    };
    proof.tokenizer(bundle, &tokenizer, witness, &options.stop_ids);
    proof.merged_weights(source, adapter, options.base, &export, progress)?;
    match Model::load(&export, &LoraConfig::none(), Precision::f32(BaseFormat::F32), device) {
        Ok(model) => {
            proof.loads();
            proof.behaviour(witness, &mut Generator::new(&model, None)?, &tokenizer)?;
        }
        Err(error) => return Ok(proof.does_not_load(&error)),
    }
    Ok(proof.finish())
}

/// Compares an exported adapter with the trained one, both on `model`, the base as it was loaded for training.
pub fn prove_adapter(
    source: &ModelSource,
    model: &Model,
    adapter: &Adapter,
    bundle: &TokenizerBundle,
    witness: &Witness,
    export: &Path,
) -> Result<Proof, Error> {
    let mut proof = Draft::new(ExportKind::Adapter, ExportDtype::F32, source.shape(), witness);
    let read = match read::read_adapter(export, source.shape(), model.device()) {
        Ok(read) => read,
        Err(error) => return Ok(proof.does_not_load(&error)),
    };
    let tokenizer = match TokenizerBundle::open(export) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return Ok(proof.does_not_load(&error)),
    };
    proof.loads();
    proof.tokenizer(bundle, &tokenizer, witness, &[]);
    proof.adapter_weights(adapter, &read)?;
    // Rank and targets decide the padding the model was loaded with.
    if read.lora().rank == adapter.lora().rank && read.lora().targets == adapter.lora().targets {
        let mut generator = Generator::new(model, Some(&read))?;
        proof.behaviour(witness, &mut generator, &tokenizer)?;
        drop(generator);
        // The model's padding holds the trained adapter again.
        model.place_adapter(adapter, None)?;
    }
    Ok(proof.finish())
}

mod draft;

#[cfg(test)]
mod tests;
