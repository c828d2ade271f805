//! What types can't say about a model's numbers.

use super::{Architecture, ModelConfig};
use crate::error::{Error, Result};

/// Levels that the ResNet pyramid has: four of the network, one extra.
const PYRAMID_LEVELS: usize = 5;
/// Input pixels per cell of the coarsest level that is computed by convolutions.
const COARSEST_STRIDE: usize = 32;

impl ModelConfig {
    /// Checks everything that the types leave open.
    ///
    /// `origin` is what the error calls the configuration: a path, or the model's name.
    ///
    /// # Errors
    /// [`Error::Config`], naming the first field at fault, its value and what would be right.
    pub fn validate(&self, origin: &str) -> Result<()> {
        self.validate_levels(origin)?;
        self.validate_counts(origin)?;
        self.validate_ranges(origin)?;
        self.validate_matching(origin)?;
        self.validate_weights(origin)?;
        if self.architecture == Architecture::MaskRcnn && self.mask_head.is_none() {
            return Err(fault(
                origin,
                "mask_head",
                "absent",
                "a section, as architecture is mask_rcnn",
            ));
        }
        if self.architecture == Architecture::FasterRcnn && self.mask_head.is_some() {
            return Err(fault(
                origin,
                "mask_head",
                "present",
                "no such section, as architecture is faster_rcnn",
            ));
        }
        self.categories.resolve(origin, self.num_classes).map(drop)
    }

    fn validate_levels(&self, origin: &str) -> Result<()> {
        let sets = self.anchors.sizes.len();
        require(origin, sets == PYRAMID_LEVELS, "anchors.sizes", format!("{sets} lists"), || {
            format!("{PYRAMID_LEVELS}, one per pyramid level")
        })?;
        let per_level = self.anchors.sizes[0].len();
        let even = self.anchors.sizes.iter().all(|sizes| sizes.len() == per_level && per_level > 0);
        require(origin, even, "anchors.sizes", format!("{:?}", self.anchors.sizes), || {
            "lists of one length, at least 1: the RPN head is shared by all levels".to_owned()
        })?;
        let positive =
            self.anchors.sizes.iter().flatten().all(|size| *size > 0.0 && size.is_finite());
        require(origin, positive, "anchors.sizes", format!("{:?}", self.anchors.sizes), || {
            "positive pixels".to_owned()
        })?;
        let ratios = &self.anchors.aspect_ratios;
        let usable = !ratios.is_empty() && ratios.iter().all(|r| *r > 0.0 && r.is_finite());
        require(origin, usable, "anchors.aspect_ratios", format!("{ratios:?}"), || {
            "at least one positive height / width".to_owned()
        })?;
        let divisor = self.image.size_divisor;
        let divides = divisor > 0 && divisor.is_multiple_of(COARSEST_STRIDE);
        require(origin, divides, "image.size_divisor", divisor.to_string(), || {
            format!("a multiple of the coarsest stride, {COARSEST_STRIDE}")
        })
    }

    fn validate_counts(&self, origin: &str) -> Result<()> {
        require(
            origin,
            self.num_classes >= 2,
            "num_classes",
            self.num_classes.to_string(),
            || "at least 2: the background and one class".to_owned(),
        )?;
        let mut counts = vec![
            ("image.min_size", self.image.min_size),
            ("image.max_size", self.image.max_size),
            ("backbone.width", self.backbone.width),
            ("backbone.fpn_channels", self.backbone.fpn_channels),
            ("rpn.conv_depth", self.rpn.conv_depth),
            ("rpn.pre_nms_top_n", self.rpn.pre_nms_top_n),
            ("rpn.post_nms_top_n", self.rpn.post_nms_top_n),
            ("box_head.roi_output", self.box_head.roi_output),
            ("box_head.roi_sampling", self.box_head.roi_sampling),
            ("box_head.hidden", self.box_head.hidden),
            ("detections.per_image", self.detections.per_image),
            ("training.rpn.samples_per_image", self.training.rpn.samples_per_image),
            ("training.rpn.pre_nms_top_n", self.training.rpn.pre_nms_top_n),
            ("training.rpn.post_nms_top_n", self.training.rpn.post_nms_top_n),
            ("training.roi.samples_per_image", self.training.roi.samples_per_image),
        ];
        if let Some(mask) = &self.mask_head {
            counts.extend([
                ("mask_head.roi_output", mask.roi_output),
                ("mask_head.roi_sampling", mask.roi_sampling),
                ("mask_head.conv_channels", mask.conv_channels.len()),
                ("mask_head.predictor_channels", mask.predictor_channels),
            ]);
        }
        for (field, value) in counts {
            require(origin, value > 0, field, value.to_string(), || "at least 1".to_owned())?;
        }
        Ok(())
    }

