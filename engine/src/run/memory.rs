//! Memory of this process as the run's events report it.

use candle_core::Device;

use crate::event::{MemoryReading, PoolReading};
use crate::hardware::{self, TrainOn};
use crate::ops::memory;
use crate::plan::CUDA_CONTEXT_BYTES;

/// Measures the memory a run takes of its device.
///
/// On the processor that is the growth of anonymous memory since [`MemoryMeter::start`]; file-backed pages are left out, the
/// system takes them back when it needs them. On a card it is what the driver's pool grew by, and beside it the context and
/// CUDA's libraries: what other programs take meanwhile is not this run's.
#[derive(Clone, Debug)]
pub struct MemoryMeter {
    device: Device,
    start_bytes: u64,
    /// On a card whose driver has pools.
    share: Option<CardShare>,
    peak_bytes: u64,
    planned_bytes: u64,
}

impl MemoryMeter {
    /// Takes what is used now as zero. `context_bytes` is what [`make_device`] measured.
    pub fn start(device: &Device, planned_bytes: u64, context_bytes: Option<u64>) -> Self {
        let start_bytes = used_bytes(device).unwrap_or(0);
        let context_bytes = context_bytes.unwrap_or(CUDA_CONTEXT_BYTES);
        let share = pool(device).map(|pool| CardShare::start(context_bytes, start_bytes, pool));
        Self { device: device.clone(), start_bytes, share, peak_bytes: 0, planned_bytes }
    }

    /// A meter of all that this process holds, which is never nothing.
    #[cfg(test)]
    pub(crate) fn of_all() -> Self {
        Self { device: Device::Cpu, start_bytes: 0, share: None, peak_bytes: 0, planned_bytes: 0 }
    }

    /// What the plan foresees, once the buffers say it to the byte.
    pub fn set_planned(&mut self, planned_bytes: u64) {
        self.planned_bytes = planned_bytes;
    }

    /// Bytes that the run will ask for again although it does not hold them now.
    pub(crate) fn returning_bytes(&self) -> u64 {
        memory::returning_bytes(&self.device)
    }

    /// Says that all libraries a step needs are loaded: what grows beside the pool from here on is other programs'.
    pub fn set_warm(&mut self) {
        if let Some(share) = &mut self.share {
            share.is_warm = true;
        }
    }

    /// What the process holds of a card beside its pool, as the last reading found it; none on the processor.
    pub(crate) fn beside_pool_bytes(&self) -> Option<u64> {
        self.share.map(|share| share.context_bytes + share.libraries_bytes)
    }

    /// Reads now and keeps the highest reading.
    pub fn read(&mut self) -> MemoryReading {
        let pool = pool(&self.device);
        let used_bytes = match (&mut self.share, pool) {
            (Some(share), Some(pool)) => share.bytes(|| used_bytes(&self.device).unwrap_or(0), pool),
            _ => {
                let context_bytes = if self.device.is_cpu() { 0 } else { CUDA_CONTEXT_BYTES };
                used_bytes(&self.device).map_or(0, |now| now.saturating_sub(self.start_bytes) + context_bytes)
            }
        };
        self.peak_bytes = self.peak_bytes.max(used_bytes);
        MemoryReading { planned_bytes: self.planned_bytes, used_bytes, peak_bytes: self.peak_bytes, pool }
    }
}

/// This process's share of a card, from readings of the whole card and of its own pool.
#[derive(Clone, Copy, Debug)]
struct CardShare {
    context_bytes: u64,
    start_used_bytes: u64,
    start_reserved_bytes: u64,
    /// Taken beside pool and context since the start.
    libraries_bytes: u64,
    is_warm: bool,
}

impl CardShare {
    fn start(context_bytes: u64, used_bytes: u64, pool: PoolReading) -> Self {
        Self {
            context_bytes,
            start_used_bytes: used_bytes,
            start_reserved_bytes: pool.reserved_bytes,
            libraries_bytes: 0,
            is_warm: false,
        }
    }

