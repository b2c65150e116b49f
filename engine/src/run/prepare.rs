//! Everything that can be refused is refused here, before a run writes anything.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::checkpoint::hash_file;
use super::cursor;
use super::error::Error;
use super::prompts::Prompts;
use super::store::Inputs;
use super::{governor, output};
use crate::config::{FORMAT_VERSION, RunConfig, Settings};
use crate::data::{self, Dataset, Encoder, Problem, Sample};
use crate::format;
use crate::hardware::Hardware;
use crate::model::{ModelSource, TokenizerBundle};
use crate::plan::{self, Plan};

/// A model and examples, opened and checked, without settings yet.
pub struct Opened {
    /// The base model.
    pub source: ModelSource,
    /// Its tokenizer.
    pub bundle: TokenizerBundle,
    /// Tokenizer, template and special ids together.
    pub encoder: Encoder,
    /// The examples.
    pub dataset: Dataset,
    /// Held-out examples of their own file.
    pub held_out: Option<Dataset>,
}

impl Opened {
    /// Opens what `config` names. `date` is the day that templates see which ask for one; today where absent.
    ///
    /// # Errors
    /// What is wrong with model, tokenizer or data as a whole. Single rows are in the datasets' problems.
    pub fn open(config: &RunConfig, date: Option<&str>) -> Result<Self, Error> {
        let source = ModelSource::open(&config.model)?;
        let bundle = source.tokenizer()?;
        source.check_vocabulary(&bundle)?;
        let encoder = match date {
            Some(date) => Encoder::on_date(&bundle, date)?,
            None => Encoder::new(&bundle)?,
        };
        let columns = config.data.columns.as_ref();
        let dataset = data::load(&config.data.path, columns)?;
        let held_out = config.data.evaluation_path.as_ref().map(|path| data::load(path, columns)).transpose()?;
        Ok(Self { source, bundle, encoder, dataset, held_out })
    }

    /// The examples as token ids, within the length that `config` asks for, if any. Statistics of their full length are
    /// in `uncut`.
    ///
    /// # Errors
    /// No example can be learned from.
    pub fn encode(&self, config: &RunConfig) -> Result<data::Prepared, Error> {
        let length = config.data.length.unwrap_or(usize::MAX);
        let prepared = data::prepare(&self.dataset, &self.encoder, length, config.data.over_length);
        prepared.check()?;
        Ok(prepared)
    }
}

/// Samples as the settings cut and divide them.
pub(crate) struct Samples {
    pub(crate) train: Vec<Sample>,
    pub(crate) held_out: Vec<Sample>,
    /// Rows that are left out or cut, of both files, the data file's first.
    pub(crate) problems: Vec<Problem>,
    pub(crate) n_truncated: usize,
    pub(crate) n_dropped_long: usize,
}

impl Samples {
    /// Encodes and divides. The same settings give the same samples in the same order.
    pub(crate) fn make(opened: &Opened, config: &RunConfig, settings: &Settings) -> Result<Self, Error> {
        let prepared = data::prepare(&opened.dataset, &opened.encoder, settings.length, settings.over_length);
        Self::divide(prepared, opened, config, settings)
    }

    fn divide(
        prepared: data::Prepared,
        opened: &Opened,
        config: &RunConfig,
        settings: &Settings,
    ) -> Result<Self, Error> {
        prepared.check()?;
        let mut problems = prepared.problems;
        let (mut n_truncated, mut n_dropped_long) = (prepared.n_truncated, prepared.n_dropped_long);
        let (train, held_out) = match &opened.held_out {
            Some(dataset) => {
                let held_out = data::prepare(dataset, &opened.encoder, settings.length, settings.over_length);
                held_out.check()?;
                problems.extend(held_out.problems);
                n_truncated += held_out.n_truncated;
                n_dropped_long += held_out.n_dropped_long;
                (prepared.samples, held_out.samples)
            }
            None => data::split(prepared.samples, config.evaluation.fraction, settings.seed),
        };
        Ok(Self { train, held_out, problems, n_truncated, n_dropped_long })
    }
}

/// A run that can begin.
pub(crate) struct Prepared {
    pub(crate) config: RunConfig,
    pub(crate) opened: Opened,
    pub(crate) samples: Samples,
    pub(crate) plan: Plan,
    pub(crate) inputs: Inputs,
}

/// Opens, encodes and plans.
pub(crate) fn prepare(mut config: RunConfig, hardware: &Hardware, runs_dir: &Path) -> Result<Prepared, Error> {
    check(&config)?;
    make_absolute(&mut config)?;
    output::check_writable(runs_dir)?;
    let opened = Opened::open(&config, None)?;
    let encoded = opened.encode(&config)?;
    let mut plan = plan::plan(opened.source.shape(), &encoded.uncut, &config, hardware)?;
    plan.require_fit()?;
    // Encoding takes a while for many examples; it is done again only where the plan cuts what the config did not.
    let is_cut_alike = config.data.length == Some(plan.settings.length)
        || config.data.length.is_none() && encoded.uncut.max_tokens <= plan.settings.length;
    let samples = if is_cut_alike {
        Samples::divide(encoded, &opened, &config, &plan.settings)?
    } else {
        Samples::make(&opened, &config, &plan.settings)?
    };
    let settings = &mut plan.settings;
    if config.max_steps.is_none() {
        // The plan estimates how examples pack; now it is known.
        let epochs = config.epochs.unwrap_or(plan::EPOCHS);
        settings.n_steps = cursor::steps_of(&samples.train, settings, epochs);
        settings.warmup_steps = settings.warmup_steps.min(settings.n_steps);
        let n_tokens: usize = samples.train.iter().map(|sample| sample.input_ids.len()).sum();
        plan.time.set_extent(settings.n_steps, (epochs * n_tokens as f64).round() as u64);
    }
    // The plan foresees prompts as long as sequences; now those that are asked are known.
    let prompts = Prompts::choose(&opened, &samples.held_out, plan.settings.n_samples, plan.settings.length)?;
    plan.set_samples(opened.source.shape(), prompts.ids.len(), prompts.ids.iter().map(Vec::len).sum());
    let inputs = inputs(&config)?;
    Ok(Prepared { config, opened, samples, plan, inputs })
}

