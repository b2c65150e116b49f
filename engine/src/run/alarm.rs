//! What can be seen coming on a card: other programs that take its memory, and a driver that moves ours out of it.

use std::collections::VecDeque;

use crate::format;
use crate::hardware::CardReading;

/// Remembers what was said, so that it is said once.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    /// What other programs held when the run first looked.
    others_bytes: Option<u64>,
    has_warned: bool,
    spill: Spill,
}

impl Alarm {
    /// Warnings (code and sentence) after a step of so many milliseconds a token, before something asks for `returning_bytes`.
    pub(crate) fn after_step(
        &mut self,
        reading: &CardReading,
        returning_bytes: u64,
        ms_per_token: f64,
    ) -> Vec<(&'static str, String)> {
        self.others_bytes = self.others_bytes.or(reading.others_bytes);
        let filling = self.others_bytes.and_then(|before| filling(reading, before, returning_bytes));
        let news = filling.clone().filter(|_| !self.has_warned);
        // What is not known for a moment is no change.
        if reading.others_bytes.is_some() {
            self.has_warned = filling.is_some();
        }
        let spilled = self.spill.step(ms_per_token, reading.used_bytes as f64 / reading.total_bytes.max(1) as f64);
        news.map(|words| ("run.card_filling", words))
            .into_iter()
            .chain(spilled.map(|words| ("run.card_spilled", words)))
            .collect()
    }
}

/// Says that another program has taken so much that what the run will ask for next would not fit.
fn filling(reading: &CardReading, others_before: u64, needed_bytes: u64) -> Option<String> {
    let grown = reading.others_bytes?.saturating_sub(others_before);
    let free_bytes = reading.total_bytes.saturating_sub(reading.used_bytes);
    (grown > 0 && free_bytes < needed_bytes).then(|| {
        format!(
            "Other programs have taken {} of the card since the run began: {} are free, and the next evaluation with its answers \
             needs {}. Close them before then; otherwise the run goes on with less, and slower.",
            format::bytes(grown),
            format::bytes(free_bytes),
            format::bytes(needed_bytes),
        )
    })
}

/// Knows the driver's habit on Windows of moving memory of a full card to the system's, which nothing reports: steps become many times
/// slower while the card is full.
#[derive(Debug, Default)]
struct Spill {
    /// Milliseconds a token of the last steps that were not slow.
    usual: VecDeque<f64>,
    n_slow: usize,
}

impl Spill {
    /// Steps that the median is of.
    const N_USUAL: usize = 32;
    /// Steps before there is one.
    const N_LEAST: usize = 8;
    /// Slower than the median by this factor is slow.
    const SLOW: f64 = 2.0;
    /// Fuller than this is full.
    const FULL: f64 = 0.97;
    /// Slow steps in a row that are no accident.
    const N_SLOW: usize = 3;

    fn step(&mut self, ms_per_token: f64, fullness: f64) -> Option<String> {
        let median = self.median();
        let is_slow = median.is_some_and(|median| ms_per_token > Self::SLOW * median) && fullness > Self::FULL;
        if !is_slow {
            self.n_slow = 0;
            self.usual.push_back(ms_per_token);
            if self.usual.len() > Self::N_USUAL {
                self.usual.pop_front();
            }
            return None;
        }
        self.n_slow += 1;
        (self.n_slow == Self::N_SLOW).then(|| {
            format!(
                "The last {} steps took {} times as long as usual while the card is {} % full: the driver seems to have moved part of \
                 it to system memory, as it does on Windows. Close programs that use the card; in NVIDIA's control panel, \
                 \"CUDA - Sysmem Fallback Policy\" can forbid it.",
                Self::N_SLOW,
                format::number(ms_per_token / median.unwrap_or(ms_per_token), 1),
                format::plain(100.0 * fullness, 0),
            )
        })
    }

