use std::collections::HashMap;

use candle_core::{Device, Var};

use super::*;
use crate::ops::IGNORED_LABEL;
use crate::ops::support::testing::{Random, SMALL_STEP, assert_gradients, exact, fixture, values};

const CLASSES: usize = 4;
const UNIT: BoxCoding = BoxCoding::Deltas { weights: [1.0; 4] };
const SSD: BoxCoding = BoxCoding::Deltas { weights: [10.0, 10.0, 5.0, 5.0] };

fn tensor(values: &[f32], dims: &[usize]) -> Tensor {
    Tensor::from_slice(values, dims, &Device::Cpu).unwrap()
}

fn whole(values: &[u32], dims: &[usize]) -> Tensor {
    Tensor::from_slice(values, dims, &Device::Cpu).unwrap()
}

/// Levels of one or two cells high, from rows `[N, A, width]`.
fn split(joined: &Tensor, lengths: &[usize]) -> Vec<Tensor> {
    let (images, _, width) = joined.dims3().unwrap();
    let mut start = 0;
    lengths
        .iter()
        .map(|length| {
            let level = joined.narrow(1, start, *length).unwrap().contiguous().unwrap();
            start += length;
            level.reshape((images, 1, *length, width)).unwrap()
        })
        .collect()
}

/// Value, and gradient of rows that are cut into levels.
fn differentiate(
    joined: &Tensor,
    lengths: &[usize],
    loss: &dyn Fn(&[&Tensor]) -> Result<Tensor>,
) -> (f32, Vec<f32>) {
    let levels = split(joined, lengths);
    let levels: Vec<Var> = levels.iter().map(|level| Var::from_tensor(level).unwrap()).collect();
    let value = loss(&levels.iter().map(Var::as_tensor).collect::<Vec<_>>()).unwrap();
    let gradients = value.backward().unwrap();
    let (images, width) = (joined.dim(0).unwrap(), joined.dim(2).unwrap());
    let rows = levels.iter().map(|level| {
        let gradient = gradients.get(level).unwrap();
        assert_eq!(gradient.dims(), level.dims());
        gradient.reshape((images, (), width)).unwrap()
    });
    let rows = Tensor::cat(&rows.collect::<Vec<_>>(), 1).unwrap();
    (value.to_scalar().unwrap(), values(&rows))
}

/// What torchvision's detectors find for three images, the second without objects.
struct Reference(HashMap<String, Tensor>);

impl Reference {
    fn load() -> Self {
        Self(fixture("dense_losses.safetensors"))
    }

    fn get(&self, key: &str) -> &Tensor {
        &self.0[key]
    }

    fn lengths(&self, name: &str) -> Vec<usize> {
        let lengths = self.get(&format!("{name}/lengths")).to_vec1::<u32>().unwrap();
        lengths.into_iter().map(|length| length as usize).collect()
    }

    /// Boxes `[3, 5, 4]` and labels `[3, 5]`.
    fn objects(&self) -> (Tensor, Tensor) {
        let (mut boxes, mut labels) = (vec![0f32; 60], vec![0u32; 15]);
        for image in 0..3 {
            let own = values(self.get(&format!("objects/boxes.{image}")));
            boxes[20 * image..][..own.len()].copy_from_slice(&own);
            let own = self.get(&format!("objects/labels.{image}")).to_vec1::<u32>().unwrap();
            labels[5 * image..][..own.len()].copy_from_slice(&own);
        }
        (tensor(&boxes, &[3, 5, 4]), whole(&labels, &[3, 5]))
    }

