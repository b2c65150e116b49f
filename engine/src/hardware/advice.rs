//! What of a computer a person would want to know before training on it: sentences with a next step, from the value alone.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::{Card, CardOutcome, Hardware, MemoryUser, PcieLink, Throttle, profile_of};
use crate::format;

/// The oldest NVIDIA driver, by its first number, that runs what this engine is built with (CUDA 13).
pub const LEAST_DRIVER: u32 = 580;
/// Other programs that hold less of the card are not worth a word.
const WORTH_CLOSING: f64 = 0.1;
/// A power limit below this share of the board's own is somebody's choice, or a laptop's.
const LOW_POWER: f64 = 0.85;
/// A card this near to where it slows down will get there under load.
const NEAR_SLOWDOWN_C: f64 = 5.0;
/// Where cards usually slow down; for those that do not say it.
const USUAL_SLOWDOWN_C: f64 = 88.0;

/// Something worth knowing about this computer. Nothing here keeps a run from starting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[ts(export)]
pub struct Advice {
    /// Stable name, `hardware.narrow_link`.
    pub code: String,
    /// What is so, with the values.
    pub message: String,
    /// What the person can do.
    pub next_step: String,
}

/// All there is to say about the card a run would train on, the weightiest first.
pub fn advice(hardware: &Hardware) -> Vec<Advice> {
    let Some(card) = hardware.cards.first() else { return Vec::new() };
    let is_found = hardware.card_report.as_ref().is_some_and(|report| report.outcome == CardOutcome::Found);
    let checks = [driver, parts, heat, battery, memory, display, lanes, slot, power];
    let mut found: Vec<Advice> = checks.iter().filter_map(|check| check(card)).collect();
    if !is_found {
        // A described card says nothing about this moment; what is left is what its file says by itself.
        found.retain(|advice| advice.code != "hardware.display");
    }
    found
}

fn say(code: &str, message: String, next_step: impl Into<String>) -> Option<Advice> {
    Some(Advice { code: format!("hardware.{code}"), message, next_step: next_step.into() })
}

fn driver(card: &Card) -> Option<Advice> {
    let version = card.driver.as_deref()?;
    let major: u32 = version.split('.').next()?.parse().ok()?;
    if major >= LEAST_DRIVER {
        return None;
    }
    say(
        "old_driver",
        format!("NVIDIA driver {version} is too old for this engine's CUDA 13, which needs {LEAST_DRIVER} or newer."),
        "Install a current NVIDIA driver. Until then runs train on the processor.",
    )
}

fn parts(card: &Card) -> Option<Advice> {
    let mig = card.mig.as_ref()?;
    let whole = format::bytes(mig.whole_bytes);
    match &mig.part {
        _ if mig.n_parts == 0 => say(
            "mig_empty",
            format!("{} is set to be divided (MIG) and has no part, so nothing can compute on it.", card.name),
            "Have its administrator make a part, or switch MIG off.",
        ),
        part => say(
            "mig",
            format!(
                "{} is divided into {} (MIG): a run has the {} with {} of {whole}.",
                card.name,
                format::counted(mig.n_parts, "part"),
                part.as_ref().map_or("first part".into(), |part| format!("part {part}")),
                format::bytes(card.memory_bytes),
            ),
            "Nothing needs to be done: plans are made for the part. The whole card is there when MIG is switched off.",
        ),
    }
}

fn heat(card: &Card) -> Option<Advice> {
    let is_held_down = card.throttle.contains(&Throttle::Heat);
    let slowdown = card.slowdown_c.unwrap_or(USUAL_SLOWDOWN_C);
    let is_near = card.temperature_c.is_some_and(|now| now >= slowdown - NEAR_SLOWDOWN_C);
    if !is_held_down && !is_near {
        return None;
    }
    let at = card.temperature_c.map_or("Hot".into(), |now| format!("{} °C", format::plain(now, 0)));
    let message = if is_held_down {
        format!("The card is slowed down by heat ({at}).")
    } else {
        format!("The card is hot before anything runs: {at}; it slows down at {} °C.", format::plain(slowdown, 0))
    };
    say("hot", message, "Clear dust from the fans and give it air; see which program is using it.")
}

fn battery(card: &Card) -> Option<Advice> {
    if card.on_battery != Some(true) {
        return None;
    }
    let message =
        "The laptop runs on its battery: the card gets a fraction of its power, and the battery may not last.";
    say("battery", message.into(), "Plug it in before a run.")
}

fn memory(card: &Card) -> Option<Advice> {
    let others = card.others_bytes()?;
    if (others as f64) < WORTH_CLOSING * card.memory_bytes as f64 {
        return None;
    }
    let named: Vec<String> = card.memory_users.iter().filter_map(MemoryUser::words).take(3).collect();
    let who = if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) };
    say(
        "memory_taken",
        format!(
            "Other programs hold {} of the card's {}{who}.",
            format::bytes(others),
            format::bytes(card.memory_bytes)
        ),
        "Close those you do not need: the plan counts only what is free.",
    )
}

fn display(card: &Card) -> Option<Advice> {
    if card.has_display != Some(true) || card.is_laptop {
        return None;
    }
    say(
        "display",
        "A display is driven by the card: the desktop takes some of its memory, and is slow to answer while a run trains."
            .into(),
        "If the computer has another graphics output, connect the display there.",
    )
}

fn lanes(card: &Card) -> Option<Advice> {
    let (now, most) = (card.link?, card.link_at_most()?);
    // In a laptop the lanes are soldered.
    if now.n_lanes >= most.n_lanes || card.is_laptop {
        return None;
    }
    say(
        "narrow_link",
        format!("The card is connected with {} of its {} PCIe lanes.", now.n_lanes, most.n_lanes),
        "Only what is kept in system memory gets slower. Try the slot nearest to the processor, without an adapter.",
    )
}

