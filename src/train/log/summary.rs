//! Curves of a run as a picture.

use std::fmt::Write;

/// Figures by step.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// As the legend calls it.
    pub name: String,
    /// Step and value, by ascending step; what is not finite is left out.
    pub points: Vec<(f64, f64)>,
}

/// The values that an axis shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Range {
    /// From 0 to the largest value, but for the largest of the first steps.
    FromZero,
    /// From 0 to 100.
    Percent,
}

/// Curves on common axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// Above the curves.
    pub title: String,
    /// Values of the vertical axis.
    pub range: Range,
    /// The curves, in the order of the legend.
    pub curves: Vec<Curve>,
}

/// Size of a panel in pixels.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 330.0;
/// Room for labels.
const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 62.0;

/// Lines that a curve is made of; what lies between is averaged.
const SEGMENTS: usize = 240;

/// Share of the values of a curve that the axis leaves out at most: those of the first steps, which dwarf the rest.
const PEAK: f64 = 0.01;

const COLORS: [&str; 7] =
    ["#5b3cc4", "#0f8b8d", "#d1495b", "#e09f3e", "#3a7d44", "#7a6c5d", "#2274a5"];

/// Writing to a `String` cannot fail; its error type is dropped here, in one place.
macro_rules! put {
    ($svg:expr, $($argument:tt)*) => { let _ = write!($svg, $($argument)*); };
}

/// Panels side by side, as an SVG file of its own.
pub fn summary_svg(panels: &[Panel]) -> String {
    let width = WIDTH * panels.len().max(1) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {HEIGHT}\" width=\"{width}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n<rect width=\"{width}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n"
    );
    for (place, panel) in panels.iter().enumerate() {
        put!(svg, "<g transform=\"translate({} 0)\">", WIDTH * place as f64);
        draw(&mut svg, panel);
        svg += "</g>\n";
    }
    svg + "</svg>\n"
}

fn draw(svg: &mut String, panel: &Panel) {
    let curves: Vec<(&str, Vec<(f64, f64)>)> =
        panel.curves.iter().map(|curve| (curve.name.as_str(), thinned(&curve.points))).collect();
    let points = || curves.iter().flat_map(|(_, points)| points);
    let last = points().map(|point| point.0).fold(1.0, f64::max);
    let top = match panel.range {
        Range::Percent => 100.0,
        Range::FromZero => rounded_up(most(points().map(|point| point.1).collect())),
    };
    let x = |step: f64| LEFT + step / last * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - (value / top).min(1.0) * (HEIGHT - BOTTOM - TOP);
    put!(
        svg,
        "<text x=\"{LEFT}\" y=\"20\" font-size=\"14\" font-weight=\"bold\">{}</text>",
        escaped(&panel.title)
    );
    for tick in 0..=5 {
        let value = top * f64::from(tick) / 5.0;
        put!(
            svg,
            "<path d=\"M{LEFT} {:.1}H{}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            y(value),
            WIDTH - RIGHT,
            LEFT - 6.0,
            y(value) + 4.0,
            short(value)
        );
        let step = (last * f64::from(tick) / 5.0).round();
        put!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{step}</text>",
            x(step),
            HEIGHT - BOTTOM + 16.0
        );
    }
    let mut at = LEFT;
    for ((name, points), color) in curves.iter().zip(COLORS.iter().cycle()) {
        let mut path = String::new();
        for &(step, value) in points {
            let letter = if path.is_empty() { 'M' } else { 'L' };
            put!(path, "{letter}{:.1} {:.1}", x(step), y(value));
        }
        put!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.8\" stroke-linejoin=\"round\"/>"
        );
        if let [(step, value)] = points[..] {
            put!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{color}\"/>",
                x(step),
                y(value)
            );
        }
        let name = escaped(name);
        put!(
            svg,
            "<path d=\"M{at:.1} {0}h14\" stroke=\"{color}\" stroke-width=\"3\"/><text x=\"{1:.1}\" y=\"{2}\">{name}</text>",
            HEIGHT - 16.0,
            at + 18.0,
            HEIGHT - 12.0
        );
        at += 30.0 + 6.6 * name.chars().count() as f64;
    }
}

/// Means of stretches of equally many values.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let finite: Vec<(f64, f64)> = points
        .iter()
        .copied()
        .filter(|(step, value)| step.is_finite() && value.is_finite())
        .collect();
    let length = finite.len().div_ceil(SEGMENTS).max(1);
    finite
        .chunks(length)
        .map(|stretch| {
            let sum =
                stretch.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
            (sum.0 / stretch.len() as f64, sum.1 / stretch.len() as f64)
        })
        .collect()
}

/// The largest value but for a few.
fn most(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let dropped = (values.len() as f64 * PEAK) as usize;
    values.iter().rev().nth(dropped).copied().unwrap_or(0.0)
}

/// The next number whose fifth is a round one.
fn rounded_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let steps = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0];
    steps.into_iter().map(|step| step * power).find(|&top| top >= value).unwrap_or(10.0 * power)
}

fn short(value: f64) -> String {
    let digits = if value >= 10.0 || value == 0.0 { 0 } else { 2 };
    format!("{value:.digits$}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(points: Vec<(f64, f64)>) -> Panel {
        let curves = vec![Curve { name: "a<b".to_owned(), points }];
        Panel { title: "loss".to_owned(), range: Range::FromZero, curves }
    }

    /// The corners of the only curve.
    fn path(svg: &str) -> &str {
        let start = svg.find("<path d=\"M5").and_then(|_| svg.rfind("fill=\"none\"")).unwrap();
        svg[..start].rsplit("d=\"").next().unwrap().trim_end_matches("\" ")
    }

    #[test]
    fn a_curve_runs_from_corner_to_corner() {
        let svg = summary_svg(&[panel(vec![(0.0, 0.0), (10.0, 4.0)])]);
        assert_eq!(path(&svg), "M52.0 268.0L546.0 34.0");
        assert!(svg.contains("a&lt;b"), "{svg}");
    }

    #[test]
    fn long_runs_are_averaged_and_gaps_left_out() {
        let points: Vec<(f64, f64)> =
            (0..4800).map(|step| (f64::from(step), f64::from(step % 2))).collect();
        let thin = thinned(&points);
        assert_eq!(thin.len(), SEGMENTS);
        assert!(thin.iter().all(|point| point.1 == 0.5));
        assert_eq!(thinned(&[(1.0, f64::NAN), (2.0, 3.0)]), [(2.0, 3.0)]);
    }

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, top) in [(0.0, 1.0), (0.93, 1.0), (1.2, 1.5), (61.0, 75.0), (0.021, 0.025)] {
            assert!((rounded_up(value) - top).abs() < 1e-9, "{value}: {}", rounded_up(value));
        }
        // A few peaks don't squeeze the rest.
        let mut values = vec![1.0; 300];
        values[0] = 500.0;
        assert_eq!(most(values), 1.0);
        assert!(summary_svg(&[panel(Vec::new())]).ends_with("</svg>\n"));
    }
}
