//! The loop: batches → losses → gradients → updated weights, until the last epoch is over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::Tensor;

use super::batch::{Batch, BatchSource, Position};
use super::ema::Average;
use super::gradients::Gradients;
use super::network::Network;
use super::optimizer::{Optimizer, ParameterGroups, UpdateRule, kernels};
use super::parallel::{Communicator, average_gradients, broadcast_all};
use super::parameters::{Parameter, ParameterKind};
use super::random::Random;
use super::sample::RandomSampler;
use super::schedule::Schedule;
use super::state::{Numbers, RunFolder, RunState, Snapshot};
use super::step::Losses;
use crate::error::{Error, Result};

/// How a run goes.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainerOptions {
    /// Passes over the data.
    pub epochs: u64,
    /// Of all that is random about the steps. The batches have a seed of their own.
    pub seed: u64,
    /// The learning rate.
    pub schedule: Schedule,
    /// How gradients change parameters.
    pub rule: UpdateRule,
    /// Which parameters are treated otherwise.
    pub groups: ParameterGroups,
    /// The most that all gradients together may measure; `None` for no limit.
    pub clip_norm: Option<f64>,
    /// Batches whose gradients are averaged to one update, at least 1; fewer at the end of an epoch.
    pub batches_per_update: usize,
    /// Share that a running average of the weights keeps at each update, such as 0.9998; `None` for no average.
    pub average: Option<f64>,
    /// Updates between snapshots; there is one after every epoch anyway.
    pub snapshot_every: Option<u64>,
}

/// One update, as it is reported.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// Updates made, this one included.
    pub step: u64,
    /// Updates of the whole run.
    pub steps: u64,
    /// The batch that comes next.
    pub position: Position,
    /// Mean of the batches of the update, over all ranks.
    pub losses: Losses,
    /// Learning rate.
    pub rate: f64,
    /// Length of all gradients together, before they were clipped.
    pub gradient_norm: f64,
    /// Images that this rank has seen in the update.
    pub images: usize,
    /// Time of the update, waiting for the batches included.
    pub elapsed: Duration,
    /// Time that the rest of the run will take if it goes on as since it was started.
    pub remaining: Duration,
}

/// The end of an epoch.
pub struct EpochReport<'a> {
    /// Epochs complete.
    pub epoch: u64,
    /// The network as it is.
    pub network: &'a Network,
    /// The weights on disk: the running average where one is kept, else the network's.
    pub snapshot: Option<&'a Snapshot>,
}

impl EpochReport<'_> {
    /// The file to evaluate: of the running average where one is kept.
    pub fn weights(&self) -> Option<std::path::PathBuf> {
        self.snapshot.map(|snapshot| snapshot.average().unwrap_or_else(|| snapshot.model()))
    }
}

/// Whether a run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// It does.
    Continue,
    /// It ends after a snapshot, from which it can be resumed.
    Stop,
}

/// Hears of a run's progress: logs it, evaluates, and may stop it.
pub trait Observer {
    /// After every update.
    ///
    /// # Errors
    /// End the run.
    fn step(&mut self, report: &StepReport) -> Result<Flow>;

