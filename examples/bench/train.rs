//! Whole training steps: forward, losses, backward, update.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use candle_core::Device;
use candle_detection::checkpoint::{Checkpoint, Loading};
use candle_detection::config::{self, ModelConfig};
use candle_detection::dataset::CocoDataset;
use candle_detection::structures::{BoxXyxy, ImageSize, Rle, Target, TargetNeeds};
use candle_detection::train::{
    Batch, Evaluated, Freezing, Momentum, Network, Optimizer, Parameter, ParameterGroups, Random,
    RandomSampler, TrainingSet, Unlabelled, UpdateRule,
};
use candle_detection::{ImageInput, device};
use serde_json::json;

use super::{Args, dataset, gpu, median, peak_memory, photo, report};

/// torchvision's default: the stem and the first stage are frozen.
const TRAINED_STAGES: usize = 3;
const RATE: f64 = 1e-4;
/// Objects of a photo without annotations.
const OBJECTS: usize = 8;

/// What a step needs.
struct Step {
    network: Network,
    parameters: Vec<Parameter>,
    optimizer: Optimizer,
    batch: Batch,
    device: Device,
}

pub fn run(args: &Args) -> Result<()> {
    ensure!(args.dtype == "f32", "--dtype {}: training computes in f32", args.dtype);
    let mut model = config::find(&args.model)?;
    model.image.min_size = args.min_size.unwrap_or(model.image.min_size);
    model.image.max_size = args.max_size.unwrap_or(model.image.max_size);
    let mut step = Step::new(args, &model)?;
    let losses = step.evaluate()?.losses()?;
    step.run()?;
    let (mut wall, mut dispatch) = (Vec::new(), Vec::new());
    for _ in 0..args.iterations {
        let start = Instant::now();
        step.run()?;
        dispatch.push(start.elapsed().as_secs_f64());
        step.device.synchronize()?;
        wall.push(start.elapsed().as_secs_f64());
    }
    let (median_s, min_s, max_s) = median(wall);
    let mut figures = json!({
        "mode": "train",
        "device": args.device,
        "dtype": args.dtype,
        "threads": rayon::current_num_threads(),
        "iterations": args.iterations,
        "median_s": median_s,
        "min_s": min_s,
        "max_s": max_s,
        "cpu_dispatch_ms": median(dispatch).0 * 1e3,
        "cpu_wall_ms": median_s * 1e3,
        "images_per_s": 1.0 / median_s,
        "peak_memory_bytes": peak_memory(),
        "objects": step.batch.targets[0].labels.len(),
        "loss": losses.total(),
    });
    for (name, loss) in losses.named() {
        figures[name] = loss.into();
    }
    let device = step.device.clone();
    let on_gpu = gpu::figures(&device, args.iterations, || step.run())?;
    figures.as_object_mut().into_iter().for_each(|all| all.extend(on_gpu.clone()));
    report(args, &figures)
}

impl Step {
    fn new(args: &Args, model: &ModelConfig) -> Result<Self> {
        let device = device::parse(&args.device)?;
        let freezing = Freezing::backbone(model, TRAINED_STAGES);
        let network = match &args.weights {
            None => Network::from_random(model, 0, freezing, &device)?,
            Some(path) => {
                let checkpoint = Checkpoint::open(path)?;
                Network::from_checkpoint(model, checkpoint, Loading::Strict, freezing, &device)?.0
            }
        };
        let (image, target) = match dataset(args)? {
            Some(dataset) => first_labelled(dataset, model, network.target_needs())?,
            None => {
                let image = photo(args)?;
                let target = synthetic_target(image.size(), model.num_classes)?;
                (image, target)
            }
        };
        let parameters = network.parameters().trainable();
        let rule = UpdateRule::Sgd(Momentum::Heavy(0.9));
        let optimizer = Optimizer::new(&parameters, rule, &ParameterGroups::uniform(1e-4))?;
        let batch = Batch { images: vec![image], targets: vec![target], min_size: None };
        Ok(Self { network, parameters, optimizer, batch, device })
    }

    /// Each step samples anew.
    fn evaluate(&self) -> Result<Evaluated> {
        let mut sampler = RandomSampler::new(0, self.optimizer.steps());
        Ok(self.network.evaluate(&self.batch, &mut sampler)?)
    }

    fn run(&mut self) -> Result<()> {
        let gradients = self.evaluate()?.gradients(&self.parameters)?;
        Ok(self.optimizer.step(&gradients, RATE)?)
    }
}

fn first_labelled(
    dataset: CocoDataset,
    model: &ModelConfig,
    needs: TargetNeeds,
) -> Result<(ImageInput, Target)> {
    let set = TrainingSet::new(dataset, model.num_classes, needs, Unlabelled::Skip)?;
    let first = *set.images().first().context("the data set has no image to learn from")?;
    Ok(set.load(first)?.into_input()?)
}

/// Rectangles anywhere, a tenth to half as long as the photo, with masks that fill them.
fn synthetic_target(size: ImageSize, num_classes: usize) -> Result<Target> {
    let mut random = Random::new(0);
    let mut span = |length: usize| {
        let extent = length / 10 + random.below(length * 2 / 5) + 1;
        let start = random.below(length - extent + 1);
        start..start + extent
    };
    let (mut boxes, mut masks) = (Vec::new(), Vec::new());
    for _ in 0..OBJECTS {
        let (across, down) = (span(size.width), span(size.height));
        let mut mask = image::GrayImage::new(size.width as u32, size.height as u32);
        for (x, y, pixel) in mask.enumerate_pixels_mut() {
            let inside = across.contains(&(x as usize)) && down.contains(&(y as usize));
            pixel.0 = [u8::from(inside)];
        }
        masks.push(Rle::from_bitmap(&mask)?);
        boxes.push(BoxXyxy {
            x1: across.start as f32,
            y1: down.start as f32,
            x2: across.end as f32,
            y2: down.end as f32,
        });
    }
    let labels = (0..OBJECTS).map(|object| 1 + (object % (num_classes - 1)) as u32).collect();
    Ok(Target { image_id: 0, boxes, labels, masks, keypoints: Vec::new() })
}
