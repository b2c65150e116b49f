//! When a run slows down or pauses by itself: heat, power, quiet hours, another program that wants the card.
//!
//! [`govern`] decides from what is seen and from what was decided before, and touches nothing; [`Governor`] looks, asks it and
//! finds the moments worth a line in the log. Each rule begins at one value and ends at another, so that a reading that wavers
//! around a limit does not make a run waver.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use jiff::ZonedDateTime;
use jiff::civil::Date;
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::error::Error;
use crate::config::{GovernorConfig, QuietHours};
use crate::format;
use crate::hardware::CardReading;

/// File in a run folder with settings that replace those the run began with.
pub(crate) const FILE: &str = "governor.json";

/// Degrees above the limit at which resting was not enough and a run pauses, and below it at which it goes on.
const PAUSE_ABOVE_C: f64 = 5.0;
const GO_ON_BELOW_C: f64 = 5.0;
/// Below the limits by this much a run rests less: degrees, and a share of the watts.
const CALM_BELOW_C: f64 = 3.0;
const CALM_POWER_SHARE: f64 = 0.95;
/// How often the share of rest is changed, by how much up and down, and its most.
const ADJUST_EVERY: Duration = Duration::from_secs(2);
const REST_MORE: f64 = 0.05;
const REST_LESS: f64 = 0.02;
const MOST_REST: f64 = 0.8;
/// Weight of the newest reading in the average power.
const POWER_WEIGHT: f64 = 0.3;
/// How long another program must want the card before a run yields, and how long it must be calm before the run goes on: soon where
/// it gave its memory back, later where it holds it and computes nothing.
const WANTED_FOR: Duration = Duration::from_secs(5);
const CALM_FOR: Duration = Duration::from_secs(15);
const IDLE_FOR: Duration = Duration::from_secs(120);
/// Shares of the card's time that another program may use: one that gave its memory back, and one that counts as idle.
const CALM: f64 = 0.2;
const IDLE: f64 = 0.1;
/// A slowed run is said to be at full speed when it has not rested for this long.
const FULL_SPEED_FOR: Duration = Duration::from_secs(60);

/// What the governor sees at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Sight {
    /// The card, where one is used and its driver answers.
    pub(crate) card: Option<CardReading>,
    /// Local time.
    pub(crate) now: ZonedDateTime,
    /// Since the run began: a clock that nobody sets.
    pub(crate) elapsed: Duration,
}

/// Why a run is slowed down or paused.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Why {
    QuietHours { until: ZonedDateTime },
    OtherProgram { grown_bytes: u64 },
    Heat { temperature_c: f64, limit_c: f64 },
    Power { power_w: f64, limit_w: f64 },
}

/// What a run is to do before its next micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Compute.
    Go,
    /// Rest this long, then compute.
    Slow { rest: Duration, why: Why },
    /// Make the work safe and ask again.
    Pause { why: Why },
}

/// What [`govern`] remembers.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    /// Share of the time that is rest.
    rest_share: f64,
    adjusted: Option<Duration>,
    power_w: Option<f64>,
    is_too_hot: bool,
    /// The least that others held of the card.
    others_least_bytes: Option<u64>,
    yields: bool,
    /// Since when others want the card, have given memory back, compute nothing.
    wanted_since: Option<Duration>,
    calm_since: Option<Duration>,
    idle_since: Option<Duration>,
}

/// Decides. `worked` is the time computed since the last decision. The same sights give the same actions.
pub(crate) fn govern(config: &GovernorConfig, sight: &Sight, worked: Duration, state: &mut State) -> Action {
    if let Some(until) = config.quiet_hours.and_then(|hours| quiet_until(hours, &sight.now)) {
        return Action::Pause { why: Why::QuietHours { until } };
    }
    // Without a reading nothing is held back: a pause might never end.
    let card = sight.card.clone().unwrap_or_default();
    if let Some(grown_bytes) = others_want(config, &card, sight.elapsed, state) {
        return Action::Pause { why: Why::OtherProgram { grown_bytes } };
    }
    let limit_c = config.temperature_limit_c;
    match card.temperature_c {
        Some(now_c) if limit_c > 0.0 => {
            let least = if state.is_too_hot { limit_c - GO_ON_BELOW_C } else { limit_c + PAUSE_ABOVE_C };
            state.is_too_hot = now_c > least;
            if state.is_too_hot {
                return Action::Pause { why: Why::Heat { temperature_c: now_c, limit_c } };
            }
        }
        _ => state.is_too_hot = false,
    }
    slow(config, &card, sight.elapsed, worked, state)
}

