//! What went right and wrong, image by image: for people who want to see why a figure is what it is.
//!
//! Boxes are compared at IoU ≥ 0.5. First within each category, as the figures do; what is left over is then compared across
//! categories, so that a right box with a wrong label shows as a confusion and not as two separate mistakes.

use std::collections::{BTreeMap, BTreeSet};

use super::engine;
use super::{CocoDataset, CocoResult, Coverage};

/// From which IoU on a box is right.
const IOU: f64 = 0.5;

/// Bins of the score histogram, over 0 to 1.
pub const SCORE_BINS: usize = 20;

/// Lower bounds of the size histogram, in pixels: the square root of the area.
pub const SIZE_BINS: [f64; 8] = [0.0, 16.0, 32.0, 64.0, 96.0, 128.0, 256.0, 512.0];

/// What became of a detection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It found an object; its position among the image's annotations.
    Right(usize),
    /// It found an object, but calls it something else.
    Confused(usize),
    /// Nothing is there.
    Wrong,
    /// It lies in a crowd, and is neither right nor wrong.
    InCrowd,
}

/// What became of an annotated object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// A detection found it.
    Found,
    /// None did.
    Missed,
    /// It is a crowd, which nobody has to find.
    Crowd,
}

/// The outcome of one image.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// The detections that were judged: positions in the list given, best score first, and what became of them.
    pub verdicts: Vec<(usize, Verdict)>,
    /// What became of each of the image's annotations.
    pub fates: Vec<Fate>,
}

impl Judgement {
    /// Judges the detections of an image whose score is at least `score`.
    pub fn new(dataset: &CocoDataset, image_id: u64, results: &[CocoResult], score: f64) -> Self {
        let truths = dataset.annotations(image_id);
        let mut order: Vec<usize> = (0..results.len())
            .filter(|&at| results[at].score >= score && results[at].extent().is_some())
            .collect();
        order.sort_by(|&a, &b| results[b].score.total_cmp(&results[a].score));
        let boxes: Vec<[f64; 4]> =
            order.iter().map(|&at| results[at].extent().unwrap_or_default()).collect();
        let mut verdicts = vec![Verdict::Wrong; order.len()];
        let mut found = vec![false; truths.len()];
        let categories: BTreeSet<u64> = order.iter().map(|&at| results[at].category_id).collect();
        for category in categories {
            let of_results: Vec<usize> =
                (0..order.len()).filter(|&at| results[order[at]].category_id == category).collect();
            let of_truths: Vec<usize> =
                (0..truths.len()).filter(|&at| truths[at].category_id == category).collect();
            let matching = engine::match_boxes(
                &of_results.iter().map(|&at| boxes[at]).collect::<Vec<_>>(),
                &of_truths
                    .iter()
                    .map(|&at| (truths[at].bbox, truths[at].coverage))
                    .collect::<Vec<_>>(),
                IOU,
            );
            for (position, &at) in of_results.iter().enumerate() {
                if let Some(truth) = matching.truth_of[position] {
                    found[of_truths[truth]] = true;
                    verdicts[at] = Verdict::Right(of_truths[truth]);
                } else if matching.in_crowd[position] {
                    verdicts[at] = Verdict::InCrowd;
                }
            }
        }
        let left_results: Vec<usize> =
            (0..order.len()).filter(|&at| verdicts[at] == Verdict::Wrong).collect();
        let left_truths: Vec<usize> = (0..truths.len())
            .filter(|&at| !found[at] && truths[at].coverage == Coverage::Single)
            .collect();
        let across = engine::match_boxes(
            &left_results.iter().map(|&at| boxes[at]).collect::<Vec<_>>(),
            &left_truths.iter().map(|&at| (truths[at].bbox, Coverage::Single)).collect::<Vec<_>>(),
            IOU,
        );
        for (position, truth) in across.truth_of.iter().enumerate() {
            if let Some(truth) = truth {
                verdicts[left_results[position]] = Verdict::Confused(left_truths[*truth]);
            }
        }
        let fates = truths.iter().zip(found).map(|(truth, found)| match truth.coverage {
            Coverage::Crowd => Fate::Crowd,
            Coverage::Single if found => Fate::Found,
            Coverage::Single => Fate::Missed,
        });
        Self { fates: fates.collect(), verdicts: order.into_iter().zip(verdicts).collect() }
    }

