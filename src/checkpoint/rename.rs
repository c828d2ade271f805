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
    /// Of a convolution in a sequence of convolutions and activations then, of the convolution alone today. Where norms
    /// are in the sequence, as in FCOS, its numbers are those of today.
    Half,
}

const RULES: [Rule; 6] = [
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
    Rule {
        before: "head.classification_head.conv.",
        number: Number::Half,
        new_before: "head.classification_head.conv.",
        new_after: ".0",
    },
    Rule {
        before: "head.regression_head.conv.",
        number: Number::Half,
        new_before: "head.regression_head.conv.",
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
            Number::Half => {
                let number = middle.parse::<u32>().ok()?;
                if !number.is_multiple_of(2) {
                    return None;
                }
                (number / 2).to_string()
            }
        };
        Some(format!("{}{number}{}.{parameter}", self.new_before, self.new_after))
    }

    /// Whether a name says that the file has none of the old names, though others look like them.
    fn contradicted_by(&self, name: &str) -> bool {
        let number = || name.strip_prefix(self.before)?.split_once('.')?.0.parse::<u32>().ok();
        matches!(self.number, Number::Half) && number().is_some_and(|n| !n.is_multiple_of(2))
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

    let rules: Vec<&Rule> = RULES
        .iter()
        .filter(|rule| tensors.iter().all(|(name, _)| !rule.contradicted_by(name)))
        .collect();
    let mut renamed: BTreeMap<String, (String, T)> = BTreeMap::new();
    let mut count = 0;
    for (old, tensor) in tensors {
        let new = rules.iter().find_map(|rule| rule.apply(&old));
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
    fn towers_of_2020_lose_their_activations_and_those_with_norms_stay() {
        let old: Vec<String> = ["classification", "regression"]
            .iter()
            .flat_map(|head| [0, 2, 4, 6].map(|i| format!("head.{head}_head.conv.{i}.bias")))
            .collect();
        let renamed = rename(old.into_iter().map(|name| (name, ())).collect()).unwrap();
        assert_eq!(renamed.count, 8);
        for name in ["head.classification_head.conv.3.0.bias", "head.regression_head.conv.1.0.bias"]
        {
            assert!(renamed.tensors.contains_key(name), "{name}");
        }
        // Convolutions at 0, 3 and 6, norms after them.
        let with_norms: Vec<String> =
            [0, 1, 3, 4, 6, 7].map(|i| format!("head.regression_head.conv.{i}.weight")).to_vec();
        let renamed = rename(with_norms.into_iter().map(|name| (name, ())).collect()).unwrap();
        assert_eq!(renamed.count, 0);
        let today =
            ["head.regression_head.conv.0.0.weight", "head.regression_head.conv.2.1.weight"];
        assert_eq!(rename(names(&today)).unwrap().count, 0);
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
