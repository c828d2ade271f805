//! Which of the boxes a step learns from.

use super::assign::Match;
use super::random::Random;
use crate::error::{Error, Result};

/// The part of the network that boxes are sampled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Anchors of the region proposal network.
    Rpn,
    /// Proposals, and the objects among them, of the heads.
    Roi,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Self::Rpn => "anchors",
            Self::Roi => "proposals",
        }
    }
}

/// Boxes of one image that can be learned from, by ascending index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Candidates {
    /// Boxes that have found an object.
    pub positives: Vec<u32>,
    /// Boxes that show none.
    pub negatives: Vec<u32>,
}

impl Candidates {
    /// Those that are not [`Match::Ignored`].
    pub fn of(matches: &[Match]) -> Self {
        let mut candidates = Self::default();
        for (index, found) in (0..).zip(matches) {
            match found {
                Match::Object(_) => candidates.positives.push(index),
                Match::Background => candidates.negatives.push(index),
                Match::Ignored => {}
            }
        }
        candidates
    }
}

/// How many boxes of an image are sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleParams {
    /// Boxes in all, where there are as many.
    pub samples: usize,
    /// The most positives, as a fraction of the samples; rounded down.
    pub positive_fraction: f64,
}

impl SampleParams {
    /// Numbers of positives and negatives. Negatives fill up what is missing of positives, not the other way round.
    pub fn counts(&self, candidates: &Candidates) -> (usize, usize) {
        let most = (self.samples as f64 * self.positive_fraction) as usize;
        let positives = candidates.positives.len().min(most);
        (positives, candidates.negatives.len().min(self.samples - positives))
    }
}

/// Chooses the boxes that a step learns from.
///
/// [`RandomSampler`] is the one to train with. Another one is for comparisons with an implementation that draws other
/// random numbers.
pub trait Sampler {
    /// Chooses from the candidates of an image, which is the `image`-th of its batch.
    ///
    /// # Errors
    /// Those of the implementation.
    fn sample(
        &mut self,
        stage: Stage,
        image: usize,
        candidates: Candidates,
        params: &SampleParams,
    ) -> Result<Candidates>;
}

/// Every choice of the wanted numbers is as probable as the others.
///
/// What is chosen depends on the seed, the step, the stage and the image's place in its batch alone.
///
/// Reference: torchvision `models/detection/_utils.py`, `BalancedPositiveNegativeSampler`.
#[derive(Debug, Clone)]
pub struct RandomSampler {
    random: Random,
}

impl RandomSampler {
    /// The choices of a step of a run. Ranks that train together take different seeds.
    pub fn new(seed: u64, step: u64) -> Self {
        Self { random: Random::new(seed).part(step) }
    }
}

impl Sampler for RandomSampler {
    fn sample(
        &mut self,
        stage: Stage,
        image: usize,
        mut candidates: Candidates,
        params: &SampleParams,
    ) -> Result<Candidates> {
        let (positives, negatives) = params.counts(&candidates);
        let mut random = self.random.part(stage as u64).part(image as u64);
        choose(&mut candidates.positives, positives, &mut random);
        choose(&mut candidates.negatives, negatives, &mut random);
        Ok(candidates)
    }
}

/// Keeps `count` entries, in ascending order.
fn choose(entries: &mut Vec<u32>, count: usize, random: &mut Random) {
    random.choose(entries, count).sort_unstable();
    entries.truncate(count);
}

