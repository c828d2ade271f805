use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{Device, Tensor};

use super::{OP, PixelSource, ResizeNormalizeParams};
use crate::error::Result;
use crate::ops::support::cuda::{
    Grid, RESIZE_NORMALIZE, for_dtype, launch, of, output, pointer, upload,
};

/// The most blocks of a launch in y; a taller canvas is served by fewer blocks than it has rows.
const MAX_ROWS: usize = 65_535;

#[repr(C)]
#[derive(Clone, Copy)]
struct Canvas {
    pixels: u64,
    out: u64,
    height: u32,
    width: u32,
    resized_height: u32,
    resized_width: u32,
    padded_height: u32,
    padded_width: u32,
    mean: [f32; 3],
    std: [f32; 3],
}

// SAFETY: plain numbers in C's order, without padding; the twin is in kernel.cu.
unsafe impl DeviceRepr for Canvas {}

/// Brings the bytes of all images to the device in one copy, and makes the batch `[N, padded.0, padded.1, 3]`.
pub(super) fn run(
    images: &[PixelSource<'_>],
    params: &ResizeNormalizeParams,
    device: &Device,
) -> Result<Tensor> {
    let device = of(OP, device)?;
    let (padded_height, padded_width) = params.padded;
    let shape = (images.len(), padded_height, padded_width, 3);
    let (batch, out) = output(device, params.dtype, shape)?;
    let pieces: Vec<&[u8]> = images.iter().filter_map(PixelSource::bytes).collect();
    let uploaded = if pieces.is_empty() { None } else { Some(upload(device, &pieces)?) };
    let mut next_bytes = uploaded.as_ref().map_or(0, |bytes| bytes.pointer());
    let canvas_bytes = padded_height * padded_width * 3 * params.dtype.size_in_bytes();
    let grid = Grid::over_rows(padded_width, padded_height.min(MAX_ROWS));
    for (i, (image, resized)) in images.iter().zip(&params.resized).enumerate() {
        let canvas = |pixels: u64, (height, width): (usize, usize)| Canvas {
            pixels,
            out: out + (i * canvas_bytes) as u64,
            height: height as u32,
            width: width as u32,
            resized_height: resized.0 as u32,
            resized_width: resized.1 as u32,
            padded_height: padded_height as u32,
            padded_width: padded_width as u32,
            mean: params.mean,
            std: params.std,
        };
        match image {
            PixelSource::Rgb8 { bytes, height, width } => {
                let canvas = canvas(next_bytes, (*height, *width));
                next_bytes += bytes.len() as u64;
                let kernel = for_dtype!("resize_normalize_bytes", params.dtype);
                launch!(device, RESIZE_NORMALIZE, kernel, grid, canvas);
            }
            PixelSource::Resident(bytes) => {
                let bytes = bytes.contiguous()?;
                let (height, width, _) = bytes.dims3()?;
                let canvas = canvas(pointer::<u8>(&bytes)?, (height, width));
                let kernel = for_dtype!("resize_normalize_bytes", params.dtype);
                launch!(device, RESIZE_NORMALIZE, kernel, grid, canvas);
            }
            PixelSource::Planar(planes) => {
                let planes = planes.contiguous()?;
                let (_, height, width) = planes.dims3()?;
                let canvas = canvas(pointer::<f32>(&planes)?, (height, width));
                let kernel = for_dtype!("resize_normalize_planes", params.dtype);
                launch!(device, RESIZE_NORMALIZE, kernel, grid, canvas);
            }
        }
    }
    Ok(batch)
}

impl<'a> PixelSource<'a> {
    /// Pixels that are in host memory.
    fn bytes(&self) -> Option<&'a [u8]> {
        match self {
            PixelSource::Rgb8 { bytes, .. } => Some(bytes),
            PixelSource::Resident(_) | PixelSource::Planar(_) => None,
        }
    }
}
