//! COCO results as a JSON file that is whole and valid after every image.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use candle_detection::structures::{Detections, Instance};
use serde_json::{Value, json};

/// A JSON list that grows at its end: each append replaces the closing bracket in one write.
pub struct ResultsFile {
    path: PathBuf,
    file: File,
    is_empty: bool,
}

const CLOSING: &str = "\n]\n";

impl ResultsFile {
    /// Starts an empty list.
    pub fn create(path: &Path) -> Result<Self> {
        let create = || -> std::io::Result<File> {
            let mut file = File::create(path)?;
            file.write_all(format!("[{CLOSING}").as_bytes())?;
            Ok(file)
        };
        let file = create().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path: path.to_owned(), file, is_empty: true })
    }

    /// Adds the detections of one image.
    pub fn append(&mut self, image: &Path, found: &Detections) -> Result<()> {
        let id = image_id(image);
        let mut text = String::new();
        for instance in &found.instances {
            text.push_str(if self.is_empty { "\n" } else { ",\n" });
            text.push_str(&entry(&id, instance).to_string());
            self.is_empty = false;
        }
        text.push_str(CLOSING);
        self.file
            .seek(SeekFrom::End(-(CLOSING.len() as i64)))
            .and_then(|_| self.file.write_all(text.as_bytes()))
            .with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Makes sure that everything is on disk.
    pub fn finish(self) -> Result<()> {
        self.file.sync_all().with_context(|| format!("cannot write {}", self.path.display()))
    }
}

fn entry(image_id: &Value, instance: &Instance) -> Value {
    let mut entry = json!({
        "image_id": image_id,
        "category_id": instance.label,
        "bbox": instance.bbox.to_xywh(),
        "score": instance.score,
    });
    if let Some(mask) = &instance.mask {
        let rle = mask.to_rle(0.5);
        entry["segmentation"] =
            json!({ "size": [rle.size.height, rle.size.width], "counts": rle.to_coco_string() });
    }
    if let Some(keypoints) = &instance.keypoints {
        // COCO recommends a 1; here it tells those that show from those that don't.
        let shows = |score: f32| f32::from(u8::from(score > KEYPOINT_THRESHOLD));
        let numbers = keypoints.iter().flat_map(|point| [point.x, point.y, shows(point.score)]);
        entry["keypoints"] = numbers.collect();
    }
    entry
}

/// Keypoints whose score is above this show, as in the drawing.
const KEYPOINT_THRESHOLD: f32 = 0.0;

/// The number in the file's name, as COCO names its files; else the name.
fn image_id(path: &Path) -> Value {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    match stem.rsplit(|c: char| !c.is_ascii_digit()).next().map(str::parse::<u64>) {
        Some(Ok(id)) => Value::from(id),
        _ => Value::from(path.file_name().unwrap_or_default().to_string_lossy()),
    }
}
