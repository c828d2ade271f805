//! What training is fed with.

use std::fmt;

use crate::error::Result;
use crate::image_input::ImageInput;
use crate::structures::Target;

/// Images with what they show, in one order.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// Decoded images, of any sizes.
    pub images: Vec<ImageInput>,
    /// One per image, in pixels of that image.
    pub targets: Vec<Target>,
    /// Pixels of the shorter side after resizing, in place of the model's `image.min_size`.
    pub min_size: Option<usize>,
}

/// A place in the sequence of batches that a run sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    /// Passes over the data that are complete.
    pub epoch: u64,
    /// Batches of this pass that are complete, on this rank.
    pub index: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}, batch {}", self.epoch, self.index)
    }
}

/// Yields batches.
///
/// A batch depends on the source's own seed, the rank it serves and the position alone: asked twice for one position, a
/// source gives the same pixels and the same targets. That is what lets a run go on where it was interrupted.
pub trait BatchSource {
    /// Batches in each pass over the data; the same on every rank, at least 1.
    fn batches_per_epoch(&self) -> usize;

    /// The batch at a position with `index < batches_per_epoch()`.
    ///
    /// The positions of a run follow each other from the one it starts at, so that a source may prepare the next ones
    /// meanwhile.
    ///
    /// # Errors
    /// Those of reading and decoding.
    fn batch(&mut self, position: Position) -> Result<Batch>;
}
