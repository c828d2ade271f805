//! Keypoints that move with their pixels.

use std::sync::Arc;

use crate::structures::{ImageSize, TargetKeypoint, Visibility};

/// Which keypoint of an object shows where another one was, once left and right are mirrored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror(Arc<[usize]>);

/// Keypoints of an object, in pixels of its image.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectKeypoints {
    /// In the order of the data; those without a place are all zero.
    pub points: Vec<TargetKeypoint>,
    /// What becomes of them in a mirror.
    pub mirror: Mirror,
}

/// Keypoints of a person in COCO: the nose, then eight pairs.
const COCO: usize = 17;

impl Mirror {
    /// COCO's keypoints of a person: the nose stays, (1, 2), (3, 4) … (15, 16) change places.
    ///
    /// Reference: torchvision `references/detection/transforms.py`, `_flip_coco_person_keypoints`.
    pub fn coco() -> Self {
        let partner = |at: usize| if at == 0 { 0 } else { ((at - 1) ^ 1) + 1 };
        Self((0..COCO).map(partner).collect())
    }

    /// From names: `left_…` and `right_…` change places where there are both, all others stay.
    pub fn from_names(names: &[String]) -> Self {
        let partner = |(at, name): (usize, &String)| {
            let other = match (name.strip_prefix("left_"), name.strip_prefix("right_")) {
                (Some(rest), _) => format!("right_{rest}"),
                (_, Some(rest)) => format!("left_{rest}"),
                _ => return at,
            };
            names.iter().position(|name| *name == other).unwrap_or(at)
        };
        Self(names.iter().enumerate().map(partner).collect())
    }

    /// Of `count` keypoints without names: COCO's, if they are as many; else unknown.
    pub fn of_count(count: usize) -> Option<Self> {
        (count == COCO).then(Self::coco)
    }

    /// The partner of each keypoint, by position.
    pub fn partners(&self) -> &[usize] {
        &self.0
    }
}

impl ObjectKeypoints {
    /// Mirrors left and right of an image of this width.
    pub(super) fn flip(&mut self, width: f32) {
        let before = self.points.clone();
        for (at, point) in self.points.iter_mut().enumerate() {
            // One that the mirror does not know stays what it is.
            let partner = self.mirror.partners().get(at).and_then(|&partner| before.get(partner));
            let source = partner.unwrap_or(&before[at]);
            *point = placed(TargetKeypoint { x: width - source.x, ..*source });
        }
    }

    /// Moves all of them; those that leave the canvas lose their place.
    pub(super) fn moved(&self, canvas: ImageSize, place: impl Fn(f32, f32) -> [f32; 2]) -> Self {
        let (width, height) = (canvas.width as f32, canvas.height as f32);
        let moved = |point: &TargetKeypoint| {
            let [x, y] = place(point.x, point.y);
            match (0.0..=width).contains(&x) && (0.0..=height).contains(&y) {
                true => placed(TargetKeypoint { x, y, ..*point }),
                false => TargetKeypoint::default(),
            }
        };
        Self { points: self.points.iter().map(moved).collect(), mirror: self.mirror.clone() }
    }

    /// Notes that something is in front of the pixels for which `covers(column, row)`.
    pub(super) fn hide(&mut self, covers: impl Fn(u32, u32) -> bool) {
        for point in &mut self.points {
            // Casts of negative numbers end at 0.
            if point.visibility == Visibility::Visible && covers(point.x as u32, point.y as u32) {
                point.visibility = Visibility::Hidden;
            }
        }
    }
}

/// A keypoint whose coordinates are 0 where they mean nothing.
fn placed(point: TargetKeypoint) -> TargetKeypoint {
    if point.visibility.is_labelled() { point } else { TargetKeypoint::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn partners_follow_from_names_or_are_cocos() {
        let flip_inds = [0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15];
        assert_eq!(Mirror::coco().partners(), flip_inds);
        assert_eq!(Mirror::of_count(17), Some(Mirror::coco()));
        assert_eq!(Mirror::of_count(4), None);
        let odd = names(&["right_ear", "tail", "left_eye", "left_ear", "lefty"]);
        assert_eq!(Mirror::from_names(&odd).partners(), [3, 1, 2, 0, 4]);
        let person = names(&[
            "nose",
            "left_eye",
            "right_eye",
            "left_ear",
            "right_ear",
            "left_shoulder",
            "right_shoulder",
            "left_elbow",
            "right_elbow",
            "left_wrist",
            "right_wrist",
            "left_hip",
            "right_hip",
            "left_knee",
            "right_knee",
            "left_ankle",
            "right_ankle",
        ]);
        assert_eq!(Mirror::from_names(&person), Mirror::coco());
    }
}
