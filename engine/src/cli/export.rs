//! Write what was trained, and prove it.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::ValueEnum;
use hearth_engine::data::{Encoder, Message};
use hearth_engine::event::TrainEvent;
use hearth_engine::export::{self, ExportDtype, MergeOptions, Proof, ProofPrompt, Verdict, Witness};
use hearth_engine::model::{Adapter, Model, ModelSource, TokenizerBundle};
use hearth_engine::run::{self, RunFolder, RunRecord, output};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::failure::{Exit, Failure};
use super::{Context, emit};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Id of the run, or its beginning.
    run: String,
    /// What to write.
    #[arg(long, value_enum, default_value = "merged")]
    kind: Kind,
    /// New or empty folder; in the run folder where left out.
    #[arg(long, value_name = "DIR", value_parser = super::folder())]
    out: Option<PathBuf>,
    /// Format of a merged model's weights; the base's own 16-bit format where left out.
    #[arg(long, value_enum, value_name = "FORMAT")]
    dtype: Option<Dtype>,
    /// Largest file of a merged model.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    max_shard_bytes: Option<u64>,
    /// Checkpoint: best, last or a step.
    #[arg(long, default_value = "best", value_name = "WHICH")]
    checkpoint: Which,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// PEFT adapter, to be used with its base.
    Adapter,
    /// Complete Hugging Face folder.
    Merged,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Adapter => "adapter",
            Kind::Merged => "merged",
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Dtype {
    F16,
    Bf16,
    F32,
}

/// Which checkpoint of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Best,
    Last,
    Step(usize),
}

impl FromStr for Which {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "best" => Ok(Which::Best),
            "last" => Ok(Which::Last),
            step => step.parse().map(Which::Step).map_err(|_| "it is best, last or the number of a step".into()),
        }
    }
}

impl Which {
    /// The step asked for; `None` is the best.
    pub(crate) fn step(self, folder: &RunFolder) -> Result<Option<usize>, Failure> {
        match self {
            Which::Best => Ok(None),
            Which::Step(step) => Ok(Some(step)),
            Which::Last => match folder.checkpoints().newest_state() {
                Some(state) => Ok(Some(state.step)),
                None => Err(run::Error::NoCheckpoint { id: folder.id().into(), step: None }.into()),
            },
        }
    }
}

/// Everything that was trained and what it was trained on.
struct Trained<'a> {
    folder: &'a RunFolder,
    record: RunRecord,
    source: ModelSource,
    bundle: TokenizerBundle,
    adapter: Adapter,
    step: usize,
}

impl<'a> Trained<'a> {
    fn open(folder: &'a RunFolder, which: Which) -> Result<Self, Failure> {
        let record = folder.record()?;
        let source = ModelSource::open(&record.given.model)?;
        let bundle = source.tokenizer()?;
        let (adapter, step) =
            run::load_adapter(folder, &record, &source, which.step(folder)?, &candle_core::Device::Cpu)?;
        Ok(Self { folder, record, source, bundle, adapter, step })
    }
}

pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, Failure> {
    let folder = context.run(&args.run)?;
    if let Some(out) = &args.out {
        output::check_empty(out)?;
    }
    let trained = Trained::open(&folder, args.checkpoint)?;
    let own = folder.exports().join(format!("{}-{}", args.kind.name(), trained.step));
    let out = args.out.unwrap_or(own);
    output::check_empty(&out)?;
    let mut progress = Progress::new(context);
    let result = match args.kind {
        Kind::Adapter => write_adapter(&trained, &out, &mut progress),
        Kind::Merged => write_merged(&trained, args.dtype, args.max_shard_bytes, &out, &mut progress),
    };
    progress.close();
    finish(context, &trained, args.kind, &out, result?)
}

/// Writes the best adapter of a finished run to `out`, as was asked for when the run began.
pub(crate) fn adapter_to(context: &Context, folder: &RunFolder, out: &Path) -> Result<Exit, Failure> {
    output::check_empty(out)?;
    let trained = Trained::open(folder, Which::Best)?;
    let mut progress = Progress::new(context);
    let result = write_adapter(&trained, out, &mut progress);
    progress.close();
    finish(context, &trained, Kind::Adapter, out, result?)
}

/// Prompts on which an export is compared with the trained model, and tokens of each answer.
const PROOF_PROMPTS: usize = 4;
const PROOF_TOKENS: usize = 48;

/// Lets the trained model speak, so that what is exported can be compared with it.
fn witness(trained: &Trained<'_>, model: &Model, encoder: &Encoder) -> Result<Witness, Failure> {
    let prompts = match run::prompts(&trained.record, PROOF_PROMPTS) {
        Ok(prompts) => prompts,
        // The examples may be gone by now; then any prompt has to do.
        Err(_) => Vec::new(),
    };
    let mut prompts: Vec<ProofPrompt> =
        prompts.into_iter().map(|prompt| ProofPrompt { text: prompt.text, input_ids: prompt.input_ids }).collect();
    if prompts.is_empty() {
        let text = "Write one sentence about the weather.";
        let input_ids = encoder.prompt_ids(&[Message::new("user", text)])?;
        prompts.push(ProofPrompt { text: text.into(), input_ids });
    }
    Ok(Witness::record(model, &trained.adapter, &prompts, PROOF_TOKENS, encoder.stop_ids())?)
}

