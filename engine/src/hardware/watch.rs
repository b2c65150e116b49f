//! What the card does while a run trains on it: a thread reads it about once a second, and the newest reading costs a lock.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// Between two readings.
pub const WATCH_EVERY: Duration = Duration::from_secs(1);
/// A driver that has said nothing for so many intervals says nothing: an older reading is none.
const STALE_AFTER: u32 = 10;

/// A card at one moment, as its driver sees it. What the driver does not say is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
#[serde(default)]
#[ts(export)]
pub struct CardReading {
    /// Memory in use on the card, by all programs and the driver itself.
    #[ts(type = "number")]
    pub used_bytes: u64,
    /// Memory on the card.
    #[ts(type = "number")]
    pub total_bytes: u64,
    /// Of `used_bytes`, what other programs hold.
    #[ts(type = "number | null")]
    pub others_bytes: Option<u64>,
    /// Share of the last moments in which the card computed, 0 to 1.
    pub utilisation: Option<f64>,
    /// Degrees Celsius.
    pub temperature_c: Option<f64>,
    /// Power drawn, in watts.
    pub power_w: Option<f64>,
    /// The most it may draw, in watts.
    pub power_limit_w: Option<f64>,
    /// Clock of the multiprocessors.
    pub sm_clock_mhz: Option<f64>,
    /// What holds the clocks down; empty where nothing does.
    pub throttle: Vec<Throttle>,
}

/// What holds a card's clocks down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum Throttle {
    /// It draws as much as it may: usual under load.
    PowerLimit,
    /// The chip or its memory is too hot.
    Heat,
    /// The power supply asked for less.
    PowerSupply,
    /// The hardware halved the clocks or more, without a reason it names.
    Hardware,
    /// Somebody fixed the clocks.
    FixedClocks,
    /// Another card it is bound to is slower.
    OtherCard,
    /// The display's settings.
    Display,
}

impl Throttle {
    /// "the power limit", after "held down by".
    pub fn words(self) -> &'static str {
        match self {
            Throttle::PowerLimit => "the power limit",
            Throttle::Heat => "heat",
            Throttle::PowerSupply => "the power supply",
            Throttle::Hardware => "the card's protection",
            Throttle::FixedClocks => "fixed clocks",
            Throttle::OtherCard => "another card",
            Throttle::Display => "the display's settings",
        }
    }
}

/// What is read of a card, before it is known what of its memory is this process's own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CardSample {
    /// All but `others_bytes`, which is what the driver's list of programs says, where it says it.
    pub reading: CardReading,
    /// Of the memory in use, what the driver keeps for itself.
    pub driver_bytes: u64,
}

/// Reads a card on a thread of its own. Clones look at the same card; the thread ends with the last of them.
#[derive(Clone, Debug)]
pub struct CardWatch {
    shared: Arc<Shared>,
    /// Never sent on: the thread waits on the other end and ends when all of these are gone.
    _alive: mpsc::Sender<()>,
    stale_after: Duration,
}

#[derive(Debug, Default)]
struct Shared {
    newest: Mutex<Option<Newest>>,
    /// What this process holds of the card and since when, where it is known.
    own: Mutex<Option<(u64, Instant)>>,
}

#[derive(Debug)]
struct Newest {
    /// Before the driver was asked, and after it had answered.
    asked: Instant,
    told: Instant,
    sample: CardSample,
}

impl CardWatch {
    /// Asks `source` now and then every `every`, on another thread: a source that hangs, or says nothing, leaves no reading.
    pub fn start(mut source: impl FnMut() -> Option<CardSample> + Send + 'static, every: Duration) -> CardWatch {
        let (alive, ended) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let written = Arc::clone(&shared);
        std::thread::spawn(move || {
            loop {
                let asked = Instant::now();
                if let Some(sample) = source() {
                    let newest = Newest { asked, told: Instant::now(), sample };
                    *written.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(newest);
                }
                match ended.recv_timeout(every) {
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                    _ => return,
                }
            }
        });
        CardWatch { shared, _alive: alive, stale_after: every * STALE_AFTER }
    }

