//! What to change where a run does not fit, in order of least harm.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::beside::Sums;
use super::check;
use super::propose::{LENGTH_STEP, Proposal, Task, cuts, exact_base};
use crate::config::{BaseFormat, ComputeDtype, OptimizerKind, Recompute, RunConfig};
use crate::format;
use crate::hardware::{Card, Profile, ProfileCard, TrainOn, profiles};
use crate::model::{Catalogue, CatalogueModel, ModelShape};

/// One change. Each adds to those before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Remedy {
    /// Field of [`RunConfig`], `data.length`; `host_memory` for all that say what waits there and how an MLP is divided;
    /// `other_programs` and `card` where it is none.
    pub setting: String,
    /// Its new value, as a config holds it: a model's id in the catalogue, a card's profile; empty where it is none.
    pub value: String,
    /// The change and its cost, a sentence.
    pub words: String,
    /// What it saves.
    #[ts(type = "number")]
    pub saves_bytes: u64,
    /// The run fits with this and those before.
    pub enough: bool,
}

/// Changes up to the first that is enough; where none is, what would do instead of them: a smaller model, another card.
pub(super) fn remedies(task: &Task, config: &RunConfig, least: &Proposal) -> Vec<Remedy> {
    let mut remedies = Vec::from_iter(free_memory(task, config, least));
    // Asked to keep within a limit, raising it is the whole answer; with memory that does not exist it is none.
    if remedies.iter().any(|remedy| remedy.enough) {
        return remedies;
    }
    // What follows adds to the limit that was raised as far as there is memory.
    let unlimited = RunConfig { memory_limit_bytes: None, ..config.clone() };
    let mut search = Search { task, config: unlimited, bytes: least.planned_bytes };
    for change in CHANGES {
        let Some(change) = change(&search, least) else { continue };
        let remedy = search.apply(change);
        let enough = remedy.as_ref().is_some_and(|remedy| remedy.enough);
        remedies.extend(remedy);
        if enough {
            return remedies;
        }
    }
    remedies.push(smaller_model(task, config, search.bytes));
    remedies.extend(larger_card(task, config));
    remedies
}

/// The largest published model that fits with the config as it was asked for.
fn smaller_model(task: &Task, config: &RunConfig, least_bytes: u64) -> Remedy {
    let mut smaller: Vec<&CatalogueModel> = Catalogue::bundled().models.iter().collect();
    smaller.retain(|model| model.shape.params() < task.shape.params() && takes_length(&model.shape, config));
    smaller.retain(|model| check::heads(&model.shape, task.hardware).is_ok());
    smaller.sort_by_key(|model| std::cmp::Reverse(model.shape.params()));
    let fits = |model: &&CatalogueModel| {
        let sums = Sums::default();
        task.with_model(&model.shape, &sums).fits(config)
    };
    let found = smaller.into_iter().find(fits);
    let least = format!("the least this one needs is {}", format::bytes(least_bytes));
    Remedy {
        setting: "model".into(),
        value: found.map(|model| model.id.clone()).unwrap_or_default(),
        words: match found {
            Some(model) => format!("Choose a smaller model: {least}; {} fits as you asked.", model.title),
            None => format!("Choose a smaller model: {least}."),
        },
        saves_bytes: 0,
        enough: found.is_some(),
    }
}

fn takes_length(shape: &ModelShape, config: &RunConfig) -> bool {
    config.data.length.is_none_or(|length| length <= shape.max_positions)
}

/// The smallest described card on which the config fits as it was asked for: of cards with as much memory the cheapest.
fn larger_card(task: &Task, config: &RunConfig) -> Option<Remedy> {
    // The limit was one of the device that there is.
    let config = RunConfig { memory_limit_bytes: None, ..config.clone() };
    let mut cards: Vec<(&Profile, &ProfileCard)> =
        profiles().iter().filter_map(|profile| Some((profile, profile.card.as_ref()?))).collect();
    let price = |card: &ProfileCard| card.release_price_usd.unwrap_or(f64::INFINITY);
    cards.sort_by(|(_, a), (_, b)| a.memory_bytes.cmp(&b.memory_bytes).then(price(a).total_cmp(&price(b))));
    // Of as much memory and the same number formats, what one does not hold the others don't.
    let mut too_small: Vec<(u64, &str)> = Vec::new();
    let (profile, card) = cards.into_iter().find(|(profile, card)| {
        let kind = (card.memory_bytes, card.tensor_dtype.as_str());
        if too_small.contains(&kind) {
            return false;
        }
        let hardware = profile.in_computer(task.hardware);
        let can = check::precision(&config, &hardware).and_then(|()| check::heads(task.shape, &hardware));
        let fits = can.is_ok() && task.on(&hardware).fits(&config);
        if !fits {
            too_small.push(kind);
        }
        fits
    })?;
    let memory = format::bytes(card.memory_bytes);
    Some(Remedy {
        setting: "card".into(),
        value: profile.id.clone(),
        words: format!("Use a card with {memory}: on {} it fits as you asked.", profile.name),
        saves_bytes: 0,
        enough: true,
    })
}

