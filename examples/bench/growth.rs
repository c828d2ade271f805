//! How time grows with the image's size, the batch, and the number of detections: a table and a chart.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use candle_detection::{Detector, ImageInput, Settings};

/// Shorter sides in pixels; the longer one is at most 5/3 of it, as in 800 and 1333.
const SIDES: [usize; 6] = [320, 480, 640, 800, 1066, 1333];
const BATCHES: [usize; 4] = [1, 2, 4, 8];
const DETECTIONS: [usize; 5] = [0, 10, 25, 50, 100];
/// The largest batch is of images of this size, so that it fits into the memory of most machines.
const BATCH_SIDE: usize = 480;

/// One chart: times over what grows.
struct Series {
    title: &'static str,
    axis: &'static str,
    points: Vec<(usize, f64)>,
}

/// Measures, prints tables, and writes the chart.
pub fn run(detector: &Detector, image: &ImageInput, iterations: usize, chart: &Path) -> Result<()> {
    let time = |images: &[ImageInput], settings: &Settings| -> Result<f64> {
        let run = || detector.detect_with(images, settings).map(drop);
        run()?;
        let seconds = crate::sorted_times(iterations, run)?;
        Ok(seconds[seconds.len() / 2])
    };
    let sized = |side: usize| {
        let mut settings = detector.settings();
        (settings.image.min_size, settings.image.max_size) = (side, side * 5 / 3);
        settings
    };
    let mut series = Vec::new();
    let mut points = Vec::new();
    for side in SIDES {
        points.push((side, time(std::slice::from_ref(image), &sized(side))?));
    }
    series.push(Series { title: "size of the image", axis: "shorter side, pixels", points });
    let mut points = Vec::new();
    for batch in BATCHES {
        points.push((batch, time(&vec![image.clone(); batch], &sized(BATCH_SIDE))?));
    }
    series.push(Series { title: "images at once, 480 pixels each", axis: "images", points });
    let mut points = Vec::new();
    for wanted in DETECTIONS {
        let mut settings = detector.settings();
        // Everything passes a threshold of zero, nothing one of one.
        settings.detections.score_threshold = if wanted == 0 { 1.0 } else { 0.0 };
        settings.detections.per_image = wanted.max(1);
        points.push((wanted, time(std::slice::from_ref(image), &settings)?));
    }
    series.push(Series { title: "detections", axis: "detections", points });

    for Series { axis, points, .. } in &series {
        let (heads, values): (Vec<String>, Vec<String>) =
            points.iter().map(|(x, seconds)| (x.to_string(), format!("{seconds:.2}"))).unzip();
        println!("| {axis} | {} |", heads.join(" | "));
        println!("| --- |{}", " --- |".repeat(points.len()));
        println!("| seconds | {} |\n", values.join(" | "));
    }
    std::fs::write(chart, svg(&series)).with_context(|| format!("cannot write {}", chart.display()))
}

/// Charts side by side, each from zero on.
fn svg(series: &[Series]) -> String {
    const WIDTH: f64 = 260.0;
    const HEIGHT: f64 = 180.0;
    const MARGIN: f64 = 50.0;
    let (cell, total) = (WIDTH + 1.5 * MARGIN, HEIGHT + 2.0 * MARGIN);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{total}\" font-family=\"sans-serif\" \
         font-size=\"12\" text-anchor=\"middle\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        cell * series.len() as f64
    );
    for (i, Series { title, axis, points }) in series.iter().enumerate() {
        let left = i as f64 * cell + MARGIN;
        let bottom = MARGIN + HEIGHT;
        let largest = points.iter().map(|p| p.0).max().unwrap_or(1).max(1) as f64;
        let longest = points.iter().map(|p| p.1).fold(0.0, f64::max) * 1.1;
        let place = |(x, seconds): (usize, f64)| {
            (left + x as f64 / largest * WIDTH, bottom - seconds / longest * HEIGHT)
        };
        // Writing to a string never fails.
        let _ = write!(
            out,
            "<text x=\"{}\" y=\"{}\" font-size=\"14\">{title}</text>\
             <text x=\"{}\" y=\"{}\">{axis}</text>\
             <text x=\"{left}\" y=\"{}\">seconds</text>\
             <path d=\"M{left} {MARGIN}V{bottom}H{}\" fill=\"none\" stroke=\"#888\"/>\n<path d=\"",
            left + WIDTH / 2.0,
            MARGIN - 25.0,
            left + WIDTH / 2.0,
            bottom + 35.0,
            MARGIN - 8.0,
            left + WIDTH,
        );
        for (n, point) in points.iter().enumerate() {
            let (x, y) = place(*point);
            let _ = write!(out, "{}{x:.1} {y:.1}", if n == 0 { "M" } else { "L" });
        }
        out.push_str("\" fill=\"none\" stroke=\"#1668b0\" stroke-width=\"2\"/>\n");
        for point in points {
            let (x, y) = place(*point);
            let _ = writeln!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"#1668b0\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\">{:.2}</text><text x=\"{x:.1}\" y=\"{}\">{}</text>",
                y - 8.0,
                point.1,
                bottom + 16.0,
                point.0,
            );
        }
    }
    out.push_str("</svg>\n");
    out
}