fn slow(config: &GovernorConfig, card: &CardReading, now: Duration, worked: Duration, state: &mut State) -> Action {
    let is_due = state.adjusted.is_none_or(|last| now.saturating_sub(last) >= ADJUST_EVERY);
    let (limit_c, limit_w) = (config.temperature_limit_c, config.power_limit_w.filter(|&watts| watts > 0.0));
    if is_due && let Some(power_w) = card.power_w {
        let before = state.power_w.unwrap_or(power_w);
        state.power_w = Some(before + POWER_WEIGHT * (power_w - before));
    }
    let heat = card.temperature_c.filter(|_| limit_c > 0.0);
    let power = card.power_w.and(state.power_w).zip(limit_w);
    if is_due {
        state.adjusted = Some(now);
        let is_over = heat.is_some_and(|c| c > limit_c) || power.is_some_and(|(watts, limit)| watts > limit);
        let is_calm = heat.is_none_or(|c| c < limit_c - CALM_BELOW_C)
            && power.is_none_or(|(watts, limit)| watts < CALM_POWER_SHARE * limit);
        if is_over {
            state.rest_share = (state.rest_share + REST_MORE).min(MOST_REST);
        } else if is_calm {
            state.rest_share = (state.rest_share - REST_LESS).max(0.0);
        }
    }
    let why = match (power, heat) {
        (Some((power_w, limit_w)), _) if power_w > CALM_POWER_SHARE * limit_w => Why::Power { power_w, limit_w },
        (_, Some(temperature_c)) => Why::Heat { temperature_c, limit_c },
        (Some((power_w, limit_w)), None) => Why::Power { power_w, limit_w },
        (None, None) => return Action::Go,
    };
    if state.rest_share <= 0.0 {
        return Action::Go;
    }
    Action::Slow { rest: worked.mul_f64(state.rest_share / (1.0 - state.rest_share)), why }
}

/// Bytes that others hold more than before, where they want the card.
fn others_want(config: &GovernorConfig, card: &CardReading, now: Duration, state: &mut State) -> Option<u64> {
    let Some(bytes) = card.others_bytes.filter(|_| config.yield_to_others) else {
        state.yields = false;
        return None;
    };
    let least = state.others_least_bytes.map_or(bytes, |least| least.min(bytes));
    state.others_least_bytes = Some(least);
    let grown = bytes - least;
    let lasts = |since: &mut Option<Duration>, holds: bool, long: Duration| -> bool {
        *since = if holds { since.or(Some(now)) } else { None };
        since.is_some_and(|since| now.saturating_sub(since) >= long)
    };
    let changes = if state.yields {
        // This run is at rest: what is used of the card, others use.
        let used = card.utilisation.unwrap_or(0.0);
        let gave_back = grown <= config.yield_bytes / 2 && used <= CALM;
        let is_calm = lasts(&mut state.calm_since, gave_back, CALM_FOR);
        let is_idle = lasts(&mut state.idle_since, used <= IDLE, IDLE_FOR);
        is_calm || is_idle
    } else {
        lasts(&mut state.wanted_since, grown > config.yield_bytes, WANTED_FOR)
    };
    if changes {
        state.yields = !state.yields;
        (state.wanted_since, state.calm_since, state.idle_since) = (None, None, None);
        if !state.yields {
            // What an idle program keeps is what others hold from now on.
            state.others_least_bytes = Some(bytes);
        }
    }
    state.yields.then_some(grown)
}

/// When quiet hours that `now` lies in end. The window is one of time, not of the clock's face: where the clock is set back into
/// it, it does not begin again.
fn quiet_until(hours: QuietHours, now: &ZonedDateTime) -> Option<ZonedDateTime> {
    let at = |date: Date, minute: u16| {
        let time = date.at((minute / 60) as i8, (minute % 60) as i8, 0, 0);
        time.to_zoned_datetime(now.time_zone().clone()).ok()
    };
    let today = now.date();
    [today.yesterday().ok()?, today].into_iter().find_map(|begins| {
        let ends = if hours.to_minute > hours.from_minute { begins } else { begins.tomorrow().ok()? };
        let (from, to) = (at(begins, hours.from_minute)?, at(ends, hours.to_minute)?);
        (from <= *now && *now < to).then_some(to)
    })
}

