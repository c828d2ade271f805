//! What is odd about a data set, though COCO's own tools accept it.

use std::fmt;

/// What happens to annotations that are odd but evaluable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tolerance {
    /// They count as in pycocotools, and [`CocoDataset::findings`](super::CocoDataset::findings) lists them.
    #[default]
    Report,
    /// The first of them is an error.
    Reject,
}

/// A kind of oddity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FindingKind {
    /// A box of no width or no height: an object that no detection can find.
    EmptyBox,
    /// A polygon with an odd number of values or fewer than three corners; it is left out.
    ShortPolygon,
    /// Polygons that enclose nothing: an object whose mask no detection can find.
    FlatPolygon,
    /// An empty list of polygons: an object whose mask no detection can find.
    NoPolygon,
    /// Run lengths that stop before the last pixel; the rest is 0.
    ShortRle,
    /// No `area`; that of the mask is taken, or of the box where there is no mask.
    MissingArea,
    /// No `bbox`; the extent of the outline is taken.
    MissingBox,
    /// A box that leaves the image by more than a pixel; listed when one box in ten does, as happens when `x1, y1, x2, y2`
    /// is written in place of `x, y, width, height`.
    OutsideImage,
    /// A `num_keypoints` that is not the number of keypoints labelled; an object with 0 there is ignored by the figures.
    KeypointCount,
}

impl FindingKind {
    /// Whether [`Tolerance::Reject`] makes it an error.
    pub(super) fn is_fault(self) -> bool {
        matches!(
            self,
            Self::EmptyBox
                | Self::ShortPolygon
                | Self::FlatPolygon
                | Self::NoPolygon
                | Self::ShortRle
                | Self::KeypointCount
        )
    }

    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::EmptyBox => "a box without width or height, which no detection can find",
            Self::ShortPolygon => {
                "a polygon with an odd number of values or fewer than three corners, left out"
            }
            Self::FlatPolygon => "polygons that enclose nothing, which no mask can find",
            Self::NoPolygon => "an empty list of polygons, which no mask can find",
            Self::ShortRle => "run lengths that stop before the last pixel, the rest taken as 0",
            Self::KeypointCount => {
                "a `num_keypoints` that is not the number of labelled keypoints, taken as it is"
            }
            Self::MissingArea => "no `area`; that of mask or box is taken",
            Self::MissingBox => "no `bbox`; the extent of the outline is taken",
            Self::OutsideImage => {
                "a box that leaves its image; are these `x1, y1, x2, y2` in place of `x, y, width, height`?"
            }
        }
    }
}

/// An oddity and the annotations that have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What is odd.
    pub kind: FindingKind,
    /// How many annotations have it.
    pub count: usize,
    /// The first of them, in the order of the file: position and id.
    pub first: Vec<(usize, u64)>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<String> = self.first.iter().map(|(_, id)| id.to_string()).collect();
        let more = if self.count > self.first.len() { ", …" } else { "" };
        let noun = if self.count == 1 { "annotation has" } else { "annotations have" };
        write!(f, "{} {noun} {} (ids {}{more})", self.count, self.kind.describe(), ids.join(", "))
    }
}

/// Gathers findings.
#[derive(Default)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    const LISTED: usize = 10;

    pub fn note(&mut self, kind: FindingKind, position: usize, id: u64) {
        let at = match self.0.iter().position(|finding| finding.kind == kind) {
            Some(at) => at,
            None => {
                self.0.push(Finding { kind, count: 0, first: Vec::new() });
                self.0.len() - 1
            }
        };
        let finding = &mut self.0[at];
        finding.count += 1;
        if finding.first.len() < Self::LISTED {
            finding.first.push((position, id));
        }
    }

    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub fn into_vec(mut self) -> Vec<Finding> {
        self.0.sort_by_key(|finding| finding.kind);
        self.0
    }
}
