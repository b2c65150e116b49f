//! Work and time of a step: floating-point operations from the shape, rates from the hardware or from measurements.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::config::{BaseFormat, ComputeDtype, LoraConfig, OptimizerKind, Recompute, Settings, Target};
pub use crate::hardware::Basis;
use crate::hardware::{Hardware, MeasuredRate, Prediction};
use crate::model::ModelShape;
use crate::ops::adamw::Moments;

/// How long a run takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct TimeEstimate {
    /// Tokens processed per second of training.
    pub tokens_per_s: f64,
    /// Where that is from.
    pub basis: Basis,
    /// The same in words.
    pub basis_words: String,
    /// Half width of the range to expect, as a share of the time: 0.05 is ± 5 %.
    pub plus_minus: f64,
    /// One optimizer step; the last of a pass may be smaller.
    pub step_s: f64,
    /// All evaluations together; answers to held-out prompts are not in it.
    pub evaluation_s: f64,
    /// Steps and evaluations.
    pub total_s: f64,
    /// Optimizer steps.
    pub n_steps: usize,
    /// Passes over the data.
    pub epochs: f64,
    /// Tokens of the whole run.
    #[ts(type = "number")]
    pub n_tokens: u64,
    /// Tokens of one optimizer step.
    #[ts(type = "number")]
    pub n_tokens_per_step: u64,
}

impl TimeEstimate {
    /// The same where steps and tokens are known and not estimated.
    pub(crate) fn set_extent(&mut self, n_steps: usize, n_tokens: u64) {
        self.total_s = n_tokens as f64 / self.tokens_per_s + self.evaluation_s;
        (self.n_steps, self.n_tokens) = (n_steps, n_tokens);
    }
}

/// Elements of all A `[rank, in]` and B `[out, rank]`.
pub(super) fn lora_elements(shape: &ModelShape, lora: &LoraConfig) -> u64 {
    let widths: u64 = lora.targets.iter().map(|&target| shape.linear(target)).map(|(o, i)| (o + i) as u64).sum();
    lora.rank as u64 * widths * shape.n_layers as u64
}

/// State of `n` trained elements: two moments, in 8 bit with two f32 scales for each block of 256.
pub(super) fn optimizer_bytes(n: u64, kind: OptimizerKind) -> u64 {
    let bytes = match kind {
        OptimizerKind::AdamW32 => Moments::f32_bytes,
        OptimizerKind::AdamW8 => Moments::u8_bytes,
    };
    bytes(n as usize) as u64
}

/// Name under which measured rates of this shape are kept.
pub fn model_key(shape: &ModelShape) -> String {
    format!("{}-{}x{}-ffn{}-vocab{}", shape.family, shape.n_layers, shape.hidden, shape.ffn, shape.vocab_rows)
}

/// A recompute mode, and the share of the layers that are one step easier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mix {
    pub(super) mode: Recompute,
    pub(super) eased: f64,
}

impl Mix {
    /// `n_eased` of `n_layers` layers recompute one step less than `mode`.
    pub(super) fn new(mode: Recompute, n_eased: usize, n_layers: usize) -> Self {
        Mix { mode, eased: n_eased.min(n_layers) as f64 / n_layers.max(1) as f64 }
    }

    /// That of settings.
    pub(super) fn of(settings: &Settings, n_layers: usize) -> Self {
        Self::new(settings.recompute, settings.n_layers_eased, n_layers)
    }

    fn mean(self, of: impl Fn(Recompute) -> f64) -> f64 {
        (1.0 - self.eased) * of(self.mode) + self.eased * of(self.mode.eased())
    }
}

/// Floating-point operations of one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Flops {
    pub(super) forward: f64,
    pub(super) backward: f64,
    pub(super) recompute: f64,
}