/// What the governor made of a run, as its events say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(export)]
pub enum Pace {
    /// At full speed.
    Full,
    /// It rests between micro-batches.
    Slowed,
    /// It waits; its work is safe.
    Paused,
}

/// A change of pace, for the log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    pub(crate) pace: Pace,
    /// Stable name of the reason; empty at full speed.
    pub(crate) code: &'static str,
    pub(crate) message: String,
    /// When a pause ends, milliseconds since the Unix epoch, where that is known.
    pub(crate) until_ms: Option<u64>,
}

impl Why {
    fn code(&self) -> &'static str {
        match self {
            Why::QuietHours { .. } => "governor.quiet_hours",
            Why::OtherProgram { .. } => "governor.other_program",
            Why::Heat { .. } => "governor.heat",
            Why::Power { .. } => "governor.power",
        }
    }

    fn words(&self, pace: Pace) -> String {
        match self {
            Why::QuietHours { until } => {
                format!("Paused for the quiet hours; it goes on at {:02}:{:02}.", until.hour(), until.minute())
            }
            Why::OtherProgram { grown_bytes } => format!(
                "Paused: another program took {} of the card. It goes on when that is given back or idle.",
                format::bytes(*grown_bytes)
            ),
            Why::Heat { temperature_c, limit_c } if pace == Pace::Paused => format!(
                "Paused: the card is at {temperature_c:.0} °C and the limit is {limit_c:.0} °C. It goes on at {:.0} °C.",
                limit_c - GO_ON_BELOW_C
            ),
            Why::Heat { temperature_c, limit_c } => {
                format!("Slowed down: the card is at {temperature_c:.0} °C and the limit is {limit_c:.0} °C.")
            }
            Why::Power { power_w, limit_w } => {
                format!("Slowed down: the card draws {power_w:.0} W on average and the limit is {limit_w:.0} W.")
            }
        }
    }
}

impl Change {
    fn of(action: &Action) -> Change {
        let (pace, why) = match action {
            Action::Go => {
                let message = "It goes on at full speed.".into();
                return Change { pace: Pace::Full, code: "", message, until_ms: None };
            }
            Action::Slow { why, .. } => (Pace::Slowed, why),
            Action::Pause { why } => (Pace::Paused, why),
        };
        let until_ms = match why {
            Why::QuietHours { until } => u64::try_from(until.timestamp().as_millisecond()).ok(),
            _ => None,
        };
        Change { pace, code: why.code(), message: why.words(pace), until_ms }
    }
}

/// Looks at the card and the clock.
pub(crate) type Look<'a> = Box<dyn FnMut() -> Sight + 'a>;

/// The governor of a run.
pub(crate) struct Governor<'a> {
    config: GovernorConfig,
    look: Look<'a>,
    state: State,
    /// Where other settings may come from while the run is on, and when those in use were written.
    file: Option<(PathBuf, Option<SystemTime>)>,
    working_since: Option<Duration>,
    said: (Pace, &'static str),
    full_since: Option<Duration>,
}

impl<'a> Governor<'a> {
    /// Obeys `config`, seeing by `look`.
    pub(crate) fn new(config: GovernorConfig, look: Look<'a>) -> Self {
        Self {
            config,
            look,
            state: State::default(),
            file: None,
            working_since: None,
            said: (Pace::Full, ""),
            full_since: None,
        }
    }

    /// Takes settings from `file` too, now and whenever it changes.
    pub(crate) fn listening(mut self, file: PathBuf) -> Self {
        self.file = Some((file, None));
        self
    }