    /// After every epoch, on rank 0, once its snapshot is on disk; again when a run is resumed from there. Returns how
    /// well the network does, where it was evaluated; the weights with the largest score are kept.
    ///
    /// # Errors
    /// End the run.
    fn epoch(&mut self, report: &EpochReport<'_>) -> Result<Option<f64>>;
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All epochs are complete.
    Complete,
    /// The observer stopped it.
    Stopped,
}

/// Trains a network.
///
/// With the same network, options, data, number of ranks and of threads, runs end in the same weights, bit for bit, no
/// matter how often they were interrupted and resumed.
pub struct Trainer {
    network: Network,
    options: TrainerOptions,
    optimizer: Optimizer,
    average: Option<Average>,
    parameters: Vec<Parameter>,
    buffers: Vec<Parameter>,
    folder: Option<RunFolder>,
    communicator: Arc<dyn Communicator>,
    numbers: Numbers,
    /// Where the run was resumed, until it goes on.
    resumed: Option<Snapshot>,
}

impl Trainer {
    /// A run that has made no step. Without a folder nothing is written.
    ///
    /// All ranks start with the network of rank 0.
    ///
    /// # Errors
    /// [`Error::Config`] for options that make no sense; those of the communicator.
    pub fn new(
        network: Network,
        options: TrainerOptions,
        folder: Option<RunFolder>,
        communicator: Arc<dyn Communicator>,
    ) -> Result<Self> {
        check(&options)?;
        let parameters = network.parameters().trainable();
        let optimizer = Optimizer::new(&parameters, options.rule, &options.groups)?;
        let all = network.parameters().all();
        let tensors: Vec<Tensor> = all.iter().map(|p| p.var.as_detached_tensor()).collect();
        let first = broadcast_all(communicator.as_ref(), &tensors)?;
        if communicator.rank() > 0 {
            for (parameter, tensor) in all.iter().zip(first) {
                kernels::overwrite(parameter.var.as_tensor(), &tensor)?;
            }
        }
        let average = options.average.map(|decay| Average::new(&all, decay)).transpose()?;
        let buffers = all.into_iter().filter(|p| p.kind == ParameterKind::Buffer).collect();
        let numbers = Numbers::default();
        Ok(Self {
            network,
            options,
            optimizer,
            average,
            parameters,
            buffers,
            folder,
            communicator,
            numbers,
            resumed: None,
        })
    }

    /// Goes on from the last snapshot in the run's folder, which all ranks must be able to read. Returns the step, or
    /// `None` where there is no snapshot.
    ///
    /// # Errors
    /// Those of [`Snapshot::restore`].
    pub fn resume(&mut self) -> Result<Option<u64>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let Some(snapshot) = folder.snapshots()?.pop() else { return Ok(None) };
        let mut state = RunState {
            parameters: self.network.parameters(),
            optimizer: &mut self.optimizer,
            average: self.average.as_mut(),
            numbers: self.numbers,
        };
        snapshot.restore(&mut state)?;
        self.numbers = state.numbers;
        self.resumed = Some(snapshot);
        Ok(Some(self.numbers.step))
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The running average of the weights, by name.
    pub fn average(&self) -> Option<Vec<(String, Tensor)>> {
        self.average.as_ref().map(Average::tensors)
    }

    /// Where the run is.
    pub fn numbers(&self) -> Numbers {
        self.numbers
    }

    /// Trains to the end of the last epoch.
    ///
    /// # Errors
    /// Those of the source, the observer, the network and the disk. A loss or gradient that is not finite is
    /// [`Error::NonFinite`], after a snapshot of the weights before it.
    pub fn run(
        &mut self,
        source: &mut dyn BatchSource,
        observer: &mut dyn Observer,
    ) -> Result<Ending> {
        let batches = source.batches_per_epoch();
        if batches == 0 {
            return Err(option("batches_per_epoch", "0", "at least 1; is the data set empty?"));
        }
        self.check_folder()?;
        let updates_per_epoch = batches.div_ceil(self.options.batches_per_update) as u64;
        let steps = updates_per_epoch * self.options.epochs;
        // The interruption may have come between a snapshot and its evaluation.
        if let Some(snapshot) = self.resumed.take()
            && self.numbers.position.index == 0
        {
            self.end_epoch(observer, Some(&snapshot))?;
        }
        let (start, first) = (Instant::now(), self.numbers.step);
        while self.numbers.position.epoch < self.options.epochs {
            let begin = Instant::now();
            let mut report = self.update(source, batches)?;
            report.steps = steps;
            report.elapsed = begin.elapsed();
            let done = (self.numbers.step - first).max(1);
            let left = steps.saturating_sub(self.numbers.step);
            report.remaining = start.elapsed().mul_f64(left as f64 / done as f64);
            let stops = self.any_stops(observer.step(&report)?)?;
            let epoch_is_over = self.numbers.position.index == 0;
            let due =
                self.options.snapshot_every.is_some_and(|n| self.numbers.step.is_multiple_of(n));
            if epoch_is_over || due || stops {
                let snapshot = self.save()?;
                if epoch_is_over {
                    self.end_epoch(observer, snapshot.as_ref())?;
                }
            }
            if stops {
                return Ok(Ending::Stopped);
            }
        }
        Ok(Ending::Complete)
    }

