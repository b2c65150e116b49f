use std::path::PathBuf;

use hearth_engine::format;
use hearth_engine::hardware::{CardStore, OwnCard, Profile, ProfileCard, profile, profiles};
use hearth_engine::run;
use serde::Serialize;

use super::failure::{Exit, Failure};
use super::plan::unknown_card;
use super::{Context, emit};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List all cards, your own first.
    List,
    /// Show a card's figures, each with its source.
    Show {
        /// Its name.
        card: String,
    },
    /// Keep a card of your own, or change one.
    Save(Box<SaveArgs>),
    /// Keep a card that somebody shared.
    Import {
        /// Its file.
        file: PathBuf,
        /// Another name than its own.
        #[arg(long)]
        name: Option<String>,
    },
    /// Write a card as a file to share.
    Export {
        /// Its name.
        card: String,
        /// The file, which must not exist.
        file: PathBuf,
    },
    /// Forget a card of your own.
    Delete {
        /// Its name.
        card: String,
    },
}

#[derive(clap::Args)]
struct SaveArgs {
    /// Its name.
    card: String,
    /// Start from this card; without it from your own of this name, or from nothing.
    #[arg(long, value_name = "CARD")]
    from: Option<String>,
    /// Memory on the card.
    #[arg(long, value_name = "GIB")]
    memory: Option<f64>,
    /// Memory bandwidth.
    #[arg(long, value_name = "GB/S")]
    bandwidth: Option<f64>,
    /// Dense 16-bit matrix rate with 32-bit accumulation.
    #[arg(long, value_name = "TFLOP/S")]
    rate: Option<f64>,
    /// CUDA's compute capability, like 8.6.
    #[arg(long, value_name = "VERSION")]
    capability: Option<String>,
    /// How it is connected, like "PCIe 4.0 x16".
    #[arg(long)]
    bus: Option<String>,
    /// What copies from system memory reach.
    #[arg(long, value_name = "GB/S")]
    bus_speed: Option<f64>,
    /// Board power.
    #[arg(long, value_name = "WATTS")]
    board_power: Option<f64>,
    /// Price in US dollars.
    #[arg(long, value_name = "USD")]
    price: Option<f64>,
    /// Cores of the processor beside it.
    #[arg(long)]
    cores: Option<usize>,
    /// System memory beside it, of which three quarters are taken to be free.
    #[arg(long, value_name = "GIB")]
    system_memory: Option<f64>,
}

/// All cards, as JSON.
#[derive(Serialize)]
struct List<'a> {
    own: &'a [OwnCard],
    bundled: &'a [Profile],
}

pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, Failure> {
    let store = CardStore::new(&run::home());
    match args.command.unwrap_or(Command::List) {
        Command::List => list(context, &store)?,
        Command::Show { card } => show(context, &find(&store, &card)?)?,
        Command::Save(args) => kept(context, &store.save(&changed(&store, *args)?)?)?,
        Command::Import { file, name } => kept(context, &store.import(&file, name.as_deref())?)?,
        Command::Export { card, file } => {
            if file.exists() {
                return Err(Failure::input(
                    "hardware.file_exists",
                    format!("{} is there already", file.display()),
                    "Give another name, or move the file away.",
                ));
            }
            let profile = find(&store, &card)?;
            CardStore::export(&profile, &file)?;
            said(context, &profile, &format!("{} is in {}.", profile.name, file.display()))?;
        }
        Command::Delete { card } => {
            let profile = store.find(&card)?.ok_or_else(|| unknown_card(&card, &store))?;
            store.delete(&card)?;
            said(context, &profile, &format!("{} is forgotten.", profile.name))?;
        }
    }
    Ok(Exit::Done)
}

/// The card of this name, bundled or own.
fn find(store: &CardStore, name: &str) -> Result<Profile, Failure> {
    match profile(name) {
        Some(profile) => Ok(profile.clone()),
        None => store.find(name)?.ok_or_else(|| unknown_card(name, store)),
    }
}

fn said(context: &Context, profile: &Profile, words: &str) -> Result<(), Failure> {
    if context.json { context.print_json(profile) } else { emit(words) }
}

fn kept(context: &Context, profile: &Profile) -> Result<(), Failure> {
    // As a shell takes it.
    let name = profile.name.replace('\'', "'\\''");
    said(context, profile, &format!("{} is kept: `hearth plan --card '{name}'` plans for it.", profile.name))
}

fn list(context: &Context, store: &CardStore) -> Result<(), Failure> {
    let own = store.list()?;
    if context.json {
        return context.print_json(&List { own: &own, bundled: profiles() });
    }
    let own_profiles = own.iter().filter_map(|card| match card {
        OwnCard::Profile(profile) => Some(profile),
        OwnCard::Broken { .. } => None,
    });
    let all: Vec<&Profile> = own_profiles.chain(profiles()).collect();
    let width = all.iter().map(|profile| profile.id.chars().count()).max().unwrap_or(0);
    for profile in all {
        let padding = " ".repeat(width - profile.id.chars().count());
        let figures = profile.card.as_ref().map_or_else(|| "the processor trains".into(), figures);
        emit(&format!("{}{padding}  {figures}", profile.id))?;
    }
    for card in own {
        if let OwnCard::Broken { path, reason } = card {
            emit(&format!("{} cannot be used: {}", path.display(), reason.trim_end()))?;
        }
    }
    Ok(())
}