    /// Compares a loss of one of the detector's predictions, whose rows and matches are those of a detector `of`.
    #[track_caller]
    fn check(
        &self,
        (name, of): (&str, &str),
        (loss, predictions): (&str, &str),
        run: impl Fn(&[&Tensor], &Tensor, DenseTruth<'_>) -> Result<Tensor>,
    ) {
        let (boxes, labels) = self.objects();
        let truth = DenseTruth {
            matches: self.get(&format!("{of}/matches")),
            objects: Objects { boxes: &boxes, labels: &labels },
        };
        let anchors = self.get(&format!("{of}/anchors"));
        let joined = self.get(&format!("{name}/{predictions}"));
        let (value, gradient) =
            differentiate(joined, &self.lengths(of), &|levels| run(levels, anchors, truth));
        let expected = values(self.get(&format!("{name}/loss.{loss}")))[0];
        assert!((value - expected).abs() <= 2e-6 * expected, "{name} {loss}: {value} {expected}");
        let expected = values(self.get(&format!("{name}/{predictions}.grad")));
        let largest = expected.iter().fold(0f32, |largest, v| largest.max(v.abs()));
        for (index, (found, expected)) in gradient.iter().zip(&expected).enumerate() {
            let difference = (found - expected).abs();
            assert!(difference <= 1e-5 * largest, "{name} {loss} {index}: {found} {expected}");
        }
    }
}

#[test]
fn losses_of_retinanet_are_the_references() {
    let reference = Reference::load();
    let by = Normalization::PerImage;
    for (name, cost) in [("retinanet", BoxCost::L1), ("retinanet_v2", BoxCost::Giou)] {
        let who = (name, "retinanet");
        reference.check(who, ("classification", "cls_logits"), |levels, _, truth| {
            focal_loss(levels, CLASSES, truth, by)
        });
        reference.check(who, ("bbox_regression", "bbox_regression"), |levels, anchors, truth| {
            let params = DenseBoxLossParams { coding: UNIT, cost, normalization: by };
            dense_box_loss(levels, anchors, truth, &params)
        });
    }
}

#[test]
fn losses_of_fcos_are_the_references() {
    let reference = Reference::load();
    let by = Normalization::PerBatch;
    let who = ("fcos", "fcos");
    reference.check(who, ("classification", "cls_logits"), |levels, _, truth| {
        focal_loss(levels, CLASSES, truth, by)
    });
    reference.check(who, ("bbox_regression", "bbox_regression"), |levels, anchors, truth| {
        let (coding, cost) = (BoxCoding::Distances, BoxCost::Giou);
        let params = DenseBoxLossParams { coding, cost, normalization: by };
        dense_box_loss(levels, anchors, truth, &params)
    });
    reference.check(who, ("bbox_ctrness", "bbox_ctrness"), centerness_loss);
}

#[test]
fn losses_of_ssd_are_the_references() {
    let reference = Reference::load();
    let who = ("ssd", "ssd");
    reference.check(who, ("classification", "cls_logits"), |levels, _, truth| {
        hard_negative_loss(levels, CLASSES, truth, 3)
    });
    reference.check(who, ("bbox_regression", "bbox_regression"), |levels, anchors, truth| {
        let cost = BoxCost::SmoothL1 { beta: DENSE_SMOOTH_L1_BETA };
        let normalization = Normalization::PerBatch;
        let params = DenseBoxLossParams { coding: SSD, cost, normalization };
        dense_box_loss(levels, anchors, truth, &params)
    });
}

type OfLevels<'a> = Box<dyn Fn(&[&Tensor]) -> Result<Tensor> + Sync + 'a>;
type Twin<'a> = Box<dyn Fn(&[f64]) -> f64 + 'a>;

/// A loss with its twin, and the width of its rows.
struct Case<'a> {
    width: usize,
    loss: OfLevels<'a>,
    twin: Twin<'a>,
}

/// Two images of some objects, and anchors that are inside them or not.
struct Truth {
    lengths: Vec<usize>,
    matches: Vec<u32>,
    boxes: Vec<[f32; 4]>,
    labels: Vec<u32>,
    anchors: Vec<[f32; 4]>,
    tensors: [Tensor; 4],
}

impl Truth {
    /// Objects of an image.
    const OBJECTS: usize = 2;