fn slot(card: &Card) -> Option<Advice> {
    let most = card.link_at_most()?;
    let able = profile_of(card).and_then(|profile| PcieLink::parse(&profile.card.as_ref()?.bus))?;
    if most.generation >= able.generation || card.is_laptop {
        return None;
    }
    say(
        "old_slot",
        format!("The slot works at PCIe {}.0 and the card could do {}.0.", most.generation, able.generation),
        "Only what is kept in system memory gets slower. See whether the firmware limits the slot.",
    )
}

fn power(card: &Card) -> Option<Advice> {
    let (limit, board) = (card.power_limit_w?, card.board_power_w?);
    if limit >= LOW_POWER * board {
        return None;
    }
    let next_step = if card.is_laptop {
        "Choose the laptop's performance mode and its own power supply."
    } else {
        "If nobody meant it, raise the limit: `nvidia-smi -pl` as administrator. A little less costs little speed."
    };
    let (limit, board) = (format::plain(limit, 0), format::plain(board, 0));
    say("low_power", format!("The card may draw {limit} of its {board} W."), next_step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::{CardReport, Mig, profile};

    /// A computer with an RTX 3060 as it was found, in good order.
    fn found() -> Hardware {
        let mut hardware = profile("rtx-3060-12gb").expect("bundled").hardware();
        let card = &mut hardware.cards[0];
        card.driver = Some("581.42".into());
        card.memory_free_bytes = Some(card.memory_bytes - (400 << 20));
        card.memory_reserved_bytes = Some(300 << 20);
        card.link = Some(PcieLink { generation: 1, n_lanes: 16 });
        (card.power_limit_w, card.temperature_c, card.slowdown_c) = (Some(170.0), Some(41.0), Some(90.0));
        (card.has_display, card.on_battery) = (Some(false), Some(false));
        let message = "Found it.".into();
        hardware.card_report = Some(CardReport { outcome: CardOutcome::Found, message, next_step: String::new() });
        hardware
    }

    /// What is said once `change` has happened.
    fn said(change: impl FnOnce(&mut Card)) -> Vec<(String, String)> {
        let mut hardware = found();
        change(&mut hardware.cards[0]);
        advice(&hardware).into_iter().map(|advice| (advice.code, advice.message)).collect()
    }

    #[test]
    fn a_card_in_good_order_needs_no_advice_and_a_computer_without_one_neither() {
        assert_eq!(advice(&found()), []);
        assert_eq!(advice(&profile("no-card").expect("bundled").hardware()), []);
        assert_eq!(advice(&profile("rtx-3060-12gb").expect("bundled").hardware()), [], "a described card");
    }

    #[test]
    fn each_thing_that_is_not_as_it_could_be_is_said_once_with_its_values() {
        let cases: [(fn(&mut Card), &str, &str); 11] = [
            (|c| c.driver = Some("550.120".into()), "old_driver", "550.120"),
            (|c| c.link = Some(PcieLink { generation: 4, n_lanes: 8 }), "narrow_link", "8 of its 16 PCIe lanes"),
            (|c| c.bus = Some("PCIe 3.0 x16".into()), "old_slot", "PCIe 3.0 and the card could do 4.0"),
            (|c| c.on_battery = Some(true), "battery", "battery"),
            (|c| c.power_limit_w = Some(100.0), "low_power", "100 of its 170 W"),
            (|c| c.temperature_c = Some(86.0), "hot", "86 °C; it slows down at 90 °C"),
            (|c| c.throttle = vec![Throttle::Heat], "hot", "slowed down by heat (41 °C)"),
            (|c| c.has_display = Some(true), "display", "display"),
            (
                |c| c.mig = Some(Mig { n_parts: 2, part: Some("1g.12gb".into()), whole_bytes: 80 << 30 }),
                "mig",
                "divided into 2 parts (MIG): a run has the part 1g.12gb",
            ),
            (|c| c.mig = Some(Mig { n_parts: 0, part: None, whole_bytes: 80 << 30 }), "mig_empty", "has no part"),
            (|c| c.memory_free_bytes = Some(c.memory_bytes / 2), "memory_taken", "Other programs hold"),
        ];
        for (change, code, words) in cases {
            let said = said(change);
            assert_eq!(said.len(), 1, "{code}: {said:?}");
            assert_eq!(said[0].0, format!("hardware.{code}"));
            assert!(said[0].1.contains(words), "{code}: {}", said[0].1);
        }
    }

    #[test]
    fn the_programs_that_hold_most_are_named() {
        let user = |name: &str, mib: u64| MemoryUser { pid: 1, name: Some(name.into()), bytes: Some(mib << 20) };
        let said = said(|card| {
            card.memory_free_bytes = Some(card.memory_bytes - (2500 << 20));
            card.memory_users = vec![user("Game.exe", 1500), user("chrome", 600), user("a", 60), user("b", 40)];
        });
        assert!(said[0].1.contains(": Game.exe 1.") && said[0].1.contains("chrome"), "{said:?}");
        assert!(!said[0].1.contains(", b "), "{said:?}");
    }

    #[test]
    fn a_laptop_is_not_told_to_move_its_card() {
        let said = said(|card| {
            card.is_laptop = true;
            card.link = Some(PcieLink { generation: 3, n_lanes: 8 });
            card.bus = Some("PCIe 3.0 x16".into());
            card.has_display = Some(true);
        });
        assert_eq!(said, []);
    }
}