    /// Refuses to mix a new run with the snapshots of another one.
    fn check_folder(&self) -> Result<()> {
        let Some(folder) = self.folder.as_ref().filter(|_| self.numbers.step == 0) else {
            return Ok(());
        };
        match folder.snapshots()?.pop() {
            None => Ok(()),
            Some(snapshot) => Err(Error::TrainingState {
                what: folder.path().display().to_string(),
                found: format!("the snapshot of step {}", snapshot.step),
                expected: "an empty folder for a new run; resume, or choose another folder"
                    .to_owned(),
            }),
        }
    }

    /// Makes one update from as many batches as it takes.
    fn update(&mut self, source: &mut dyn BatchSource, batches: usize) -> Result<StepReport> {
        let Position { epoch, index } = self.numbers.position;
        let end = (index + self.options.batches_per_update).min(batches);
        let statistics = self.copy_of_buffers()?;
        let mut images = 0;
        let computed = self.gradients_of(source, epoch, index..end, &mut images);
        let (losses, mut gradients) = match self.agree(computed) {
            Ok(computed) => computed,
            Err(error) => {
                // Norms may have taken in what is not finite.
                for (buffer, tensor) in self.buffers.iter().zip(&statistics) {
                    kernels::overwrite(buffer.var.as_tensor(), tensor)?;
                }
                if matches!(error, Error::NonFinite { .. } | Error::Parallel { .. }) {
                    self.save()?;
                }
                return Err(error);
            }
        };
        let gradient_norm = match self.options.clip_norm {
            Some(length) => gradients.clip_norm(length)?,
            None => gradients.norm()?,
        };
        if !gradient_norm.is_finite() {
            self.save()?;
            let what = format!("the gradient of step {}", self.numbers.step + 1);
            return Err(Error::NonFinite { what, images: Vec::new(), losses: losses.to_string() });
        }
        let rate = self.options.schedule.at(self.numbers.step);
        self.optimizer.step(&gradients, rate)?;
        if let Some(average) = &mut self.average {
            average.update()?;
        }
        self.numbers.step += 1;
        self.numbers.position = if end == batches {
            Position { epoch: epoch + 1, index: 0 }
        } else {
            Position { epoch, index: end }
        };
        Ok(StepReport {
            step: self.numbers.step,
            steps: 0,
            position: self.numbers.position,
            losses,
            rate,
            gradient_norm,
            images,
            elapsed: Duration::ZERO,
            remaining: Duration::ZERO,
        })
    }

    /// Mean losses and gradients of some batches of an epoch, on this rank.
    fn gradients_of(
        &self,
        source: &mut dyn BatchSource,
        epoch: u64,
        indices: std::ops::Range<usize>,
        images: &mut usize,
    ) -> Result<(Losses, Gradients)> {
        let share = 1.0 / indices.len() as f64;
        let seed = Random::new(self.options.seed).part(self.communicator.rank() as u64).bits();
        let mut sum: Option<(Losses, Gradients)> = None;
        for index in indices {
            let batch: Batch = source.batch(Position { epoch, index })?;
            *images += batch.images.len();
            let part = Random::new(seed).part(epoch).bits();
            let mut sampler = RandomSampler::new(part, index as u64);
            let evaluated = self.network.evaluate(&batch, &mut sampler)?;
            let losses = evaluated.losses.scaled(share as f32);
            let gradients = evaluated.gradients(&self.parameters)?;
            sum = Some(match sum {
                None => (losses, gradients),
                Some((total, mut all)) => {
                    all.add(&gradients)?;
                    (total.plus(&losses), all)
                }
            });
        }
        let (losses, mut gradients) = sum.ok_or_else(|| option("batches_per_update", "0", "1"))?;
        gradients.scale(share);
        Ok((losses, gradients))
    }

