//! The parts of the page that show numbers.

use std::fmt::Write;

use super::{charts, escape, percent, thousands};
use crate::eval::{
    Analysis, CocoDataset, CocoMetrics, CocoReport, IOU_THRESHOLDS, IouKind, RunSettings,
    SCORE_BINS, SIZE_BINS,
};

/// Writing to a `String` cannot fail; its error type is dropped here, in one place.
macro_rules! put {
    ($html:expr, $($argument:tt)*) => { let _ = write!($html, $($argument)*); };
}

/// Categories in the confusion matrix, at most.
const MATRIX: usize = 16;

/// Confusions in the list, at most.
const PAIRS: usize = 12;

fn words(kind: IouKind) -> &'static str {
    match kind {
        IouKind::Box => "Box",
        IouKind::Mask => "Mask",
        IouKind::Keypoints => "Keypoint",
    }
}

/// The headline figures.
pub(super) fn cards(report: &CocoReport) -> String {
    let mut html = "<div class=\"cards\">".to_owned();
    for (&kind, metrics) in &report.per_kind {
        for (name, figure) in [("AP", metrics.ap), ("AP50", metrics.ap50), ("AP75", metrics.ap75)] {
            put!(
                html,
                "<div class=\"card\"><b>{}</b><span>{} {name}</span></div>",
                percent(figure),
                words(kind)
            );
        }
    }
    html + "</div>"
}

/// A figure, what it is taken over, and where it is.
type Row = (&'static str, &'static str, fn(&CocoMetrics) -> Option<f64>);

/// Of boxes and masks.
const ROWS: [Row; 12] = [
    ("AP", "IoU 0.50–0.95", |m| m.ap),
    ("AP50", "IoU 0.50", |m| m.ap50),
    ("AP75", "IoU 0.75", |m| m.ap75),
    ("AP small", "objects up to 32² px", |m| m.ap_small),
    ("AP medium", "32² to 96² px", |m| m.ap_medium),
    ("AP large", "from 96² px", |m| m.ap_large),
    ("AR", "few detections", |m| m.ar1),
    ("AR", "some detections", |m| m.ar10),
    ("AR", "all detections", |m| m.ar100),
    ("AR small", "objects up to 32² px", |m| m.ar_small),
    ("AR medium", "32² to 96² px", |m| m.ar_medium),
    ("AR large", "from 96² px", |m| m.ar_large),
];

/// Of keypoints.
const KEYPOINT_ROWS: [Row; 10] = [
    ("AP", "OKS 0.50–0.95", |m| m.ap),
    ("AP50", "OKS 0.50", |m| m.ap50),
    ("AP75", "OKS 0.75", |m| m.ap75),
    ("AP medium", "32² to 96² px", |m| m.ap_medium),
    ("AP large", "from 96² px", |m| m.ap_large),
    ("AR", "OKS 0.50–0.95", |m| m.ar100),
    ("AR50", "OKS 0.50", |m| m.ar50),
    ("AR75", "OKS 0.75", |m| m.ar75),
    ("AR medium", "32² to 96² px", |m| m.ar_medium),
    ("AR large", "from 96² px", |m| m.ar_large),
];

/// All figures: twelve of boxes and masks, ten of keypoints.
pub(super) fn summary(report: &CocoReport) -> String {
    let (keypoints, others): (Vec<_>, Vec<_>) =
        report.per_kind.values().partition(|metrics| metrics.kind == IouKind::Keypoints);
    let mut html = "<section><h2>Figures</h2><p class=\"note\">Percent. A dash means that there is nothing to find.</p>".to_owned();
    html.push_str(&figures(&others, &ROWS));
    if let Some(first) = keypoints.first() {
        let limit = first.max_detections.last().copied().unwrap_or_default();
        put!(
            html,
            "<h3>Keypoints</h3><p class=\"note\">OKS is their similarity: 1 where all are in place. The best {limit} detections per image and category count.</p>"
        );
        html.push_str(&figures(&keypoints, &KEYPOINT_ROWS));
    }
    html + "</section>"
}

/// A row per figure, a column per kind.
fn figures(kinds: &[&CocoMetrics], rows: &[Row]) -> String {
    let Some(first) = kinds.first() else { return String::new() };
    let mut html = "<table class=\"narrow\"><thead><tr><th>Figure</th>".to_owned();
    for metrics in kinds {
        put!(html, "<th>{}</th>", words(metrics.kind));
    }
    html.push_str("</tr></thead><tbody>");
    for (at, (name, over, figure)) in rows.iter().enumerate() {
        let over = match (&first.max_detections[..], at) {
            (limits @ [_, _, _], 6..=8) => {
                format!("best {} per image and category", limits[at - 6])
            }
            _ => (*over).to_owned(),
        };
        put!(html, "<tr><td>{name} <small>{over}</small></td>");
        for metrics in kinds {
            put!(html, "<td>{}</td>", percent(figure(metrics)));
        }
        html.push_str("</tr>");
    }
    html + "</tbody></table>"
}

