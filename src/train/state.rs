//! Training runs on disk, so that they can go on where they were interrupted.
//!
//! ```text
//! RUN/step-0000012000/model.safetensors      weights under torchvision's names, which torchvision itself loads
//! RUN/step-0000012000/average.safetensors    their running average, likewise, where one is kept
//! RUN/step-0000012000/state.safetensors      the optimiser's tensors; the run's numbers as metadata
//! RUN/best.safetensors                       the weights that did best so far
//! ```
//! A snapshot is written beside its place, flushed to the disk, and renamed: a folder with the name of a step is
//! complete, whenever the process or the machine may have died.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use candle_core::safetensors::Load;
use candle_core::{Device, Tensor};
use safetensors::tensor::{Metadata, TensorView};
use safetensors::{SafeTensorError, SafeTensors};

use super::batch::Position;
use super::ema::Average;
use super::optimizer::{Optimizer, kernels};
use super::parameters::Parameters;
use crate::error::{Error, Result};

/// Name of the weights in a snapshot.
const MODEL: &str = "model.safetensors";
/// Name of the averaged weights in a snapshot.
const AVERAGE: &str = "average.safetensors";
/// Name of the rest.
const STATE: &str = "state.safetensors";
/// Name of the best weights of a run.
const BEST: &str = "best.safetensors";
/// Key of the score in the metadata of the best weights.
const SCORE: &str = "score";
/// Version of the state's layout.
const FORMAT: &str = "candle-detection training state 1";

/// The numbers of a run. What is random about a step follows from the run's seed and these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Numbers {
    /// The batch that comes next.
    pub position: Position,
    /// Updates made.
    pub step: u64,
}

/// What a snapshot holds.
pub struct RunState<'a> {
    /// The weights.
    pub parameters: &'a Parameters,
    /// With the state of each parameter.
    pub optimizer: &'a mut Optimizer,
    /// The running average, where one is kept.
    pub average: Option<&'a mut Average>,
    /// The rest.
    pub numbers: Numbers,
}

/// The folder of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFolder {
    path: PathBuf,
    keep: usize,
}

impl RunFolder {
    /// A folder, made when it is first needed, that keeps the last `keep` snapshots, at least one.
    pub fn new(path: impl Into<PathBuf>, keep: usize) -> Self {
        Self { path: path.into(), keep: keep.max(1) }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the best weights of the run are, once [`Self::save_best`] was called.
    pub fn best(&self) -> PathBuf {
        self.path.join(BEST)
    }

    /// Complete snapshots, the oldest first.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(at(&self.path))?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(at(&self.path))?;
            let name = entry.file_name();
            let step = name.to_str().and_then(|name| name.strip_prefix("step-")?.parse().ok());
            found.extend(step.map(|step| Snapshot { step, folder: entry.path() }));
        }
        found.sort_by_key(|snapshot: &Snapshot| snapshot.step);
        Ok(found)
    }

    /// Writes a snapshot, then removes the oldest ones beyond those to keep. A snapshot of this step that is there already
    /// stays: steps of a run repeat bit for bit.
    ///
    /// # Errors
    /// [`Error::Io`], and those of candle. What was there before stays.
    pub fn save(&self, state: &RunState<'_>) -> Result<Snapshot> {
        fs::create_dir_all(&self.path).map_err(at(&self.path))?;
        let step = state.numbers.step;
        let folder = self.path.join(format!("step-{step:010}"));
        if folder.is_dir() {
            return Ok(Snapshot { step, folder });
        }
        let temporary = Temporary::new(self.path.join(format!(".step-{step:010}.tmp")))?;
        write(&temporary.0.join(MODEL), weights(state.parameters), model_metadata(step))?;
        if let Some(average) = &state.average {
            write(&temporary.0.join(AVERAGE), average.tensors(), model_metadata(step))?;
        }
        let metadata = metadata(&state.numbers, state.optimizer, state.average.as_deref());
        write(&temporary.0.join(STATE), state.optimizer.state(), metadata)?;
        sync_folder(&temporary.0)?;
        temporary.become_folder(&folder)?;
        sync_folder(&self.path)?;
        let snapshots = self.snapshots()?;
        for old in &snapshots[..snapshots.len().saturating_sub(self.keep)] {
            fs::remove_dir_all(&old.folder).map_err(at(&old.folder))?;
        }
        Ok(Snapshot { step, folder })
    }

    /// Copies a weight file to the place of the best one, with the score that made it the best.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::TrainingState`] for a damaged file. A file that was there before stays as it was.
    pub fn save_best(&self, weights: &Path, score: f64) -> Result<()> {
        let source = Tensors::read(weights)?;
        let mut metadata = source.metadata.clone();
        metadata.insert(SCORE.to_owned(), score.to_string());
        let temporary = self.path.join(format!(".{BEST}.tmp"));
        write(&temporary, source.all()?, metadata)?;
        fs::rename(&temporary, self.best()).map_err(at(&self.best()))?;
        sync_folder(&self.path)
    }

    /// The score of the best weights of the run; `None` before [`Self::save_best`] was called.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::TrainingState`] for a damaged file.
    pub fn best_score(&self) -> Result<Option<f64>> {
        if !self.best().is_file() {
            return Ok(None);
        }
        Tensors::read(&self.best())?.number(SCORE).map(Some)
    }
}

