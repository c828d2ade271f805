//! Whole steps of training: the reference's batches, samples, losses and gradients. See `make_training.py`.

use std::collections::HashMap;

use candle_core::{Device, Tensor};
use candle_detection::checkpoint::{Checkpoint, Loading};
use candle_detection::config::ModelConfig;
use candle_detection::structures::{BoxXyxy, Rle, Target, TargetKeypoint, Visibility};
use candle_detection::train::{Batch, Freezing, Gradients, Losses, Network, Sampler, Stage};
use candle_detection::{ImageInput, Result};

use super::{fixtures, largest_difference, largest_value, values};

/// Of a loss, relative.
const LOSS_TOLERANCE: f32 = 1e-4;
/// Of a gradient, relative to its largest entry.
pub const GRADIENT_TOLERANCE: f32 = 1e-3;
/// Or this many times what the reference's own gradient changes when all weights are perturbed by three parts in ten
/// million: with norms that use the statistics of the batch, a ReLU that changes sides moves gradients by percents.
pub const TIMES_NOISE: f32 = 3.0;

pub struct Reference {
    pub name: &'static str,
    pub tensors: HashMap<String, Tensor>,
}

impl Reference {
    pub fn load(name: &'static str) -> Self {
        let path = fixtures().join(format!("train_{name}.safetensors"));
        Self { name, tensors: candle_core::safetensors::load(path, &Device::Cpu).unwrap() }
    }

    pub fn network(&self, device: &Device, stages: usize) -> Network {
        self.network_with(device, stages, |_| {})
    }

    pub fn network_with(
        &self,
        device: &Device,
        stages: usize,
        edit: impl Fn(&mut ModelConfig),
    ) -> Network {
        let file = |extension: &str| fixtures().join(format!("{}.{extension}", self.name));
        let mut config = ModelConfig::load(&file("toml")).unwrap();
        if let Some(rcnn) = config.architecture.as_rcnn_mut() {
            let training = &mut rcnn.training;
            training.rpn.samples_per_image = 48;
            (training.rpn.pre_nms_top_n, training.rpn.post_nms_top_n) =
                if self.name == "tiny_r50_v2" { (12, 20) } else { (40, 50) };
            training.roi.samples_per_image = 32;
        }
        edit(&mut config);
        let checkpoint = Checkpoint::open(&file("safetensors")).unwrap();
        let freezing = Freezing::backbone(&config, stages);
        Network::from_checkpoint(&config, checkpoint, Loading::Strict, freezing, device).unwrap().0
    }

    pub fn has_case(&self, case: &str) -> bool {
        self.loss_count(case) > 0
    }

    pub fn loss_count(&self, case: &str) -> usize {
        let prefixes = [format!("{case}/loss."), format!("{case}/loss_")];
        self.tensors.keys().filter(|key| prefixes.iter().any(|p| key.starts_with(p))).count()
    }

    /// The tensors whose keys begin with `prefix`, by what follows it.
    pub fn under(&self, prefix: &str) -> Vec<(&str, &Tensor)> {
        let named = self.tensors.iter();
        named.filter_map(|(key, tensor)| Some((key.strip_prefix(prefix)?, tensor))).collect()
    }

    fn images(&self) -> Vec<ImageInput> {
        (0..)
            .map_while(|i| self.tensors.get(&format!("image.{i}")))
            .map(|pixels| {
                let (height, width, _) = pixels.dims3().unwrap();
                let bytes: Vec<u8> = pixels.flatten_all().unwrap().to_vec1().unwrap();
                ImageInput::from_rgb8(width, height, bytes).unwrap()
            })
            .collect()
    }

    pub fn batch(&self, case: &str) -> Batch {
        let images = self.images();
        let targets = (0..images.len()).map(|i| self.target(case, i)).collect();
        Batch { images, targets, min_size: None }
    }

    fn target(&self, case: &str, image: usize) -> Target {
        let tensor = |key: &str| &self.tensors[&format!("{case}/target.{key}.{image}")];
        let boxes = values(tensor("boxes"));
        let boxes = boxes.as_chunks::<4>().0.iter();
        let optional = |key: &str| self.tensors.get(&format!("{case}/target.{key}.{image}"));
        Target {
            image_id: image as u64,
            boxes: boxes.map(|&[x1, y1, x2, y2]| BoxXyxy { x1, y1, x2, y2 }).collect(),
            labels: tensor("labels").to_vec1().unwrap(),
            masks: optional("masks").map(outlines).unwrap_or_default(),
            keypoints: optional("keypoints").map(keypoints).unwrap_or_default(),
        }
    }

