//! Where the constructor of a network gets its tensors from.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

use super::{Checkpoint, Format, init, is_counter, verify};
use crate::error::{Error, Mismatches, Result, WrongShape};

/// What to do when file and network differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loading {
    /// Every tensor of the network must be in the file with its shape, and the other way round.
    Strict,
    /// What fits is kept; the rest is initialised as for training, and reported. For fine-tuning
    /// with another number of classes.
    Partial {
        /// Seed of the initial values.
        seed: u64,
    },
}

/// What loading did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadReport {
    /// The format that was recognised.
    pub format: Format,
    /// Tensors taken from the file.
    pub loaded: usize,
    /// Names of 2019 that were brought up to date.
    pub renamed: usize,
    /// Dotted path of the state dict in the file.
    pub wrapper: Option<String>,
    /// Prefix that all names had.
    pub prefix: Option<String>,
    /// In what file and network differ; empty after [`Loading::Strict`].
    pub mismatches: Mismatches,
}

/// Serves the constructor of a network from a [`Checkpoint`], and keeps the record.
///
/// Building goes on after a misfit, with a stand-in, so that [`Self::finish`] can report all of them.
/// A network whose `finish` was not called, or failed, must not be used.
///
/// # Example
/// ```no_run
/// # use candle_core::Device;
/// use candle_detection::checkpoint::{Checkpoint, CheckpointSource, Loading};
///
/// let checkpoint = Checkpoint::open("linear.pth".as_ref())?;
/// let source = CheckpointSource::new(checkpoint, Loading::Strict);
/// let linear = candle_nn::linear(8, 2, source.var_builder(&Device::Cpu))?;
/// let report = source.finish("linear")?;
/// println!("{} tensors", report.loaded);
/// # Ok::<(), candle_detection::Error>(())
/// ```
pub struct CheckpointSource {
    shared: Arc<Shared>,
}

struct Shared {
    checkpoint: Checkpoint,
    loading: Loading,
    record: Mutex<Record>,
}

#[derive(Default)]
struct Record {
    /// Every tensor asked for, with the shape that the network gives it.
    asked: BTreeMap<String, Vec<usize>>,
    loaded: usize,
    missing: BTreeMap<String, Vec<usize>>,
    wrong_shape: BTreeMap<String, WrongShape>,
    /// The first tensor that fits and could not be read.
    failure: Option<Error>,
}

impl CheckpointSource {
    /// A source of the tensors of `checkpoint`.
    pub fn new(checkpoint: Checkpoint, loading: Loading) -> Self {
        let record = Mutex::new(Record::default());
        Self { shared: Arc::new(Shared { checkpoint, loading, record }) }
    }

    /// What to hand to the constructor of the network. Tensors are f32 on `device`.
    pub fn var_builder(&self, device: &Device) -> VarBuilder<'static> {
        let backend: Box<dyn SimpleBackend> = Box::new(Backend(self.shared.clone()));
        VarBuilder::new_with_args(backend, DType::F32, device)
    }

    /// The file that is served.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.shared.checkpoint
    }

    /// Reports, once the network is built. `model` is what errors call it.
    ///
    /// # Errors
    /// [`Error::CheckpointMismatch`] when anything differs, or with [`Loading::Partial`] when nothing
    /// fits; the error of the first tensor that could not be read.
    pub fn finish(self, model: &str) -> Result<LoadReport> {
        let checkpoint = &self.shared.checkpoint;
        let mut record = self.shared.record();
        if let Some(failure) = record.failure.take() {
            return Err(failure);
        }
        let mut mismatches = Mismatches {
            missing: record.missing.clone().into_iter().collect(),
            unexpected: checkpoint
                .tensors()
                .filter(|tensor| {
                    !record.asked.contains_key(tensor.name) && !is_counter(tensor.name)
                })
                .map(|tensor| (tensor.name.to_owned(), tensor.shape.to_vec()))
                .collect(),
            wrong_shape: record.wrong_shape.values().cloned().collect(),
            diagnosis: None,
        };
        if !mismatches.is_empty() {
            mismatches.diagnosis = verify::diagnose(checkpoint, &record.asked, &mismatches);
        }
        let usable = match self.shared.loading {
            Loading::Strict => mismatches.is_empty(),
            Loading::Partial { .. } => mismatches.is_empty() || record.loaded > 0,
        };
        if !usable {
            return Err(Error::CheckpointMismatch {
                path: checkpoint.path().to_owned(),
                model: model.to_owned(),
                mismatches: Box::new(mismatches),
            });
        }
        Ok(LoadReport {
            format: checkpoint.format(),
            loaded: record.loaded,
            renamed: checkpoint.renamed(),
            wrapper: checkpoint.wrapper().map(str::to_owned),
            prefix: checkpoint.prefix().map(str::to_owned),
            mismatches,
        })
    }
}

impl Shared {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Backend(Arc<Shared>);

impl SimpleBackend for Backend {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        hint: Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let Shared { checkpoint, loading, .. } = self.0.as_ref();
        self.0.record().asked.insert(name.to_owned(), shape.dims().to_vec());
        let found = checkpoint.get(name);
        match found {
            Some(found) if found.shape == shape.dims() => {
                match checkpoint.tensor(name, dtype, device) {
                    Ok(tensor) => {
                        self.0.record().loaded += 1;
                        return Ok(tensor);
                    }
                    // The device's own errors end the building, which could not go on anyway.
                    Err(Error::Candle(error)) => return Err(error),
                    Err(error) => {
                        self.0.record().failure.get_or_insert(error);
                        return Tensor::zeros(shape, dtype, device);
                    }
                }
            }
            _ if is_counter(name) => return Tensor::zeros(shape, dtype, device),
            Some(found) => {
                let wrong = WrongShape {
                    name: name.to_owned(),
                    expected: shape.dims().to_vec(),
                    found: found.shape.to_vec(),
                };
                self.0.record().wrong_shape.insert(name.to_owned(), wrong);
            }
            None => {
                self.0.record().missing.insert(name.to_owned(), shape.dims().to_vec());
            }
        }
        match loading {
            Loading::Strict => Tensor::zeros(shape, dtype, device),
            Loading::Partial { seed } => init::tensor(hint, *seed, name, &shape, dtype, device),
        }
    }

    fn get_unchecked(
        &self,
        name: &str,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let Some(found) = self.0.checkpoint.get(name) else {
            // Without a shape there is no stand-in.
            return Err(candle_core::Error::CannotFindTensor { path: name.to_owned() }.bt());
        };
        self.get(found.shape.into(), name, Init::default(), dtype, device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.checkpoint.get(name).is_some()
    }
}

/// Serves the constructor of a network with random tensors, by the hints of its layers.
///
/// The values of a tensor depend on the seed, its name and its shape only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomSource {
    /// Seed of all tensors.
    pub seed: u64,
}

impl RandomSource {
    /// What to hand to the constructor of the network. Tensors are f32 on `device`.
    pub fn var_builder(self, device: &Device) -> VarBuilder<'static> {
        let backend: Box<dyn SimpleBackend> = Box::new(self);
        VarBuilder::new_with_args(backend, DType::F32, device)
    }
}

impl SimpleBackend for RandomSource {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        hint: Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        init::tensor(hint, self.seed, name, &shape, dtype, device)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle_core::Result<Tensor> {
        // A random tensor needs a shape.
        Err(candle_core::Error::CannotFindTensor { path: name.to_owned() }.bt())
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}