    fn validate_ranges(&self, origin: &str) -> Result<()> {
        let fractions = [
            ("rpn.nms_threshold", self.rpn.nms_threshold),
            ("rpn.score_threshold", f64::from(self.rpn.score_threshold)),
            ("detections.score_threshold", f64::from(self.detections.score_threshold)),
            ("detections.nms_threshold", self.detections.nms_threshold),
            ("training.rpn.positive_fraction", self.training.rpn.positive_fraction),
            ("training.roi.positive_fraction", self.training.roi.positive_fraction),
        ];
        for (field, value) in fractions {
            let inside = (0.0..=1.0).contains(&value);
            require(origin, inside, field, value.to_string(), || "a value in 0..=1".to_owned())?;
        }
        let sides = [
            ("rpn.min_box_side", self.rpn.min_box_side),
            ("detections.min_box_side", self.detections.min_box_side),
        ];
        for (field, value) in sides {
            require(origin, value >= 0.0, field, value.to_string(), || {
                "pixels, at least 0".to_owned()
            })?;
        }
        require(
            origin,
            self.backbone.norm_eps >= 0.0,
            "backbone.norm_eps",
            self.backbone.norm_eps.to_string(),
            || "at least 0".to_owned(),
        )?;
        let positive = self.image.std.iter().all(|std| *std > 0.0);
        require(origin, positive, "image.std", format!("{:?}", self.image.std), || {
            "positive numbers".to_owned()
        })?;
        let divisors = self.box_head.box_weights;
        let usable = divisors.iter().all(|weight| *weight > 0.0);
        require(origin, usable, "box_head.box_weights", format!("{divisors:?}"), || {
            "positive numbers".to_owned()
        })
    }

    fn validate_matching(&self, origin: &str) -> Result<()> {
        let (rpn, roi) = (&self.training.rpn, &self.training.roi);
        let pairs = [
            ("training.rpn.positive_iou", rpn.positive_iou, rpn.negative_iou),
            ("training.roi.positive_iou", roi.positive_iou, roi.negative_iou),
        ];
        for (field, positive, negative) in pairs {
            let usable = negative >= 0.0 && positive >= negative && positive <= 1.0;
            // An IoU of 0 must not be a match: every box would have every object's class.
            require(origin, usable && positive > 0.0, field, positive.to_string(), || {
                format!("a value above 0, from negative_iou ({negative}) to 1")
            })?;
        }
        Ok(())
    }

    fn validate_weights(&self, origin: &str) -> Result<()> {
        for weights in &self.weights {
            let (field, digits, enough) = match (&weights.sha256, &weights.sha256_prefix) {
                (Some(hash), _) => ("weights.sha256", hash, hash.len() == 64),
                (None, Some(prefix)) => ("weights.sha256_prefix", prefix, prefix.len() >= 8),
                (None, None) => {
                    return Err(fault(
                        origin,
                        "weights.sha256",
                        "absent",
                        "64 digits, or sha256_prefix with at least 8",
                    ));
                }
            };
            let hexadecimal =
                digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
            require(origin, enough && hexadecimal, field, format!("`{digits}`"), || {
                "lower-case hexadecimal digits, 64 of a whole hash or at least 8 of a prefix"
                    .to_owned()
            })?;
            let plain = !weights.file.is_empty() && !weights.file.contains(['/', '\\']);
            require(origin, plain, "weights.file", format!("`{}`", weights.file), || {
                "a file name without folders".to_owned()
            })?;
        }
        Ok(())
    }
}

