//! NVIDIA's management library: what it says ([`Facts`], as it says it) and what that means (cards and readings).
//!
//! The library comes with the driver and is loaded when it is asked. A driver that hangs keeps a thread, never the caller.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor, TemperatureThreshold};
use nvml_wrapper::enums::device::{PowerSource, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::{MemoryInfo, ProcessInfo};
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};
use serde::{Deserialize, Serialize};

use super::{Card, CardReading, CardSample, MemoryUser, Mig, PcieLink, Throttle};

/// How asking ended.
#[derive(Debug)]
pub(super) enum Answer {
    /// The library answers.
    Facts(Box<Facts>),
    /// There is no such library.
    Absent,
    /// No answer in time.
    TimedOut,
    /// The library is there and does not work.
    Refused(Refusal),
}

/// Why a library that is there does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    NoDriver,
    DriverMismatch,
    Other,
}

/// What the library says, before anything is made of it. What it does not say is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Facts {
    driver: Option<String>,
    /// 13000 is 13.0.
    cuda: Option<i32>,
    cards: Vec<CardFacts>,
}

/// One card.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct CardFacts {
    name: String,
    uuid: Option<String>,
    architecture: Option<String>,
    compute_capability: Option<(i32, i32)>,
    sm_clock_max_mhz: Option<u32>,
    memory_clock_mhz: Option<u32>,
    memory_clock_max_mhz: Option<u32>,
    power_limit_default_mw: Option<u32>,
    on_battery: Option<bool>,
    slowdown_c: Option<u32>,
    pcie_generation: Option<u32>,
    pcie_generation_max: Option<u32>,
    pcie_width: Option<u32>,
    pcie_width_max: Option<u32>,
    display_active: Option<bool>,
    display_connected: Option<bool>,
    /// The parts it is divided into, where it is.
    mig: Option<Vec<PartFacts>>,
    now: Moment,
}

/// What changes from moment to moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Moment {
    memory: Option<MemoryFacts>,
    processes: Option<Vec<ProcessFacts>>,
    utilisation_percent: Option<u32>,
    temperature_c: Option<u32>,
    power_mw: Option<u32>,
    power_limit_mw: Option<u32>,
    sm_clock_mhz: Option<u32>,
    throttle_bits: Option<u64>,
}

/// Total is used, free and reserved; the driver keeps what is reserved for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct MemoryFacts {
    total_bytes: u64,
    free_bytes: u64,
    reserved_bytes: u64,
}

/// A program on the card. Windows does not say how much each holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct ProcessFacts {
    pid: u32,
    name: Option<String>,
    bytes: Option<u64>,
}

/// A part of a divided card; its name ends in its size, "NVIDIA H200 MIG 1g.18gb".
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct PartFacts {
    name: Option<String>,
    uuid: Option<String>,
    memory: Option<MemoryFacts>,
}

// ---- Asking.

/// Asks the first of `libraries` (names or paths) that can be loaded, on a thread that has `limit`.
pub(super) fn ask(libraries: &[PathBuf], limit: Duration) -> Answer {
    let libraries = libraries.to_vec();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let answer = match open(&libraries) {
            Ok(nvml) => Answer::Facts(Box::new(facts(&nvml))),
            Err(answer) => answer,
        };
        // Nobody listens any more where the time was over.
        let _ = sender.send(answer);
    });
    match receiver.recv_timeout(limit) {
        Ok(answer) => answer,
        Err(mpsc::RecvTimeoutError::Timeout) => Answer::TimedOut,
        Err(mpsc::RecvTimeoutError::Disconnected) => Answer::Refused(Refusal::Other),
    }
}

/// A source for a [`super::CardWatch`]: the card with one of `uuids`, or the first. The library is loaded at the first call,
/// which is on the watch's thread.
pub(super) fn source(
    libraries: Vec<PathBuf>,
    uuids: Vec<String>,
) -> impl FnMut() -> Option<CardSample> + Send + 'static {
    let mut opened: Option<Option<Nvml>> = None;
    move || {
        let nvml = opened.get_or_insert_with(|| open(&libraries).ok()).as_ref()?;
        let by_uuid = uuids.iter().find_map(|uuid| nvml.device_by_uuid(uuid.as_str()).ok());
        let device = match by_uuid {
            Some(device) => device,
            None if uuids.is_empty() => nvml.device_by_index(0).ok()?,
            None => return None,
        };
        moment(nvml, &device, false).sample(std::process::id())
    }
}