    fn median(&self) -> Option<f64> {
        if self.usual.len() < Self::N_LEAST {
            return None;
        }
        let mut sorted: Vec<f64> = self.usual.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        Some(sorted[sorted.len() / 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn reading(free_bytes: u64, others_bytes: u64) -> CardReading {
        let others_bytes = Some(others_bytes);
        CardReading { total_bytes: 12 * GIB, used_bytes: 12 * GIB - free_bytes, others_bytes, ..Default::default() }
    }

    #[test]
    fn another_programs_growth_is_said_before_the_next_allocation_fails_and_once() {
        let mut alarm = Alarm::default();
        let codes =
            |warnings: Vec<(&'static str, String)>| warnings.into_iter().map(|(code, _)| code).collect::<Vec<_>>();
        assert!(alarm.after_step(&reading(2 * GIB, GIB), GIB, 1.0).is_empty());
        // Grown, but there is room.
        assert!(alarm.after_step(&reading(GIB, 2 * GIB), GIB, 1.0).is_empty());
        let warnings = alarm.after_step(&reading(GIB / 2, 5 * GIB / 2), GIB, 1.0);
        assert!(warnings[0].1.contains("1.5 GiB") && warnings[0].1.contains("512 MiB"), "{warnings:?}");
        assert_eq!(codes(warnings), ["run.card_filling"]);
        assert!(alarm.after_step(&reading(GIB / 2, 5 * GIB / 2), GIB, 1.0).is_empty());
        // Not known for a moment, and still there.
        assert!(alarm.after_step(&CardReading { others_bytes: None, ..reading(GIB / 2, 0) }, GIB, 1.0).is_empty());
        assert!(alarm.after_step(&reading(GIB / 2, 5 * GIB / 2), GIB, 1.0).is_empty());
        // Closed and come again: said again.
        assert!(alarm.after_step(&reading(2 * GIB, GIB), GIB, 1.0).is_empty());
        assert_eq!(codes(alarm.after_step(&reading(0, 3 * GIB), GIB, 1.0)), ["run.card_filling"]);
    }

    #[test]
    fn a_card_that_this_run_alone_fills_is_nobodys_news() {
        let mut alarm = Alarm::default();
        assert!(alarm.after_step(&reading(0, GIB), GIB, 1.0).is_empty());
        assert!(alarm.after_step(&reading(0, GIB), GIB, 1.0).is_empty());
    }

    #[test]
    fn three_slow_steps_in_a_row_on_a_full_card_are_a_spill() {
        let mut spill = Spill::default();
        for i in 0..20 {
            assert_eq!(spill.step(1.0 + 0.01 * (i % 3) as f64, 0.99), None);
        }
        assert_eq!(spill.step(5.0, 0.99), None);
        assert_eq!(spill.step(5.0, 0.99), None);
        let words = spill.step(5.0, 0.99).expect("a spill");
        assert!(words.contains("3 steps") && words.contains("99 %"), "{words}");
        // It is said once, however long it lasts, and the slow steps do not become usual.
        for _ in 0..100 {
            assert_eq!(spill.step(5.0, 0.99), None);
        }
        assert_eq!(spill.step(1.0, 0.99), None);
        assert_eq!((0..3).filter_map(|_| spill.step(5.0, 0.98)).count(), 1);
    }

    #[test]
    fn slow_steps_without_a_full_card_or_few_of_them_are_none() {
        let mut spill = Spill::default();
        (0..20).for_each(|_| assert_eq!(spill.step(1.0, 0.99), None));
        for _ in 0..5 {
            assert_eq!(spill.step(5.0, 0.99), None);
            assert_eq!(spill.step(5.0, 0.99), None);
            assert_eq!(spill.step(1.0, 0.99), None);
        }
        let mut roomy = Spill::default();
        (0..20).for_each(|_| assert_eq!(roomy.step(1.0, 0.5), None));
        (0..20).for_each(|_| assert_eq!(roomy.step(5.0, 0.5), None));
        let mut young = Spill::default();
        (0..7).for_each(|_| assert_eq!(young.step(1.0, 0.99), None));
        (0..3).for_each(|_| assert_eq!(young.step(9.0, 0.99), None));
    }
}
