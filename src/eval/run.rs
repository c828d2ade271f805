//! From images to detections: decoding runs ahead on its own thread while the model works.

use std::sync::mpsc::sync_channel;

use rayon::prelude::*;

use super::{CocoDataset, CocoSample, Plan};
use crate::error::{Error, Result};
use crate::image_input::ImageInput;
use crate::progress::{Event, Progress};
use crate::structures::Detections;

/// Decoded batches waiting for the model.
const AHEAD: usize = 2;

type Decoded = Result<Vec<ImageInput>>;

/// Passes all images of a plan through a model, in order, and each image's detections on to `record`.
///
/// `detect` takes a batch and returns one entry per image. Batches for whose images `wanted` is false altogether are
/// skipped; they count as done.
///
/// # Errors
/// The first of: an image that cannot be decoded or has another size than the data set says, an error of `detect` or `record`,
/// [`Error::Cancelled`] when `progress` asks to stop.
pub fn detect_images(
    dataset: &CocoDataset,
    plan: &Plan,
    wanted: &(dyn Fn(u64) -> bool + Sync),
    detect: &mut dyn FnMut(&[ImageInput]) -> Result<Vec<Detections>>,
    record: &mut dyn FnMut(u64, Detections) -> Result<()>,
    progress: &dyn Progress,
) -> Result<()> {
    let total = plan.batches().iter().map(Vec::len).sum();
    let todo: Vec<&Vec<u64>> =
        plan.batches().iter().filter(|batch| batch.iter().any(|&id| wanted(id))).collect();
    let mut done = total - todo.iter().map(|batch| batch.len()).sum::<usize>();
    std::thread::scope(|scope| {
        let (sender, receiver) = sync_channel::<Decoded>(AHEAD);
        let batches = &todo;
        scope.spawn(move || {
            for batch in batches.iter() {
                // Fails once the model's side has given up.
                if sender.send(decode(dataset, batch)).is_err() {
                    break;
                }
            }
        });
        // An early return drops the receiver, which hangs up on the decoder and lets the scope end.
        for batch in &todo {
            let Ok(images) = receiver.recv() else { break };
            let found = detect(&images?)?;
            for (&id, detections) in batch.iter().zip(found) {
                if wanted(id) {
                    record(id, detections)?;
                }
                done += 1;
                if progress.report(Event::Evaluating { image: id, done, total }).is_break() {
                    return Err(Error::Cancelled);
                }
            }
        }
        Ok(())
    })
}

fn decode(dataset: &CocoDataset, batch: &[u64]) -> Decoded {
    batch
        .par_iter()
        .map(|&id| match dataset.image(id) {
            Some(image) => CocoSample::new(dataset, image).image(),
            None => Err(Error::Dataset {
                path: dataset.path().to_owned(),
                entry: format!("image {id}"),
                problem: "the data set has no such image".to_owned(),
            }),
        })
        .collect()
}
