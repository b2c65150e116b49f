//! A `RunConfig` from a file, from flags, or from a file with flags laid over it.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use hearth_engine::config::{
    BaseFormat, ColumnMapping, ComputeDtype, GovernorConfig, OptimizerKind, OverLength, Prices, QuietHours, Recompute,
    RunConfig, ScheduleKind, Target,
};
use serde::de::DeserializeOwned;

use super::failure::Failure;

/// Flags that say what the columns of a file are.
#[derive(Args, Debug, Default)]
pub(crate) struct ColumnArgs {
    /// Column with what the person writes, where the format is not recognised.
    #[arg(long, requires = "response_column", value_name = "COLUMN")]
    prompt_column: Option<String>,
    /// Column with what the model has to answer.
    #[arg(long, requires = "prompt_column", value_name = "COLUMN")]
    response_column: Option<String>,
    /// Column with the system text.
    #[arg(long, requires = "prompt_column", value_name = "COLUMN")]
    system_column: Option<String>,
}

impl ColumnArgs {
    /// What was said; the first two come together.
    pub(crate) fn mapping(self) -> Option<ColumnMapping> {
        Some(ColumnMapping { prompt: self.prompt_column?, response: self.response_column?, system: self.system_column })
    }
}

/// Flags of everything a run can be told. What is left out is proposed by the plan.
#[derive(Args, Debug, Default)]
pub(crate) struct ConfigArgs {
    /// Settings as JSON or TOML; `-` reads standard input. Flags win over it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Base model: Hugging Face folder or GGUF file; for a plan also a name of the catalogue, like llama-3.1-8b.
    #[arg(long, value_name = "PATH|NAME")]
    model: Option<PathBuf>,
    /// Examples: JSONL, JSON or CSV.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Held-out examples; without it a share of the data is held out.
    #[arg(long, value_name = "FILE")]
    eval_data: Option<PathBuf>,
    /// Name in the list of runs.
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    columns: ColumnArgs,
    /// Longest sequence in tokens.
    #[arg(long, value_name = "TOKENS")]
    length: Option<usize>,
    /// What happens to longer examples: drop or truncate.
    #[arg(long, value_parser = named::<OverLength>, value_name = "WHAT")]
    over_length: Option<OverLength>,
    /// Fill sequences with several examples that never see each other.
    #[arg(long, value_name = "BOOL")]
    packing: Option<bool>,
    /// Rank of the adapter.
    #[arg(long)]
    rank: Option<usize>,
    /// Scale numerator of the adapter (scale = alpha / rank).
    #[arg(long)]
    alpha: Option<f32>,
    /// Dropout of the adapter's input.
    #[arg(long)]
    dropout: Option<f32>,
    /// Adapted layers: all, or for example q_proj,v_proj.
    #[arg(long, value_delimiter = ',', value_parser = targets, value_name = "LAYERS")]
    targets: Option<Vec<Vec<Target>>>,
    /// How the base weights are held: f32 (half on a card) or nf4.
    #[arg(long, value_parser = named::<BaseFormat>, value_name = "FORMAT")]
    base: Option<BaseFormat>,
    /// Type of numbers the step computes in: bf16 or f16 (cards only), or f32.
    #[arg(long, value_parser = named::<ComputeDtype>, value_name = "TYPE")]
    compute: Option<ComputeDtype>,
    /// Sequences per micro-batch.
    #[arg(long)]
    micro_batch: Option<usize>,
    /// Micro-batches per optimizer step.
    #[arg(long)]
    accumulation: Option<usize>,
    /// Sequences per optimizer step.
    #[arg(long)]
    effective_batch: Option<usize>,
    /// What the forward pass keeps: n (everything), c1 or c0 (the inputs of blocks only).
    #[arg(long, value_parser = named::<Recompute>, value_name = "MODE")]
    recompute: Option<Recompute>,
    /// Keep the embedding in system memory: true or false.
    #[arg(long, value_name = "BOOL")]
    embedding_on_host: Option<bool>,
    /// Layers that recompute one step less than --recompute says.
    #[arg(long, value_name = "LAYERS")]
    layers_eased: Option<usize>,
    /// Keep the layers' inputs in system memory between forward and backward pass: true or false.
    #[arg(long, value_name = "BOOL")]
    offload_inputs: Option<bool>,
    /// Rows that go through a layer's MLP at once.
    #[arg(long, value_name = "ROWS")]
    mlp_rows: Option<usize>,
    /// Layers whose NF4 weights are in system memory and come to the card when they are needed.
    #[arg(long, value_name = "LAYERS")]
    layers_streamed: Option<usize>,
    /// Layers whose NF4 weights are also kept dequantised, where memory is left over.
    #[arg(long, value_name = "LAYERS")]
    layers_cached: Option<usize>,
    /// Optimizer state: adamw32 or adamw8.
    #[arg(long, value_parser = named::<OptimizerKind>, value_name = "KIND")]
    optimizer: Option<OptimizerKind>,
    /// Highest learning rate.
    #[arg(long, visible_alias = "learning-rate", value_name = "RATE")]
    lr: Option<f64>,
    /// Curve of the learning rate: cosine, linear or constant.
    #[arg(long, value_parser = named::<ScheduleKind>, value_name = "KIND")]
    schedule: Option<ScheduleKind>,
    /// Steps of linear warm-up.
    #[arg(long, value_name = "STEPS")]
    warmup: Option<usize>,
    /// Decoupled weight decay.
    #[arg(long)]
    weight_decay: Option<f64>,
    /// Gradient norm above which gradients are scaled down; 0 switches it off.
    #[arg(long)]
    max_grad_norm: Option<f64>,
    /// Passes over the data.
    #[arg(long)]
    epochs: Option<f64>,
    /// Optimizer steps, instead of passes.
    #[arg(long, value_name = "STEPS")]
    max_steps: Option<usize>,
    /// Seeds adapter, order and dropout.
    #[arg(long)]
    seed: Option<u64>,
    /// Share of the data that is held out; 0 switches evaluation off.
    #[arg(long, value_name = "SHARE")]
    eval_fraction: Option<f64>,
    /// Steps between evaluations.
    #[arg(long, value_name = "STEPS")]
    eval_every: Option<usize>,
    /// Evaluations without improvement after which the run ends.
    #[arg(long, value_name = "EVALUATIONS")]
    patience: Option<usize>,
    /// Held-out prompts answered at each evaluation.
    #[arg(long, value_name = "N")]
    samples: Option<usize>,
    /// Most seconds of work at risk between checkpoints.
    #[arg(long, value_name = "SECONDS")]
    checkpoint_every_seconds: Option<u64>,
    /// Steps between checkpoints.
    #[arg(long, value_name = "STEPS")]
    checkpoint_every: Option<usize>,
    /// Checkpoints kept, besides the best one.
    #[arg(long, value_name = "N")]
    keep: Option<usize>,
    /// Never use more than this many bytes of memory.
    #[arg(long, value_name = "BYTES")]
    memory_limit: Option<u64>,
    /// Price of a kilowatt-hour; a plan then says what the run costs.
    #[arg(long, value_name = "PRICE")]
    price_per_kwh: Option<f64>,
    /// Price of an hour of a rented computer.
    #[arg(long, value_name = "PRICE")]
    price_per_hour: Option<f64>,
    /// Watts that the computer draws while it trains; without it they are taken from the card.
    #[arg(long, value_name = "WATTS")]
    power: Option<f64>,
    /// Currency of the prices, as it is to be shown.
    #[arg(long, value_name = "NAME")]
    currency: Option<String>,
    /// Start without measuring time and memory first.
    #[arg(long)]
    no_rehearsal: bool,
    #[command(flatten)]
    governor: GovernorArgs,
}

