//! Numbers that follow from shapes, as structs that travel as kernel arguments. Their twins are in `tables.cuh`.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;

/// Entries of a [`Table`].
pub(super) const TABLE: usize = 8;
/// Images of one launch.
const IMAGES: usize = 32;

/// A table of up to eight tensors, such as the levels of a pyramid: address and length of each.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Table {
    pointers: [u64; TABLE],
    lengths: [u32; TABLE],
}

// SAFETY: plain numbers in C's order, without padding.
unsafe impl DeviceRepr for Table {}

impl Table {
    /// The most entries.
    pub const CAPACITY: usize = TABLE;

    /// A table of the first [`Self::CAPACITY`] entries.
    pub fn new(entries: impl IntoIterator<Item = (u64, usize)>) -> Self {
        let mut table = Self::default();
        for (place, (pointer, length)) in entries.into_iter().take(TABLE).enumerate() {
            table.pointers[place] = pointer;
            table.lengths[place] = length as u32;
        }
        table
    }
}

/// Height and width of some images of a batch.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageSizes {
    height: [f32; IMAGES],
    width: [f32; IMAGES],
}

// SAFETY: plain numbers in C's order, without padding.
unsafe impl DeviceRepr for ImageSizes {}

impl ImageSizes {
    /// All images of a batch in parts that fit a launch: number of the first image, number of images, sizes.
    pub fn parts(
        sizes: impl IntoIterator<Item = (f32, f32)>,
    ) -> impl Iterator<Item = (usize, usize, Self)> {
        let sizes: Vec<_> = sizes.into_iter().collect();
        let starts = (0..sizes.len()).step_by(IMAGES);
        starts.map(move |first| {
            let part = &sizes[first..sizes.len().min(first + IMAGES)];
            let mut table = Self { height: [0.0; IMAGES], width: [0.0; IMAGES] };
            for (place, (height, width)) in part.iter().enumerate() {
                table.height[place] = *height;
                table.width[place] = *width;
            }
            (first, part.len(), table)
        })
    }
}
