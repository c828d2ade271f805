//! Weight files: every format that torchvision's weights come in, checked, renamed and fetched.
//!
//! In: a path, or a published file by name. Out: tensors under torchvision's names of today, through
//! [`Checkpoint`], or through [`CheckpointSource`] into the constructor of a network, with a report
//! of everything that does not fit. This room knows nothing of networks or ops.
//!
//! | file | subject |
//! | --- | --- |
//! | `mapped.rs` | the file in memory |
//! | `safetensors.rs`, `pth_zip.rs`, `pth_legacy.rs` | the three formats, parsed into `parsed.rs` |
//! | `pickle.rs`, `globals.rs`, `state_dict.rs` | reading, never executing, PyTorch's pickles |
//! | `stored.rs` | element types, strides, conversion |
//! | `rename.rs` | names of files to names of today |
//! | `source.rs`, `init.rs`, `verify.rs` | into a network: loading, initialising, the report |
//! | `write.rs` | any checkpoint as safetensors |
//! | `hash.rs`, `cache.rs`, `download.rs` | published files |

mod cache;
#[cfg(feature = "download")]
mod download;
mod globals;
mod hash;
mod init;
mod mapped;
mod parsed;
mod pickle;
mod pth_legacy;
mod pth_zip;
mod published;
mod rename;
mod safetensors;
mod source;
mod state_dict;
mod stored;
mod verify;
mod write;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};

pub use cache::{Fetcher, Network, fetch};
pub use hash::{sha256, verify_hash};
pub use published::PublishedWeights;
pub use source::{CheckpointSource, LoadReport, Loading, RandomSource};
pub use stored::StoredDType;
pub use write::{Precision, Written, write_safetensors};

use crate::error::{Error, Result};
use mapped::Mapped;
use parsed::{Parsed, Stored};

/// Elements that views may have in excess of what lies in the file, before the file is refused.
///
/// A view can repeat its elements without end (stride 0), so that a file of a kilobyte could ask for
/// any amount of memory.
const MAX_REPEATED: usize = 1 << 24;
/// Times that the elements of a file may be used by several tensors.
const MAX_SHARED: usize = 16;

/// Format of a weight file, recognised by content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Safetensors.
    Safetensors,
    /// A PyTorch checkpoint as written since version 1.6: a zip archive.
    PthZip,
    /// A PyTorch checkpoint as written before: pickles, then raw storages.
    PthLegacy,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Safetensors => "safetensors",
            Self::PthZip => "PyTorch checkpoint (zip)",
            Self::PthLegacy => "PyTorch checkpoint (legacy)",
        })
    }
}

/// What is known of a tensor without loading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo<'a> {
    /// Name, by torchvision's naming of today.
    pub name: &'a str,
    /// Sizes of the axes.
    pub shape: &'a [usize],
    /// Type of the elements in the file.
    pub dtype: StoredDType,
}

/// An open weight file.
///
/// The file is mapped, not read: opening looks at names and shapes only, and [`Self::tensor`]
/// converts from the mapped bytes straight into the result. The file must not be changed in place
/// while it is open; replacing it by renaming another over it is fine.
///
/// # Example
/// ```no_run
/// use candle_core::{DType, Device};
/// use candle_detection::checkpoint::Checkpoint;
///
/// let checkpoint = Checkpoint::open("maskrcnn_resnet50_fpn_coco-bf2d0c1e.pth".as_ref())?;
/// for tensor in checkpoint.tensors() {
///     println!("{} {:?} {}", tensor.name, tensor.shape, tensor.dtype);
/// }
/// let bias = checkpoint.tensor("rpn.head.cls_logits.bias", DType::F32, &Device::Cpu)?;
/// # Ok::<(), candle_detection::Error>(())
/// ```
pub struct Checkpoint {
    path: PathBuf,
    file: Mapped,
    format: Format,
    wrapper: Option<String>,
    prefix: Option<String>,
    renamed: usize,
    ignored: Vec<String>,
    tensors: BTreeMap<String, Stored>,
}

