//! The loop: batches → losses → gradients → updated weights, until the last update is made.

use std::ops::Range;
use std::sync::Arc;

use candle_core::Tensor;

use super::batch::{BatchSource, Position};
use super::ema::Average;
use super::network::Network;
use super::observer::{Flow, Milestone, Observer};
use super::optimizer::{Optimizer, kernels};
use super::options::{TrainerOptions, option};
use super::parallel::{BUCKET, Communicator, Plan, Ranks, broadcast_all};
use super::parameters::Parameter;
use super::pending::{Clock, Pending, Progress};
use super::state::{Numbers, RunFolder, RunState, Snapshot};
use super::update::{Computed, Work};
use super::verdict::{Approval, Verdict};
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
///
/// Nothing waits for an update: its losses and the verdict on it stay on the device until
/// [`TrainerOptions::report_every`] or a snapshot wants them, all in one download. Ranks exchange gradients while the
/// backward pass goes on. One that fails spoils the losses of all, so that none makes the update, and all end when they
/// read them.
pub struct Trainer {
    network: Network,
    options: TrainerOptions,
    optimizer: Optimizer,
    average: Option<Average>,
    parameters: Arc<[Parameter]>,
    /// In which order their gradients travel between ranks.
    plan: Arc<Plan>,
    /// Those that batches change.
    statistics: Vec<Parameter>,
    folder: Option<RunFolder>,
    communicator: Arc<dyn Communicator>,
    numbers: Numbers,
    /// Updates that were started since the last reports, which only the device knows to be made.
    pending: Vec<Pending>,
    /// Why this rank has no part in them from some update on.
    failed: Option<Error>,
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
        let parameters: Arc<[Parameter]> = network.parameters().trainable().into();
        let plan = Arc::new(plan(&network, &parameters));
        let optimizer = Optimizer::new(&parameters, options.rule, &options.groups)?;
        let all = network.parameters().all();
        let tensors: Vec<Tensor> = all.iter().map(|p| p.var.as_detached_tensor()).collect();
        let first = broadcast_all(&communicator, &tensors)?;
        if communicator.rank() > 0 {
            for (parameter, tensor) in all.iter().zip(first) {
                kernels::overwrite(parameter.var.as_tensor(), &tensor)?;
            }
        }
        let average = options.average.map(|decay| Average::new(&all, decay)).transpose()?;
        let statistics = network.parameters().running();
        let numbers = Numbers::default();
        Ok(Self {
            network,
            options,
            optimizer,
            average,
            parameters,
            plan,
            statistics,
            folder,
            communicator,
            numbers,
            pending: Vec::new(),
            failed: None,
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
    /// [`Error::NonFinite`], found when reports are due; the state before it is that of the network then, and in
    /// [`RunFolder::failed`], if it could be written.
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
        self.ranks().check_step(self.numbers.step)?;
        let steps = self.options.length.updates(self.options.updates_per_epoch(batches));
        // The interruption may have come between a snapshot and its evaluation.
        if let Some(snapshot) = self.resumed.take()
            && self.is_due(steps)
        {
            self.evaluate(observer, Some(&snapshot), batches)?;
        }
        let mut clock = Clock::start(self.numbers.step, steps);
        while self.numbers.step < steps {
            if self.pending.is_empty() {
                clock.begin_group();
            }
            if let Err(error) = self.update(source, batches) {
                // What was started before has failed before.
                self.report(observer, &clock)?;
                self.keep_failed(&error);
                return Err(error);
            }
            let ends = self.is_snapshot_due(steps);
            if !(ends || self.is_report_due()) {
                continue;
            }
            let flow = self.report(observer, &clock)?;
            let stops = self.ranks().any_stops(flow)?;
            if ends || stops {
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

    fn ranks(&self) -> Ranks<'_> {
        Ranks { communicator: &self.communicator, device: self.network.device() }
    }

    /// Starts an update from as many batches as it takes. Whether it is made is known to the device.
    fn update(&mut self, source: &mut dyn BatchSource, batches: usize) -> Result<()> {
        let before = self.progress();
        let Position { epoch, index } = before.numbers.position;
        let end = (index + self.options.batches_per_update).min(batches);
        let statistics = self.copy_of_statistics()?;
        let Computed { losses, own_losses, gradients, images, failure } =
            match self.compute(source, epoch, index..end) {
                Ok(computed) => computed,
                Err(error) => {
                    // Norms have taken in a batch that is none of an update.
                    for (statistic, tensor) in self.statistics.iter().zip(&statistics) {
                        kernels::overwrite(statistic.var.as_tensor(), tensor)?;
                    }
                    return Err(error);
                }
            };
        self.failed = self.failed.take().or(failure);
        let last = self.pending.last().map(|update| &update.verdict);
        let verdict = Verdict::new(&losses, &gradients, self.options.clip_norm, last)?;
        let rate = self.options.schedule.at(self.numbers.step);
        self.optimizer.step_if(&verdict, &gradients, rate)?;
        if let Some(average) = &mut self.average {
            average.update_if(&verdict)?;
        }
        for (statistic, tensor) in self.statistics.iter().zip(&statistics) {
            kernels::restore(statistic.var.as_tensor(), tensor, Approval::Needed(&verdict))?;
        }
        self.numbers.step += 1;
        self.numbers.position = if end == batches {
            Position { epoch: epoch + 1, index: 0 }
        } else {
            Position { epoch, index: end }
        };
        let (after, epochs) = (self.numbers, self.epochs(batches));
        self.pending.push(Pending { before, after, epochs, rate, images, own_losses, verdict });
        Ok(())
    }

    /// Computes an update, together with the other ranks.
    fn compute(
        &self,
        source: &mut dyn BatchSource,
        epoch: u64,
        indices: Range<usize>,
    ) -> Result<Computed> {
        let work = Work {
            network: &self.network,
            parameters: &self.parameters,
            plan: &self.plan,
            ranks: self.ranks(),
            seed: self.options.seed,
        };
        match self.failed {
            None => work.compute(source, epoch, indices),
            Some(_) => work.abstain(indices.len()),
        }
    }

    /// Reads what became of the updates that were started, and tells the observer.
    ///
    /// Where one was not made, the state is that before it.
    fn report(&mut self, observer: &mut dyn Observer, clock: &Clock) -> Result<Flow> {
        let mut pending = std::mem::take(&mut self.pending);
        let verdicts: Vec<&Verdict> = pending.iter().map(|update| &update.verdict).collect();
        let judgements = Verdict::read(self.network.loss_names(), &verdicts)?;
        let reading = clock.read(pending.len(), self.numbers.step);
        let made = judgements.iter().take_while(|judgement| judgement.goes_on).count();
        let failed = pending.drain(made..).next();
        if let Some(failed) = &failed {
            self.rewind(failed.before);
        }
        let mut flow = Flow::Continue;
        for (update, judgement) in pending.iter().zip(&judgements) {
            if observer.step(&update.report(judgement, &reading))? == Flow::Stop {
                flow = Flow::Stop;
            }
        }
        let Some(failed) = failed else { return Ok(flow) };
        let error = match self.failed.take() {
            Some(error) => error,
            None => {
                let names = self.network.loss_names();
                failed.error(names, &judgements[made], self.communicator.rank())?
            }
        };
        self.keep_failed(&error);
        Err(error)
    }

    fn progress(&self) -> Progress {
        Progress {
            numbers: self.numbers,
            steps: self.optimizer.steps(),
            updates: self.average.as_ref().map_or(0, Average::updates),
        }
    }

    /// Takes back the numbers of updates that were not made; the tensors are as they were.
    fn rewind(&mut self, progress: Progress) {
        self.numbers = progress.numbers;
        self.optimizer.rewind(progress.steps);
        if let Some(average) = &mut self.average {
            average.rewind(progress.updates);
        }
    }

    fn copy_of_statistics(&self) -> Result<Vec<Tensor>> {
        let copy = |statistic: &Parameter| kernels::copy_of(statistic.var.as_tensor());
        self.statistics.iter().map(copy).collect()
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

    /// Whether losses are read after this update, whatever else is due.
    fn is_report_due(&self) -> bool {
        self.numbers.step.is_multiple_of(self.options.report_every)
    }

    /// Whether the state is one to save.
    fn is_snapshot_due(&self, steps: u64) -> bool {
        let Numbers { step, position } = self.numbers;
        let is_wanted = self.options.snapshot_every.is_some_and(|n| step.is_multiple_of(n));
        is_wanted || step == steps || position.index == 0
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

/// Gradients travel from the last layer to the first, as a backward pass finds them.
fn plan(network: &Network, parameters: &[Parameter]) -> Plan {
    let sizes: Vec<usize> = parameters.iter().map(|parameter| parameter.var.elem_count()).collect();
    let order = network.parameters().as_built(parameters).into_iter().rev();
    Plan::new(&sizes, order, BUCKET)
}
