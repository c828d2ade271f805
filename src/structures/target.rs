//! What an image is known to show: the truth that training compares predictions with.

use super::detections::BoxXyxy;
use super::image::ImageSize;
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
}

/// Whether a model learns masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaskUse {
    /// It has a mask head: every object needs an outline.
    Needed,
    /// It has none: outlines are not looked at.
    Ignored,
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
    /// Boxes are finite and have a positive width and height; they may leave the image. Areas of masks are not looked
    /// at.
    ///
    /// # Errors
    /// [`Error::Target`], naming the image, the object, its value and what would be right.
    pub fn validate(&self, size: ImageSize, num_classes: usize, masks: MaskUse) -> Result<()> {
        let counted = |what: &str, found: usize| {
            let expected = format!("{}, one per box", self.len());
            if found == self.len() {
                Ok(())
            } else {
                Err(self.fault(what, format!("{found} entries"), expected))
            }
        };
        counted("labels", self.labels.len())?;
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
        if masks == MaskUse::Ignored {
            return Ok(());
        }
        counted("masks", self.masks.len())?;
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

    fn fault(&self, entry: &str, found: String, expected: String) -> Error {
        Error::Target { image_id: self.image_id, entry: entry.to_owned(), found, expected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        }
    }

    #[test]
    fn a_usable_target_passes_and_so_does_an_empty_one() {
        target().validate(SIZE, 5, MaskUse::Needed).unwrap();
        let empty = Target { image_id: 1, boxes: vec![], labels: vec![], masks: vec![] };
        empty.validate(SIZE, 5, MaskUse::Needed).unwrap();
        let boxes_only = Target { masks: vec![], ..target() };
        boxes_only.validate(SIZE, 5, MaskUse::Ignored).unwrap();
    }

    /// Each edit breaks one rule; the message must name the image, the entry and the value.
    #[test]
    fn faults_are_named() {
        type Edit = fn(&mut Target);
        let cases: [(&str, &str, Edit); 10] = [
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
            ("masks[1]", "60×40", |t| t.masks[1].size = ImageSize { height: 60, width: 40 }),
        ];
        for (entry, found, edit) in cases {
            let mut target = target();
            edit(&mut target);
            let message = target.validate(SIZE, 5, MaskUse::Needed).unwrap_err().to_string();
            assert!(message.contains("image 7"), "{message}");
            assert!(message.contains(&format!("`{entry}`")), "{entry}: {message}");
            assert!(message.contains(found), "{found}: {message}");
        }
    }
}
