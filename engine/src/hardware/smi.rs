//! What `nvidia-smi` says, turned into cards or into one plain sentence. Text in, value out; no process is started.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::Card;
use super::bounded::Ended;
use super::nvml::{self, Refusal};

/// How the search for cards ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum CardOutcome {
    /// At least one card.
    Found,
    /// The loaded driver and the installed library are of different versions.
    DriverMismatch,
    /// The driver does not answer.
    NoDriver,
    /// The driver answers and has no card.
    NoDevices,
    /// An answer that names no card and no reason.
    NoReport,
    /// No answer in time.
    TimedOut,
    /// Nothing of NVIDIA is installed.
    Absent,
}

/// How the search for cards ended, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct CardReport {
    /// To branch on.
    pub outcome: CardOutcome,
    /// One sentence with what was found.
    pub message: String,
    /// What the person can do; empty where there is nothing to do.
    pub next_step: String,
}

/// Columns asked for. The name comes first, so that a comma in it cannot shift the numbers.
pub(super) const QUERY: &str = "--query-gpu=name,memory.total,memory.free,compute_cap,driver_version,temperature.gpu,\
power.draw,power.limit,pcie.link.gen.max,pcie.link.width.max";
/// Without units: MiB, degrees Celsius, watts.
pub(super) const FORMAT: &str = "--format=csv,noheader,nounits";
/// Columns after the name.
const N_NUMBERS: usize = 9;
/// Longest card name believed.
const MAX_NAME: usize = 100;
const MIB: u64 = 1024 * 1024;

/// Reads how the probe ended; `seconds` is the time it was given.
pub(super) fn read(ended: &Ended, seconds: u64) -> (Vec<Card>, CardReport) {
    let (status, output) = match ended {
        Ended::Absent => {
            return none(CardOutcome::Absent, "No NVIDIA GPU found.".into(), "");
        }
        Ended::TimedOut => {
            return none(
                CardOutcome::TimedOut,
                format!("The NVIDIA driver gave no answer within {seconds} seconds (nvidia-smi hung and was ended)."),
                "Restart the computer if there is an NVIDIA card in it.",
            );
        }
        Ended::NotStarted { reason } => {
            return none(
                CardOutcome::NoReport,
                format!("There is no usable GPU report: nvidia-smi could not be run ({reason})."),
                REINSTALL,
            );
        }
        Ended::Exited { status, output } => (status, output),
    };
    let cards: Vec<Card> = output.lines().filter_map(card).collect();
    if let Some(report) = found(&cards) {
        return (cards, report);
    }
    let lower = output.to_lowercase();
    if lower.contains("version mismatch") {
        let version = library_version(output).map(|v| format!(" (library {v})")).unwrap_or_default();
        mismatch(&version)
    } else if lower.contains("communicate with the nvidia driver") || lower.contains("driver not loaded") {
        no_driver()
    } else if lower.contains("no devices were found") {
        none(
            CardOutcome::NoDevices,
            "The NVIDIA driver works but shows no GPU.".into(),
            "Check that the card sits firmly, has power and is enabled in the firmware and the device manager.",
        )
    } else if lower.contains("is not a valid field to query") {
        none(
            CardOutcome::NoReport,
            "There is no usable GPU report: this NVIDIA driver is too old to answer.".into(),
            "Install a current NVIDIA driver, 580 or newer.",
        )
    } else {
        let status = status.map_or("no exit status".into(), |status| format!("exit status {status}"));
        let what = if output.trim().is_empty() { "printed nothing" } else { "printed nothing about a card" };
        none(CardOutcome::NoReport, format!("There is no usable GPU report: nvidia-smi {what} ({status})."), REINSTALL)
    }
}

/// The report where there are cards.
pub(super) fn found(cards: &[Card]) -> Option<CardReport> {
    let first = &cards.first()?.name;
    let message = match cards.len() {
        1 => format!("Found {first}."),
        n => format!("Found {n} NVIDIA cards; {first} comes first."),
    };
    Some(CardReport { outcome: CardOutcome::Found, message, next_step: String::new() })
}