/// Flags of when a run slows down or pauses by itself.
#[derive(Args, Debug, Default)]
pub(crate) struct GovernorArgs {
    /// Degrees Celsius of the card above which a run rests; 0 leaves heat to the driver.
    #[arg(long, value_name = "CELSIUS")]
    temperature_limit: Option<f64>,
    /// Watts that the card draws on average at most; 0 for no limit.
    #[arg(long, value_name = "WATTS")]
    power_limit: Option<f64>,
    /// Hours of local time in which a run pauses, like 22:00-07:00; "none" for none.
    #[arg(long, value_parser = quiet_hours, value_name = "FROM-TO")]
    quiet_hours: Option<Quiet>,
    /// Pause while another program wants the card: true or false.
    #[arg(long, value_name = "BOOL")]
    yield_to_others: Option<bool>,
    /// How much more of the card's memory others hold when they want it.
    #[arg(long, value_name = "BYTES")]
    yield_bytes: Option<u64>,
}

/// Quiet hours, or that there are none. An `Option` would mean to clap that the flag may be left out.
#[derive(Clone, Copy, Debug)]
struct Quiet(Option<QuietHours>);

fn quiet_hours(text: &str) -> Result<Quiet, String> {
    if text == "none" { Ok(Quiet(None)) } else { text.parse().map(|hours| Quiet(Some(hours))) }
}

