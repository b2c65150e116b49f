//! The lines of a run's charts, from its events.

use crate::event::TrainEvent;
use crate::run::History;

/// Weight of the past in the smoothed loss.
pub(super) const SMOOTHING: f64 = 0.9;
/// Buckets a line is reduced to where it has more points than pixels.
const BUCKETS: usize = 600;

/// Points of every chart; x is the step.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Series {
    pub(super) loss: Vec<(f64, f64)>,
    pub(super) smoothed: Vec<(f64, f64)>,
    pub(super) evaluation: Vec<(f64, f64)>,
    pub(super) rate: Vec<(f64, f64)>,
    /// Bytes.
    pub(super) memory: Vec<(f64, f64)>,
    pub(super) planned_bytes: f64,
}

impl Series {
    pub(super) fn of(history: &History) -> Self {
        let mut series = Self::default();
        for line in history.lines() {
            match line.event {
                TrainEvent::Step { step, loss, learning_rate, memory, .. } => {
                    let x = step as f64;
                    series.loss.push((x, loss));
                    series.rate.push((x, learning_rate));
                    series.memory.push((x, memory.used_bytes as f64));
                    series.planned_bytes = memory.planned_bytes as f64;
                }
                TrainEvent::Evaluation { step, loss, .. } => series.evaluation.push((step as f64, loss)),
                _ => {}
            }
        }
        series.smoothed = decimated(smoothed(&series.loss, SMOOTHING));
        for line in [&mut series.loss, &mut series.rate, &mut series.memory] {
            *line = decimated(std::mem::take(line));
        }
        series
    }
}

/// Exponential moving average, corrected for its start (the first value is the first point, not a share of it).
fn smoothed(points: &[(f64, f64)], weight: f64) -> Vec<(f64, f64)> {
    let (mut sum, mut norm) = (0.0, 0.0);
    points
        .iter()
        .map(|&(x, y)| {
            sum = weight * sum + (1.0 - weight) * y;
            norm = weight * norm + (1.0 - weight);
            (x, sum / norm)
        })
        .collect()
}

/// Lowest and highest point of every bucket, in order: spikes stay visible.
fn decimated(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    if points.len() <= 2 * BUCKETS {
        return points;
    }
    let mut kept = Vec::with_capacity(2 * BUCKETS);
    for bucket in points.chunks(points.len().div_ceil(BUCKETS)) {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let (Some(&low), Some(&high)) = (bucket.iter().min_by(by_value), bucket.iter().max_by(by_value)) else {
            continue;
        };
        let (first, second) = if low.0 <= high.0 { (low, high) } else { (high, low) };
        kept.push(first);
        if second != first {
            kept.push(second);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smoothed_line_starts_at_the_first_value_and_keeps_a_constant() {
        assert_eq!(smoothed(&[(1.0, 5.0)], 0.9), [(1.0, 5.0)]);
        for (_, y) in smoothed(&[(1.0, 2.0), (2.0, 2.0), (3.0, 2.0)], 0.9) {
            assert!((y - 2.0).abs() < 1e-12);
        }
        let step = smoothed(&[(1.0, 1.0), (2.0, 0.0)], 0.9);
        assert!((step[1].1 - 0.09 / 0.19).abs() < 1e-12);
    }

    #[test]
    fn decimation_keeps_spikes_and_order() {
        let mut points: Vec<(f64, f64)> = (0..50_000).map(|i| (i as f64, 1.0)).collect();
        points[31_234].1 = 9.0;
        points[31_300].1 = -9.0;
        let kept = decimated(points);
        assert!(kept.len() <= 2 * BUCKETS);
        assert!(kept.contains(&(31_234.0, 9.0)) && kept.contains(&(31_300.0, -9.0)));
        assert!(kept.is_sorted_by(|a, b| a.0 < b.0));
        let few: Vec<(f64, f64)> = (0..10).map(|i| (i as f64, 1.0)).collect();
        assert_eq!(decimated(few.clone()), few);
    }
}
