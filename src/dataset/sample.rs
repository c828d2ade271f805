//! One image of a data set, with the means to decode it.

use std::path::PathBuf;

use super::{CocoAnnotation, CocoDataset, CocoImage};
use crate::error::{Error, Result};
use crate::image_input::{DecodeOptions, ImageInput, Orientation};
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
    pub(crate) fn new(dataset: &'a CocoDataset, image: &CocoImage) -> Self {
        Self {
            image_id: image.id,
            path: dataset.folder.join(&image.file_name),
            size: image.size,
            annotations: dataset.annotations(image.id),
            dataset,
        }
    }

    /// Decodes the image to the size that the annotations were made for.
    ///
    /// Annotations of most data sets, COCO's among them, belong to the pixels as stored; of some, to the picture turned
    /// upright as its EXIF orientation says. The size in the annotation file decides, and where it fits both or is
    /// missing, the pixels are taken as stored.
    ///
    /// # Errors
    /// [`Error::Dataset`] with all sizes when neither fits, else those of [`ImageInput::open_with`].
    pub fn image(&self) -> Result<ImageInput> {
        let decode = |orientation| {
            let options = DecodeOptions { orientation, ..DecodeOptions::default() };
            ImageInput::open_with(&self.path, &options)
        };
        let stored = decode(Orientation::Raw)?;
        let Some(size) = self.size.filter(|&size| size != stored.size()) else {
            return Ok(stored);
        };
        let upright = decode(Orientation::Upright)?;
        if upright.size() == size {
            return Ok(upright);
        }
        let turned = match upright.size() == stored.size() {
            true => String::new(),
            false => format!(", {} when turned upright", upright.size()),
        };
        Err(Error::Dataset {
            path: self.dataset.path.clone(),
            entry: format!("image {}", self.image_id),
            problem: format!(
                "its size is {size}, but {} is {}{turned}; is it the file that was annotated?",
                self.path.display(),
                stored.size()
            ),
        })
    }
}
