//! One chart, drawn with plotters into SVG for the page or pixels for a picture.

use std::sync::OnceLock;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use super::Error;

/// Line colours of the light look, told apart under the common kinds of colour blindness.
pub(super) mod colour {
    use plotters::style::RGBColor;

    pub(in super::super) const MAIN: RGBColor = RGBColor(0xb8, 0x43, 0x0f);
    pub(in super::super) const RAW: RGBColor = RGBColor(0xa9, 0xa3, 0x9d);
    pub(in super::super) const EVALUATION: RGBColor = RGBColor(0x1d, 0x5f, 0xa8);
    pub(in super::super) const THIRD: RGBColor = RGBColor(0x15, 0x91, 0x7a);
    pub(in super::super) const LIMIT: RGBColor = RGBColor(0x1a, 0x1f, 0x24);
    pub(super) const GRID: RGBColor = RGBColor(0xe6, 0xe9, 0xeb);
    pub(super) const AXIS: RGBColor = RGBColor(0x85, 0x8d, 0x94);
    pub(super) const TEXT: RGBColor = RGBColor(0x4d, 0x56, 0x5e);
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stroke {
    Thin,
    Thick,
    /// With a dot at every point.
    Dots,
    Dashed,
}

/// A labelled line.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) label: String,
    pub(super) colour: RGBColor,
    pub(super) stroke: Stroke,
    pub(super) points: Vec<(f64, f64)>,
}

/// A chart against the step.
pub(super) struct Chart {
    pub(super) title: &'static str,
    pub(super) lines: Vec<Line>,
    /// Where the lines are named; where they seldom are.
    pub(super) legend: SeriesLabelPosition,
    /// The axis begins at 0 even where no value is near it.
    pub(super) from_zero: bool,
    pub(super) y_label: fn(f64) -> String,
}

const FONT: &str = "dejavu-sans-latin";

/// The labels' font comes with the program: a machine without any font draws the same charts.
fn font_ready() -> bool {
    static READY: OnceLock<bool> = OnceLock::new();
    *READY.get_or_init(|| register_font(FONT, FontStyle::Normal, include_bytes!("dejavu-sans-latin.ttf")).is_ok())
}

impl Chart {
    /// The chart as an SVG element of `width` by `height` CSS pixels.
    pub(super) fn svg(&self, width: u32, height: u32) -> Result<String, Error> {
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
            self.draw(&root, 1.0)?;
            root.present().map_err(drawing)?;
        }
        Ok(svg)
    }

    /// Draws into `area`; `scale` multiplies text and strokes, for pictures with more pixels.
    pub(super) fn draw<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>, scale: f64) -> Result<(), Error> {
        if !font_ready() {
            return Err(Error::Drawing { reason: "the built-in font cannot be read".into() });
        }
        let px = |n: f64| (n * scale).round() as u32;
        let text = |size: f64| (FONT, size * scale).into_font().color(&colour::TEXT);
        area.fill(&WHITE).map_err(drawing)?;
        let (x, y) = self.ranges();
        let mut chart = ChartBuilder::on(area)
            .margin(px(10.0))
            .margin_right(px(18.0))
            .caption(self.title, (FONT, 15.0 * scale).into_font().color(&colour::LIMIT))
            .x_label_area_size(px(26.0))
            .y_label_area_size(px(62.0))
            .build_cartesian_2d(x, y)
            .map_err(drawing)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(colour::GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(colour::AXIS)
            .x_labels(8)
            .y_labels(5)
            .label_style(text(11.0))
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| (self.y_label)(*y))
            .draw()
            .map_err(drawing)?;
        for line in &self.lines {
            let width = px(if line.stroke == Stroke::Thin { 1.0 } else { 2.0 });
            let style = line.colour.stroke_width(width);
            let finite: Vec<&[(f64, f64)]> =
                line.points.split(|p| !p.1.is_finite()).filter(|part| !part.is_empty()).collect();
            // Gaps stay gaps.
            for part in &finite {
                if line.stroke == Stroke::Dashed {
                    let dashes = DashedLineSeries::new(part.iter().copied(), px(6.0), px(4.0), style);
                    chart.draw_series(dashes).map_err(drawing)?;
                } else {
                    chart.draw_series(LineSeries::new(part.iter().copied(), style)).map_err(drawing)?;
                }
                if line.stroke == Stroke::Dots || part.len() == 1 {
                    let dots = part.iter().map(|&p| Circle::new(p, px(3.0), line.colour.filled()));
                    chart.draw_series(dots).map_err(drawing)?;
                }
            }
            // An empty line with a label only, so that the legend shows each line once.
            let (length, half) = (px(18.0) as i32, px(1.0).max(1) as i32);
            let colour = line.colour;
            chart
                .draw_series(std::iter::empty::<Circle<(f64, f64), u32>>())
                .map_err(drawing)?
                .label(line.label.clone())
                .legend(move |(x, y)| Rectangle::new([(x, y - half), (x + length, y + half)], colour.filled()));
        }
        if self.lines.len() > 1 {
            chart
                .configure_series_labels()
                .position(self.legend.clone())
                .legend_area_size(px(24.0))
                .margin(px(6.0))
                .background_style(WHITE.mix(0.85))
                .label_font(text(11.0))
                .draw()
                .map_err(drawing)?;
        }
        Ok(())
    }

    /// Ranges of both axes, never empty.
    fn ranges(&self) -> (std::ops::Range<f64>, std::ops::Range<f64>) {
        let points = || self.lines.iter().flat_map(|l| &l.points).filter(|p| p.1.is_finite());
        let last = points().map(|p| p.0).fold(1.0, f64::max);
        let low = points().map(|p| p.1).fold(f64::INFINITY, f64::min);
        let high = points().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        let low = if self.from_zero { low.min(0.0) } else { low };
        let room = if high > low { 0.06 * (high - low) } else { 0.5 * high.abs().max(1e-9) };
        let from = if self.from_zero && low == 0.0 { 0.0 } else { low - room };
        (0.0..last, from..high + room)
    }
}

/// The backends' errors name each their own type; of all of them only the words matter.
fn drawing<E: std::error::Error + Send + Sync>(e: DrawingAreaErrorKind<E>) -> Error {
    Error::Drawing { reason: e.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart {
        let line = |stroke, points| Line { label: "loss & more".into(), colour: colour::MAIN, stroke, points };
        Chart {
            title: "Loss",
            lines: vec![line(Stroke::Thick, points.clone()), line(Stroke::Dashed, points)],
            legend: SeriesLabelPosition::UpperRight,
            from_zero: false,
            y_label: |y| format!("{y:.2}"),
        }
    }

    #[test]
    fn a_chart_is_one_svg_element_with_escaped_labels() {
        let svg = chart(vec![(1.0, 2.0), (2.0, 1.5), (3.0, 1.0)]).svg(700, 260).unwrap();
        assert_eq!(svg.matches("<svg").count(), 1);
        assert!(svg.contains("loss &amp; more") && !svg.contains("loss & more"), "{svg}");
        assert!(svg.contains("#B8430F"));
    }

    #[test]
    fn empty_single_constant_and_broken_lines_are_drawn() {
        chart(vec![]).svg(700, 260).unwrap();
        chart(vec![(1.0, 2.0)]).svg(700, 260).unwrap();
        chart(vec![(1.0, 0.0), (2.0, 0.0)]).svg(700, 260).unwrap();
        let svg = chart(vec![(1.0, 2.0), (2.0, f64::NAN), (3.0, f64::INFINITY), (4.0, 1.0)]).svg(700, 260).unwrap();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
