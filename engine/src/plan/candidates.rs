//! What is tried: every way to compute a step, and where it does not fit with less and less on the card.

use super::Budget;
use super::propose::{Frame, Task, settings};
use crate::config::{BaseFormat, Recompute, RunConfig, Settings};
use crate::hardware::TrainOn;

/// Rows of an MLP's parts where memory is short: every part dequantises the weights anew, so the larger the better.
const MLP_ROWS: [usize; 2] = [4096, 1024];

/// How many layers' weights wait in system memory, in the search.
#[derive(Clone, Copy, PartialEq)]
enum Streaming {
    AsGiven,
    AsNeeded,
    All,
}

/// Settings that were tried, and what they take of the device.
pub(super) struct Candidate {
    pub(super) settings: Settings,
    pub(super) planned_bytes: u64,
}

impl Task<'_> {
    /// Steps of `frame` with the base, modes, splits and rows that are given.
    pub(super) fn candidates(
        &self,
        frame: &Frame,
        base: BaseFormat,
        modes: &[Recompute],
        splits: &[(usize, usize)],
        head_rows: usize,
    ) -> Vec<Candidate> {
        let is_open = frame.config.recompute.is_none() && frame.config.n_layers_eased.is_none();
        let mut candidates = Vec::with_capacity(modes.len() * splits.len());
        for &mode in modes {
            for &split in splits {
                let fixed = self.fixed(frame, base, mode, split, head_rows);
                // What leaves the card costs time: it is for what does not fit otherwise, with the fewest sequences at once.
                let tried = if split.0 == frame.splits[0].0 { self.leaving_less(frame, fixed) } else { vec![fixed] };
                for settings in tried {
                    let planned_bytes = self.bytes(&settings);
                    if is_open && planned_bytes <= frame.budget.budget_bytes {
                        candidates.extend(self.eased(&settings, frame.budget));
                    }
                    candidates.push(Candidate { settings, planned_bytes });
                }
            }
        }
        candidates
    }

    /// A step as the config fixes it, with nothing more than that off the card.
    pub(super) fn fixed(
        &self,
        frame: &Frame,
        base: BaseFormat,
        recompute: Recompute,
        split: (usize, usize),
        head_rows: usize,
    ) -> Settings {
        let config = frame.config;
        let settings = settings(frame, split, head_rows);
        let layers = |n: Option<usize>| n.unwrap_or(0).min(self.shape.n_layers);
        Settings {
            train_on: self.hardware.train_on,
            base,
            compute: self.compute(config),
            embedding_on_host: self.embedding_on_host(config),
            recompute,
            n_layers_eased: layers(config.n_layers_eased),
            offload_inputs: config.offload_inputs.unwrap_or(false),
            // As many as there are, or more, is the whole micro-batch.
            mlp_rows: config.mlp_rows.filter(|&rows| rows < settings.max_tokens()),
            n_layers_streamed: layers(config.n_layers_streamed),
            n_layers_cached: layers(config.n_layers_cached),
            ..settings
        }
    }

    /// `fixed`, and where it does not fit with less and less on the card, as [`Self::moves`] says; all this with no more, with as many
    /// as it takes, and with all of the layers' weights in system memory, since what they leave is room for recomputing less.
    fn leaving_less(&self, frame: &Frame, fixed: Settings) -> Vec<Settings> {
        let (config, budget) = (frame.config, frame.budget);
        let fits = |settings: &Settings| self.bytes(settings) <= budget.budget_bytes;
        if fits(&fixed) {
            return vec![fixed];
        }
        let pinned_bytes = self.pinned_bytes();
        let has_room = |settings: &Settings| self.sums.of(self.shape, settings).host_bytes <= pinned_bytes;
        let mut found = Vec::new();
        for streaming in [Streaming::AsGiven, Streaming::AsNeeded, Streaming::All] {
            if streaming != Streaming::AsGiven && !self.streams(config, fixed.base) {
                continue;
            }
            for moved in self.moves(config, &fixed) {
                let moved = match streaming {
                    Streaming::AsGiven => Some(moved),
                    Streaming::AsNeeded => self.streaming(&moved, budget),
                    Streaming::All => Some(Settings { n_layers_streamed: self.shape.n_layers, ..moved }),
                };
                let Some(moved) = moved.filter(has_room) else { continue };
                let is_enough = fits(&moved);
                found.push(moved);
                if is_enough {
                    break;
                }
            }
        }
        // Where there is no room for what the config itself has wait in system memory.
        if found.is_empty() {
            found.push(fixed);
        }
        found
    }

    /// Only quantised weights are streamed, and as many as the config says where it says so.
    pub(super) fn streams(&self, config: &RunConfig, base: BaseFormat) -> bool {
        self.hardware.train_on == TrainOn::Card && config.n_layers_streamed.is_none() && base == BaseFormat::Nf4
    }

    /// `fixed`, and with the MLP in parts, each with the inputs where `fixed` has them and in system memory, as far as the config leaves
    /// it open. The last takes least of the device.
    pub(super) fn moves(&self, config: &RunConfig, fixed: &Settings) -> Vec<Settings> {
        let offloads = self.hardware.train_on == TrainOn::Card && config.offload_inputs.is_none();
        let open = if config.mlp_rows.is_none() { &MLP_ROWS[..] } else { &[] };
        let parts = open.iter().filter(|&&rows| rows < fixed.max_tokens()).map(|&rows| Some(rows));
        let mut moves = Vec::new();
        for mlp_rows in std::iter::once(fixed.mlp_rows).chain(parts) {
            let on_device = Settings { mlp_rows, ..fixed.clone() };
            let offloaded = offloads.then(|| Settings { offload_inputs: true, ..on_device.clone() });
            moves.push(on_device);
            moves.extend(offloaded);
        }
        moves
    }

    /// So many layers' weights in system memory that the rest fits; `None` where it does not with all of them there.
    fn streaming(&self, settings: &Settings, budget: &Budget) -> Option<Settings> {
        let with = |n_layers_streamed| Settings { n_layers_streamed, ..settings.clone() };
        if self.bytes(&with(self.shape.n_layers)) > budget.budget_bytes {
            return None;
        }
        // Bytes fall evenly from one layer on; fewer than there are slots would save nothing.
        let (one, two) = (self.bytes(&with(1)), self.bytes(&with(2)));
        let more = one.saturating_sub(budget.budget_bytes).div_ceil(one.saturating_sub(two).max(1));
        let n = 1 + usize::try_from(more).ok()?;
        (n <= self.shape.n_layers).then(|| with(n))
    }

    /// As many layers recompute one step less as the budget has room for; `None` where that is none, or all of them.
    fn eased(&self, settings: &Settings, budget: &Budget) -> Option<Candidate> {
        let n_layers = self.shape.n_layers;
        if settings.recompute == Recompute::N || n_layers < 3 {
            return None;
        }
        let easier = Settings { recompute: settings.recompute.eased(), ..settings.clone() };
        if self.bytes(&easier) <= budget.budget_bytes {
            return None;
        }
        // Bytes grow evenly from one eased layer to all but one; with all of them it is the next mode.
        let with = |n_layers_eased| {
            let settings = Settings { n_layers_eased, ..settings.clone() };
            Candidate { planned_bytes: self.bytes(&settings), settings }
        };
        let one = with(1).planned_bytes;
        let room = budget.budget_bytes.checked_sub(one)?;
        let more = room.checked_div(with(2).planned_bytes.saturating_sub(one)).unwrap_or(u64::MAX);
        Some(with((1 + more.min(n_layers as u64) as usize).min(n_layers - 1)))
    }
}
