//! The names that a pickle may mention. Anything else is refused, and nothing is ever executed.

use super::stored::StoredDType;

/// What a name of Python stands for in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    /// A mapping, called with nothing or with its entries.
    Mapping,
    /// A type of storage, in the reference to one.
    Storage(StoredDType),
    /// Makes a tensor of a storage, offset, shape and strides.
    RebuildTensor,
    /// Makes a parameter of a tensor, which then is that tensor.
    RebuildParameter,
    /// Data that training checkpoints carry beside the weights. It is kept as an opaque value.
    Inert,
}

const ALLOWED: &[(&str, &str, Global)] = &[
    ("collections", "OrderedDict", Global::Mapping),
    ("torch._utils", "_rebuild_tensor", Global::RebuildTensor),
    ("torch._utils", "_rebuild_tensor_v2", Global::RebuildTensor),
    ("torch._utils", "_rebuild_parameter", Global::RebuildParameter),
    ("torch._utils", "_rebuild_parameter_with_state", Global::RebuildParameter),
    ("torch", "DoubleStorage", Global::Storage(StoredDType::F64)),
    ("torch", "FloatStorage", Global::Storage(StoredDType::F32)),
    ("torch", "HalfStorage", Global::Storage(StoredDType::F16)),
    ("torch", "BFloat16Storage", Global::Storage(StoredDType::BF16)),
    ("torch", "LongStorage", Global::Storage(StoredDType::I64)),
    ("torch", "IntStorage", Global::Storage(StoredDType::I32)),
    ("torch", "ShortStorage", Global::Storage(StoredDType::I16)),
    ("torch", "CharStorage", Global::Storage(StoredDType::I8)),
    ("torch", "ByteStorage", Global::Storage(StoredDType::U8)),
    ("torch", "BoolStorage", Global::Storage(StoredDType::Bool)),
    // The state of optimizers, and of schedulers with milestones.
    ("collections", "defaultdict", Global::Mapping),
    ("collections", "Counter", Global::Inert),
    // Arguments of the training script.
    ("argparse", "Namespace", Global::Inert),
    ("torch", "device", Global::Inert),
    ("torch", "Size", Global::Inert),
    ("torch", "float64", Global::Inert),
    ("torch", "float32", Global::Inert),
    ("torch", "float16", Global::Inert),
    ("torch", "bfloat16", Global::Inert),
];

/// Looks a name up.
///
/// # Errors
/// A sentence that names the global, when it is not on the list.
pub(super) fn resolve(module: &str, name: &str) -> Result<Global, String> {
    ALLOWED
        .iter()
        .find(|(allowed_module, allowed_name, _)| *allowed_module == module && *allowed_name == name)
        .map(|(_, _, global)| *global)
        .ok_or_else(|| {
            format!(
                "its pickle refers to `{module}.{name}`, which weights don't need and which is never executed; save a plain state dict of tensors instead"
            )
        })
}
