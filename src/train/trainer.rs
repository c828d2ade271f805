//! The loop: batches → losses → gradients → updated weights, until the last update is made.

use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::Tensor;

use super::batch::{Batch, BatchSource, Position};
use super::ema::Average;
use super::gradients::Gradients;
use super::network::Network;
use super::observer::{Flow, Milestone, Observer, StepReport};
use super::optimizer::{Optimizer, kernels};
use super::options::{TrainerOptions, option};
use super::parallel::{Communicator, average_gradients, broadcast_all};
use super::parameters::{Parameter, ParameterKind};
use super::random::Random;
use super::sample::RandomSampler;
use super::state::{Numbers, RunFolder, RunState, Snapshot};
use super::step::Losses;
use crate::error::{Error, Result};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All updates are made.
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
        options.check()?;
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

    /// Trains to the end of the run.
    ///
    /// # Errors
    /// Those of the source, the observer, the network and the disk. A loss or gradient that is not finite is
    /// [`Error::NonFinite`]; the state before it is in [`RunFolder::failed`], if it could be written.
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
        self.check_ranks()?;
        let steps = self.options.length.updates(self.options.updates_per_epoch(batches));
        // The interruption may have come between a snapshot and its evaluation.
        if let Some(snapshot) = self.resumed.take()
            && self.is_due(steps)
        {
            self.evaluate(observer, Some(&snapshot), batches)?;
        }
        let (start, first) = (Instant::now(), self.numbers.step);
        while self.numbers.step < steps {
            let begin = Instant::now();
            let mut report = self.update(source, batches)?;
            report.steps = steps;
            report.elapsed = begin.elapsed();
            let done = (self.numbers.step - first).max(1);
            let left = steps.saturating_sub(self.numbers.step);
            report.remaining = start.elapsed().mul_f64(left as f64 / done as f64);
            let stops = self.any_stops(observer.step(&report)?)?;
            let step = self.numbers.step;
            let is_wanted = self.options.snapshot_every.is_some_and(|n| step.is_multiple_of(n));
            if is_wanted || stops || step == steps || self.numbers.position.index == 0 {
                let snapshot = self.save()?;
                if self.is_due(steps) {
                    self.evaluate(observer, snapshot.as_ref(), batches)?;
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

    /// Refuses ranks that go on from different steps, such as one that can't see the run's folder.
    fn check_ranks(&self) -> Result<()> {
        let communicator = self.communicator.as_ref();
        if communicator.world_size() == 1 {
            return Ok(());
        }
        // In two parts, as f32 holds 24 bits exactly.
        let (low, high) = (self.numbers.step % (1 << 24), self.numbers.step >> 24);
        let mut steps = vec![0.0; 2 * communicator.world_size()];
        steps[2 * communicator.rank()..][..2].copy_from_slice(&[low as f32, high as f32]);
        let all = self.exchange(steps)?;
        let steps: Vec<u64> =
            all.chunks_exact(2).map(|step| step[0] as u64 + ((step[1] as u64) << 24)).collect();
        if steps.iter().all(|step| *step == self.numbers.step) {
            return Ok(());
        }
        Err(Error::TrainingState {
            what: "the steps that ranks go on from, by rank".to_owned(),
            found: format!("{steps:?}"),
            expected: "the same for all; every rank must be able to read the run's folder"
                .to_owned(),
        })
    }

    /// Makes one update from as many batches as it takes.
    fn update(&mut self, source: &mut dyn BatchSource, batches: usize) -> Result<StepReport> {
        let Position { epoch, index } = self.numbers.position;
        let end = (index + self.options.batches_per_update).min(batches);
        let statistics = self.copy_of_buffers()?;
        let mut images = Vec::new();
        let computed = self.gradients_of(source, epoch, index..end, &mut images);
        let (losses, mut gradients) = match self.agree(computed) {
            Ok(computed) => computed,
            Err(error) => {
                // Norms may have taken in what is not finite.
                for (buffer, tensor) in self.buffers.iter().zip(&statistics) {
                    kernels::overwrite(buffer.var.as_tensor(), tensor)?;
                }
                self.keep_failed(&error);
                return Err(error);
            }
        };
        let gradient_norm = match self.options.clip_norm {
            Some(length) => gradients.clip_norm(length)?,
            None => gradients.norm()?,
        };
        if !gradient_norm.is_finite() {
            let what = format!("the gradient of step {}", self.numbers.step + 1);
            let error = Error::NonFinite { what, images, losses: losses.to_string() };
            self.keep_failed(&error);
            return Err(error);
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
            epochs: self.epochs(batches),
            losses,
            rate,
            gradient_norm,
            images: images.len(),
            elapsed: Duration::ZERO,
            remaining: Duration::ZERO,
        })
    }

    /// Mean losses and gradients of some batches of an epoch, on this rank; notes the ids of their images.
    fn gradients_of(
        &self,
        source: &mut dyn BatchSource,
        epoch: u64,
        indices: std::ops::Range<usize>,
        images: &mut Vec<u64>,
    ) -> Result<(Losses, Gradients)> {
        let share = 1.0 / indices.len() as f64;
        let seed = Random::new(self.options.seed).part(self.communicator.rank() as u64).bits();
        let mut sum: Option<(Losses, Gradients)> = None;
        for index in indices {
            let batch: Batch = source.batch(Position { epoch, index })?;
            images.extend(batch.targets.iter().map(|target| target.image_id));
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
        match self.folder.clone() {
            Some(folder) => self.save_to(&folder),
            None => Ok(None),
        }
    }

    /// Keeps the state before an update that failed.
    fn keep_failed(&mut self, error: &Error) {
        let is_wanted = matches!(error, Error::NonFinite { .. } | Error::Parallel { .. });
        if let Some(folder) = self.folder.as_ref().filter(|_| is_wanted).map(RunFolder::failed) {
            // That the state could not be kept matters less than the error itself.
            let _ = self.save_to(&folder);
        }
    }

    fn save_to(&mut self, folder: &RunFolder) -> Result<Option<Snapshot>> {
        if self.communicator.rank() > 0 {
            return Ok(None);
        }
        let state = RunState {
            parameters: self.network.parameters(),
            optimizer: &mut self.optimizer,
            average: self.average.as_mut(),
            numbers: self.numbers,
        };
        folder.save(&state).map(Some)
    }

    /// Whether the state is one to evaluate.
    fn is_due(&self, steps: u64) -> bool {
        let Position { epoch, index } = self.numbers.position;
        let ends_epoch = index == 0 && epoch.is_multiple_of(self.options.evaluate_every);
        ends_epoch || self.numbers.step >= steps
    }

    fn epochs(&self, batches: usize) -> f64 {
        let Position { epoch, index } = self.numbers.position;
        epoch as f64 + index as f64 / batches as f64
    }

    fn evaluate(
        &self,
        observer: &mut dyn Observer,
        snapshot: Option<&Snapshot>,
        batches: usize,
    ) -> Result<()> {
        if self.communicator.rank() > 0 {
            return Ok(());
        }
        let (step, epochs) = (self.numbers.step, self.epochs(batches));
        let milestone = Milestone { step, epochs, network: &self.network, snapshot };
        let score = observer.evaluate(&milestone)?;
        if let (Some(folder), Some(score), Some(weights)) =
            (&self.folder, score, milestone.weights())
            && folder.best_score()?.is_none_or(|best| score > best)
        {
            folder.save_best(&weights, score)?;
        }
        Ok(())
    }
}