fn trained_model(trained: &Trained<'_>) -> Result<Model, Failure> {
    let settings = &trained.record.resolved;
    Ok(Model::load(
        &trained.source,
        &settings.lora,
        hearth_engine::model::weights::Precision::f32(settings.base),
        &candle_core::Device::Cpu,
    )?)
}

/// What was found, and what a person should know.
type Proven = (Proof, Vec<String>);

fn write_adapter(trained: &Trained<'_>, out: &Path, progress: &mut Progress<'_>) -> Result<Proven, Failure> {
    let Trained { source, adapter, bundle, .. } = trained;
    progress.at("export", 0, 1)?;
    let written = export::write_adapter(source, adapter, bundle, out)?;
    progress.at("export", 1, 1)?;
    progress.at("prove", 0, 2)?;
    let encoder = Encoder::new(bundle)?;
    let model = trained_model(trained)?;
    let witness = witness(trained, &model, &encoder)?;
    progress.at("prove", 1, 2)?;
    let proof = export::prove_adapter(source, &model, adapter, bundle, &witness, &written.path)?;
    proof.save(&written.path)?;
    progress.at("prove", 2, 2)?;
    Ok((proof, written.notes))
}

fn write_merged(
    trained: &Trained<'_>,
    dtype: Option<Dtype>,
    max_shard_bytes: Option<u64>,
    out: &Path,
    progress: &mut Progress<'_>,
) -> Result<Proven, Failure> {
    let Trained { source, adapter, bundle, .. } = trained;
    let encoder = Encoder::new(bundle)?;
    let options = MergeOptions {
        dtype: dtype.map(|dtype| match dtype {
            Dtype::F16 => ExportDtype::F16,
            Dtype::Bf16 => ExportDtype::Bf16,
            Dtype::F32 => ExportDtype::F32,
        }),
        max_shard_bytes: max_shard_bytes.unwrap_or(MergeOptions::default().max_shard_bytes),
        base: trained.record.resolved.base,
        stop_ids: encoder.stop_ids().to_vec(),
    };
    let written =
        progress.through("export", |report| export::write_merged(source, adapter, bundle, &options, out, report))?;
    // The trained model makes room before the export is loaded: both at once may not fit.
    let witness = witness(trained, &trained_model(trained)?, &encoder)?;
    let device = candle_core::Device::Cpu;
    let proof = progress.through("prove", |report| {
        export::prove_merged(source, adapter, bundle, &witness, &options, &written, &device, report)
    })?;
    proof.save(&written.path)?;
    Ok((proof, written.notes))
}

fn finish(
    context: &Context,
    trained: &Trained<'_>,
    kind: Kind,
    out: &Path,
    (proof, notes): Proven,
) -> Result<Exit, Failure> {
    let path = std::path::absolute(out).unwrap_or_else(|_| out.into());
    let proven = proof.is_proven();
    trained.folder.append(TrainEvent::Exported { kind: kind.name().into(), path: path.clone(), proven })?;
    if context.json {
        context.print_json(&json!({ "path": path, "step": trained.step, "notes": notes, "proof": proof }))?;
    } else {
        emit(&format!("{} of step {} written to {}", kind.name(), trained.step, path.display()))?;
        for check in &proof.checks {
            let mark = if check.ok { "ok  " } else { "FAIL" };
            emit(&format!("  {mark}  {}: {} ({})", check.name, check.value, check.limit))?;
        }
        for note in notes.iter().chain(&proof.remarks) {
            emit(&format!("note: {note}"))?;
        }
        emit(match proof.verdict {
            Verdict::Proven => "Proven: it behaves like the model that was trained.",
            Verdict::ProvenWithRemarks => "Proven, with the remarks above.",
            Verdict::NotProven => "Not proven: it does not behave like the model that was trained. Do not use it.",
        })?;
    }
    Ok(if proven { Exit::Done } else { Exit::NotProven })
}

/// Progress of an export: lines of JSON, or a bar.
struct Progress<'a> {
    context: &'a Context,
    bar: Option<ProgressBar>,
}

impl<'a> Progress<'a> {
    fn new(context: &'a Context) -> Self {
        use std::io::IsTerminal;
        let bar = (!context.json && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(1);
            if let Ok(style) = ProgressStyle::with_template("{msg} {bar:28} {pos}/{len}") {
                bar.set_style(style);
            }
            bar
        });
        Self { context, bar }
    }

    fn at(&mut self, phase: &'static str, done: usize, total: usize) -> Result<(), Failure> {
        if let Some(bar) = &self.bar {
            bar.set_message(phase);
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        }
        if self.context.json {
            self.context.print_json(&json!({ "progress": { "phase": phase, "done": done, "total": total } }))?;
        }
        Ok(())
    }

    /// Shows the progress that `work` reports.
    fn through<T>(
        &mut self,
        phase: &'static str,
        work: impl FnOnce(&mut dyn FnMut(usize, usize)) -> Result<T, export::Error>,
    ) -> Result<T, Failure> {
        let mut said = Ok(());
        let result = work(&mut |done, total| {
            if said.is_ok() {
                said = self.at(phase, done, total);
            }
        });
        said?;
        Ok(result?)
    }

    fn close(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
