//! Looks at this machine. Nothing here fails or waits long: what cannot be seen in a few seconds is absent.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use super::bounded::{self, Ended};
use super::{Disk, Hardware, Processor, TrainOn, profile, smi};

/// How cards are looked for.
#[derive(Clone, Debug)]
pub struct CardProbe {
    /// `nvidia-smi` by name (looked up in `PATH`) or path; the first that exists is asked.
    pub programs: Vec<PathBuf>,
    /// Time it has; then it is killed.
    pub limit: Duration,
}

impl Default for CardProbe {
    /// `PATH`, then where Windows and WSL keep it. A healthy driver answers in well under a second, a cold one that has
    /// to start its card in two or three.
    fn default() -> Self {
        let programs = if cfg!(windows) {
            let folder = |variable: &str| std::env::var_os(variable).map(PathBuf::from);
            let mut programs = vec![PathBuf::from("nvidia-smi.exe")];
            programs.extend(folder("SystemRoot").map(|root| root.join("System32").join("nvidia-smi.exe")));
            programs.extend(
                folder("ProgramFiles").map(|root| root.join("NVIDIA Corporation").join("NVSMI").join("nvidia-smi.exe")),
            );
            programs
        } else {
            ["nvidia-smi", "/usr/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi"].map(PathBuf::from).to_vec()
        };
        CardProbe { programs, limit: Duration::from_secs(4) }
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
    let (mut cards, card_report) = {
        let ended = ask(probe);
        smi::read(&ended, probe.limit.as_secs())
    };
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
        rates: Vec::new(),
    }
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
        })
        .collect();
    disks.sort_by(|a, b| a.mount.cmp(&b.mount));
    disks.dedup_by(|a, b| a.mount == b.mount);
    disks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::CardOutcome;

    #[test]
    fn this_machine_has_a_processor_and_memory() {
        let hardware = detect_with(&CardProbe { programs: vec![], limit: Duration::from_secs(1) });
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
        assert!(matches!(ask(&CardProbe { programs, limit: Duration::from_secs(1) }), Ended::Absent));
    }
}