/// Nothing where nobody else holds any.
fn free_memory(task: &Task, config: &RunConfig, least: &Proposal) -> Option<Remedy> {
    let short = least.planned_bytes.saturating_sub(least.budget.budget_bytes);
    if least.budget.limited_by_hand {
        let unlimited = task.budget(&RunConfig { memory_limit_bytes: None, ..config.clone() });
        let enough = least.planned_bytes <= unlimited.budget_bytes;
        let most = least.planned_bytes.min(unlimited.budget_bytes);
        return Some(Remedy {
            setting: "memory_limit_bytes".into(),
            value: most.to_string(),
            words: format!("Raise the memory limit to {}.", format::bytes(most)),
            saves_bytes: 0,
            enough,
        });
    }
    // What a card's driver keeps for itself nobody can close.
    let others = task.hardware.training_card().and_then(Card::others_bytes).unwrap_or(least.budget.others_bytes);
    if others == 0 {
        return None;
    }
    let words = if others >= short {
        format!(
            "Close other programs: {} more must be free on this device, and they hold {} now.",
            format::bytes(short),
            format::bytes(others)
        )
    } else {
        format!("Close other programs: they hold {} of the {} missing.", format::bytes(others), format::bytes(short))
    };
    // Which of them can be closed is not known, so this is never promised to be enough.
    Some(Remedy {
        setting: "other_programs".into(),
        value: String::new(),
        words,
        saves_bytes: others.min(short),
        enough: false,
    })
}

struct Search<'a> {
    task: &'a Task<'a>,
    config: RunConfig,
    bytes: u64,
}

struct ChangeTo {
    setting: &'static str,
    value: String,
    words: String,
    config: RunConfig,
}

impl Search<'_> {
    /// Nothing where it saves nothing.
    fn apply(&mut self, change: ChangeTo) -> Option<Remedy> {
        let proposal = self.task.propose(&change.config).ok()?;
        let saves_bytes = self.bytes.checked_sub(proposal.planned_bytes).filter(|&saved| saved > 0)?;
        (self.config, self.bytes) = (change.config, proposal.planned_bytes);
        Some(Remedy {
            setting: change.setting.into(),
            value: change.value,
            words: change.words,
            saves_bytes,
            enough: proposal.fits(),
        })
    }

    fn change(&self, setting: &'static str, value: &str, words: &str, with: impl FnOnce(&mut RunConfig)) -> ChangeTo {
        let mut config = self.config.clone();
        with(&mut config);
        ChangeTo { setting, value: value.into(), words: words.into(), config }
    }

    fn fits(&self, with: impl FnOnce(&mut RunConfig)) -> bool {
        let mut config = self.config.clone();
        with(&mut config);
        self.task.fits(&config)
    }
}

/// Least harm first: time only, then rounding, then examples, then what can be learned.
const CHANGES: [fn(&Search, &Proposal) -> Option<ChangeTo>; 10] =
    [weight_cache, recompute, host_memory, micro_batch, optimizer, compute, base, truncate_length, rank, least_rank];

fn weight_cache(search: &Search, _: &Proposal) -> Option<ChangeTo> {
    search.config.n_layers_cached.filter(|&n| n > 0)?;
    let words = "Keep no weights dequantised: the same result, a little slower.";
    Some(search.change("n_layers_cached", "0", words, |config| config.n_layers_cached = Some(0)))
}

fn recompute(search: &Search, _: &Proposal) -> Option<ChangeTo> {
    let RunConfig { recompute: fixed, n_layers_eased, .. } = search.config;
    let words = match fixed {
        Some(mode) if mode != Recompute::C0 => {
            format!("Recompute more (C0 instead of {mode:?}): the same result, slower.")
        }
        _ if n_layers_eased.is_some_and(|n| n > 0) => {
            "Recompute more (C0 in all layers): the same result, slower.".into()
        }
        _ => return None,
    };
    Some(search.change("recompute", "c0", &words, |config| {
        (config.recompute, config.n_layers_eased) = (Some(Recompute::C0), None);
    }))
}

/// What was fixed by hand of what a plan has wait in system memory, or go in parts, where it does not fit otherwise.
fn host_memory(search: &Search, _: &Proposal) -> Option<ChangeTo> {
    let words = match search.task.hardware.train_on {
        TrainOn::Card => "Let what can wait in system memory: the same result.",
        TrainOn::Processor => "Let the plan divide the MLP: the same result.",
    };
    let change = search.change("host_memory", "", words, |config| {
        (config.embedding_on_host, config.offload_inputs) = (None, None);
        (config.n_layers_streamed, config.mlp_rows) = (None, None);
    });
    (change.config != search.config).then_some(change)
}

