//! From arguments to image files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// What is looked at when nothing is named: a scene of `examples/make_scenes` that the model has not been trained on.
pub const SCENE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/scene.jpg");

/// File endings that are looked for in folders. Files named one by one are recognised by content.
const IMAGE_EXTENSIONS: [&str; 8] = ["jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif"];

/// The files that paths, folders and globs stand for, in order, each once.
pub fn expand(paths: &[String]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for argument in paths {
        let path = Path::new(argument);
        if path.is_dir() {
            files.extend(images_of(path)?);
        } else if path.exists() || !argument.contains(['*', '?', '[']) {
            files.push(path.to_owned());
        } else {
            let matches = glob::glob(argument).with_context(|| format!("{argument} is no glob"))?;
            let matches: Vec<PathBuf> = matches.collect::<Result<_, _>>()?;
            if matches.is_empty() {
                bail!("{argument} matches no file");
            }
            files.extend(matches);
        }
    }
    let mut seen = std::collections::HashSet::new();
    files.retain(|file| seen.insert(file.clone()));
    Ok(files)
}

fn images_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let entries = folder.read_dir().with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        if path.is_file() && IMAGE_EXTENSIONS.contains(&extension.to_ascii_lowercase().as_str()) {
            files.push(path);
        }
    }
    if files.is_empty() {
        bail!("{} holds no image", folder.display());
    }
    files.sort();
    Ok(files)
}
