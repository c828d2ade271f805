//! From the names in a file to torchvision's names of today. All knowledge about names is here.

use std::collections::BTreeMap;

/// Prefixes that wrappers of the whole network put before every name: parallel training, and
/// training frameworks that keep the network in a field.
const PREFIXES: [&str; 2] = ["module.", "model."];

/// One family of names of 2019: `before`, a number unless `Number::None`, a dot, `weight` or `bias`.
struct Rule {
    before: &'static str,
    number: Number,
    /// Replaces `before`.
    new_before: &'static str,
    /// Follows the number.
    new_after: &'static str,
}

/// What becomes of the number in a name.
enum Number {
    None,
    Kept,
    /// Counted from 1 then, from 0 today.
    LessOne,
}

const RULES: [Rule; 4] = [
    Rule {
        before: "backbone.fpn.inner_blocks.",
        number: Number::Kept,
        new_before: "backbone.fpn.inner_blocks.",
        new_after: ".0",
    },
    Rule {
        before: "backbone.fpn.layer_blocks.",
        number: Number::Kept,
        new_before: "backbone.fpn.layer_blocks.",
        new_after: ".0",
    },
    Rule {
        before: "rpn.head.conv",
        number: Number::None,
        new_before: "rpn.head.conv",
        new_after: ".0.0",
    },
    Rule {
        before: "roi_heads.mask_head.mask_fcn",
        number: Number::LessOne,
        new_before: "roi_heads.mask_head.",
        new_after: ".0",
    },
];

impl Rule {
    fn apply(&self, name: &str) -> Option<String> {
        let (middle, parameter) = name.strip_prefix(self.before)?.rsplit_once('.')?;
        if !matches!(parameter, "weight" | "bias") {
            return None;
        }
        let number = match self.number {
            Number::None if middle.is_empty() => String::new(),
            Number::None => return None,
            Number::Kept => middle.parse::<u32>().ok()?.to_string(),
            Number::LessOne => middle.parse::<u32>().ok()?.checked_sub(1)?.to_string(),
        };
        Some(format!("{}{number}{}.{parameter}", self.new_before, self.new_after))
    }
}

/// Names after renaming, and what was done.
#[derive(Debug)]
pub(super) struct Renamed<T> {
    pub(super) tensors: BTreeMap<String, T>,
    /// What all names began with.
    pub(super) prefix: Option<String>,
    /// Names of 2019 that were brought up to date.
    pub(super) count: usize,
}

/// Strips what all names have in common and applies the rules.
///
/// # Errors
/// A sentence, when two names become one.
pub(super) fn rename<T>(mut tensors: Vec<(String, T)>) -> Result<Renamed<T>, String> {
    let mut prefix = String::new();
    while let Some(common) = PREFIXES.into_iter().find(|prefix| {
        !tensors.is_empty() && tensors.iter().all(|(name, _)| name.starts_with(prefix))
    }) {
        for (name, _) in &mut tensors {
            name.drain(..common.len());
        }
        prefix.push_str(common);
    }

    let mut renamed: BTreeMap<String, (String, T)> = BTreeMap::new();
    let mut count = 0;
    for (old, tensor) in tensors {
        let new = RULES.iter().find_map(|rule| rule.apply(&old));
        count += usize::from(new.is_some());
        let new = new.unwrap_or_else(|| old.clone());
        if let Some((other, _)) = renamed.get(&new) {
            return Err(format!(
                "its tensors `{other}` and `{old}` are both `{new}` by today's names"
            ));
        }
        renamed.insert(new, (old, tensor));
    }
    Ok(Renamed {
        tensors: renamed.into_iter().map(|(name, (_, tensor))| (name, tensor)).collect(),
        prefix: (!prefix.is_empty()).then_some(prefix),
        count,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<(String, ())> {
        list.iter().map(|name| ((*name).to_owned(), ())).collect()
    }

    #[test]
    fn names_of_2019_become_todays_and_todays_stay() {
        let cases = [
            ("rpn.head.conv.weight", "rpn.head.conv.0.0.weight"),
            ("rpn.head.conv.bias", "rpn.head.conv.0.0.bias"),
            ("backbone.fpn.inner_blocks.3.weight", "backbone.fpn.inner_blocks.3.0.weight"),
            ("backbone.fpn.layer_blocks.0.bias", "backbone.fpn.layer_blocks.0.0.bias"),
            ("roi_heads.mask_head.mask_fcn1.weight", "roi_heads.mask_head.0.0.weight"),
            ("roi_heads.mask_head.mask_fcn4.bias", "roi_heads.mask_head.3.0.bias"),
        ];
        for (old, new) in cases {
            let renamed = rename(names(&[old])).unwrap();
            assert_eq!(renamed.tensors.keys().collect::<Vec<_>>(), [new]);
            assert_eq!(renamed.count, 1);
            assert_eq!(rename(names(&[new])).unwrap().count, 0, "{new}");
        }
        for kept in [
            "roi_heads.mask_head.mask_fcn0.weight",
            "roi_heads.mask_head.mask_fcn1.running_mean",
            "roi_heads.mask_predictor.mask_fcn_logits.weight",
            "backbone.fpn.inner_blocks.0.1.running_var",
            "backbone.fpn.inner_blocks.x.weight",
            "rpn.head.cls_logits.weight",
        ] {
            assert_eq!(rename(names(&[kept])).unwrap().tensors.keys().collect::<Vec<_>>(), [kept]);
        }
    }

    #[test]
    fn only_a_common_prefix_is_stripped() {
        let both = rename(names(&["module.model.a", "module.model.b"])).unwrap();
        assert_eq!(both.prefix.as_deref(), Some("module.model."));
        assert_eq!(both.tensors.keys().collect::<Vec<_>>(), ["a", "b"]);
        let mixed = rename(names(&["module.a", "b"])).unwrap();
        assert_eq!(mixed.prefix, None);
        assert!(mixed.tensors.contains_key("module.a"));
    }

    #[test]
    fn a_collision_names_both() {
        let message =
            rename(names(&["rpn.head.conv.weight", "rpn.head.conv.0.0.weight"])).unwrap_err();
        assert!(message.contains("`rpn.head.conv.weight`"), "{message}");
        assert!(message.contains("`rpn.head.conv.0.0.weight`"), "{message}");
        assert!(rename(names(&["a", "a"])).is_err());
    }
}
