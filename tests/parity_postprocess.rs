//! Selection of proposals and of detections against torchvision, on random predictions.

mod common;

use candle_core::{DType, Device, Tensor};
use candle_detection::config;
use candle_detection::ops::{NmsParams, gather_slots, nms, top_k};
use candle_detection::postprocess::DetectionsConfig;
use candle_detection::roi_heads::BoxPostprocess;
use candle_detection::structures::{BatchGeometry, ImageGeometry, ImageSize, Proposals};
use common::{fixtures, largest_difference, values};

fn ops_fixture() -> std::collections::HashMap<String, Tensor> {
    candle_core::safetensors::load(fixtures().join("ops.safetensors"), &Device::Cpu).unwrap()
}

fn geometry(sizes: &Tensor) -> BatchGeometry {
    let sizes: Vec<Vec<u32>> = sizes.to_vec2().unwrap();
    let image = |size: &Vec<u32>| {
        let size = ImageSize { height: size[0] as usize, width: size[1] as usize };
        ImageGeometry { original: size, resized: size }
    };
    BatchGeometry {
        padded: ImageSize { height: 512, width: 512 },
        images: sizes.iter().map(image).collect(),
    }
}

#[test]
fn detections_of_random_predictions() {
    let tensors = ops_fixture();
    let get = |what: &str| &tensors[&format!("postprocess/two_images/{what}")];
    let per_image = [get("proposals.0").clone(), get("proposals.1").clone()];
    let capacity = per_image.iter().map(|p| p.dims()[0]).max().unwrap();
    let pad = |rows: &Tensor| rows.pad_with_zeros(0, 0, capacity - rows.dims()[0]).unwrap();
    let counts: Vec<u32> = per_image.iter().map(|p| p.dims()[0] as u32).collect();
    let proposals = Proposals {
        boxes: Tensor::stack(&[pad(&per_image[0]), pad(&per_image[1])], 0).unwrap(),
        scores: Tensor::zeros((2, capacity), DType::F32, &Device::Cpu).unwrap(),
        counts: Tensor::new(counts.clone(), &Device::Cpu).unwrap(),
    };
    let slots = |rows: &Tensor| {
        let first = rows.narrow(0, 0, counts[0] as usize).unwrap();
        let second = rows.narrow(0, counts[0] as usize, counts[1] as usize).unwrap();
        Tensor::cat(&[pad(&first), pad(&second)], 0).unwrap()
    };
    let model = config::get("maskrcnn_resnet50_fpn").unwrap();
    let config = DetectionsConfig { per_image: 30, ..model.detections };
    let found = BoxPostprocess::new(&model.architecture.as_rcnn().unwrap().box_head)
        .forward(
            &slots(get("class_logits")),
            &slots(get("box_regression")),
            &proposals,
            &geometry(get("image_sizes")),
            &config,
        )
        .unwrap();
    for image in 0..2 {
        let expected = |what: &str| get(&format!("{what}.{image}"));
        let labels: Vec<u32> = found.labels.get(image).unwrap().to_vec1().unwrap();
        assert_eq!(labels, expected("labels").to_vec1::<u32>().unwrap());
        assert!(largest_difference(&found.scores.get(image).unwrap(), expected("scores")) < 1e-6);
        assert!(largest_difference(&found.boxes.get(image).unwrap(), expected("boxes")) < 1e-3);
    }
}

/// The fixture's proposals are decoded already, so decoding is replaced by a gather here.
#[test]
fn proposals_of_random_predictions() {
    let tensors = ops_fixture();
    let get = |what: &str| &tensors[&format!("filter_proposals/two_images/{what}")];
    let lengths: Vec<u32> = get("anchors_per_level").to_vec1().unwrap();
    let top_n: Vec<u32> = get("top_n").to_vec1().unwrap();
    let mut start = 0;
    let segments: Vec<Tensor> = lengths
        .iter()
        .map(|length| {
            let segment = get("objectness").narrow(1, start, *length as usize).unwrap();
            start += *length as usize;
            segment.contiguous().unwrap()
        })
        .collect();
    let best = top_k(&segments.iter().collect::<Vec<_>>(), top_n[0] as usize).unwrap();
    let (n, slots) = best.index.dims2().unwrap();
    let all = Tensor::full(slots as u32, n, &Device::Cpu).unwrap();
    let mut boxes = gather_slots(get("proposals"), &best.index, &all).unwrap();
    let sizes: Vec<Vec<u32>> = get("image_sizes").to_vec2().unwrap();
    let mut clipped = values(&boxes);
    let mut valid = vec![0u8; n * slots];
    for (slot, b) in clipped.chunks_exact_mut(4).enumerate() {
        let (height, width) = (sizes[slot / slots][0] as f32, sizes[slot / slots][1] as f32);
        let limits = [width, height, width, height];
        b.iter_mut().zip(limits).for_each(|(corner, limit)| *corner = corner.clamp(0.0, limit));
        valid[slot] = u8::from(b[2] - b[0] >= 1e-3 && b[3] - b[1] >= 1e-3);
    }
    boxes = Tensor::from_vec(clipped, boxes.dims(), &Device::Cpu).unwrap();
    let scores = candle_nn::ops::sigmoid(&best.values).unwrap();
    let valid = Tensor::from_vec(valid, (n, slots), &Device::Cpu).unwrap();
    let params = NmsParams { iou_threshold: 0.7, capacity: top_n[1] as usize };
    let kept = nms(&boxes, &scores, &best.segment, &valid, &params).unwrap();
    let boxes = gather_slots(&boxes, &kept.index, &kept.counts).unwrap();
    let scores = gather_slots(&scores, &kept.index, &kept.counts).unwrap();
    for image in 0..2 {
        let expected = get(&format!("boxes.{image}"));
        assert_eq!(kept.counts.to_vec1::<u32>().unwrap()[image] as usize, expected.dims()[0]);
        assert!(largest_difference(&boxes.get(image).unwrap(), expected) < 1e-4);
        let expected = get(&format!("scores.{image}"));
        assert!(largest_difference(&scores.get(image).unwrap(), expected) < 1e-6);
    }
}
