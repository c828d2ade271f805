//! Every op besides convolutions and products, which `conv.rs` measures, at the sizes that Mask R-CNN R50-FPN has for an
//! image of 800×1088 pixels.

use candle_core::{DType, Device, Result, Tensor};
use candle_detection::ops::*;
use criterion::{Criterion, criterion_group, criterion_main};

/// Heights and widths of the pyramid's levels.
const LEVELS: [[usize; 2]; 5] = [[200, 272], [100, 136], [50, 68], [25, 34], [13, 17]];
const IMAGE: (usize, usize) = (800, 1088);
const CHANNELS: usize = 256;
const PROPOSALS: usize = 1000;
const CLASSES: usize = 91;
const DETECTIONS: usize = 100;

fn random(dims: &[usize], low: f32, high: f32) -> Tensor {
    Tensor::rand(low, high, dims, &Device::Cpu).expect("a random tensor")
}

/// Boxes of 16 to 400 pixels inside the image.
fn boxes(n: usize) -> Result<Tensor> {
    let corner = random(&[1, n, 1], 0.0, 1.0);
    let (x, y) = ((&corner * 680.0)?, (random(&[1, n, 1], 0.0, 1.0) * 390.0)?);
    let (width, height) = (random(&[1, n, 1], 16.0, 400.0), random(&[1, n, 1], 16.0, 400.0));
    Tensor::cat(&[&x, &y, &(&x + width)?, &(&y + height)?], 2)
}

fn counts(n: usize) -> Result<Tensor> {
    Tensor::new(&[n as u32], &Device::Cpu)
}

fn images(criterion: &mut Criterion) {
    let bytes = vec![128; 480 * 640 * 3];
    for dtype in [DType::F32, DType::BF16] {
        let params = ResizeNormalizeParams {
            mean: [0.485, 0.456, 0.406],
            std: [0.229, 0.224, 0.225],
            resized: vec![(800, 1066)],
            padded: IMAGE,
            dtype,
        };
        let photo = || PixelSource::Rgb8 { bytes: &bytes, height: 480, width: 640 };
        criterion.bench_function(&format!("resize_normalize {}", dtype.as_str()), |bencher| {
            bencher.iter(|| resize_normalize(&[photo()], &params, &Device::Cpu));
        });
    }
}

fn features(criterion: &mut Criterion) {
    for dtype in [DType::F32, DType::BF16] {
        let cast = |tensor: Tensor| tensor.to_dtype(dtype).expect("a cast");
        let name = |op: &str| format!("{op} {}", dtype.as_str());
        let stem = cast(random(&[1, 400, 544, 64], -1.0, 1.0));
        let pool = MaxPool2dParams { kernel: 3, stride: 2, padding: 1, rounding: Rounding::Down };
        criterion.bench_function(&name("max_pool2d stem"), |bencher| {
            bencher.iter(|| max_pool2d(&stem, &pool));
        });
        let maps = LEVELS.map(|[h, w]| cast(random(&[1, h, w, CHANNELS], -1.0, 1.0)));
        criterion.bench_function(&name("upsample_add level 0"), |bencher| {
            bencher.iter(|| upsample_add(&maps[1], &maps[0]));
        });
        let levels: Vec<&Tensor> = maps[..4].iter().collect();
        let scales = vec![0.25, 0.125, 0.0625, 0.03125];
        for (n, output) in [(PROPOSALS, 7), (DETECTIONS, 14)] {
            let (boxes, counts) = (boxes(n).expect("boxes"), counts(n).expect("counts"));
            let params = RoiAlignParams::new(output, 2, scales.clone());
            criterion.bench_function(
                &name(&format!("roi_align {n}x{output}x{output}")),
                |bencher| {
                    bencher.iter(|| roi_align(&levels, &boxes, &counts, &params));
                },
            );
        }
        let enlarged = cast(random(&[DETECTIONS, 28, 28, CHANNELS], 0.0, 1.0));
        let (weight, bias) =
            (random(&[CLASSES, CHANNELS], -1.0, 1.0), random(&[CLASSES], -1.0, 1.0));
        let labels = Tensor::full(1u32, DETECTIONS, &Device::Cpu).expect("labels");
        criterion.bench_function(&name("class_masks"), |bencher| {
            bencher.iter(|| class_masks(&enlarged, &weight, &bias, &labels));
        });
    }
}

