use std::path::{Path, PathBuf};

use hearth_engine::config::{BaseFormat, RunConfig};
use hearth_engine::data::DataStats;
use hearth_engine::error::Explain;
use hearth_engine::format;
use hearth_engine::hardware::{self as machine, CardStore, Hardware, Profile};
use hearth_engine::model::{Catalogue, CatalogueModel, ModelShape, ModelSource};
use hearth_engine::near::near;
use hearth_engine::plan::{
    self, ASSUMED_EXAMPLES, ASSUMED_LENGTH, CardTable, Fit, Largest, Plan, Reason, TableCell, assumed_examples,
};
use hearth_engine::run::store::RATES;
use hearth_engine::run::{self, Opened};
use serde::Serialize;

use super::config_args::ConfigArgs;
use super::failure::{Exit, Failure};
use super::{Context, emit, hardware};

/// Cards of a table where not all are asked for: what people have, by memory.
const USUAL_CARDS: [&str; 10] = [
    "no-card",
    "rtx-3060-laptop-6gb",
    "rtx-4060-8gb",
    "rtx-3060-12gb",
    "rtx-4060-ti-16gb",
    "rtx-3090-24gb",
    "rtx-4090-24gb",
    "rtx-5090-32gb",
    "rtx-a6000-48gb",
    "h100-sxm-80gb",
];

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Plan for another computer: a card by its name (`hearth cards` lists them), or a file that `hearth hardware --json` wrote.
    #[arg(long, visible_alias = "card", value_name = "CARD|FILE")]
    hardware: Option<PathBuf>,
    #[command(flatten)]
    question: Question,
    /// With --table: every card there is.
    #[arg(long, requires = "table")]
    all: bool,
}

/// At most one other question than "does it fit".
#[derive(clap::Args)]
#[group(multiple = false)]
struct Question {
    /// Ask for the longest sequence that fits, one at a time.
    #[arg(long)]
    longest: bool,
    /// Ask for the largest rank that fits.
    #[arg(long)]
    largest_rank: bool,
    /// Ask how many sequences fit at once.
    #[arg(long)]
    largest_batch: bool,
    /// Ask for the largest model of the catalogue that fits.
    #[arg(long)]
    largest_model: bool,
    /// Ask which card does what with which model of the catalogue.
    #[arg(long)]
    table: bool,
}

/// An answer, and what it rests on that nobody gave or measured.
#[derive(Serialize)]
struct Answer<'a, T> {
    #[serde(flatten)]
    answer: &'a T,
    /// Sentences; empty where everything is known.
    assumed: &'a [String],
}

impl<'a, T: Serialize> Answer<'a, T> {
    fn print(context: &Context, answer: &'a T, assumed: &'a [String]) -> Result<(), Failure> {
        context.print_json(&Answer { answer, assumed })
    }
}

pub(crate) fn run(context: &Context, mut args: Args) -> Result<Exit, Failure> {
    let has_data = args.config.has_data();
    let question = args.question;
    let of_all_models = question.table || question.largest_model;
    if of_all_models {
        args.config.leave_model_open();
    }
    let config = if has_data { args.config.resolve()? } else { args.config.resolve_without_data()? };
    let own = CardStore::new(&run::home());
    let mut assumed = Vec::new();
    if of_all_models {
        let job = Job::of(&config, has_data, &mut assumed)?;
        return if question.table {
            table(context, &config, &job, args.all.then_some(&own), &assumed)
        } else {
            largest_model(context, &config, &job, &hardware_of(context, &own, args.hardware)?, assumed)
        };
    }
    let hardware = hardware_of(context, &own, args.hardware)?;
    let (shape, data) = subject(&config, has_data, &mut assumed)?;
    let largest = match question {
        Question { longest: true, .. } => Some(plan::longest(&shape, &config, &hardware)?),
        Question { largest_rank: true, .. } => Some(plan::largest_rank(&shape, &data, &config, &hardware)?),
        Question { largest_batch: true, .. } => Some(plan::largest_micro_batch(&shape, &data, &config, &hardware)?),
        _ => None,
    };
    if let Some(largest) = largest {
        if question.longest {
            // The data is as long as what is found.
            assumed.retain(|words| !words.contains("every token learned"));
        }
        assume_others(&hardware, largest.budget.others_bytes, &mut assumed);
        show_largest(context, &largest, &assumed)?;
        return Ok(Exit::Done);
    }
    let plan = plan::plan(&shape, &data, &config, &hardware)?;
    assume_others(&hardware, plan.budget.others_bytes, &mut assumed);
    if context.json {
        Answer::print(context, &plan, &assumed)?;
    } else {
        show(&plan, &assumed)?;
    }
    // A plan that does not fit is an answer; only starting it is refused. The exit status says it to scripts.
    Ok(if plan.require_fit().is_ok() { Exit::Done } else { Exit::DoesNotFit })
}

