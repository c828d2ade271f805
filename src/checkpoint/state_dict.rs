//! Finds the state dict in a pickle, and what its tensors are made of.

use super::globals::Global;
use super::pickle::{Id, Pickle, Value};
use super::stored::{Layout, StoredDType};

/// Keys under which training scripts keep the state dict, in order of preference.
const WRAPPERS: [&str; 3] = ["model", "state_dict", "model_state_dict"];
/// Wrappers inside wrappers that are followed; also ends the search in a dict that holds itself.
const MAX_WRAPPERS: usize = 4;
/// Keys that an error lists.
const LISTED: usize = 10;

/// The tensors of a checkpoint, not yet connected with the bytes of their storages.
#[derive(Debug)]
pub(super) struct StateDict<'a> {
    /// Dotted path of the dict in the checkpoint; `None` when the checkpoint is the dict.
    pub(super) wrapper: Option<String>,
    pub(super) tensors: Vec<StateTensor<'a>>,
    /// Keys of entries that are no tensors.
    pub(super) ignored: Vec<String>,
}

/// One tensor.
#[derive(Debug)]
pub(super) struct StateTensor<'a> {
    pub(super) name: &'a str,
    pub(super) storage: StorageRef<'a>,
    pub(super) layout: Layout,
}

/// A reference to a storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StorageRef<'a> {
    pub(super) key: &'a str,
    pub(super) stored: StoredDType,
    /// In the storage as it lies in the file.
    pub(super) elements: usize,
    /// Part of the storage that is meant: first element and number of elements.
    pub(super) view: (usize, usize),
}

/// Finds the state dict under `key` (a dotted path), or else under the usual wrappers.
///
/// # Errors
/// A sentence that says what is wrong.
pub(super) fn find<'a>(pickle: &Pickle<'a>, key: Option<&str>) -> Result<StateDict<'a>, String> {
    let mut dict = match pickle.root() {
        Value::Dict(entries) => entries,
        other => return Err(format!("it holds {} in place of a state dict", other.kind())),
    };
    let mut wrapper: Vec<&str> = Vec::new();
    if let Some(key) = key {
        for part in key.split('.') {
            dict = child(pickle, dict, part).ok_or_else(|| {
                format!("it has no dict under `{key}`; its keys are {}", list_keys(pickle, dict))
            })?;
            wrapper.push(part);
        }
    } else {
        while let Some((name, inner)) = wrapped(pickle, dict) {
            if wrapper.len() == MAX_WRAPPERS {
                return Err(format!("it has more than {MAX_WRAPPERS} wrappers inside each other"));
            }
            dict = inner;
            wrapper.push(name);
        }
    }

    let mut tensors = Vec::new();
    let mut ignored = Vec::new();
    for (key, value) in dict {
        match (pickle.get(*key), pickle.get(*value)) {
            (Value::Str(name), Value::Call(global, arguments)) if is_tensor(*global) => {
                let tensor = rebuild(pickle, *global, *arguments)
                    .map_err(|problem| format!("tensor `{name}`: {problem}"))?;
                tensors.push(StateTensor { name, storage: tensor.0, layout: tensor.1 });
            }
            (Value::Str(name), _) => ignored.push((*name).to_owned()),
            (key, _) => ignored.push(format!("({})", key.kind())),
        }
    }
    if tensors.is_empty() {
        return Err(format!(
            "no state dict was found in it: none of its tensors lies at the top or under {}; its keys are {}",
            WRAPPERS.map(|name| format!("`{name}`")).join(", "),
            list_keys(pickle, dict)
        ));
    }
    let wrapper = (!wrapper.is_empty()).then(|| wrapper.join("."));
    Ok(StateDict { wrapper, tensors, ignored })
}

type Entries = Vec<(Id, Id)>;

fn child<'p>(pickle: &'p Pickle<'_>, dict: &Entries, name: &str) -> Option<&'p Entries> {
    dict.iter().find_map(|(key, value)| match (pickle.get(*key), pickle.get(*value)) {
        (Value::Str(key), Value::Dict(entries)) if *key == name => Some(entries),
        _ => None,
    })
}

/// The first usual wrapper in `dict` that leads to tensors. A dict of the configuration may have
/// the same name, hence the look inside.
fn wrapped<'p>(pickle: &'p Pickle<'_>, dict: &Entries) -> Option<(&'static str, &'p Entries)> {
    WRAPPERS.iter().find_map(|name| {
        let inner = child(pickle, dict, name)?;
        let leads = inner.iter().any(|(key, value)| match (pickle.get(*key), pickle.get(*value)) {
            (_, Value::Call(global, _)) => is_tensor(*global),
            (Value::Str(key), Value::Dict(_)) => WRAPPERS.contains(key),
            _ => false,
        });
        leads.then_some((*name, inner))
    })
}

fn is_tensor(global: Global) -> bool {
    matches!(global, Global::RebuildTensor | Global::RebuildParameter)
}

