//! What types can't say about a model as a whole.

use super::ModelConfig;
use crate::error::Result;
use crate::section::Checks;

impl ModelConfig {
    /// Checks everything that the types leave open.
    ///
    /// `origin` is what the error calls the configuration: a path, or the model's name.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the first field at fault, its value and what would be right.
    pub fn validate(&self, origin: &str) -> Result<()> {
        let checks = Checks::new(origin);
        let classes = self.num_classes;
        let expected = "at least 2: the background and one class";
        checks.require((classes >= 2).into(), "num_classes", classes.to_string(), expected)?;
        self.image.validate(&checks.section("image"))?;
        self.body.validate(&checks.section("body"))?;
        self.neck.validate(&self.body.stages(), &checks.section("neck"))?;
        self.validate_size_divisor(&checks)?;
        self.architecture.validate(&self.levels(), &checks.section("architecture"))?;
        self.detections.validate(&checks.section("detections"))?;
        for weights in &self.weights {
            weights.validate(&checks.section("weights"))?;
        }
        self.categories.resolve(origin, self.num_classes).map(drop)
    }

    /// A pyramid adds a coarse level to a fine one, so all must cover the same part of the padded batch.
    fn validate_size_divisor(&self, checks: &Checks) -> Result<()> {
        let coarsest = self.neck.coarsest_aligned_stride(&self.body.stages());
        let divisor = self.image.size_divisor;
        let divides = divisor > 0 && divisor.is_multiple_of(coarsest);
        checks.require(
            divides.into(),
            "image.size_divisor",
            divisor.to_string(),
            format!("a multiple of the coarsest stride, {coarsest}"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::{get, names};
    use crate::config::ModelConfig;
    use crate::rcnn::RcnnConfig;

    fn rcnn(config: &mut ModelConfig) -> &mut RcnnConfig {
        config.architecture.as_rcnn_mut().unwrap()
    }

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
        let cases: [(&str, Edit); 17] = [
            ("architecture.anchors.sizes", |c| rcnn(c).anchors.sizes.truncate(2)),
            ("architecture.anchors.sizes", |c| rcnn(c).anchors.sizes[1].push(48.0)),
            ("architecture.anchors.aspect_ratios", |c| rcnn(c).anchors.aspect_ratios.clear()),
            ("image.size_divisor", |c| c.image.size_divisor = 16),
            ("image.min_size", |c| c.image.min_size = 0),
            ("num_classes", |c| c.num_classes = 1),
            ("architecture.rpn.nms_threshold", |c| rcnn(c).rpn.nms_threshold = 1.5),
            ("detections.score_threshold", |c| c.detections.score_threshold = f32::NAN),
            ("image.std", |c| c.image.std[2] = 0.0),
            ("architecture.box_head.box_weights", |c| rcnn(c).box_head.box_weights[1] = 0.0),
            ("body.depth", |c| c.body.as_resnet_mut().unwrap().depth = 51),
            ("neck.first_stage", |c| c.neck.as_fpn_mut().unwrap().first_stage = 4),
            ("weights.sha256_prefix", |c| c.weights[0].sha256_prefix = Some("bf2d".into())),
            ("categories", |c| c.num_classes = 50),
            ("architecture.training.rpn.positive_iou", |c| rcnn(c).training.rpn.negative_iou = 0.8),
            ("architecture.training.roi.samples_per_image", |c| {
                rcnn(c).training.roi.samples_per_image = 0
            }),
            ("architecture.training.roi.positive_fraction", |c| {
                rcnn(c).training.roi.positive_fraction = 1.5
            }),
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
            rcnn(&mut config).anchors.sizes.truncate(2);
            config.validate("mine.toml").unwrap_err().to_string()
        };
        assert!(counts.contains("2 lists") && counts.contains("5, one per"), "{counts}");
    }

    #[test]
    fn unknown_and_missing_keys_are_refused() {
        let text = toml::to_string(&get("maskrcnn_resnet50_fpn").unwrap()).unwrap();
        assert!(ModelConfig::parse(&text, "copy").is_ok());
        let extra = text.replace("[architecture.rpn]", "[architecture.rpn]\nnms_treshold = 0.5");
        assert_ne!(extra, text);
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
        rcnn(&mut config).training.rpn.samples_per_image = 128;
        assert_eq!(ModelConfig::parse(&given, "copy").unwrap(), config);
        let training = &rcnn(&mut config).training;
        assert_eq!(training.rpn.pre_nms_top_n, 2000);
        assert_eq!(training.roi.negative_iou, 0.5);
    }
}
