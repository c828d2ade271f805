//! From images to the batch, and from instances back to the images.
//!
//! In: [`ImageInput`]s of any size. Out: an [`ImageBatch`]; later, a [`DetectionBatch`](crate::structures::DetectionBatch)
//! in the pixels of the originals. This room knows nothing of networks.

mod config;
mod resize;
mod restore;

use candle_core::{DType, Device};

pub use config::ImageConfig;
pub use resize::{padded_size, resized_size};
pub use restore::restore;

use crate::error::Result;
use crate::image_input::{ImageInput, Pixels};
use crate::ops::{PixelSource, ResizeNormalizeParams, resize_normalize};
use crate::structures::{BatchGeometry, ImageBatch, ImageGeometry, ImageSize};

/// Resizes, normalises and pads images to one batch on a device, in the dtype that the network computes in: the
/// upload.
///
/// # Errors
/// [`Error::Pixels`](crate::Error::Pixels) for an image without pixels, or those of [`resize_normalize`].
pub fn to_batch(
    images: &[ImageInput],
    config: &ImageConfig,
    device: &Device,
    dtype: DType,
) -> Result<ImageBatch> {
    let sources: Vec<PixelSource> = images.iter().map(pixel_source).collect();
    batch_of(&sources, images.iter().map(ImageInput::size), config, device, dtype)
}

/// Like [`to_batch`], of pixels wherever they lie, and their sizes.
pub(crate) fn batch_of(
    sources: &[PixelSource],
    sizes: impl Iterator<Item = ImageSize>,
    config: &ImageConfig,
    device: &Device,
    dtype: DType,
) -> Result<ImageBatch> {
    let geometry = batch_geometry(sizes, config);
    let params = ResizeNormalizeParams {
        mean: config.mean,
        std: config.std,
        resized: geometry.images.iter().map(|image| pair(image.resized)).collect(),
        padded: pair(geometry.padded),
        dtype,
    };
    let pixels = resize_normalize(sources, &params, device)?;
    Ok(ImageBatch { pixels, geometry })
}

fn pixel_source(image: &ImageInput) -> PixelSource<'_> {
    match image.pixels() {
        Pixels::Rgb8(bytes) => {
            let (height, width) = pair(image.size());
            PixelSource::Rgb8 { bytes, height, width }
        }
        Pixels::Planar(planes) => PixelSource::Planar(planes),
    }
}

/// Sizes of a batch of images.
fn batch_geometry(sizes: impl Iterator<Item = ImageSize>, config: &ImageConfig) -> BatchGeometry {
    let images: Vec<ImageGeometry> = sizes
        .map(|original| ImageGeometry { original, resized: resized_size(original, config) })
        .collect();
    let padded = padded_size(images.iter().map(|image| image.resized), config.size_divisor);
    BatchGeometry { padded, images }
}

fn pair(size: ImageSize) -> (usize, usize) {
    (size.height, size.width)
}
