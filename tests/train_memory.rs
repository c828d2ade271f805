//! What training costs in memory, counted by an allocator. One test, so that nothing else allocates meanwhile.
#![cfg(feature = "train")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{Device, Tensor};
use candle_detection::ImageInput;
use candle_detection::checkpoint::{Checkpoint, Loading};
use candle_detection::config::ModelConfig;
use candle_detection::ops::{AssignParams, BoxSet, Match, Unfound, assign};
use candle_detection::structures::{BoxXyxy, Rle, Target};
use candle_detection::train::{
    Batch, Freezing, Momentum, Network, Optimizer, ParameterGroups, Random, RandomSampler,
    UpdateRule,
};
use common::fixtures;

/// The system's allocator, with the bytes in use and the most of them.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(used, Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract, and `place` came from the same allocator.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn used() -> usize {
    USED.load(Ordering::Relaxed)
}

/// The most bytes that some work uses beyond those in use before.
fn most_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = used();
    MOST.store(before, Ordering::Relaxed);
    let result = work();
    (result, MOST.load(Ordering::Relaxed).saturating_sub(before))
}

const MIB: usize = 1 << 20;

/// All anchors of an image of 800×1344 pixels.
const ANCHORS: usize = 242_991;

#[test]
fn memory_is_bounded() {
    objects_do_not_multiply_with_anchors();
    steps_leave_nothing_behind();
    frozen_stages_keep_no_graph();
}

/// A matrix of all pairs would take 1.9 GB.
fn objects_do_not_multiply_with_anchors() {
    let mut random = Random::new(1);
    let mut boxes = |count: usize| -> Vec<[f32; 4]> {
        let mut one = || {
            let [x, y] = [1300, 760].map(|length| random.below(length) as f32);
            let [width, height] = [8 + random.below(200), 8 + random.below(200)];
            [x, y, x + width as f32, y + height as f32]
        };
        (0..count).map(|_| one()).collect()
    };
    let (anchors, objects) = (boxes(ANCHORS), boxes(2000));
    let params =
        AssignParams { positive_iou: 0.7, negative_iou: 0.3, unfound: Unfound::GivenToBestBoxes };
    let tensor = |boxes: &[[f32; 4]], dims: &[usize]| {
        Tensor::from_vec(boxes.as_flattened().to_vec(), dims, &Device::Cpu).unwrap()
    };
    let count = Tensor::new(&[objects.len() as u32], &Device::Cpu).unwrap();
    let (anchors, objects) = (tensor(&anchors, &[ANCHORS, 4]), tensor(&objects, &[1, 2000, 4]));
    let (matches, most) =
        most_of(|| assign(BoxSet::Shared(&anchors), &objects, &count, &params).unwrap());
    let codes: Vec<u32> = matches.flatten_all().unwrap().to_vec1().unwrap();
    let is_object = |code: &&u32| matches!(Match::from_code(**code), Match::Object(_));
    let found = codes.iter().filter(is_object).count();
    assert!(found >= 1000 && codes.len() == ANCHORS, "{found}");
    assert!(most < 64 * MIB, "{most} bytes");
}

struct Course {
    network: Network,
    optimizer: Optimizer,
    batch: Batch,
}

impl Course {
    fn new(stages: usize) -> Self {
        let file = |extension: &str| fixtures().join(format!("tiny_r18.{extension}"));
        let mut config = ModelConfig::load(&file("toml")).unwrap();
        config.architecture.as_rcnn_mut().unwrap().training.rpn.post_nms_top_n = 40;
        let freezing = Freezing::backbone(&config, stages);
        let checkpoint = Checkpoint::open(&file("safetensors")).unwrap();
        let (network, _) =
            Network::from_checkpoint(&config, checkpoint, Loading::Strict, freezing, &Device::Cpu)
                .unwrap();
        let parameters = network.parameters().trainable();
        let rule = UpdateRule::Sgd(Momentum::Heavy(0.9));
        let optimizer = Optimizer::new(&parameters, rule, &ParameterGroups::uniform(1e-4)).unwrap();
        let mut mask = image::GrayImage::new(96, 72);
        mask.enumerate_pixels_mut().for_each(|(x, y, pixel)| {
            pixel.0 = [u8::from((20..60).contains(&x) && (10..50).contains(&y))];
        });
        let target = Target {
            image_id: 1,
            boxes: vec![BoxXyxy { x1: 20.0, y1: 10.0, x2: 60.0, y2: 50.0 }],
            labels: vec![1],
            masks: vec![Rle::from_bitmap(&mask).unwrap()],
            keypoints: Vec::new(),
        };
        let image = ImageInput::from_rgb8(96, 72, vec![100; 96 * 72 * 3]).unwrap();
        let batch = Batch { images: vec![image], targets: vec![target], min_size: None };
        Self { network, optimizer, batch }
    }

    fn step(&mut self) {
        let mut sampler = RandomSampler::new(1, self.optimizer.steps());
        let evaluated = self.network.evaluate(&self.batch, &mut sampler).unwrap();
        let gradients = evaluated.gradients(&self.optimizer.parameters()).unwrap();
        self.optimizer.step(&gradients, 1e-4).unwrap();
    }
}

/// Nothing of a step is held by the next one: not the graph, not the proposals, not what depends on the samples.
fn steps_leave_nothing_behind() {
    let mut course = Course::new(5);
    let mut ends = Vec::new();
    for _ in 0..200 {
        course.step();
        ends.push(used());
    }
    let most = |ends: &[usize]| ends.iter().copied().max().unwrap_or(0);
    let (early, late) = (most(&ends[20..60]), most(&ends[160..]));
    assert!(late <= early + MIB / 16, "{early} bytes, later {late}");
}

/// Activations of frozen stages are freed on the way, not kept for a backward pass that never comes.
fn frozen_stages_keep_no_graph() {
    let most = |stages: usize| {
        let mut course = Course::new(stages);
        course.step();
        most_of(|| course.step()).1
    };
    let (frozen, trained) = (most(0), most(5));
    assert!(frozen < trained, "{frozen} bytes frozen, {trained} trained");
}