    fn loss(&self, case: &str, name: &str) -> f32 {
        let keys = [format!("{case}/{name}"), format!("{case}/loss.{name}")];
        let found = keys.iter().find_map(|key| self.tensors.get(key));
        values(found.unwrap_or_else(|| panic!("{}: no {name}", self.name)))[0]
    }
}

/// Of bitmaps `[n, H, W]`.
fn outlines(bitmaps: &Tensor) -> Vec<Rle> {
    let (n, height, width) = bitmaps.dims3().unwrap();
    let bytes: Vec<u8> = bitmaps.flatten_all().unwrap().to_vec1().unwrap();
    let planes = bytes.chunks_exact(height * width).take(n);
    let bitmap = |plane: &[u8]| {
        image::GrayImage::from_vec(width as u32, height as u32, plane.to_vec()).unwrap()
    };
    planes.map(|plane| Rle::from_bitmap(&bitmap(plane)).unwrap()).collect()
}

/// Of `[n, P, 3]`.
fn keypoints(tensor: &Tensor) -> Vec<Vec<TargetKeypoint>> {
    let (_, points, _) = tensor.dims3().unwrap();
    let keypoint = |&[x, y, visibility]: &[f32; 3]| {
        let visibility = Visibility::from_number(f64::from(visibility)).unwrap();
        TargetKeypoint { x, y, visibility }
    };
    let numbers = values(tensor);
    let objects = numbers.as_chunks().0.chunks_exact(points);
    objects.map(|object| object.iter().map(keypoint).collect()).collect()
}

/// Gives what the reference chose the lowest priorities. A reference that was offered other boxes has other losses.
pub struct ReferenceSampler<'a> {
    pub reference: &'a Reference,
    pub case: &'a str,
}

impl Sampler for ReferenceSampler<'_> {
    fn priorities(
        &mut self,
        stage: Stage,
        (images, boxes): (usize, usize),
        device: &Device,
    ) -> Result<Tensor> {
        let stage = match stage {
            Stage::Rpn => "rpn",
            Stage::Roi => "roi",
        };
        let mut priorities = vec![u32::MAX; images * boxes];
        for image in 0..images {
            for kind in ["positives", "negatives"] {
                let key = format!("{}/{stage}.{kind}.{image}", self.case);
                for index in self.reference.tensors[&key].to_vec1::<u32>().unwrap() {
                    priorities[image * boxes + index as usize] = 0;
                }
            }
        }
        Ok(Tensor::from_vec(priorities, (images, boxes), device)?)
    }
}

/// A step from the reference's samples, whose losses must be the reference's.
pub fn compare(reference: &Reference, case: &str, device: &Device) -> (Network, Losses, Gradients) {
    let network = reference.network(device, 5);
    let (losses, gradients) = compare_step(&network, reference, case);
    (network, losses, gradients)
}

/// A step of a network from the reference's samples, whose losses must be the reference's.
pub fn compare_step(network: &Network, reference: &Reference, case: &str) -> (Losses, Gradients) {
    let mut sampler = ReferenceSampler { reference, case };
    let evaluated = network.evaluate(&reference.batch(case), &mut sampler).unwrap();
    let losses = evaluated.losses().unwrap();
    for (name, found) in losses.named() {
        let expected = reference.loss(case, name);
        let difference = (found - expected).abs();
        assert!(difference <= LOSS_TOLERANCE * expected, "{case} {name}: {found} {expected}");
    }
    let gradients = evaluated.gradients(&network.parameters().trainable()).unwrap();
    (losses, gradients)
}

#[track_caller]
pub fn check_gradients(reference: &Reference, case: &str, gradients: &Gradients) {
    let prefix = format!("{case}/grad.");
    let mut faults = Vec::new();
    let expected: Vec<(&str, &Tensor)> = reference
        .tensors
        .iter()
        .filter_map(|(key, tensor)| Some((key.strip_prefix(&prefix)?, tensor)))
        .collect();
    assert_eq!(expected.len(), gradients.names().len());
    for (name, expected) in expected {
        let found = gradients.get(name).unwrap().unwrap_or_else(|| panic!("no gradient of {name}"));
        let found = found.to_device(&Device::Cpu).unwrap();
        let difference = largest_difference(&found, expected);
        let largest = largest_value(expected);
        assert!(largest > 0.0, "{name} has a gradient of zeros");
        let noise = values(&reference.tensors[&format!("{case}/noise.{name}")])[0];
        let tolerance = GRADIENT_TOLERANCE.max(TIMES_NOISE * noise);
        if difference > tolerance * largest {
            faults.push(format!("{name}: {difference} of {largest}"));
        }
    }
    assert!(faults.is_empty(), "{case}: {} gradients differ:\n{}", faults.len(), faults.join("\n"));
}