    /// The machine's clock and `card`.
    pub(crate) fn clock(mut card: impl FnMut() -> Option<CardReading> + 'a) -> Look<'a> {
        let began = Instant::now();
        Box::new(move || Sight { card: card(), now: ZonedDateTime::now(), elapsed: began.elapsed() })
    }

    /// What to do now, and the change of pace where there is one to tell.
    ///
    /// # Errors
    /// Settings that came while the run is on cannot be read; those before them hold.
    pub(crate) fn ask(&mut self) -> Result<(Action, Option<Change>), Error> {
        self.listen()?;
        let sight = (self.look)();
        let now = sight.elapsed;
        let worked = self.working_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        let action = govern(&self.config, &sight, worked, &mut self.state);
        self.working_since = match &action {
            Action::Go => Some(now),
            Action::Slow { rest, .. } => Some(now + *rest),
            // The time of a pause is no work.
            Action::Pause { .. } => None,
        };
        Ok((action.clone(), self.change(&action, now)))
    }

    fn listen(&mut self) -> Result<(), Error> {
        let Some((path, seen)) = &mut self.file else { return Ok(()) };
        let written = std::fs::metadata(&*path).and_then(|file| file.modified()).ok();
        if written.is_none() || written == *seen {
            return Ok(());
        }
        *seen = written;
        if let Some(config) = read(path)? {
            self.config = config;
        }
        Ok(())
    }

    fn change(&mut self, action: &Action, now: Duration) -> Option<Change> {
        let change = Change::of(action);
        let full_since = if change.pace == Pace::Full { self.full_since.or(Some(now)) } else { None };
        self.full_since = full_since;
        let lasts = full_since.is_some_and(|since| now.saturating_sub(since) >= FULL_SPEED_FOR);
        if (change.pace, change.code) == self.said
            || (change.pace == Pace::Full && self.said.0 == Pace::Slowed && !lasts)
        {
            return None;
        }
        self.said = (change.pace, change.code);
        Some(change)
    }
}

/// Settings in `path`; `None` where there are none.
pub(crate) fn read(path: &std::path::Path) -> Result<Option<GovernorConfig>, Error> {
    let content = match std::fs::read(path) {
        Ok(content) => content,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(path, e)),
    };
    let config = serde_json::from_slice(&content)
        .map_err(|e| Error::Damaged { path: path.into(), reason: e.to_string() })
        .and_then(|config| check(&config).map(|()| config))?;
    Ok(Some(config))
}