fn assume_others(hardware: &Hardware, others_bytes: u64, assumed: &mut Vec<String>) {
    if hardware.training_card().is_some_and(|card| card.memory_free_bytes.is_none()) {
        let others = format::bytes(others_bytes);
        assumed.push(format!("{others} of the card in use by other programs: nobody measured it."));
    }
}

/// The model and the examples that a plan is for.
fn subject(config: &RunConfig, has_data: bool, assumed: &mut Vec<String>) -> Result<(ModelShape, DataStats), Failure> {
    match (published(&config.model)?, has_data) {
        (None, true) => {
            let opened = Opened::open(config, None)?;
            let encoded = opened.encode(config)?;
            Ok((opened.source.shape().clone(), encoded.uncut))
        }
        (Some(model), true) => Err(no_tokenizer(model, &config.data.path)),
        (None, false) => {
            let shape = ModelSource::open(&config.model)?.shape().clone();
            let data = assume_data(config, &shape, assumed);
            Ok((shape, data))
        }
        (Some(model), false) => {
            assumed.push(as_published(model));
            Ok((model.shape.clone(), assume_data(config, &model.shape, assumed)))
        }
    }
}

/// What there is to learn where many models are compared.
enum Job {
    /// Examples as one model's tokenizer counts them.
    Given(DataStats),
    /// Examples of this length, or of the model's limit.
    Assumed(usize),
}

impl Job {
    fn of(config: &RunConfig, has_data: bool, assumed: &mut Vec<String>) -> Result<Self, Failure> {
        if has_data {
            let (_, data) = subject(config, true, assumed)?;
            assumed.push(format!("Tokens for every model as the tokenizer of {} counts them.", config.model.display()));
            return Ok(Self::Given(data));
        }
        let length = config.data.length.unwrap_or(ASSUMED_LENGTH);
        assumed.push(format!(
            "{} of {} each, or of the model's limit, every token learned: {NO_DATA}.",
            format::counted(ASSUMED_EXAMPLES, "example"),
            format::counted(length, "token")
        ));
        Ok(Self::Assumed(length))
    }

    fn data(&self, shape: &ModelShape) -> DataStats {
        match self {
            Self::Given(data) => data.clone(),
            Self::Assumed(length) => assumed_examples((*length).min(shape.max_positions).max(1)),
        }
    }
}

fn table(
    context: &Context,
    config: &RunConfig,
    job: &Job,
    every: Option<&CardStore>,
    assumed: &[String],
) -> Result<Exit, Failure> {
    let own: Vec<Profile> = match every {
        Some(store) => store.profiles()?,
        None => Vec::new(),
    };
    let cards: Vec<&Profile> = match every {
        Some(_) => own.iter().chain(machine::profiles()).collect(),
        None => USUAL_CARDS.iter().filter_map(|id| machine::profile(id)).collect(),
    };
    let models: Vec<&CatalogueModel> = Catalogue::bundled().models.iter().collect();
    let table = plan::card_table(&models, &cards, &|shape| job.data(shape), config);
    if context.json {
        Answer::print(context, &table, assumed)?;
    } else {
        show_table(&table, assumed)?;
    }
    Ok(Exit::Done)
}

/// Columns beside each other in a terminal.
const COLUMNS: usize = 4;

