use std::collections::HashMap;

use candle_core::Var;

use super::*;
use crate::ops::support::testing::{Random, SMALL_STEP, assert_gradients, exact, fixture, values};

const VALUE_TOLERANCE: f32 = 1e-5;
const GRADIENT_TOLERANCE: f32 = 1e-5;

type Function<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;

fn tensor(values: &[f32], dims: &[usize]) -> Tensor {
    Tensor::from_slice(values, dims, &Device::Cpu).unwrap()
}

fn whole(values: &[u32]) -> Tensor {
    Tensor::from_slice(values, values.len(), &Device::Cpu).unwrap()
}

/// Value, and gradient of the predictions.
#[track_caller]
fn differentiate(predictions: &Tensor, loss: Function<'_>) -> (f32, Vec<f32>) {
    let var = Var::from_tensor(predictions).unwrap();
    let value = loss(var.as_tensor()).unwrap();
    let gradients = value.backward().unwrap();
    let gradient = gradients.get(&var).unwrap();
    assert_eq!(gradient.dims(), predictions.dims());
    (value.to_scalar().unwrap(), values(gradient))
}

struct Reference(HashMap<String, Tensor>);

impl Reference {
    fn load() -> Self {
        Self(fixture("train_losses.safetensors"))
    }

    fn get(&self, key: &str) -> &Tensor {
        &self.0[key]
    }

    #[track_caller]
    fn check(&self, (value, gradient): (f32, Vec<f32>), names: (&str, &[f32])) {
        let expected = values(self.get(names.0))[0];
        assert!((value - expected).abs() <= VALUE_TOLERANCE * expected, "{value} {expected}");
        let largest = names.1.iter().fold(0f32, |m, v| m.max(v.abs()));
        assert_eq!(gradient.len(), names.1.len());
        for (index, (found, expected)) in gradient.iter().zip(names.1).enumerate() {
            let difference = (found - expected).abs();
            assert!(difference <= GRADIENT_TOLERANCE * largest, "{index}: {found} {expected}");
        }
    }
}

/// Puts rows of four to the places of objects.
fn spread(rows: &Tensor, labels: &[u32]) -> Vec<f32> {
    let rows = values(rows);
    let mut rows = rows.chunks_exact(4);
    let row = |label: &u32| if *label > 0 { rows.next().unwrap() } else { &[0.0; 4] };
    labels.iter().flat_map(row).copied().collect()
}

#[test]
fn losses_of_the_region_proposal_network_are_the_references() {
    let reference = Reference::load();
    let labels = reference.get("rpn/labels").flatten_all().unwrap().to_vec1::<u32>().unwrap();
    let of_labels = whole(&labels);
    let loss = differentiate(reference.get("rpn/logits"), &|x| objectness_loss(x, &of_labels));
    reference.check(loss, ("rpn/objectness", &values(reference.get("rpn/logits.grad"))));
    // The fixture has deltas of objects only.
    let [deltas, targets, gradient] = ["rpn/deltas", "rpn/targets", "rpn/deltas.grad"]
        .map(|key| spread(reference.get(key), &labels));
    let dims = [labels.len(), 4];
    let targets = tensor(&targets, &dims);
    let loss = differentiate(&tensor(&deltas, &dims), &|x| box_loss(x, &of_labels, &targets));
    reference.check(loss, ("rpn/box", &gradient));
}

#[test]
fn losses_of_the_heads_are_the_references() {
    let reference = Reference::load();
    let labels = reference.get("roi/labels").flatten_all().unwrap();
    let rows = labels.elem_count();
    let logits = reference.get("roi/logits").reshape((rows, 6)).unwrap();
    let loss = differentiate(&logits, &|x| classifier_loss(x, &labels));
    reference.check(loss, ("roi/classifier", &values(reference.get("roi/logits.grad"))));
    let deltas = reference.get("roi/deltas").reshape((rows, 24)).unwrap();
    let targets = reference.get("roi/targets").reshape((rows, 4)).unwrap();
    let loss = differentiate(&deltas, &|x| box_loss(x, &labels, &targets));
    reference.check(loss, ("roi/box", &values(reference.get("roi/deltas.grad"))));
}