/// Refuses settings that make no sense.
pub(crate) fn check(config: &GovernorConfig) -> Result<(), Error> {
    let refuse = |field, value: f64, reason: &str| {
        Err(Error::Config { field, value: format::number(value, 1), reason: reason.into() })
    };
    let limit_c = config.temperature_limit_c;
    if limit_c != 0.0 && !(40.0..=110.0).contains(&limit_c) {
        return refuse("governor.temperature_limit_c", limit_c, "from 40 to 110 °C, or 0 for none");
    }
    if let Some(watts) = config.power_limit_w.filter(|watts| !(*watts > 0.0 && watts.is_finite())) {
        return refuse("governor.power_limit_w", watts, "above 0 W");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;
    use jiff::tz::TimeZone;

    use super::*;

    /// Central Europe: clocks go forward at 2 in the night of 29 March 2026 and back at 3 in that of 25 October.
    fn berlin() -> TimeZone {
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
    }

    fn moment(month: i8, day: i8, hour: i8, minute: i8) -> ZonedDateTime {
        date(2026, month, day).at(hour, minute, 0, 0).to_zoned_datetime(berlin()).unwrap()
    }

    fn hours(text: &str) -> QuietHours {
        text.parse().unwrap()
    }

    /// Actions on readings that come one a second, each after a second of work.
    fn actions(config: &GovernorConfig, readings: impl IntoIterator<Item = CardReading>) -> Vec<Action> {
        let mut state = State::default();
        let sights = readings.into_iter().enumerate().map(|(i, card)| Sight {
            card: Some(card),
            now: moment(5, 5, 12, 0),
            elapsed: Duration::from_secs(i as u64),
        });
        sights.map(|sight| govern(config, &sight, Duration::from_secs(1), &mut state)).collect()
    }

    fn pauses(actions: &[Action]) -> Vec<bool> {
        actions.iter().map(|action| matches!(action, Action::Pause { .. })).collect()
    }

    fn n_changes(values: &[bool]) -> usize {
        values.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }

    fn hot(temperature_c: f64) -> CardReading {
        CardReading { temperature_c: Some(temperature_c), ..CardReading::default() }
    }

    #[test]
    fn quiet_hours_across_midnight_end_in_the_morning() {
        let night = hours("22:00-07:00");
        assert_eq!(quiet_until(night, &moment(5, 5, 21, 59)), None);
        assert_eq!(quiet_until(night, &moment(5, 5, 22, 0)), Some(moment(5, 6, 7, 0)));
        assert_eq!(quiet_until(night, &moment(5, 6, 0, 30)), Some(moment(5, 6, 7, 0)));
        assert_eq!(quiet_until(night, &moment(5, 6, 7, 0)), None);
        let noon = hours("12:00-13:30");
        assert_eq!(quiet_until(noon, &moment(5, 5, 13, 29)), Some(moment(5, 5, 13, 30)));
        assert_eq!(quiet_until(noon, &moment(5, 5, 11, 0)), None);
    }

    #[test]
    fn quiet_hours_hold_through_the_night_in_which_the_clock_is_set() {
        // Forward: the night has one hour less, and 2:30 is no time of it.
        let night = hours("22:00-07:00");
        let until = quiet_until(night, &moment(3, 28, 23, 0)).unwrap();
        assert_eq!(until.duration_since(&moment(3, 28, 23, 0)).as_hours(), 7);
        let ends_in_the_gap = quiet_until(hours("22:00-02:30"), &moment(3, 29, 1, 59)).unwrap();
        assert_eq!((ends_in_the_gap.hour(), ends_in_the_gap.minute()), (3, 30));
        // Back: 2:10 comes twice. The window ends at the first 2:30 and is not entered again at the second 2:10.
        let short = hours("22:00-02:30");
        let first = moment(10, 25, 2, 10);
        let second = first.checked_add(jiff::SignedDuration::from_hours(1)).unwrap();
        assert_eq!((second.hour(), second.minute()), (2, 10));
        assert_eq!(quiet_until(short, &first).unwrap().duration_since(&first).as_mins(), 20);
        assert_eq!(quiet_until(short, &second), None);
    }

    #[test]
    fn quiet_hours_are_read_and_written_as_people_write_them() {
        assert_eq!(String::from(hours("22:00-7:05")), "22:00-07:05");
        for wrong in ["22-7", "24:00-07:00", "22:60-07:00", "07:00-07:00", "x", "22:00", "-1:00-02:00"] {
            assert!(wrong.parse::<QuietHours>().is_err(), "{wrong}");
        }
        let config = GovernorConfig { quiet_hours: Some(hours("22:00-07:00")), ..GovernorConfig::default() };
        let text = toml::to_string(&config).unwrap();
        assert!(text.contains("quiet_hours = \"22:00-07:00\""), "{text}");
        assert_eq!(toml::from_str::<GovernorConfig>(&text).unwrap(), config);
    }

    #[test]
    fn a_temperature_that_wavers_around_the_limit_pauses_once_and_goes_on_once() {
        let config = GovernorConfig { temperature_limit_c: 80.0, ..GovernorConfig::default() };
        // Up past 85, wavering there, then down past 75, wavering there.
        let up = (0..60).map(|i| 84.0 + if i % 2 == 0 { 1.5 } else { 0.0 });
        let down = (0..60).map(|i| 76.0 - if i % 2 == 0 { 1.5 } else { 0.0 });
        let paused = pauses(&actions(&config, [70.0].into_iter().chain(up).chain(down).map(hot)));
        assert_eq!(n_changes(&paused), 2, "{paused:?}");
        assert!(!paused[0] && paused[30] && !paused[120]);
    }

    #[test]
    fn a_hot_card_rests_more_and_more_and_a_cool_one_not_at_all() {
        let config = GovernorConfig { temperature_limit_c: 80.0, ..GovernorConfig::default() };
        let rests = |actions: &[Action]| -> Vec<f64> {
            let rest = |action: &Action| match action {
                Action::Slow { rest, .. } => rest.as_secs_f64(),
                _ => 0.0,
            };
            actions.iter().map(rest).collect()
        };
        let hot_then_cool = (0..20).map(|_| 82.0).chain((0..100).map(|_| 70.0)).map(hot);
        let rests = rests(&actions(&config, hot_then_cool));
        // Ten adjustments of five hundredths: half of the time is rest, as long as the work.
        assert!((rests[19] - 1.0).abs() < 1e-9, "{}", rests[19]);
        assert!(rests[..20].is_sorted());
        assert_eq!(rests[119], 0.0);
        let off = GovernorConfig { temperature_limit_c: 0.0, ..config };
        assert!(actions(&off, (0..50).map(|_| hot(120.0))).iter().all(|action| *action == Action::Go));
    }

    #[test]
    fn power_is_held_at_its_limit_on_average() {
        let config = GovernorConfig { power_limit_w: Some(200.0), ..GovernorConfig::default() };
        // A card that draws 320 W at work and 80 W at rest, read as the driver does: on average.
        let (mut state, mut share, mut late) = (State::default(), 0.0, Vec::new());
        for second in 0..600 {
            let power_w = 320.0 * (1.0 - share) + 80.0 * share;
            let sight = Sight {
                card: Some(CardReading { power_w: Some(power_w), ..CardReading::default() }),
                now: moment(5, 5, 12, 0),
                elapsed: Duration::from_secs(second),
            };
            share = match govern(&config, &sight, Duration::from_secs(1), &mut state) {
                Action::Slow { rest, .. } => rest.as_secs_f64() / (1.0 + rest.as_secs_f64()),
                _ => 0.0,
            };
            if second > 120 {
                late.push(power_w);
            }
        }
        let mean = late.iter().sum::<f64>() / late.len() as f64;
        assert!((180.0..=204.0).contains(&mean), "{mean}");
    }

    #[test]
    fn another_program_is_yielded_to_until_it_gives_the_card_back() {
        let config = GovernorConfig { yield_to_others: true, yield_bytes: 1 << 30, ..GovernorConfig::default() };
        let others = |gib: f64, utilisation: f64| CardReading {
            others_bytes: Some((gib * f64::from(1 << 30)) as u64),
            utilisation: Some(utilisation),
            ..CardReading::default()
        };
        let phases = [(60, 0.5, 1.0), (3, 3.0, 1.0), (20, 0.5, 1.0), (60, 4.0, 0.9), (60, 0.6, 0.0)];
        let readings = phases.iter().flat_map(|&(n, gib, used)| (0..n).map(move |_| others(gib, used)));
        let paused = pauses(&actions(&config, readings));
        assert!(!paused[..83].iter().any(|&p| p), "three seconds are no wish");
        assert_eq!(n_changes(&paused), 2);
        assert!(paused[100] && paused[142] && !paused[202]);
        // One that keeps the memory and computes nothing is waited for two minutes, and then counted as there.
        let keeps = (0..10).map(|_| others(0.5, 1.0)).chain((0..400).map(|_| others(3.0, 0.02)));
        let paused = pauses(&actions(&config, keeps));
        assert_eq!(n_changes(&paused), 2);
        assert!(paused[100] && !paused[200] && !paused[409]);
        let off = GovernorConfig { yield_to_others: false, ..config };
        assert!(!pauses(&actions(&off, (0..50).map(|i| others(i as f64, 0.9)))).contains(&true));
    }

    #[test]
    fn the_log_hears_of_a_change_once_and_in_words() {
        let config = GovernorConfig { quiet_hours: Some(hours("22:00-07:00")), ..GovernorConfig::default() };
        // Half an hour a look, from 21:00; the card wavers around its limit the while.
        let mut n = 0;
        let look = move || {
            n += 1;
            let elapsed = Duration::from_secs(1800 * n);
            let now = moment(5, 5, 20, 30).checked_add(jiff::SignedDuration::try_from(elapsed).unwrap()).unwrap();
            Sight { card: Some(hot(if n % 2 == 0 { 87.5 } else { 86.0 })), now, elapsed }
        };
        let mut governor = Governor::new(config, Box::new(look));
        let mut said = Vec::new();
        for _ in 0..24 {
            said.extend(governor.ask().unwrap().1);
        }
        let paces: Vec<Pace> = said.iter().map(|change| change.pace).collect();
        assert_eq!(paces, [Pace::Slowed, Pace::Paused, Pace::Slowed], "{said:?}");
        assert_eq!(said[1].message, "Paused for the quiet hours; it goes on at 07:00.");
        assert_eq!(said[1].until_ms, Some(moment(5, 6, 7, 0).timestamp().as_millisecond() as u64));
        assert_eq!(said[0].code, "governor.heat");
    }

    #[test]
    fn settings_that_come_during_a_run_are_obeyed_and_wrong_ones_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        let look = || Sight { card: None, now: moment(5, 5, 23, 0), elapsed: Duration::ZERO };
        let mut governor = Governor::new(GovernorConfig::default(), Box::new(look)).listening(file.clone());
        assert_eq!(governor.ask().unwrap().0, Action::Go);
        let config = GovernorConfig { quiet_hours: Some(hours("22:00-07:00")), ..GovernorConfig::default() };
        std::fs::write(&file, serde_json::to_vec(&config).unwrap()).unwrap();
        assert!(matches!(governor.ask().unwrap().0, Action::Pause { .. }));
        // A clock of coarse file times must see the second writing too.
        let later = SystemTime::now() + Duration::from_secs(5);
        std::fs::write(&file, b"{\"temperature_limit_c\": 900}").unwrap();
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(later).unwrap();
        assert!(governor.ask().unwrap_err().to_string().contains("900"));
        assert!(matches!(governor.ask().unwrap().0, Action::Pause { .. }), "what held before holds");
    }
}