    fn new(random: &mut Random, lengths: &[usize], matches: &[u32]) -> Self {
        let rows = lengths.iter().sum::<usize>();
        let images = matches.len() / rows;
        // Large objects around small anchors, so that points are inside.
        let edge = |random: &mut Random| random.range(0.0, 9.0);
        let boxes: Vec<[f32; 4]> = (0..images * Self::OBJECTS)
            .map(|_| [edge(random), edge(random), 60.0 + edge(random), 40.0 + edge(random)])
            .collect();
        let labels: Vec<u32> = (0..boxes.len()).map(|_| random.below(CLASSES) as u32).collect();
        let anchors: Vec<[f32; 4]> = (0..rows)
            .map(|_| {
                let (x, y) = (random.range(12.0, 40.0), random.range(12.0, 24.0));
                [x, y, x + random.range(4.0, 16.0), y + random.range(4.0, 14.0)]
            })
            .collect();
        let tensors = [
            whole(matches, &[images, rows]),
            tensor(boxes.as_flattened(), &[images, Self::OBJECTS, 4]),
            whole(&labels, &[images, Self::OBJECTS]),
            tensor(anchors.as_flattened(), &[rows, 4]),
        ];
        let (lengths, matches) = (lengths.to_vec(), matches.to_vec());
        Self { lengths, matches, boxes, labels, anchors, tensors }
    }

    fn images(&self) -> usize {
        self.tensors[0].dim(0).unwrap()
    }

    fn truth(&self) -> DenseTruth<'_> {
        let [matches, boxes, labels, _] = &self.tensors;
        DenseTruth { matches, objects: Objects { boxes, labels } }
    }

    fn reference(&self) -> reference::Truth<'_> {
        let Self { matches, boxes, labels, anchors, .. } = self;
        let (images, n_objects) = (self.images(), Self::OBJECTS);
        reference::Truth { images, matches, boxes, labels, n_objects, anchors }
    }

    fn cases(&self) -> Vec<Case<'_>> {
        let anchors = &self.tensors[3];
        let mut cases = vec![
            Case {
                width: 1,
                loss: Box::new(|levels| centerness_loss(levels, anchors, self.truth())),
                twin: Box::new(|x| self.reference().centerness(x)),
            },
            Case {
                width: CLASSES,
                loss: Box::new(|levels| hard_negative_loss(levels, CLASSES, self.truth(), 2)),
                twin: Box::new(|x| self.reference().hard_negatives(x, CLASSES, 2)),
            },
        ];
        for normalization in [Normalization::PerImage, Normalization::PerBatch] {
            cases.push(Case {
                width: CLASSES,
                loss: Box::new(move |x| focal_loss(x, CLASSES, self.truth(), normalization)),
                twin: Box::new(move |x| self.reference().focal(x, CLASSES, normalization)),
            });
            for coding in [SSD, BoxCoding::Distances] {
                for cost in [BoxCost::L1, BoxCost::SmoothL1 { beta: 0.7 }, BoxCost::Giou] {
                    let params = DenseBoxLossParams { coding, cost, normalization };
                    cases.push(Case {
                        width: 4,
                        loss: Box::new(move |x| dense_box_loss(x, anchors, self.truth(), &params)),
                        twin: Box::new(move |x| {
                            self.reference().boxes(x, coding, cost, normalization)
                        }),
                    });
                }
            }
        }
        cases
    }
}

const LENGTHS: [usize; 3] = [3, 0, 2];
const MATCHES: [u32; 10] = [1, 2, 0, 3, 1, 1, 1, 2, 0, 1];

#[test]
fn losses_and_gradients_are_those_of_the_definition() {
    let mut random = Random::new(4);
    // Without positives in an image, without any, all ignored, all positive.
    let matches = [
        MATCHES,
        [1, 0, 1, 1, 1, 1, 1, 3, 3, 0],
        [1; 10],
        [0; 10],
        [2; 10],
        [2, 3, 2, 3, 1, 0, 0, 0, 0, 0],
    ];
    for matches in matches {
        let truth = Truth::new(&mut random, &LENGTHS, &matches);
        for (which, Case { width, loss, twin }) in truth.cases().into_iter().enumerate() {
            let joined = (random.tensor(&[2, 5, width]) * 3.0).unwrap();
            let levels = split(&joined, &LENGTHS);
            let value = loss(&levels.iter().collect::<Vec<_>>()).unwrap();
            assert_eq!((value.dims(), value.dtype()), (&[][..], DType::F32));
            let value = f64::from(value.to_scalar::<f32>().unwrap());
            let expected = twin(&exact(&values(&joined)));
            assert!(
                (value - expected).abs() <= 1e-6 * expected,
                "loss {which} of {matches:?}: {value} {expected}"
            );
            let rejoined = |levels: &[Vec<f64>]| -> Vec<f64> {
                let part = |image: usize, level: &Vec<f64>| {
                    let length = level.len() / 2;
                    level[image * length..][..length].to_vec()
                };
                (0..2).flat_map(|i| levels.iter().flat_map(move |l| part(i, l))).collect()
            };
            assert_gradients(
                &levels,
                SMALL_STEP,
                |levels| loss(&levels.iter().collect::<Vec<_>>()).unwrap(),
                |levels| vec![twin(&rejoined(levels))],
            );
        }
    }
}

