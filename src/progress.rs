//! Progress of long work, reported to the caller, who may stop it.

use std::ops::ControlFlow;

/// One step of long work.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A weight file is being fetched; counts are bytes.
    Downloading {
        /// Name of the file.
        file: &'a str,
        /// Bytes on disk so far.
        done: u64,
        /// Bytes in all, where the server told.
        total: Option<u64>,
    },
    /// A data set is being evaluated; counts are images.
    Evaluating {
        /// COCO id of the image just finished.
        image: u64,
        /// Images finished.
        done: usize,
        /// Images in all.
        total: usize,
    },
}

/// A receiver of [`Event`]s. Implemented for closures.
///
/// [`ControlFlow::Break`] ends the work with [`Error::Cancelled`](crate::Error::Cancelled).
pub trait Progress: Send + Sync {
    /// Takes one event.
    fn report(&self, event: Event<'_>) -> ControlFlow<()>;
}

impl<F: Fn(Event<'_>) -> ControlFlow<()> + Send + Sync> Progress for F {
    fn report(&self, event: Event<'_>) -> ControlFlow<()> {
        self(event)
    }
}

/// A [`Progress`] that tells nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn report(&self, _event: Event<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