fn open(libraries: &[PathBuf]) -> Result<Nvml, Answer> {
    for library in libraries {
        match Nvml::builder().lib_path(library.as_os_str()).init() {
            Ok(nvml) => return Ok(nvml),
            Err(NvmlError::LibloadingError(_)) => continue,
            Err(NvmlError::DriverNotLoaded) => return Err(Answer::Refused(Refusal::NoDriver)),
            Err(NvmlError::LibRmVersionMismatch) => return Err(Answer::Refused(Refusal::DriverMismatch)),
            Err(_) => return Err(Answer::Refused(Refusal::Other)),
        }
    }
    Err(Answer::Absent)
}

fn facts(nvml: &Nvml) -> Facts {
    let n_cards = nvml.device_count().unwrap_or(0);
    Facts {
        driver: nvml.sys_driver_version().ok(),
        cuda: nvml.sys_cuda_driver_version().ok(),
        cards: (0..n_cards).filter_map(|i| Some(card_facts(nvml, &nvml.device_by_index(i).ok()?))).collect(),
    }
}

fn card_facts(nvml: &Nvml, device: &Device<'_>) -> CardFacts {
    let is_divided = device.mig_mode().is_ok_and(|mode| mode.current == 1);
    CardFacts {
        name: device.name().unwrap_or_default(),
        uuid: device.uuid().ok(),
        architecture: device.architecture().ok().map(|a| a.to_string()),
        compute_capability: device.cuda_compute_capability().ok().map(|c| (c.major, c.minor)),
        sm_clock_max_mhz: device.max_clock_info(Clock::SM).ok(),
        memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
        memory_clock_max_mhz: device.max_clock_info(Clock::Memory).ok(),
        power_limit_default_mw: device.power_management_limit_default().ok(),
        on_battery: device.power_source().ok().map(|source| source == PowerSource::Battery),
        slowdown_c: device
            .temperature_threshold(TemperatureThreshold::Slowdown)
            .or_else(|_| device.temperature_threshold(TemperatureThreshold::GpuMax))
            .ok(),
        pcie_generation: device.current_pcie_link_gen().ok(),
        pcie_generation_max: device.max_pcie_link_gen().ok(),
        pcie_width: device.current_pcie_link_width().ok(),
        pcie_width_max: device.max_pcie_link_width().ok(),
        display_active: device.is_display_active().ok(),
        display_connected: device.is_display_connected().ok(),
        mig: is_divided.then(|| parts(device)),
        now: moment(nvml, device, true),
    }
}

fn parts(device: &Device<'_>) -> Vec<PartFacts> {
    let parts = (0..device.mig_device_count().unwrap_or(0)).filter_map(|i| device.mig_device_by_index(i).ok());
    parts
        .map(|part| PartFacts {
            name: part.name().ok(),
            uuid: part.uuid().ok(),
            memory: part.memory_info().ok().map(Into::into),
        })
        .collect()
}

fn moment(nvml: &Nvml, device: &Device<'_>, with_names: bool) -> Moment {
    // Heat and power are of the whole card, also where a part of a divided one is looked at.
    let parent =
        if device.mig_is_mig_device_handle().unwrap_or(false) { device.mig_parent_device().ok() } else { None };
    let board = parent.as_ref().unwrap_or(device);
    Moment {
        memory: device.memory_info().ok().map(Into::into),
        processes: processes(nvml, device, with_names),
        utilisation_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
        temperature_c: board.temperature(TemperatureSensor::Gpu).ok(),
        power_mw: board.power_usage().ok(),
        power_limit_mw: board.enforced_power_limit().ok(),
        sm_clock_mhz: board.clock_info(Clock::SM).ok(),
        throttle_bits: board.current_throttle_reasons().ok().map(|reasons| reasons.bits()),
    }
}

/// Programs that compute and programs that draw; one that does both is listed once, with the larger of its figures.
fn processes(nvml: &Nvml, device: &Device<'_>, with_names: bool) -> Option<Vec<ProcessFacts>> {
    let (computing, drawing) = (device.running_compute_processes(), device.running_graphics_processes());
    if computing.is_err() && drawing.is_err() {
        return None;
    }
    let mut found: Vec<ProcessFacts> = Vec::new();
    for ProcessInfo { pid, used_gpu_memory, .. } in computing.into_iter().chain(drawing).flatten() {
        let bytes = match used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        match found.iter_mut().find(|process| process.pid == pid) {
            Some(process) => process.bytes = process.bytes.max(bytes),
            None => {
                let name = if with_names { nvml.sys_process_name(pid, 256).ok() } else { None };
                found.push(ProcessFacts { pid, name, bytes });
            }
        }
    }
    Some(found)
}

