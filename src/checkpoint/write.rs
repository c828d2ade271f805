//! Any checkpoint as a safetensors file.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::parsed::Stored;
use super::stored::{self, StoredDType};
use super::{Checkpoint, is_counter};
use crate::error::{Error, Result};

/// Type of the floats that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// Each tensor keeps its own.
    AsStored,
    /// 32-bit floats.
    F32,
    /// 16-bit floats, IEEE 754.
    F16,
    /// 16-bit floats with the exponent of 32-bit ones.
    BF16,
}

impl Precision {
    fn of(self, stored: StoredDType) -> StoredDType {
        match self {
            _ if !stored.is_float() => stored,
            Self::AsStored => stored,
            Self::F32 => StoredDType::F32,
            Self::F16 => StoredDType::F16,
            Self::BF16 => StoredDType::BF16,
        }
    }
}

/// What [`write_safetensors`] wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Number of tensors.
    pub tensors: usize,
    /// Types of their elements, the most frequent first.
    pub dtypes: Vec<StoredDType>,
    /// Size of the file.
    pub bytes: u64,
    /// Counters of batch norm, which were left out.
    pub dropped: Vec<String>,
}

/// Writes a checkpoint as a safetensors file with torchvision's names of today.
///
/// Floats are rounded to nearest; integers and bools keep their type. Counters of batch norm
/// (`num_batches_tracked`), which mean nothing to inference, are left out. The file appears at `path`
/// when it is complete, and not before; `path` may be that of the checkpoint.
///
/// # Errors
/// [`Error::Io`], or [`Error::CheckpointFormat`] when compressed bytes are damaged. Nothing is left
/// behind, and a file that was there before stays as it was.
pub fn write_safetensors(
    checkpoint: &Checkpoint,
    path: &Path,
    precision: Precision,
) -> Result<Written> {
    let mut kept: Vec<(&str, StoredDType, &Stored)> = Vec::new();
    let mut dropped = Vec::new();
    for (name, tensor) in &checkpoint.tensors {
        if is_counter(name) {
            dropped.push(name.clone());
        } else {
            kept.push((name, precision.of(tensor.dtype), tensor));
        }
    }
    // Wide elements first, so that every tensor is aligned.
    kept.sort_by_key(|(name, dtype, _)| (std::cmp::Reverse(dtype.size_in_bytes()), *name));

    let temporary = Temporary::beside(path);
    let io = |source| Error::Io { path: path.to_owned(), source };
    let file = File::create(&temporary.0)
        .map_err(|source| Error::Io { path: temporary.0.clone(), source })?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let header = header(&kept);
    let mut bytes = 8 + header.len() as u64;
    out.write_all(&(header.len() as u64).to_le_bytes()).map_err(io)?;
    out.write_all(header.as_bytes()).map_err(io)?;
    for (name, dtype, tensor) in &kept {
        let storage = checkpoint.bytes_of(name, tensor)?;
        let content = stored::converted_bytes(storage, tensor.dtype, &tensor.layout, *dtype);
        bytes += content.len() as u64;
        out.write_all(&content).map_err(io)?;
    }
    let file = out.into_inner().map_err(|error| io(error.into_error()))?;
    file.sync_all().map_err(io)?;
    drop(file);
    temporary.rename(path).map_err(io)?;
    let dtypes = by_frequency(kept.iter().map(|(_, dtype, _)| *dtype));
    Ok(Written { tensors: kept.len(), dtypes, bytes, dropped })
}

fn by_frequency(dtypes: impl Iterator<Item = StoredDType>) -> Vec<StoredDType> {
    let mut counts: Vec<(StoredDType, usize)> = Vec::new();
    for dtype in dtypes {
        match counts.iter_mut().find(|(known, _)| *known == dtype) {
            Some((_, count)) => *count += 1,
            None => counts.push((dtype, 1)),
        }
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts.into_iter().map(|(dtype, _)| dtype).collect()
}

/// A file that is removed unless it was renamed.
struct Temporary(PathBuf);

impl Temporary {
    fn beside(path: &Path) -> Self {
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{}.tmp", std::process::id()));
        Self(path.with_file_name(name))
    }

    fn rename(mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.0, path)?;
        self.0.clear();
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            // A failure has been reported already; a file that can't be removed is no news.
            let _ = fs::remove_file(&self.0);
        }
    }
}

/// The JSON in front of the tensors, padded so that these begin at a multiple of 8.
fn header(tensors: &[(&str, StoredDType, &Stored)]) -> String {
    let mut json = String::from(r#"{"__metadata__":{"format":"pt"}"#);
    let mut at = 0;
    for (name, dtype, tensor) in tensors {
        let end = at + tensor.layout.elements() * dtype.size_in_bytes();
        json.push_str(",\"");
        push_escaped(&mut json, name);
        json.push_str(&format!(
            r#"":{{"dtype":"{}","shape":{:?},"data_offsets":[{at},{end}]}}"#,
            dtype.to_string().to_uppercase(),
            tensor.layout.shape(),
        ));
        at = end;
    }
    json.push('}');
    while !json.len().is_multiple_of(8) {
        json.push(' ');
    }
    json
}

fn push_escaped(json: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '"' | '\\' => json.extend(['\\', character]),
            control if u32::from(control) < 0x20 => {
                json.push_str(&format!("\\u{:04x}", u32::from(control)));
            }
            other => json.push(other),
        }
    }
}
