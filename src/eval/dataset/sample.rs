//! One image of a data set, with the means to decode it.

use std::path::PathBuf;

use super::{CocoAnnotation, CocoDataset, CocoImage};
use crate::error::{Error, Result};
use crate::image_input::ImageInput;
use crate::structures::ImageSize;

/// An image of a data set: decoded when asked for.
#[derive(Debug, Clone)]
pub struct CocoSample<'a> {
    /// Its id.
    pub image_id: u64,
    /// Its file.
    pub path: PathBuf,
    /// Its size, where the annotation file tells.
    pub size: Option<ImageSize>,
    /// The objects in it.
    pub annotations: &'a [CocoAnnotation],
    dataset: &'a CocoDataset,
}

impl<'a> CocoSample<'a> {
    pub(in crate::eval) fn new(dataset: &'a CocoDataset, image: &CocoImage) -> Self {
        Self {
            image_id: image.id,
            path: dataset.folder.join(&image.file_name),
            size: image.size,
            annotations: dataset.annotations(image.id),
            dataset,
        }
    }

    /// Decodes the image.
    pub fn image(&self) -> Result<ImageInput> {
        let image = ImageInput::open(&self.path)?;
        match self.size {
            Some(size) if size != image.size() => Err(Error::Dataset {
                path: self.dataset.path.clone(),
                entry: format!("image {}", self.image_id),
                problem: format!("{} {size}", image.size()),
            }),
            _ => Ok(image),
        }
    }
}