impl Checkpoint {
    /// Opens a safetensors file or a PyTorch checkpoint, whatever its name ends in.
    ///
    /// The state dict of a PyTorch checkpoint may be the whole of it, or lie under `model`,
    /// `state_dict` or `model_state_dict`, also one in another. A prefix `module.` or `model.` that
    /// all names have is stripped, and names of 2019 become today's.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::CheckpointFormat`] with the first bytes of the file: it is something
    /// else, damaged, refers to Python globals other than those of tensors, or two of its names
    /// become one.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, None)
    }

    /// Opens a PyTorch checkpoint whose state dict lies under `key`, such as `model_ema`, or
    /// `ema.module` for a dict in a dict. For the rest, see [`Self::open`].
    ///
    /// # Errors
    /// As [`Self::open`], also when nothing lies under `key`.
    pub fn open_under(path: &Path, key: &str) -> Result<Self> {
        Self::open_with(path, Some(key))
    }

    fn open_with(path: &Path, key: Option<&str>) -> Result<Self> {
        let file = Mapped::open(path)?;
        Self::read(path, &file, key).map_err(|problem| Error::CheckpointFormat {
            path: path.to_owned(),
            problem: format!(
                "{problem} ({})",
                mapped::describe(file.bytes().len() as u64, file.bytes())
            ),
        })
    }

    fn read(path: &Path, file: &Mapped, key: Option<&str>) -> Result<Self, String> {
        let bytes = file.bytes();
        let parsed = if pth_zip::recognises(bytes) {
            pth_zip::parse(file, key)?
        } else if safetensors::recognises(bytes) {
            if let Some(key) = key {
                return Err(format!("a safetensors file has no dicts, so none under `{key}`"));
            }
            safetensors::parse(file)?
        } else if pth_legacy::recognises(bytes) {
            pth_legacy::parse(file, key)?
        } else {
            return Err("its content is not recognised".to_owned());
        };
        let Parsed { format, wrapper, ignored, tensors } = parsed;
        check_repetition(
            bytes.len(),
            tensors.iter().map(|tensor| tensor.tensor.layout.elements()),
        )?;
        let tensors = tensors.into_iter().map(|tensor| (tensor.name, tensor.tensor)).collect();
        let rename::Renamed { tensors, prefix, count } = rename::rename(tensors)?;
        Ok(Self {
            path: path.to_owned(),
            file: file.clone(),
            format,
            wrapper,
            prefix,
            renamed: count,
            ignored,
            tensors,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The format that was recognised.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Dotted path of the state dict in the checkpoint; `None` when it is the whole checkpoint.
    pub fn wrapper(&self) -> Option<&str> {
        self.wrapper.as_deref()
    }

    /// The prefix that all names had and that was stripped.
    pub fn prefix(&self) -> Option<&str> {
        self.prefix.as_deref()
    }

    /// How many names of 2019 were replaced by today's.
    pub fn renamed(&self) -> usize {
        self.renamed
    }

    /// Keys of entries of the state dict that are no tensors, and are left out.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// All tensors, by ascending name.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo<'_>> {
        self.tensors.iter().map(|(name, stored)| info(name, stored))
    }

    /// What is known of the tensor called `name`.
    pub fn get(&self, name: &str) -> Option<TensorInfo<'_>> {
        self.tensors.get_key_value(name).map(|(name, stored)| info(name, stored))
    }

    /// Loads one tensor, contiguous and with its elements converted to `dtype`.
    ///
    /// Floats are rounded to nearest. Integers and bools, which no weight is, are converted by value
    /// and clamped to the range of `dtype`.
    ///
    /// # Errors
    /// [`Error::CheckpointFormat`] when the file has no such tensor or its compressed bytes are
    /// damaged; [`Error::Candle`] when the device fails or `dtype` is neither a float nor a plain
    /// integer.
    pub fn tensor(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        let stored = self.tensors.get(name).ok_or_else(|| self.damaged(name, "it is missing"))?;
        let bytes = self.bytes_of(name, stored)?;
        let tensor = stored::decode(bytes, stored.dtype, &stored.layout, dtype, device)?;
        self.file.release(bytes);
        Ok(tensor)
    }

    fn bytes_of<'a>(&'a self, name: &str, stored: &'a Stored) -> Result<&'a [u8]> {
        stored.data.bytes(&self.file).map_err(|problem| self.damaged(name, &problem))
    }

    fn damaged(&self, name: &str, problem: &str) -> Error {
        Error::CheckpointFormat {
            path: self.path.clone(),
            problem: format!("tensor `{name}`: {problem}"),
        }
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint")
            .field("path", &self.path)
            .field("format", &self.format)
            .field("wrapper", &self.wrapper)
            .field("prefix", &self.prefix)
            .field("renamed", &self.renamed)
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

/// Whether a tensor is a counter of batch norm, which means nothing to inference.
pub(crate) fn is_counter(name: &str) -> bool {
    name.rsplit('.').next() == Some("num_batches_tracked")
}

fn info<'a>(name: &'a str, stored: &'a Stored) -> TensorInfo<'a> {
    TensorInfo { name, shape: stored.layout.shape(), dtype: stored.dtype }
}

fn check_repetition(bytes: usize, elements: impl Iterator<Item = usize>) -> Result<(), String> {
    let limit = bytes.saturating_mul(MAX_SHARED).saturating_add(MAX_REPEATED);
    let total = elements.fold(0usize, usize::saturating_add);
    if total > limit {
        return Err(format!(
            "its tensors have {total} elements together, which {bytes} bytes can only hold by repeating them"
        ));
    }
    Ok(())
}
