use std::path::Path;

use hearth_engine::format;
use hearth_engine::hardware::{
    Card, Disk, Hardware, Measurements, MemoryUser, Throttle, TrainOn, described_by, here, measure_write,
    read_measurements,
};
use hearth_engine::run::store::RATES;

use super::failure::{Exit, Failure};
use super::{Context, emit, engine};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Measure how fast the disk of the runs is: writes 64 MiB there and removes them.
    #[arg(long)]
    disk: bool,
}

/// The same computer, with what runs measured on it.
pub(crate) fn with_rates(mut hardware: Hardware, rates: &Path) -> Hardware {
    // Without it the plan calculates, and says so.
    let measured = read_measurements(rates, hardware.device_name()).unwrap_or_default();
    if hardware.measurements == Measurements::default() {
        hardware.measurements = measured;
    }
    hardware
}

pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, Failure> {
    let mut hardware = with_rates(here()?, &context.runs_dir.join(RATES));
    if args.disk {
        let speed = measure_write(&context.runs_dir)?;
        if let Some(disk) = hardware.disk_of_mut(&context.runs_dir) {
            disk.write_bytes_per_s = Some(speed);
        }
    }
    if context.json {
        context.print_json(&hardware)?;
        return Ok(Exit::Done);
    }
    if let Some(path) = described_by() {
        emit(&format!("described  by {}", path.display()))?;
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
        for (name, value) in facts(card) {
            emit(&format!("  {name:<9}{value}"))?;
        }
    }
    if let Some(report) = &hardware.card_report {
        emit(&format!("cards      {}", report.message))?;
    }
    for disk in &hardware.disks {
        emit(&words_of_disk(disk))?;
    }
    if hardware.is_wsl {
        emit("system     Linux inside Windows (WSL)")?;
    }
    for advice in &hardware.advice {
        emit(&format!("note: {} {}", advice.message, advice.next_step))?;
    }
    let trains = match (hardware.train_on, engine::why_processor(&hardware)) {
        (TrainOn::Card, _) => "Runs train on the card.".to_string(),
        (TrainOn::Processor, Some(why)) => format!("Runs train on the processor: {why}."),
        (TrainOn::Processor, None) => "Runs train on the processor.".to_string(),
    };
    emit(&trains)?;
    Ok(Exit::Done)
}

fn words_of_disk(disk: &Disk) -> String {
    let (free, total) = (format::bytes(disk.available_bytes), format::bytes(disk.total_bytes));
    let speed = match disk.write_bytes_per_s {
        Some(speed) => format!(", writes {} a second", format::bytes(speed as u64)),
        None => String::new(),
    };
    format!("disk       {}: {free} of {total} free{speed}", disk.mount.display())
}