fn list_keys(pickle: &Pickle<'_>, dict: &Entries) -> String {
    let names: Vec<String> = dict
        .iter()
        .take(LISTED)
        .map(|(key, value)| match pickle.get(*key) {
            Value::Str(name) => format!("`{name}` ({})", pickle.get(*value).kind()),
            other => other.kind().to_owned(),
        })
        .collect();
    match (names.len(), dict.len().saturating_sub(LISTED)) {
        (0, _) => "none".to_owned(),
        (_, 0) => names.join(", "),
        (_, more) => format!("{} and {more} more", names.join(", ")),
    }
}

/// Interprets the call that makes a tensor.
fn rebuild<'a>(
    pickle: &Pickle<'a>,
    mut global: Global,
    mut arguments: Id,
) -> Result<(StorageRef<'a>, Layout), String> {
    if global == Global::RebuildParameter {
        match arguments_of(pickle, arguments).first().map(|id| pickle.get(*id)) {
            Some(Value::Call(inner, inner_arguments)) => {
                (global, arguments) = (*inner, *inner_arguments);
            }
            _ => return Err("a parameter without a tensor".to_owned()),
        }
    }
    if global != Global::RebuildTensor {
        return Err("a parameter inside a parameter".to_owned());
    }
    let items = arguments_of(pickle, arguments);
    let [storage, offset, shape, strides, rest @ ..] = items else {
        return Err(format!("{} arguments in place of at least 4", items.len()));
    };
    // The seventh argument of version 2 marks conjugated or negated views, which no weight is.
    if let Some(Value::Dict(marks)) = rest.get(2).map(|id| pickle.get(*id))
        && !marks.is_empty()
    {
        return Err("it is a lazily negated or conjugated view".to_owned());
    }
    let storage = stored(pickle, *storage)?;
    let layout = Layout::strided(
        sizes(pickle, *shape, "shape")?,
        sizes(pickle, *strides, "strides")?,
        size(pickle, *offset, "offset")?,
        storage.view.1,
    )?;
    Ok((storage, layout))
}

fn arguments_of<'p>(pickle: &'p Pickle<'_>, id: Id) -> &'p [Id] {
    match pickle.get(id) {
        Value::Tuple(items) => items,
        _ => &[],
    }
}

fn size(pickle: &Pickle<'_>, id: Id, what: &str) -> Result<usize, String> {
    match pickle.get(id) {
        Value::Int(value) => usize::try_from(*value)
            .map_err(|_| format!("its {what} is {value}, expected a number from 0")),
        other => Err(format!("its {what} is {}, expected an integer", other.kind())),
    }
}

fn sizes(pickle: &Pickle<'_>, id: Id, what: &str) -> Result<Vec<usize>, String> {
    match pickle.get(id) {
        Value::Tuple(items) => items.iter().map(|id| size(pickle, *id, what)).collect(),
        // `torch.Size` around a tuple.
        Value::Call(Global::Inert, arguments) => match arguments_of(pickle, *arguments) {
            [inner] if matches!(pickle.get(*inner), Value::Tuple(_)) => sizes(pickle, *inner, what),
            _ => Err(format!("its {what} is no tuple")),
        },
        other => Err(format!("its {what} is {}, expected a tuple", other.kind())),
    }
}

fn stored<'a>(pickle: &Pickle<'a>, id: Id) -> Result<StorageRef<'a>, String> {
    match pickle.get(id) {
        Value::Persistent(id) => storage_ref(pickle, *id),
        other => Err(format!("its storage is {}", other.kind())),
    }
}

/// Interprets the reference to a storage: `("storage", type, key, device, elements[, view])`.
pub(super) fn storage_ref<'a>(pickle: &Pickle<'a>, id: Id) -> Result<StorageRef<'a>, String> {
    let broken = || "a reference to a storage is not understood".to_owned();
    let [kind, stored, key, _device, elements, rest @ ..] = arguments_of(pickle, id) else {
        return Err(broken());
    };
    let (Value::Str("storage"), Value::Global(Global::Storage(stored)), Value::Str(key)) =
        (pickle.get(*kind), pickle.get(*stored), pickle.get(*key))
    else {
        return Err(broken());
    };
    let elements = size(pickle, *elements, "number of stored elements")?;
    let view = match rest.first().map(|id| pickle.get(*id)) {
        None | Some(Value::None) => (0, elements),
        // A view of a storage: (its own key, first element, number of elements).
        Some(Value::Tuple(view)) if view.len() == 3 => {
            let first = size(pickle, view[1], "view offset")?;
            let length = size(pickle, view[2], "view size")?;
            if first.checked_add(length).is_none_or(|end| end > elements) {
                return Err(format!(
                    "a view of {length} elements from {first} on reaches beyond its storage `{key}` of {elements} elements"
                ));
            }
            (first, length)
        }
        Some(_) => return Err(broken()),
    };
    Ok(StorageRef { key, stored: *stored, elements, view })
}
