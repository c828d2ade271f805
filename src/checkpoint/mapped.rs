//! A file as bytes, mapped into memory, and how to describe its beginning.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::error::{Error, Result};

/// How many bytes of a file an error quotes.
const QUOTED: usize = 16;

/// A whole file in memory; clones share the mapping.
#[derive(Clone)]
pub(super) struct Mapped(Arc<Mmap>);

impl Mapped {
    /// Maps `path`. An empty file, or anything that is not a plain file, is refused.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        let refusal = if !metadata.is_file() {
            Some("it is not a plain file")
        } else if metadata.len() == 0 {
            Some("the file is empty, 0 bytes")
        } else {
            None
        };
        if let Some(problem) = refusal {
            return Err(Error::CheckpointFormat {
                path: path.to_owned(),
                problem: problem.to_owned(),
            });
        }
        // SAFETY: the map is read only and private to this process, and every access goes through
        // the bounds of its slice. Like every mapped reader, this relies on nobody shortening the
        // file while it is mapped; `write_safetensors` and the downloader replace files by renaming,
        // which leaves the mapped inode alone.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Self(Arc::new(map)))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Lets go of the memory behind `bytes`, a part of the file that won't be read again soon; reading it again brings it
    /// back. Without, a process would hold all of a file besides what it makes of it.
    pub(super) fn release(&self, bytes: &[u8]) {
        #[cfg(unix)]
        {
            const PAGE: usize = 4096;
            let whole = self.0.as_ptr_range();
            let part = bytes.as_ptr_range();
            if part.start < whole.start || part.end > whole.end {
                return;
            }
            // Whole pages only, as neighbours may still be needed.
            let start = (part.start as usize - whole.start as usize).next_multiple_of(PAGE);
            let end = (part.end as usize - whole.start as usize) / PAGE * PAGE;
            if start < end {
                let advice = memmap2::UncheckedAdvice::DontNeed;
                // SAFETY: the map is read only and backed by a file, so that its pages come back from there with the
                // same bytes. A refusal does no harm.
                let _ = unsafe { self.0.unchecked_advise_range(advice, start, end - start) };
            }
        }
        #[cfg(not(unix))]
        let _ = bytes;
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Length and first bytes of a file, and what they look like, for an error about it. `bytes` is the
/// file, or its beginning.
pub(super) fn describe(length: u64, bytes: &[u8]) -> String {
    let head = &bytes[..bytes.len().min(QUOTED)];
    let hex: Vec<String> = head.iter().map(|byte| format!("{byte:02x}")).collect();
    let text: String = head
        .iter()
        .map(|&byte| if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '.' })
        .collect();
    format!(
        "the file has {length} bytes and begins with {} `{text}`{}",
        hex.join(" "),
        guess(bytes)
    )
}

/// Names the things that are most often found in place of weights.
fn guess(bytes: &[u8]) -> &'static str {
    let head = bytes[..bytes.len().min(512)].to_ascii_lowercase();
    let text = head.trim_ascii_start();
    if text.starts_with(b"<!doctype") || text.starts_with(b"<html") || text.starts_with(b"<?xml") {
        ": a web page, so the address needs a login or is wrong"
    } else if text.starts_with(b"version https://git-lfs") {
        ": a pointer of Git LFS, so fetch the content with `git lfs pull`"
    } else if head.starts_with(&[0x1f, 0x8b]) {
        ": a gzip archive, so unpack it first"
    } else if head.get(257..262) == Some(b"ustar") {
        ": a tar archive, so unpack it first"
    } else {
        ""
    }
}
