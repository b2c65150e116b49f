//! Memory of this process as the run's events report it.

use candle_core::Device;

use crate::event::MemoryReading;
use crate::plan::CUDA_CONTEXT_BYTES;

/// Measures the memory a run takes of its device since [`MemoryMeter::start`].
///
/// On the processor that is the growth of anonymous memory; file-backed pages are left out, the system takes them back when it needs
/// them. On a card it is the growth of what is in use there, and the context that the driver made before.
#[derive(Clone, Debug)]
pub struct MemoryMeter {
    device: Device,
    start_bytes: u64,
    peak_bytes: u64,
    planned_bytes: u64,
}

impl MemoryMeter {
    /// Takes what is used now as zero.
    pub fn start(device: &Device, planned_bytes: u64) -> Self {
        let start_bytes = used_bytes(device).unwrap_or(0);
        Self { device: device.clone(), start_bytes, peak_bytes: 0, planned_bytes }
    }

    /// What the plan foresees, once the buffers say it to the byte.
    pub fn set_planned(&mut self, planned_bytes: u64) {
        self.planned_bytes = planned_bytes;
    }

    /// Reads now and keeps the highest reading.
    pub fn read(&mut self) -> MemoryReading {
        let context_bytes = if self.device.is_cpu() { 0 } else { CUDA_CONTEXT_BYTES };
        let used_bytes = used_bytes(&self.device).map_or(0, |now| now.saturating_sub(self.start_bytes) + context_bytes);
        self.peak_bytes = self.peak_bytes.max(used_bytes);
        MemoryReading { planned_bytes: self.planned_bytes, used_bytes, peak_bytes: self.peak_bytes }
    }
}

fn used_bytes(device: &Device) -> Option<u64> {
    #[cfg(feature = "cuda")]
    if device.is_cuda() {
        return crate::ops::used_bytes(device).ok();
    }
    device.is_cpu().then(anonymous_bytes)?
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
        let mut meter = MemoryMeter::start(&Device::Cpu, 0);
        let block = vec![1u8; 256 << 20];
        let reading = meter.read();
        assert!(reading.used_bytes >= 192 << 20, "{reading:?}");
        drop(std::hint::black_box(block));
        let after = meter.read();
        assert!(after.used_bytes < 128 << 20, "{after:?}");
        assert_eq!(after.peak_bytes, reading.peak_bytes);
    }
}
