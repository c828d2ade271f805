//! What an image is known to show: the truth that training compares predictions with.

use super::boxes::BoxXyxy;
use super::detections::InstanceParts;
use super::image::ImageSize;
use super::keypoints::TargetKeypoint;
use super::mask::Rle;
use crate::error::{Error, Result};

/// Ground truth of one image, in pixels of that image before any resizing.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// Which image, as errors and logs name it.
    pub image_id: u64,
    /// One per object; none for an image that shows nothing.
    pub boxes: Vec<BoxXyxy>,
    /// Category id per object, `1..num_classes`; 0 is the background and belongs to no object.
    pub labels: Vec<u32>,
    /// Outline per object, of the image's size; empty where the data has no masks.
    pub masks: Vec<Rle>,
    /// Keypoints per object, as many for each and in one order; empty where the data has no keypoints.
    pub keypoints: Vec<Vec<TargetKeypoint>>,
}

/// Whether a model learns masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaskUse {
    /// It has a mask head: every object needs an outline.
    Needed,
    /// It has none: outlines are not looked at.
    Ignored,
}

/// Whether a model learns keypoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeypointUse {
    /// It has a keypoint head: every object needs this many.
    Needed(usize),
    /// It has none: keypoints are not looked at.
    Ignored,
}

/// What a model learns from, beside boxes and labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetNeeds {
    /// Outlines.
    pub masks: MaskUse,
    /// Keypoints.
    pub keypoints: KeypointUse,
}

impl TargetNeeds {
    /// Boxes and labels alone.
    pub const BOXES: Self = Self { masks: MaskUse::Ignored, keypoints: KeypointUse::Ignored };
    /// Outlines too.
    pub const MASKS: Self = Self { masks: MaskUse::Needed, keypoints: KeypointUse::Ignored };

    /// This many keypoints of every object too.
    pub fn keypoints(count: usize) -> Self {
        Self { keypoints: KeypointUse::Needed(count), ..Self::BOXES }
    }

    /// What either needs; of two numbers of keypoints, that of `other`.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let masks = if other.masks == MaskUse::Needed { other.masks } else { self.masks };
        let keypoints = match other.keypoints {
            KeypointUse::Needed(_) => other.keypoints,
            KeypointUse::Ignored => self.keypoints,
        };
        Self { masks, keypoints }
    }
}

/// What a model says of objects is what it learns of them.
impl From<InstanceParts> for TargetNeeds {
    fn from(parts: InstanceParts) -> Self {
        Self {
            masks: if parts.masks { MaskUse::Needed } else { MaskUse::Ignored },
            keypoints: parts.keypoints.map_or(KeypointUse::Ignored, KeypointUse::Needed),
        }
    }
}

impl Target {
    /// Objects in the image.
    pub fn len(&self) -> usize {
        self.boxes.len()
    }

    /// Whether the image shows nothing.
    pub fn is_empty(&self) -> bool {
        self.boxes.is_empty()
    }

    /// Checks that a model of `num_classes` classes, the background included, can learn from this target of an image
    /// of `size`.
    ///
    /// Boxes are finite and have a positive width and height; they may leave the image, and so may keypoints, which are
    /// finite even where nobody labelled them. Areas of masks are not looked at. Outlines and keypoints that the model
    /// does not learn from are not looked at either.
    ///
    /// # Errors
    /// [`Error::Target`], naming the image, the object, its value and what would be right.
    pub fn validate(&self, size: ImageSize, num_classes: usize, needs: TargetNeeds) -> Result<()> {
        self.validate_objects(num_classes)?;
        if needs.masks == MaskUse::Needed {
            self.validate_masks(size)?;
        }
        match needs.keypoints {
            KeypointUse::Needed(count) => self.validate_keypoints(count),
            KeypointUse::Ignored => Ok(()),
        }
    }

    fn validate_objects(&self, num_classes: usize) -> Result<()> {
        self.counted("labels", self.labels.len(), "one per box")?;
        for (index, bbox) in self.boxes.iter().enumerate() {
            let BoxXyxy { x1, y1, x2, y2 } = *bbox;
            let finite = [x1, y1, x2, y2].iter().all(|side| side.is_finite());
            if !(finite && x2 > x1 && y2 > y1) {
                return Err(self.fault(
                    &format!("boxes[{index}]"),
                    format!("[{x1}, {y1}, {x2}, {y2}]"),
                    "finite x1, y1, x2, y2 in pixels, with x1 < x2 and y1 < y2".to_owned(),
                ));
            }
        }
        for (index, &label) in self.labels.iter().enumerate() {
            if label == 0 || label as usize >= num_classes {
                return Err(self.fault(
                    &format!("labels[{index}]"),
                    label.to_string(),
                    format!(
                        "1 to {}: the model has {num_classes} classes, of which 0 is the background",
                        num_classes.saturating_sub(1)
                    ),
                ));
            }
        }
        Ok(())
    }

    fn validate_masks(&self, size: ImageSize) -> Result<()> {
        self.counted("masks", self.masks.len(), "one per box, as the model learns masks")?;
        for (index, mask) in self.masks.iter().enumerate() {
            if mask.size != size {
                return Err(self.fault(
                    &format!("masks[{index}]"),
                    format!("a mask of {}", mask.size),
                    format!("the image's size, {size}"),
                ));
            }
            mask.validate()?;
        }
        Ok(())
    }

