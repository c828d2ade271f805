//! What becomes of boxes that are compared with objects: numbers of tensors, and their meaning.

/// The label of a slot that nothing is learned from: an empty one.
pub const IGNORED_LABEL: u32 = u32::MAX;

/// What a box is to learn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    /// It is neither near enough to an object nor far enough from all, or no box at all: nothing is learned from it.
    Ignored,
    /// It shows no object.
    Background,
    /// It has found the object of this index.
    Object(u32),
}

impl Match {
    /// As a number of a tensor: 0 for ignored, 1 for background, 2 and more for objects.
    pub fn code(self) -> u32 {
        match self {
            Self::Ignored => 0,
            Self::Background => 1,
            Self::Object(index) => index + 2,
        }
    }

    /// The inverse of [`Self::code`].
    pub fn from_code(code: u32) -> Self {
        match code {
            0 => Self::Ignored,
            1 => Self::Background,
            code => Self::Object(code - 2),
        }
    }
}
