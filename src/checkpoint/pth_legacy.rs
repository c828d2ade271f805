//! PyTorch checkpoints as they were written before version 1.6: five pickles, then the storages.
//!
//! The pickles are a magic number, the version of the format, facts about the machine, the
//! checkpoint itself, and the keys of the storages in the order in which they follow. Each storage
//! is its number of elements (64 bits) and then the elements, all little-endian.

use std::collections::HashMap;

use super::Format;
use super::mapped::Mapped;
use super::parsed::{Data, Parsed, ParsedTensor, Stored};
use super::pickle::{Pickle, Value};
use super::state_dict::{self, StorageRef};

/// 0x1950a86a20f9469cfc6c, little-endian: the first pickle.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
const VERSION: i64 = 1001;

/// Whether `bytes` begin with a pickle.
pub(super) fn recognises(bytes: &[u8]) -> bool {
    matches!(bytes, [0x80, 1..=5, ..])
}

/// Reads all but the storages, whose places it notes.
pub(super) fn parse(file: &Mapped, key: Option<&str>) -> Result<Parsed, String> {
    let bytes = file.bytes();
    let mut at = 0;
    let mut next = || {
        let pickle = Pickle::read(&bytes[at..])?;
        at += pickle.length;
        Ok::<_, String>(pickle)
    };

    let not_torch =
        "it is a pickle, but not one that PyTorch wrote; save a state dict with torch.save";
    match next().map_err(|problem| format!("{not_torch}: {problem}"))?.root() {
        Value::BigInt(number) if *number == MAGIC => {}
        _ => return Err(not_torch.to_owned()),
    }
    match next()?.root() {
        Value::Int(VERSION) => {}
        Value::Int(version) => {
            return Err(format!("version {version} of the legacy format, expected {VERSION}"));
        }
        _ => return Err("the version of the legacy format is no number".to_owned()),
    }
    check_machine(&next()?)?;
    let checkpoint = next()?;
    let keys = next()?;
    let state = state_dict::find(&checkpoint, key)?;
    let storages = locate(bytes, at, &keys, &references(&checkpoint)?)?;

    let mut tensors = Vec::new();
    for tensor in state.tensors {
        let StorageRef { key, stored, view: (first, length), .. } = tensor.storage;
        let data = storages
            .get(key)
            .ok_or_else(|| format!("tensor `{}`: its storage `{key}` is missing", tensor.name))?;
        let size = stored.size_in_bytes();
        tensors.push(ParsedTensor {
            name: tensor.name.to_owned(),
            tensor: Stored {
                dtype: stored,
                layout: tensor.layout,
                data: data.part(first * size, length * size),
            },
        });
    }
    Ok(Parsed {
        format: Format::PthLegacy,
        wrapper: state.wrapper,
        ignored: state.ignored,
        tensors,
    })
}

fn check_machine(pickle: &Pickle<'_>) -> Result<(), String> {
    let Value::Dict(facts) = pickle.root() else {
        return Err("the facts about the machine that wrote it are no dict".to_owned());
    };
    for (name, value) in facts {
        if let (Value::Str("little_endian"), Value::Bool(false)) =
            (pickle.get(*name), pickle.get(*value))
        {
            return Err(
                "it was written by a big-endian machine; save it on a little-endian one".to_owned()
            );
        }
    }
    Ok(())
}

/// All storages that the checkpoint mentions, also outside its state dict: their types are needed
/// to step over them.
fn references<'a>(pickle: &Pickle<'a>) -> Result<HashMap<&'a str, StorageRef<'a>>, String> {
    let mut found: HashMap<&str, StorageRef<'_>> = HashMap::new();
    for value in pickle.values() {
        if let Value::Persistent(id) = value {
            let new = state_dict::storage_ref(pickle, *id)?;
            let known = found.entry(new.key).or_insert(new);
            if (known.stored, known.elements) != (new.stored, new.elements) {
                return Err(format!("storage `{}` is referred to in two ways", new.key));
            }
        }
    }
    Ok(found)
}

fn locate<'a>(
    bytes: &[u8],
    mut at: usize,
    keys: &Pickle<'a>,
    references: &HashMap<&str, StorageRef<'_>>,
) -> Result<HashMap<&'a str, Data>, String> {
    let Value::List(list) = keys.root() else {
        return Err("the list of its storages is missing".to_owned());
    };
    let mut storages = HashMap::new();
    for key in list {
        let Value::Str(key) = keys.get(*key) else {
            return Err("the key of a storage is not a string".to_owned());
        };
        let reference = references.get(key).ok_or_else(|| {
            format!("its storage `{key}` belongs to nothing, so its type is unknown")
        })?;
        let early = || format!("it stops early: its storage `{key}` is cut or missing");
        let count = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()).ok_or_else(early)?;
        let count = u64::from_le_bytes(*count);
        if count != reference.elements as u64 {
            return Err(format!(
                "its storage `{key}` has {count} elements, expected {}",
                reference.elements
            ));
        }
        let start = at + size_of::<u64>();
        let end = reference
            .elements
            .checked_mul(reference.stored.size_in_bytes())
            .and_then(|length| start.checked_add(length))
            .filter(|end| *end <= bytes.len())
            .ok_or_else(early)?;
        storages.insert(*key, Data::Mapped(start..end));
        at = end;
    }
    Ok(storages)
}