fn show_table(table: &CardTable, assumed: &[String]) -> Result<(), Failure> {
    for words in assumed {
        emit(&format!("assumed: {words}"))?;
    }
    emit(
        "+ everything fits   ~ fits by computing some of it twice, or keeping it in system memory   − does not fit; \
         16 or 4 bit base; time of the run",
    )?;
    let titles = table.rows.iter().map(|row| row.title.chars().count()).max().unwrap_or(0);
    for from in (0..table.cards.len()).step_by(COLUMNS) {
        let to = (from + COLUMNS).min(table.cards.len());
        let cells: Vec<Vec<String>> =
            table.rows.iter().map(|row| row.cells[from..to].iter().map(cell).collect()).collect();
        let widths: Vec<usize> = (from..to)
            .map(|i| {
                let name = table.cards[i].name.chars().count();
                cells.iter().map(|row| row[i - from].chars().count()).fold(name, usize::max)
            })
            .collect();
        let line = |title: &str, texts: &mut dyn Iterator<Item = &str>| {
            let texts: Vec<String> = texts.zip(&widths).map(|(text, &width)| padded(text, width)).collect();
            format!("{}  {}", padded(title, titles), texts.join("  ")).trim_end().to_string()
        };
        emit("")?;
        emit(&line("", &mut table.cards[from..to].iter().map(|card| card.name.as_str())))?;
        for (row, cells) in table.rows.iter().zip(&cells) {
            emit(&line(&row.title, &mut cells.iter().map(String::as_str)))?;
        }
    }
    Ok(())
}

/// "~ 4 bit 10.1 GiB 1240 tokens/s 3 h 12 min".
fn cell(cell: &TableCell) -> String {
    match cell {
        TableCell::Refused(_) => format::UNKNOWN.into(),
        TableCell::Planned(plan) if plan.fit == Fit::No => format!("− {}", format::bytes(plan.planned_bytes)),
        TableCell::Planned(plan) => format!(
            "{} {} bit {} {} {}",
            if plan.fit == Fit::Comfortable { '+' } else { '~' },
            match plan.base {
                BaseFormat::F32 => 32,
                BaseFormat::Half => 16,
                BaseFormat::Nf4 => 4,
            },
            format::bytes(plan.planned_bytes),
            format::tokens_per_second(plan.tokens_per_s),
            format::duration(plan.total_s)
        ),
    }
}

fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.chars().count())))
}

fn largest_model(
    context: &Context,
    config: &RunConfig,
    job: &Job,
    hardware: &Hardware,
    mut assumed: Vec<String>,
) -> Result<Exit, Failure> {
    let models = &Catalogue::bundled().models;
    let Some(largest) = plan::largest_model(models, &|shape| job.data(shape), config, hardware)? else {
        return Err(Failure::does_not_fit(
            "plan.no_model_fits",
            format!("no model of the catalogue can be trained on {} as asked", hardware.device_name()),
            "Ask for a shorter length or a lower rank, or for another card.",
        ));
    };
    assume_others(hardware, largest.budget.others_bytes, &mut assumed);
    show_largest(context, &largest, &assumed)?;
    Ok(Exit::Done)
}

fn show_largest(context: &Context, largest: &Largest, assumed: &[String]) -> Result<(), Failure> {
    if context.json {
        return Answer::print(context, largest, assumed);
    }
    emit(&largest.words)?;
    for words in assumed {
        emit(&format!("assumed: {words}"))?;
    }
    let Largest { settings, planned_bytes, budget, time, usual, .. } = largest;
    emit(&format!(
        "with {}: {} of {} free for it on {}",
        plan::settings_in_words(settings),
        format::bytes(*planned_bytes),
        format::bytes(budget.budget_bytes),
        budget.device
    ))?;
    let usual = usual.as_ref().map_or(String::new(), |usual| {
        format!("; {} as planned without the question", format::tokens_per_second(usual.tokens_per_s))
    });
    emit(&format!(
        "time = {} a step of {}, {}{usual}; {}",
        format::duration(time.step_s),
        format::counted(time.n_tokens_per_step as usize, "token"),
        format::tokens_per_second(time.tokens_per_s),
        time.basis_words
    ))
}