#[test]
fn what_is_ignored_is_not_looked_at_and_what_is_not_finite_shows() {
    let mut random = Random::new(5);
    let truth = Truth::new(&mut random, &LENGTHS, &MATCHES);
    for (which, Case { width, loss, .. }) in truth.cases().into_iter().enumerate() {
        let joined = random.tensor(&[2, 5, width]);
        let poisoned = |code: u32| {
            let mut poisoned = values(&joined);
            for (row, found) in MATCHES.iter().enumerate() {
                if *found == code {
                    poisoned[row * width..][..width].fill(f32::NAN);
                }
            }
            differentiate(&tensor(&poisoned, &[2, 5, width]), &LENGTHS, &*loss)
        };
        assert_eq!(poisoned(0), differentiate(&joined, &LENGTHS, &*loss), "{which}");
        assert!(poisoned(2).0.is_nan(), "{which}");
        // Of the losses that learn from background.
        assert_eq!(poisoned(1).0.is_nan(), width == CLASSES && which != 0 && !is_boxes(which));
    }
}

/// Which cases are of boxes, whose rows are as wide as those of classes.
fn is_boxes(which: usize) -> bool {
    ![0, 1, 2, 9].contains(&which)
}

#[test]
fn an_image_without_objects_needs_no_slots() {
    let none = Tensor::zeros((2, 0, 4), DType::F32, &Device::Cpu).unwrap();
    let labels = Tensor::zeros((2, 0), DType::U32, &Device::Cpu).unwrap();
    let matches = whole(&[1; 10], &[2, 5]);
    let objects = Objects { boxes: &none, labels: &labels };
    let truth = DenseTruth { matches: &matches, objects };
    let logits = Tensor::zeros((2, 5, CLASSES), DType::F32, &Device::Cpu).unwrap();
    let focal = |by| focal_loss(&[&logits], CLASSES, truth, by).unwrap().to_scalar::<f32>();
    let expected = 20.0 * 0.75 * 0.25 * 2f32.ln();
    assert!((focal(Normalization::PerImage).unwrap() - expected).abs() < 1e-5);
    assert!((focal(Normalization::PerBatch).unwrap() - 2.0 * expected).abs() < 1e-5);
    let hard = hard_negative_loss(&[&logits], CLASSES, truth, 3).unwrap();
    assert_eq!(hard.to_scalar::<f32>().unwrap(), 0.0);
}

#[test]
fn of_equal_negatives_the_first_are_chosen() {
    let mut random = Random::new(6);
    let truth = Truth::new(&mut random, &[6], &[1, 1, 2, 1, 0, 1]);
    let logits = Tensor::zeros((1, 6, CLASSES), DType::F32, &Device::Cpu).unwrap();
    let (_, gradient) = differentiate(&logits, &[6], &|levels| {
        hard_negative_loss(levels, CLASSES, truth.truth(), 2)
    });
    let learned: Vec<bool> =
        gradient.chunks(CLASSES).map(|row| row.iter().any(|slope| *slope != 0.0)).collect();
    assert_eq!(learned, [true, true, true, false, false, false]);
}

/// Many rows and large logits, so that tasks and vectors are cut; the number of threads does not matter.
#[test]
fn tasks_agree_with_the_definition() {
    let mut random = Random::new(7);
    let lengths = [4001, 700, 0, 3];
    let matches: Vec<u32> = (0..2 * 4704)
        .map(|_| if random.below(9) == 0 { [0, 2, 3][random.below(3)] } else { 1 })
        .collect();
    let truth = Truth::new(&mut random, &lengths, &matches);
    for (which, Case { width, loss, twin }) in truth.cases().into_iter().enumerate() {
        let joined = (random.tensor(&[2, 4704, width]) * 9.0).unwrap();
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| differentiate(&joined, &truth.lengths, &*loss))
        };
        let found = run(1);
        assert_eq!(found, run(3));
        let expected = twin(&exact(&values(&joined)));
        let difference = (f64::from(found.0) - expected).abs();
        assert!(difference <= 1e-6 * expected, "{which}: {} {expected}", found.0);
    }
}