    /// `used_bytes` is asked only until the libraries are loaded.
    fn bytes(&mut self, used_bytes: impl FnOnce() -> u64, pool: PoolReading) -> u64 {
        let pool_bytes = pool.reserved_bytes.saturating_sub(self.start_reserved_bytes);
        if !self.is_warm {
            let grown_bytes = used_bytes().saturating_sub(self.start_used_bytes);
            self.libraries_bytes = grown_bytes.saturating_sub(pool_bytes);
        }
        self.context_bytes + self.libraries_bytes + pool_bytes
    }
}

/// Contexts take this much or something went by meanwhile that is none of ours.
const PLAUSIBLE_CONTEXT_BYTES: std::ops::Range<u64> = 64 << 20..2 << 30;

/// Makes a device and measures what its context took of the card; `None` on the processor and where nobody can say.
///
/// # Errors
/// Those of `make`.
pub(super) fn make_device<E>(
    train_on: TrainOn,
    make: impl FnOnce() -> Result<Device, E>,
) -> Result<(Device, Option<u64>), E> {
    if train_on == TrainOn::Processor {
        return Ok((make()?, None));
    }
    let before = hardware::card_free_bytes(Vec::new());
    let device = make()?;
    let after = hardware::card_free_bytes(card_uuids(&device));
    Ok((device, context_bytes(before, after)))
}

fn context_bytes(free_before: Option<u64>, free_after: Option<u64>) -> Option<u64> {
    let bytes = free_before?.checked_sub(free_after?)?;
    PLAUSIBLE_CONTEXT_BYTES.contains(&bytes).then_some(bytes)
}

/// The names under which the card's driver may know the device.
pub(super) fn card_uuids(device: &Device) -> Vec<String> {
    #[cfg(feature = "cuda")]
    if let Ok(uuid) = crate::ops::uuid(device) {
        return vec![format!("GPU-{uuid}"), format!("MIG-{uuid}")];
    }
    let _ = device;
    Vec::new()
}

fn pool(device: &Device) -> Option<PoolReading> {
    #[cfg(feature = "cuda")]
    if device.is_cuda() {
        let pool = crate::ops::pool(device).ok()?;
        return Some(PoolReading { used_bytes: pool.used_bytes, reserved_bytes: pool.reserved_bytes });
    }
    let _ = device;
    None
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
        let mut meter = MemoryMeter::start(&Device::Cpu, 0, None);
        let block = vec![1u8; 256 << 20];
        let reading = meter.read();
        assert!(reading.used_bytes >= 192 << 20, "{reading:?}");
        drop(std::hint::black_box(block));
        let after = meter.read();
        assert!(after.used_bytes < 128 << 20, "{after:?}");
        assert_eq!(after.peak_bytes, reading.peak_bytes);
    }
    #[test]
    fn on_a_card_what_other_programs_take_is_not_ours() {
        const MIB: u64 = 1 << 20;
        let pool = |mib: u64| PoolReading { used_bytes: mib * MIB / 2, reserved_bytes: mib * MIB };
        let mut share = CardShare::start(400 * MIB, 3000 * MIB, pool(100));
        assert_eq!(share.bytes(|| 3000 * MIB, pool(100)), 400 * MIB);
        // The model: all in the pool. Then the first step loads libraries beside it.
        assert_eq!(share.bytes(|| 8000 * MIB, pool(5100)), 5400 * MIB);
        assert_eq!(share.bytes(|| 8070 * MIB, pool(5100)), 5470 * MIB);
        share.is_warm = true;
        // A game starts, and a browser closes.
        assert_eq!(share.bytes(|| 11_000 * MIB, pool(5200)), 5570 * MIB);
        assert_eq!(share.bytes(|| 6000 * MIB, pool(5200)), 5570 * MIB);
    }

    #[test]
    fn a_context_is_what_was_free_before_and_is_not_after_where_that_makes_sense() {
        assert_eq!(context_bytes(Some(9 << 30), Some((9 << 30) - (500 << 20))), Some(500 << 20));
        // Another program started or ended at the same moment, or another card was looked at.
        assert_eq!(context_bytes(Some(9 << 30), Some(4 << 30)), None);
        assert_eq!(context_bytes(Some(4 << 30), Some(9 << 30)), None);
        assert_eq!(context_bytes(None, Some(4 << 30)), None);
    }
}
