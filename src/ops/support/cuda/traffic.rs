//! Counts of what the library asks of the driver. Nothing else in a program is counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// What the library asked of all GPUs since the program began.
///
/// A forward pass should add one upload and one download; [`crate::device::traffic`] reads the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Traffic {
    /// Copies from the host to a device.
    pub uploads: u64,
    /// Copies from a device to the host, each of which waits for the device.
    pub downloads: u64,
    /// Kernels of the library that were started.
    pub launches: u64,
    /// Products and convolutions asked of cuBLAS and cuDNN; each starts a kernel or several.
    pub products: u64,
    /// CUDA graphs started, with all kernels in them.
    pub replays: u64,
}

/// Something that is counted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    Upload,
    Download,
    Launch,
    Product,
    Replay,
}

static COUNTS: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];

/// Counts an event.
pub(crate) fn count(event: Event) {
    // The counts order nothing.
    COUNTS[event as usize].fetch_add(1, Ordering::Relaxed);
}

/// The counts so far.
pub(crate) fn traffic() -> Traffic {
    let count = |event: Event| COUNTS[event as usize].load(Ordering::Relaxed);
    Traffic {
        uploads: count(Event::Upload),
        downloads: count(Event::Download),
        launches: count(Event::Launch),
        products: count(Event::Product),
        replays: count(Event::Replay),
    }
}