/// Precision over recall.
pub(super) fn curves(report: &CocoReport) -> String {
    let mut html = "<section><h2>Precision over recall</h2><p class=\"note\">Mean over all categories, one line per IoU threshold.</p><div class=\"pair\">".to_owned();
    for (&kind, metrics) in &report.per_kind {
        let curves: Vec<_> = (0..IOU_THRESHOLDS.len())
            .filter_map(|at| Some((at, metrics.mean_curve(at)?)))
            .collect();
        put!(html, "<div><h3>{}</h3>", words(kind));
        match curves.is_empty() {
            true => html.push_str("<p class=\"soft\">Nothing to find.</p>"),
            false => html.push_str(&charts::precision_recall(&curves)),
        }
        html.push_str("</div>");
    }
    html.push_str("</div><div class=\"legend\">");
    for (at, threshold) in IOU_THRESHOLDS.iter().enumerate() {
        let color = charts::threshold_color(at);
        put!(html, "<span><i style=\"background:{color}\"></i>{threshold:.2}</span>");
    }
    html + "</div></section>"
}

/// Scores and sizes.
pub(super) fn histograms(analysis: &Analysis) -> String {
    let every = SCORE_BINS / 5;
    let scores: Vec<String> = (0..=SCORE_BINS)
        .map(|at| match at.is_multiple_of(every) {
            true => format!("{:.1}", at as f64 / SCORE_BINS as f64),
            false => String::new(),
        })
        .collect();
    let sizes: Vec<String> = SIZE_BINS.iter().map(|from| format!("{from}")).collect();
    let legend = |good: &str, bad: &str| {
        format!(
            "<div class=\"legend\"><span><i style=\"background:var(--good)\"></i>{good}</span><span><i style=\"background:var(--bad)\"></i>{bad}</span></div>"
        )
    };
    format!(
        "<section><h2>Scores and sizes</h2><p class=\"note\">Boxes at IoU 0.50 and the right label. Sizes count detections from score {:.2} on.</p><div class=\"pair\"><div><h3>Detections by score</h3>{}{}</div><div><h3>Objects by size</h3>{}{}</div></div></section>",
        analysis.threshold,
        charts::histogram(&analysis.scores, &scores, "score", "detections"),
        legend("right", "wrong"),
        charts::histogram(&analysis.sizes, &sizes, "square root of the area, pixels", "objects"),
        legend("found", "missed"),
    )
}

/// One row per category.
pub(super) fn categories(dataset: &CocoDataset, report: &CocoReport) -> String {
    let head = |name: &str, kind: &str, class: &str, sort: &str| {
        format!(
            "<th class=\"{class}\" data-kind=\"{kind}\"{sort}><button type=\"button\">{name}</button></th>"
        )
    };
    let mut html = "<section><h2>Categories</h2><p class=\"note\">Press a heading to sort. The line is precision over recall of the boxes at IoU 0.50.</p><div class=\"scroll\"><table class=\"sortable\"><thead><tr>".to_owned();
    html.push_str(&head("Category", "text", "", " aria-sort=\"ascending\""));
    html.push_str(&head("Objects", "number", "", ""));
    html.push_str(&head("Detections", "number", "wide", ""));
    for &kind in report.per_kind.keys() {
        html.push_str(&head(&format!("{} AP", words(kind)), "number", "", ""));
        html.push_str(&head("AP50", "number", "wide", ""));
    }
    html.push_str("<th class=\"wide\">Curve</th></tr></thead><tbody>");
    let Some(first) = report.per_kind.values().next() else { return String::new() };
    let mut rows: Vec<_> = dataset.categories().iter().collect();
    rows.sort_by_key(|category| &category.name);
    for category in rows {
        let Some(counts) = first.per_category.get(&category.id) else { continue };
        put!(
            html,
            "<tr><td>{}</td><td data-value=\"{}\">{}</td><td class=\"wide\" data-value=\"{}\">{}</td>",
            escape(&category.name),
            counts.objects,
            thousands(counts.objects),
            counts.detections,
            thousands(counts.detections)
        );
        for metrics in report.per_kind.values() {
            let figures = metrics.per_category.get(&category.id);
            let ap = figures.and_then(|figures| figures.ap);
            let ap50 = figures.and_then(|figures| figures.ap50);
            put!(
                html,
                "<td class=\"bar\" data-value=\"{}\"><i style=\"width:calc({:.1}% - {:.1}px)\"></i><span>{}</span></td><td class=\"wide\" data-value=\"{}\">{}</td>",
                ap.unwrap_or(-1.0),
                100.0 * ap.unwrap_or(0.0),
                // The bar fills the cell between its paddings.
                20.0 * ap.unwrap_or(0.0),
                percent(ap),
                ap50.unwrap_or(-1.0),
                percent(ap50)
            );
        }
        let line = counts.curves.first().map(charts::sparkline).unwrap_or_default();
        put!(html, "<td class=\"wide\">{line}</td></tr>");
    }
    html + "</tbody></table></div></section>"
}

