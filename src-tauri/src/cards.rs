//! Cards that can be planned for without being in the machine: those that come with Hearth, and those that a person described.

use std::path::PathBuf;

use hearth_engine::error::{ErrorReport, Explain};
use hearth_engine::hardware::{self, CardStore, Hardware};
use hearth_engine::run;
use serde::{Deserialize, Serialize};
use tauri::AppHandle;
use tauri_plugin_dialog::DialogExt;

use crate::commands::aside;
use crate::engine::{self, Answer};

/// Extension of a card's file.
const EXTENSION: &str = "toml";

/// A card, put into the computer that is there.
#[derive(Debug, Serialize)]
pub(crate) struct Profile {
    id: String,
    name: String,
    hardware: Hardware,
    /// Described by the person.
    own: bool,
}

/// Figures of a described card. All else is as on the card it starts from.
#[derive(Debug, Deserialize)]
pub(crate) struct CardFigures {
    name: String,
    /// Id of the card it starts from.
    from: String,
    memory_bytes: u64,
    bandwidth_bytes_per_s: u64,
    tensor_flops_per_s: u64,
    board_power_w: f64,
    release_price_usd: Option<f64>,
}

#[tauri::command]
pub(crate) async fn profiles(here: Hardware) -> Answer<Vec<Profile>> {
    aside(move || all(&store(), &here)).await
}

/// Keeps a described card, in place of the own one that had the name; answers with all there are.
#[tauri::command]
pub(crate) async fn save_card(figures: CardFigures, here: Hardware) -> Answer<Vec<Profile>> {
    aside(move || {
        let store = store();
        let profile = described(&store, &figures)?;
        store.save(&profile).map_err(|e| e.report())?;
        all(&store, &here)
    })
    .await
}

/// Forgets a described card; answers with those that are left.
#[tauri::command]
pub(crate) async fn delete_card(name: String, here: Hardware) -> Answer<Vec<Profile>> {
    aside(move || {
        let store = store();
        store.delete(&name).map_err(|e| e.report())?;
        all(&store, &here)
    })
    .await
}

/// Asks for a file that somebody shared and keeps its card; nothing where the dialog was dismissed.
#[tauri::command]
pub(crate) async fn import_card(app: AppHandle, here: Hardware) -> Answer<Option<Vec<Profile>>> {
    let dialog = app.dialog().file().add_filter("TOML", &[EXTENSION]).add_filter("*", &["*"]);
    aside(move || {
        let Some(path) = dialog.blocking_pick_file().and_then(|path| path.into_path().ok()) else { return Ok(None) };
        let store = store();
        store.import(&path, None).map_err(|e| e.report())?;
        all(&store, &here).map(Some)
    })
    .await
}

/// Asks where to, and writes a card as a file to share; false where the dialog was dismissed.
#[tauri::command]
pub(crate) async fn export_card(app: AppHandle, id: String) -> Answer<bool> {
    let dialog = app.dialog().file().add_filter("TOML", &[EXTENSION]);
    aside(move || {
        let profile = find(&store(), &id)?;
        let dialog = dialog.set_file_name(format!("{}.{EXTENSION}", profile.name));
        let Some(path) = dialog.blocking_save_file().and_then(|path| path.into_path().ok()) else { return Ok(false) };
        CardStore::export(&profile, &with_extension(path)).map_err(|e| e.report())?;
        Ok(true)
    })
    .await
}

fn store() -> CardStore {
    CardStore::new(&run::home())
}

/// Own cards first. What cannot be read of them is left out: the engine says which files they are.
fn all(store: &CardStore, here: &Hardware) -> Answer<Vec<Profile>> {
    let own = store.profiles().map_err(|e| e.report())?;
    let bundled = hardware::profiles().iter().map(|profile| (profile, false));
    let every = own.iter().map(|profile| (profile, true)).chain(bundled);
    let put = |(profile, own): (&hardware::Profile, bool)| Profile {
        id: profile.id.clone(),
        name: profile.name.clone(),
        hardware: profile.in_computer(here),
        own,
    };
    Ok(every.filter(|(profile, _)| profile.card.is_some()).map(put).collect())
}