fn proposals(criterion: &mut Criterion) {
    let grid = AnchorGridParams {
        levels: LEVELS
            .iter()
            .zip([32.0, 64.0, 128.0, 256.0, 512.0])
            .map(|([height, width], size)| AnchorLevel {
                height: *height,
                width: *width,
                stride_y: 800 / height,
                stride_x: 1088 / width,
                sizes: vec![size],
                aspect_ratios: vec![0.5, 1.0, 2.0],
            })
            .collect(),
    };
    criterion.bench_function("anchor_grid", |bencher| {
        bencher.iter(|| anchor_grid(&grid, &Device::Cpu));
    });
    let anchors = anchor_grid(&grid, &Device::Cpu).expect("anchors");
    let logits = LEVELS.map(|[h, w]| random(&[1, h * w * 3], -9.0, 3.0));
    let logits: Vec<&Tensor> = logits.iter().collect();
    criterion.bench_function("top_k", |bencher| bencher.iter(|| top_k(&logits, 1000)));
    let best = top_k(&logits, 1000).expect("the best anchors");
    let deltas = LEVELS.map(|[h, w]| random(&[1, h * w * 3, 4], -0.5, 0.5));
    let deltas: Vec<&Tensor> = deltas.iter().collect();
    let params =
        DecodeProposalsParams { image_sizes: vec![IMAGE], score_threshold: 0.0, min_side: 1e-3 };
    let decode = || decode_proposals(&anchors, &deltas, &best.index, &best.values, &params);
    criterion.bench_function("decode_proposals", |bencher| bencher.iter(decode));
    let decoded = decode().expect("proposals");
    let params = NmsParams { iou_threshold: 0.7, capacity: PROPOSALS };
    let suppress = || nms(&decoded.boxes, &decoded.scores, &best.segment, &decoded.valid, &params);
    criterion.bench_function("nms of proposals", |bencher| bencher.iter(suppress));
    let kept = suppress().expect("kept proposals");
    criterion.bench_function("gather_slots", |bencher| {
        bencher.iter(|| gather_slots(&decoded.boxes, &kept.index, &kept.counts));
    });
}

fn detections(criterion: &mut Criterion) {
    let params = SelectCandidatesParams {
        image_sizes: vec![IMAGE],
        box_weights: [10.0, 10.0, 5.0, 5.0],
        score_threshold: 0.05,
        min_side: 1e-2,
    };
    let logits = random(&[PROPOSALS, CLASSES], -4.0, 4.0);
    let regression = random(&[PROPOSALS, 4 * CLASSES], -1.0, 1.0);
    let (proposals, all) = (boxes(PROPOSALS).expect("boxes"), counts(PROPOSALS).expect("counts"));
    criterion.bench_function("select_candidates", |bencher| {
        bencher.iter(|| select_candidates(&logits, &regression, &proposals, &all, &params));
    });
    let found = boxes(DETECTIONS).expect("boxes");
    criterion.bench_function("scale_boxes", |bencher| {
        bencher.iter(|| scale_boxes(&found, &[(0.6, 0.6)]));
    });
    let masks = random(&[1, DETECTIONS, 28, 28], 0.0, 1.0);
    criterion.bench_function("pack_results", |bencher| {
        bencher.iter(|| pack_results(&[&found, &masks]));
    });
}

/// Objects of a quarter of an image of 480×640 pixels, in boxes of the resized one.
fn targets(criterion: &mut Criterion) {
    const POSITIVES: usize = 128;
    const OBJECTS: usize = 8;
    let place = |object: usize| [object as u32 * 76_800, 120, 160, 240, 320, 480, 640, 800, 1066];
    let places: Vec<u32> = (0..OBJECTS).flat_map(place).collect();
    let device = &Device::Cpu;
    let masks = ObjectMasks {
        pixels: Tensor::ones(OBJECTS * 76_800, DType::U8, device).expect("pixels"),
        places: Tensor::from_vec(places, (1, OBJECTS, 9), device).expect("places"),
    };
    let objects = (0..POSITIVES as u32).map(|slot| slot % OBJECTS as u32).collect();
    let objects = Tensor::from_vec(objects, (1, POSITIVES), device).expect("objects");
    let (boxes, all) = (boxes(POSITIVES).expect("boxes"), counts(POSITIVES).expect("counts"));
    criterion.bench_function("mask_targets", |bencher| {
        bencher.iter(|| mask_targets(&masks, &boxes, &objects, &all, 28));
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = images, features, proposals, detections, targets
}
criterion_main!(benches);