impl GovernorArgs {
    /// `config` with the flags laid over it.
    pub(crate) fn over(self, config: &mut GovernorConfig) {
        set(&mut config.temperature_limit_c, self.temperature_limit);
        set(&mut config.power_limit_w, self.power_limit.map(|watts| (watts != 0.0).then_some(watts)));
        set(&mut config.quiet_hours, self.quiet_hours.map(|quiet| quiet.0));
        set(&mut config.yield_to_others, self.yield_to_others);
        set(&mut config.yield_bytes, self.yield_bytes);
    }
}

impl ConfigArgs {
    /// Whether examples are named, by a flag or by the file of settings, which has to name some.
    pub(crate) fn has_data(&self) -> bool {
        self.data.is_some() || self.config.is_some()
    }

    /// No model has to be named: every one of the catalogue is meant.
    pub(crate) fn leave_model_open(&mut self) {
        self.model.get_or_insert_default();
    }

    /// The config that file and flags make.
    pub(crate) fn resolve(self) -> Result<RunConfig, Failure> {
        let config = match &self.config {
            Some(path) => read(path)?,
            None => match (&self.model, &self.data) {
                (Some(model), Some(data)) => RunConfig::new(model.clone(), data.clone()),
                _ => {
                    return Err(Failure::usage("no model or no data given", "Give --model and --data, or --config."));
                }
            },
        };
        Ok(self.over(config))
    }

    /// The config that flags make for a plan without examples; the path of its data is empty. Examples longer than a
    /// length that the plan tries are cut: left out, as files' are, none would remain.
    pub(crate) fn resolve_without_data(self) -> Result<RunConfig, Failure> {
        let Some(model) = self.model.clone() else {
            return Err(Failure::usage(
                "no model given",
                "Give --model, a path or a name of the catalogue, or --config.",
            ));
        };
        if self.eval_data.is_some() || self.columns.prompt_column.is_some() {
            return Err(Failure::usage("held-out examples or columns are named, but no data", "Give --data too."));
        }
        let mut config = RunConfig::new(model, PathBuf::new());
        config.data.over_length = OverLength::Truncate;
        Ok(self.over(config))
    }

    /// `config` with the flags laid over it.
    fn over(self, mut config: RunConfig) -> RunConfig {
        set(&mut config.model, self.model);
        set(&mut config.data.path, self.data);
        set(&mut config.data.evaluation_path, self.eval_data.map(Some));
        set(&mut config.data.columns, self.columns.mapping().map(Some));
        set(&mut config.data.length, self.length.map(Some));
        set(&mut config.data.over_length, self.over_length);
        set(&mut config.data.packing, self.packing.map(Some));
        set(&mut config.name, self.name);
        set(&mut config.lora.rank, self.rank);
        set(&mut config.lora.alpha, self.alpha);
        set(&mut config.lora.dropout, self.dropout);
        set(&mut config.lora.targets, self.targets.map(|t| t.concat()));
        set(&mut config.base, self.base.map(Some));
        set(&mut config.compute, self.compute.map(Some));
        set(&mut config.micro_batch, self.micro_batch.map(Some));
        set(&mut config.accumulation, self.accumulation.map(Some));
        set(&mut config.effective_batch, self.effective_batch.map(Some));
        set(&mut config.recompute, self.recompute.map(Some));
        set(&mut config.embedding_on_host, self.embedding_on_host.map(Some));
        set(&mut config.n_layers_eased, self.layers_eased.map(Some));
        set(&mut config.offload_inputs, self.offload_inputs.map(Some));
        set(&mut config.mlp_rows, self.mlp_rows.map(Some));
        set(&mut config.n_layers_streamed, self.layers_streamed.map(Some));
        set(&mut config.n_layers_cached, self.layers_cached.map(Some));
        set(&mut config.optimizer.kind, self.optimizer.map(Some));
        set(&mut config.optimizer.learning_rate, self.lr);
        set(&mut config.optimizer.schedule, self.schedule);
        set(&mut config.optimizer.warmup_steps, self.warmup.map(Some));
        set(&mut config.optimizer.weight_decay, self.weight_decay);
        set(&mut config.optimizer.max_grad_norm, self.max_grad_norm);
        set(&mut config.epochs, self.epochs.map(Some));
        set(&mut config.max_steps, self.max_steps.map(Some));
        set(&mut config.seed, self.seed);
        set(&mut config.evaluation.fraction, self.eval_fraction);
        set(&mut config.evaluation.every_steps, self.eval_every.map(Some));
        set(&mut config.evaluation.patience, self.patience.map(Some));
        set(&mut config.evaluation.n_samples, self.samples);
        set(&mut config.checkpoints.every_seconds, self.checkpoint_every_seconds);
        set(&mut config.checkpoints.every_steps, self.checkpoint_every.map(Some));
        set(&mut config.checkpoints.keep, self.keep);
        set(&mut config.memory_limit_bytes, self.memory_limit.map(Some));
        let has_prices = self.currency.is_some() || self.power.is_some();
        if has_prices || self.price_per_kwh.is_some() || self.price_per_hour.is_some() {
            let prices = config.prices.get_or_insert_with(Prices::default);
            set(&mut prices.currency, self.currency);
            set(&mut prices.per_kwh, self.price_per_kwh.map(Some));
            set(&mut prices.per_hour, self.price_per_hour.map(Some));
            set(&mut prices.power_w, self.power.map(Some));
        }
        config.rehearsal &= !self.no_rehearsal;
        self.governor.over(&mut config.governor);
        config
    }
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

fn read(path: &Path) -> Result<RunConfig, Failure> {
    let cannot = |what: String| {
        Failure::input(
            "config.unreadable",
            format!("the settings in {} cannot be used: {what}", path.display()),
            "Mend the named place; `hearth plan --json` shows every field that there is.",
        )
    };
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text))
    };
    read.map_err(|e| cannot(e.to_string()))?;
    let text = text.trim_start_matches('\u{feff}');
    if text.trim_start().starts_with('{') {
        serde_json::from_str(text).map_err(|e| cannot(e.to_string()))
    } else {
        toml::from_str(text).map_err(|e| cannot(e.to_string().trim_end().into()))
    }
}

