use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{CudaDevice, Device, Tensor};

use super::{HostArray, OP};
use crate::error::Result;
use crate::ops::support::cuda::{Grid, Output, Table, UPLOAD_ARRAYS, launch, of, upload};

/// Bytes of a word, which is what the kernel moves.
const WORD: usize = 4;

/// First word of each array in what was uploaded; the twin is in kernel.cu.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Starts([u32; Table::CAPACITY]);

// SAFETY: plain 32-bit numbers.
unsafe impl DeviceRepr for Starts {}

pub(super) fn run(arrays: &[HostArray<'_>], device: &Device) -> Result<Vec<Tensor>> {
    let gpu = of(OP, device)?;
    let bytes: Vec<Vec<u8>> = arrays.iter().map(words).collect();
    let pieces: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
    let uploaded = upload(gpu, &pieces)?;
    let mut tensors = Vec::with_capacity(arrays.len());
    let mut start = 0;
    for arrays in arrays.chunks(Table::CAPACITY) {
        let mut starts = Starts::default();
        let mut entries = Vec::with_capacity(arrays.len());
        for (place, array) in arrays.iter().enumerate() {
            let (tensor, address) = room(gpu, array)?;
            let words = word_count(array);
            starts.0[place] = start;
            start += words as u32;
            entries.push((address, words));
            tensors.push(tensor);
        }
        let longest = entries.iter().map(|(_, words)| *words).max().unwrap_or(0);
        let grid = Grid::over_rows(longest, entries.len());
        let table = Table::new(entries);
        launch!(gpu, UPLOAD_ARRAYS, "upload_arrays", grid, uploaded.pointer(), table, starts);
    }
    Ok(tensors)
}

fn word_count(array: &HostArray<'_>) -> usize {
    match array {
        HostArray::U8(values) => values.len().div_ceil(WORD),
        HostArray::F32(_) | HostArray::U32(_) => array.len(),
    }
}

/// The bytes of an array, filled up to whole words.
fn words(array: &HostArray<'_>) -> Vec<u8> {
    let mut bytes: Vec<u8> = match array {
        HostArray::F32(values) => values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
        HostArray::U32(values) => values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
        HostArray::U8(values) => values.to_vec(),
    };
    bytes.resize(bytes.len().next_multiple_of(WORD), 0);
    bytes
}

/// A tensor for an array, with room for whole words, and its address.
fn room(device: &CudaDevice, array: &HostArray<'_>) -> Result<(Tensor, u64)> {
    let n = array.len();
    Ok(match array {
        HostArray::F32(_) => {
            let room = Output::<f32>::new(device, n)?;
            let address = room.pointer();
            (room.into_tensor(n), address)
        }
        HostArray::U32(_) => {
            let room = Output::<u32>::new(device, n)?;
            let address = room.pointer();
            (room.into_tensor(n), address)
        }
        HostArray::U8(_) => {
            let room = Output::<u8>::new(device, n.next_multiple_of(WORD))?;
            let address = room.pointer();
            (room.into_tensor(n), address)
        }
    })
}
