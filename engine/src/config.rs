//! What a person asks for ([`RunConfig`]) and what it was resolved to ([`Settings`]).
//!
//! `RunConfig` is the stable input format (window, `hearth train --config`, `run.toml`). Every field that Hearth can
//! propose is an `Option`; [`crate::plan::plan`] resolves them once into `Settings`, which has none. Nothing after the
//! plan looks at a `RunConfig` again.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::hardware::TrainOn;

/// Version of the `RunConfig` and `TrainEvent` formats; raised when an older reader would misread a file.
pub const FORMAT_VERSION: u32 = 1;

/// What a person asks for. Missing optional fields are proposed by the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(deny_unknown_fields)]
#[ts(export)]
pub struct RunConfig {
    /// [`FORMAT_VERSION`] of the writer.
    #[serde(default = "format_version")]
    pub version: u32,
    /// Shown in the run list; becomes part of the run id.
    #[serde(default)]
    pub name: String,
    /// Hugging Face folder or GGUF file of the base model.
    pub model: PathBuf,
    /// The examples.
    pub data: DataConfig,
    /// How the base weights are held.
    #[serde(default)]
    pub base: Option<BaseFormat>,
    /// Element type the step computes in.
    #[serde(default)]
    pub compute: Option<ComputeDtype>,
    /// The adapter that is trained.
    #[serde(default)]
    pub lora: LoraConfig,
    /// Sequences per micro-batch.
    #[serde(default)]
    pub micro_batch: Option<usize>,
    /// Micro-batches per optimizer step.
    #[serde(default)]
    pub accumulation: Option<usize>,
    /// Sequences per optimizer step; `micro_batch * accumulation` where both are given.
    #[serde(default)]
    pub effective_batch: Option<usize>,
    /// Keep the embedding in system memory, where a card reads the rows it needs. Exact, and all but free.
    #[serde(default)]
    pub embedding_on_host: Option<bool>,
    /// What the forward pass keeps for the backward pass.
    #[serde(default)]
    pub recompute: Option<Recompute>,
    /// The last layers, this many, recompute one step less than `recompute` says: C1 instead of C0, nothing instead of C1.
    #[serde(default)]
    pub n_layers_eased: Option<usize>,
    /// Keep the layers' inputs in system memory between forward and backward pass, copied while the card computes.
    #[serde(default)]
    pub offload_inputs: Option<bool>,
    /// Rows that go through a layer's MLP at once; all of a micro-batch where it is as many.
    #[serde(default)]
    pub mlp_rows: Option<usize>,
    /// The first layers, this many, have their NF4 weights in system memory and come to the card when they are needed.
    #[serde(default)]
    pub n_layers_streamed: Option<usize>,
    /// The last layers, this many, have their NF4 weights also dequantised, so that no pass has to do it.
    #[serde(default)]
    pub n_layers_cached: Option<usize>,
    /// The optimizer and its rates.
    #[serde(default)]
    pub optimizer: OptimizerConfig,
    /// Passes over the data. Ignored where `max_steps` is given.
    #[serde(default)]
    pub epochs: Option<f64>,
    /// Optimizer steps, where given.
    #[serde(default)]
    pub max_steps: Option<usize>,
    /// Evaluation on held-out examples.
    #[serde(default)]
    pub evaluation: EvaluationConfig,
    /// When work is made safe.
    #[serde(default)]
    pub checkpoints: CheckpointConfig,
    /// Measure time and memory on the data before the first step; it leaves no trace in what is trained.
    #[serde(default = "yes")]
    pub rehearsal: bool,
    /// When a run slows down or pauses by itself.
    #[serde(default)]
    pub governor: GovernorConfig,
    /// Seeds adapter initialisation, data order and dropout.
    #[serde(default)]
    pub seed: u64,
    /// Never use more than this many bytes of device memory.
    #[serde(default)]
    pub memory_limit_bytes: Option<u64>,
    /// What energy and hours cost; nothing of the run depends on it.
    #[serde(default)]
    pub prices: Option<Prices>,
}