/// What was taken for what.
pub(super) fn confusion(dataset: &CocoDataset, analysis: &Analysis) -> String {
    let name = |id: Option<u64>| match id {
        Some(id) => dataset
            .category(id)
            .map_or_else(|| format!("category {id}"), |category| escape(&category.name)),
        None => "background".to_owned(),
    };
    let mut html = format!(
        "<section><h2>Confusion</h2><p class=\"note\">Boxes at IoU 0.50, detections from score {:.2} on. An object taken for background was missed; background taken for an object is a false alarm.</p>",
        analysis.threshold
    );
    let mut mixed: Vec<((u64, u64), usize)> = Vec::new();
    let mut weight = std::collections::BTreeMap::<u64, usize>::new();
    for (&(truth, found), &count) in &analysis.confusion {
        if let (Some(truth), Some(found)) = (truth, found)
            && truth != found
        {
            mixed.push(((truth, found), count));
        }
        if truth != found {
            for id in [truth, found].into_iter().flatten() {
                *weight.entry(id).or_default() += count;
            }
        }
    }
    let mut shown: Vec<(u64, usize)> = weight.into_iter().collect();
    shown.sort_by_key(|&(id, count)| (std::cmp::Reverse(count), id));
    shown.truncate(MATRIX);
    if shown.is_empty() {
        return html
            + "<p>No object was missed, none confused, and nothing invented.</p></section>";
    }
    let mut axis: Vec<Option<u64>> = shown.iter().map(|&(id, _)| Some(id)).collect();
    axis.push(None);
    let of = |truth, found| analysis.confusion.get(&(truth, found)).copied().unwrap_or(0);
    let largest = axis
        .iter()
        .flat_map(|&truth| axis.iter().map(move |&found| (truth, found)))
        .map(|(truth, found)| of(truth, found))
        .max()
        .unwrap_or(1);
    put!(
        html,
        "<h3>The {} categories with most mistakes</h3><p class=\"note\">Rows are what is there, columns what was found.</p><div class=\"scroll\"><table class=\"matrix\"><thead><tr><th></th>",
        shown.len()
    );
    for &found in &axis {
        put!(html, "<th><span>{}</span></th>", name(found));
    }
    html.push_str("</tr></thead><tbody>");
    for &truth in &axis {
        put!(html, "<tr><th title=\"{0}\">{0}</th>", name(truth));
        for &found in &axis {
            let count = of(truth, found);
            if count == 0 {
                html.push_str("<td></td>");
                continue;
            }
            let color = if truth == found { "good" } else { "bad" };
            let strength = 18.0 + 62.0 * (count as f64 / largest as f64).sqrt();
            put!(
                html,
                "<td title=\"{} taken for {}\" style=\"background:color-mix(in srgb,var(--{color}) {strength:.0}%,transparent)\">{count}</td>",
                name(truth),
                name(found)
            );
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div>");
    mixed.sort_by_key(|&(pair, count)| (std::cmp::Reverse(count), pair));
    mixed.truncate(PAIRS);
    if !mixed.is_empty() {
        html.push_str("<h3>Most frequent mix-ups</h3><div class=\"scroll\"><table class=\"narrow words\"><thead><tr><th>What is there</th><th>Taken for</th><th>How often</th></tr></thead><tbody>");
        for ((truth, found), count) in mixed {
            put!(
                html,
                "<tr><td>{}</td><td>{}</td><td>{count}</td></tr>",
                name(Some(truth)),
                name(Some(found))
            );
        }
        html.push_str("</tbody></table></div>");
    }
    html + "</section>"
}

/// How the detections were made, and what is odd about the data.
pub(super) fn settings(settings: &RunSettings, dataset: &CocoDataset) -> String {
    let mut html = "<section><h2>Made from</h2><dl>".to_owned();
    put!(html, "<dt>annotations</dt><dd>{}</dd>", escape(&dataset.path().display().to_string()));
    for (name, value) in settings.iter() {
        put!(html, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
    }
    for finding in dataset.findings() {
        put!(html, "<dt>odd</dt><dd>{}</dd>", escape(&finding.to_string()));
    }
    html + "</dl></section>"
}
