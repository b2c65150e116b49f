//! Planned beside used memory, over lengths, micro-batches, recompute modes and what waits in system memory; and both ways of the plan's
//! word: what it calls fitting trains 20 steps under a hard cap of an emulated card, what it calls 3 % too large does not.
//!
//! All cells of a model run in one process on one base. Before each the driver's pool is emptied, so that the process holds the base
//! and the context, and afterwards what the cell took besides.

use std::process::ExitCode;

use candle_core::Device;

use super::*;

const HEADER: &str = "model,seq,micro_batch,mode,plan_bytes,measured_bytes,error_percent,limit_mib,outcome";
const N_STEPS: usize = 20;

/// Prints one line a cell and what they come to; fails where one is off by more than 2 % or the plan's word was not kept.
pub(super) fn table(model: &str, csv: Option<&str>) -> ExitCode {
    let mut lines = vec![HEADER.to_string()];
    let (mut all_hold, mut worst) = (true, 0f64);
    let mut say = |line: String, holds: bool| {
        println!("{line}{}", if holds { "" } else { "  <-" });
        lines.push(line);
        all_hold &= holds;
    };
    let mut bench = Bench::new(model);
    for cell in cells(&bench.shape) {
        let settings = settings(&bench.shape, cell.length, cell.micro_batch, &cell.mode);
        let (name, plan_bytes) = (bench.name(&settings), bench.plan_bytes(&settings));
        // Two passes: the second meets all that the first left behind.
        match bench.train(&settings, 2, None) {
            Ok(measured_bytes) => {
                let error = 100.0 * (plan_bytes as f64 / measured_bytes as f64 - 1.0);
                worst = worst.max(error.abs());
                say(format!("{name},{plan_bytes},{measured_bytes},{error:+.2},,"), error.abs() <= 2.0);
            }
            Err(error) => say(format!("{name},{plan_bytes},,,,{error}"), false),
        }
    }
    println!("worst error {worst:.2} %");
    for limit_mib in [8, 12, 16, 24].map(|gib| gib << 10) {
        for (length, micro_batch) in [(512, 2), (2048, 2), (4096, 1), (8192, 1)] {
            let limit_bytes = (limit_mib as u64) << 20;
            let Some(settings) = planned(&bench.shape, length, micro_batch, limit_bytes) else { continue };
            let (name, plan_bytes) = (bench.name(&settings), bench.plan_bytes(&settings));
            let fits = bench.train(&settings, N_STEPS, Some(limit_bytes));
            let holds = fits.is_ok();
            let outcome = fits.map_or_else(|error| error, |_| format!("trained {N_STEPS} steps"));
            say(format!("{name},{plan_bytes},,,{limit_mib},{outcome}"), holds);
            // The same settings on a card that lacks 3 % of what they need.
            let short_bytes = plan_bytes * 97 / 100;
            let fits = bench.train(&settings, 2, Some(short_bytes));
            let holds = fits.is_err();
            let outcome = if holds { "refused" } else { "trained" };
            say(format!("{name},{plan_bytes},,,{},{outcome}", short_bytes >> 20), holds);
        }
    }
    if let Some(csv) = csv {
        std::fs::write(csv, lines.join("\n") + "\n").expect("the file can be written");
    }
    if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A model on the card that is trained with one setting after the other.
struct Bench {
    model: String,
    shape: ModelShape,
    device: Device,
    /// With how many layers streamed, and itself.
    trainer: Option<(usize, Trainer)>,
}

impl Bench {
    fn new(model: &str) -> Self {
        let device = step::device(TrainOn::Card).expect("a card");
        Self { model: model.into(), shape: shape(model), device, trainer: None }
    }

    fn name(&self, settings: &Settings) -> String {
        format!("{},{},{},{}", self.model, settings.length, settings.micro_batch, mode_of(settings))
    }

    fn plan_bytes(&self, settings: &Settings) -> u64 {
        hearth_engine::plan::planned_bytes(&self.shape, settings)
    }

    /// Trains so many steps in buffers of its own, with all of the card taken away but the limit; gives the most bytes of the card that
    /// the process had for it.
    fn train(&mut self, settings: &Settings, n_steps: usize, limit_bytes: Option<u64>) -> Result<u64, String> {
        if self.trainer.as_ref().is_none_or(|(n_streamed, _)| *n_streamed != settings.n_layers_streamed) {
            self.trainer = None;
            let base = Model::random(&self.shape, &settings.lora, settings.into(), &self.device).expect("a model");
            let adapter = Adapter::new(&self.shape, &settings.lora, 1, &self.device).expect("an adapter");
            let trainer = Trainer::without_buffers(base, adapter, settings).expect("an adapter's state");
            self.trainer = Some((settings.n_layers_streamed, trainer));
        }
        let Some((_, trainer)) = &mut self.trainer else { unreachable!("made above") };
        let words = |error: step::Error| error.to_string();
        trainer.release().map_err(words)?;
        free_caches(&self.device);
        let held_bytes = process_bytes();
        let ballast = match limit_bytes.map(|limit| limit.checked_sub(held_bytes)) {
            Some(None) => return Err("the base alone is larger".into()),
            Some(Some(left)) => Some(ballast(&self.device, left)),
            None => None,
        };
        trainer.allocate(settings).map_err(words)?;
        let batch = batch(&self.shape, settings);
        for i in 0..n_steps {
            step(trainer, &batch, i).map_err(words)?;
        }
        Ok(process_bytes() - ballast.map_or(0, |ballast| ballast.bytes))
    }
}

struct Cell {
    length: usize,
    micro_batch: usize,
    mode: String,
}

/// Lengths from 256 to 16k, micro-batches from 1 to 8, all modes, what waits in system memory last so that the base is built anew once.
fn cells(shape: &ModelShape) -> Vec<Cell> {
    let eased = shape.n_layers / 3;
    let sizes = [(256, 8), (512, 4), (1024, 2), (2048, 1), (4096, 1), (8192, 1)];
    let modes = ["N".into(), "C1".into(), "C0".into(), format!("C0+{eased}"), "C0/o".into(), "C0/o/m1024".into()];
    let mut cells = Vec::new();
    let mut add = |(length, micro_batch): (usize, usize), mode: &str| {
        cells.push(Cell { length, micro_batch, mode: mode.into() });
    };
    for size in sizes {
        for mode in &modes {
            add(size, mode);
        }
    }
    for size in [(512, 1), (2048, 2)] {
        for mode in [format!("N/w{}", shape.n_layers), format!("C0/w{eased}")] {
            add(size, &mode);
        }
    }
    for size in [(2048, 8), (16_384, 1)] {
        for mode in ["C1", "C0", "C0/o", "C0/o/m4096"] {
            add(size, mode);
        }
    }
    for size in [(512, 1), (2048, 2), (4096, 1), (16_384, 1)] {
        for mode in ["N", "C0", "C0/o/m1024"] {
            if (size.0, mode) != (16_384, "N") {
                add(size, &format!("{mode}/s{}", shape.n_layers));
            }
        }
    }
    cells
}

/// Gives the driver back what the pool holds and nobody uses.
fn free_caches(device: &Device) {
    hearth_engine::ops::memory::free_caches(device).expect("the driver answers");
}
