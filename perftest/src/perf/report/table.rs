//! Tables.

use crate::perf::catalog::{Sizes, Test};
use crate::perf::sample::Figures;

/// The line over the columns. `batch` is the number of operations in a sample; p50, p99 and the best are over samples.
pub(super) fn head(test: &Test) -> String {
    let unit = test.unit;
    let column = |name: &str| format!("{name}({unit})");
    if test.sizes == Sizes::None && !test.is_latency() {
        return column(test.name);
    }
    let columns = if test.is_latency() {
        [column("min"), column("p50"), column("avg"), column("p99")]
    } else {
        [column("avg"), column("p50"), column("p99"), column("max")]
    };
    let [a, b, c, d] = columns;
    let mut head = format!("{:<12}{a:>14}{b:>14}{c:>14}{d:>14}", "size(B)");
    if unit == "MB/s" {
        head += &format!("{:>14}", "avg(Mop/s)");
    }
    head + &format!("{:>12}{:>8}", "iters", "batch")
}

/// The figures of one size.
pub(super) fn row(test: &Test, size: usize, figures: &Figures) -> String {
    if test.sizes == Sizes::None && !test.is_latency() {
        return number(figures.value);
    }
    let columns = if test.is_latency() {
        [figures.best, figures.p50, figures.value, figures.p99]
    } else {
        [figures.value, figures.p50, figures.p99, figures.best]
    };
    let mut row = format!("{:<12}", if test.sizes == Sizes::None { "-".into() } else { size.to_string() });
    for figure in columns {
        row += &format!("{:>14}", number(figure));
    }
    if test.unit == "MB/s" {
        row += &format!("{:>14}", number(figures.value / size.max(1) as f64));
    }
    row + &format!("{:>12}{:>8}", figures.iters, figures.batch)
}

/// A number with its significant digits.
pub(super) fn number(value: f64) -> String {
    let digits = if value >= 1000.0 { 0 } else { 3 - value.max(1.0).log10() as usize };
    let digits = if value < 1.0 { 4 } else { digits };
    format!("{value:.digits$}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::perf::catalog::TESTS;

    #[test]
    fn figures_have_four_digits() {
        let shown = [0.01234, 1.23456, 12.3456, 123.456, 1234.56, 0.0].map(number);
        assert_eq!(shown, ["0.0123", "1.235", "12.35", "123.5", "1235", "0.0000"]);
    }

    #[test]
    fn rows_have_the_columns_of_their_heads() {
        let figures = Figures { iters: 5, ..Figures::one(1.0) };
        for test in TESTS {
            let (head, row) = (head(test), row(test, 8, &figures));
            assert_eq!(head.split_whitespace().count(), row.split_whitespace().count(), "{}", test.name);
        }
    }
}
