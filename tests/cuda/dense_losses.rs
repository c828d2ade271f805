//! Matching and losses of one-stage detectors: what the CPU finds, the GPU finds, without a copy.

use candle_core::{Device, Tensor, Var};
use candle_detection::ops::{
    AssignParams, AssignPointsParams, BoxCoding, BoxCost, BoxSet, DenseBoxLossParams, DenseTruth,
    Normalization, Objects, Unfound, assign, assign_points, centerness_loss, dense_box_loss,
    focal_loss, hard_negative_loss,
};

use super::common::{largest_difference, largest_value};
use super::counters::{Counts, alone, count};
use super::support::{Random, cuda, upload, values};

/// Of a value, and of a gradient relative to its largest entry.
const TOLERANCE: f32 = 2e-6;
const CLASSES: usize = 5;
const OBJECTS: usize = 3;

/// Levels and what their places are to learn.
struct Truth {
    lengths: Vec<usize>,
    matches: Tensor,
    boxes: Tensor,
    labels: Tensor,
    anchors: Tensor,
}

impl Truth {
    /// Two images; large objects around small anchors, so that points are inside.
    fn new(random: &mut Random, lengths: &[usize], code: impl Fn(usize) -> u32) -> Self {
        let rows = lengths.iter().sum::<usize>();
        let matches: Vec<u32> = (0..2 * rows).map(code).collect();
        let shifts = values(&random.tensor(&[2 * OBJECTS, 4]));
        let boxes =
            shifts.chunks(4).flat_map(|s| [s[0], s[1], 60.0 + 4.0 * s[2], 40.0 + 4.0 * s[3]]);
        let places = values(&random.tensor(&[rows, 4]));
        let anchors = places.chunks(4).flat_map(|s| {
            let (x, y) = (25.0 + 14.0 * s[0], 18.0 + 8.0 * s[1]);
            [x, y, x + 8.0 + 4.0 * s[2], y + 8.0 + 4.0 * s[3]]
        });
        let labels: Vec<u32> = (0..2 * OBJECTS).map(|i| i as u32 % CLASSES as u32).collect();
        let on_cpu = |values: Vec<f32>, dims: &[usize]| {
            Tensor::from_vec(values, dims, &Device::Cpu).unwrap()
        };
        Self {
            lengths: lengths.to_vec(),
            matches: Tensor::from_vec(matches, (2, rows), &Device::Cpu).unwrap(),
            boxes: on_cpu(boxes.collect(), &[2, OBJECTS, 4]),
            labels: Tensor::from_vec(labels, (2, OBJECTS), &Device::Cpu).unwrap(),
            anchors: on_cpu(anchors.collect(), &[rows, 4]),
        }
    }

    fn on(&self, device: &Device) -> Self {
        let to = |tensor: &Tensor| tensor.to_device(device).unwrap();
        Self {
            lengths: self.lengths.clone(),
            matches: to(&self.matches),
            boxes: to(&self.boxes),
            labels: to(&self.labels),
            anchors: to(&self.anchors),
        }
    }

    fn truth(&self) -> DenseTruth<'_> {
        let objects = Objects { boxes: &self.boxes, labels: &self.labels };
        DenseTruth { matches: &self.matches, objects }
    }
}

type Loss = Box<dyn Fn(&[&Tensor], &Truth) -> candle_detection::Result<Tensor>>;

/// Width of rows, and the loss.
fn losses() -> Vec<(usize, Loss)> {
    let mut losses: Vec<(usize, Loss)> = vec![
        (1, Box::new(|x, t| centerness_loss(x, &t.anchors, t.truth()))),
        (CLASSES, Box::new(|x, t| hard_negative_loss(x, CLASSES, t.truth(), 3))),
    ];
    let deltas = BoxCoding::Deltas { weights: [10.0, 10.0, 5.0, 5.0] };
    for normalization in [Normalization::PerImage, Normalization::PerBatch] {
        let focal: Loss = Box::new(move |x, t| focal_loss(x, CLASSES, t.truth(), normalization));
        losses.push((CLASSES, focal));
        for coding in [deltas, BoxCoding::Distances] {
            for cost in [BoxCost::L1, BoxCost::SmoothL1 { beta: 1.0 }, BoxCost::Giou] {
                let params = DenseBoxLossParams { coding, cost, normalization };
                let boxes: Loss =
                    Box::new(move |x, t| dense_box_loss(x, &t.anchors, t.truth(), &params));
                losses.push((4, boxes));
            }
        }
    }
    losses
}

/// Value, gradients of the levels, and the counts of both.
fn run(
    loss: &Loss,
    levels: &[Tensor],
    truth: &Truth,
    device: &Device,
) -> (f32, Vec<Tensor>, [Option<Counts>; 2]) {
    let truth = truth.on(device);
    let levels = levels.iter().map(|level| level.to_device(device).unwrap());
    let levels: Vec<Var> = levels.map(|level| Var::from_tensor(&level).unwrap()).collect();
    let run = || loss(&levels.iter().map(Var::as_tensor).collect::<Vec<_>>(), &truth).unwrap();
    run().backward().unwrap();
    let (value, forward) = count(run);
    let (store, backward) = count(|| value.backward().unwrap());
    let gradients = levels.iter().map(|level| {
        let gradient = store.get(level).unwrap();
        gradient.to_device(&Device::Cpu).unwrap()
    });
    (values(&value)[0], gradients.collect(), [forward, backward])
}

