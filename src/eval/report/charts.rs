//! Charts as SVG text.

use std::fmt::Write;

use crate::eval::{Bin, PrCurve};

/// Size of a chart in its own units; it scales with the page.
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 300.0;
/// Room for the axes' labels.
const LEFT: f64 = 54.0;
const BOTTOM: f64 = 44.0;
const TOP: f64 = 10.0;
const RIGHT: f64 = 12.0;

fn x(fraction: f64) -> f64 {
    LEFT + fraction * (WIDTH - LEFT - RIGHT)
}

fn y(fraction: f64) -> f64 {
    HEIGHT - BOTTOM - fraction * (HEIGHT - BOTTOM - TOP)
}

/// Writing to a `String` cannot fail; its error type is dropped here, in one place.
macro_rules! put {
    ($svg:expr, $($argument:tt)*) => { let _ = write!($svg, $($argument)*); };
}

fn begin(label: &str) -> String {
    format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\">"
    )
}

fn axis_titles(svg: &mut String, horizontal: &str, vertical: &str) {
    let (middle_x, middle_y) = (x(0.5), y(0.5));
    put!(
        svg,
        "<text x=\"{middle_x:.0}\" y=\"{}\" text-anchor=\"middle\">{horizontal}</text>",
        HEIGHT - 4.0
    );
    put!(
        svg,
        "<text transform=\"translate(13 {middle_y:.0}) rotate(-90)\" text-anchor=\"middle\">{vertical}</text>"
    );
}

/// Color of one of ten thresholds, from light to dark violet.
pub(super) fn threshold_color(at: usize) -> String {
    let part = at as f64 / 9.0;
    format!("hsl({:.0} 70% {:.0}%)", 200.0 + 75.0 * part, 62.0 - 8.0 * part)
}

/// Precision over recall, one line per curve.
pub(super) fn precision_recall(curves: &[(usize, PrCurve)]) -> String {
    let mut svg = begin("precision over recall");
    for step in 0..=5 {
        let part = f64::from(step) / 5.0;
        let (at_x, at_y) = (x(part), y(part));
        let (left, right, low, high) = (x(0.0), x(1.0), y(0.0), y(1.0));
        put!(
            svg,
            "<path class=\"grid\" d=\"M{left:.1} {at_y:.1}H{right:.1}M{at_x:.1} {low:.1}V{high:.1}\"/>"
        );
        put!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{part:.1}</text>",
            LEFT - 6.0,
            at_y + 4.0
        );
        put!(
            svg,
            "<text x=\"{at_x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{part:.1}</text>",
            low + 16.0
        );
    }
    for (threshold, curve) in curves {
        let path = polyline(&curve.precision, x, y);
        put!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-linejoin=\"round\"><title>IoU {:.2}</title></path>",
            threshold_color(*threshold),
            curve.iou
        );
    }
    axis_titles(&mut svg, "recall", "precision");
    svg + "</svg>"
}

/// A curve in a table's cell.
pub(super) fn sparkline(curve: &PrCurve) -> String {
    let path = polyline(&curve.precision, |part| 1.0 + 62.0 * part, |value| 19.0 - 18.0 * value);
    format!(
        "<svg width=\"64\" height=\"20\" viewBox=\"0 0 64 20\" aria-hidden=\"true\"><path d=\"M1 19H63\" class=\"grid\"/><path d=\"{path}\" fill=\"none\" stroke=\"var(--accent)\" stroke-width=\"1.5\"/></svg>"
    )
}

/// Points evenly spread over 0 to 1, those on a straight level left out.
fn polyline(values: &[f64], x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) -> String {
    let last = values.len().saturating_sub(1);
    let mut path = String::new();
    for (at, &value) in values.iter().enumerate() {
        let level = at > 0 && at < last && values[at - 1] == value && values[at + 1] == value;
        if !level {
            let letter = if path.is_empty() { 'M' } else { 'L' };
            put!(path, "{letter}{:.1} {:.1}", x(at as f64 / last.max(1) as f64), y(value));
        }
    }
    path
}

/// Stacked bars; `labels` has one entry more than there are bars, at their edges, empty ones left out.
pub(super) fn histogram(
    bins: &[Bin],
    labels: &[String],
    horizontal: &str,
    vertical: &str,
) -> String {
    let mut svg = begin(horizontal);
    let highest = bins.iter().map(|bin| bin.good + bin.bad).max().unwrap_or(0);
    let step = tick_step(highest);
    let top = highest.div_ceil(step).max(1) * step;
    for tick in (0..=top).step_by(step) {
        let at = y(tick as f64 / top as f64);
        let (left, right) = (x(0.0), x(1.0));
        put!(svg, "<path class=\"grid\" d=\"M{left:.1} {at:.1}H{right:.1}\"/>");
        put!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            at + 4.0,
            short(tick)
        );
    }
    for (at, bin) in bins.iter().enumerate() {
        let left = x(at as f64 / bins.len() as f64) + 1.0;
        let width = (x(1.0) - x(0.0)) / bins.len() as f64 - 2.0;
        let between = bin.good as f64 / top as f64;
        let sum = (bin.good + bin.bad) as f64 / top as f64;
        for (from, to, color, count) in
            [(0.0, between, "good", bin.good), (between, sum, "bad", bin.bad)]
        {
            if count > 0 {
                put!(
                    svg,
                    "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"var(--{color})\"><title>{count}</title></rect>",
                    y(to),
                    y(from) - y(to)
                );
            }
        }
    }
    for (at, label) in labels.iter().enumerate() {
        put!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            x(at as f64 / bins.len() as f64),
            y(0.0) + 16.0
        );
    }
    axis_titles(&mut svg, horizontal, vertical);
    svg + "</svg>"
}

/// A round step that divides an axis into about four.
fn tick_step(highest: usize) -> usize {
    let rough = (highest / 4).max(1);
    let power = 10usize.pow(rough.ilog10());
    [1, 2, 5, 10].into_iter().map(|times| times * power).find(|&step| step >= rough).unwrap_or(1)
}

fn short(count: usize) -> String {
    match count {
        0..10_000 => count.to_string(),
        10_000..1_000_000 => format!("{}k", count / 1000),
        _ => format!("{:.1}M", count as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        for (highest, step) in [(0, 1), (3, 1), (9, 2), (40, 10), (99, 50), (1000, 500), (77, 20)] {
            assert_eq!(tick_step(highest), step, "{highest}");
        }
    }

    #[test]
    fn level_stretches_take_two_points() {
        let path = polyline(&[1.0, 1.0, 1.0, 1.0, 0.5], |part| part, |value| value);
        assert_eq!(path, "M0.0 1.0L0.8 1.0L1.0 0.5");
    }
}