#[test]
fn large_logits_cost_what_they_are_wrong() {
    let mut random = Random::new(8);
    let mut truth = Truth::new(&mut random, &[2], &[2, 1]);
    truth.tensors[2] = whole(&[1, 0], &[1, 2]);
    let logits = tensor(&[-200.0, 200.0, -200.0, -200.0, 300.0, -1e30, -90.0, 0.0], &[1, 2, 4]);
    let (value, gradient) = differentiate(&logits, &[2], &|levels| {
        focal_loss(levels, CLASSES, truth.truth(), Normalization::PerBatch)
    });
    assert!((value - (0.75 * 300.0 + 0.1875 * 2f32.ln())).abs() < 1e-4, "{value}");
    assert!(gradient.iter().all(|slope| slope.is_finite()));
    assert!((gradient[4] - 0.75).abs() < 1e-6);
}

#[test]
fn gradients_enter_the_graph() {
    let mut random = Random::new(9);
    let truth = Truth::new(&mut random, &LENGTHS, &MATCHES);
    for Case { width, loss, .. } in truth.cases() {
        let joined = random.tensor(&[2, 5, width]);
        let (value, slopes) = differentiate(&joined, &LENGTHS, &*loss);
        let (sum, found) = differentiate(&joined, &LENGTHS, &|x| Ok((loss(x)? * 3.0)?));
        assert!((sum - 3.0 * value).abs() <= 1e-6 * sum);
        for (found, slope) in found.iter().zip(slopes) {
            assert!((found - 3.0 * slope).abs() <= 1e-6 * found.abs());
        }
    }
}

#[test]
fn wrong_arguments_are_named() {
    let mut random = Random::new(10);
    let truth = Truth::new(&mut random, &LENGTHS, &MATCHES);
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
    let anchors = zeros(&[5, 4]);
    let by = Normalization::PerBatch;
    let focal = |logits: &Tensor, truth| focal_loss(&[logits], CLASSES, truth, by);
    let far = whole(&[4; 10], &[2, 5]);
    let fourth = whole(&[4; 4], &[2, 2]);
    let one = whole(&[1; 5], &[5]);
    let with = |matches| DenseTruth { matches, ..truth.truth() };
    let [_, boxes, _, _] = &truth.tensors;
    let params = |beta| DenseBoxLossParams {
        coding: UNIT,
        cost: BoxCost::SmoothL1 { beta },
        normalization: by,
    };
    let other_labels = DenseTruth { objects: Objects { boxes, labels: &fourth }, ..truth.truth() };
    let messages = [
        (focal(&zeros(&[2, 4, CLASSES]), truth.truth()), "levels of 5 rows"),
        (focal(&zeros(&[2, 5, 3]), truth.truth()), "multiple of 4 values"),
        (focal(&zeros(&[1, 10, CLASSES]), truth.truth()), "2 images"),
        (focal(&zeros(&[2, 5, CLASSES]), with(&far)), "objects below 2"),
        (focal(&zeros(&[2, 5, CLASSES]), with(&one)), "matches"),
        (focal(&zeros(&[2, 5, CLASSES]), other_labels), "classes below 4"),
        (centerness_loss(&[&zeros(&[2, 5, 1])], &zeros(&[4, 4]), truth.truth()), "anchors"),
        (
            dense_box_loss(&[&zeros(&[2, 5, 3])], &anchors, truth.truth(), &params(1.0)),
            "predictions",
        ),
        (dense_box_loss(&[&zeros(&[2, 5, 4])], &anchors, truth.truth(), &params(0.0)), "beta"),
    ];
    for (result, part) in messages {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
    // A label that nothing has found is not looked at.
    let labels = whole(&[IGNORED_LABEL; 4], &[2, 2]);
    let unseen = whole(&[1; 10], &[2, 5]);
    let truth = DenseTruth { matches: &unseen, objects: Objects { boxes, labels: &labels } };
    assert!(focal(&zeros(&[2, 5, CLASSES]), truth).is_ok());
}
