use std::iter;
use std::path::{Path, PathBuf};

use hearth_engine::config::RunConfig;
use hearth_engine::data::DataStats;
use hearth_engine::format;
use hearth_engine::hardware::{self as machine, Hardware};
use hearth_engine::model::{Catalogue, CatalogueModel, ModelShape, ModelSource};
use hearth_engine::near::near;
use hearth_engine::plan::{self, Plan, Reason};
use hearth_engine::run::store::RATES;
use hearth_engine::run::{self, Opened};
use serde::Serialize;

use super::config_args::ConfigArgs;
use super::failure::{Exit, Failure};
use super::{Context, emit, hardware};

/// Examples where no data is given: enough for a task, and a number to scale from.
const ASSUMED_EXAMPLES: usize = 1000;
/// Their tokens where no length is given either, unless the model's limit is below.
const ASSUMED_LENGTH: usize = 2048;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Plan for another computer: a card's profile by its id, or a file that `hearth hardware --json` wrote.
    #[arg(long, visible_alias = "card", value_name = "PROFILE|FILE")]
    hardware: Option<PathBuf>,
}

/// The plan, and what it rests on that nobody gave or measured.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    plan: &'a Plan,
    /// Sentences; empty where everything is known.
    assumed: &'a [String],
}

pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, Failure> {
    let has_data = args.config.has_data();
    let config = if has_data { args.config.resolve()? } else { args.config.resolve_without_data()? };
    let hardware = hardware_of(context, args.hardware)?;
    let mut assumed = Vec::new();
    let (shape, data) = match (published(&config.model)?, has_data) {
        (None, true) => {
            let opened = Opened::open(&config, None)?;
            let encoded = opened.encode(&config)?;
            (opened.source.shape().clone(), encoded.uncut)
        }
        (Some(model), true) => return Err(no_tokenizer(model, &config.data.path)),
        (None, false) => {
            let shape = ModelSource::open(&config.model)?.shape().clone();
            let data = assume_data(&config, &shape, &mut assumed);
            (shape, data)
        }
        (Some(model), false) => {
            assumed.push(as_published(model));
            (model.shape.clone(), assume_data(&config, &model.shape, &mut assumed))
        }
    };
    let plan = plan::plan(&shape, &data, &config, &hardware)?;
    if hardware.training_card().is_some_and(|card| card.memory_free_bytes.is_none()) {
        let others = format::bytes(plan.budget.others_bytes);
        assumed.push(format!("{others} of the card in use by other programs: nobody measured it."));
    }
    if context.json {
        context.print_json(&Answer { plan: &plan, assumed: &assumed })?;
    } else {
        show(&plan, &assumed)?;
    }
    // A plan that does not fit is an answer; only starting it is refused. The exit status says it to scripts.
    Ok(if plan.fits { Exit::Done } else { Exit::DoesNotFit })
}

/// The computer to plan for: a profile, a file, or this one.
fn hardware_of(context: &Context, named: Option<PathBuf>) -> Result<Hardware, Failure> {
    let Some(named) = named else { return Ok(hardware::with_rates(machine::here()?, &context.runs_dir.join(RATES))) };
    if let Some(profile) = named.to_str().and_then(machine::profile) {
        return Ok(profile.hardware());
    }
    if is_a_name(&named) && named.extension().is_none() {
        let name = named.to_string_lossy();
        let ids = machine::profiles().iter().map(|profile| profile.id.as_str());
        return Err(Failure::input(
            "hardware.unknown_profile",
            format!("{name} is no file here and no card that has a profile"),
            format!("Give a file that `hearth hardware --json` wrote, or {}.", one_of(&name, ids)),
        ));
    }
    Ok(Hardware::read(&named)?)
}

/// The published model of this name; `None` for a path, which whoever opens it may refuse.
fn published(model: &Path) -> Result<Option<&'static CatalogueModel>, Failure> {
    if model.exists() {
        return Ok(None);
    }
    let catalogue = Catalogue::bundled();
    let name = model.to_string_lossy();
    if let Some(found) = catalogue.find(&name) {
        return Ok(Some(found));
    }
    if !is_a_name(model) || model.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf")) {
        return Ok(None);
    }
    Err(Failure::input(
        "model.unknown_name",
        format!("{name} is no file or folder here and no model of the catalogue"),
        format!("Give the path of a model's folder or .gguf file, or {}.", one_of(&name, catalogue.ids())),
    ))
}

/// "a known name; near this one: …", or all there are where none is near.
fn one_of<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let near = near(name, known.clone());
    if near.is_empty() {
        format!("one of {}", known.collect::<Vec<_>>().join(", "))
    } else {
        format!("a known name; near this one: {}", near.join(", "))
    }
}

/// Nothing here is called so, and it could be no place elsewhere.
fn is_a_name(path: &Path) -> bool {
    !path.exists() && path.components().count() == 1
}