#[test]
fn the_loss_of_masks_is_the_references() {
    let reference = Reference::load();
    let targets = reference.get("mask/larger/targets").reshape(((), 28, 28)).unwrap();
    let logits = reference.get("mask/logits").reshape(((), 28, 28)).unwrap();
    let labels = Tensor::ones(logits.dim(0).unwrap(), DType::U32, &Device::Cpu).unwrap();
    let loss = differentiate(&logits, &|x| mask_loss(x, &labels, &targets));
    reference.check(loss, ("mask/loss", &values(reference.get("mask/logits.grad"))));
}

type OfPredictions<'a> = Box<dyn Fn(&Tensor) -> Result<Tensor> + Sync + 'a>;
type Twin<'a> = Box<dyn Fn(&[f64]) -> f64 + 'a>;

/// Every loss of the same labels, with its twin: dimensions of the predictions, the loss, the definition.
struct Case<'a> {
    dims: Vec<usize>,
    loss: OfPredictions<'a>,
    twin: Twin<'a>,
}

struct Truth {
    labels: Vec<u32>,
    of_labels: Tensor,
    boxes: Tensor,
    masks: Tensor,
}

const CLASSES: usize = 3;

impl Truth {
    fn new(random: &mut Random, labels: &[u32]) -> Self {
        let rows = labels.len();
        let masks = random.tensor(&[rows, 2, 3]).affine(0.5, 0.5).unwrap();
        Self {
            labels: labels.to_vec(),
            of_labels: whole(labels),
            boxes: random.tensor(&[rows, 4]),
            masks,
        }
    }

    fn cases(&self) -> [Case<'_>; 5] {
        let Self { labels, of_labels, boxes, masks } = self;
        let (of_boxes, of_masks) = (exact(&values(boxes)), exact(&values(masks)));
        let rows = labels.len();
        let boxes_of = |columns: usize, targets: Vec<f64>| Case {
            dims: vec![rows, columns],
            loss: Box::new(|x| box_loss(x, of_labels, boxes)),
            twin: Box::new(move |x| reference::box_loss(x, labels, &targets)),
        };
        [
            Case {
                dims: vec![rows],
                loss: Box::new(|x| objectness_loss(x, of_labels)),
                twin: Box::new(|x| reference::objectness_loss(x, labels)),
            },
            Case {
                dims: vec![rows, CLASSES],
                loss: Box::new(|x| classifier_loss(x, of_labels)),
                twin: Box::new(|x| reference::classifier_loss(x, labels)),
            },
            boxes_of(4, of_boxes.clone()),
            boxes_of(4 * CLASSES, of_boxes),
            Case {
                dims: vec![rows, 2, 3],
                loss: Box::new(|x| mask_loss(x, of_labels, masks)),
                twin: Box::new(move |x| reference::mask_loss(x, labels, &of_masks)),
            },
        ]
    }
}

const LABELS: [u32; 7] = [2, 0, IGNORED_LABEL, 0, 1, IGNORED_LABEL, 2];

#[test]
fn losses_and_gradients_are_those_of_the_definition() {
    let mut random = Random::new(4);
    for labels in [&LABELS[..], &LABELS[..3], &LABELS[1..4], &LABELS[2..3], &LABELS[..1], &[]] {
        let truth = Truth::new(&mut random, labels);
        for (which, Case { dims, loss, twin }) in truth.cases().into_iter().enumerate() {
            let predictions = (random.tensor(&dims) * 3.0).unwrap();
            let value = loss(&predictions).unwrap();
            assert_eq!((value.dims(), value.dtype()), (&[][..], DType::F32));
            let value = value.to_scalar::<f32>().unwrap();
            let expected = twin(&exact(&values(&predictions)));
            let difference = (f64::from(value) - expected).abs();
            assert!(
                difference <= 1e-6 * expected,
                "loss {which} of {labels:?}: {value} {expected}"
            );
            let inputs = [predictions];
            assert_gradients(&inputs, SMALL_STEP, |t| loss(&t[0]).unwrap(), |t| vec![twin(&t[0])]);
        }
    }
}