fn micro_batch(search: &Search, least: &Proposal) -> Option<ChangeTo> {
    if least.settings.micro_batch == 1 {
        return None;
    }
    let effective = least.settings.micro_batch * least.settings.accumulation;
    let words = format!("Take 1 sequence at a time, {effective} to a step: the same training.");
    Some(search.change("micro_batch", "1", &words, |config| {
        (config.micro_batch, config.accumulation, config.effective_batch) = (Some(1), Some(effective), None);
    }))
}

fn optimizer(search: &Search, least: &Proposal) -> Option<ChangeTo> {
    if least.settings.optimizer == OptimizerKind::AdamW8 {
        return None;
    }
    let words = "Hold the optimizer's state in 8 bit: as good in practice.";
    Some(search.change("optimizer.kind", "adam_w8", words, |config| {
        config.optimizer.kind = Some(OptimizerKind::AdamW8);
    }))
}

fn compute(search: &Search, _: &Proposal) -> Option<ChangeTo> {
    let proposed = search.task.hardware.compute_dtype();
    search.config.compute.filter(|&fixed| fixed.size_bytes() > proposed.size_bytes())?;
    let words =
        format!("Compute in {}: a little less exact; sums, norms and the loss stay in 32 bit.", proposed.name());
    Some(search.change("compute", proposed.name(), &words, |config| with_compute(config, proposed)))
}

fn base(search: &Search, _: &Proposal) -> Option<ChangeTo> {
    search.config.base.filter(|&base| base != BaseFormat::Nf4)?;
    let words = "Hold the base in 4 bit (NF4): a little less exact.";
    Some(search.change("base", "nf4", words, |config| config.base = Some(BaseFormat::Nf4)))
}

fn truncate_length(search: &Search, least: &Proposal) -> Option<ChangeTo> {
    let at = |length: usize| move |config: &mut RunConfig| config.data.length = Some(length);
    let kept = |length: usize| search.task.lengths.kept(length, search.config.data.over_length);
    let longest = least.settings.length.saturating_sub(1) / LENGTH_STEP;
    // So short that no example is left.
    let too_short = (1..=longest).take_while(|&n| kept(n * LENGTH_STEP).is_nothing()).count();
    // Bytes grow with the length, so halving the range finds the longest that fits.
    let (mut fitting, mut beyond) = (too_short, longest + 1);
    while beyond - fitting > 1 {
        let middle = (fitting + beyond) / 2;
        if search.fits(at(middle * LENGTH_STEP)) { fitting = middle } else { beyond = middle }
    }
    // Where no length is short enough, half of it still helps.
    let length = if fitting > too_short { fitting } else { (longest / 2).max(too_short + 1) } * LENGTH_STEP;
    if length >= least.settings.length {
        return None;
    }
    let fate = match (kept(length).n_over, cuts(&search.config)) {
        (0, _) => "no example is longer".into(),
        (n, true) => format!("{} would be cut", format::counted(n, "example")),
        (n, false) => format!("{} would be left out", format::counted(n, "example")),
    };
    let words = format!("Shorten the length to {} tokens: {fate}.", format::count(length));
    Some(search.change("data.length", &length.to_string(), &words, at(length)))
}

fn rank(search: &Search, least: &Proposal) -> Option<ChangeTo> {
    let mut rank = least.settings.lora.rank;
    while rank > 4 {
        rank /= 2;
        if search.fits(|config| with_rank(config, rank)) {
            return Some(to_rank(search, rank));
        }
    }
    None
}

fn least_rank(search: &Search, least: &Proposal) -> Option<ChangeTo> {
    (least.settings.lora.rank > 4).then(|| to_rank(search, 4))
}

fn to_rank(search: &Search, rank: usize) -> ChangeTo {
    let words = format!("Lower the rank to {rank}: the adapter can learn less.");
    search.change("lora.rank", &rank.to_string(), &words, |config| with_rank(config, rank))
}

/// An exact base goes along.
pub(super) fn with_compute(config: &mut RunConfig, compute: ComputeDtype) {
    config.compute = Some(compute);
    config.base = config.base.map(|base| if base == BaseFormat::Nf4 { base } else { exact_base(compute) });
}

/// The scale alpha / rank stays, and with it the meaning of the learning rate.
pub(super) fn with_rank(config: &mut RunConfig, rank: usize) {
    config.lora.alpha = config.lora.alpha * rank as f32 / config.lora.rank as f32;
    config.lora.rank = rank;
}