fn require(
    origin: &str,
    holds: bool,
    field: &str,
    found: String,
    expected: impl FnOnce() -> String,
) -> Result<()> {
    if holds { Ok(()) } else { Err(fault(origin, field, &found, &expected())) }
}

fn fault(origin: &str, field: &str, found: &str, expected: &str) -> Error {
    Error::Config {
        origin: origin.to_owned(),
        field: field.to_owned(),
        found: found.to_owned(),
        expected: expected.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{get, names};
    use crate::config::ModelConfig;

    #[test]
    fn built_in_models_are_valid_and_carry_their_file_name() {
        for name in names() {
            assert_eq!(get(name).unwrap().name, name);
        }
        let message = get("yolo").unwrap_err().to_string();
        assert!(message.contains("yolo") && message.contains("maskrcnn_resnet50_fpn"), "{message}");
    }

    /// Each edit breaks one rule; the message must name the field and both values.
    #[test]
    fn faults_are_named() {
        type Edit = fn(&mut ModelConfig);
        let cases: [(&str, Edit); 15] = [
            ("anchors.sizes", |c| c.anchors.sizes.truncate(2)),
            ("anchors.sizes", |c| c.anchors.sizes[1].push(48.0)),
            ("anchors.aspect_ratios", |c| c.anchors.aspect_ratios.clear()),
            ("image.size_divisor", |c| c.image.size_divisor = 16),
            ("image.min_size", |c| c.image.min_size = 0),
            ("num_classes", |c| c.num_classes = 1),
            ("rpn.nms_threshold", |c| c.rpn.nms_threshold = 1.5),
            ("detections.score_threshold", |c| c.detections.score_threshold = f32::NAN),
            ("image.std", |c| c.image.std[2] = 0.0),
            ("mask_head", |c| c.mask_head = None),
            ("weights.sha256_prefix", |c| c.weights[0].sha256_prefix = Some("bf2d".into())),
            ("categories", |c| c.num_classes = 50),
            ("training.rpn.positive_iou", |c| c.training.rpn.negative_iou = 0.8),
            ("training.roi.samples_per_image", |c| c.training.roi.samples_per_image = 0),
            ("training.roi.positive_fraction", |c| c.training.roi.positive_fraction = 1.5),
        ];
        for (field, edit) in cases {
            let mut config = get("maskrcnn_resnet50_fpn").unwrap();
            edit(&mut config);
            let message = config.validate("mine.toml").unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("mine.toml: `{field}` is ")),
                "{field}: {message}"
            );
        }
        let counts = {
            let mut config = get("maskrcnn_resnet50_fpn").unwrap();
            config.anchors.sizes.truncate(2);
            config.validate("mine.toml").unwrap_err().to_string()
        };
        assert!(counts.contains("2 lists") && counts.contains("5, one per"), "{counts}");
    }

    #[test]
    fn unknown_and_missing_keys_are_refused() {
        let text = toml::to_string(&get("maskrcnn_resnet50_fpn").unwrap()).unwrap();
        assert!(ModelConfig::parse(&text, "copy").is_ok());
        let extra = text.replace("[rpn]", "[rpn]\nnms_treshold = 0.5");
        assert!(ModelConfig::parse(&extra, "typo").is_err());
        let less = text.replacen("min_size", "# min_size", 1);
        assert!(ModelConfig::parse(&less, "gap").is_err());
    }

    /// A model file need not say how the model learns; what it says replaces torchvision's numbers one by one.
    #[test]
    fn training_numbers_are_torchvisions_unless_given() {
        let mut config = get("maskrcnn_resnet50_fpn").unwrap();
        let text = toml::to_string(&config).unwrap();
        let given = text.replace("samples_per_image = 256", "samples_per_image = 128");
        let given = given.replace("negative_iou = 0.5", "");
        config.training.rpn.samples_per_image = 128;
        assert_eq!(ModelConfig::parse(&given, "copy").unwrap(), config);
        assert_eq!(config.training.rpn.pre_nms_top_n, 2000);
        assert_eq!(config.training.roi.negative_iou, 0.5);
    }
}
