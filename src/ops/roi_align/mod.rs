//! Pools a fixed grid of features from each box, from the pyramid level that suits the box's size.

mod backward;
mod cpu;
mod cpu_backward;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod cuda_backward;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Storage, Tensor};
use half::bf16;

use super::support::autograd::record;
use super::support::check::{argument, lend, unsupported};
use super::support::cpu::element::Element;
use crate::error::{Error, Result};

const OP: &str = "roi_align";

/// Added to a level before rounding down, so that a side of exactly 224 is not lost to rounding.
const LEVEL_EPSILON: f32 = 1e-6;

/// What [`roi_align`] needs to know besides features and boxes.
#[derive(Debug, Clone, PartialEq)]
pub struct RoiAlignParams {
    /// Cells per side of the result.
    pub output: usize,
    /// Samples per side of a cell.
    pub sampling: usize,
    /// Cells of a level per pixel of the resized image, powers of two, finest level first; see [`infer_spatial_scales`].
    pub spatial_scales: Vec<f32>,
    /// Side in pixels of a square box that belongs on [`canonical_level`](Self::canonical_level).
    pub canonical_size: f32,
    /// Level of such a box; level `l` is the one with 2^`l` pixels per cell.
    pub canonical_level: f32,
}

impl RoiAlignParams {
    /// Parameters with the canonical size and level of the pyramid paper, 224 pixels on level 4.
    pub fn new(output: usize, sampling: usize, spatial_scales: Vec<f32>) -> Self {
        Self { output, sampling, spatial_scales, canonical_size: 224.0, canonical_level: 4.0 }
    }

    /// Index of the level that serves a box, or `None` where the box has no area to speak of: NaN, or one negative side.
    fn level_index(&self, area: f32) -> Option<usize> {
        let levels = self.spatial_scales.len();
        let finest = level_of_scale(*self.spatial_scales.first()?);
        let coarsest = level_of_scale(*self.spatial_scales.last()?);
        let side = area.sqrt();
        let level =
            (self.canonical_level + (side / self.canonical_size).log2() + LEVEL_EPSILON).floor();
        if level.is_nan() {
            return None;
        }
        let level = level.max(finest).min(coarsest);
        Some(((level - finest) as usize).min(levels - 1))
    }
}

/// The pyramid level with `1 / scale` pixels per cell.
fn level_of_scale(scale: f32) -> f32 {
    (-scale.log2()).trunc()
}

/// Derives the spatial scales of pyramid levels from their heights.
///
/// A scale is `2^round(log2(feature height / image height))`, ties to even, where the image height is the largest of
/// the batch *after resizing and before padding*. The true quotient is a little larger, as features also cover the
/// padding; rounding to a power of two removes that, unless an image is so small that padding makes up more than
/// a third of the height: then all scales are twice the inverse stride, here as in torchvision.
/// Widths play no part. torchvision keeps the scales of the first batch that a model sees; here every batch has its own.
///
/// `feature_heights` are in cells, finest level first; `image_height` is in pixels, at least 1.
///
/// ```
/// use candle_detection::ops::infer_spatial_scales;
/// // 801 rows are padded to 832, of which the finest level has a quarter.
/// assert_eq!(infer_spatial_scales(&[208, 104, 52, 26], 801), [0.25, 0.125, 0.0625, 0.03125]);
/// ```
///
/// Reference: torchvision `ops/poolers.py`, `_infer_scale`.
pub fn infer_spatial_scales(feature_heights: &[usize], image_height: usize) -> Vec<f32> {
    let scale = |height: &usize| {
        let quotient = (*height as f64 / image_height as f64) as f32;
        quotient.log2().round_ties_even().exp2()
    };
    feature_heights.iter().map(scale).collect()
}

