//! The learning rate over the steps of a run.

use std::f64::consts::PI;

/// The learning rate as a function of the steps made: nothing that has to be saved.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Rate after the warm-up.
    pub rate: f64,
    /// How a run begins.
    pub warm_up: WarmUp,
    /// How it goes on.
    pub course: Course,
}

/// A linear rise of the rate at the beginning of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WarmUp {
    /// Steps until the rate is whole; 0 for none.
    pub steps: u64,
    /// Share of the rate at the first step.
    pub start: f64,
}

impl WarmUp {
    /// The whole rate from the first step on.
    pub const NONE: Self = Self { steps: 0, start: 1.0 };

    /// torchvision's: from a thousandth, over the first 1000 steps, or the first epoch where that is shorter.
    pub fn reference(steps_per_epoch: u64) -> Self {
        Self { steps: steps_per_epoch.saturating_sub(1).min(1000), start: 0.001 }
    }
}

/// The rate after the warm-up, as a share.
#[derive(Debug, Clone, PartialEq)]
pub enum Course {
    /// It stays.
    Constant,
    /// It is multiplied by `factor` at each of `milestones`, counted in steps.
    Steps {
        /// Steps at which the rate changes.
        milestones: Vec<u64>,
        /// By how much; 0.1 in the recipe of the published weights.
        factor: f64,
    },
    /// It falls to `end` along half a cosine, which it reaches at step `total`.
    Cosine {
        /// Steps of the run.
        total: u64,
        /// Share of the rate at the end.
        end: f64,
    },
}

impl Schedule {
    /// The rate of the step that follows `step` others.
    ///
    /// The warm-up multiplies what the course gives. Reference: torch `optim/lr_scheduler.py`, `LinearLR`, `MultiStepLR`,
    /// `CosineAnnealingLR`.
    pub fn at(&self, step: u64) -> f64 {
        let WarmUp { steps, start } = self.warm_up;
        let rise =
            if step < steps { start + (1.0 - start) * step as f64 / steps as f64 } else { 1.0 };
        let share = match &self.course {
            Course::Constant => 1.0,
            Course::Steps { milestones, factor } => {
                let passed = milestones.iter().filter(|milestone| **milestone <= step).count();
                factor.powi(passed as i32)
            }
            Course::Cosine { total, end } => {
                let progress = step.min(*total) as f64 / (*total).max(1) as f64;
                end + (1.0 - end) * (1.0 + (PI * progress).cos()) / 2.0
            }
        };
        self.rate * rise * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_without_warm_up_starts_whole() {
        let schedule = Schedule { rate: 0.02, warm_up: WarmUp::NONE, course: Course::Constant };
        assert_eq!([schedule.at(0), schedule.at(1_000_000)], [0.02, 0.02]);
    }

    #[test]
    fn a_cosine_ends_where_it_should_and_stays_there() {
        let course = Course::Cosine { total: 10, end: 0.1 };
        let schedule = Schedule { rate: 2.0, warm_up: WarmUp::NONE, course };
        assert_eq!(schedule.at(0), 2.0);
        assert!((schedule.at(5) - 1.1).abs() < 1e-12);
        assert!((schedule.at(10) - 0.2).abs() < 1e-12);
        assert_eq!(schedule.at(11), schedule.at(10));
        let nothing = Schedule { course: Course::Cosine { total: 0, end: 0.1 }, ..schedule };
        assert!(nothing.at(3).is_finite());
    }

    #[test]
    fn the_references_warm_up_is_at_most_an_epoch() {
        assert_eq!(WarmUp::reference(7330).steps, 1000);
        assert_eq!(WarmUp::reference(40).steps, 39);
        assert_eq!(WarmUp::reference(0).steps, 0);
    }
}