/// The computer to plan for: a described card, a file, or this one.
fn hardware_of(context: &Context, own: &CardStore, named: Option<PathBuf>) -> Result<Hardware, Failure> {
    let Some(named) = named else { return Ok(hardware::with_rates(machine::here()?, &context.runs_dir.join(RATES))) };
    if let Some(name) = named.to_str() {
        if let Some(profile) = machine::profile(name) {
            return Ok(profile.hardware());
        }
        if let Some(profile) = own.find(name)? {
            return Ok(profile.hardware());
        }
    }
    if is_a_name(&named) && named.extension().is_none() {
        return Err(unknown_card(&named.to_string_lossy(), own));
    }
    Ok(Hardware::read(&named)?)
}

/// "a known name; near this one: …", of all cards there are.
pub(super) fn unknown_card(name: &str, own: &CardStore) -> Failure {
    let own = own.profiles().unwrap_or_default();
    let ids = own.iter().chain(machine::profiles()).map(|profile| profile.id.as_str());
    Failure::input(
        "hardware.unknown_profile",
        format!("{name} is no file here and no card that has a profile"),
        format!("Give a file that `hearth hardware --json` wrote, or {}.", one_of(name, ids)),
    )
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

/// In sentences on assumed examples.
const NO_DATA: &str = "no data is given";

/// Figures of examples of the length that is asked for, all of them learned: the most work there can be.
fn assume_data(config: &RunConfig, shape: &ModelShape, assumed: &mut Vec<String>) -> DataStats {
    let asked = config.data.length;
    // A length that makes no sense is refused by the plan, which says so better.
    let length = asked.unwrap_or(ASSUMED_LENGTH).min(shape.max_positions).max(1);
    let limit = if asked.is_none() && length < ASSUMED_LENGTH { ", the model's limit" } else { "" };
    let missing = if asked.is_some() { NO_DATA } else { "neither data nor a length is given" };
    assumed.push(format!(
        "{} of {} each{limit}, every token learned: {missing}.",
        format::counted(ASSUMED_EXAMPLES, "example"),
        format::counted(length, "token")
    ));
    assumed_examples(length)
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
    if let Some(host) = plan.host.as_ref().filter(|host| host.bytes > 0) {
        for item in &host.items {
            emit(&format!("  {:>11}  {} in system memory", format::bytes(item.bytes), item.label))?;
        }
        let (bytes, free) = (format::bytes(host.bytes), format::bytes(host.free_bytes));
        emit(&format!(
            "  {bytes:>11}  pinned there, of {free} free; a plan pins {} at most",
            format::bytes(host.budget_bytes)
        ))?;
    }
    for reason in &plan.reasons {
        emit(&format!("{} = {}: {}", reason.setting, reason.value, reason.why))?;
        if !reason.if_changed.is_empty() {
            emit(&format!("    {}{}", reason.if_changed, time_share(reason, plan)))?;
        }
    }
    emit(&time(plan))?;
    if let Some(price) = &plan.price {
        emit(&format!("cost = {}; power: {}.", price.words(), price.power_words))?;
    }
    for warning in &plan.warnings {
        emit(&format!("note: {}", warning.message))?;
    }
    for other in plan.alternatives.iter().filter(|other| !other.same) {
        emit(&format!("{}: {}", other.title, other.words))?;
    }
    if let Err(e) = plan.require_fit() {
        if plan.fits {
            return emit(&format!("It cannot start: {e}. {}", e.next_step()));
        }
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
            "{} of {} less {} of other programs and the {}, and {} kept free",
            format::bytes(budget.total_bytes),
            budget.device,
            format::bytes(budget.others_bytes),
            if plan.host.is_some() { "driver" } else { "system" },
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
    let most = at(1.0 + time.plus_minus);
    // A time is never none, whatever the past was.
    let range = if time.plus_minus < 1.0 {
        format!("{} to {most}", at(1.0 - time.plus_minus))
    } else {
        format!("up to {most}")
    };
    format!(
        "time = about {} ± {:.0} %, {range}: {} of {}, {}, {}.",
        at(1.0),
        100.0 * time.plus_minus,
        format::counted(time.n_steps, "step"),
        format::duration(time.step_s),
        format::tokens_per_second(time.tokens_per_s),
        time.basis_words
    )
}