/// Refuses indices that are no candidates, as a sampler of somebody else may return.
///
/// # Errors
/// [`Error::Sample`].
pub(super) fn check(
    stage: Stage,
    image: usize,
    chosen: &Candidates,
    matches: &[Match],
) -> Result<()> {
    let fits = |index: u32, positive: bool| match matches.get(index as usize) {
        Some(Match::Object(_)) => positive,
        Some(Match::Background) => !positive,
        Some(Match::Ignored) | None => false,
    };
    let wrong = |indices: &[u32], positive| indices.iter().copied().find(|i| !fits(*i, positive));
    let wrong = wrong(&chosen.positives, true).or_else(|| wrong(&chosen.negatives, false));
    match wrong {
        None => Ok(()),
        Some(index) => Err(Error::Sample {
            stage: stage.name(),
            image,
            index,
            found: match matches.get(index as usize) {
                Some(found) => format!("{found:?}"),
                None => format!("none of {} boxes", matches.len()),
            },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RPN: SampleParams = SampleParams { samples: 256, positive_fraction: 0.5 };

    fn candidates(positives: u32, negatives: u32) -> Candidates {
        Candidates {
            positives: (0..positives).collect(),
            negatives: (positives..positives + negatives).collect(),
        }
    }

    #[test]
    fn ignored_boxes_are_no_candidates() {
        let matches = [
            Match::Object(1),
            Match::Background,
            Match::Background,
            Match::Ignored,
            Match::Background,
        ];
        let candidates = Candidates::of(&matches);
        assert_eq!(candidates.positives, [0]);
        assert_eq!(candidates.negatives, [1, 2, 4]);
    }

    #[test]
    fn negatives_fill_up_what_is_missing_of_positives() {
        let roi = SampleParams { samples: 512, positive_fraction: 0.25 };
        for (params, positives, negatives, expected) in [
            (RPN, 1000, 9000, (128, 128)),
            (RPN, 5, 9000, (5, 251)),
            (RPN, 0, 9000, (0, 256)),
            (RPN, 1000, 3, (128, 3)),
            (RPN, 0, 0, (0, 0)),
            (roi, 300, 1700, (128, 384)),
            (roi, 1, 7, (1, 7)),
        ] {
            let chosen = RandomSampler::new(1, 2)
                .sample(Stage::Rpn, 0, candidates(positives, negatives), &params)
                .unwrap();
            assert_eq!((chosen.positives.len(), chosen.negatives.len()), expected);
            for list in [&chosen.positives, &chosen.negatives] {
                assert!(list.windows(2).all(|pair| pair[0] < pair[1]), "ascending, once each");
            }
            assert!(chosen.positives.iter().all(|index| *index < positives));
            assert!(chosen.negatives.iter().all(|index| *index >= positives));
        }
    }

    #[test]
    fn choices_repeat_for_a_step_and_differ_between_steps_stages_and_images() {
        let draw = |seed, step, stage, image| {
            RandomSampler::new(seed, step)
                .sample(stage, image, candidates(400, 4000), &RPN)
                .unwrap()
                .positives
        };
        let first = draw(7, 3, Stage::Rpn, 0);
        assert_eq!(first, draw(7, 3, Stage::Rpn, 0));
        for other in [
            draw(8, 3, Stage::Rpn, 0),
            draw(7, 4, Stage::Rpn, 0),
            draw(7, 3, Stage::Roi, 0),
            draw(7, 3, Stage::Rpn, 1),
        ] {
            assert_ne!(first, other);
        }
    }

    /// Over many steps each candidate is chosen equally often.
    #[test]
    fn no_candidate_is_preferred() {
        let params = SampleParams { samples: 20, positive_fraction: 0.5 };
        let mut counts = vec![0u32; 90];
        for step in 0..4000 {
            let chosen = RandomSampler::new(11, step)
                .sample(Stage::Roi, 0, candidates(30, 60), &params)
                .unwrap();
            for index in chosen.positives.iter().chain(&chosen.negatives) {
                counts[*index as usize] += 1;
            }
        }
        // A third of 4000 for positives, with a standard deviation of 30; a sixth for negatives, with one of 24.
        assert!(counts[..30].iter().all(|n| (1180..1490).contains(n)), "{counts:?}");
        assert!(counts[30..].iter().all(|n| (545..790).contains(n)), "{counts:?}");
    }

    #[test]
    fn a_foreign_choice_is_checked() {
        let matches = [Match::Object(0), Match::Background, Match::Ignored];
        let chosen = |positives: &[u32], negatives: &[u32]| Candidates {
            positives: positives.to_vec(),
            negatives: negatives.to_vec(),
        };
        check(Stage::Rpn, 0, &chosen(&[0], &[1]), &matches).unwrap();
        for (wrong, said) in [
            (chosen(&[1], &[]), "Background"),
            (chosen(&[], &[0]), "Object"),
            (chosen(&[], &[2]), "Ignored"),
            (chosen(&[9], &[]), "none of 3"),
        ] {
            let message = check(Stage::Roi, 4, &wrong, &matches).unwrap_err().to_string();
            assert!(message.contains(said) && message.contains("image 4"), "{message}");
        }
    }
}