/// A state of a run on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Updates made.
    pub step: u64,
    folder: PathBuf,
}

impl Snapshot {
    /// The weights.
    pub fn model(&self) -> PathBuf {
        self.folder.join(MODEL)
    }

    /// The running average of the weights, where one was kept.
    pub fn average(&self) -> Option<PathBuf> {
        Some(self.folder.join(AVERAGE)).filter(|path| path.is_file())
    }

    /// Sets a run of the same network to this state.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::TrainingState`] for files that are damaged or of another network or optimiser.
    pub fn restore(&self, state: &mut RunState<'_>) -> Result<()> {
        let model = Tensors::read(&self.model())?;
        for parameter in state.parameters.all() {
            kernels::overwrite(parameter.var.as_tensor(), &model.get(&parameter.name)?)?;
        }
        let rest = Tensors::read(&self.folder.join(STATE))?;
        rest.require("format", FORMAT)?;
        if rest.number::<u64>("step")? != self.step {
            return Err(rest.fault("step", self.step.to_string()));
        }
        state.optimizer.restore(rest.number("optimizer_steps")?, |name| rest.get(name))?;
        if let Some(average) = state.average.as_mut() {
            let tensors = Tensors::read(&self.folder.join(AVERAGE))?;
            average.restore(rest.number("average_updates")?, |name| tensors.get(name))?;
        }
        state.numbers = Numbers {
            position: Position { epoch: rest.number("epoch")?, index: rest.number("index")? },
            step: self.step,
        };
        Ok(())
    }
}

fn weights(parameters: &Parameters) -> Vec<(String, Tensor)> {
    let named = |p: super::Parameter| (p.name, p.var.as_detached_tensor());
    parameters.all().into_iter().map(named).collect()
}