impl Flops {
    /// Per token of a document of `attended` tokens, of which a share of `learned` reaches the head.
    ///
    /// ```text
    /// forward    2LP + 2Vh·learned + 2s·q·L + 2rSL      P: elements of a layer's linears, S: sum of in + out adapted
    /// backward   2LP + 2Vh·learned + 5s·q·L + 4rSL      no dW for frozen weights
    /// recompute  N 0, C1 2L(P_qkv + P_gate,up), C0 2L(P − P_down) + 2s·q·L
    /// ```
    pub(super) fn per_token(
        shape: &ModelShape,
        lora: &LoraConfig,
        recompute: Mix,
        attended: f64,
        learned: f64,
    ) -> Self {
        let elements = |targets: &[Target]| -> f64 {
            targets.iter().map(|&target| shape.linear(target)).map(|(o, i)| o as f64 * i as f64).sum()
        };
        let layers = shape.n_layers as f64;
        let linears = 2.0 * layers * elements(&Target::ALL);
        let head = 2.0 * shape.vocab_rows as f64 * shape.hidden as f64 * learned;
        // Causal: half of the square.
        let attention = 2.0 * attended * shape.q_dim() as f64 * layers;
        let adapter = 2.0 * lora_elements(shape, lora) as f64;
        Flops {
            forward: linears + head + attention + adapter,
            backward: linears + head + 2.5 * attention + 2.0 * adapter,
            recompute: recompute.mean(|mode| match mode {
                Recompute::N => 0.0,
                Recompute::C1 => 2.0 * layers * elements(&[Target::Q, Target::K, Target::V, Target::Gate, Target::Up]),
                Recompute::C0 => linears - 2.0 * layers * elements(&[Target::Down]) + attention,
            }),
        }
    }

    pub(super) fn total(&self) -> f64 {
        self.forward + self.backward + self.recompute
    }
}

/// What the hardware does per second.
#[derive(Clone, Debug, PartialEq)]
struct Rates {
    flops_per_s: f64,
    bytes_per_s: f64,
    /// Tokens of a micro-batch at which matrix products reach half their rate.
    half_tokens: f64,
}

/// f32 matrix products in a step, per physical core: what two cores of current processors reach in whole steps (75 of
/// the 100 to 120 of a bare product), and what cores beyond the eighth add, which share memory bandwidth and power.
const CORE_FLOPS_PER_S: f64 = 75e9;
const FURTHER_CORE_FLOPS_PER_S: f64 = 40e9;
const FAST_CORES: usize = 8;
/// Two channels of DDR4 under load.
const SYSTEM_BYTES_PER_S: f64 = 20e9;
/// Of a card's matrix and copy rates, what whole steps are assumed to reach.
const CARD_SHARE: f64 = 0.7;
const COPY_SHARE: f64 = 0.85;
/// A card nobody described: taken for a slow one.
const UNKNOWN_CARD_FLOPS_PER_S: f64 = 25e12;
const UNKNOWN_CARD_BYTES_PER_S: f64 = 250e9;
/// Of system memory and of a card.
const HALF_TOKENS: f64 = 16.0;
const CARD_HALF_TOKENS: f64 = 64.0;

/// To expect around a time, by its basis, until [`LEAST_PAST`] runs on the device have ended: then it is as far off as nine of ten
/// of the last [`MOST_PAST`] predictions of that basis were, and at least [`LEAST_PLUS_MINUS`].
const MEASURED_PLUS_MINUS: f64 = 0.05;
const SCALED_PLUS_MINUS: f64 = 0.15;
const CALCULATED_PLUS_MINUS: f64 = 0.35;
const LEAST_PAST: usize = 3;
const MOST_PAST: usize = 20;
const LEAST_PLUS_MINUS: f64 = 0.02;

/// Half width of the range to expect around a time of this basis.
pub(super) fn plus_minus(hardware: &Hardware, basis: Basis) -> f64 {
    let mine = |p: &&Prediction| p.device == hardware.device_name() && p.basis == basis;
    let past = hardware.measurements.predictions.iter().rev().filter(mine).take(MOST_PAST);
    let mut off: Vec<f64> =
        past.map(|p| (p.measured_s / p.predicted_s - 1.0).abs()).filter(|x| x.is_finite()).collect();
    if off.len() < LEAST_PAST {
        return match basis {
            Basis::Measured => MEASURED_PLUS_MINUS,
            Basis::Scaled => SCALED_PLUS_MINUS,
            Basis::Calculated => CALCULATED_PLUS_MINUS,
        };
    }
    off.sort_by(f64::total_cmp);
    off[(off.len() * 9).div_ceil(10) - 1].max(LEAST_PLUS_MINUS)
}

