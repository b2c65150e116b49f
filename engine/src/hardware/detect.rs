//! Looks at this machine. Nothing here fails or waits long: what cannot be seen in a few seconds is absent.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use super::bounded::{self, Ended};
use super::nvml::{self, Answer};
use super::{Card, CardReport, Disk, Hardware, Measurements, Processor, TrainOn, profile, smi};

/// How cards are looked for.
#[derive(Clone, Debug)]
pub struct CardProbe {
    /// The driver's management library by name or path; the first that exists is asked.
    pub libraries: Vec<PathBuf>,
    /// Asked where no library is: `nvidia-smi` by name (looked up in `PATH`) or path; the first that exists is asked.
    pub programs: Vec<PathBuf>,
    /// Time each has; a program is killed then.
    pub limit: Duration,
}

impl Default for CardProbe {
    /// `PATH`, then where Windows and WSL keep it. A healthy driver answers in well under a second, a cold one that has
    /// to start its card in two or three.
    fn default() -> Self {
        let folder = |variable: &str| std::env::var_os(variable).map(PathBuf::from);
        // Drivers of some years ago kept both here.
        let old = folder("ProgramFiles").map(|root| root.join("NVIDIA Corporation").join("NVSMI"));
        let libraries = if cfg!(windows) {
            let mut libraries = vec![PathBuf::from("nvml.dll")];
            libraries.extend(old.as_ref().map(|old| old.join("nvml.dll")));
            libraries
        } else {
            ["libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"].map(PathBuf::from).to_vec()
        };
        let programs = if cfg!(windows) {
            let mut programs = vec![PathBuf::from("nvidia-smi.exe")];
            programs.extend(folder("SystemRoot").map(|root| root.join("System32").join("nvidia-smi.exe")));
            programs.extend(old.map(|old| old.join("nvidia-smi.exe")));
            programs
        } else {
            ["nvidia-smi", "/usr/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi"].map(PathBuf::from).to_vec()
        };
        CardProbe { libraries, programs, limit: Duration::from_secs(4) }
    }
}

/// Disks on a network that is gone can block for minutes.
const DISK_LIMIT: Duration = Duration::from_secs(2);

/// This computer as it is now. Takes a few tenths of a second, at most about four seconds where a driver hangs.
pub fn detect() -> Hardware {
    detect_with(&CardProbe::default())
}

/// [`detect`] with another way to look for cards.
pub fn detect_with(probe: &CardProbe) -> Hardware {
    let disks = in_background(disks);
    let (cards, card_report) = cards(probe);
    let mut cards = visible(cards, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref());
    for card in &mut cards {
        profile::complete(card);
    }
    let memory = memory();
    let train_on = if crate::ops::HAS_KERNELS && !cards.is_empty() { TrainOn::Card } else { TrainOn::Processor };
    Hardware {
        name: "This computer".into(),
        processor: processor(),
        memory_total_bytes: memory.total_bytes,
        memory_available_bytes: memory.available_bytes,
        cards,
        card_report: Some(card_report),
        train_on,
        disks: disks.recv_timeout(DISK_LIMIT).unwrap_or_default(),
        is_wsl: is_wsl(),
        advice: Vec::new(),
        measurements: Measurements::default(),
    }
}

/// The library says most; where it is missing, does not work or does not know how much memory a card has, the program may
/// say more. Where the driver hangs, the program would too.
fn cards(probe: &CardProbe) -> (Vec<Card>, CardReport) {
    let seconds = probe.limit.as_secs();
    let refusal = match nvml::ask(&probe.libraries, probe.limit) {
        Answer::Facts(facts) => {
            let cards = facts.cards(std::process::id());
            if let Some(report) = smi::found(&cards) {
                return (cards, report);
            }
            None
        }
        Answer::TimedOut => return (Vec::new(), smi::silent(seconds)),
        Answer::Refused(refusal) => Some(refusal),
        Answer::Absent => None,
    };
    match (ask(probe), refusal) {
        (Ended::Absent, Some(refusal)) => (Vec::new(), smi::refused(refusal)),
        (ended, _) => smi::read(&ended, seconds),
    }
}

/// The card to train on first: as `CUDA_VISIBLE_DEVICES` says (numbers and beginnings of UUIDs, up to the first that names
/// no card), else of those that can be used the one with the most memory.
fn visible(mut cards: Vec<Card>, named: Option<&str>) -> Vec<Card> {
    let Some(named) = named else {
        cards.sort_by_key(|card| (!card.is_usable(), std::cmp::Reverse(card.memory_bytes)));
        return cards;
    };
    let card = |name: &str| match name.parse::<usize>() {
        Ok(index) => cards.get(index),
        Err(_) if name.is_empty() => None,
        Err(_) => cards.iter().find(|card| card.uuid.as_deref().is_some_and(|uuid| uuid.starts_with(name))),
    };
    named.split(',').map_while(|name| card(name.trim())).cloned().collect()
}

/// Microsoft's kernel names itself.
fn is_wsl() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.to_lowercase().contains("microsoft")
}

fn ask(probe: &CardProbe) -> Ended {
    for program in &probe.programs {
        match bounded::run(program, &[smi::QUERY, smi::FORMAT], probe.limit) {
            Ended::Absent => continue,
            ended => return ended,
        }
    }
    Ended::Absent
}

fn in_background<T: Send + 'static>(look: fn() -> T) -> mpsc::Receiver<T> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // Nobody listens any more where the time was over.
        let _ = sender.send(look());
    });
    receiver
}