/// Prices by which a plan says what a run costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
#[serde(deny_unknown_fields)]
#[ts(export)]
pub struct Prices {
    /// As shown, "EUR"; may be empty.
    #[serde(default)]
    pub currency: String,
    /// Of a kilowatt-hour.
    #[serde(default)]
    pub per_kwh: Option<f64>,
    /// Of an hour of a rented computer.
    #[serde(default)]
    pub per_hour: Option<f64>,
    /// Watts that the computer draws while it trains, where they are known; else the plan takes them from the card.
    #[serde(default)]
    pub power_w: Option<f64>,
}

impl RunConfig {
    /// A nameless run of `model` on the examples in `data`, everything else left to the plan.
    pub fn new(model: PathBuf, data: PathBuf) -> Self {
        Self {
            version: FORMAT_VERSION,
            name: String::new(),
            model,
            data: DataConfig {
                path: data,
                evaluation_path: None,
                columns: None,
                length: None,
                over_length: OverLength::default(),
                packing: None,
            },
            base: None,
            compute: None,
            lora: LoraConfig::default(),
            micro_batch: None,
            accumulation: None,
            effective_batch: None,
            recompute: None,
            n_layers_eased: None,
            offload_inputs: None,
            mlp_rows: None,
            n_layers_streamed: None,
            n_layers_cached: None,
            embedding_on_host: None,
            optimizer: OptimizerConfig::default(),
            epochs: None,
            max_steps: None,
            evaluation: EvaluationConfig::default(),
            checkpoints: CheckpointConfig::default(),
            seed: 0,
            rehearsal: true,
            governor: GovernorConfig::default(),
            memory_limit_bytes: None,
            prices: None,
        }
    }
}

fn format_version() -> u32 {
    FORMAT_VERSION
}

fn yes() -> bool {
    true
}

/// The examples of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(deny_unknown_fields)]
#[ts(export)]
pub struct DataConfig {
    /// JSONL, JSON or CSV file, recognised by content.
    pub path: PathBuf,
    /// Held-out examples; where absent, `evaluation.fraction` of `path` is held out.
    #[serde(default)]
    pub evaluation_path: Option<PathBuf>,
    /// Which columns hold what, where the format is not recognised.
    #[serde(default)]
    pub columns: Option<ColumnMapping>,
    /// Longest sequence in tokens.
    #[serde(default)]
    pub length: Option<usize>,
    /// What happens to examples longer than `length`.
    #[serde(default)]
    pub over_length: OverLength,
    /// Fill sequences with several examples that never see each other.
    #[serde(default)]
    pub packing: Option<bool>,
}

/// Columns of a table whose names say nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(deny_unknown_fields)]
#[ts(export)]
pub struct ColumnMapping {
    /// Column with what the person writes.
    pub prompt: String,
    /// Column with what the model has to answer.
    pub response: String,
    /// Column with the system text, if any.
    #[serde(default)]
    pub system: Option<String>,
}

/// Treatment of examples longer than the limit. Either way they are counted and listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum OverLength {
    /// Leave the example out.
    #[default]
    Drop,
    /// Keep the first `length` tokens; no end-of-turn is learned at the cut.
    Truncate,
}

/// How frozen base weights are held in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum BaseFormat {
    /// 32-bit floats: exact on the processor.
    F32,
    /// 16-bit floats, the type that a card computes in.
    Half,
    /// 4-bit NormalFloat, blocks of 64, double quantisation (Dettmers et al. 2023, arXiv:2305.14314).
    Nf4,
}

/// Element type the step computes in; sums, losses, norms, the adapter and its optimizer are in 32 bit in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum ComputeDtype {
    /// 32-bit floats: the processor, and by hand any card.
    #[default]
    F32,
    /// bfloat16: cards since Ampere (RTX 30).
    Bf16,
    /// 16-bit floats of a smaller range, with a scaled loss: Turing (RTX 20), which has no bfloat16, and by hand any later card.
    F16,
}

impl ComputeDtype {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> u64 {
        match self {
            ComputeDtype::F32 => 4,
            ComputeDtype::Bf16 | ComputeDtype::F16 => 2,
        }
    }

