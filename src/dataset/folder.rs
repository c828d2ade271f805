//! A data set as one folder.

use std::path::{Path, PathBuf};

use super::CocoDataset;
use crate::error::{Error, Result};

/// Names of annotation files that tools write next to the images, the first that is there counts.
const ANNOTATIONS: [&str; 2] = ["annotations.json", "_annotations.coco.json"];

impl CocoDataset {
    /// Reads a folder that holds a data set: `annotations.json` or `_annotations.coco.json`, and its images in `images`,
    /// or beside it where there is no such folder.
    ///
    /// # Errors
    /// [`Error::Dataset`] for a folder without such a file, and those of [`Self::open`].
    pub fn open_folder(folder: &Path) -> Result<Self> {
        let found = ANNOTATIONS.iter().map(|name| folder.join(name)).find(|path| path.is_file());
        let annotations = found.ok_or_else(|| Error::Dataset {
            path: folder.to_owned(),
            entry: "the folder".to_owned(),
            problem: format!("it has no {}", ANNOTATIONS.join(" and no ")),
        })?;
        Self::open(&annotations, &images(folder))
    }
}

fn images(folder: &Path) -> PathBuf {
    let images = folder.join("images");
    if images.is_dir() { images } else { folder.to_owned() }
}