/// The report where the driver's library let `seconds` go by.
pub(super) fn silent(seconds: u64) -> CardReport {
    let message = format!("The NVIDIA driver gave no answer within {seconds} seconds.");
    none(CardOutcome::TimedOut, message, "Restart the computer if there is an NVIDIA card in it.").1
}

/// The report where the driver's library is there and does not work, and `nvidia-smi` is not there to say more.
pub(super) fn refused(refusal: Refusal) -> CardReport {
    match refusal {
        Refusal::NoDriver => no_driver(),
        Refusal::DriverMismatch => mismatch(""),
        Refusal::Other => {
            let message = "There is no usable GPU report: the driver's library gave none.".into();
            none(CardOutcome::NoReport, message, REINSTALL)
        }
    }
    .1
}

fn no_driver() -> (Vec<Card>, CardReport) {
    none(CardOutcome::NoDriver, "The NVIDIA driver does not answer.".into(), "Install or start the NVIDIA driver.")
}

fn mismatch(version: &str) -> (Vec<Card>, CardReport) {
    none(
        CardOutcome::DriverMismatch,
        format!("The NVIDIA driver in use and its library have different versions{version}."),
        "A restart of the computer usually helps.",
    )
}

const REINSTALL: &str = "Install the NVIDIA driver again if there is an NVIDIA card in this computer.";

fn none(outcome: CardOutcome, message: String, step: &str) -> (Vec<Card>, CardReport) {
    let next_step = if step.is_empty() {
        "Everything works on the processor, more slowly.".into()
    } else {
        format!("{step} Until then everything works on the processor, more slowly.")
    };
    (Vec::new(), CardReport { outcome, message, next_step })
}

/// The version behind "NVML library version:", if it looks like one.
fn library_version(output: &str) -> Option<&str> {
    let versions = output.lines().filter_map(|line| {
        let (label, version) = line.split_once(':')?;
        label.to_lowercase().contains("library version").then_some(version.trim())
    });
    let is_plain = |version: &&str| version.starts_with(|c: char| c.is_ascii_digit()) && is_dotted(version);
    versions.filter(|version| version.len() <= 20).find(is_plain)
}