    /// The tensor library's name for it.
    pub fn dtype(self) -> candle_core::DType {
        match self {
            ComputeDtype::F32 => candle_core::DType::F32,
            ComputeDtype::Bf16 => candle_core::DType::BF16,
            ComputeDtype::F16 => candle_core::DType::F16,
        }
    }

    /// As people write it.
    pub const fn name(self) -> &'static str {
        match self {
            ComputeDtype::F32 => "f32",
            ComputeDtype::Bf16 => "bf16",
            ComputeDtype::F16 => "f16",
        }
    }
}

/// What a block's forward pass keeps for its backward pass. Results are bit-identical in all modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum Recompute {
    /// Keep everything.
    N,
    /// Keep the input, the attention output with its log-sum-exp and the residual after attention.
    C1,
    /// Keep the input only; `down_proj` is never recomputed.
    C0,
}

impl Recompute {
    /// One step less of it.
    pub fn eased(self) -> Self {
        match self {
            Recompute::N | Recompute::C1 => Recompute::N,
            Recompute::C0 => Recompute::C1,
        }
    }
}

/// A linear layer of a block, by its Hugging Face name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, TS)]
#[ts(export)]
#[allow(missing_docs)]
pub enum Target {
    #[serde(rename = "q_proj")]
    Q,
    #[serde(rename = "k_proj")]
    K,
    #[serde(rename = "v_proj")]
    V,
    #[serde(rename = "o_proj")]
    O,
    #[serde(rename = "gate_proj")]
    Gate,
    #[serde(rename = "up_proj")]
    Up,
    #[serde(rename = "down_proj")]
    Down,
}

impl Target {
    /// All seven linear layers in the order in which a block uses them.
    pub const ALL: [Target; 7] = [Target::Q, Target::K, Target::V, Target::O, Target::Gate, Target::Up, Target::Down];

    /// Module name inside a block, as in Hugging Face checkpoints: `self_attn.q_proj`.
    pub fn module(self) -> &'static str {
        match self {
            Target::Q => "self_attn.q_proj",
            Target::K => "self_attn.k_proj",
            Target::V => "self_attn.v_proj",
            Target::O => "self_attn.o_proj",
            Target::Gate => "mlp.gate_proj",
            Target::Up => "mlp.up_proj",
            Target::Down => "mlp.down_proj",
        }
    }
}

/// Low-rank adapter, `W + (alpha / rank) * B A` (Hu et al. 2021, arXiv:2106.09685).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(deny_unknown_fields, default)]
#[ts(export)]
pub struct LoraConfig {
    /// Rank of every adapted layer.
    pub rank: usize,
    /// Scale numerator.
    pub alpha: f32,
    /// Probability with which an input element of the adapter is zeroed while training.
    pub dropout: f32,
    /// Which linear layers are adapted.
    pub targets: Vec<Target>,
}

impl LoraConfig {
    /// No adapter at all: the base alone.
    pub fn none() -> Self {
        Self { rank: 0, alpha: 0.0, dropout: 0.0, targets: Vec::new() }
    }

    /// `alpha / rank`.
    pub fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self { rank: 16, alpha: 32.0, dropout: 0.0, targets: Target::ALL.to_vec() }
    }
}

/// How optimizer state is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum OptimizerKind {
    /// AdamW with 32-bit state.
    AdamW32,
    /// AdamW with block-wise 8-bit state, block 256 (Dettmers et al. 2021, arXiv:2110.02861).
    AdamW8,
}

/// Learning-rate curve after warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
#[allow(missing_docs)]
pub enum ScheduleKind {
    Linear,
    #[default]
    Cosine,
    Constant,
}

/// AdamW (Loshchilov & Hutter 2017, arXiv:1711.05101), its clipping and its schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(deny_unknown_fields, default)]
#[ts(export)]
pub struct OptimizerConfig {
    /// 8-bit or 32-bit state; proposed where absent.
    pub kind: Option<OptimizerKind>,
    /// Highest rate of the schedule.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Global gradient norm above which gradients are scaled down; 0 switches clipping off.
    pub max_grad_norm: f64,
    /// Curve after warm-up.
    pub schedule: ScheduleKind,
    /// Steps of linear warm-up; proposed where absent.
    pub warmup_steps: Option<usize>,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            kind: None,
            learning_rate: 2e-4,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
            schedule: ScheduleKind::Cosine,
            warmup_steps: None,
        }
    }
}