impl From<MemoryInfo> for MemoryFacts {
    fn from(info: MemoryInfo) -> Self {
        MemoryFacts { total_bytes: info.total, free_bytes: info.free, reserved_bytes: info.reserved }
    }
}

// ---- What it means.

impl Facts {
    /// The cards whose memory is known; `own_pid` is not counted among those who use them.
    pub(super) fn cards(&self, own_pid: u32) -> Vec<Card> {
        let cuda = self.cuda.map(|v| format!("{}.{}", cuda_driver_version_major(v), cuda_driver_version_minor(v)));
        let cards = self.cards.iter().filter_map(|card| card.card(own_pid));
        cards.map(|card| Card { driver: self.driver.clone(), cuda: cuda.clone(), ..card }).collect()
    }
}

impl CardFacts {
    fn card(&self, own_pid: u32) -> Option<Card> {
        let whole = self.now.memory.filter(|memory| memory.total_bytes > 0)?;
        // A run sees the first part of a divided card and no more of it.
        let part = self.mig.as_ref().and_then(|parts| parts.first());
        let memory = part.and_then(|part| part.memory).unwrap_or(whole);
        let mig = self.mig.as_ref().map(|parts| Mig {
            n_parts: parts.len(),
            part: part.and_then(|part| part.name.as_deref()?.rsplit(' ').next().map(str::to_string)),
            whole_bytes: whole.total_bytes,
        });
        let link = |generation: Option<u32>, width: Option<u32>| {
            let (generation, n_lanes) = generation.zip(width)?;
            (generation > 0 && n_lanes > 0).then_some(PcieLink { generation, n_lanes })
        };
        let reading = self.now.sample(own_pid).map(|sample| sample.reading).unwrap_or_default();
        Some(Card {
            name: self.name.clone(),
            uuid: part.and_then(|part| part.uuid.clone()).or_else(|| self.uuid.clone()),
            architecture: self.architecture.clone().filter(|name| name != "Unknown"),
            memory_bytes: memory.total_bytes,
            memory_free_bytes: Some(memory.free_bytes),
            memory_reserved_bytes: Some(memory.reserved_bytes),
            memory_users: self.now.users(own_pid),
            compute_capability: self.compute_capability.map(|(major, minor)| format!("{major}.{minor}")),
            bus: link(self.pcie_generation_max, self.pcie_width_max).map(|link| link.to_string()),
            link: link(self.pcie_generation, self.pcie_width),
            board_power_w: self.power_limit_default_mw.or(self.now.power_limit_mw).map(watts),
            power_limit_w: reading.power_limit_w,
            power_w: reading.power_w,
            on_battery: self.on_battery,
            temperature_c: reading.temperature_c,
            slowdown_c: self.slowdown_c.map(f64::from),
            sm_clock_mhz: reading.sm_clock_mhz,
            sm_clock_max_mhz: self.sm_clock_max_mhz.map(f64::from),
            memory_clock_mhz: self.memory_clock_mhz.map(f64::from),
            memory_clock_max_mhz: self.memory_clock_max_mhz.map(f64::from),
            throttle: reading.throttle,
            has_display: self.display_active.or(self.display_connected),
            is_laptop: is_laptop(&self.name),
            mig,
            ..Card::default()
        })
    }
}

/// By its name; "Max-Q" alone is also a workstation card's.
pub(super) fn is_laptop(name: &str) -> bool {
    name.contains("Laptop GPU") || name.contains("Max-Q Design")
}

fn watts(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / 1000.0
}

impl Moment {
    /// What it says of the card, where it says how much memory there is.
    fn sample(&self, own_pid: u32) -> Option<CardSample> {
        let memory = self.memory?;
        let others = self.processes.as_ref().and_then(|processes| {
            processes.iter().filter(|process| process.pid != own_pid).map(|process| process.bytes).sum::<Option<u64>>()
        });
        let reading = CardReading {
            used_bytes: memory.total_bytes.saturating_sub(memory.free_bytes),
            total_bytes: memory.total_bytes,
            others_bytes: others,
            utilisation: self.utilisation_percent.map(|percent| f64::from(percent.min(100)) / 100.0),
            temperature_c: self.temperature_c.map(f64::from),
            power_w: self.power_mw.map(watts),
            power_limit_w: self.power_limit_mw.map(watts),
            sm_clock_mhz: self.sm_clock_mhz.map(f64::from),
            throttle: self.throttle_bits.map(throttle).unwrap_or_default(),
        };
        Some(CardSample { reading, driver_bytes: memory.reserved_bytes })
    }