/// Bytes that runs on some hardware took beside their buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overhead {
    /// Of this model.
    own: Option<u64>,
    /// The most that any model took.
    most: u64,
}

impl Overhead {
    pub(super) fn measured(hardware: &Hardware, shape: &ModelShape) -> Self {
        let key = model_key(shape);
        let mine = || hardware.measurements.overheads.iter().filter(|o| o.device == hardware.device_name());
        let own = mine().find(|overhead| overhead.model == key).map(|overhead| overhead.bytes);
        Self { own, most: mine().map(|overhead| overhead.bytes).max().unwrap_or(0) }
    }

    /// Of this model what it took itself; where it has not run, the most that others took, and no less than `assumed`.
    pub(super) fn bytes(self, assumed: u64) -> u64 {
        self.own.unwrap_or(self.most.max(assumed))
    }
}

fn rates(hardware: &Hardware) -> Rates {
    match hardware.training_card() {
        None => {
            let n = hardware.processor.n_cores.max(1);
            let fast = n.min(FAST_CORES) as f64 * CORE_FLOPS_PER_S;
            Rates {
                flops_per_s: fast + n.saturating_sub(FAST_CORES) as f64 * FURTHER_CORE_FLOPS_PER_S,
                bytes_per_s: SYSTEM_BYTES_PER_S,
                half_tokens: HALF_TOKENS,
            }
        }
        Some(card) => Rates {
            flops_per_s: CARD_SHARE * card.tensor_flops_per_s.unwrap_or(UNKNOWN_CARD_FLOPS_PER_S),
            bytes_per_s: COPY_SHARE * card.bandwidth_bytes_per_s.unwrap_or(UNKNOWN_CARD_BYTES_PER_S),
            half_tokens: CARD_HALF_TOKENS,
        },
    }
}

/// Where a speed is from, in words.
pub(super) fn basis_words(basis: Basis, hardware: &Hardware) -> String {
    match (basis, hardware.training_card()) {
        (Basis::Measured, _) => "measured with this model on this hardware".into(),
        (Basis::Scaled, _) => "converted from another measurement of this model on this hardware".into(),
        (Basis::Calculated, None) => {
            let cores = crate::format::counted(hardware.processor.n_cores.max(1), "core");
            let rate = rates(hardware).flops_per_s / 1e9;
            format!("calculated from {cores} at {rate:.0} GFLOP/s in all")
        }
        (Basis::Calculated, Some(card)) => match card.tensor_flops_per_s {
            Some(rate) => format!("calculated from {:.0} % of {:.1} TFLOP/s", CARD_SHARE * 100.0, rate / 1e12),
            None => "calculated as for a slow card: the rate of this one is not known".into(),
        },
    }
}

/// NF4 with its constants.
const NF4_WEIGHT_BYTES: f64 = 0.5 + 1.0 / 64.0 + 4.0 / (64.0 * 256.0);

/// Bytes read and written to dequantise all linears once: NF4 with its constants in, the compute type out.
fn dequantise_bytes(shape: &ModelShape, compute: ComputeDtype) -> f64 {
    shape.linear_params() as f64 * (NF4_WEIGHT_BYTES + compute.size_bytes() as f64)
}