/// Whatever it holds, also in the targets; and the other rows don't notice.
#[test]
fn a_row_that_is_ignored_is_not_looked_at() {
    let mut random = Random::new(5);
    let mut truth = Truth::new(&mut random, &LABELS);
    let poison = |tensor: &Tensor, by: f32| {
        let mut poisoned = values(tensor);
        let width = poisoned.len() / LABELS.len();
        for (row, row_values) in poisoned.chunks_exact_mut(width).enumerate() {
            if LABELS[row] == IGNORED_LABEL {
                row_values.fill(by);
            }
        }
        (Tensor::from_vec(poisoned, tensor.shape(), &Device::Cpu).unwrap(), width)
    };
    let predictions: Vec<Tensor> =
        truth.cases().iter().map(|case| random.tensor(&case.dims)).collect();
    let expected: Vec<_> = truth
        .cases()
        .iter()
        .zip(&predictions)
        .map(|(case, predictions)| differentiate(predictions, &case.loss))
        .collect();
    for by in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        truth.boxes = poison(&truth.boxes, by).0;
        truth.masks = poison(&truth.masks, by).0;
        for ((case, predictions), expected) in truth.cases().iter().zip(&predictions).zip(&expected)
        {
            let (poisoned, width) = poison(predictions, by);
            let found = differentiate(&poisoned, &case.loss);
            assert_eq!(&found, expected);
            for row in [2, 5] {
                assert!(found.1[row * width..][..width].iter().all(|slope| *slope == 0.0));
            }
        }
    }
}

/// What torchvision gives for images without objects, and 0 where it gives NaN.
#[test]
fn nothing_costs_nothing() {
    let mut random = Random::new(6);
    let nothing = |labels: &[u32], random: &mut Random, which: &[usize]| {
        let truth = Truth::new(random, labels);
        let cases = truth.cases();
        for index in which {
            let case = &cases[*index];
            let (value, gradient) = differentiate(&random.tensor(&case.dims), &case.loss);
            assert_eq!(value, 0.0, "loss {index} of {labels:?}");
            assert!(value.is_sign_positive() && gradient.iter().all(|slope| *slope == 0.0));
        }
    };
    nothing(&[], &mut random, &[0, 1, 2, 3, 4]);
    nothing(&[IGNORED_LABEL; 3], &mut random, &[0, 1, 2, 3, 4]);
    nothing(&[0, IGNORED_LABEL, 0], &mut random, &[2, 3, 4]);
    let no_cells = tensor(&[], &[2, 0, 3]);
    let loss = differentiate(&no_cells, &|x| mask_loss(x, &whole(&[1, 2]), &no_cells));
    assert_eq!(loss, (0.0, vec![]));
    let (value, _) =
        differentiate(&tensor(&[1.0, 2.0], &[1, 2]), &|x| classifier_loss(x, &whole(&[0])));
    assert!(value > 0.0 && value.is_finite());
    let (value, _) = differentiate(&tensor(&[3.0], &[1]), &|x| objectness_loss(x, &whole(&[0])));
    assert!(value > 0.0 && value.is_finite());
}

#[test]
fn large_logits_stay_finite_and_nan_shows() {
    let labels = whole(&[1, 0]);
    let loss = differentiate(&tensor(&[-1e4, 1e4], &[2]), &|x| objectness_loss(x, &labels));
    assert_eq!(loss, (1e4, vec![-0.5, 0.5]));
    let one = whole(&[1]);
    let loss = differentiate(&tensor(&[1e4, -1e4], &[1, 2]), &|x| classifier_loss(x, &one));
    assert_eq!(loss, (2e4, vec![1.0, -1.0]));
    let is_nan = |predictions: &[f32], dims: &[usize], loss: Function<'_>| {
        let (value, gradient) = differentiate(&tensor(predictions, dims), loss);
        assert!(value.is_nan() && gradient[0].is_nan());
    };
    is_nan(&[f32::NAN], &[1], &|x| objectness_loss(x, &one));
    is_nan(&[f32::NAN], &[1], &|x| objectness_loss(x, &whole(&[0])));
    is_nan(&[f32::NAN, 0.0], &[1, 2], &|x| classifier_loss(x, &one));
    is_nan(&[f32::NAN; 4], &[1, 4], &|x| box_loss(x, &one, &tensor(&[0.0; 4], &[1, 4])));
    is_nan(&[f32::NAN], &[1, 1, 1], &|x| mask_loss(x, &one, &tensor(&[1.0], &[1, 1, 1])));
}

