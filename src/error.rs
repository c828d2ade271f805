//! Everything that can go wrong, each with the culprit and the cure in its message.
//!
//! A message says *what* failed; [`std::error::Error::source`] says *why*. Binaries print the chain.

use std::fmt;
use std::path::PathBuf;

use candle_core::DType;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No built-in model has this name.
    #[error("no model is called `{name}`; the catalogue has: {known}")]
    UnknownModel {
        /// The name asked for.
        name: String,
        /// All names, comma separated.
        known: String,
    },
    /// A file or folder could not be read or written.
    #[error("cannot access {path}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not an image, or a broken one.
    #[error("{origin} is not an image that can be decoded")]
    Image {
        /// The file, or "image in memory".
        origin: String,
        /// What the decoder said.
        source: image::ImageError,
    },
    /// The pixels of an image stop before its end.
    #[error("{origin} is truncated: its image data stops early; copy or download the file again")]
    TruncatedImage {
        /// The file, or "image in memory".
        origin: String,
    },
    /// An image exceeds the limit set in the decoding options.
    #[error(
        "{origin} has {width}×{height} pixels (width × height), the limit is {max_pixels}; raise `DecodeOptions::max_pixels` to accept it"
    )]
    ImageTooLarge {
        /// The file, or "image in memory".
        origin: String,
        /// Pixels in a row.
        width: u64,
        /// Rows.
        height: u64,
        /// The limit on `width · height`.
        max_pixels: u64,
    },
    /// A pixel buffer or tensor does not have the form that its size demands.
    #[error("{what} has {found}, expected {expected}")]
    Pixels {
        /// Which input.
        what: String,
        /// What it has.
        found: String,
        /// What it should have.
        expected: String,
    },
    /// A value in a model file, or set through the builder, is not usable.
    #[error("{origin}: `{field}` is {found}, expected {expected}")]
    Config {
        /// The file, or the built-in model's name.
        origin: String,
        /// Dotted path of the field.
        field: String,
        /// Its value.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// A model file is not valid TOML, or has unknown or missing keys.
    #[error("{origin} is not a model file")]
    ConfigSyntax {
        /// The file, or the built-in model's name.
        origin: String,
        /// Line, key and reason.
        source: Box<toml::de::Error>,
    },
    /// A weight file is none of the known formats, or is damaged.
    #[error(
        "{path}: {problem}; expected a safetensors file or a PyTorch checkpoint (zip or legacy pickle)"
    )]
    CheckpointFormat {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A weight file does not fit the model.
    #[error("{path} does not fit `{model}`:\n{mismatches}")]
    CheckpointMismatch {
        /// The file.
        path: PathBuf,
        /// The model's name.
        model: String,
        /// Every tensor at fault.
        mismatches: Box<Mismatches>,
    },
    /// A weight file has not the content that its hash promises.
    #[error("{path}: sha256 is {found}, expected {expected}; delete the file and load it again")]
    Checksum {
        /// The file.
        path: PathBuf,
        /// Hash, or the start of it, from the model file.
        expected: String,
        /// Hash of the file.
        found: String,
    },
    /// A weight file could not be fetched.
    #[error(
        "cannot download {url}: {problem}; to install it by hand, fetch that address and save it as {path}"
    )]
    Download {
        /// The address.
        url: String,
        /// Where the file belongs.
        path: PathBuf,
        /// What happened.
        problem: String,
    },
    /// A model has no published weights of the version asked for.
    #[error(
        "`{model}` has no published weights{version}; give a weight file (`Weights::File`, or --weights FILE in the examples)"
    )]
    NoPublishedWeights {
        /// The model's name.
        model: String,
        /// ` of version …`, or empty.
        version: String,
    },
    /// An argument of an op has the wrong shape.
    #[error("{op}: `{argument}` has shape {found:?}, expected {expected}")]
    Shape {
        /// The op.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// The shape it should have.
        expected: String,
        /// Its shape.
        found: Vec<usize>,
    },
    /// An argument of an op has the wrong data type.
    #[error("{op}: `{argument}` is {found:?}, expected {expected:?}")]
    DType {
        /// The op.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// The data type it should have.
        expected: DType,
        /// Its data type.
        found: DType,
    },
    /// The arguments of an op lie on different devices.
    #[error("{op}: `{argument}` is on {found}, the other inputs are on {expected}")]
    Device {
        /// The op.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// Device of the first argument.
        expected: String,
        /// Device of this argument.
        found: String,
    },
    /// An op has no implementation on a device.
    #[error("{op} is not implemented on {device}; move the model to the CPU")]
    Unsupported {
        /// The op.
        op: &'static str,
        /// The device.
        device: String,
    },
    /// A device has no such name, or is not there.
    #[error("device `{name}`: {problem}")]
    DeviceName {
        /// The name asked for.
        name: String,
        /// Why it can't be used.
        problem: String,
    },
    /// The driver refused the kernels of an op.
    #[error(
        "{op}: its kernels (PTX {version} for {target}) were refused by the driver: {problem}. A driver must be at \
         least as new as the CUDA toolkit that compiled the program, and the GPU at least {target}: update the driver, \
         or rebuild with an older toolkit or with CUDA_COMPUTE_CAP set to the GPU's compute capability"
    )]
    KernelLoad {
        /// The op.
        op: &'static str,
        /// Version of the PTX.
        version: String,
        /// Compute capability that the PTX was made for.
        target: String,
        /// What the driver said.
        problem: String,
    },
    /// A forward pass could not be recorded as a CUDA graph.
    #[error("the forward pass could not be recorded as a CUDA graph: {problem}")]
    Graph {
        /// What the driver said.
        problem: String,
    },
    /// A COCO annotation or results file is damaged or inconsistent.
    #[error("{path}: {entry}: {problem}")]
    Dataset {
        /// The file.
        path: PathBuf,
        /// The entry at fault, such as `annotations[17] (id 42)`.
        entry: String,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
    /// A model can't learn from the ground truth of an image.
    #[error("target of image {image_id}: `{entry}` is {found}, expected {expected}")]
    Target {
        /// The image.
        image_id: u64,
        /// The entry at fault, such as `boxes[3]`.
        entry: String,
        /// Its value, in pixels of the image as it was given.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// An image of a data set can't be used for training.
    #[error("image {image_id} cannot be used for training")]
    TrainingImage {
        /// The image.
        image_id: u64,
        /// Why.
        source: Box<Error>,
    },
    /// A file of figures is not what a run has written.
    #[error("{path}:{line}: {problem}; delete the file to start another")]
    Log {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// Training has diverged.
    #[error(
        "{what} is not finite (images {images:?}; {losses}); lower the learning rate, clip gradients, or look at these images' targets"
    )]
    NonFinite {
        /// A loss, or the gradient.
        what: String,
        /// Ids of the images of the batch, where they are known.
        images: Vec<u64>,
        /// All losses of the batch.
        losses: String,
    },
    /// A variable that a launcher of several processes sets makes no sense.
    #[error("environment variable `{variable}` is {found}, expected {expected}")]
    Launch {
        /// Its name.
        variable: String,
        /// Its value.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// The processes of a run have not found each other.
    #[error("rank {rank}: the ranks did not meet at {address}: {problem}")]
    Rendezvous {
        /// Who says so.
        rank: usize,
        /// Where they should have met: rank 0's address and port.
        address: String,
        /// What happened.
        problem: String,
    },
    /// The processes of a run have lost each other.
    #[error("rank {rank}: {problem}; start all ranks again, they go on from the last snapshot")]
    Parallel {
        /// Who says so.
        rank: usize,
        /// What happened.
        problem: String,
    },
    /// Parts of a training run don't belong together.
    #[error("{what}: found {found}, expected {expected}")]
    TrainingState {
        /// Which part, or which file.
        what: String,
        /// What it has.
        found: String,
        /// What it should have.
        expected: String,
    },
    /// The observer of a training run failed.
    #[error("the observer of the training run failed")]
    Observer {
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A progress callback asked to stop.
    #[error("stopped by the progress callback")]
    Cancelled,
    /// An error of candle itself, such as a device out of memory.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// A tensor whose shape in a weight file is not the model's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongShape {
    /// Name of the tensor.
    pub name: String,
    /// Shape that the model needs.
    pub expected: Vec<usize>,
    /// Shape in the file.
    pub found: Vec<usize>,
}

/// All tensors in which a weight file and a model differ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mismatches {
    /// Tensors that the model needs and the file lacks, with the shape they should have.
    pub missing: Vec<(String, Vec<usize>)>,
    /// Tensors of the file that the model has no use for, with their shape.
    pub unexpected: Vec<(String, Vec<usize>)>,
    /// Tensors of another shape.
    pub wrong_shape: Vec<WrongShape>,
    /// What the differences have in common, in words, such as another number of classes.
    pub diagnosis: Option<String>,
}

impl Mismatches {
    /// Whether file and model agree.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.wrong_shape.is_empty()
    }
}

/// How many entries of each kind a message lists before it only counts.
const LISTED: usize = 10;

impl fmt::Display for Mismatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(diagnosis) = &self.diagnosis {
            writeln!(f, "  {diagnosis}")?;
        }
        let wrong: Vec<String> = self
            .wrong_shape
            .iter()
            .map(|w| format!("{}: expected {:?}, found {:?}", w.name, w.expected, w.found))
            .collect();
        let named = |list: &[(String, Vec<usize>)]| -> Vec<String> {
            list.iter().map(|(name, shape)| format!("{name} {shape:?}")).collect()
        };
        write_list(f, "of another shape", &wrong)?;
        write_list(f, "missing in the file", &named(&self.missing))?;
        write_list(f, "unknown to the model", &named(&self.unexpected))
    }
}

fn write_list(f: &mut fmt::Formatter<'_>, title: &str, entries: &[String]) -> fmt::Result {
    if entries.is_empty() {
        return Ok(());
    }
    writeln!(f, "  {} {title}:", entries.len())?;
    for entry in entries.iter().take(LISTED) {
        writeln!(f, "    {entry}")?;
    }
    if entries.len() > LISTED {
        writeln!(f, "    … and {} more", entries.len() - LISTED)?;
    }
    Ok(())
}
