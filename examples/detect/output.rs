//! What is left of an image: an annotated copy, a line, entries in the results file.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use candle_detection::ImageInput;
use candle_detection::config::Categories;
use candle_detection::structures::Detections;
use candle_detection::visualize::{Style, draw};

use crate::results::ResultsFile;

/// Writes everything that a run leaves behind.
pub struct Writer<'a> {
    folder: &'a Path,
    results: Option<ResultsFile>,
    categories: &'a Categories,
    taken: HashSet<PathBuf>,
}

impl<'a> Writer<'a> {
    /// Creates the folder, and the results file if one is wanted.
    pub fn new(folder: &'a Path, json: Option<&Path>, categories: &'a Categories) -> Result<Self> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let results = json.map(ResultsFile::create).transpose()?;
        Ok(Self { folder, results, categories, taken: HashSet::new() })
    }

    /// Writes the annotated copy and the results of one image; returns its line.
    pub fn write(&mut self, path: &Path, image: &ImageInput, found: &Detections) -> Result<String> {
        let mut picture = image.to_rgb8()?;
        draw(&mut picture, found, self.categories, &Style::default());
        let copy = self.copy_path(path);
        picture.save(&copy).with_context(|| format!("cannot write {}", copy.display()))?;
        if let Some(results) = &mut self.results {
            results.append(path, found)?;
        }
        Ok(format!("{} → {}: {}", path.display(), copy.display(), self.summary(found)))
    }

    /// Completes the results file.
    pub fn finish(self) -> Result<()> {
        self.results.map_or(Ok(()), ResultsFile::finish)
    }

    /// A PNG with the photo's name; with a number where two photos have the same.
    fn copy_path(&mut self, path: &Path) -> PathBuf {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let names = std::iter::once(format!("{stem}.png"))
            .chain((2..).map(|number| format!("{stem}-{number}.png")));
        let mut free =
            names.map(|name| self.folder.join(name)).skip_while(|p| self.taken.contains(p));
        // invariant: the numbers never end, so there is a free name.
        let copy = free.next().unwrap_or_else(|| self.folder.join("unnamed.png"));
        self.taken.insert(copy.clone());
        copy
    }

    /// "2 persons…" would need a grammar; "person 0.98, dog 0.91" needs none.
    fn summary(&self, found: &Detections) -> String {
        if found.instances.is_empty() {
            return "nothing found".to_owned();
        }
        let name = |label: u32| match self.categories.name(label) {
            Some(name) => name.to_owned(),
            None => format!("class {label}"),
        };
        let instances = found.instances.iter();
        let entries: Vec<String> =
            instances.map(|i| format!("{} {:.2}", name(i.label), i.score)).collect();
        entries.join(", ")
    }
}
