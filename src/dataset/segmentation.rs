//! Outlines of objects in the three forms that COCO files have them.

use serde::Serialize;

use crate::structures::ImageSize;

/// The outline of an object, in pixels of its image.
#[derive(Debug, Clone, PartialEq)]
pub enum Segmentation {
    /// None was given. Such an object has no part in mask figures.
    Absent,
    /// The union of polygons, each `x, y, x, y, …`, at least three corners. No polygon at all is an empty mask.
    Polygons(Vec<Vec<f64>>),
    /// Run lengths in COCO's compressed spelling.
    Rle {
        /// Size of the mask; always that of the image.
        size: ImageSize,
        /// ASCII text; decodes to runs that sum up to at most height · width, the rest being 0.
        counts: String,
    },
}

/// What a segmentation looked like before it was made usable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Oddities {
    /// Polygons with an odd number of values or fewer than six; they are left out.
    pub short_polygon: bool,
    /// All polygons together enclose nothing.
    pub flat_polygon: bool,
    /// The run lengths stop before the last pixel.
    pub short_rle: bool,
}

#[derive(Serialize)]
struct RleFields<'a> {
    size: [usize; 2],
    counts: &'a str,
}

impl Serialize for Segmentation {
    /// COCO's spelling; an absent one is `null`.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Absent => serializer.serialize_none(),
            Self::Polygons(polygons) => polygons.serialize(serializer),
            Self::Rle { size, counts } => {
                RleFields { size: [size.height, size.width], counts }.serialize(serializer)
            }
        }
    }
}