/// What is known of a card, a name and a value a line.
fn facts(card: &Card) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let mut add = |name, parts: Vec<Option<String>>| {
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if !parts.is_empty() {
            facts.push((name, parts.join(", ")));
        }
    };
    add("held by", card.memory_users.iter().map(MemoryUser::words).filter(Option::is_some).take(5).collect());
    let compute = card.compute_capability.as_ref().map(|capability| format!("compute capability {capability}"));
    add("chip", vec![card.architecture.clone(), compute, card.is_laptop.then(|| "laptop".into())]);
    let parts = card.mig.as_ref().map(|mig| {
        let part = mig.part.as_ref().map_or(String::new(), |part| format!("part {part} of "));
        format!("{part}{} (MIG)", format::counted(mig.n_parts, "part"))
    });
    add("divided", vec![parts]);
    let driver = card.driver.clone();
    add("driver", vec![driver, card.cuda.as_ref().map(|cuda| format!("CUDA up to {cuda}"))]);
    let speed = card.bus_bytes_per_s.map(|speed| format!("about {} a second", format::bytes(speed as u64)));
    add("link", vec![words_of_link(card), speed]);
    let watts = |watts: f64| format!("{} W", format::plain(watts, 0));
    let power = match (card.power_w, card.power_limit_w.or(card.board_power_w)) {
        (Some(now), Some(most)) => Some(format!("{} of {}", watts(now), watts(most))),
        (now, most) => now.map(watts).or(most.map(|most| format!("at most {}", watts(most)))),
    };
    add("power", vec![power, card.on_battery.filter(|&is_so| is_so).map(|_| "on battery".into())]);
    let degrees = |degrees: f64| format!("{} °C", format::plain(degrees, 0));
    let slowdown = card.slowdown_c.map(|at| format!("slows down at {}", degrees(at)));
    add("heat", vec![card.temperature_c.map(degrees), slowdown.filter(|_| card.temperature_c.is_some())]);
    let clock = |what: &str, now: Option<f64>, most: Option<f64>| {
        let (now, most) = now.zip(most)?;
        Some(format!("{what} {} of {} MHz", format::plain(now, 0), format::plain(most, 0)))
    };
    add(
        "clocks",
        vec![
            clock("chip", card.sm_clock_mhz, card.sm_clock_max_mhz),
            clock("memory", card.memory_clock_mhz, card.memory_clock_max_mhz),
        ],
    );
    let reasons: Vec<&str> = card.throttle.iter().copied().map(Throttle::words).collect();
    add("held down", vec![(!reasons.is_empty()).then(|| format!("by {}", reasons.join(" and ")))]);
    let display = card.has_display.map(|is_so| if is_so { "attached" } else { "none" }.to_string());
    add("display", vec![display]);
    facts
}

/// "PCIe 4.0 x8 of x16", and what an idle card has lowered it to.
fn words_of_link(card: &Card) -> Option<String> {
    let (link, most) = (card.link_under_load()?, card.link_at_most()?);
    let of = if link.n_lanes < most.n_lanes { format!(" of x{}", most.n_lanes) } else { String::new() };
    let idle = card.link.filter(|now| now.generation < most.generation);
    let idle = idle.map_or(String::new(), |now| format!(" ({}.0 while idle)", now.generation));
    Some(format!("{link}{of}{idle}"))
}

#[cfg(test)]
mod tests {
    use hearth_engine::hardware::{Mig, PcieLink, profile};

    use super::*;

    #[test]
    fn a_cards_facts_are_said_and_what_is_not_known_is_left_out() {
        let mut card = profile("rtx-3060-12gb").expect("bundled").hardware().cards.remove(0);
        let names = |card: &Card| facts(card).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(&card), ["chip", "link", "power"]);
        let value = |card: &Card, name| facts(card).into_iter().find(|(n, _)| *n == name).map(|(_, value)| value);
        assert_eq!(value(&card, "power").as_deref(), Some("at most 170 W"));
        card.link = Some(PcieLink { generation: 1, n_lanes: 8 });
        card.memory_users = vec![
            MemoryUser { pid: 7, name: Some("chrome".into()), bytes: None },
            MemoryUser { pid: 8, name: None, bytes: Some(1) },
        ];
        (card.power_w, card.power_limit_w) = (Some(18.02), Some(150.0));
        card.throttle = vec![Throttle::Heat, Throttle::PowerLimit];
        card.mig = Some(Mig { n_parts: 2, part: Some("1g.12gb".into()), whole_bytes: 1 });
        card.has_display = Some(true);
        assert!(value(&card, "link").is_some_and(|link| link.starts_with("PCIe 4.0 x8 of x16 (1.0 while idle)")));
        assert_eq!(value(&card, "held by").as_deref(), Some("chrome"));
        assert_eq!(value(&card, "power").as_deref(), Some("18 W of 150 W"));
        assert_eq!(value(&card, "held down").as_deref(), Some("by heat and the power limit"));
        assert_eq!(value(&card, "divided").as_deref(), Some("part 1g.12gb of 2 parts (MIG)"));
        assert_eq!(value(&card, "display").as_deref(), Some("attached"));
    }
}
