//! What to change where a run does not fit, in order of least harm.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::beside::Sums;
use super::check;
use super::propose::{LENGTH_STEP, Proposal, Task, cuts};
use crate::config::{BaseFormat, OptimizerKind, Recompute, RunConfig};
use crate::format;
use crate::hardware::{Profile, ProfileCard, profiles};
use crate::model::{Catalogue, CatalogueModel, ModelShape};

/// One change. Each adds to those before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Remedy {
    /// Field of [`RunConfig`], `data.length`; `other_programs` and `card` where it is none.
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
    let mut remedies = vec![free_memory(task, config, least)];
    // Asked to keep within a limit, raising it is the whole answer; with memory that does not exist it is none.
    if remedies[0].enough {
        return remedies;
    }
    let mut search = Search { task, config: config.clone(), bytes: least.planned_bytes };
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
    let mut too_small = None;
    let (profile, card) = cards.into_iter().find(|(profile, card)| {
        let hardware = profile.in_computer(task.hardware);
        let kind = (card.memory_bytes, hardware.compute_dtype());
        if too_small == Some(kind) || check::precision(&config, &hardware).is_err() {
            return false;
        }
        let fits = task.on(&hardware).fits(&config);
        if !fits {
            too_small = Some(kind);
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

fn free_memory(task: &Task, config: &RunConfig, least: &Proposal) -> Remedy {
    let short = least.planned_bytes.saturating_sub(least.budget.budget_bytes);
    if least.budget.limited_by_hand {
        let unlimited = task.budget(&RunConfig { memory_limit_bytes: None, ..config.clone() });
        let enough = least.planned_bytes <= unlimited.budget_bytes;
        let most = least.planned_bytes.min(unlimited.budget_bytes);
        return Remedy {
            setting: "memory_limit_bytes".into(),
            value: most.to_string(),
            words: format!("Raise the memory limit to {}.", format::bytes(most)),
            saves_bytes: most.saturating_sub(least.budget.budget_bytes),
            enough,
        };
    }
    let others = least.budget.others_bytes;
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
    Remedy {
        setting: "other_programs".into(),
        value: String::new(),
        words,
        saves_bytes: others.min(short),
        enough: false,
    }
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
const CHANGES: [fn(&Search, &Proposal) -> Option<ChangeTo>; 8] =
    [weight_cache, recompute, micro_batch, optimizer, base, truncate_length, rank, least_rank];

fn weight_cache(search: &Search, _: &Proposal) -> Option<ChangeTo> {
    search.config.n_layers_cached.filter(|&n| n > 0)?;
    let words = "Keep no weights dequantised: the same result, a little slower.";
    Some(search.change("n_layers_cached", "0", words, |config| config.n_layers_cached = Some(0)))
}

fn recompute(search: &Search, _: &Proposal) -> Option<ChangeTo> {
    let fixed = search.config.recompute.filter(|&mode| mode != Recompute::C0)?;
    let words = format!("Recompute more (C0 instead of {fixed:?}): the same result, slower.");
    Some(search.change("recompute", "c0", &words, |config| config.recompute = Some(Recompute::C0)))
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

fn base(search: &Search, _: &Proposal) -> Option<ChangeTo> {
    search.config.base.filter(|&base| base != BaseFormat::Nf4)?;
    let words = "Hold the base in 4 bit (NF4): a little less exact.";
    Some(search.change("base", "nf4", words, |config| config.base = Some(BaseFormat::Nf4)))
}

fn truncate_length(search: &Search, least: &Proposal) -> Option<ChangeTo> {
    let at = |length: usize| move |config: &mut RunConfig| config.data.length = Some(length);
    let longest = least.settings.length.saturating_sub(1) / LENGTH_STEP;
    // Bytes grow with the length, so halving the range finds the longest that fits.
    let (mut fitting, mut beyond) = (0, longest + 1);
    while beyond - fitting > 1 {
        let middle = (fitting + beyond) / 2;
        if search.fits(at(middle * LENGTH_STEP)) { fitting = middle } else { beyond = middle }
    }
    // Where no length is short enough, half of it still helps.
    let length = if fitting > 0 { fitting } else { (longest / 2).max(1) } * LENGTH_STEP;
    if length >= least.settings.length {
        return None;
    }
    let over = search.task.lengths.kept(length, search.config.data.over_length).n_over;
    let fate = match (over, cuts(&search.config)) {
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

/// The scale alpha / rank stays, and with it the meaning of the learning rate.
pub(super) fn with_rank(config: &mut RunConfig, rank: usize) {
    config.lora.alpha = config.lora.alpha * rank as f32 / config.lora.rank as f32;
    config.lora.rank = rank;
}