/// Evaluation on held-out examples, never trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(deny_unknown_fields, default)]
#[ts(export)]
pub struct EvaluationConfig {
    /// Share of the data that is held out where no `evaluation_path` is given; 0 switches evaluation off.
    pub fraction: f64,
    /// Steps between evaluations; proposed where absent.
    pub every_steps: Option<usize>,
    /// Evaluations without improvement after which the run ends; absent: never.
    pub patience: Option<usize>,
    /// Held-out prompts answered at each evaluation.
    pub n_samples: usize,
}

impl Default for EvaluationConfig {
    fn default() -> Self {
        Self { fraction: 0.05, every_steps: None, patience: None, n_samples: 3 }
    }
}

/// When work is made safe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(deny_unknown_fields, default)]
#[ts(export)]
pub struct CheckpointConfig {
    /// Most seconds of work at risk.
    pub every_seconds: u64,
    /// Also after this many steps.
    pub every_steps: Option<usize>,
    /// Complete checkpoints kept, besides the best one.
    pub keep: usize,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self { every_seconds: 300, every_steps: None, keep: 2 }
    }
}

/// When a run slows down or pauses by itself, and goes on by itself. It changes when things are computed, never what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(deny_unknown_fields, default)]
#[ts(export)]
pub struct GovernorConfig {
    /// Degrees Celsius of the card above which a run rests between micro-batches, and pauses where that is not enough; 0 leaves
    /// heat to the driver.
    pub temperature_limit_c: f64,
    /// Watts that the card draws on average at most, held by resting. A limit set in the driver itself costs less speed.
    pub power_limit_w: Option<f64>,
    /// Hours of local time in which a run pauses, "22:00-07:00".
    pub quiet_hours: Option<QuietHours>,
    /// Pause while another program wants the card.
    pub yield_to_others: bool,
    /// Another program wants the card when others hold this much more of its memory than before.
    #[ts(type = "number")]
    pub yield_bytes: u64,
}

impl Default for GovernorConfig {
    /// A guard against heat, and nothing else. 87 °C is below what every GeForce card allows (88 to 93 °C).
    fn default() -> Self {
        Self {
            temperature_limit_c: 87.0,
            power_limit_w: None,
            quiet_hours: None,
            yield_to_others: false,
            yield_bytes: 512 << 20,
        }
    }
}

impl GovernorConfig {
    /// Whether somebody asked for what only a card's readings can tell.
    pub(crate) fn needs_a_card(&self) -> bool {
        let guard = [0.0, Self::default().temperature_limit_c];
        self.power_limit_w.is_some() || self.yield_to_others || !guard.contains(&self.temperature_limit_c)
    }
}

/// A daily window of local time, written "22:00-07:00"; it may cross midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(try_from = "String", into = "String")]
#[ts(export, type = "string")]
pub struct QuietHours {
    /// First minute of the day, from 0, that is quiet.
    pub from_minute: u16,
    /// First minute that no longer is.
    pub to_minute: u16,
}

impl std::str::FromStr for QuietHours {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let minute = |time: &str| -> Option<u16> {
            let (hour, minute) = time.trim().split_once(':')?;
            let (hour, minute): (u16, u16) = (hour.parse().ok()?, minute.parse().ok()?);
            (hour < 24 && minute < 60).then_some(60 * hour + minute)
        };
        let (from, to) =
            text.split_once('-').and_then(|(from, to)| Some((minute(from)?, minute(to)?))).ok_or_else(|| {
                format!("\"{text}\" is no window of the day; write it as 22:00-07:00, in hours from 0 to 23")
            })?;
        if from == to {
            return Err(format!("\"{text}\" begins when it ends"));
        }
        Ok(Self { from_minute: from, to_minute: to })
    }
}

