//! How work is split over threads.

/// Work items below which starting threads costs more than it saves (measured on two cores: a rayon split is 5–10 µs).
pub(crate) const MIN_PARALLEL_WORK: usize = 4096;
