//! The report: one HTML page that opens from disk without a network, on a phone too.
//!
//! In: finished figures, an [`Analysis`] and the detections. Out: `index.html`. Nothing is computed here that the
//! [`CocoReport`] does not hold; the page only shows it.

mod charts;
mod gallery;
mod sections;

use std::path::{Path, PathBuf};

use super::{Analysis, CocoDataset, CocoReport, CocoResult, RunSettings};
use crate::error::{Error, Result};

/// What a page shows.
pub struct ReportPage<'a> {
    /// Its heading.
    pub title: &'a str,
    /// How the detections were made; may be empty.
    pub settings: &'a RunSettings,
    /// The ground truth.
    pub dataset: &'a CocoDataset,
    /// The figures.
    pub report: &'a CocoReport,
    /// What went right and wrong.
    pub analysis: &'a Analysis,
    /// The detections of an image.
    pub results_of: &'a dyn Fn(u64) -> &'a [CocoResult],
}

impl ReportPage<'_> {
    /// Writes `index.html` into a folder, which is made if need be, and returns its path.
    ///
    /// Images of the gallery are embedded; those that cannot be read are named in their place.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, folder: &Path) -> Result<PathBuf> {
        let path = folder.join("index.html");
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, self.html()))
            .map_err(|source| Error::Io { path: path.clone(), source })?;
        Ok(path)
    }

    fn html(&self) -> String {
        let content = [
            sections::cards(self.report),
            sections::summary(self.report),
            sections::curves(self.report),
            sections::histograms(self.analysis),
            sections::categories(self.dataset, self.report),
            sections::confusion(self.dataset, self.analysis),
            gallery::sections(self),
            sections::settings(self.settings, self.dataset),
        ]
        .concat();
        let subtitle = format!(
            "{} images, {} objects of {} categories, {} detections",
            thousands(self.report.images),
            thousands(self.dataset.all_annotations().len()),
            self.dataset.categories().len(),
            thousands(self.report.detections),
        );
        fill(
            include_str!("page.html"),
            &[
                ("title", &escape(self.title)),
                ("subtitle", &subtitle),
                ("style", include_str!("style.css")),
                ("content", &content),
                ("script", include_str!("script.js")),
            ],
        )
    }
}

/// Replaces each `{{name}}` of a template once through, so that inserted text is never taken for a template.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        filled.push_str(before);
        let (name, tail) = after.split_once("}}").unwrap_or((after, ""));
        if let Some((_, value)) = values.iter().find(|(known, _)| *known == name) {
            filled.push_str(value);
        }
        rest = tail;
    }
    filled.push_str(rest);
    filled
}

/// Text that is safe in HTML, in attributes too.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A fraction as percent with one digit; a dash where there is nothing to find.
fn percent(figure: Option<f64>) -> String {
    figure.map_or_else(|| "–".to_owned(), |value| format!("{:.1}", 100.0 * value))
}

/// A count with thin spaces between thousands.
fn thousands(count: usize) -> String {
    let digits = count.to_string();
    let mut spaced = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            spaced.push('\u{202f}');
        }
        spaced.push(digit);
    }
    spaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled_once_through() {
        let filled = fill("<{{a}}|{{b}}|{{c}}>", &[("a", "{{b}}"), ("b", "2")]);
        assert_eq!(filled, "<{{b}}|2|>");
    }

    #[test]
    fn names_cannot_break_out_of_the_page() {
        assert_eq!(escape("<b title=\"x\">&'"), "&lt;b title=&quot;x&quot;&gt;&amp;&#39;");
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!(thousands(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!((thousands(999), percent(None)), ("999".to_owned(), "–".to_owned()));
        assert_eq!(percent(Some(0.3789)), "37.9");
    }
}
