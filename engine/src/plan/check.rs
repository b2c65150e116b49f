//! Wishes that make no sense, found before anything is planned.

use super::Error;
use crate::config::{BaseFormat, ComputeDtype, RunConfig};
use crate::data::DataStats;
use crate::hardware::{Hardware, TrainOn};
use crate::model::ModelShape;
use crate::ops::attention::HEAD_DIMS;

/// Refuses what cannot be planned, naming the field.
pub(super) fn check(
    shape: &ModelShape,
    data: &DataStats,
    config: &RunConfig,
    hardware: &Hardware,
) -> Result<(), Error> {
    if data.n_examples == 0 {
        return Err(Error::NoExamples);
    }
    if data.n_learned_tokens == 0 {
        return Err(Error::NothingLearned { n_tokens: data.n_tokens });
    }
    wishes(shape, config, hardware)
}

/// The same of what does not depend on the data.
pub(super) fn wishes(shape: &ModelShape, config: &RunConfig, hardware: &Hardware) -> Result<(), Error> {
    heads(shape, hardware)?;
    adapter(config)?;
    optimizer(config)?;
    precision(config, hardware)?;
    places(config, hardware)?;
    let counts = [
        ("micro_batch", config.micro_batch),
        ("accumulation", config.accumulation),
        ("effective_batch", config.effective_batch),
        ("mlp_rows", config.mlp_rows),
        ("data.length", config.data.length),
        ("max_steps", config.max_steps),
        ("evaluation.every_steps", config.evaluation.every_steps),
        ("evaluation.patience", config.evaluation.patience),
        ("checkpoints.every_steps", config.checkpoints.every_steps),
    ];
    let may_be_zero = [
        ("n_layers_eased", config.n_layers_eased),
        ("n_layers_streamed", config.n_layers_streamed),
        ("n_layers_cached", config.n_layers_cached),
        ("evaluation.n_samples", Some(config.evaluation.n_samples)),
        ("checkpoints.keep", Some(config.checkpoints.keep)),
    ];
    for (field, value) in counts {
        range(value != Some(0), field, 0, "at least 1")?;
    }
    for (field, value) in counts.into_iter().chain(may_be_zero) {
        // Products of two of these stay far inside u64.
        range(value.is_none_or(|n| n <= 1 << 24), field, value.unwrap_or(0), "at most 16777216")?;
    }
    range(config.data.length != Some(1), "data.length", 1, "at least 2: one token to read, one to predict")?;
    if let Some(length) = config.data.length.filter(|&length| length > shape.max_positions) {
        return Err(Error::LengthPastModel { length, max_positions: shape.max_positions });
    }
    let epochs = config.epochs.unwrap_or(1.0);
    range(epochs > 0.0 && epochs <= 1e6, "epochs", epochs, "above 0 and at most 1000000")?;
    let fraction = config.evaluation.fraction;
    range((0.0..1.0).contains(&fraction), "evaluation.fraction", fraction, "at least 0 and below 1")?;
    prices(config)?;
    batch(config)
}

fn prices(config: &RunConfig) -> Result<(), Error> {
    let Some(prices) = &config.prices else { return Ok(()) };
    let values =
        [("prices.per_kwh", prices.per_kwh), ("prices.per_hour", prices.per_hour), ("prices.power_w", prices.power_w)];
    for (field, value) in values {
        let is_price = value.is_none_or(|value| value.is_finite() && value >= 0.0);
        range(is_price, field, value.unwrap_or(0.0), "at least 0 and finite")?;
    }
    Ok(())
}

fn adapter(config: &RunConfig) -> Result<(), Error> {
    let lora = &config.lora;
    range((1..=4096).contains(&lora.rank), "lora.rank", lora.rank, "from 1 to 4096")?;
    range(lora.alpha > 0.0 && lora.alpha.is_finite(), "lora.alpha", lora.alpha, "above 0 and finite")?;
    range((0.0..1.0).contains(&lora.dropout), "lora.dropout", lora.dropout, "at least 0 and below 1")?;
    if lora.targets.is_empty() {
        return Err(Error::NoTargets);
    }
    for (i, target) in lora.targets.iter().enumerate() {
        if lora.targets[..i].contains(target) {
            return Err(Error::RepeatedTarget { target: target.module() });
        }
    }
    Ok(())
}