/// How often a micro-batch dequantises the linears.
fn dequantise_passes(shape: &ModelShape, load: &Load) -> f64 {
    let &Load { base, recompute, mlp_parts, cached, .. } = load;
    if base != BaseFormat::Nf4 {
        return 0.0;
    }
    let all: f64 = Target::ALL.iter().map(|&t| shape.linear(t)).map(|(o, i)| (o * i) as f64).sum();
    let share = |targets: &[Target]| -> f64 {
        targets.iter().map(|&t| shape.linear(t)).map(|(o, i)| (o * i) as f64).sum::<f64>() / all
    };
    // Every part of an MLP needs its weights anew.
    let (down, gate_up) = (share(&[Target::Down]), share(&[Target::Gate, Target::Up]));
    let (down_more, gate_up_more) = (down * (mlp_parts - 1.0), gate_up * (mlp_parts - 1.0));
    let recomputing = recompute.mean(|mode| match mode {
        Recompute::N => 0.0,
        Recompute::C1 => share(&[Target::Q, Target::K, Target::V, Target::Gate, Target::Up]) + gate_up_more,
        Recompute::C0 => 1.0 - down + gate_up_more,
    });
    (1.0 - cached) * (2.0 + 2.0 * (down_more + gate_up_more) + recomputing)
}

/// A link nobody described: taken for a slow one, PCIe 3.0 x8.
const UNKNOWN_LINK_BYTES_PER_S: f64 = 6e9;

/// Seconds of a micro-batch in which a card waits for its link, where inputs or weights wait in system memory: what the copies of a
/// pass take beyond its computing, which goes on beside them. `computing_s` is that of the whole micro-batch.
pub(super) fn waiting_s(
    shape: &ModelShape,
    hardware: &Hardware,
    settings: &Settings,
    load: &Load,
    computing_s: f64,
) -> f64 {
    let Some(card) = hardware.training_card() else { return 0.0 };
    if !settings.offload_inputs && settings.n_layers_streamed == 0 {
        return 0.0;
    }
    let link = card.bus_bytes_per_s.unwrap_or(UNKNOWN_LINK_BYTES_PER_S);
    let inputs = if settings.offload_inputs {
        load.tokens * (shape.hidden * (shape.n_layers - 1)) as f64 * settings.compute.size_bytes() as f64
    } else {
        0.0
    };
    let layer_bytes = shape.linear_params() as f64 / shape.n_layers as f64 * NF4_WEIGHT_BYTES;
    let weights = settings.n_layers_streamed.saturating_sub(2) as f64 * layer_bytes;
    // Weights come beside the computing of their neighbours only.
    let streamed_share = settings.n_layers_streamed as f64 / shape.n_layers as f64;
    let forward = computing_s * load.flops.forward / load.flops.total();
    let backward = computing_s - forward;
    let pass = |computing: f64, inputs: f64, weights: f64| {
        // Inputs go and weights come on lanes of their own.
        let (inputs, weights) = (inputs / link - computing, weights / link - computing * streamed_share);
        inputs.max(weights).max(0.0)
    };
    pass(forward, inputs, weights) + pass(backward, inputs, weights)
}

/// The load of one micro-batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) base: BaseFormat,
    pub(super) recompute: Mix,
    /// Mean tokens of a micro-batch.
    pub(super) tokens: f64,
    pub(super) flops: Flops,
    /// Parts in which an MLP is computed.
    pub(super) mlp_parts: f64,
    /// Share of the layers whose weights stay dequantised.
    pub(super) cached: f64,
}

fn calculated(shape: &ModelShape, rates: &Rates, compute: ComputeDtype, load: &Load) -> f64 {
    // Small products are slower per operation: a fixed cost of `half_tokens` a micro-batch.
    let products = load.flops.total() * (load.tokens + rates.half_tokens) / rates.flops_per_s;
    let dequantise = dequantise_passes(shape, load) * dequantise_bytes(shape, compute) / rates.bytes_per_s;
    load.tokens / (products + dequantise)
}

/// Speed of a load, with its basis.
#[derive(Clone, Debug)]
pub(super) struct Speed {
    pub(super) tokens_per_s: f64,
    pub(super) basis: Basis,
}

