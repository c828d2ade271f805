//! The safetensors format: a JSON header, then the tensors one after the other.

use safetensors::{Dtype, SafeTensors};

use super::Format;
use super::mapped::Mapped;
use super::parsed::{Data, Parsed, ParsedTensor, Stored};
use super::stored::{Layout, StoredDType};

/// Bytes of the number in front of the header.
const PREFIX: usize = 8;

/// Whether `bytes` begin as a safetensors file does.
pub(super) fn recognises(bytes: &[u8]) -> bool {
    // The header is at most 100 MB, so the upper four bytes of its length are zero.
    bytes.len() > PREFIX && bytes[4..PREFIX] == [0; 4] && bytes[PREFIX] == b'{'
}

/// Reads the header of a safetensors file.
pub(super) fn parse(file: &Mapped) -> Result<Parsed, String> {
    let (header, metadata) =
        SafeTensors::read_metadata(file.bytes()).map_err(|error| error.to_string())?;
    let base = PREFIX + header;
    let mut tensors = Vec::new();
    for (name, info) in metadata.tensors() {
        let dtype = stored_dtype(info.dtype)
            .ok_or_else(|| format!("tensor `{name}` has elements of type {:?}", info.dtype))?;
        let layout = Layout::contiguous(info.shape.clone())
            .ok_or_else(|| format!("tensor `{name}`: its shape {:?} overflows", info.shape))?;
        // `read_metadata` has checked that the ranges fit the shapes and fill the file.
        let range = base + info.data_offsets.0..base + info.data_offsets.1;
        tensors.push(ParsedTensor {
            name,
            tensor: Stored { dtype, layout, data: Data::Mapped(range) },
        });
    }
    Ok(Parsed { format: Format::Safetensors, wrapper: None, ignored: Vec::new(), tensors })
}

fn stored_dtype(dtype: Dtype) -> Option<StoredDType> {
    Some(match dtype {
        Dtype::F64 => StoredDType::F64,
        Dtype::F32 => StoredDType::F32,
        Dtype::F16 => StoredDType::F16,
        Dtype::BF16 => StoredDType::BF16,
        Dtype::I64 => StoredDType::I64,
        Dtype::I32 => StoredDType::I32,
        Dtype::I16 => StoredDType::I16,
        Dtype::I8 => StoredDType::I8,
        Dtype::U64 => StoredDType::U64,
        Dtype::U32 => StoredDType::U32,
        Dtype::U16 => StoredDType::U16,
        Dtype::U8 => StoredDType::U8,
        Dtype::BOOL => StoredDType::Bool,
        _ => return None,
    })
}