/// Rows may have several axes; of which, does not matter.
#[test]
fn rows_may_be_of_several_images() {
    let mut random = Random::new(7);
    let truth = Truth::new(&mut random, &[2, 0, IGNORED_LABEL, 0, 1, 1]);
    let batched = |tensor: &Tensor| {
        let dims = [&[2, 3], &tensor.dims()[1..]].concat();
        tensor.reshape(dims).unwrap()
    };
    let (labels, boxes, masks) =
        (batched(&truth.of_labels), batched(&truth.boxes), batched(&truth.masks));
    let losses: [Function<'_>; 5] = [
        &|x| objectness_loss(x, &labels),
        &|x| classifier_loss(x, &labels),
        &|x| box_loss(x, &labels, &boxes),
        &|x| box_loss(x, &labels, &boxes),
        &|x| mask_loss(x, &labels, &masks),
    ];
    for (case, loss) in truth.cases().iter().zip(losses) {
        let predictions = random.tensor(&case.dims);
        let expected = differentiate(&predictions, &case.loss);
        assert_eq!(differentiate(&batched(&predictions), loss), expected);
    }
}

#[test]
fn the_number_of_threads_does_not_matter() {
    let mut random = Random::new(8);
    let labels: Vec<u32> = (0..3001).map(|_| [0, 1, 2, IGNORED_LABEL][random.below(4)]).collect();
    let truth = Truth::new(&mut random, &labels);
    for case in truth.cases() {
        let predictions = random.tensor(&case.dims);
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| differentiate(&predictions, &case.loss))
        };
        assert_eq!(run(1), run(3));
    }
}

#[test]
fn shapes_and_labels_are_checked() {
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
    let one = whole(&[1]);
    let messages = [
        (objectness_loss(&zeros(&[2]), &one), "logits"),
        (objectness_loss(&zeros(&[1]), &zeros(&[1])), "labels"),
        (classifier_loss(&zeros(&[2, 2]), &one), "logits"),
        (classifier_loss(&zeros(&[1, 0]), &one), "at least one class"),
        (classifier_loss(&zeros(&[1, 2]), &whole(&[2])), "classes below 2"),
        (classifier_loss(&one, &one), "logits"),
        (box_loss(&zeros(&[1, 6]), &one, &zeros(&[1, 4])), "[R, 4 · C]"),
        (box_loss(&zeros(&[1, 8]), &whole(&[2]), &zeros(&[1, 4])), "classes below 2"),
        (box_loss(&zeros(&[1, 8]), &one, &zeros(&[0, 4])), "targets"),
        (box_loss(&zeros(&[2, 8]), &one, &zeros(&[1, 4])), "deltas"),
        (mask_loss(&zeros(&[1]), &one, &zeros(&[1])), "[R, M, M']"),
        (mask_loss(&zeros(&[1, 2, 3]), &one, &zeros(&[1, 3, 2])), "targets"),
        (mask_loss(&zeros(&[2, 2, 3]), &one, &zeros(&[2, 2, 3])), "logits"),
    ];
    for (result, part) in messages {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
    // Anchors have no class.
    assert!(box_loss(&zeros(&[1, 4]), &whole(&[7]), &zeros(&[1, 4])).is_ok());
}

/// The graph multiplies by what follows the loss, and adds up over what uses a prediction.
#[test]
fn gradients_enter_the_graph() {
    let logits = tensor(&[0.3, -2.0, 0.7], &[3]);
    let labels = whole(&[1, 0, 0]);
    let (value, slopes) = differentiate(&logits, &|x| objectness_loss(x, &labels));
    let total = |x: &Tensor| Ok(((objectness_loss(x, &labels)? * 3.0)? + x.sum_all()?)?);
    let (sum, found) = differentiate(&logits, &total);
    assert!((sum - (3.0 * value - 1.0)).abs() < 1e-6);
    for (found, slope) in found.iter().zip(slopes) {
        assert!((found - (3.0 * slope + 1.0)).abs() < 1e-6, "{found} {slope}");
    }
    // Where no gradient is wanted, there is no graph.
    assert!(!objectness_loss(&logits, &labels).unwrap().track_op());
}
