//! The run: updates, evaluations and snapshots, in their order.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use candle_core::Device;
use candle_detection::Error;
use candle_detection::config::ModelConfig;
use candle_detection::dataset::CocoDataset;
use candle_detection::train::{
    Average, BatchSource, Gradients, Loader, Losses, Network, Numbers, Optimizer, Parameter,
    RandomSampler, RunFolder, RunState, Schedule, Snapshot, TrainingSet,
};

use super::args::Args;
use super::course::{self, Length};
use super::logs::{Logs, StepFigures};
use super::progress::Meter;
use super::{data, evaluation};

pub struct Run<'a> {
    args: &'a Args,
    config: &'a ModelConfig,
    validation: Option<CocoDataset>,
    device: Device,
    folder: RunFolder,
    network: Network,
    trained: Vec<Parameter>,
    optimizer: Optimizer,
    average: Option<Average>,
    schedule: Schedule,
    length: Length,
    loader: Loader,
    numbers: Numbers,
}

/// Losses since the last line of the log.
#[derive(Default)]
struct Window {
    losses: Vec<Losses>,
}

impl Run<'_> {
    pub fn new<'a>(
        args: &'a Args,
        config: &'a ModelConfig,
        network: Network,
        set: TrainingSet,
        validation: Option<CocoDataset>,
        device: Device,
    ) -> Result<Run<'a>> {
        let loader = data::loader(args, Arc::new(set), config)?;
        let length = Length::new(&args.course, loader.batches_per_epoch())?;
        let trained = network.parameters().trainable();
        let average = args.course.ema;
        let average = average.map(|decay| Average::new(&network.parameters().all(), decay));
        Ok(Run {
            args,
            config,
            validation,
            device,
            folder: RunFolder::new(&args.out, args.keep),
            optimizer: Optimizer::new(
                &trained,
                course::update_rule(&args.course),
                &course::groups(&args.course),
            )?,
            average: average.transpose()?,
            schedule: course::schedule(&args.course, length),
            length,
            trained,
            network,
            loader,
            numbers: Numbers::default(),
        })
    }

    /// Trains to the end of the run, from its last snapshot on where it is resumed.
    pub fn finish(mut self) -> Result<()> {
        if self.args.resume {
            self.restore()?;
        }
        let mut logs = Logs::open(&self.args.out, self.numbers.step)?;
        let mut meter = Meter::new(self.length.total, self.numbers.step);
        // An interruption may have come between a snapshot and its evaluation.
        if self.numbers.step > 0 && self.is_due() && !logs.has_evaluation(self.numbers.step)? {
            let last = self.save()?;
            self.evaluate(&last, &mut logs, &meter)?;
        }
        let mut window = Window::default();
        while self.numbers.step < self.length.total {
            let rate = self.schedule.at(self.numbers.step);
            let (losses, images) = match self.update(rate) {
                Ok(done) => done,
                Err(error) => return Err(self.give_up(error)),
            };
            meter.update(self.numbers.step, images, &losses);
            window.losses.push(losses);
            let step = self.numbers.step;
            if step.is_multiple_of(self.args.log_every.get() as u64) || self.is_over() {
                if let Some(losses) = window.mean() {
                    let images_per_second = meter.speed();
                    let epoch = self.epochs();
                    logs.step(step, &StepFigures { epoch, rate, images_per_second, losses })?;
                }
                window.losses.clear();
            }
            let wanted = self.args.save_every.is_some_and(|n| step.is_multiple_of(n.get() as u64));
            if wanted || self.numbers.position.index == 0 || self.is_over() {
                let snapshot = self.save()?;
                if self.is_due() {
                    self.evaluate(&snapshot, &mut logs, &meter)?;
                    logs.summarize()?;
                }
                meter.pause();
            }
        }
        meter.finish();
        logs.summarize()?;
        self.keep_last()
    }

    fn is_over(&self) -> bool {
        self.numbers.step >= self.length.total
    }

    /// Whether the state is one that is evaluated: that after an epoch, if it is its turn, and the last.
    fn is_due(&self) -> bool {
        let position = self.numbers.position;
        let every = self.args.evaluate_every.get() as u64;
        self.is_over() || (position.index == 0 && position.epoch.is_multiple_of(every))
    }

    /// Passes over the data, complete and begun.
    fn epochs(&self) -> f64 {
        let position = self.numbers.position;
        position.epoch as f64 + position.index as f64 / self.loader.batches_per_epoch() as f64
    }

    /// Makes an update from a few batches, none of the next epoch; returns its mean losses and number of images.
    fn update(&mut self, rate: f64) -> Result<(Losses, usize), Error> {
        let mut sum: Option<Gradients> = None;
        let (mut window, mut images) = (Window::default(), 0);
        let first = self.numbers.position;
        let mut next = first;
        for part in 0..self.args.course.accumulate.get() {
            let batch = self.loader.batch(next)?;
            let seed = self.args.seed.wrapping_add(part as u64);
            let mut sampler = RandomSampler::new(seed, self.numbers.step);
            let evaluated = self.network.evaluate(&batch, &mut sampler)?;
            images += batch.images.len();
            window.losses.push(evaluated.losses);
            let gradients = evaluated.gradients(&self.trained)?;
            match &mut sum {
                Some(sum) => sum.add(&gradients)?,
                none => *none = Some(gradients),
            }
            next.index += 1;
            if next.index == self.loader.batches_per_epoch() {
                next.epoch += 1;
                next.index = 0;
                break;
            }
        }
        if let Some(mut gradients) = sum {
            gradients.scale(1.0 / window.losses.len() as f64);
            if let Some(length) = self.args.course.clip {
                gradients.clip_norm(length)?;
            }
            self.optimizer.step(&gradients, rate)?;
        }
        if let Some(average) = &mut self.average {
            average.update()?;
        }
        self.numbers = Numbers { position: next, step: self.numbers.step + 1 };
        let losses = window.mean().unwrap_or(window.losses[0]);
        Ok((losses, images))
    }

    fn state(&mut self) -> RunState<'_> {
        RunState {
            parameters: self.network.parameters(),
            optimizer: &mut self.optimizer,
            average: self.average.as_mut(),
            numbers: self.numbers,
        }
    }

    fn save(&mut self) -> Result<Snapshot> {
        let folder = self.folder.clone();
        Ok(folder.save(&self.state())?)
    }

    fn restore(&mut self) -> Result<()> {
        let snapshots = self.folder.snapshots()?;
        let Some(last) = snapshots.last() else {
            eprintln!("{} has no snapshot: starting from the beginning", self.args.out.display());
            return Ok(());
        };
        let mut state = self.state();
        last.restore(&mut state)?;
        self.numbers = state.numbers;
        eprintln!("going on after {} of {} updates", self.numbers.step, self.length.total);
        Ok(())
    }

    fn evaluate(&self, snapshot: &Snapshot, logs: &mut Logs, meter: &Meter) -> Result<()> {
        let Some(dataset) = &self.validation else { return Ok(()) };
        let weights = weights(snapshot);
        let figures = evaluation::evaluate(self.config, &weights, dataset, &self.device)?;
        logs.evaluation(self.numbers.step, self.epochs(), figures)?;
        let score = evaluation::score(figures);
        let best = self.folder.best_score()?;
        let is_best = best.is_none_or(|best| score > best);
        if is_best {
            self.folder.save_best(&weights, score)?;
        }
        let mark = if is_best { " (the best so far)" } else { "" };
        let (step, epochs) = (self.numbers.step, self.epochs());
        meter.say(&format!(
            "after {step} updates, {epochs:.1} epochs: {}{mark}",
            evaluation::describe(figures)
        ));
        Ok(())
    }

    /// After losses that are not finite: the state is kept apart from the run's snapshots, which are still good.
    fn give_up(&mut self, error: Error) -> anyhow::Error {
        if !matches!(error, Error::NonFinite { .. }) {
            return error.into();
        }
        let apart = self.args.out.join("non-finite");
        let kept = RunFolder::new(&apart, 1).save(&self.state());
        let position = self.numbers.position;
        let advice = match kept {
            Ok(_) => format!("the state is in {}", apart.display()),
            Err(error) => format!("the state could not be saved: {error}"),
        };
        anyhow::Error::from(error).context(format!(
            "stopped at {position}; {advice}; try a lower --lr, a longer --warm-up, or --clip"
        ))
    }

    /// The weights of the end, under a name that doesn't depend on the length of the run.
    fn keep_last(&mut self) -> Result<()> {
        let last = self.save()?;
        let path = self.args.out.join("last.safetensors");
        copy(&weights(&last), &path)?;
        eprintln!("last weights: {}", path.display());
        if self.folder.best().exists() {
            eprintln!("best weights: {}", self.folder.best().display());
        }
        Ok(())
    }
}

/// What a snapshot detects with: the average where there is one.
fn weights(snapshot: &Snapshot) -> PathBuf {
    snapshot.average().unwrap_or_else(|| snapshot.model())
}

/// Copies a file so that its place never holds half of it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let beside = to.with_extension("tmp");
    fs::copy(from, &beside)
        .and_then(|_| fs::rename(&beside, to))
        .with_context(|| format!("cannot write {}", to.display()))
}

impl Window {
    fn mean(&self) -> Option<Losses> {
        let first = self.losses.first()?;
        let count = self.losses.len() as f32;
        let mean = |part: fn(&Losses) -> f32| self.losses.iter().map(part).sum::<f32>() / count;
        Some(Losses {
            objectness: mean(|losses| losses.objectness),
            rpn_box_reg: mean(|losses| losses.rpn_box_reg),
            classifier: mean(|losses| losses.classifier),
            box_reg: mean(|losses| losses.box_reg),
            mask: first.mask.map(|_| mean(|losses| losses.mask.unwrap_or(0.0))),
        })
    }
}
