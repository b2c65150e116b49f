use std::path::Path;

use hearth_engine::format;
use hearth_engine::hardware::{Hardware, TrainOn, detect, read_rates};
use hearth_engine::run::store::RATES;

use super::failure::{Exit, Failure};
use super::{Context, emit, engine};

#[derive(clap::Args)]
pub(crate) struct Args {}

/// This computer, with the speeds that runs measured on it.
pub(crate) fn with_rates(rates: &Path) -> Hardware {
    let mut hardware = detect();
    // Without them the plan calculates, and says so.
    hardware.rates = read_rates(rates, hardware.device_name()).unwrap_or_default();
    hardware
}

pub(crate) fn run(context: &Context, _: Args) -> Result<Exit, Failure> {
    let hardware = with_rates(&context.runs_dir.join(RATES));
    if context.json {
        context.print_json(&hardware)?;
        return Ok(Exit::Done);
    }
    let processor = &hardware.processor;
    emit(&format!(
        "processor  {}, {}, {}",
        processor.name,
        format::counted(processor.n_cores, "core"),
        format::counted(processor.n_threads, "thread")
    ))?;
    emit(&format!(
        "memory     {}, {} free",
        format::bytes(hardware.memory_total_bytes),
        format::bytes(hardware.memory_available_bytes)
    ))?;
    for card in &hardware.cards {
        let free = card.memory_free_bytes.map_or_else(|| format::UNKNOWN.into(), format::bytes);
        emit(&format!("card       {}, {}, {free} free", card.name, format::bytes(card.memory_bytes)))?;
    }
    if let Some(report) = &hardware.card_report {
        emit(&format!("cards      {}", report.message))?;
    }
    for disk in &hardware.disks {
        emit(&format!(
            "disk       {}: {} of {} free",
            disk.mount.display(),
            format::bytes(disk.available_bytes),
            format::bytes(disk.total_bytes)
        ))?;
    }
    let trains = match (hardware.train_on, engine::why_processor(&hardware)) {
        (TrainOn::Card, _) => "Runs train on the card.".to_string(),
        (TrainOn::Processor, Some(why)) => format!("Runs train on the processor: {why}."),
        (TrainOn::Processor, None) => "Runs train on the processor.".to_string(),
    };
    emit(&trains)?;
    Ok(Exit::Done)
}