#[test]
fn values_and_gradients_are_those_of_the_cpu() {
    let _alone = alone();
    let mut random = Random::new(1);
    let codes: [fn(usize) -> u32; 3] = [
        |place| [1, 2, 1, 0, 1, 4, 1, 1, 1, 3, 1][place % 11],
        |_| 1,
        |place| 2 + place as u32 % 2,
    ];
    for lengths in [vec![3, 0, 2], vec![1001, 70, 9]] {
        for code in codes {
            let truth = Truth::new(&mut random, &lengths, code);
            for (index, (width, loss)) in losses().iter().enumerate() {
                let level = |length: &usize| {
                    random.tensor(&[2, 1, *length, *width]).affine(5.0, 0.0).unwrap()
                };
                let levels: Vec<Tensor> = lengths.iter().map(level).collect();
                let (found, gradients, counts) = run(loss, &levels, &truth, &cuda());
                let (expected, expected_gradients, _) = run(loss, &levels, &truth, &Device::Cpu);
                assert!(
                    (found - expected).abs() <= TOLERANCE * expected,
                    "{index}: {found} {expected}"
                );
                let largest = expected_gradients.iter().map(largest_value).fold(0.0, f32::max);
                for (found, expected) in gradients.iter().zip(&expected_gradients) {
                    let difference = largest_difference(found, expected);
                    assert!(
                        difference <= TOLERANCE * largest,
                        "{index}: {difference} of {largest}"
                    );
                }
                let [forward, backward] = counts.map(|counts| counts.unwrap_or_default());
                assert!(forward.launches <= 6, "{index}: {forward:?}");
                for counts in [forward, backward] {
                    let copies = Counts { launches: 0, device_to_device: 0, ..counts };
                    assert_eq!(copies, Counts::default(), "{index}");
                }
            }
        }
    }
}

#[test]
fn what_is_ignored_is_not_looked_at_and_what_is_not_finite_shows() {
    let _alone = alone();
    let mut random = Random::new(2);
    let truth = Truth::new(&mut random, &[40], |place| place as u32 % 4);
    for (index, (width, loss)) in losses().iter().enumerate() {
        let level = values(&random.tensor(&[2, 40, *width]));
        let poisoned = |code: usize| {
            let mut level = level.clone();
            for (row, values) in level.chunks_exact_mut(*width).enumerate() {
                if row % 4 == code {
                    values.fill(f32::NAN);
                }
            }
            let level = Tensor::from_vec(level, (2, 40, *width), &Device::Cpu).unwrap();
            run(loss, &[level], &truth, &cuda()).0
        };
        assert!(poisoned(0).is_finite(), "{index}");
        assert!(poisoned(2).is_nan(), "{index}");
    }
    // A match that is no object.
    let truth = Truth::new(&mut random, &[40], |_| 2 + OBJECTS as u32);
    for (index, (width, loss)) in losses().iter().enumerate() {
        let level = upload(&random.tensor(&[2, 40, *width]));
        let found = values(&loss(&[&level], &truth.on(&cuda())).unwrap())[0];
        assert!(found.is_nan(), "{index}: {found}");
    }
}

#[test]
fn matches_are_those_of_the_cpu() {
    let _alone = alone();
    let mut random = Random::new(3);
    let mut squares = Vec::new();
    let mut lengths = Vec::new();
    for stride in [8usize, 16, 32] {
        let (rows, columns) = (160 / stride, 256 / stride);
        let half = stride as f32 / 2.0;
        for place in 0..rows * columns {
            let (x, y) = ((place % columns * stride) as f32, (place / columns * stride) as f32);
            squares.extend([x - half, y - half, x + half, y + half]);
        }
        lengths.push(rows * columns);
    }
    let points = lengths.iter().sum::<usize>();
    let squares = Tensor::from_vec(squares, (points, 4), &Device::Cpu).unwrap();
    let objects = random.boxes(3 * 9, 256.0, 160.0).reshape((3, 9, 4)).unwrap();
    let counts = Tensor::new(&[9u32, 0, 4], &Device::Cpu).unwrap();
    let params = AssignPointsParams { center_radius: 1.5, side_range: (4.0, 8.0) };
    let expected = assign_points(&squares, &lengths, &objects, &counts, &params).unwrap();
    let (on_gpu, boxes, present) = (upload(&squares), upload(&objects), upload(&counts));
    let run = || assign_points(&on_gpu, &lengths, &boxes, &present, &params).unwrap();
    run();
    let (found, copies) = count(run);
    assert_eq!(values(&found), values(&expected));
    assert!(values(&expected).iter().any(|code| *code > 2.0));
    if let Some(copies) = copies {
        assert_eq!(copies, Counts { launches: 1, ..Counts::default() });
    }
    for unfound in [Unfound::EachToItsBestBox, Unfound::GivenToBestBoxes] {
        let params = AssignParams { positive_iou: 0.5, negative_iou: 0.4, unfound };
        let expected = assign(BoxSet::Shared(&squares), &objects, &counts, &params).unwrap();
        let found = assign(BoxSet::Shared(&on_gpu), &boxes, &present, &params).unwrap();
        assert_eq!(values(&found), values(&expected), "{unfound:?}");
    }
}