/// Pools `output × output` features from every box by bilinear sampling.
///
/// A box is served by level `floor(canonical_level + log2(√area / canonical_size) + 1e-6)`, clamped to the levels at
/// hand, in f32. Its corners are multiplied by the level's scale without a half-pixel shift (torchvision's
/// `aligned=false`), and its sides are widened to at least one cell. Each of `output × output` cells is the mean of
/// `sampling × sampling` samples, spread evenly. A sample between the centers of four feature cells weighs them
/// bilinearly; one at most a cell outside the map takes the border's value; one further out is 0. Boxes with NaN or
/// infinite corners, and those with one negative side, give zeros.
///
/// # Shapes
/// | argument | shape | dtype | unit |
/// | --- | --- | --- | --- |
/// | `levels` | `[N, H_l, W_l, C]` each, finest first | f32, bf16; f16 on CUDA; one for all | |
/// | `boxes` | `[N, K, 4]` | f32 | pixels of the resized image, xyxy |
/// | `counts` | `[N]` | u32 | valid slots per image, ≤ K |
/// | returns | `[N·K, output, output, C]` | that of `levels` | image after image; 0 above the counts |
///
/// # Devices
/// CPU, with no scratch but a list of samples per thread; CUDA, in one launch without scratch, for at most 8 levels.
/// O(N·K·output²·sampling²·C) time. Every box has the same level on every device.
///
/// # Gradients
/// Of `levels`. Boxes get none, as in torchvision.
///
/// # Errors
/// [`Error::Shape`], [`Error::DType`] or [`Error::Device`] when the arguments don't fit the table or each other;
/// [`Error::Config`] for a grid of no cells or no samples, a scale or canonical size that is no positive number, a
/// canonical level that is none, or too many levels for CUDA;
/// [`Error::Unsupported`] on other devices.
///
/// # Example
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_detection::ops::{RoiAlignParams, roi_align};
///
/// let map = Tensor::arange(1f32, 10.0, &Device::Cpu)?.reshape((1, 3, 3, 1))?;
/// let boxes = Tensor::new(&[[[0f32, 0.0, 2.0, 2.0]]], &Device::Cpu)?;
/// let counts = Tensor::new(&[1u32], &Device::Cpu)?;
/// let pooled = roi_align(&[&map], &boxes, &counts, &RoiAlignParams::new(2, 1, vec![1.0]))?;
/// assert_eq!(pooled.flatten_all()?.to_vec1::<f32>()?, [3.0, 4.0, 6.0, 7.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Reference: torchvision `ops/poolers.py`, `MultiScaleRoIAlign`, and `ops/cpu/roi_align_common.h`; He et al. 2017,
/// section 3; Lin et al. 2017 (arXiv:1612.03144), equation 1.
pub fn roi_align(
    levels: &[&Tensor],
    boxes: &Tensor,
    counts: &Tensor,
    params: &RoiAlignParams,
) -> Result<Tensor> {
    let [n_images, n_slots, channels] = check(levels, boxes, counts, params)?;
    let dims = [n_images, n_slots, channels];
    let output = match boxes.device() {
        Device::Cpu if levels[0].dtype() == DType::BF16 => {
            run_on_cpu::<bf16>(levels, boxes, counts, params, dims)
        }
        Device::Cpu => run_on_cpu::<f32>(levels, boxes, counts, params, dims),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::run(levels, channels, boxes, counts, params),
        other => Err(unsupported(OP, other)),
    }?;
    record(OP, levels, output, || {
        Ok(backward::RoiAlignBackward {
            levels: levels.iter().map(|level| Ok(level.dims4()?.into())).collect::<Result<_>>()?,
            boxes: boxes.detach(),
            counts: counts.clone(),
            params: params.clone(),
        })
    })
}

fn run_on_cpu<E: Element>(
    levels: &[&Tensor],
    boxes: &Tensor,
    counts: &Tensor,
    params: &RoiAlignParams,
    [n_images, n_slots, channels]: [usize; 3],
) -> Result<Tensor> {
    let levels: Vec<Tensor> =
        levels.iter().map(|level| level.contiguous()).collect::<candle_core::Result<_>>()?;
    let storages: Vec<_> = levels.iter().map(Tensor::storage_and_layout).collect();
    let mut maps = Vec::with_capacity(levels.len());
    for ((level, (storage, layout)), scale) in
        levels.iter().zip(&storages).zip(&params.spatial_scales)
    {
        let Storage::Cpu(cpu) = &**storage else {
            return Err(unsupported(OP, level.device()));
        };
        let (_, height, width, _) = level.dims4()?;
        let values = &cpu.as_slice::<E>()?[layout.start_offset()..];
        maps.push(cpu::Map { values, height, width, scale: *scale });
    }
    let device = boxes.device();
    lend!(boxes: f32, counts: u32);
    let pooled = cpu::run(&maps, channels, boxes, n_slots, counts, params);
    let shape = (n_images * n_slots, params.output, params.output, channels);
    Ok(Tensor::from_vec(pooled, shape, device)?)
}

/// Checks all arguments; returns N, K and C.
fn check(
    levels: &[&Tensor],
    boxes: &Tensor,
    counts: &Tensor,
    params: &RoiAlignParams,
) -> Result<[usize; 3]> {
    let expected = "[N, K, 4]";
    let [n_images, n_slots, four] =
        argument(OP, "boxes", boxes).dtype(DType::F32)?.dims(expected)?;
    if four != 4 {
        return Err(argument(OP, "boxes", boxes).shape_error(expected));
    }
    argument(OP, "counts", counts)
        .dtype(DType::U32)?
        .same_device(boxes)?
        .shape(&[n_images], "[N]")?;
    let mut channels = None;
    for level in levels {
        let dtype = levels[0].dtype();
        let level =
            argument(OP, "levels", level).compute_dtype()?.dtype(dtype)?.same_device(boxes)?;
        let expected = "[N, H, W, C], with the N of the boxes, one C, and at least one cell";
        let [n, height, width, c] = level.dims(expected)?;
        let same_channels = *channels.get_or_insert(c) == c;
        if n != n_images || !same_channels || height == 0 || width == 0 {
            return Err(level.shape_error(expected));
        }
    }
    let fault = |field: &str, found: String, expected: String| Error::Config {
        origin: OP.to_owned(),
        field: field.to_owned(),
        found,
        expected,
    };
    let scales = &params.spatial_scales;
    let usable = scales.iter().all(|scale| *scale > 0.0 && scale.is_finite());
    let channels = match channels {
        Some(channels) if scales.len() == levels.len() && usable => channels,
        _ => {
            let expected =
                format!("a positive number for each of {} levels, at least one", levels.len());
            return Err(fault("spatial_scales", format!("{scales:?}"), expected));
        }
    };
    for (field, value, usable) in [
        ("canonical_size", params.canonical_size, params.canonical_size > 0.0),
        ("canonical_level", params.canonical_level, true),
    ] {
        if !usable || !value.is_finite() {
            return Err(fault(field, value.to_string(), "a positive number".to_owned()));
        }
    }
    for (field, value) in [("output", params.output), ("sampling", params.sampling)] {
        if value == 0 {
            return Err(fault(field, "0".to_owned(), "at least 1".to_owned()));
        }
    }
    Ok([n_images, n_slots, channels])
}