/// Bundled by its id, own by its name.
fn find(store: &CardStore, id: &str) -> Answer<hardware::Profile> {
    if let Some(bundled) = hardware::profile(id) {
        return Ok(bundled.clone());
    }
    store.find(id).map_err(|e| e.report())?.ok_or_else(|| unknown(id))
}

fn unknown(id: &str) -> ErrorReport {
    engine::error("hardware.unknown_profile", format!("there is no card called {id}"), "Check the computer again.")
}

fn described(store: &CardStore, figures: &CardFigures) -> Answer<hardware::Profile> {
    let mut profile = find(store, &figures.from)?;
    let mut by_hand = Vec::new();
    if let Some(card) = &mut profile.card {
        let mut set = |to: &mut u64, value: u64, name| {
            if *to != value {
                *to = value;
                by_hand.push(name);
            }
        };
        set(&mut card.memory_bytes, figures.memory_bytes, "memory_bytes");
        set(&mut card.bandwidth_bytes_per_s, figures.bandwidth_bytes_per_s, "bandwidth_bytes_per_s");
        set(&mut card.tensor_flops_per_s, figures.tensor_flops_per_s, "tensor_flops_per_s");
        if card.board_power_w != figures.board_power_w {
            card.board_power_w = figures.board_power_w;
            by_hand.push("board_power_w");
        }
        if card.release_price_usd != figures.release_price_usd {
            card.release_price_usd = figures.release_price_usd;
            by_hand.push("release_price_usd");
        }
    }
    profile.entered_by_hand(by_hand);
    profile.name.clone_from(&figures.name);
    Ok(profile)
}

fn with_extension(path: PathBuf) -> PathBuf {
    if path.extension().is_some() { path } else { path.with_extension(EXTENSION) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(name: &str, from: &str) -> CardFigures {
        let card = hardware::profile("rtx-3060-12gb").and_then(|profile| profile.card.clone()).expect("a card");
        CardFigures {
            name: name.into(),
            from: from.into(),
            memory_bytes: card.memory_bytes,
            bandwidth_bytes_per_s: 300_000_000_000,
            tensor_flops_per_s: card.tensor_flops_per_s,
            board_power_w: 120.0,
            release_price_usd: Some(180.0),
        }
    }

    #[test]
    fn a_described_card_comes_first_and_says_which_figures_are_the_persons() {
        let folder = tempfile::Builder::new().prefix("a b 显卡").tempdir().expect("folder");
        let store = CardStore::new(folder.path());
        let here = hardware::profile("no-card").expect("bundled").hardware();
        let before = all(&store, &here).expect("listed");
        assert!(before.iter().all(|profile| !profile.own && !profile.hardware.cards.is_empty()));

        let profile = described(&store, &figures("我的 3060", "rtx-3060-12gb")).expect("described");
        assert_eq!(profile.source["bandwidth_bytes_per_s"], "entered by hand");
        assert_eq!(
            profile.source["memory_bytes"],
            hardware::profile("rtx-3060-12gb").expect("bundled").source["memory_bytes"]
        );
        store.save(&profile).expect("kept");

        let after = all(&store, &here).expect("listed");
        assert_eq!(after.len(), before.len() + 1);
        assert!(after[0].own && after[0].name == "我的 3060");
        assert_eq!(after[0].hardware.cards[0].bandwidth_bytes_per_s, Some(300e9));
        assert_eq!(after[0].hardware.processor, here.processor);
        // What was kept can be the start of the next.
        let again = described(&store, &figures("第二张", &after[0].id)).expect("described");
        assert_eq!(again.card.expect("a card").board_power_w, 120.0);
    }

    #[test]
    fn a_card_that_nobody_described_is_refused_with_its_name() {
        let folder = tempfile::tempdir().expect("folder");
        let refused = described(&CardStore::new(folder.path()), &figures("x", "rtx-9090")).expect_err("unknown");
        assert_eq!(refused.code, "hardware.unknown_profile");
        assert!(refused.message.contains("rtx-9090"));
    }

    #[test]
    fn a_file_that_was_named_without_an_extension_gets_one() {
        assert_eq!(with_extension("a/我的 卡".into()), PathBuf::from("a/我的 卡.toml"));
        assert_eq!(with_extension("a/b.card".into()), PathBuf::from("a/b.card"));
    }
}