    /// Detections of objects, with the right label.
    pub fn right(&self) -> usize {
        self.verdicts.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Right(_))).count()
    }

    /// Detections of nothing, or with a wrong label.
    pub fn wrong(&self) -> usize {
        let is_wrong = |verdict| matches!(verdict, Verdict::Wrong | Verdict::Confused(_));
        self.verdicts.iter().filter(|(_, verdict)| is_wrong(*verdict)).count()
    }

    /// Objects that no detection found under their label.
    pub fn missed(&self) -> usize {
        self.fates.iter().filter(|&&fate| fate == Fate::Missed).count()
    }
}

/// Counts of one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageOutcome {
    /// The image.
    pub image_id: u64,
    /// Right detections.
    pub right: usize,
    /// Wrong detections.
    pub wrong: usize,
    /// Missed objects.
    pub missed: usize,
}

/// A histogram bin with two sides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bin {
    /// Right detections, or found objects.
    pub good: usize,
    /// Wrong detections, or missed objects.
    pub bad: usize,
}

/// The outcome of a whole data set.
#[derive(Debug, Clone)]
pub struct Analysis {
    /// Detections below this score were passed over, except in [`Self::scores`].
    pub threshold: f64,
    /// Every image, by id.
    pub images: Vec<ImageOutcome>,
    /// How often an object of the first category was found as the second. None is the background: objects found by
    /// nothing, detections of nothing.
    pub confusion: BTreeMap<(Option<u64>, Option<u64>), usize>,
    /// Detections by score, whatever the threshold.
    pub scores: [Bin; SCORE_BINS],
    /// Objects by size.
    pub sizes: [Bin; SIZE_BINS.len()],
}

impl Analysis {
    /// Judges every image; `results_of` gives the detections of one.
    pub fn new<'r>(
        dataset: &CocoDataset,
        results_of: &dyn Fn(u64) -> &'r [CocoResult],
        threshold: f64,
    ) -> Self {
        let mut analysis = Self {
            threshold,
            images: Vec::new(),
            confusion: BTreeMap::new(),
            scores: Default::default(),
            sizes: Default::default(),
        };
        for image in dataset.images() {
            analysis.add(dataset, image.id, results_of(image.id));
        }
        analysis
    }

    fn add(&mut self, dataset: &CocoDataset, image_id: u64, results: &[CocoResult]) {
        let everything = Judgement::new(dataset, image_id, results, f64::NEG_INFINITY);
        for (at, verdict) in everything.verdicts {
            let bin = (results[at].score * SCORE_BINS as f64).clamp(0.0, SCORE_BINS as f64 - 1.0);
            let bin = &mut self.scores[bin as usize];
            match verdict {
                Verdict::Right(_) => bin.good += 1,
                Verdict::Wrong | Verdict::Confused(_) => bin.bad += 1,
                Verdict::InCrowd => {}
            }
        }
        let truths = dataset.annotations(image_id);
        let judgement = Judgement::new(dataset, image_id, results, self.threshold);
        let mut confused = vec![false; truths.len()];
        let mut count = |truth: Option<u64>, found: Option<u64>| {
            *self.confusion.entry((truth, found)).or_default() += 1;
        };
        for &(at, verdict) in &judgement.verdicts {
            let category = Some(results[at].category_id);
            match verdict {
                Verdict::Right(truth) => count(Some(truths[truth].category_id), category),
                Verdict::Confused(truth) => {
                    confused[truth] = true;
                    count(Some(truths[truth].category_id), category);
                }
                Verdict::Wrong => count(None, category),
                Verdict::InCrowd => {}
            }
        }
        for (at, &fate) in judgement.fates.iter().enumerate() {
            if fate == Fate::Missed && !confused[at] {
                count(Some(truths[at].category_id), None);
            }
            let size = truths[at].area.sqrt();
            let bin = SIZE_BINS.iter().rposition(|&from| size >= from).unwrap_or(0);
            match fate {
                Fate::Found => self.sizes[bin].good += 1,
                Fate::Missed => self.sizes[bin].bad += 1,
                Fate::Crowd => {}
            }
        }
        self.images.push(ImageOutcome {
            image_id,
            right: judgement.right(),
            wrong: judgement.wrong(),
            missed: judgement.missed(),
        });
    }
}
