//! Typed fields of one JSON entry, with errors that name entry and field.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::error::{Error, Result};

/// How much of a wrong value an error repeats, in characters.
const SHOWN: usize = 48;

/// Which entry of which file is being read.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub path: &'a Path,
    /// Name of the list.
    pub list: &'static str,
    /// Position in it.
    pub index: usize,
    /// The entry's id, once known.
    pub id: Option<u64>,
}

impl Place<'_> {
    /// `annotations[17] (id 42)`.
    pub fn name(&self) -> String {
        match self.id {
            Some(id) => format!("{}[{}] (id {id})", self.list, self.index),
            None => format!("{}[{}]", self.list, self.index),
        }
    }

    /// An error about this entry.
    pub fn fault(&self, problem: impl Into<String>) -> Error {
        Error::Dataset { path: self.path.to_owned(), entry: self.name(), problem: problem.into() }
    }

    /// An error about a field of this entry.
    pub fn wrong(&self, field: &str, found: &str, expected: &str) -> Error {
        self.fault(format!("`{field}` is {}, expected {expected}", shorten(found)))
    }

    /// A field that must be there.
    pub fn required<'r>(&self, field: &str, raw: Option<&'r RawValue>) -> Result<&'r RawValue> {
        raw.ok_or_else(|| self.fault(format!("`{field}` is missing")))
    }

    /// A field of any type that serde knows.
    pub fn value<T: DeserializeOwned>(
        &self,
        field: &str,
        raw: &RawValue,
        expected: &str,
    ) -> Result<T> {
        serde_json::from_str(raw.get()).map_err(|_| self.wrong(field, raw.get(), expected))
    }

    /// A whole number from 0 on; `17.0`, as pandas writes it, counts as one.
    pub fn whole(&self, field: &str, raw: &RawValue) -> Result<u64> {
        let text = raw.get();
        if let Ok(value) = text.parse::<u64>() {
            return Ok(value);
        }
        // Above 2^53 a float has no room for single units; an id written so could be any of several.
        match text.parse::<f64>() {
            Ok(value)
                if value.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&value) =>
            {
                Ok(value as u64)
            }
            _ => Err(self.wrong(field, text, "a whole number from 0 on")),
        }
    }

    /// A whole number from 0 on that must be there.
    pub fn required_whole(&self, field: &str, raw: Option<&RawValue>) -> Result<u64> {
        self.whole(field, self.required(field, raw)?)
    }

    /// A flag: `0`, `1`, `0.0`, `1.0`, `false` or `true`; 0 when absent or null.
    pub fn flag(&self, field: &str, raw: Option<&RawValue>) -> Result<bool> {
        match raw.map(RawValue::get) {
            None | Some("null" | "false") => Ok(false),
            Some("true") => Ok(true),
            Some(text) => match text.parse::<f64>() {
                Ok(0.0) => Ok(false),
                Ok(1.0) => Ok(true),
                _ => Err(self.wrong(field, text, "0 or 1")),
            },
        }
    }
}

/// Whether a field is there and not `null`.
pub(crate) fn given(raw: Option<&RawValue>) -> Option<&RawValue> {
    raw.filter(|raw| raw.get() != "null")
}

fn shorten(text: &str) -> String {
    if text.chars().count() <= SHOWN {
        return text.to_owned();
    }
    text.chars().take(SHOWN).chain(['…']).collect()
}