/// Tokens are counted by the model's own tokenizer, and the catalogue has none.
fn no_tokenizer(model: &CatalogueModel, data: &Path) -> Failure {
    Failure::input(
        "model.not_here",
        format!("the tokens of {} cannot be counted: the tokenizer of {} is not here", data.display(), model.id),
        format!("Give --model the path of a copy of {}, or leave --data out to plan for assumed examples.", model.hub),
    )
}

fn as_published(model: &CatalogueModel) -> String {
    let terms = if model.licence.accept { ", to be accepted there" } else { "" };
    format!(
        "{} as published at {}: {} in 16 bit, {}{terms}.",
        model.title,
        model.hub,
        format::bytes(model.bytes_16bit()),
        model.licence.name
    )
}

/// Figures of examples of the length that is asked for, all of them learned: the most work there can be.
fn assume_data(config: &RunConfig, shape: &ModelShape, assumed: &mut Vec<String>) -> DataStats {
    let asked = config.data.length;
    // A length that makes no sense is refused by the plan, which says so better.
    let length = asked.unwrap_or(ASSUMED_LENGTH).min(shape.max_positions).max(1);
    let limit = if asked.is_none() && length < ASSUMED_LENGTH { ", the model's limit" } else { "" };
    let missing = if asked.is_some() { "no data" } else { "neither data nor a length" };
    assumed.push(format!(
        "{} of {} each{limit}, every token learned: {missing} is given.",
        format::counted(ASSUMED_EXAMPLES, "example"),
        format::counted(length, "token")
    ));
    DataStats::of(iter::repeat_n((length, length), ASSUMED_EXAMPLES))
}

fn show(plan: &Plan, assumed: &[String]) -> Result<(), Failure> {
    emit(&run::sentence(plan))?;
    for words in assumed {
        emit(&format!("assumed: {words}"))?;
    }
    for item in plan.items.iter().filter(|item| item.bytes > 0) {
        emit(&format!("  {:>11}  {}", format::bytes(item.bytes), item.label))?;
    }
    emit(&total(plan))?;
    for reason in &plan.reasons {
        emit(&format!("{} = {}: {}", reason.setting, reason.value, reason.why))?;
        if !reason.if_changed.is_empty() {
            emit(&format!("    {}{}", reason.if_changed, time_share(reason, plan)))?;
        }
    }
    emit(&time(plan))?;
    for warning in &plan.warnings {
        emit(&format!("note: {}", warning.message))?;
    }
    for other in plan.alternatives.iter().filter(|other| !other.same) {
        emit(&format!("{}: {}", other.title, other.words))?;
    }
    if let Err(e) = plan.require_fit() {
        emit(&format!("It does not fit: {e}. Least harm first, each with those before it:"))?;
        for remedy in &plan.remedies {
            let saved = match remedy.saves_bytes {
                0 => String::new(),
                bytes => format!(" Saves {}.", format::bytes(bytes)),
            };
            let enough = if remedy.enough { " Then it fits." } else { "" };
            emit(&format!("  {}{saved}{enough}", remedy.words))?;
        }
    }
    Ok(())
}

/// The sum of the items against the memory of the device.
fn total(plan: &Plan) -> String {
    let budget = &plan.budget;
    let why = if budget.limited_by_hand {
        "the limit set by hand".to_string()
    } else {
        format!(
            "{} of {} less {} of other programs and {} kept free",
            format::bytes(budget.total_bytes),
            budget.device,
            format::bytes(budget.others_bytes),
            format::bytes(budget.margin_bytes)
        )
    };
    let (planned, free) = (format::bytes(plan.planned_bytes), format::bytes(plan.budget_bytes));
    format!("  {planned:>11}  together, of {free} free for it: {why}")
}

/// " (+2 % time)"; nothing where the change makes none that counts.
fn time_share(reason: &Reason, plan: &Plan) -> String {
    let Some(change) = &reason.change else { return String::new() };
    let percent = (100.0 * change.time_s / plan.time.total_s).round();
    if !percent.is_finite() || percent == 0.0 {
        return String::new();
    }
    let sign = if percent < 0.0 { '−' } else { '+' };
    format!(" ({sign}{} % time)", percent.abs())
}

/// How long, from when to when, and how that is known.
fn time(plan: &Plan) -> String {
    let time = &plan.time;
    let at = |share: f64| format::duration(time.total_s * share);
    format!(
        "time = about {} ± {:.0} %, {} to {}: {} of {}, {}, {}.",
        at(1.0),
        100.0 * time.plus_minus,
        at(1.0 - time.plus_minus),
        at(1.0 + time.plus_minus),
        format::counted(time.n_steps, "step"),
        format::duration(time.step_s),
        format::tokens_per_second(time.tokens_per_s),
        time.basis_words
    )
}