    /// Other programs, those that hold most first.
    fn users(&self, own_pid: u32) -> Vec<MemoryUser> {
        let others = self.processes.iter().flatten().filter(|process| process.pid != own_pid);
        let mut users: Vec<MemoryUser> = others
            .map(|process| MemoryUser {
                pid: process.pid,
                // Windows gives a path, Linux a command line.
                name: process.name.as_deref().map(program_name).filter(|name| !name.is_empty()),
                bytes: process.bytes,
            })
            .collect();
        users.sort_by_key(|user| (std::cmp::Reverse(user.bytes), user.pid));
        users
    }
}

/// "chrome" of "/opt/google/chrome/chrome --type=gpu-process", "Game.exe" of "C:\\My Games\\Game.exe".
fn program_name(said: &str) -> String {
    let path = said.split(" -").next().unwrap_or(said);
    path.rsplit(['/', '\\']).next().unwrap_or(path).trim().to_string()
}

/// The reasons among the bits that a person can do something about; an idle card is not held down.
fn throttle(bits: u64) -> Vec<Throttle> {
    let reasons = ThrottleReasons::from_bits_truncate(bits);
    let heat = ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN;
    let named = ThrottleReasons::HW_THERMAL_SLOWDOWN | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN;
    let found = [
        (Throttle::Heat, reasons.intersects(heat)),
        (Throttle::PowerSupply, reasons.contains(ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN)),
        (Throttle::Hardware, reasons.contains(ThrottleReasons::HW_SLOWDOWN) && !reasons.intersects(named)),
        (Throttle::PowerLimit, reasons.contains(ThrottleReasons::SW_POWER_CAP)),
        (Throttle::FixedClocks, reasons.contains(ThrottleReasons::APPLICATIONS_CLOCKS_SETTING)),
        (Throttle::OtherCard, reasons.contains(ThrottleReasons::SYNC_BOOST)),
        (Throttle::Display, reasons.contains(ThrottleReasons::DISPLAY_CLOCK_SETTING)),
    ];
    found.into_iter().filter_map(|(reason, is_so)| is_so.then_some(reason)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::profile;

    macro_rules! fixture {
        ($name:literal) => {
            serde_json::from_str::<Facts>(include_str!(concat!("fixtures/", $name, ".json"))).expect($name)
        };
    }

    const OWN: u32 = 4242;

    /// The cards of a fixture, completed as `detect` does it.
    fn cards(facts: &Facts) -> Vec<Card> {
        let mut cards = facts.cards(OWN);
        cards.iter_mut().for_each(profile::complete);
        cards
    }

    #[test]
    fn a_desktop_card_with_a_display_says_who_holds_its_memory() {
        let cards = cards(&fixture!("rtx-3060-desktop"));
        let card = &cards[0];
        assert_eq!(card.name, "NVIDIA GeForce RTX 3060");
        assert_eq!((card.architecture.as_deref(), card.compute_capability.as_deref()), (Some("Ampere"), Some("8.6")));
        assert_eq!((card.driver.as_deref(), card.cuda.as_deref()), (Some("581.42"), Some("13.0")));
        assert_eq!((card.has_display, card.is_laptop), (Some(true), false));
        let users: Vec<_> = card.memory_users.iter().map(|user| (user.name.as_deref(), user.bytes)).collect();
        assert_eq!(users, [(Some("chrome"), Some(912 << 20)), (Some("Xorg"), Some(340 << 20)), (None, Some(20 << 20))]);
        assert_eq!(card.others_bytes(), Some(1272 << 20));
        // Idle, the link sleeps at its first generation; its lanes stay.
        assert_eq!(card.bus.as_deref(), Some("PCIe 4.0 x16"));
        assert_eq!(card.link.map(|link| link.to_string()).as_deref(), Some("PCIe 1.0 x8"));
        assert_eq!(card.bus_bytes_per_s, Some(11e9));
        assert_eq!((card.board_power_w, card.power_limit_w), (Some(170.0), Some(120.0)));
        assert_eq!((card.sm_clock_mhz, card.sm_clock_max_mhz), (Some(210.0), Some(2130.0)));
        assert!(card.throttle.is_empty(), "an idle card is not held down");
    }

    #[test]
    fn a_laptops_card_is_known_by_its_name_and_may_be_on_battery() {
        let card = cards(&fixture!("rtx-4090-laptop")).remove(0);
        assert!(card.is_laptop);
        assert_eq!(card.on_battery, Some(true));
        assert_eq!(card.throttle, [Throttle::PowerLimit]);
        // Under Windows the driver does not say how much each program holds.
        assert!(card.memory_users.iter().all(|user| user.bytes.is_none()));
        assert_eq!(card.memory_users[0].name.as_deref(), Some("Game.exe"));
        assert_eq!(card.bandwidth_bytes_per_s, Some(576e9), "from its profile");
        assert!(is_laptop("NVIDIA GeForce RTX 2080 with Max-Q Design"));
        assert!(!is_laptop("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"));
    }

    #[test]
    fn of_a_divided_card_a_run_has_its_first_part() {
        let card = cards(&fixture!("h200-mig")).remove(0);
        let mig = card.mig.clone().expect("divided");
        assert_eq!((mig.n_parts, mig.part.as_deref(), mig.whole_bytes), (2, Some("1g.18gb"), 150_754_820_096));
        assert_eq!(card.memory_bytes, 17_179_869_184);
        assert!(card.uuid.as_deref().is_some_and(|uuid| uuid.starts_with("MIG-")));
        let whole = profile("h200-sxm-141gb").and_then(|p| p.card.as_ref()).expect("bundled");
        let share = 17_179_869_184.0 / 150_754_820_096.0;
        assert_eq!(card.bandwidth_bytes_per_s, Some(whole.bandwidth_bytes_per_s as f64 * share));
        assert_eq!(card.tensor_flops_per_s, Some(whole.tensor_flops_per_s as f64 * (1.0 / 7.0)));
    }

    #[test]
    fn two_cards_are_two_cards() {
        let cards = cards(&fixture!("two-cards"));
        let names: Vec<_> = cards.iter().map(|card| card.name.as_str()).collect();
        assert_eq!(names, ["NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 2070 SUPER"]);
        assert_ne!(cards[0].uuid, cards[1].uuid);
        assert_eq!(cards[1].compute_capability.as_deref(), Some("7.5"));
    }

    #[test]
    fn what_a_driver_under_wsl_does_not_support_is_absent_and_the_card_stays() {
        let card = cards(&fixture!("wsl")).remove(0);
        assert_eq!(card.memory_free_bytes, Some(10_737_418_240));
        assert!(card.memory_users.is_empty());
        assert_eq!((card.link, card.has_display, card.power_limit_w), (None, None, None));
        // Who holds it is not said, how much is.
        assert_eq!(card.others_bytes(), Some(card.memory_bytes - 10_737_418_240));
        assert_eq!(card.bus.as_deref(), Some("PCIe 4.0 x16"), "from its profile");
    }

    #[test]
    fn what_holds_a_card_down_is_said_in_words() {
        let card = cards(&fixture!("throttled")).remove(0);
        assert_eq!(card.throttle, [Throttle::Heat, Throttle::PowerLimit]);
        assert_eq!((card.temperature_c, card.slowdown_c), (Some(91.0), Some(90.0)));
        assert_eq!(throttle(0), []);
        assert_eq!(throttle(0x1), [], "idle");
        assert_eq!(throttle(0x8), [Throttle::Hardware]);
        assert_eq!(throttle(0x88), [Throttle::PowerSupply]);
        assert_eq!(throttle(0x48), [Throttle::Heat]);
        assert_eq!(throttle(1 << 40), [], "a reason of later drivers");
    }

    #[test]
    fn a_reading_leaves_this_process_out_of_the_others() {
        let facts = fixture!("throttled");
        let sample = facts.cards[0].now.sample(OWN).expect("memory");
        assert_eq!(sample.reading.others_bytes, Some(400 << 20));
        assert_eq!(facts.cards[0].now.sample(1).expect("memory").reading.others_bytes, Some(8400 << 20));
        assert_eq!(sample.reading.utilisation, Some(0.99));
        assert_eq!((sample.reading.power_w, sample.reading.power_limit_w), (Some(349.5), Some(350.0)));
        assert_eq!(sample.reading.used_bytes, 9300 << 20);
        assert_eq!(sample.driver_bytes, 500 << 20);
    }

    #[test]
    fn a_card_whose_memory_nobody_says_is_left_to_the_other_way_of_asking() {
        let mut facts = fixture!("rtx-3060-desktop");
        facts.cards[0].now.memory = None;
        assert!(facts.cards(OWN).is_empty());
    }

    #[test]
    fn libraries_that_do_not_exist_are_absent() {
        let folder = tempfile::tempdir().expect("folder");
        let libraries = [folder.path().join("我的 nvml 🔥.so"), folder.path().join("b.so")];
        assert!(matches!(ask(&libraries, Duration::from_secs(5)), Answer::Absent));
        assert!(source(libraries.to_vec(), vec![])().is_none());
    }
}