/// Digits and dots.
fn is_dotted(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// One line of the answer; nothing where it is not exactly what was asked for.
fn card(line: &str) -> Option<Card> {
    let mut fields: Vec<&str> = line.rsplitn(N_NUMBERS + 1, ',').map(str::trim).collect();
    if fields.len() != N_NUMBERS + 1 {
        return None;
    }
    fields.reverse();
    let name = fields[0];
    if name.is_empty() || name.chars().count() > MAX_NAME || name.chars().any(|c| c.is_control() || c == '\u{fffd}') {
        return None;
    }
    let memory_mib: u64 = fields[1].parse().ok().filter(|&mib| mib > 0)?;
    let number = |field: &str| field.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
    let dotted = |field: &str| is_dotted(field).then(|| field.to_string());
    let bus =
        number(fields[8]).zip(number(fields[9])).map(|(generation, width)| format!("PCIe {generation:.1} x{width}"));
    Some(Card {
        name: name.into(),
        memory_bytes: memory_mib.checked_mul(MIB)?,
        memory_free_bytes: fields[2].parse::<u64>().ok().filter(|&mib| mib <= memory_mib).map(|mib| mib * MIB),
        compute_capability: dotted(fields[3]),
        driver: dotted(fields[4]),
        bus,
        board_power_w: number(fields[7]),
        temperature_c: number(fields[5]),
        power_w: number(fields[6]),
        is_laptop: nvml::is_laptop(name),
        ..Card::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(status: i32, output: &str) -> (Vec<Card>, CardReport) {
        read(&Ended::Exited { status: Some(status), output: output.into() }, 4)
    }

    #[test]
    fn a_full_line_becomes_a_card() {
        let (cards, report) =
            said(0, "NVIDIA GeForce RTX 3060, 12288, 11561, 8.6, 581.42, 41, 18.02, 170.00, 4, 16\r\n");
        assert_eq!(report.outcome, CardOutcome::Found);
        assert_eq!(report.message, "Found NVIDIA GeForce RTX 3060.");
        let card = &cards[0];
        assert_eq!(card.memory_bytes, 12 << 30);
        assert_eq!(card.memory_free_bytes, Some(11561 << 20));
        assert_eq!(card.compute_capability.as_deref(), Some("8.6"));
        assert_eq!(card.driver.as_deref(), Some("581.42"));
        assert_eq!(card.bus.as_deref(), Some("PCIe 4.0 x16"));
        assert_eq!((card.temperature_c, card.power_w, card.board_power_w), (Some(41.0), Some(18.02), Some(170.0)));
    }

    #[test]
    fn what_a_driver_does_not_say_is_absent_and_the_card_stays() {
        let (cards, _) = said(0, "Tesla, odd name, 15360, [N/A], 7.5, 581.42, [N/A], [Not Supported], , 3, N/A");
        assert_eq!(cards[0].name, "Tesla, odd name");
        assert_eq!(cards[0].memory_free_bytes, None);
        assert_eq!((cards[0].power_w, cards[0].board_power_w, cards[0].bus.as_deref()), (None, None, None));
    }

    #[test]
    fn a_warning_beside_a_card_does_not_hide_the_card() {
        let text = "WARNING: infoROM is corrupted at gpu 0000:02:00.0\n\
                    NVIDIA GeForce RTX 4090, 24564, 24000, 8.9, 581.42, 41, 18.02, 450.00, 4, 16\n";
        assert_eq!(said(14, text).0.len(), 1);
    }

    #[test]
    fn the_six_ways_to_have_no_card_read_differently_and_none_names_one() {
        let mismatch = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.144\n";
        let no_driver = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that \
                         the latest NVIDIA driver is installed and running.\n";
        let cases = [
            (said(18, mismatch), CardOutcome::DriverMismatch, "(library 550.144)"),
            (said(9, no_driver), CardOutcome::NoDriver, "does not answer"),
            (said(6, "No devices were found\n"), CardOutcome::NoDevices, "works but shows no GPU"),
            (said(0, "\u{1}\u{fffd}\u{fffd} not text \u{2}"), CardOutcome::NoReport, "no usable GPU report"),
            (read(&Ended::TimedOut, 4), CardOutcome::TimedOut, "within 4 seconds"),
            (read(&Ended::Absent, 4), CardOutcome::Absent, "No NVIDIA GPU found."),
        ];
        let mut messages = Vec::new();
        for ((cards, report), outcome, words) in cases {
            assert!(cards.is_empty());
            assert_eq!(report.outcome, outcome);
            assert!(report.message.contains(words), "{}", report.message);
            assert!(report.next_step.contains("works on the processor"), "{}", report.next_step);
            messages.push(report.message);
        }
        messages.sort();
        messages.dedup();
        assert_eq!(messages.len(), 6);
        assert!(said(18, mismatch).1.next_step.contains("restart"));
        assert_eq!(said(0, "").1.outcome, CardOutcome::NoReport);
    }

    #[test]
    fn text_with_commas_that_is_no_card_is_not_taken_for_one() {
        assert!(card("a, b, c, d, e, f, g, h, i, j").is_none());
        assert!(card(", 12288, 1, 8.6, 5, 1, 1, 1, 4, 16").is_none());
        assert!(card("RTX\u{fffd}, 12288, 1, 8.6, 5, 1, 1, 1, 4, 16").is_none());
        assert!(card(&format!("{}, 12288, 1, 8.6, 5, 1, 1, 1, 4, 16", "x".repeat(101))).is_none());
        assert!(card(&format!("RTX, {}, 1, 8.6, 5, 1, 1, 1, 4, 16", u64::MAX)).is_none());
    }
}
