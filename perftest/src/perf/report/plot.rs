//! `--plot`: medians over sizes, a line a test; a drawing for each unit.

use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

use super::json::Record;
use crate::perf::error::{Error, Result};

/// Of one drawing, in pixels.
const WIDTH: u32 = 900;
const HEIGHT: u32 = 520;

/// An SVG of all records.
pub(super) fn svg(records: &[Record]) -> Result<String> {
    let mut units: Vec<&str> = records.iter().map(|record| record.unit).collect();
    units.sort_unstable();
    units.dedup();
    let mut text = String::new();
    {
        let size = (WIDTH, HEIGHT * units.len().max(1) as u32);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        for (unit, area) in units.iter().zip(root.split_evenly((units.len().max(1), 1))) {
            let of_unit: Vec<&Record> = records.iter().filter(|record| record.unit == *unit).collect();
            draw(&area, unit, &of_unit)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(area: &Area<'_>, unit: &str, records: &[&Record]) -> Result<()> {
    let smallest = records.iter().map(|record| record.size).min().unwrap_or(1).max(1) as f64;
    let largest = records.iter().map(|record| record.size).max().unwrap_or(1) as f64;
    let lowest = records.iter().map(|record| record.p50).fold(f64::MAX, f64::min).max(1e-6);
    let highest = records.iter().map(|record| record.p50).fold(0.0, f64::max).max(lowest);
    // One size alone would have no width.
    let sizes = (smallest * 0.8)..(largest * 1.25);
    let mut builder = ChartBuilder::on(area);
    builder.margin(16).x_label_area_size(44).y_label_area_size(72);
    if highest / lowest > 50.0 {
        let chart = builder.build_cartesian_2d(sizes.log_scale(), (lowest * 0.8..highest * 1.25).log_scale());
        lines(chart.map_err(failed)?, unit, records)
    } else {
        let chart = builder.build_cartesian_2d(sizes.log_scale(), 0.0..highest * 1.1);
        lines(chart.map_err(failed)?, unit, records)
    }
}

type Sizes = plotters::coord::combinators::LogCoord<f64>;
type Chart<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Sizes, Y>>;

fn lines<'a, 'b: 'a, Y>(mut chart: Chart<'a, 'b, Y>, unit: &str, records: &[&Record]) -> Result<()>
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64> + 'a,
{
    chart
        .configure_mesh()
        .x_desc("size (B)")
        .y_desc(unit)
        .x_label_formatter(&|size| bytes(*size))
        .draw()
        .map_err(failed)?;
    let mut tests: Vec<&str> = records.iter().map(|record| record.test).collect();
    tests.dedup();
    for (number, test) in tests.into_iter().enumerate() {
        let color = Palette99::pick(number).to_rgba();
        let points: Vec<(f64, f64)> = records
            .iter()
            .filter(|record| record.test == test)
            .map(|record| (record.size.max(1) as f64, record.p50))
            .collect();
        let line = LineSeries::new(points, color.stroke_width(2)).point_size(3);
        chart
            .draw_series(line)
            .map_err(failed)?
            .label(test)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
        .map_err(failed)
}

/// A size in the unit that people use.
fn bytes(size: f64) -> String {
    match size {
        ..1024.0 => format!("{size:.0}"),
        ..1_048_576.0 => format!("{:.0}K", size / 1024.0),
        _ => format!("{:.0}M", size / 1_048_576.0),
    }
}

fn failed(reason: impl std::fmt::Display) -> Error {
    Error::System { what: "drawing the plot".into(), reason: reason.to_string() }
}