impl TryFrom<String> for QuietHours {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<QuietHours> for String {
    fn from(hours: QuietHours) -> Self {
        let QuietHours { from_minute: from, to_minute: to } = hours;
        format!("{:02}:{:02}-{:02}:{:02}", from / 60, from % 60, to / 60, to % 60)
    }
}

/// A [`RunConfig`] with every choice made. Written to `run.toml`; a resumed run uses it unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(deny_unknown_fields)]
#[ts(export)]
#[allow(missing_docs)] // the fields mean what they mean in RunConfig
pub struct Settings {
    #[serde(default)]
    pub train_on: TrainOn,
    pub base: BaseFormat,
    #[serde(default)]
    pub compute: ComputeDtype,
    /// The embedding is in system memory. Not where the head is the embedding, and not on the processor.
    #[serde(default)]
    pub embedding_on_host: bool,
    pub lora: LoraConfig,
    pub length: usize,
    pub over_length: OverLength,
    pub packing: bool,
    pub micro_batch: usize,
    pub accumulation: usize,
    pub recompute: Recompute,
    /// The last layers, this many, recompute one step less: C1 instead of C0, nothing instead of C1.
    #[serde(default)]
    pub n_layers_eased: usize,
    /// The layers' inputs wait in system memory for the backward pass.
    #[serde(default)]
    pub offload_inputs: bool,
    /// Rows that go through a layer's MLP at once; absent: all of the micro-batch.
    #[serde(default)]
    pub mlp_rows: Option<usize>,
    /// The first layers, this many, have their NF4 weights in system memory.
    #[serde(default)]
    pub n_layers_streamed: usize,
    /// The last layers, this many, have their NF4 weights also dequantised.
    #[serde(default)]
    pub n_layers_cached: usize,
    /// Supervised rows that go through the head at once.
    pub head_rows: usize,
    pub optimizer: OptimizerKind,
    pub learning_rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    pub weight_decay: f64,
    pub max_grad_norm: f64,
    pub schedule: ScheduleKind,
    pub warmup_steps: usize,
    /// Optimizer steps of the whole run.
    pub n_steps: usize,
    pub evaluate_every_steps: usize,
    pub patience: Option<usize>,
    pub n_samples: usize,
    /// Tokens of the prompts that are answered at an evaluation, all together; absent where they are not known yet.
    #[serde(default)]
    pub sample_tokens: Option<usize>,
    pub checkpoints: CheckpointConfig,
    #[serde(default = "yes")]
    pub rehearsal: bool,
    #[serde(default)]
    pub governor: GovernorConfig,
    pub seed: u64,
}

impl Default for Settings {
    /// The plainest step, for benchmarks and tests to vary: on the processor in f32, one sequence of 512 tokens, nothing recomputed,
    /// 32-bit AdamW at a constant rate, one step, no evaluation.
    fn default() -> Self {
        Self {
            train_on: TrainOn::Processor,
            base: BaseFormat::F32,
            compute: ComputeDtype::F32,
            embedding_on_host: false,
            lora: LoraConfig::default(),
            length: 512,
            over_length: OverLength::Drop,
            packing: false,
            micro_batch: 1,
            accumulation: 1,
            recompute: Recompute::N,
            n_layers_eased: 0,
            offload_inputs: false,
            mlp_rows: None,
            n_layers_streamed: 0,
            n_layers_cached: 0,
            head_rows: crate::plan::HEAD_ROWS,
            optimizer: OptimizerKind::AdamW32,
            learning_rate: 1e-4,
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
            sample_tokens: None,
            checkpoints: CheckpointConfig::default(),
            rehearsal: true,
            governor: GovernorConfig::default(),
            seed: 0,
        }
    }
}

impl Settings {
    /// Whether time was given for memory in a way that says little of the hardware's speed: what waits for a card's link, and the
    /// parts of an MLP.
    pub(crate) fn is_stretched(&self) -> bool {
        self.offload_inputs || self.mlp_rows.is_some() || self.n_layers_streamed > 0
    }

    /// Most tokens of one micro-batch, for which the buffers are laid out.
    pub fn max_tokens(&self) -> usize {
        self.micro_batch * self.length
    }

    /// What layer `layer` of `n_layers` keeps.
    pub fn recompute_of(&self, layer: usize, n_layers: usize) -> Recompute {
        if layer + self.n_layers_eased >= n_layers { self.recompute.eased() } else { self.recompute }
    }
}