/// Refuses widths of heads for which a card's attention has no kernels.
pub(super) fn heads(shape: &ModelShape, hardware: &Hardware) -> Result<(), Error> {
    match hardware.training_card() {
        Some(card) if !HEAD_DIMS.contains(&shape.head_dim) => {
            Err(Error::NoKernel { device: card.name.clone(), head_dim: shape.head_dim })
        }
        _ => Ok(()),
    }
}

/// Refuses number formats that the hardware lacks or that contradict each other.
pub(super) fn precision(config: &RunConfig, hardware: &Hardware) -> Result<(), Error> {
    let compute = config.compute.unwrap_or(hardware.compute_dtype());
    if !hardware.computes_in(compute) {
        let (device, instead) = (hardware.device_name().into(), hardware.compute_dtype().name());
        return Err(Error::NoCompute { device, compute: compute.name(), instead });
    }
    let contradiction = |base| Err(Error::BaseContradiction { base, compute: compute.name() });
    match (config.base, compute) {
        (Some(BaseFormat::F32), ComputeDtype::Bf16 | ComputeDtype::F16) => contradiction("f32"),
        (Some(BaseFormat::Half), ComputeDtype::F32) => contradiction("half"),
        _ => Ok(()),
    }
}

/// What waits in system memory must have somewhere else to go.
fn places(config: &RunConfig, hardware: &Hardware) -> Result<(), Error> {
    let n_streamed = config.n_layers_streamed.unwrap_or(0);
    let has_card = hardware.train_on == TrainOn::Card;
    let offloads = config.offload_inputs == Some(true);
    range(has_card || !offloads, "offload_inputs", offloads, "false where the run trains in system memory")?;
    range(has_card || n_streamed == 0, "n_layers_streamed", n_streamed, "0 where the run trains in system memory")?;
    let is_nf4 = config.base.is_none_or(|base| base == BaseFormat::Nf4);
    range(is_nf4 || n_streamed == 0, "n_layers_streamed", n_streamed, "0 for a base that is not NF4")?;
    let n_cached = config.n_layers_cached.unwrap_or(0);
    range(is_nf4 || n_cached == 0, "n_layers_cached", n_cached, "0 for a base that is not NF4")
}

fn optimizer(config: &RunConfig) -> Result<(), Error> {
    let o = &config.optimizer;
    let positive = |value: f64| value > 0.0 && value.is_finite();
    let not_negative = |value: f64| value >= 0.0 && value.is_finite();
    range(positive(o.learning_rate), "optimizer.learning_rate", o.learning_rate, "above 0 and finite")?;
    range((0.0..1.0).contains(&o.beta1), "optimizer.beta1", o.beta1, "at least 0 and below 1")?;
    range((0.0..1.0).contains(&o.beta2), "optimizer.beta2", o.beta2, "at least 0 and below 1")?;
    range(positive(o.epsilon), "optimizer.epsilon", o.epsilon, "above 0 and finite")?;
    range(not_negative(o.weight_decay), "optimizer.weight_decay", o.weight_decay, "at least 0 and finite")?;
    range(not_negative(o.max_grad_norm), "optimizer.max_grad_norm", o.max_grad_norm, "at least 0 and finite")
}

fn batch(config: &RunConfig) -> Result<(), Error> {
    let Some(effective_batch) = config.effective_batch else { return Ok(()) };
    match (config.micro_batch, config.accumulation) {
        (Some(micro_batch), Some(accumulation)) if micro_batch * accumulation != effective_batch => {
            Err(Error::BatchContradiction { micro_batch, accumulation, effective_batch })
        }
        (Some(value), None) if effective_batch % value != 0 => {
            Err(Error::BatchNotDivisible { field: "micro_batch", value, effective_batch })
        }
        (None, Some(value)) if effective_batch % value != 0 => {
            Err(Error::BatchNotDivisible { field: "accumulation", value, effective_batch })
        }
        _ => Ok(()),
    }
}

fn range(ok: bool, field: &'static str, value: impl ToString, allowed: &'static str) -> Result<(), Error> {
    if ok { Ok(()) } else { Err(Error::OutOfRange { field, value: value.to_string(), allowed }) }
}