/// Rates of this model on this hardware: another model's says little about this one's operations.
pub(super) fn measured<'h>(hardware: &'h Hardware, shape: &ModelShape) -> Vec<&'h MeasuredRate> {
    let key = model_key(shape);
    let is_mine = |rate: &&MeasuredRate| {
        (rate.device == hardware.device_name() && rate.model == key)
            && rate.tokens_per_s.is_finite()
            && rate.tokens_per_s > 0.0
    };
    hardware.measurements.rates.iter().filter(is_mine).collect()
}

/// Tokens per second, measured where it was, else converted from the nearest of what was `measured`, else calculated.
pub(super) fn speed(
    shape: &ModelShape,
    hardware: &Hardware,
    measured: &[&MeasuredRate],
    settings: &Settings,
    load: &Load,
    attended: f64,
    learned: f64,
) -> Speed {
    let rates = rates(hardware);
    let plain = calculated(shape, &rates, settings.compute, load);
    let ratio = |measured: usize, here: f64| (measured.max(1) as f64 / here.max(1.0)).ln().abs();
    let mix = |rate: &MeasuredRate| Mix::new(rate.recompute, rate.n_layers_eased, shape.n_layers);
    let cached = |rate: &MeasuredRate| rate.n_layers_cached as f64 / shape.n_layers as f64;
    let has_other_adapter =
        |rate: &MeasuredRate| (rate.rank, &rate.targets) != (settings.lora.rank, &settings.lora.targets);
    // How far off a measurement is: first what it computed, then how long and how many its sequences were.
    let distance = |rate: &MeasuredRate| {
        let length = if rate.length == 0 { 0.0 } else { ratio(rate.length, settings.length as f64) };
        let size = ratio(rate.micro_batch_tokens, load.tokens) + length;
        let mode = (rate.base != load.base, mix(rate) != load.recompute, cached(rate) != load.cached);
        (mode, has_other_adapter(rate), rate.compute.is_none(), size)
    };
    // Another type's speed says nothing of this one's.
    let is_alike = |rate: &&&MeasuredRate| rate.compute.is_none_or(|compute| compute == settings.compute);
    // Of equally near ones the newest, which is the last.
    let nearest = measured.iter().rev().filter(is_alike).min_by(|a, b| {
        let (a, b) = (distance(a), distance(b));
        (a.0, a.1, a.2).cmp(&(b.0, b.1, b.2)).then(a.3.total_cmp(&b.3))
    });
    let Some(rate) = nearest else {
        return Speed { tokens_per_s: plain, basis: Basis::Calculated };
    };
    // Sequences of another limit are taken to be longer or shorter alike.
    let longer = if rate.length == 0 { 1.0 } else { rate.length as f64 / settings.length.max(1) as f64 };
    let lora = match rate.rank {
        // Of an earlier version, which did not say.
        0 => settings.lora.clone(),
        rank => LoraConfig { rank, targets: rate.targets.clone(), ..LoraConfig::none() },
    };
    let measured_load = Load {
        base: rate.base,
        recompute: mix(rate),
        tokens: rate.micro_batch_tokens.max(1) as f64,
        flops: Flops::per_token(shape, &lora, mix(rate), attended * longer, learned),
        mlp_parts: 1.0,
        cached: cached(rate),
    };
    let tokens_per_s = plain * rate.tokens_per_s / calculated(shape, &rates, settings.compute, &measured_load);
    let (other_mode, other_adapter, _, size) = distance(rate);
    // Nothing of what is remembered was measured in parts or over a link.
    let same = other_mode == (false, false, false) && !other_adapter && !settings.is_stretched() && size < 2f64.ln();
    let basis = if same { Basis::Measured } else { Basis::Scaled };
    Speed { tokens_per_s, basis }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::{llama_1b, llama_8b};

    /// GFLOP per token at rank 16 on all linears, every token learned, full documents of s tokens.
    #[test]
    fn operations_per_token_match_the_published_formulas() {
        let lora = LoraConfig::default();
        let expected = [
            (llama_8b(), 512.0, [30.7, 39.9, 41.1]),
            (llama_8b(), 2048.0, [32.2, 41.3, 42.9]),
            (llama_8b(), 8192.0, [37.8, 46.9, 50.1]),
            (llama_1b(), 512.0, [5.13, 6.40, 6.57]),
            (llama_1b(), 2048.0, [5.48, 6.76, 7.02]),
        ];
        for (shape, s, giga) in expected {
            for (mode, giga) in [Recompute::N, Recompute::C1, Recompute::C0].into_iter().zip(giga) {
                let got = Flops::per_token(&shape, &lora, Mix::new(mode, 0, 1), s, 1.0).total() / 1e9;
                assert!((got / giga - 1.0).abs() < 0.003, "{} {s} {mode:?}: {got} for {giga}", shape.n_layers);
            }
        }
    }

    #[test]
    fn the_error_bar_is_what_nine_of_ten_past_predictions_of_its_kind_were_within() {
        let mut hardware = crate::hardware::profile("no-card").expect("bundled").hardware();
        let device = hardware.device_name().to_string();
        let past = |basis, measured_s| Prediction {
            device: device.clone(),
            model: "m".into(),
            run_id: "r".into(),
            basis,
            n_steps: 9,
            predicted_s: 100.0,
            rehearsed_s: None,
            measured_s,
            predicted_bytes: 0,
            measured_bytes: 0,
            time_ms: 0,
        };
        let (measured, calculated) = (Basis::Measured, Basis::Calculated);
        let mut predictions = vec![past(measured, 103.0), past(measured, 92.0), past(calculated, 170.0)];
        hardware.measurements.predictions = predictions.clone();
        assert_eq!(plus_minus(&hardware, measured), MEASURED_PLUS_MINUS, "two say nothing yet");
        predictions.push(past(measured, 101.0));
        hardware.measurements.predictions = predictions.clone();
        assert!((plus_minus(&hardware, measured) - 0.08).abs() < 1e-12, "the worst of three");
        assert_eq!(plus_minus(&hardware, calculated), CALCULATED_PLUS_MINUS);
        // Of twenty the two worst do not count; older ones are forgotten.
        predictions.extend((0..20).map(|i| past(measured, if i < 2 { 150.0 } else { 101.0 })));
        hardware.measurements.predictions = predictions.clone();
        assert_eq!(plus_minus(&hardware, measured), LEAST_PLUS_MINUS);
        predictions.iter_mut().for_each(|p| p.device = "another".into());
        hardware.measurements.predictions = predictions;
        assert_eq!(plus_minus(&hardware, measured), MEASURED_PLUS_MINUS);
    }

    #[test]
    fn an_overhead_of_this_model_is_taken_as_measured_and_of_others_only_where_it_is_more() {
        let mut hardware = crate::hardware::profile("no-card").expect("bundled").hardware();
        let shape = llama_1b();
        assert_eq!(Overhead::measured(&hardware, &shape).bytes(100), 100);
        let device = hardware.device_name().to_string();
        let measured = |model: &str, bytes| crate::hardware::MeasuredOverhead {
            device: device.clone(),
            model: model.into(),
            bytes,
            time_ms: 0,
        };
        let (less, more, own) = (measured("a", 50), measured("b", 200), measured(&model_key(&shape), 70));
        hardware.measurements.overheads = vec![less.clone()];
        assert_eq!(Overhead::measured(&hardware, &shape).bytes(100), 100);
        hardware.measurements.overheads = vec![less.clone(), more.clone()];
        assert_eq!(Overhead::measured(&hardware, &shape).bytes(100), 200);
        hardware.measurements.overheads = vec![less, more, own];
        assert_eq!(Overhead::measured(&hardware, &shape).bytes(100), 70);
    }

    #[test]
    fn eight_bit_state_is_a_quarter_of_32_bit_state_and_its_scales() {
        assert_eq!(optimizer_bytes(256_000, OptimizerKind::AdamW32), 2_048_000);
        assert_eq!(optimizer_bytes(256_000, OptimizerKind::AdamW8), 512_000 + 8_000);
    }
}