/// What would be refused later with less said.
fn check(config: &RunConfig) -> Result<(), Error> {
    let refuse = |field, value: String, reason: &str| Err(Error::Config { field, value, reason: reason.into() });
    if config.version > FORMAT_VERSION {
        let reason = format!("this engine reads up to version {FORMAT_VERSION}");
        return refuse("version", config.version.to_string(), &reason);
    }
    if i64::try_from(config.seed).is_err() {
        return refuse("seed", config.seed.to_string(), "the largest seed is 9223372036854775807");
    }
    if config.model.as_os_str().is_empty() {
        return refuse("model", "\"\"".into(), "no model given");
    }
    if config.data.path.as_os_str().is_empty() {
        return refuse("data.path", "\"\"".into(), "no data file given");
    }
    governor::check(&config.governor)?;
    for (field, path) in [("model", Some(&config.model)), ("data.path", Some(&config.data.path))] {
        if let Some(path) = path.filter(|p| p.to_str().is_none()) {
            return refuse(field, path.display().to_string(), "the path is not valid Unicode");
        }
    }
    Ok(())
}

/// A run is taken up from wherever its person is then.
fn make_absolute(config: &mut RunConfig) -> Result<(), Error> {
    let paths = [&mut config.model, &mut config.data.path].into_iter().chain(&mut config.data.evaluation_path);
    for path in paths {
        *path = std::path::absolute(&path).map_err(|e| Error::io(path, e))?;
    }
    Ok(())
}

fn inputs(config: &RunConfig) -> Result<Inputs, Error> {
    let sha256 = |path: &Path| hash_file(path).map(|(_, hash)| hash).map_err(|e| Error::io(path, e));
    Ok(Inputs {
        data_sha256: sha256(&config.data.path)?,
        evaluation_sha256: config.data.evaluation_path.as_deref().map(sha256).transpose()?,
        model_sample_sha256: sample_model(&config.model).map_err(|e| Error::io(&config.model, e))?,
    })
}

/// Refuses to go on with other files than the run began with.
pub(crate) fn check_unchanged(id: &str, config: &RunConfig, began: &Inputs) -> Result<(), Error> {
    let now = inputs(config)?;
    let changed = |what, path: &Path| Err(Error::InputChanged { id: id.into(), what, path: path.into() });
    if now.model_sample_sha256 != began.model_sample_sha256 {
        return changed("the model", &config.model);
    }
    if now.data_sha256 != began.data_sha256 {
        return changed("the data", &config.data.path);
    }
    match &config.data.evaluation_path {
        Some(path) if now.evaluation_sha256 != began.evaluation_sha256 => changed("the evaluation data", path),
        _ => Ok(()),
    }
}

/// Files of a model folder that decide what it computes and says.
fn decides(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"].contains(&name.as_str())
        || name.ends_with(".safetensors")
        || name.ends_with(".gguf")
}

fn sample_model(model: &Path) -> io::Result<String> {
    const SAMPLE_BYTES: u64 = 1 << 20;
    let mut files: Vec<PathBuf> = if model.is_dir() {
        std::fs::read_dir(model)?.map(|entry| entry.map(|e| e.path())).collect::<io::Result<_>>()?
    } else {
        vec![model.into()]
    };
    files.retain(|path| path.is_file() && decides(path) || path == model);
    files.sort();
    let mut hash = Sha256::new();
    for path in files {
        let file = File::open(&path)?;
        hash.update(path.file_name().unwrap_or_default().to_string_lossy().as_bytes());
        hash.update(file.metadata()?.len().to_le_bytes());
        let mut sample = Vec::new();
        file.take(SAMPLE_BYTES).read_to_end(&mut sample)?;
        hash.update(&sample);
    }
    Ok(format::hex(&hash.finalize()))
}

/// The plan in one sentence, shown before a run starts.
pub fn sentence(plan: &Plan) -> String {
    let s = &plan.settings;
    format!(
        "Rank {} on {}, {} base, length {}, {} × {} sequences a step, {}: {} planned of {} free, about {}.",
        s.lora.rank,
        if s.lora.targets.len() == crate::config::Target::ALL.len() {
            "all linear layers".to_string()
        } else {
            format::counted(s.lora.targets.len(), "linear layer")
        },
        match s.base {
            crate::config::BaseFormat::F32 => "32-bit",
            crate::config::BaseFormat::Half => "16-bit",
            crate::config::BaseFormat::Nf4 => "4-bit",
        },
        s.length,
        s.micro_batch,
        s.accumulation,
        format::counted(s.n_steps, "step"),
        format::bytes(plan.planned_bytes),
        format::bytes(plan.budget_bytes),
        format::duration(plan.time.total_s),
    )
}