    /// The newest reading; `None` before the first and where the driver stopped answering. Cheap: nobody is asked.
    pub fn newest(&self) -> Option<CardReading> {
        let newest = self.shared.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let Newest { asked, sample, .. } = newest.as_ref().filter(|newest| newest.told.elapsed() < self.stale_after)?;
        let mut reading = sample.reading.clone();
        let own = *self.shared.own.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((own_bytes, since)) = own {
            // Drivers on Windows and in containers do not say which program holds what; this process knows its own share. Of what
            // the card held before that changed it says nothing.
            let others_bytes = reading.used_bytes.saturating_sub(sample.driver_bytes + own_bytes);
            reading.others_bytes = (*asked > since).then_some(others_bytes);
        }
        Some(reading)
    }

    /// Says what this process holds of the card, from which follows what others hold; 0 is nothing known.
    pub fn set_own_bytes(&self, own_bytes: u64) {
        let mut own = self.shared.own.lock().unwrap_or_else(PoisonError::into_inner);
        if own_bytes > 0 && own.is_none_or(|(before, _)| before != own_bytes) {
            *own = Some((own_bytes, Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(5);

    fn sample(used_bytes: u64) -> CardSample {
        let reading = CardReading { used_bytes, total_bytes: 1000, ..CardReading::default() };
        CardSample { reading, driver_bytes: 100 }
    }

    /// Waits until `is_so`, at most a few seconds.
    fn wait(is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while !is_so() {
            assert!(Instant::now() < deadline, "it never was");
            std::thread::sleep(TICK);
        }
    }

    #[test]
    fn the_newest_of_a_series_is_read_and_the_thread_ends_with_the_watch() {
        let (sender, series) = mpsc::channel::<u64>();
        let watch = CardWatch::start(move || series.recv().ok().map(sample), TICK);
        assert_eq!(watch.newest(), None);
        for used_bytes in [300, 700] {
            sender.send(used_bytes).expect("the thread listens");
            wait(|| watch.newest().is_some_and(|reading| reading.used_bytes == used_bytes));
        }
        let other = watch.clone();
        drop(watch);
        sender.send(900).expect("the thread listens");
        wait(|| other.newest().is_some_and(|reading| reading.used_bytes == 900));
        drop(other);
        wait(|| sender.send(0).is_err());
    }

    #[test]
    fn a_card_whose_driver_stops_answering_has_no_reading() {
        let mut n_readings = 0;
        let source = move || {
            n_readings += 1;
            (n_readings == 1).then(|| sample(300))
        };
        let watch = CardWatch::start(source, TICK);
        wait(|| watch.newest().is_some());
        wait(|| watch.newest().is_none());
    }

    #[test]
    fn what_others_hold_is_what_is_neither_ours_nor_the_drivers() {
        let watch = CardWatch::start(
            || {
                let mut sample = sample(700);
                sample.reading.others_bytes = Some(55);
                Some(sample)
            },
            TICK,
        );
        wait(|| watch.newest().is_some());
        assert_eq!(watch.newest().and_then(|reading| reading.others_bytes), Some(55));
        watch.set_own_bytes(400);
        wait(|| watch.newest().and_then(|reading| reading.others_bytes) == Some(200));
        watch.set_own_bytes(900);
        wait(|| watch.newest().and_then(|reading| reading.others_bytes) == Some(0));
    }

    #[test]
    fn a_reading_from_before_our_share_changed_says_nothing_of_others() {
        let (sender, series) = mpsc::channel::<u64>();
        let watch = CardWatch::start(move || series.recv().ok().map(sample), 100 * TICK);
        let others = || watch.newest().and_then(|reading| reading.others_bytes);
        watch.set_own_bytes(400);
        sender.send(700).expect("the thread listens");
        sender.send(700).expect("the thread listens");
        wait(|| others() == Some(200));
        // The buffers were given back, and the driver was not asked since: no program has given anything back.
        watch.set_own_bytes(50);
        assert_eq!(others(), None);
        watch.set_own_bytes(50);
        sender.send(350).expect("the thread listens");
        sender.send(350).expect("the thread listens");
        wait(|| others() == Some(200));
    }

    #[test]
    fn a_reading_of_an_older_engine_is_read_with_what_it_has() {
        let reading: CardReading = serde_json::from_str(r#"{"used_bytes": 5, "total_bytes": 9}"#).expect("read");
        assert_eq!((reading.used_bytes, reading.total_bytes, reading.throttle.len()), (5, 9, 0));
    }
}
