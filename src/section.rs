//! What the sections of a model file have in common: how their numbers are checked.
//!
//! Each section is defined, checked and used by the room that it configures; this room knows nothing of any of them.

use crate::error::{Error, Result};

/// Checks the numbers of a section, and names the field at fault by its place in the model file.
#[derive(Debug, Clone)]
pub struct Checks {
    /// The file, or the model's name.
    origin: String,
    /// Dotted path of the section; empty for the file itself.
    path: String,
}

impl Checks {
    /// Checks of a whole model file, which errors call `origin`.
    pub fn new(origin: &str) -> Self {
        Self { origin: origin.to_owned(), path: String::new() }
    }

    /// Checks of a section within this one.
    pub fn section(&self, name: &str) -> Self {
        Self { origin: self.origin.clone(), path: self.path_of(name) }
    }

    /// The error that says what a field of this section is, and what it should be.
    pub fn fault(
        &self,
        field: &str,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Error {
        Error::Config {
            origin: self.origin.clone(),
            field: self.path_of(field),
            found: found.into(),
            expected: expected.into(),
        }
    }

    /// Accepts a field if something holds for it.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn require(
        &self,
        condition: Condition,
        field: &str,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Result<()> {
        match condition {
            Condition::Met => Ok(()),
            Condition::NotMet => Err(self.fault(field, found, expected)),
        }
    }

    /// Accepts numbers of at least 1.
    ///
    /// # Errors
    /// [`Error::Config`], naming the first that is 0.
    pub fn at_least_one(&self, counts: &[(&str, usize)]) -> Result<()> {
        counts.iter().try_for_each(|(field, value)| {
            self.require((*value > 0).into(), field, value.to_string(), "at least 1")
        })
    }

    /// Accepts numbers from 0 to 1.
    ///
    /// # Errors
    /// [`Error::Config`], naming the first beyond.
    pub fn fractions(&self, fractions: &[(&str, f64)]) -> Result<()> {
        fractions.iter().try_for_each(|(field, value)| {
            let inside = (0.0..=1.0).contains(value);
            self.require(inside.into(), field, value.to_string(), "a value in 0..=1")
        })
    }

    /// Accepts sides of boxes in pixels.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn side(&self, field: &str, value: f32) -> Result<()> {
        self.require((value >= 0.0).into(), field, value.to_string(), "pixels, at least 0")
    }

    /// Accepts what is added to a variance.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn eps(&self, field: &str, value: f64) -> Result<()> {
        self.require((value >= 0.0).into(), field, value.to_string(), "at least 0")
    }

    /// Accepts positive, finite numbers.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn positive(&self, field: &str, values: &[f32]) -> Result<()> {
        let usable = values.iter().all(|value| *value > 0.0 && value.is_finite());
        self.require(usable.into(), field, format!("{values:?}"), "positive numbers")
    }

    /// Accepts the two overlaps of a matching: from `positive` on a box has found an object, below `negative` nothing.
    ///
    /// # Errors
    /// [`Error::Config`], naming `positive_iou`.
    pub fn matching(&self, positive: f32, negative: f32) -> Result<()> {
        let usable = negative >= 0.0 && positive >= negative && positive <= 1.0;
        // An IoU of 0 must not be a match: every box would have every object's class.
        self.require(
            (usable && positive > 0.0).into(),
            "positive_iou",
            positive.to_string(),
            format!("a value above 0, from negative_iou ({negative}) to 1"),
        )
    }

    fn path_of(&self, name: &str) -> String {
        match (self.path.is_empty(), name.is_empty()) {
            (true, _) => name.to_owned(),
            (false, true) => self.path.clone(),
            (false, false) => format!("{}.{name}", self.path),
        }
    }
}

/// Whether something holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// It does.
    Met,
    /// It doesn't.
    NotMet,
}

impl From<bool> for Condition {
    fn from(holds: bool) -> Self {
        if holds { Self::Met } else { Self::NotMet }
    }
}