fn processor() -> Processor {
    let n_threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    // A container may be given fewer threads than the machine has cores.
    let n_cores = sysinfo::System::physical_core_count().map_or(n_threads, |n| n.clamp(1, n_threads));
    let system = sysinfo::System::new().map(|mut system| {
        system.refresh_cpu_list(sysinfo::CpuRefreshKind::nothing());
        system
    });
    let name = system.ok().and_then(|system| system.cpus().first().map(|cpu| cpu.brand().trim().to_string()));
    let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH));
    Processor { name, n_cores, n_threads }
}

struct Memory {
    total_bytes: u64,
    available_bytes: u64,
}

fn memory() -> Memory {
    let Ok(mut system) = sysinfo::System::new() else { return Memory { total_bytes: 0, available_bytes: 0 } };
    system.refresh_memory();
    let (mut total_bytes, mut available_bytes) = (system.total_memory(), system.available_memory());
    // A container's limit is what the kernel enforces. Its page cache is freed on demand, so only `rss` counts.
    if let Some(limits) = system.cgroup_limits().filter(|limits| limits.total_memory > 0) {
        total_bytes = total_bytes.min(limits.total_memory);
        available_bytes = available_bytes.min(limits.total_memory.saturating_sub(limits.rss));
    }
    Memory { total_bytes, available_bytes }
}

fn disks() -> Vec<Disk> {
    let Ok(listed) = sysinfo::Disks::new_with_refreshed_list() else { return Vec::new() };
    let disks = listed.iter().filter(|disk| disk.total_space() > 0 && disk.mount_point().is_dir());
    let mut disks: Vec<Disk> = disks
        .map(|disk| Disk {
            mount: disk.mount_point().into(),
            total_bytes: disk.total_space(),
            available_bytes: disk.available_space(),
            write_bytes_per_s: None,
        })
        .collect();
    disks.sort_by(|a, b| a.mount.cmp(&b.mount));
    disks.dedup_by(|a, b| a.mount == b.mount);
    disks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::{CardOutcome, Mig};

    #[test]
    fn this_machine_has_a_processor_and_memory() {
        let hardware = detect_with(&CardProbe { libraries: vec![], programs: vec![], limit: Duration::from_secs(1) });
        assert!(hardware.processor.n_cores >= 1 && hardware.processor.n_cores <= hardware.processor.n_threads);
        assert!(!hardware.processor.name.is_empty());
        assert!(hardware.memory_available_bytes > 0);
        assert!(hardware.memory_available_bytes <= hardware.memory_total_bytes);
        assert_eq!(hardware.card_report.expect("looked").outcome, CardOutcome::Absent);
    }

    #[test]
    fn programs_that_do_not_exist_are_passed_over() {
        let folder = tempfile::tempdir().expect("folder");
        let programs = vec![folder.path().join("a"), folder.path().join("b")];
        let probe = CardProbe { libraries: vec![], programs, limit: Duration::from_secs(1) };
        assert!(matches!(ask(&probe), Ended::Absent));
    }

    #[test]
    fn the_card_to_train_on_comes_first() {
        let card = |name: &str, memory_bytes| Card {
            name: name.into(),
            uuid: Some(format!("GPU-{name}")),
            memory_bytes,
            ..Card::default()
        };
        let names = |named: Option<&str>| {
            let cards = visible(vec![card("a1", 2), card("b2", 8), card("c3", 2)], named);
            cards.into_iter().map(|card| card.name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(None), "b2 a1 c3", "the most memory first");
        assert_eq!(names(Some("2, 0")), "c3 a1");
        assert_eq!(names(Some("GPU-b,GPU-a1")), "b2 a1");
        assert_eq!(names(Some("1,9,0")), "b2", "up to the first that is none");
        assert_eq!(names(Some("")), "");
        assert_eq!(names(Some("-1")), "");
    }

    #[test]
    fn a_card_that_cannot_be_used_stands_behind_one_that_can_however_much_memory_it_has() {
        let card = |name: &str, gib: u64, capability: &str| Card {
            name: name.into(),
            memory_bytes: gib << 30,
            compute_capability: Some(capability.into()),
            ..Card::default()
        };
        let divided = Mig { n_parts: 0, part: None, whole_bytes: 80 << 30 };
        let empty = Card { mig: Some(divided), ..card("A100", 80, "8.0") };
        let cards = visible(vec![empty, card("P40", 24, "6.1"), card("RTX 3060", 12, "8.6")], None);
        assert_eq!(cards.iter().map(|card| card.name.as_str()).collect::<Vec<_>>(), ["RTX 3060", "A100", "P40"]);
    }

    #[cfg(unix)]
    #[test]
    fn where_the_library_is_missing_the_program_is_asked() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::Builder::new().prefix("我的 driver 🔥").tempdir().expect("folder");
        let program = folder.path().join("nvidia-smi");
        let script = "#!/bin/sh\necho 'NVIDIA GeForce RTX 3060, 12288, 11561, 8.6, 581.42, 41, 18.02, 170.00, 4, 16'\n";
        std::fs::write(&program, script).expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("set");
        let libraries = vec![folder.path().join("libnvidia-ml.so.1")];
        let (cards, report) = cards(&CardProbe { libraries, programs: vec![program], limit: Duration::from_secs(20) });
        assert_eq!((cards.len(), report.outcome), (1, CardOutcome::Found));
    }
}