/// `format` is what torch's loaders of safetensors files look for.
fn model_metadata(step: u64) -> HashMap<String, String> {
    let pairs = [("format", "pt".to_owned()), ("step", step.to_string())];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn metadata(
    numbers: &Numbers,
    optimizer: &Optimizer,
    average: Option<&Average>,
) -> HashMap<String, String> {
    let mut pairs = vec![
        ("format", FORMAT.to_owned()),
        ("step", numbers.step.to_string()),
        ("epoch", numbers.position.epoch.to_string()),
        ("index", numbers.position.index.to_string()),
        ("optimizer_steps", optimizer.steps().to_string()),
    ];
    pairs.extend(average.map(|average| ("average_updates", average.updates().to_string())));
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Writes a safetensors file, and waits until it is on the disk.
fn write(
    path: &Path,
    tensors: Vec<(String, Tensor)>,
    metadata: HashMap<String, String>,
) -> Result<()> {
    let bytes = serialize(tensors, metadata).map_err(|error| at(path)(io::Error::other(error)))?;
    let mut file = File::create(path).map_err(at(path))?;
    file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(at(path))
}

/// The same bytes for the same content: the library writes metadata in the random order of a map.
fn serialize(
    tensors: Vec<(String, Tensor)>,
    metadata: HashMap<String, String>,
) -> std::result::Result<Vec<u8>, SafeTensorError> {
    let bytes = safetensors::serialize(tensors, None)?;
    let (_, header) = SafeTensors::read_metadata(&bytes)?;
    let (head, data) = bytes.split_at(bytes.len() - header.data_len());
    let entries: BTreeMap<String, String> = metadata.into_iter().collect();
    // Keys and values are our own, without anything that JSON writes otherwise.
    let mut text = format!("{{\"__metadata__\":{entries:?}").into_bytes();
    let tensors = head[size_of::<u64>()..].trim_ascii_end();
    let rest = tensors.strip_prefix(b"{").unwrap_or(tensors);
    text.extend_from_slice(if rest == b"}" { b"" } else { b"," });
    text.extend_from_slice(rest);
    text.resize(text.len().next_multiple_of(size_of::<u64>()), b' ');
    let length = (text.len() as u64).to_le_bytes();
    Ok([&length, text.as_slice(), data].concat())
}

/// Names in a folder are on the disk only when the folder is.
fn sync_folder(path: &Path) -> Result<()> {
    // Elsewhere folders can't be opened as files.
    if cfg!(unix) {
        File::open(path).and_then(|folder| folder.sync_all()).map_err(at(path))?;
    }
    Ok(())
}

fn at(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    |source| Error::Io { path: path.to_owned(), source }
}

/// A folder that is removed unless it was renamed.
struct Temporary(PathBuf);

impl Temporary {
    fn new(path: PathBuf) -> Result<Self> {
        // Left by a process that died.
        remove(&path)?;
        fs::create_dir(&path).map_err(at(&path))?;
        Ok(Self(path))
    }

    fn become_folder(mut self, path: &Path) -> Result<()> {
        fs::rename(&self.0, path).map_err(at(path))?;
        self.0.clear();
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            // A failure has been reported already; what can't be removed is no news.
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(folder)(error)),
        _ => Ok(()),
    }
}

/// A safetensors file in memory.
struct Tensors {
    path: PathBuf,
    bytes: Vec<u8>,
    header: Metadata,
    metadata: HashMap<String, String>,
}

impl Tensors {
    fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).map_err(at(path))?;
        let checked = SafeTensors::deserialize(&bytes);
        match checked.and_then(|_| SafeTensors::read_metadata(&bytes)) {
            Ok((_, header)) => {
                let metadata = header.metadata().clone().unwrap_or_default();
                Ok(Self { path: path.to_owned(), bytes, header, metadata })
            }
            Err(error) => Err(Error::TrainingState {
                what: path.display().to_string(),
                found: error.to_string(),
                expected: "a complete safetensors file; resume from an older snapshot".to_owned(),
            }),
        }
    }

    fn get(&self, name: &str) -> Result<Tensor> {
        let Some(info) = self.header.info(name) else {
            return Err(Error::TrainingState {
                what: self.path.display().to_string(),
                found: format!("no tensor `{name}`"),
                expected: "the state of the same network and optimiser".to_owned(),
            });
        };
        let data = &self.bytes[self.bytes.len() - self.header.data_len()..];
        let (start, end) = info.data_offsets;
        let view = TensorView::new(info.dtype, info.shape.clone(), &data[start..end])
            .map_err(|error| at(&self.path)(io::Error::other(error)))?;
        Ok(view.load(&Device::Cpu)?)
    }

    fn all(&self) -> Result<Vec<(String, Tensor)>> {
        let names = self.header.offset_keys().into_iter();
        names.map(|name| Ok((name.clone(), self.get(&name)?))).collect()
    }

    fn require(&self, key: &str, value: &str) -> Result<()> {
        match self.metadata.get(key) {
            Some(found) if found == value => Ok(()),
            _ => Err(self.fault(key, format!("`{value}`"))),
        }
    }

    fn number<T: FromStr>(&self, key: &str) -> Result<T> {
        let number = self.metadata.get(key).and_then(|text| text.parse().ok());
        number.ok_or_else(|| self.fault(key, "a number".to_owned()))
    }

    fn fault(&self, key: &str, expected: String) -> Error {
        let found = self.metadata.get(key).map_or("nothing".to_owned(), |text| format!("`{text}`"));
        Error::TrainingState { what: format!("{}: {key}", self.path.display()), found, expected }
    }
}
