//! Keypoints on the host: as a model finds them, and as people labelled them.

/// A keypoint that a model found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Keypoint {
    /// Column, in pixels of the original image.
    pub x: f32,
    /// Row, in pixels of the original image.
    pub y: f32,
    /// How sure the model is of the place: the height of its heatmap's peak, a logit without bounds. It tells keypoints
    /// that show from those that don't, and is no probability.
    pub score: f32,
}

/// Limbs of a person in COCO: pairs of its 17 keypoints (nose, eyes, ears, shoulders, elbows, wrists, hips, knees,
/// ankles, each left before right), by position from 0 on.
///
/// Source: `skeleton` of COCO's `person_keypoints_val2017.json`.
pub const COCO_SKELETON: [[usize; 2]; 19] = [
    [15, 13],
    [13, 11],
    [16, 14],
    [14, 12],
    [11, 12],
    [5, 11],
    [6, 12],
    [5, 6],
    [5, 7],
    [6, 8],
    [7, 9],
    [8, 10],
    [1, 2],
    [0, 1],
    [0, 2],
    [1, 3],
    [2, 4],
    [3, 5],
    [4, 6],
];

/// How much of a labelled keypoint is to be seen, as COCO has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Visibility {
    /// 0: nobody said where it is; its coordinates mean nothing.
    #[default]
    Unlabelled,
    /// 1: its place is known though something covers it.
    Hidden,
    /// 2: it is seen.
    Visible,
}

impl Visibility {
    /// From COCO's number; `None` for another one.
    pub fn from_number(number: f64) -> Option<Self> {
        [Self::Unlabelled, Self::Hidden, Self::Visible]
            .into_iter()
            .find(|one| f64::from(one.number()) == number)
    }

    /// COCO's number: 0, 1 or 2.
    pub fn number(self) -> u8 {
        match self {
            Self::Unlabelled => 0,
            Self::Hidden => 1,
            Self::Visible => 2,
        }
    }

    /// Whether the keypoint has a place.
    pub fn is_labelled(self) -> bool {
        self != Self::Unlabelled
    }
}

/// A keypoint of a known object.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TargetKeypoint {
    /// Column in pixels; 0 where nobody labelled it.
    pub x: f32,
    /// Row in pixels; 0 where nobody labelled it.
    pub y: f32,
    /// Whether it is labelled, and to be seen.
    pub visibility: Visibility,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visibility_has_three_numbers() {
        for number in 0..3u8 {
            let visibility = Visibility::from_number(f64::from(number)).unwrap();
            assert_eq!(visibility.number(), number);
            assert_eq!(visibility.is_labelled(), number > 0);
        }
        for other in [-1.0, 0.5, 3.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Visibility::from_number(other), None);
        }
    }
}
