//! `--plot`: medians. A test with several sizes is a line over them, other tests are bars; each unit has its own
//! drawing. Earlier runs (`--beside`) have lines and bars of their own, with the names of their files.

use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use super::json::{COMMIT, Point, VERSION, now};
use super::table::number;
use crate::perf::error::{Error, Result};
use symrail_core::Escaped;

/// In pixels: all drawings, one over sizes, the names beside it, a bar, and the text above.
const WIDTH: u32 = 1100;
const HEIGHT: u32 = 520;
const LEGEND: i32 = 220;
const BAR: u32 = 26;
const HEAD: u32 = 64;
/// The most powers of two that are labelled below a drawing.
const TICKS: usize = 13;

/// The format that a file's name selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Svg,
    Png,
}

impl Format {
    pub fn of(path: &Path) -> Result<Format> {
        match path.extension().and_then(|end| end.to_str()).map(str::to_ascii_lowercase).as_deref() {
            Some("svg") => Ok(Format::Svg),
            Some("png") => Ok(Format::Png),
            _ => Err(Error::Arguments(format!(
                "--plot {}: plots are SVG or PNG; use a name that ends with .svg or .png",
                Escaped(&path.to_string_lossy())
            ))),
        }
    }
}

/// The drawing of a unit.
struct Panel<'a> {
    unit: &'a str,
    /// Tests with several sizes.
    lines: Vec<Vec<&'a Point>>,
    /// Other tests.
    bars: Vec<&'a Point>,
}

impl<'a> Panel<'a> {
    fn new(unit: &'a str, points: &'a [Point]) -> Panel<'a> {
        let mut panel = Panel { unit, lines: Vec::new(), bars: Vec::new() };
        let of_unit: Vec<&Point> = points.iter().filter(|point| point.unit == unit).collect();
        for of_test in of_unit.chunk_by(|a, b| a.test == b.test && a.run == b.run) {
            match of_test {
                [alone] => panel.bars.push(alone),
                several => panel.lines.push(several.to_vec()),
            }
        }
        // Runs of a test are neighbours, this one first.
        panel.lines.sort_by(|a, b| a[0].test.cmp(&b[0].test));
        panel.bars.sort_by(|a, b| a.test.cmp(&b.test));
        panel
    }

    fn lines_height(&self) -> u32 {
        let names = 60 + 20 * self.lines.len() as u32;
        if self.lines.is_empty() { 0 } else { HEIGHT.max(names) }
    }

    fn bars_height(&self) -> u32 {
        if self.bars.is_empty() { 0 } else { BAR * (self.bars.len() as u32 + 2) }
    }
}

/// A file's content.
pub(super) fn draw(points: &[Point], about: &str, format: Format) -> Result<Vec<u8>> {
    register_font("sans-serif", FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT)
        .map_err(|_| failed("the font cannot be read"))?;
    let mut units: Vec<&str> = points.iter().map(|point| point.unit.as_str()).collect();
    units.sort_unstable();
    units.dedup();
    let panels: Vec<Panel<'_>> = units.into_iter().map(|unit| Panel::new(unit, points)).collect();
    let height = HEAD + panels.iter().map(|panel| panel.lines_height() + panel.bars_height()).sum::<u32>();
    match format {
        Format::Svg => {
            let mut text = String::new();
            all(&SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area(), &panels, about)?;
            Ok(text.into_bytes())
        }
        Format::Png => {
            let mut pixels = vec![0; (WIDTH * height * 3) as usize];
            all(&BitMapBackend::with_buffer(&mut pixels, (WIDTH, height)).into_drawing_area(), &panels, about)?;
            png(&pixels, height).map_err(failed)
        }
    }
}

fn png(pixels: &[u8], height: u32) -> std::result::Result<Vec<u8>, png::EncodingError> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, WIDTH, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header()?.write_image_data(pixels)?;
    Ok(file)
}

