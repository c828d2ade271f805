//! Forward passes recorded as CUDA graphs, one for each batch of sizes, and replayed for later images of these sizes.
//!
//! A replay is an upload of the pixels, one call that starts every kernel of the pass, and the download; the host has
//! no part in between. It saves what starting some hundred kernels one by one costs the host.

use std::sync::{Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Device, Tensor};

use super::Settings;
use crate::error::Result;
use crate::image_input::{ImageInput, Pixels};
use crate::network::DetectionNetwork;
use crate::ops::PixelSource;
use crate::ops::support::cuda::{Recording, of, upload_into};
use crate::structures::{DetectionBatch, Detections, ImageSize, PackedResults};
use crate::transform;

/// Recordings kept; each holds the memory of a forward pass. The oldest goes first.
const CAPACITY: usize = 8;

/// The recordings of one detector.
#[derive(Default)]
pub(super) struct Replays {
    recorded: Mutex<Vec<Replay>>,
}

/// One recording, and the tensors at its two ends.
struct Replay {
    sizes: Vec<ImageSize>,
    settings: Settings,
    /// `[total]` u8: the bytes of all images, one after another.
    pixels: Tensor,
    results: PackedResults,
    recording: Recording,
}

impl Replays {
    /// Detects by a replay, recording it first if need be; `None` where pixels don't come as bytes, which is logged.
    ///
    /// Calls wait for each other: while one records, nothing else may use the device.
    pub fn detect(
        &self,
        network: &DetectionNetwork,
        images: &[ImageInput],
        settings: &Settings,
        (device, dtype): (&Device, DType),
    ) -> Result<Option<Vec<Detections>>> {
        let Some(bytes) = images.iter().map(bytes).collect::<Option<Vec<_>>>() else {
            log::warn!(
                "no CUDA graph: an image is a tensor of planes, and only bytes are recorded"
            );
            return Ok(None);
        };
        let sizes: Vec<ImageSize> = images.iter().map(ImageInput::size).collect();
        let mut recorded = self.lock();
        let known = |replay: &Replay| replay.sizes == sizes && replay.settings == *settings;
        if let Some(replay) = recorded.iter().find(|replay| known(replay)) {
            upload_into(&bytes, &replay.pixels)?;
            replay.recording.replay()?;
            return replay.results.to_host().map(Some);
        }
        let (replay, detections) =
            Replay::record(network, &bytes, sizes, settings.clone(), device, dtype)?;
        if recorded.len() == CAPACITY {
            recorded.remove(0);
        }
        recorded.push(replay);
        Ok(Some(detections))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Replay>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Replay {
    /// Runs a forward pass, which loads kernels and gives the shapes of the results, then records another.
    fn record(
        network: &DetectionNetwork,
        bytes: &[&[u8]],
        sizes: Vec<ImageSize>,
        settings: Settings,
        device: &Device,
        dtype: DType,
    ) -> Result<(Self, Vec<Detections>)> {
        let total = bytes.iter().map(|bytes| bytes.len()).sum::<usize>();
        let pixels = Tensor::zeros(total, DType::U8, device)?;
        upload_into(bytes, &pixels)?;
        let forward = || forward(network, &pixels, &sizes, &settings, dtype);
        let results = forward()?.pack()?;
        let detections = results.to_host()?;
        let recording =
            Recording::new(of("a CUDA graph", device)?, || results.repack(&forward()?))?;
        Ok((Self { pixels: pixels.clone(), results, recording, sizes, settings }, detections))
    }
}

/// A forward pass from bytes that lie on the device.
fn forward(
    network: &DetectionNetwork,
    pixels: &Tensor,
    sizes: &[ImageSize],
    settings: &Settings,
    dtype: DType,
) -> Result<DetectionBatch> {
    let mut start = 0;
    let mut images = Vec::with_capacity(sizes.len());
    for size in sizes {
        let length = size.height * size.width * 3;
        let image = pixels.narrow(0, start, length)?.reshape((size.height, size.width, 3))?;
        images.push(image);
        start += length;
    }
    let sources: Vec<PixelSource> = images.iter().map(PixelSource::Resident).collect();
    let sizes = sizes.iter().copied();
    let batch = transform::batch_of(&sources, sizes, &settings.image, pixels.device(), dtype)?;
    network.detect(&batch, &settings.detections)
}

fn bytes(image: &ImageInput) -> Option<&[u8]> {
    match image.pixels() {
        Pixels::Rgb8(bytes) => Some(bytes),
        Pixels::Planar(_) => None,
    }
}
