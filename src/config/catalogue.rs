//! The models that come with the library: `models/*.toml`, embedded.

use super::ModelConfig;
use crate::error::{Error, Result};

/// File stem and text of every built-in model, in the order of README's table.
const MODELS: &[(&str, &str)] = &[
    ("maskrcnn_resnet50_fpn", include_str!("../../models/maskrcnn_resnet50_fpn.toml")),
    ("maskrcnn_resnet50_fpn_v2", include_str!("../../models/maskrcnn_resnet50_fpn_v2.toml")),
    ("fasterrcnn_resnet50_fpn", include_str!("../../models/fasterrcnn_resnet50_fpn.toml")),
    ("fasterrcnn_resnet50_fpn_v2", include_str!("../../models/fasterrcnn_resnet50_fpn_v2.toml")),
    (
        "fasterrcnn_mobilenet_v3_large_fpn",
        include_str!("../../models/fasterrcnn_mobilenet_v3_large_fpn.toml"),
    ),
    (
        "fasterrcnn_mobilenet_v3_large_320_fpn",
        include_str!("../../models/fasterrcnn_mobilenet_v3_large_320_fpn.toml"),
    ),
    ("retinanet_resnet50_fpn", include_str!("../../models/retinanet_resnet50_fpn.toml")),
    ("retinanet_resnet50_fpn_v2", include_str!("../../models/retinanet_resnet50_fpn_v2.toml")),
    ("fcos_resnet50_fpn", include_str!("../../models/fcos_resnet50_fpn.toml")),
    ("ssd300_vgg16", include_str!("../../models/ssd300_vgg16.toml")),
    (
        "ssdlite320_mobilenet_v3_large",
        include_str!("../../models/ssdlite320_mobilenet_v3_large.toml"),
    ),
    ("keypointrcnn_resnet50_fpn", include_str!("../../models/keypointrcnn_resnet50_fpn.toml")),
    ("maskrcnn_shapes", include_str!("../../models/maskrcnn_shapes.toml")),
];

/// Names of the built-in models.
pub fn names() -> impl Iterator<Item = &'static str> {
    MODELS.iter().map(|(name, _)| *name)
}

/// The built-in model of this name.
///
/// # Errors
/// [`Error::UnknownModel`], listing all names.
///
/// # Example
/// ```
/// let config = candle_detection::config::get("maskrcnn_resnet50_fpn")?;
/// assert_eq!(config.num_classes, 91);
/// # Ok::<(), candle_detection::Error>(())
/// ```
pub fn get(name: &str) -> Result<ModelConfig> {
    let (_, text) = MODELS.iter().find(|(known, _)| *known == name).ok_or_else(|| {
        Error::UnknownModel { name: name.to_owned(), known: names().collect::<Vec<_>>().join(", ") }
    })?;
    ModelConfig::parse(text, &format!("built-in model {name}"))
}
