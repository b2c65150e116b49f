//! Planned beside used memory, over lengths, micro-batches, recompute modes and what waits in system memory; and both ways of the plan's
//! word: what it calls fitting trains 20 steps under a hard cap of an emulated card, what it calls 3 % too large does not.
//!
//! All cells of a model run in one process on one base. Before each the driver's pool is emptied, so that the process holds the base
//! and the context, and afterwards what the cell took.

use std::process::ExitCode;

use candle_core::Device;

use super::*;

const HEADER: &str = "model,seq,micro_batch,mode,plan_bytes,measured_bytes,error_percent,limit_mib,outcome";
const N_STEPS: usize = 20;

/// Prints one line a cell and what they come to; fails where one is off by more than 2 % or the plan's word was not kept.
pub(super) fn table(model: &str, csv: Option<&str>) -> ExitCode {
    let shape = shape(model);
    let device = step::device(TrainOn::Card).expect("a card");
    let mut lines = vec![HEADER.to_string()];
    let mut all_hold = true;
    let mut say = |line: String, holds: bool| {
        println!("{line}{}", if holds { "" } else { "  <-" });
        lines.push(line);
        all_hold &= holds;
    };
    let mut base: Option<(usize, Model)> = None;
    for cell in cells(&shape) {
        let settings = settings(&shape, cell.length, cell.micro_batch, &cell.mode);
        let model_of_cell = base_for(&mut base, &shape, &settings, &device);
        let (name, plan_bytes) = (name(model, &settings), plan_bytes(&shape, &settings));
        // Two passes: the second meets all that the first left behind.
        match tried(model_of_cell, &shape, &settings, 2, &device) {
            Ok((back, measured_bytes)) => {
                base = Some((settings.n_layers_streamed, back));
                let error = 100.0 * (plan_bytes as f64 / measured_bytes as f64 - 1.0);
                say(format!("{name},{plan_bytes},{measured_bytes},{error:+.2},,"), error.abs() <= 2.0);
            }
            Err(error) => say(format!("{name},{plan_bytes},,,,{error}"), false),
        }
    }
    for limit_mib in [8, 12, 16, 24].map(|gib| gib << 10) {
        for (length, micro_batch) in [(1024, 1), (2048, 1), (2048, 2), (4096, 1)] {
            let limit_bytes = (limit_mib as u64) << 20;
            let Some(settings) = planned(&shape, length, micro_batch, limit_bytes) else { continue };
            let name = name(model, &settings);
            let fits = capped(&mut base, &shape, &settings, limit_bytes, N_STEPS, &device);
            let holds = fits.is_ok();
            let outcome = fits.map_or_else(|error| error, |_| format!("trained {N_STEPS} steps"));
            say(format!("{name},{},,,{limit_mib},{outcome}", plan_bytes(&shape, &settings)), holds);
            // The same settings on a card that lacks 3 % of what they need.
            let short_bytes = plan_bytes(&shape, &settings) * 97 / 100;
            let fits = capped(&mut base, &shape, &settings, short_bytes, 2, &device);
            let holds = fits.is_err();
            let outcome = if holds { "refused" } else { "trained" };
            say(format!("{name},{},,,{},{outcome}", plan_bytes(&shape, &settings), short_bytes >> 20), holds);
        }
    }
    if let Some(csv) = csv {
        std::fs::write(csv, lines.join("\n") + "\n").expect("the file can be written");
    }
    if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct Cell {
    length: usize,
    micro_batch: usize,
    mode: String,
}

/// Lengths from 256 to 16k, micro-batches from 1 to 8, all modes, what waits in system memory last so that the base is built anew once.
fn cells(shape: &ModelShape) -> Vec<Cell> {
    let eased = shape.n_layers / 3;
    let sizes = [(256, 1), (256, 8), (512, 4), (1024, 2), (2048, 1), (2048, 2), (4096, 1), (8192, 1)];
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

fn name(model: &str, settings: &Settings) -> String {
    format!("{model},{},{},{}", settings.length, settings.micro_batch, mode_of(settings))
}

fn plan_bytes(shape: &ModelShape, settings: &Settings) -> u64 {
    hearth_engine::plan::layout::layout(shape, settings).bytes() + CARD_OVERHEAD_BYTES
}

/// The base, built anew where more or fewer of its layers wait in system memory.
fn base_for(base: &mut Option<(usize, Model)>, shape: &ModelShape, settings: &Settings, device: &Device) -> Model {
    match base.take() {
        Some((n_streamed, model)) if n_streamed == settings.n_layers_streamed => model,
        other => {
            drop(other);
            Model::random(shape, &settings.lora, settings.into(), device).expect("a model")
        }
    }
}

/// Trains so many steps; gives the base back, and the most bytes of the card that the process had.
fn tried(
    base: Model,
    shape: &ModelShape,
    settings: &Settings,
    n_steps: usize,
    device: &Device,
) -> Result<(Model, u64), String> {
    trim(device);
    let words = |error: step::Error| error.to_string();
    let adapter = Adapter::new(shape, &settings.lora, 1, device).map_err(|error| error.to_string())?;
    let mut trainer = Trainer::new(base, adapter, settings).map_err(words)?;
    let batch = batch(shape, settings);
    for i in 0..n_steps {
        step(&mut trainer, &batch, i).map_err(words)?;
    }
    let bytes = process_bytes();
    let base = trainer.into_model();
    device.synchronize().map_err(|error| error.to_string())?;
    Ok((base, bytes))
}

/// [`tried`] with all else of the card taken away. Where memory runs out the base goes with it.
fn capped(
    base: &mut Option<(usize, Model)>,
    shape: &ModelShape,
    settings: &Settings,
    limit_bytes: u64,
    n_steps: usize,
    device: &Device,
) -> Result<(), String> {
    let model = base_for(base, shape, settings, device);
    trim(device);
    let left = limit_bytes.checked_sub(process_bytes()).ok_or("the base alone is larger")?;
    let ballast = ballast(device, left);
    let tried = tried(model, shape, settings, n_steps, device);
    drop(ballast);
    *base = Some((settings.n_layers_streamed, tried?.0));
    Ok(())
}

/// Gives the driver back what the pool holds and nobody uses.
#[cfg(feature = "cuda")]
fn trim(device: &Device) {
    hearth_engine::ops::trim(device).expect("the driver answers");
}

#[cfg(not(feature = "cuda"))]
fn trim(_: &Device) {}
