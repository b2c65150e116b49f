//! Memory of this process as the run's events report it.

use crate::event::MemoryReading;

/// Measures growth of anonymous memory since [`MemoryMeter::start`]. File-backed pages (a mapped model) are left out: the
/// system takes them back when it needs them.
#[derive(Clone, Debug)]
pub struct MemoryMeter {
    start_bytes: u64,
    peak_bytes: u64,
    planned_bytes: u64,
}

impl MemoryMeter {
    /// Takes what the process uses now as zero.
    pub fn start(planned_bytes: u64) -> Self {
        Self { start_bytes: anonymous_bytes().unwrap_or(0), peak_bytes: 0, planned_bytes }
    }

    /// What the plan foresees, once the buffers say it to the byte.
    pub fn set_planned(&mut self, planned_bytes: u64) {
        self.planned_bytes = planned_bytes;
    }

    /// Reads now and keeps the highest reading.
    pub fn read(&mut self) -> MemoryReading {
        let used_bytes = anonymous_bytes().map_or(0, |now| now.saturating_sub(self.start_bytes));
        self.peak_bytes = self.peak_bytes.max(used_bytes);
        MemoryReading { planned_bytes: self.planned_bytes, used_bytes, peak_bytes: self.peak_bytes }
    }
}

/// Resident anonymous memory of this process in bytes.
#[cfg(target_os = "linux")]
pub fn anonymous_bytes() -> Option<u64> {
    rss_anon(&std::fs::read_to_string("/proc/self/status").ok()?)
}

#[cfg(any(target_os = "linux", test))]
fn rss_anon(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Resident memory of this process in bytes; other systems do not tell anonymous pages apart.
#[cfg(not(target_os = "linux"))]
pub fn anonymous_bytes() -> Option<u64> {
    use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System};
    let pid = sysinfo::get_current_pid().ok()?;
    let mut system = System::new();
    system.refresh_processes_specifics(
        ProcessesToUpdate::Some(&[pid]),
        false,
        ProcessRefreshKind::nothing().with_memory(),
    );
    system.process(pid).map(|p| p.memory())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_memory_is_read_from_the_status_page() {
        assert_eq!(rss_anon("VmRSS:\t  900 kB\nRssAnon:\t     512 kB\nRssFile:\t 4 kB\n"), Some(512 * 1024));
        assert_eq!(rss_anon("VmRSS:\t  900 kB\n"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn growth_since_the_start_is_what_was_touched() {
        // Large against whatever other tests of this process do meanwhile.
        let mut meter = MemoryMeter::start(0);
        let block = vec![1u8; 256 << 20];
        let reading = meter.read();
        assert!(reading.used_bytes >= 192 << 20, "{reading:?}");
        drop(std::hint::black_box(block));
        let after = meter.read();
        assert!(after.used_bytes < 128 << 20, "{after:?}");
        assert_eq!(after.peak_bytes, reading.peak_bytes);
    }
}
