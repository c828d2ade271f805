//! Losses and their gradients: what the CPU finds, the GPU finds, without a copy.

use candle_core::{Device, Tensor, Var};
use candle_detection::ops::{IGNORED_LABEL, box_loss, classifier_loss, mask_loss, objectness_loss};

use super::common::{largest_difference, largest_value};
use super::counters::{Counts, alone, count};
use super::support::{Random, cuda, upload, values};

/// Of a value, and of a gradient relative to its largest entry.
const TOLERANCE: f32 = 1e-6;

/// A loss of predictions, labels and targets.
type Loss = fn(&Tensor, &Tensor, &Tensor) -> candle_detection::Result<Tensor>;

struct Case {
    loss: Loss,
    predictions: Tensor,
    labels: Tensor,
    targets: Tensor,
}

/// Rows of predictions, of which those that are ignored hold NaN.
fn case(
    random: &mut Random,
    loss: Loss,
    dims: &[usize],
    targets: &[usize],
    labels: &[u32],
) -> Case {
    let width = dims[1..].iter().product::<usize>();
    let mut predictions = values(&random.tensor(dims).affine(6.0, 0.0).unwrap());
    for (row, label) in predictions.chunks_exact_mut(width).zip(labels) {
        if *label == IGNORED_LABEL {
            row.fill(f32::NAN);
        }
    }
    Case {
        loss,
        predictions: Tensor::from_vec(predictions, dims, &Device::Cpu).unwrap(),
        labels: Tensor::new(labels, &Device::Cpu).unwrap(),
        targets: random.tensor(targets).affine(0.5, 0.5).unwrap(),
    }
}

/// All losses on `rows` rows with labels below five.
fn cases(random: &mut Random, rows: usize, label: impl Fn(usize) -> u32) -> Vec<Case> {
    let labels: Vec<u32> = (0..rows).map(label).collect();
    let none = [0];
    vec![
        case(random, |x, labels, _| objectness_loss(x, labels), &[rows, 1], &none, &labels),
        case(random, |x, labels, _| classifier_loss(x, labels), &[rows, 5], &none, &labels),
        case(random, box_loss, &[rows, 4], &[rows, 4], &labels),
        case(random, box_loss, &[rows, 20], &[rows, 4], &labels),
        case(random, mask_loss, &[rows, 7, 9], &[rows, 7, 9], &labels),
    ]
}

impl Case {
    /// Value, gradient and the counts of both.
    fn run(&self, device: &Device) -> (f32, Tensor, [Option<Counts>; 2]) {
        let [predictions, labels, targets] =
            [&self.predictions, &self.labels, &self.targets].map(|t| t.to_device(device).unwrap());
        let variable = Var::from_tensor(&predictions).unwrap();
        let run = || (self.loss)(variable.as_tensor(), &labels, &targets).unwrap();
        run().backward().unwrap();
        let (loss, forward) = count(run);
        let (store, backward) = count(|| loss.backward().unwrap());
        let gradient = store.get(&variable).unwrap().to_device(&Device::Cpu).unwrap();
        (values(&loss)[0], gradient, [forward, backward])
    }
}

#[test]
fn values_and_gradients_are_those_of_the_cpu() {
    let _alone = alone();
    let mut random = Random::new(1);
    for rows in [1, 37, 9001] {
        let label = |row: usize| match row % 4 {
            3 => IGNORED_LABEL,
            1 => 1 + (row / 4) as u32 % 4,
            _ => 0,
        };
        for (index, case) in cases(&mut random, rows, label).iter().enumerate() {
            let (found, gradient, counts) = case.run(&cuda());
            let (expected, expected_gradient, _) = case.run(&Device::Cpu);
            assert!(
                (found - expected).abs() <= TOLERANCE * expected,
                "{index}: {found} {expected}"
            );
            let largest = largest_value(&expected_gradient);
            let difference = largest_difference(&gradient, &expected_gradient);
            assert!(difference <= TOLERANCE * largest, "{index}: {difference} of {largest}");
            let [forward, backward] = counts.map(|counts| counts.unwrap_or_default());
            assert!(forward.launches <= 2, "{index}: {forward:?}");
            for counts in [forward, backward] {
                let copies = Counts { launches: 0, device_to_device: 0, ..counts };
                assert_eq!(copies, Counts::default(), "{index}");
            }
        }
    }
}

#[test]
fn nothing_to_learn_costs_nothing() {
    let _alone = alone();
    let mut random = Random::new(2);
    for case in cases(&mut random, 40, |_| IGNORED_LABEL) {
        let (value, gradient, _) = case.run(&cuda());
        assert_eq!((value, largest_value(&gradient)), (0.0, 0.0));
    }
    // Boxes and masks learn from objects only.
    for case in &cases(&mut random, 40, |_| 0)[2..] {
        let (value, gradient, _) = case.run(&cuda());
        assert_eq!((value, largest_value(&gradient)), (0.0, 0.0));
    }
}

#[test]
fn what_is_not_finite_shows() {
    let _alone = alone();
    let mut random = Random::new(3);
    for case in cases(&mut random, 40, |row| 1 + row as u32 % 4) {
        let mut predictions = values(&case.predictions);
        // Of every class of the last row.
        let width = predictions.len() / 40;
        predictions[39 * width..].fill(f32::NAN);
        let predictions =
            Tensor::from_vec(predictions, case.predictions.dims(), &Device::Cpu).unwrap();
        let (labels, targets) = (upload(&case.labels), upload(&case.targets));
        let loss = (case.loss)(&upload(&predictions), &labels, &targets).unwrap();
        assert!(values(&loss)[0].is_nan());
    }
    // A label that is no class.
    let logits = upload(&random.tensor(&[2, 3]));
    let labels = upload(&Tensor::new(&[1u32, 3], &Device::Cpu).unwrap());
    assert!(values(&classifier_loss(&logits, &labels).unwrap())[0].is_nan());
}
