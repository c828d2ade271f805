//! What every format is parsed into.

use std::io::{Cursor, Read};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use zip::ZipArchive;

use super::Format;
use super::mapped::Mapped;
use super::stored::{Layout, StoredDType};

/// A checkpoint whose names are still those of the file.
pub(super) struct Parsed {
    pub(super) format: Format,
    pub(super) wrapper: Option<String>,
    pub(super) ignored: Vec<String>,
    pub(super) tensors: Vec<ParsedTensor>,
}

/// A tensor of a file.
pub(super) struct ParsedTensor {
    pub(super) name: String,
    pub(super) tensor: Stored,
}

/// Everything needed to load one tensor.
pub(super) struct Stored {
    pub(super) dtype: StoredDType,
    pub(super) layout: Layout,
    pub(super) data: Data,
}

/// The bytes of a storage.
#[derive(Clone)]
pub(super) enum Data {
    /// They lie in the file as they are. The range is inside the file.
    Mapped(Range<usize>),
    /// They are compressed.
    Deflated(Arc<Deflated>),
}

impl Data {
    /// The bytes, decompressed when they are asked for first.
    pub(super) fn bytes<'a>(&'a self, file: &'a Mapped) -> Result<&'a [u8], String> {
        match self {
            Self::Mapped(range) => Ok(&file.bytes()[range.clone()]),
            Self::Deflated(entry) => entry.bytes(),
        }
    }

    /// `length` bytes from `start` on; only legacy files have views of storages.
    pub(super) fn part(&self, start: usize, length: usize) -> Self {
        match self {
            Self::Mapped(range) => Self::Mapped(range.start + start..range.start + start + length),
            Self::Deflated(entry) => Self::Deflated(entry.clone()),
        }
    }
}

/// A compressed entry of an archive. Several tensors may share it, so its content is kept.
pub(super) struct Deflated {
    pub(super) archive: ZipArchive<Cursor<Mapped>>,
    pub(super) index: usize,
    pub(super) size: usize,
    pub(super) content: OnceLock<Result<Vec<u8>, String>>,
}

impl Deflated {
    fn bytes(&self) -> Result<&[u8], String> {
        self.content
            .get_or_init(|| read_entry(&mut self.archive.clone(), self.index, self.size))
            .as_deref()
            .map_err(Clone::clone)
    }
}

/// Reads an entry of exactly `size` bytes; its checksum is verified on the way.
pub(super) fn read_entry(
    archive: &mut ZipArchive<Cursor<Mapped>>,
    index: usize,
    size: usize,
) -> Result<Vec<u8>, String> {
    let entry = archive.by_index(index).map_err(|error| error.to_string())?;
    // The claimed size was compared with the compressed one, so the allocation is in proportion.
    let mut content = Vec::with_capacity(size);
    let limit = size as u64 + 1;
    entry.take(limit).read_to_end(&mut content).map_err(|error| error.to_string())?;
    if content.len() != size {
        return Err(format!("an entry unpacks to {} bytes, expected {size}", content.len()));
    }
    Ok(content)
}
