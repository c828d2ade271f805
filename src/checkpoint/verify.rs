//! What the differences between a file and a network have in common, in words.

use std::collections::BTreeMap;

use super::Checkpoint;
use crate::error::Mismatches;

/// What a detector is, as its parameter names tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    TwoStage,
    RetinaNet,
    Fcos,
    Ssd,
    SsdLite,
}

impl Kind {
    /// With its article.
    fn text(self) -> &'static str {
        match self {
            Self::TwoStage => "a two-stage detector (Faster, Mask or Keypoint R-CNN)",
            Self::RetinaNet => "a RetinaNet",
            Self::Fcos => "an FCOS",
            Self::Ssd => "an SSD",
            Self::SsdLite => "an SSDLite",
        }
    }
}

/// A network that features come from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Body {
    /// Blocks per stage, and their kind.
    ResNet(Vec<usize>, &'static str),
    MobileNet,
    Vgg,
}

impl Body {
    fn text(&self) -> String {
        match self {
            Self::ResNet(blocks, kind) => format!("a ResNet of {blocks:?} {kind}"),
            Self::MobileNet => "a MobileNet".to_owned(),
            Self::Vgg => "a VGG".to_owned(),
        }
    }
}

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

    fn kind(&self) -> Option<Kind> {
        if self.has_under("roi_heads.") || self.has_under("rpn.") {
            Some(Kind::TwoStage)
        } else if self.has_under("head.regression_head.bbox_ctrness.") {
            Some(Kind::Fcos)
        } else if self.has_under("head.classification_head.module_list.0.0.") {
            Some(Kind::SsdLite)
        } else if self.has_under("head.classification_head.module_list.") {
            Some(Kind::Ssd)
        } else if self.has_under("head.classification_head.cls_logits.") {
            Some(Kind::RetinaNet)
        } else {
            None
        }
    }

    /// Size of a tensor's axis.
    fn size(&self, name: &str, axis: usize) -> Option<usize> {
        self.shapes.get(name)?.get(axis).copied()
    }

    /// Channels of the layers that predict classes and boxes of a one-stage detector.
    fn predicted(&self) -> Option<(usize, usize)> {
        let head =
            |part: &str, layer: &str| self.size(&format!("head.{part}_head.{layer}.weight"), 0);
        [
            ("cls_logits", "bbox_reg"),
            ("module_list.0", "module_list.0"),
            ("module_list.0.1", "module_list.0.1"),
        ]
        .into_iter()
        .find_map(|(classes, boxes)| {
            Some((head("classification", classes)?, head("regression", boxes)?))
        })
    }

    fn classes(&self) -> Option<usize> {
        let of_head = |name: &str, per_class: usize| Some(self.size(name, 0)? / per_class);
        of_head("roi_heads.box_predictor.cls_score.weight", 1)
            .or_else(|| of_head("roi_heads.box_predictor.bbox_pred.weight", 4))
            .or_else(|| of_head("roi_heads.mask_predictor.mask_fcn_logits.weight", 1))
            .or_else(|| {
                let (classes, boxes) = self.predicted()?;
                (4 * classes).checked_div(boxes)
            })
    }

    /// Anchors, or default boxes, in a cell of the first level.
    fn anchors(&self) -> Option<usize> {
        let boxes = self.size("rpn.head.bbox_pred.weight", 0).or_else(|| Some(self.predicted()?.1));
        Some(boxes? / 4)
    }

    fn keypoints(&self) -> Option<usize> {
        self.size("roi_heads.keypoint_predictor.kps_score_lowres.weight", 1)
    }

    /// 1 or 2 when the heads are those of torchvision's version 1 or 2.
    fn version(&self) -> Option<u8> {
        if self.has("roi_heads.box_head.fc6.weight") {
            return Some(1);
        }
        if self.has("roi_heads.box_head.0.0.weight") {
            return Some(2);
        }
        match self.kind() {
            Some(Kind::RetinaNet) if self.has("head.classification_head.conv.0.1.weight") => {
                Some(2)
            }
            Some(Kind::RetinaNet) => Some(1),
            _ => None,
        }
    }

    fn body(&self) -> Option<Body> {
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
        if blocks[0] > 0 {
            Some(Body::ResNet(blocks, kind))
        } else if self.has("backbone.body.0.0.weight") || self.has("backbone.features.0.0.0.weight")
        {
            Some(Body::MobileNet)
        } else if self.has("backbone.features.0.weight") {
            Some(Body::Vgg)
        } else {
            None
        }
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

    if let (Some(found), Some(expected)) = (file.kind(), model.kind())
        && found != expected
    {
        return Some(format!("this file is {}, the model {}", found.text(), expected.text()));
    }
    if !asked.is_empty() && !asked.keys().any(|name| file.has(name)) {
        return Some(foreign(&file));
    }
    let mut reasons = Vec::new();
    reasons.extend(other_version(&file, &model));
    reasons.extend(other_heads(&file, &model));
    let counts = [
        ("classes (background included)", file.classes(), model.classes()),
        ("anchors in a cell", file.anchors(), model.anchors()),
        ("keypoints", file.keypoints(), model.keypoints()),
    ];
    for (what, found, expected) in counts {
        if let (Some(found), Some(expected)) = (found, expected)
            && found != expected
        {
            reasons.push(format!("the file was made for {found} {what}, the model has {expected}"));
        }
    }
    if let (Some(found), Some(expected)) = (file.body(), model.body())
        && found != expected
    {
        let (found, expected) = (found.text(), expected.text());
        reasons.push(format!("the body of the file is {found}, that of the model {expected}"));
    }
    if reasons.is_empty() && mismatches.missing.is_empty() && mismatches.wrong_shape.is_empty() {
        reasons.push("the file has all that the model needs, and more besides".to_owned());
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// That the file is of torchvision's other version.
fn other_version(file: &Side<'_>, model: &Side<'_>) -> Option<String> {
    let norms = match model.kind() {
        Some(Kind::RetinaNet) => "group norm in the heads",
        _ => "batch norm in the pyramid and heads",
    };
    match (file.version(), model.version()) {
        (Some(2), Some(1)) => {
            Some(format!("this file is a v2 model ({norms}); use the model whose name ends in _v2"))
        }
        (Some(1), Some(2)) => {
            Some("this file is a v1 model; use the model whose name lacks the _v2".to_owned())
        }
        _ => None,
    }
}

/// Which of two-stage detectors' heads are in one and not in the other.
fn other_heads(file: &Side<'_>, model: &Side<'_>) -> Vec<String> {
    let both = |prefix: &str| (file.has_under(prefix), model.has_under(prefix));
    let mut reasons = Vec::new();
    match both("roi_heads.mask_") {
        (false, true) => reasons.push("the file has no mask head (a Faster R-CNN?)".to_owned()),
        (true, false) => reasons.push(
            "the file has a mask head and the model has none (a Mask R-CNN file in a Faster R-CNN?)"
                .to_owned(),
        ),
        _ => {}
    }
    match both("roi_heads.keypoint_") {
        (false, true) => reasons.push("the file has no keypoint head".to_owned()),
        (true, false) => {
            reasons.push("the file has a keypoint head (a Keypoint R-CNN)".to_owned());
        }
        _ => {}
    }
    reasons
}

/// Describes a file that has nothing of the model.
fn foreign(file: &Side<'_>) -> String {
    let classifier = if file.has("fc.weight") && file.has("layer1.0.conv1.weight") {
        Some("ResNet")
    } else if file.has("classifier.0.weight") && file.has("features.0.0.weight") {
        Some("MobileNet")
    } else if file.has("classifier.0.weight") && file.has("features.0.weight") {
        Some("VGG")
    } else {
        None
    };
    if let Some(network) = classifier {
        format!("this file is an image classifier (a {network} alone), not a detector")
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
