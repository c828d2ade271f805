//! What the differences between a file and a network have in common, in words.

use std::collections::BTreeMap;

use super::Checkpoint;
use crate::error::Mismatches;

/// Tensors whose first axis has one row, or four, per class.
const CLASS_SIZED: [(&str, usize); 3] = [
    ("roi_heads.box_predictor.cls_score.weight", 1),
    ("roi_heads.box_predictor.bbox_pred.weight", 4),
    ("roi_heads.mask_predictor.mask_fcn_logits.weight", 1),
];

/// Names of the file and of the network, and the questions asked of both.
struct Side<'a> {
    shapes: BTreeMap<&'a str, &'a [usize]>,
}

impl Side<'_> {
    fn has(&self, name: &str) -> bool {
        self.shapes.contains_key(name)
    }

    fn has_under(&self, prefix: &str) -> bool {
        self.shapes.range(prefix..).next().is_some_and(|(name, _)| name.starts_with(prefix))
    }

    fn classes(&self) -> Option<usize> {
        CLASS_SIZED
            .iter()
            .find_map(|(name, per_class)| Some(self.shapes.get(name)?.first()? / per_class))
    }

    /// 1 or 2 when the box head is that of torchvision's version 1 or 2.
    fn version(&self) -> Option<u8> {
        if self.has("roi_heads.box_head.fc6.weight") {
            Some(1)
        } else if self.has("roi_heads.box_head.0.0.weight") {
            Some(2)
        } else {
            None
        }
    }

    /// Blocks per stage and kind of block of a ResNet.
    fn resnet(&self) -> Option<(Vec<usize>, &'static str)> {
        let blocks: Vec<usize> = (1..=4)
            .map(|stage| {
                (0..)
                    .take_while(|block| {
                        self.has(&format!("backbone.body.layer{stage}.{block}.conv1.weight"))
                    })
                    .count()
            })
            .collect();
        let kind = match self.has("backbone.body.layer1.0.conv3.weight") {
            true => "bottlenecks",
            false => "basic blocks",
        };
        (blocks[0] > 0).then_some((blocks, kind))
    }
}

/// Finds the likely reasons; `None` when the differences follow no known pattern.
pub(super) fn diagnose(
    checkpoint: &Checkpoint,
    asked: &BTreeMap<String, Vec<usize>>,
    mismatches: &Mismatches,
) -> Option<String> {
    let file = Side { shapes: checkpoint.tensors().map(|t| (t.name, t.shape)).collect() };
    let model = Side {
        shapes: asked.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect(),
    };

    if !asked.is_empty() && !asked.keys().any(|name| file.has(name)) {
        return Some(foreign(&file));
    }
    let mut reasons = Vec::new();
    match (file.version(), model.version()) {
        (Some(2), Some(1)) => reasons.push(
            "this file is a v2 model (batch norm in the pyramid and heads); use the model whose name ends in _v2".to_owned(),
        ),
        (Some(1), Some(2)) => reasons.push(
            "this file is a v1 model; use the model whose name lacks the _v2".to_owned(),
        ),
        _ => {}
    }
    if model.has_under("roi_heads.mask_") && !file.has_under("roi_heads.mask_") {
        reasons.push("the file has no mask head (a Faster R-CNN?)".to_owned());
    }
    if file.has_under("roi_heads.mask_") && !model.has_under("roi_heads.mask_") {
        reasons.push("the file has a mask head and the model has none (a Mask R-CNN file in a Faster R-CNN?)".to_owned());
    }
    if file.has_under("roi_heads.keypoint_") && !model.has_under("roi_heads.keypoint_") {
        reasons.push("the file has a keypoint head (a Keypoint R-CNN)".to_owned());
    }
    if let (Some(found), Some(expected)) = (file.classes(), model.classes())
        && found != expected
    {
        reasons.push(format!(
            "the file was made for {found} classes (background included), the model has {expected}"
        ));
    }
    if let (Some(found), Some(expected)) = (file.resnet(), model.resnet())
        && found != expected
    {
        reasons.push(format!(
            "the file has a backbone of {:?} {}, the model one of {:?} {}",
            found.0, found.1, expected.0, expected.1
        ));
    }
    if reasons.is_empty() && mismatches.missing.is_empty() && mismatches.wrong_shape.is_empty() {
        reasons.push("the file has all that the model needs, and more besides".to_owned());
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Describes a file that has nothing of the model.
fn foreign(file: &Side<'_>) -> String {
    if file.has("fc.weight") && file.has("layer1.0.conv1.weight") {
        "this file is an image classifier (a ResNet alone), not a detector".to_owned()
    } else if file.has_under("backbone.bottom_up.") {
        "this file has the names of detectron2, not of torchvision".to_owned()
    } else {
        let first: Vec<String> =
            file.shapes.keys().take(3).map(|name| format!("`{name}`")).collect();
        format!(
            "no name of the file is known to the model; the file begins with {}",
            first.join(", ")
        )
    }
}
