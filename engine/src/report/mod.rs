//! The report of a run: one HTML page that needs nothing beside itself, with its charts inside, and the same charts as a
//! picture.

mod chart;
mod page;
mod series;

use std::fs;

use plotters::prelude::{BitMapBackend, IntoDrawingArea, SeriesLabelPosition, WHITE};

use self::chart::{Chart, Line, Stroke, colour};
use self::series::Series;
use crate::error::Explain;
use crate::format;
use crate::run::{self, RunFolder};

/// Why a report could not be made.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say what the fields are
pub enum Error {
    #[error("a chart cannot be drawn: {reason}")]
    Drawing { reason: String },
    #[error("run {id} has no steps yet, so there is nothing to report")]
    NoSteps { id: String },
    #[error(transparent)]
    Run(#[from] run::Error),
}

impl Explain for Error {
    fn code(&self) -> &'static str {
        match self {
            Error::Drawing { .. } => "report.drawing",
            Error::NoSteps { .. } => "report.no_steps",
            Error::Run(e) => e.code(),
        }
    }

    fn next_step(&self) -> String {
        match self {
            Error::Drawing { .. } => "This is a fault in Hearth. Report it with the run's events.jsonl.".into(),
            Error::NoSteps { id } => format!("Follow the run with `hearth watch {id}` and report on it later."),
            Error::Run(e) => e.next_step(),
        }
    }
}

/// The report of a run as an HTML page.
///
/// # Errors
/// The run cannot be read or has no steps.
pub fn html(folder: &RunFolder) -> Result<String, Error> {
    let history = folder.history()?;
    let series = Series::of(&history);
    if series.loss.is_empty() {
        return Err(Error::NoSteps { id: folder.id().into() });
    }
    let charts = charts(series).iter().map(|chart| chart.svg(840, 280)).collect::<Result<Vec<_>, _>>()?;
    Ok(page::page(&folder.summary()?, &folder.record()?, &folder.plan()?, &history, &charts))
}

/// Width and height of the picture, in pixels; its text is twice as large as on the page.
const PICTURE: (u32, u32) = (1680, 1680);

/// The charts of a run as a PNG picture.
///
/// # Errors
/// The run cannot be read or has no steps.
pub fn png(folder: &RunFolder) -> Result<Vec<u8>, Error> {
    let series = Series::of(&folder.history()?);
    if series.loss.is_empty() {
        return Err(Error::NoSteps { id: folder.id().into() });
    }
    let charts = charts(series);
    let drawing = |reason: String| Error::Drawing { reason };
    // plotters writes pictures to a path only.
    let scratch = tempfile::tempdir().map_err(|e| drawing(e.to_string()))?;
    let path = scratch.path().join("charts.png");
    {
        let root = BitMapBackend::new(&path, PICTURE).into_drawing_area();
        root.fill(&WHITE).map_err(|e| drawing(e.to_string()))?;
        for (area, chart) in root.split_evenly((charts.len(), 1)).iter().zip(&charts) {
            chart.draw(area, 2.0)?;
        }
        root.present().map_err(|e| drawing(e.to_string()))?;
    }
    fs::read(&path).map_err(|e| drawing(e.to_string()))
}

/// Bytes of one.
const GIB: f64 = (1u64 << 30) as f64;

fn charts(series: Series) -> Vec<Chart> {
    let line = |label: &str, colour, stroke, points| Line { label: label.into(), colour, stroke, points };
    let mut loss = vec![
        line("raw", colour::RAW, Stroke::Thin, series.loss),
        line(&format!("smoothed ({})", series::SMOOTHING), colour::MAIN, Stroke::Thick, series.smoothed),
    ];
    if !series.evaluation.is_empty() {
        loss.push(line("evaluation", colour::EVALUATION, Stroke::Dots, series.evaluation));
    }
    let last = series.memory.last().map_or(1.0, |p| p.0);
    let highest = series.memory.iter().map(|p| p.1).fold(series.planned_bytes, f64::max);
    let (unit, title) = if highest >= GIB { (GIB, "Memory, GiB") } else { (GIB / 1024.0, "Memory, MiB") };
    let used = series.memory.iter().map(|&(x, bytes)| (x, bytes / unit)).collect();
    let planned = vec![(0.0, series.planned_bytes / unit), (last, series.planned_bytes / unit)];
    vec![
        Chart {
            title: "Loss, per learned token",
            lines: loss,
            legend: SeriesLabelPosition::UpperRight,
            from_zero: false,
            y_label: |y| format::number(y, 2),
        },
        Chart {
            title: "Learning rate",
            lines: vec![line("learning rate", colour::THIRD, Stroke::Thick, series.rate)],
            legend: SeriesLabelPosition::UpperRight,
            from_zero: true,
            y_label: format::rate,
        },
        Chart {
            title,
            lines: vec![
                line("used", colour::EVALUATION, Stroke::Thick, used),
                line("planned", colour::LIMIT, Stroke::Dashed, planned),
            ],
            // Above is the planned line, and just below it what is used.
            legend: SeriesLabelPosition::LowerRight,
            from_zero: true,
            y_label: |y| format::plain(y, 2),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(n: usize) -> Series {
        let points = |f: fn(f64) -> f64| (1..=n).map(|i| (i as f64, f(i as f64))).collect::<Vec<_>>();
        Series {
            loss: points(|x| 3.0 / x.sqrt() + 0.2 * (x * 1.7).sin()),
            smoothed: points(|x| 3.0 / x.sqrt()),
            evaluation: points(|x| 3.2 / x.sqrt()).into_iter().step_by(20).collect(),
            rate: points(|x| 2e-4 * (1.0 - x / 250.0)),
            memory: points(|_| 1.2e9),
            planned_bytes: 1.25e9,
        }
    }

    #[test]
    fn the_three_charts_are_labelled_with_units() {
        let svgs: Vec<String> = charts(series(200)).iter().map(|c| c.svg(840, 280).unwrap()).collect();
        assert!(svgs[0].contains("smoothed (0.9)") && svgs[0].contains("evaluation"));
        assert!(svgs[1].contains("e-4"));
        assert!(svgs[2].contains("GiB") && svgs[2].contains("planned"));
    }
}