    /// Averages over all ranks, unless one of them has failed: then all fail, instead of waiting for it.
    fn agree(&self, computed: Result<(Losses, Gradients)>) -> Result<(Losses, Gradients)> {
        let world = self.communicator.world_size();
        if world == 1 {
            return computed;
        }
        let mut values = vec![0f32; Losses::COUNT];
        if let Ok((losses, _)) = &computed {
            losses.named().zip(&mut values).for_each(|((_, loss), value)| *value = loss);
        }
        values.push(if computed.is_err() { 1.0 } else { 0.0 });
        let sums = self.exchange(values)?;
        let (losses, mut gradients) = computed?;
        if sums[Losses::COUNT] > 0.0 {
            let problem = "another rank has failed; see its message".to_owned();
            return Err(Error::Parallel { rank: self.communicator.rank(), problem });
        }
        average_gradients(self.communicator.as_ref(), &mut gradients)?;
        Ok((losses.replaced(&sums).scaled(1.0 / world as f32), gradients))
    }

    /// Whether the observer of any rank wants to stop.
    fn any_stops(&self, flow: Flow) -> Result<bool> {
        if self.communicator.world_size() == 1 {
            return Ok(flow == Flow::Stop);
        }
        let stops = self.exchange(vec![if flow == Flow::Stop { 1.0 } else { 0.0 }])?;
        Ok(stops[0] > 0.0)
    }

    fn exchange(&self, values: Vec<f32>) -> Result<Vec<f32>> {
        let length = values.len();
        let values = Tensor::from_vec(values, length, self.network.device())?;
        Ok(self.communicator.all_reduce_sum(&values)?.to_vec1()?)
    }

    fn copy_of_buffers(&self) -> Result<Vec<Tensor>> {
        self.buffers.iter().map(|buffer| kernels::copy_of(buffer.var.as_tensor())).collect()
    }

    /// Writes a snapshot, on rank 0.
    fn save(&mut self) -> Result<Option<Snapshot>> {
        let Some(folder) = self.folder.as_ref().filter(|_| self.communicator.rank() == 0) else {
            return Ok(None);
        };
        let state = RunState {
            parameters: self.network.parameters(),
            optimizer: &mut self.optimizer,
            average: self.average.as_mut(),
            numbers: self.numbers,
        };
        folder.save(&state).map(Some)
    }

    fn end_epoch(&self, observer: &mut dyn Observer, snapshot: Option<&Snapshot>) -> Result<()> {
        if self.communicator.rank() > 0 {
            return Ok(());
        }
        let epoch = self.numbers.position.epoch;
        let report = EpochReport { epoch, network: &self.network, snapshot };
        let score = observer.epoch(&report)?;
        if let (Some(folder), Some(score), Some(weights)) = (&self.folder, score, report.weights())
            && folder.best_score()?.is_none_or(|best| score > best)
        {
            folder.save_best(&weights, score)?;
        }
        Ok(())
    }
}

fn check(options: &TrainerOptions) -> Result<()> {
    if options.batches_per_update == 0 {
        return Err(option("batches_per_update", "0", "at least 1"));
    }
    if let Some(length) = options.clip_norm.filter(|length| length.is_nan() || *length <= 0.0) {
        return Err(option("clip_norm", &length.to_string(), "a length above 0"));
    }
    if let Some(decay) = options.average.filter(|decay| !(0.0..1.0).contains(decay)) {
        return Err(option("average", &decay.to_string(), "a share from 0 to below 1"));
    }
    let rate = options.schedule.rate;
    if !(rate > 0.0 && rate.is_finite()) {
        return Err(option("schedule.rate", &rate.to_string(), "a rate above 0"));
    }
    Ok(())
}

fn option(field: &str, found: &str, expected: &str) -> Error {
    Error::Config {
        origin: "training options".to_owned(),
        field: field.to_owned(),
        found: found.to_owned(),
        expected: expected.to_owned(),
    }
}
