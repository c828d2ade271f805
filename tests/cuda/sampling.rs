//! Ops that compare boxes with objects, sample, and bring targets: what the CPU finds, the GPU finds.

use candle_core::{DType, Device, Tensor};
use candle_detection::ops::{
    AssignParams, BoxSet, Chosen, HostArray, IGNORED_LABEL, Match, Objects, SampleParams, Unfound,
    append_slots, assign, box_targets, gather_rows, random_bits, sample_boxes, upload_arrays,
};

use super::counters::{Counts, alone, count};
use super::support::{Random, assert_close, assert_equal, assert_launches, cuda, upload, values};

const RPN: AssignParams =
    AssignParams { positive_iou: 0.7, negative_iou: 0.3, unfound: Unfound::GivenToBestBoxes };
const ROI: AssignParams =
    AssignParams { positive_iou: 0.5, negative_iou: 0.5, unfound: Unfound::Dropped };

fn whole(values: &[u32], dims: &[usize]) -> Tensor {
    Tensor::from_vec(values.to_vec(), dims, &Device::Cpu).unwrap()
}

/// Numbers of a u32 tensor, which f32 might round.
fn numbers(tensor: &Tensor) -> Vec<u32> {
    tensor.to_device(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn random_bits_are_those_of_the_cpu() {
    let _alone = alone();
    for dims in [(1, 1), (3, 1001), (2, 0)] {
        let found = random_bits(0x1234_5678_9abc_def0, dims, &cuda()).unwrap();
        let expected = random_bits(0x1234_5678_9abc_def0, dims, &Device::Cpu).unwrap();
        assert_eq!((found.dims(), numbers(&found)), (expected.dims(), numbers(&expected)));
    }
    assert_launches(1, || random_bits(7, (2, 500), &cuda()).unwrap());
}

#[test]
fn arrays_arrive_in_one_copy() {
    let _alone = alone();
    let floats: Vec<f32> = (0..1000u16).map(f32::from).collect();
    let ids: Vec<u32> = (0..77).map(|id| u32::MAX - id).collect();
    let arrays = [
        HostArray::F32(&floats),
        HostArray::U8(&[1, 2, 3, 4, 5]),
        HostArray::U32(&[]),
        HostArray::U32(&ids),
        HostArray::U8(&[9]),
        HostArray::F32(&floats[..3]),
        HostArray::F32(&floats[3..4]),
        HostArray::U32(&ids[..1]),
        // Beyond the table of a launch.
        HostArray::U32(&ids[..5]),
    ];
    upload_arrays(&arrays, &cuda()).unwrap();
    let (found, counts) = count(|| upload_arrays(&arrays, &cuda()).unwrap());
    let expected_counts = Counts { host_to_device: 1, launches: 2, ..Counts::default() };
    assert_eq!(counts.unwrap_or(expected_counts), expected_counts);
    let expected = upload_arrays(&arrays, &Device::Cpu).unwrap();
    for (found, expected) in found.iter().zip(&expected) {
        assert_equal(found, expected);
        if expected.dtype() == DType::U32 {
            assert_eq!(numbers(found), numbers(expected));
        }
    }
}

#[test]
fn slots_are_appended_without_a_gap() {
    let _alone = alone();
    let mut random = Random::new(1);
    for (first, second, first_counts, second_counts) in
        [(5, 300, [5, 0, 2], [300, 7, 0]), (0, 2, [0; 3], [2, 0, 1]), (3, 0, [1, 2, 3], [0; 3])]
    {
        let (a, b) = (random.tensor(&[3, first, 4]), random.tensor(&[3, second, 4]));
        let (a_counts, b_counts) = (whole(&first_counts, &[3]), whole(&second_counts, &[3]));
        let expected = append_slots((&a, &a_counts), (&b, &b_counts)).unwrap();
        let [a, b, a_counts, b_counts] = [&a, &b, &a_counts, &b_counts].map(upload);
        let found = assert_launches(1, || append_slots((&a, &a_counts), (&b, &b_counts)).unwrap());
        assert_equal(&found.0, &expected.0);
        assert_equal(&found.1, &expected.1);
    }
}

/// Boxes and objects on whole pixels, so that equal overlaps are common.
fn scene(random: &mut Random, images: usize, n: usize) -> Tensor {
    let boxes = random.boxes(images * n, 90.0, 70.0).round().unwrap();
    boxes.reshape((images, n, 4)).unwrap()
}

#[test]
fn objects_are_assigned_as_on_the_cpu() {
    let _alone = alone();
    let mut random = Random::new(2);
    let (boxes, objects) = (scene(&mut random, 3, 900), scene(&mut random, 3, 11));
    let (valid, present) = (whole(&[900, 0, 257], &[3]), whole(&[11, 4, 0], &[3]));
    let shared = boxes.get(0).unwrap();
    let [on_gpu, gpu_objects, gpu_valid, gpu_present, gpu_shared] =
        [&boxes, &objects, &valid, &present, &shared].map(upload);
    for (params, launches) in [(RPN, 2), (ROI, 1)] {
        let set = BoxSet::PerImage { boxes: &boxes, counts: &valid };
        let expected = assign(set, &objects, &present, &params).unwrap();
        let set = BoxSet::PerImage { boxes: &on_gpu, counts: &gpu_valid };
        let found =
            assert_launches(launches, || assign(set, &gpu_objects, &gpu_present, &params).unwrap());
        assert_equal(&found, &expected);
        let expected = assign(BoxSet::Shared(&shared), &objects, &present, &params).unwrap();
        let set = BoxSet::Shared(&gpu_shared);
        assert_equal(&assign(set, &gpu_objects, &gpu_present, &params).unwrap(), &expected);
        let codes = numbers(&expected);
        assert!(codes.contains(&1) && codes.iter().any(|code| *code > 2));
        assert_eq!(codes.contains(&0), params == RPN);
    }
    let none = Tensor::zeros((3, 0, 4), DType::F32, &cuda()).unwrap();
    let counts = Tensor::zeros(3, DType::U32, &cuda()).unwrap();
    let found = assign(BoxSet::Shared(&gpu_shared), &none, &counts, &RPN).unwrap();
    assert!(numbers(&found).iter().all(|code| *code == Match::Background.code()));
}

/// Codes of boxes, of which a share has found something and a share shows nothing.
fn codes(random: &mut Random, n: usize, found: f32, background: f32) -> Vec<u32> {
    (0..n)
        .map(|_| match random.unit() {
            share if share < found => 2 + random.below(3) as u32,
            share if share < found + background => 1,
            _ => 0,
        })
        .collect()
}

#[track_caller]
fn assert_same(found: &Chosen, expected: &Chosen) {
    assert_equal(&found.counts, &expected.counts);
    assert_equal(&found.index, &expected.index);
}

#[test]
fn samples_are_those_of_the_cpu() {
    let _alone = alone();
    let mut random = Random::new(3);
    for (n, samples, positive_fraction) in
        [(5000, 256, 0.5), (700, 512, 0.25), (30, 512, 0.25), (1, 1, 0.5), (3000, 300, 1.0)]
    {
        let images = [(0.1, 0.8), (0.9, 0.05), (0.0, 1.0), (0.0, 0.0), (1.0, 0.0)];
        let lists: Vec<u32> = images
            .iter()
            .flat_map(|(found, background)| codes(&mut random, n, *found, *background))
            .collect();
        let matches = whole(&lists, &[images.len(), n]);
        // Few levels, so that the index decides often.
        let levels = if n > 1000 { 50 } else { 3 };
        let bits = random_bits(9, (images.len(), n), &Device::Cpu).unwrap();
        let coarse: Vec<u32> = numbers(&bits).iter().map(|bits| bits % levels).collect();
        for priorities in [bits, whole(&coarse, &[images.len(), n])] {
            let params = SampleParams { samples, positive_fraction };
            let expected = sample_boxes(&matches, &priorities, &params).unwrap();
            let (matches, priorities) = (upload(&matches), upload(&priorities));
            let found =
                assert_launches(2, || sample_boxes(&matches, &priorities, &params).unwrap());
            assert_same(&found.all, &expected.all);
            assert_same(&found.positives, &expected.positives);
        }
    }
}

#[test]
fn targets_are_those_of_the_cpu() {
    let _alone = alone();
    let mut random = Random::new(4);
    let (boxes, objects) = (scene(&mut random, 2, 300), scene(&mut random, 2, 6));
    let (valid, present) = (whole(&[300, 200], &[2]), whole(&[6, 2], &[2]));
    let labels = whole(&[1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0], &[2, 6]);
    let set = BoxSet::PerImage { boxes: &boxes, counts: &valid };
    let matches = assign(set, &objects, &present, &RPN).unwrap();
    let priorities = random_bits(1, (2, 300), &Device::Cpu).unwrap();
    let params = SampleParams { samples: 280, positive_fraction: 0.25 };
    let samples = sample_boxes(&matches, &priorities, &params).unwrap();
    let weights = [10.0, 10.0, 5.0, 5.0];
    let on_gpu = [&boxes, &valid, &objects, &labels, &matches].map(upload);
    let [gpu_boxes, gpu_valid, gpu_objects, gpu_labels, gpu_matches] = &on_gpu;
    for chosen in [&samples.all, &samples.positives] {
        let of = Objects { boxes: &objects, labels: &labels };
        let slots = (&chosen.index, &chosen.counts);
        let expected = box_targets(slots, &matches, set, of, weights).unwrap();
        let of = Objects { boxes: gpu_objects, labels: gpu_labels };
        let (index, counts) = (upload(&chosen.index), upload(&chosen.counts));
        let set = BoxSet::PerImage { boxes: gpu_boxes, counts: gpu_valid };
        let found = assert_launches(1, || {
            box_targets((&index, &counts), gpu_matches, set, of, weights).unwrap()
        });
        assert_equal(&found.boxes, &expected.boxes);
        assert_eq!(numbers(&found.labels), numbers(&expected.labels));
        assert_equal(&found.objects, &expected.objects);
        assert_close(&found.deltas, &expected.deltas, 1e-5);
        assert!(values(&expected.deltas).iter().any(|delta| *delta != 0.0));
        assert!(numbers(&expected.labels).contains(&IGNORED_LABEL));
    }
}

#[test]
fn rows_are_picked_image_by_image() {
    let _alone = alone();
    let mut random = Random::new(5);
    let tables =
        [random.tensor(&[3, 7, 5, 8]), random.tensor(&[3, 2, 4]), random.tensor(&[3, 1, 4])];
    let rows: Vec<u32> = (0..3 * 40).map(|_| random.below(73) as u32).collect();
    let rows = whole(&rows, &[3, 40]);
    let expected = gather_rows(&tables.iter().collect::<Vec<_>>(), 4, &rows).unwrap();
    let on_gpu: Vec<Tensor> = tables.iter().map(upload).collect();
    let (tables, rows) = (on_gpu.iter().collect::<Vec<_>>(), upload(&rows));
    let found = assert_launches(1, || gather_rows(&tables, 4, &rows).unwrap());
    assert_equal(&found, &expected);
}
