//! PyTorch checkpoints since version 1.6: an archive of one pickle and one entry per storage.
//!
//! Storages that are not compressed, as PyTorch writes them, are used where they lie in the file. Their
//! checksums are not verified, which would cost a pass over the whole file; published files have a
//! hash of their own.

use std::collections::HashMap;
use std::io::Cursor;
use std::sync::{Arc, OnceLock};

use zip::{CompressionMethod, ZipArchive};

use super::Format;
use super::mapped::Mapped;
use super::parsed::{Data, Deflated, Parsed, ParsedTensor, Stored, read_entry};
use super::pickle::Pickle;
use super::state_dict::{self, StorageRef};

/// Deflate cannot shrink anything by more than this.
const MAX_DEFLATE_RATIO: u64 = 1032;
/// Largest pickle that is read: the names and shapes of a checkpoint are a few hundred kilobytes.
const MAX_PICKLE: usize = 256 << 20;

type Archive = ZipArchive<Cursor<Mapped>>;

/// Whether `bytes` begin with an entry of an archive.
pub(super) fn recognises(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK\x03\x04")
}

/// Reads the pickle, and notes the places of the storages.
pub(super) fn parse(file: &Mapped, key: Option<&str>) -> Result<Parsed, String> {
    let mut archive = ZipArchive::new(Cursor::new(file.clone()))
        .map_err(|error| format!("it begins as a zip archive, but is a damaged one ({error})"))?;
    let (root, pickle) = find_pickle(&archive)?;
    check_byte_order(&mut archive, file, &root)?;
    let size = claimed_size(&mut archive, file, pickle, "data.pkl")?;
    if size > MAX_PICKLE {
        return Err(format!("its data.pkl has {size} bytes, more than {MAX_PICKLE}"));
    }
    let pickle = read_entry(&mut archive, pickle, size)
        .map_err(|problem| format!("its data.pkl is damaged: {problem}"))?;
    let pickle = Pickle::read(&pickle)?;

    let state = state_dict::find(&pickle, key)?;
    let mut storages: HashMap<&str, (StorageRef<'_>, Data)> = HashMap::new();
    let mut tensors = Vec::new();
    for tensor in state.tensors {
        let new = tensor.storage;
        if new.view != (0, new.elements) {
            return Err(format!("tensor `{}`: a view of a storage, in an archive", tensor.name));
        }
        let data = match storages.get(new.key) {
            Some((known, data)) if *known == new => data.clone(),
            Some(_) => return Err(format!("storage `{}` is referred to in two ways", new.key)),
            None => {
                let data = locate(&mut archive, file, &root, new)
                    .map_err(|problem| format!("tensor `{}`: {problem}", tensor.name))?;
                storages.insert(new.key, (new, data.clone()));
                data
            }
        };
        tensors.push(ParsedTensor {
            name: tensor.name.to_owned(),
            tensor: Stored { dtype: new.stored, layout: tensor.layout, data },
        });
    }
    Ok(Parsed { format: Format::PthZip, wrapper: state.wrapper, ignored: state.ignored, tensors })
}

/// The folder of the archive that holds everything, and the index of its pickle.
fn find_pickle(archive: &Archive) -> Result<(String, usize), String> {
    let mut found = archive.file_names_raw().enumerate().filter_map(|(index, name)| {
        let root = std::str::from_utf8(name).ok()?.strip_suffix("/data.pkl")?;
        (!root.contains('/')).then(|| (root.to_owned(), index))
    });
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err("it is a zip archive without data.pkl, so not a checkpoint".to_owned()),
        (Some(_), Some(_)) => Err("it is a zip archive with more than one data.pkl".to_owned()),
    }
}

fn check_byte_order(archive: &mut Archive, file: &Mapped, root: &str) -> Result<(), String> {
    // Absent in older files, all of which are little-endian.
    let Some(index) = archive.index_for_name(&format!("{root}/byteorder")) else {
        return Ok(());
    };
    let size = claimed_size(archive, file, index, "byteorder")?.min(16);
    let order = read_entry(archive, index, size)
        .map_err(|problem| format!("its entry byteorder is damaged: {problem}"))?;
    match order.as_slice() {
        b"little" => Ok(()),
        b"big" => Err("it is big-endian; save it on a little-endian machine".to_owned()),
        other => Err(format!("its byte order is `{}`", other.escape_ascii())),
    }
}

/// The unpacked size of an entry, if it can be true.
fn claimed_size(
    archive: &mut Archive,
    file: &Mapped,
    index: usize,
    what: &str,
) -> Result<usize, String> {
    let entry = archive.by_index_raw(index).map_err(|error| format!("{what}: {error}"))?;
    if entry.encrypted() {
        return Err(format!("its entry {what} is encrypted"));
    }
    let packed = entry.compressed_size();
    let possible = match entry.compression() {
        CompressionMethod::Stored => packed,
        CompressionMethod::Deflated => packed.saturating_mul(MAX_DEFLATE_RATIO),
        other => return Err(format!("its entry {what} is compressed with {other}")),
    };
    if entry.size() > possible || packed > file.bytes().len() as u64 {
        return Err(format!(
            "its entry {what} claims {} bytes, which it cannot have",
            entry.size()
        ));
    }
    usize::try_from(entry.size()).map_err(|_| format!("its entry {what} overflows the memory"))
}

fn locate(
    archive: &mut Archive,
    file: &Mapped,
    root: &str,
    reference: StorageRef<'_>,
) -> Result<Data, String> {
    let name = format!("{root}/data/{}", reference.key);
    let index =
        archive.index_for_name(&name).ok_or_else(|| format!("its storage `{name}` is missing"))?;
    let size = claimed_size(archive, file, index, &name)?;
    if reference.elements.checked_mul(reference.stored.size_in_bytes()) != Some(size) {
        return Err(format!(
            "its storage `{name}` has {size} bytes, expected {} elements of {}",
            reference.elements, reference.stored
        ));
    }
    let entry = archive.by_index_raw(index).map_err(|error| format!("{name}: {error}"))?;
    if entry.compression() != CompressionMethod::Stored {
        drop(entry);
        let archive = archive.clone();
        return Ok(Data::Deflated(Arc::new(Deflated {
            archive,
            index,
            size,
            content: OnceLock::new(),
        })));
    }
    let start = entry.data_start().and_then(|start| usize::try_from(start).ok());
    let range = start.and_then(|start| Some(start..start.checked_add(size)?));
    match range {
        Some(range) if range.end <= file.bytes().len() => Ok(Data::Mapped(range)),
        _ => Err(format!("its storage `{name}` reaches beyond the file")),
    }
}