    fn validate_keypoints(&self, count: usize) -> Result<()> {
        let learns = format!("one list of {count} per box, as the model learns keypoints");
        self.counted("keypoints", self.keypoints.len(), &learns)?;
        for (index, points) in self.keypoints.iter().enumerate() {
            if points.len() != count {
                return Err(self.fault(
                    &format!("keypoints[{index}]"),
                    format!("{} keypoints", points.len()),
                    format!("{count}, as many as the model learns"),
                ));
            }
            let unplaced = points.iter().position(|p| !(p.x.is_finite() && p.y.is_finite()));
            if let Some(at) = unplaced {
                return Err(self.fault(
                    &format!("keypoints[{index}][{at}]"),
                    format!("[{}, {}]", points[at].x, points[at].y),
                    "finite x, y in pixels; 0, 0 where nobody labelled it".to_owned(),
                ));
            }
        }
        Ok(())
    }

    fn counted(&self, what: &str, found: usize, each: &str) -> Result<()> {
        if found == self.len() {
            return Ok(());
        }
        Err(self.fault(what, format!("{found} entries"), format!("{}, {each}", self.len())))
    }

    fn fault(&self, entry: &str, found: String, expected: String) -> Error {
        Error::Target { image_id: self.image_id, entry: entry.to_owned(), found, expected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structures::Visibility;

    const NEEDS: TargetNeeds =
        TargetNeeds { masks: MaskUse::Needed, keypoints: KeypointUse::Needed(3) };
    const SIZE: ImageSize = ImageSize { height: 40, width: 60 };

    fn target() -> Target {
        let mask = Rle { size: SIZE, counts: vec![100, 50, 40 * 60 - 150] };
        Target {
            image_id: 7,
            boxes: vec![
                BoxXyxy { x1: 1.0, y1: 2.0, x2: 30.0, y2: 20.0 },
                BoxXyxy { x1: -5.0, y1: 2.0, x2: 70.0, y2: 20.5 },
            ],
            labels: vec![1, 4],
            masks: vec![mask; 2],
            keypoints: vec![
                vec![
                    TargetKeypoint { x: 3.0, y: 4.5, visibility: Visibility::Visible },
                    TargetKeypoint::default(),
                    TargetKeypoint { x: -2.0, y: 70.0, visibility: Visibility::Hidden },
                ];
                2
            ],
        }
    }

    #[test]
    fn a_usable_target_passes_and_so_does_an_empty_one() {
        target().validate(SIZE, 5, NEEDS).unwrap();
        let empty =
            Target { image_id: 1, boxes: vec![], labels: vec![], masks: vec![], keypoints: vec![] };
        empty.validate(SIZE, 5, NEEDS).unwrap();
        let no_masks = Target { masks: vec![], ..target() };
        no_masks.validate(SIZE, 5, TargetNeeds::BOXES).unwrap();
        no_masks.validate(SIZE, 5, TargetNeeds::keypoints(3)).unwrap();
        let boxes_only = Target { keypoints: vec![], ..no_masks };
        boxes_only.validate(SIZE, 5, TargetNeeds::BOXES).unwrap();
        // Of no use to such a model, so whatever they are.
        let mut odd = target();
        odd.keypoints[1][0].x = f32::NAN;
        odd.keypoints.truncate(1);
        odd.validate(SIZE, 5, TargetNeeds::MASKS).unwrap();
    }

    /// Each edit breaks one rule; the message must name the image, the entry and the value.
    #[test]
    fn faults_are_named() {
        type Edit = fn(&mut Target);
        let cases: [(&str, &str, Edit); 15] = [
            ("boxes[0]", "[10, 10, 10, 20]", |t| {
                t.boxes[0] = BoxXyxy { x1: 10.0, y1: 10.0, x2: 10.0, y2: 20.0 }
            }),
            // x, y, width, height given by mistake.
            ("boxes[1]", "[50, 10, 8, 20]", |t| {
                t.boxes[1] = BoxXyxy { x1: 50.0, y1: 10.0, x2: 8.0, y2: 20.0 }
            }),
            ("boxes[1]", "[0, NaN, 8, 20]", |t| {
                t.boxes[1] = BoxXyxy { x1: 0.0, y1: f32::NAN, x2: 8.0, y2: 20.0 }
            }),
            ("boxes[0]", "[0, 0, inf, 20]", |t| {
                t.boxes[0] = BoxXyxy { x1: 0.0, y1: 0.0, x2: f32::INFINITY, y2: 20.0 }
            }),
            ("labels[1]", "is 91", |t| t.labels[1] = 91),
            ("labels[0]", "is 5", |t| t.labels[0] = 5),
            ("labels[0]", "is 0", |t| t.labels[0] = 0),
            ("labels", "1 entries", |t| t.labels.truncate(1)),
            ("masks", "0 entries", |t| t.masks.clear()),
            ("masks", "the model learns masks", |t| t.masks.truncate(1)),
            ("masks[1]", "60×40", |t| t.masks[1].size = ImageSize { height: 60, width: 40 }),
            ("keypoints", "the model learns keypoints", |t| t.keypoints.clear()),
            ("keypoints[1]", "2 keypoints", |t| t.keypoints[1].truncate(2)),
            ("keypoints[0][2]", "[NaN, 70]", |t| t.keypoints[0][2].x = f32::NAN),
            ("keypoints[1][1]", "[0, inf]", |t| t.keypoints[1][1].y = f32::INFINITY),
        ];
        for (entry, found, edit) in cases {
            let mut target = target();
            edit(&mut target);
            let message = target.validate(SIZE, 5, NEEDS).unwrap_err().to_string();
            assert!(message.contains("image 7"), "{message}");
            assert!(message.contains(&format!("`{entry}`")), "{entry}: {message}");
            assert!(message.contains(found), "{found}: {message}");
        }
    }
}