/// Parses a name as the config format spells it, with or without its underscores.
fn named<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let of = |name: &str| serde_json::from_value(serde_json::Value::String(name.into()));
    let spelled = match text {
        "adamw32" => "adam_w32",
        "adamw8" => "adam_w8",
        other => other,
    };
    of(spelled).map_err(|e| e.to_string())
}

fn targets(text: &str) -> Result<Vec<Target>, String> {
    if text == "all" { Ok(Target::ALL.to_vec()) } else { named(text).map(|t| vec![t]) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ConfigArgs,
    }

    fn args(args: &[&str]) -> ConfigArgs {
        Line::try_parse_from(["x"].iter().chain(args)).unwrap().args
    }

    fn parse(flags: &[&str]) -> Result<RunConfig, Failure> {
        args(flags).resolve()
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_the_defaults() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("my config.toml");
        std::fs::write(&path, "model = \"m\"\nseed = 7\n[data]\npath = \"d\"\n[lora]\nrank = 4\n").unwrap();
        let path = path.to_str().unwrap();
        let config = parse(&["--config", path, "--rank", "8", "--optimizer", "adamw8", "--targets", "q_proj,v_proj"]);
        let config = config.unwrap();
        assert_eq!((config.lora.rank, config.seed, config.lora.alpha), (8, 7, 32.0));
        assert_eq!(config.optimizer.kind, Some(OptimizerKind::AdamW8));
        assert_eq!(config.lora.targets, [Target::Q, Target::V]);
    }

    #[test]
    fn a_config_may_be_json_or_toml_and_an_unknown_field_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("a.json", r#"{"model": "m", "data": {"path": "d"}, "rang": 4}"#),
            ("a.toml", "model = \"m\"\nrang = 4\n[data]\npath = \"d\"\n"),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            let failure = format!("{:?}", parse(&["--config", path.to_str().unwrap()]).unwrap_err());
            assert!(failure.contains("rang") && failure.contains("BadInput"), "{failure}");
        }
    }

    #[test]
    fn without_data_a_model_is_enough_and_flags_still_win() {
        assert!(!args(&["--model", "m"]).has_data());
        assert!(args(&["--model", "m", "--data", "d"]).has_data() && args(&["--config", "c"]).has_data());
        let config = args(&["--model", "m", "--rank", "8"]).resolve_without_data().unwrap();
        assert_eq!((config.data.path, config.lora.rank), (PathBuf::new(), 8));
        assert_eq!(config.data.over_length, OverLength::Truncate);
        let config = args(&["--model", "m", "--over-length", "drop"]).resolve_without_data().unwrap();
        assert_eq!(config.data.over_length, OverLength::Drop);
        for flags in [&["--rank", "8"][..], &["--model", "m", "--eval-data", "e"]] {
            let failure = format!("{:?}", args(flags).resolve_without_data().unwrap_err());
            assert!(failure.contains("Usage"), "{failure}");
        }
    }

    #[test]
    fn names_are_those_of_the_config_format() {
        assert_eq!(named::<Recompute>("c0"), Ok(Recompute::C0));
        assert_eq!(named::<BaseFormat>("nf4"), Ok(BaseFormat::Nf4));
        assert!(named::<Recompute>("c9").unwrap_err().contains("c1"));
        assert_eq!(targets("all").unwrap().len(), 7);
    }
}
