//! Label maps: category id → name.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Name and text of every built-in label map.
const LABEL_MAPS: &[(&str, &str)] = &[
    ("coco", include_str!("../../models/categories/coco.toml")),
    ("coco_person", include_str!("../../models/categories/coco_person.toml")),
    ("shapes", include_str!("../../models/categories/shapes.toml")),
];

/// Where a model's label map comes from: the name of a built-in one, or the names themselves.
///
/// ```toml
/// categories = "coco"                      # or:
/// categories = { 1 = "cat", 2 = "dog" }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CategorySource {
    /// A built-in label map, `models/categories/NAME.toml`.
    Named(String),
    /// Category id → name. Keys are decimal, as TOML keys are text.
    Inline(BTreeMap<String, String>),
}

impl CategorySource {
    /// Reads the label map, checked against the model's number of classes.
    ///
    /// # Errors
    /// [`Error::Config`] for an unknown name, a key that is no number, id 0, or an id beyond the classes.
    pub fn resolve(&self, origin: &str, num_classes: usize) -> Result<Categories> {
        let fault = |found: String, expected: String| Error::Config {
            origin: origin.to_owned(),
            field: "categories".to_owned(),
            found,
            expected,
        };
        let entries = match self {
            Self::Inline(entries) => entries.clone(),
            Self::Named(name) => {
                let (_, text) =
                    LABEL_MAPS.iter().find(|(known, _)| known == name).ok_or_else(|| {
                        let known: Vec<_> = LABEL_MAPS.iter().map(|(known, _)| *known).collect();
                        fault(
                            format!("`{name}`"),
                            format!("one of {}, or a table of id = \"name\"", known.join(", ")),
                        )
                    })?;
                toml::from_str(text).map_err(|source| Error::ConfigSyntax {
                    origin: format!("label map {name}"),
                    source: Box::new(source),
                })?
            }
        };
        let mut names = BTreeMap::new();
        for (key, name) in entries {
            let id: u32 = key.parse().map_err(|_| {
                fault(format!("keyed by `{key}`"), "decimal ids as keys".to_owned())
            })?;
            if id == 0 || id as usize >= num_classes {
                return Err(fault(
                    format!("naming id {id}"),
                    format!(
                        "ids 1..{num_classes} (0 is the background, num_classes is {num_classes})"
                    ),
                ));
            }
            names.insert(id, name);
        }
        Ok(Categories { names })
    }
}

/// A label map: category id → name. Ids may have gaps, as COCO's have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Categories {
    names: BTreeMap<u32, String>,
}

impl Categories {
    /// Name of a category, where it has one.
    pub fn name(&self, id: u32) -> Option<&str> {
        self.names.get(&id).map(String::as_str)
    }

    /// Ids and names, by ascending id.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &str)> {
        self.names.iter().map(|(id, name)| (*id, name.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coco_ids_have_their_gaps() {
        let coco = CategorySource::Named("coco".into()).resolve("test", 91).unwrap();
        let gaps: Vec<u32> = (1..91).filter(|id| coco.name(*id).is_none()).collect();
        assert_eq!(gaps, [12, 26, 29, 30, 45, 66, 68, 69, 71, 83]);
        assert_eq!(coco.name(1), Some("person"));
        assert_eq!(coco.name(13), Some("stop sign"));
        assert_eq!(coco.name(90), Some("toothbrush"));
        assert_eq!(coco.iter().count(), 80);
    }

    #[test]
    fn wrong_label_maps_are_named() {
        let beyond = CategorySource::Inline([("3".to_owned(), "dog".to_owned())].into());
        let message = beyond.resolve("my.toml", 3).unwrap_err().to_string();
        assert_eq!(
            message,
            "my.toml: `categories` is naming id 3, expected ids 1..3 (0 is the background, num_classes is 3)"
        );
        assert!(CategorySource::Named("lvis".into()).resolve("my.toml", 3).is_err());
        let text = CategorySource::Inline([("dog".to_owned(), "3".to_owned())].into());
        assert!(text.resolve("my.toml", 3).is_err());
    }
}
