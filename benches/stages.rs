//! Every stage of Mask R-CNN R50-FPN on an image of 480×640 pixels, with random weights, in f32 and bf16; and loading.
//!
//! Random weights find little, so that the heads on detections get a hundred boxes by a threshold of zero.

use candle_core::DType;
use candle_detection::ops::FilledRows;
use candle_detection::rcnn::GeneralizedRcnn;
use candle_detection::{Detector, ImageInput, Weights, transform};
use criterion::{Criterion, criterion_group, criterion_main};

#[global_allocator]
static ALLOCATOR: candle_detection::memory::ReusingAllocator =
    candle_detection::memory::ReusingAllocator::new();

fn load(dtype: DType) -> Detector {
    Detector::builder("maskrcnn_resnet50_fpn")
        .and_then(|builder| builder.weights(Weights::Random { seed: 0 }).dtype(dtype).build())
        .expect("a model")
}

fn stages(criterion: &mut Criterion) {
    // Not of one colour, so that proposals differ.
    let bytes = (0..480 * 640 * 3).map(|i| (i * 7919 % 251) as u8).collect();
    let image = [ImageInput::from_rgb8(640, 480, bytes).expect("an image")];
    for dtype in [DType::F32, DType::BF16] {
        let mut group = criterion.benchmark_group(dtype.as_str());
        group.sample_size(10);
        let detector = load(dtype);
        let (network, mut settings) = (detector.network(), detector.settings());
        settings.detections.score_threshold = 0.0;
        let to_batch =
            || transform::to_batch(&image, &settings.image, detector.device(), detector.dtype());
        let batch = to_batch().expect("a batch");
        let geometry = &batch.geometry;
        group.bench_function("transform", |bencher| bencher.iter(to_batch));
        let features = network.backbone.forward(&batch.pixels).expect("features");
        group.bench_function("backbone and pyramid", |bencher| {
            bencher.iter(|| network.backbone.forward(&batch.pixels));
        });
        let rcnn = network.parts::<GeneralizedRcnn>().expect("a two-stage detector");
        let predicted = rcnn.rpn.predict(&features).expect("predictions");
        group.bench_function("rpn head", |bencher| {
            bencher.iter(|| rcnn.rpn.predict(&features));
        });
        let propose =
            || rcnn.rpn.propose(&predicted, geometry, rcnn.rpn.limits())?.trim_to_counts();
        let proposals = propose().expect("proposals");
        group.bench_function("proposals", |bencher| bencher.iter(propose));
        let pooled = rcnn
            .roi_heads
            .pool(&features, &proposals.boxes, &proposals.counts, geometry)
            .expect("pooled boxes");
        group.bench_function("box pooling", |bencher| {
            bencher.iter(|| {
                rcnn.roi_heads.pool(&features, &proposals.boxes, &proposals.counts, geometry)
            });
        });
        group.bench_function("box head", |bencher| {
            bencher.iter(|| rcnn.roi_heads.predict(&pooled, FilledRows::All));
        });
        let detect = || {
            let config = &settings.detections;
            rcnn.roi_heads.detect(&features, &proposals, geometry, config)?.trim_to_counts()
        };
        let instances = detect().expect("instances");
        group.bench_function("box branch", |bencher| bencher.iter(detect));
        for head in &rcnn.instance_heads {
            group.bench_function(head.name(), |bencher| {
                bencher.iter(|| head.forward(&features, &instances, geometry));
            });
        }
        group.bench_function("all", |bencher| {
            bencher.iter(|| detector.detect_with(&image, &settings));
        });
        group.finish();
    }
}

criterion_group!(benches, stages);
criterion_main!(benches);