fn all<D: DrawingBackend>(root: &DrawingArea<D, Shift>, panels: &[Panel<'_>], about: &str) -> Result<()> {
    root.fill(&WHITE).map_err(failed)?;
    let (head, mut rest) = root.split_vertically(HEAD);
    let first = format!("medians, {}, symrail {VERSION} ({COMMIT})", now());
    text(&head, &first, (16, 12), 18)?;
    text(&head, about, (16, 38), 14)?;
    for panel in panels {
        let (lines, below) = rest.split_vertically(panel.lines_height());
        let (bars, below) = below.split_vertically(panel.bars_height());
        if !panel.lines.is_empty() {
            over_sizes(&lines, panel)?;
        }
        if !panel.bars.is_empty() {
            side_by_side(&bars, panel)?;
        }
        rest = below;
    }
    root.present().map_err(failed)
}

fn text<D: DrawingBackend>(area: &DrawingArea<D, Shift>, text: &str, at: (i32, i32), size: u32) -> Result<()> {
    area.draw(&Text::new(text.to_owned(), at, ("sans-serif", size).into_font())).map_err(failed)
}

/// An axis of powers of two.
struct Powers {
    range: Range<f64>,
    ticks: Vec<f64>,
}

impl Ranged for Powers {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, power: &f64, (from, to): (i32, i32)) -> i32 {
        let part = (power - self.range.start) / (self.range.end - self.range.start);
        from + (part * f64::from(to - from)).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, hint: H) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Powers {
    fn format(power: &f64) -> String {
        bytes(*power)
    }
}

/// Lines over powers of two, with their names on the right.
fn over_sizes<D: DrawingBackend>(area: &DrawingArea<D, Shift>, panel: &Panel<'_>) -> Result<()> {
    let (area, names) = area.split_horizontally(WIDTH as i32 - LEGEND);
    let points = || panel.lines.iter().flatten();
    let powers = || points().map(|point| (point.size as f64).log2());
    let (smallest, largest) = (powers().fold(f64::MAX, f64::min), powers().fold(0.0, f64::max));
    let lowest = points().map(|point| point.p50).fold(f64::MAX, f64::min).max(1e-6);
    let highest = points().map(|point| point.p50).fold(0.0, f64::max).max(lowest);
    let whole: Vec<i32> = (smallest.ceil() as i32..=largest.floor() as i32).collect();
    let ticks = whole.iter().step_by(whole.len().div_ceil(TICKS).max(1)).map(|power| f64::from(*power)).collect();
    let sizes = Powers { range: smallest - 0.25..largest + 0.25, ticks };
    let mut builder = ChartBuilder::on(&area);
    builder.margin(16).x_label_area_size(44).y_label_area_size(84);
    if highest / lowest > 50.0 {
        let chart = builder.build_cartesian_2d(sizes, (lowest * 0.8..highest * 1.25).log_scale());
        lines(chart.map_err(failed)?, panel)?;
    } else {
        let chart = builder.build_cartesian_2d(sizes, 0.0..highest * 1.1);
        lines(chart.map_err(failed)?, panel)?;
    }
    for (number, line) in panel.lines.iter().enumerate() {
        let y = 30 + 20 * number as i32;
        names
            .draw(&PathElement::new(vec![(0, y), (20, y)], Palette99::pick(number).stroke_width(2)))
            .map_err(failed)?;
        text(&names, &name(line[0]), (28, y - 7), 14)?;
    }
    Ok(())
}

fn lines<D: DrawingBackend, X, Y>(mut chart: ChartContext<'_, D, Cartesian2d<X, Y>>, panel: &Panel<'_>) -> Result<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart.configure_mesh().x_desc("size (B)").y_desc(format!("median ({})", panel.unit)).draw().map_err(failed)?;
    for (number, line) in panel.lines.iter().enumerate() {
        let points: Vec<(f64, f64)> = line.iter().map(|point| ((point.size as f64).log2(), point.p50)).collect();
        let line = LineSeries::new(points, Palette99::pick(number).stroke_width(2)).point_size(3);
        chart.draw_series(line).map_err(failed)?;
    }
    Ok(())
}

/// A bar for each test, with its name in front and its figure behind it.
fn side_by_side<D: DrawingBackend>(area: &DrawingArea<D, Shift>, panel: &Panel<'_>) -> Result<()> {
    text(area, &format!("median ({})", panel.unit), (16, 6), 14)?;
    let largest = panel.bars.iter().map(|point| point.p50).fold(f64::MIN_POSITIVE, f64::max);
    let (left, room) = (LEGEND, f64::from(WIDTH as i32 - 2 * LEGEND));
    for (number, point) in panel.bars.iter().enumerate() {
        let y = BAR as i32 * (number as i32 + 1) + 4;
        let right = left + (point.p50 / largest * room) as i32;
        let bar = Rectangle::new([(left, y), (right, y + BAR as i32 - 8)], Palette99::pick(number).filled());
        area.draw(&bar).map_err(failed)?;
        let size = if point.size == 0 { String::new() } else { format!(", {} B", point.size) };
        text(area, &format!("{}{size}", name(point)), (16, y + 2), 14)?;
        text(area, &self::number(point.p50), (right + 8, y + 2), 14)?;
    }
    Ok(())
}

/// A test's name, with that of its run if it is an earlier one.
fn name(point: &Point) -> String {
    point.run.as_ref().map_or_else(|| point.test.clone(), |run| format!("{} ({})", point.test, Escaped(run)))
}

/// Two to a power, with a binary unit.
fn bytes(power: f64) -> String {
    let power = power as u32;
    let unit = ["", "K", "M", "G", "T"].get(power as usize / 10).copied().unwrap_or_default();
    format!("{}{unit}", 1u32 << (power % 10))
}

fn failed(reason: impl std::fmt::Display) -> Error {
    Error::System { what: "drawing the plot".into(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_are_named_as_users_write_them() {
        assert_eq!(
            [0, 9, 10, 16, 22, 30, 40].map(|power| bytes(f64::from(power))),
            ["1", "512", "1K", "64K", "4M", "1G", "1T"]
        );
    }
}