fn figures(card: &ProfileCard) -> String {
    let price = card.release_price_usd.map_or_else(|| format::UNKNOWN.into(), |price| format!("{price} USD"));
    format!(
        "{:>8}  {:>5.0} GB/s  {:>6.1} TFLOP/s  {:>4} W  {price}",
        format::bytes(card.memory_bytes),
        card.bandwidth_bytes_per_s as f64 / 1e9,
        card.tensor_flops_per_s as f64 / 1e12,
        card.board_power_w
    )
}

fn show(context: &Context, profile: &Profile) -> Result<(), Failure> {
    if context.json {
        return context.print_json(profile);
    }
    emit(&profile.name)?;
    let line = |name: &str, value: &str, source: &str| {
        let source = profile.source.get(source).map_or(String::new(), |source| format!("  ({source})"));
        emit(&format!("  {name:<15}  {value}{source}"))
    };
    let host = &profile.host;
    let memory = format::bytes(host.memory_bytes);
    line("computer", &format!("{}, {}, {memory}", host.processor, format::counted(host.n_cores, "core")), "host")?;
    let Some(card) = &profile.card else { return Ok(()) };
    let per_second = |bytes: u64| format!("{:.0} GB/s", bytes as f64 / 1e9);
    line("card", &card.name, "name")?;
    line("memory", &format::bytes(card.memory_bytes), "memory_bytes")?;
    line("bandwidth", &per_second(card.bandwidth_bytes_per_s), "bandwidth_bytes_per_s")?;
    let rate = format!("{:.1} TFLOP/s in {}", card.tensor_flops_per_s as f64 / 1e12, card.tensor_dtype);
    line("matrix rate", &rate, "tensor_flops_per_s")?;
    line("capability", &card.compute_capability, "compute_capability")?;
    line("bus", &card.bus, "bus")?;
    line("copies", &per_second(card.bus_bytes_per_s), "bus_bytes_per_s")?;
    line("board power", &format!("{} W", card.board_power_w), "board_power_w")?;
    let price = card.release_price_usd.map_or_else(|| format::UNKNOWN.into(), |price| format!("{price} USD"));
    line("price", &price, "release_price_usd")
}

/// The profile that the flags make of the one they start from.
fn changed(store: &CardStore, args: SaveArgs) -> Result<Profile, Failure> {
    let start = match &args.from {
        Some(from) => Some(find(store, from)?),
        None => store.find(&args.card)?,
    };
    let is_new = start.is_none();
    if is_new && (args.memory.is_none() || args.bandwidth.is_none() || args.rate.is_none()) {
        return Err(Failure::usage(
            format!("{} is a new card, and not all is said that a plan needs", args.card),
            "Give --memory, --bandwidth and --rate, or --from a card that is like it.",
        ));
    }
    let mut profile = start.unwrap_or_else(nothing_known);
    let mut by_hand = Vec::new();
    if let Some(cores) = args.cores {
        profile.host.n_cores = cores;
        by_hand.push("host");
    }
    if let Some(gib) = args.system_memory {
        profile.host.memory_bytes = gib_bytes(gib);
        profile.host.memory_available_bytes = profile.host.memory_bytes / 4 * 3;
        by_hand.push("host");
    }
    if profile.card.is_none() {
        profile.card = nothing_known().card;
    }
    if let Some(card) = &mut profile.card {
        if is_new {
            card.name.clone_from(&args.card);
        }
        let giga = |value: f64| (value * 1e9) as u64;
        let mut set = |to: &mut u64, value: Option<u64>, name| {
            if let Some(value) = value {
                *to = value;
                by_hand.push(name);
            }
        };
        set(&mut card.memory_bytes, args.memory.map(gib_bytes), "memory_bytes");
        set(&mut card.bandwidth_bytes_per_s, args.bandwidth.map(giga), "bandwidth_bytes_per_s");
        set(&mut card.tensor_flops_per_s, args.rate.map(|tera| (tera * 1e12) as u64), "tensor_flops_per_s");
        set(&mut card.bus_bytes_per_s, args.bus_speed.map(giga), "bus_bytes_per_s");
        if let Some(capability) = args.capability {
            let has_bf16 =
                capability.split('.').next().and_then(|major| major.parse::<u32>().ok()).is_none_or(|n| n >= 8);
            card.tensor_dtype = if has_bf16 { "bf16" } else { "f16" }.into();
            card.compute_capability = capability;
            by_hand.push("compute_capability");
        }
        if let Some(bus) = args.bus {
            card.bus = bus;
            by_hand.push("bus");
        }
        if let Some(power) = args.board_power {
            card.board_power_w = power;
            by_hand.push("board_power_w");
        }
        if let Some(price) = args.price {
            card.release_price_usd = Some(price);
            by_hand.push("release_price_usd");
        }
    }
    profile.entered_by_hand(by_hand);
    profile.name = args.card;
    Ok(profile)
}

fn gib_bytes(gib: f64) -> u64 {
    (gib * (1u64 << 30) as f64) as u64
}

/// A card of which only what its person says is known; the rest is assumed, and its sources say so.
fn nothing_known() -> Profile {
    const ASSUMED: &str = "assumed";
    let mut profile = profile("no-card").cloned().unwrap_or_else(|| profiles()[0].clone());
    profile.card = Some(ProfileCard {
        name: String::new(),
        memory_bytes: 0,
        bandwidth_bytes_per_s: 0,
        tensor_dtype: "bf16".into(),
        tensor_flops_per_s: 0,
        compute_capability: "8.6".into(),
        bus: "PCIe 4.0 x16".into(),
        bus_bytes_per_s: 22_000_000_000,
        board_power_w: 200.0,
        release_price_usd: None,
    });
    for figure in ["compute_capability", "bus", "bus_bytes_per_s", "board_power_w"] {
        profile.source.insert(figure.into(), ASSUMED.into());
    }
    profile
}
