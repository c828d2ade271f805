//! First values of tensors that no file provides: reproducible, whatever the order of building.

use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::Init;
use candle_nn::init::NormalOrUniform;
use rayon::prelude::*;

/// Elements that one task makes.
const CHUNK: usize = 1 << 16;

/// Makes the tensor called `name` by its layer's hint.
///
/// Element `i` depends on the seed, the name and `i` alone: neither the order in which tensors are
/// made nor the number of threads matters.
pub(super) fn tensor(
    init: Init,
    seed: u64,
    name: &str,
    shape: &Shape,
    dtype: DType,
    device: &Device,
) -> Result<Tensor> {
    let stream = Stream::new(seed, name);
    let values = match init {
        Init::Const(value) => vec![value as f32; shape.elem_count()],
        Init::Uniform { lo, up } => fill(shape, |i| lo + (up - lo) * stream.uniform(i)),
        Init::Randn { mean, stdev } => fill(shape, |i| mean + stdev * stream.normal(i)),
        Init::Kaiming { dist, fan, non_linearity } => {
            let stdev = non_linearity.gain() / (fan.for_shape(shape) as f64).sqrt();
            match dist {
                NormalOrUniform::Normal => fill(shape, |i| stdev * stream.normal(i)),
                NormalOrUniform::Uniform => {
                    let bound = 3f64.sqrt() * stdev;
                    fill(shape, |i| bound * (2.0 * stream.uniform(i) - 1.0))
                }
            }
        }
    };
    Tensor::from_vec(values, shape, device)?.to_dtype(dtype)
}

fn fill(shape: &Shape, value: impl Fn(u64) -> f64 + Sync) -> Vec<f32> {
    let mut values = vec![0f32; shape.elem_count()];
    values.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, values)| {
        let first = (chunk * CHUNK) as u64;
        for (value_out, index) in values.iter_mut().zip(first..) {
            *value_out = value(index) as f32;
        }
    });
    values
}

/// A random sequence that can be entered anywhere: SplitMix64, the state being start + index × step.
struct Stream {
    start: u64,
}

impl Stream {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    fn new(seed: u64, name: &str) -> Self {
        // FNV-1a, so that tensors of similar names have unrelated sequences.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self { start: mix(hash ^ mix(seed.wrapping_add(Self::STEP))) }
    }

    fn bits(&self, index: u64) -> u64 {
        mix(self.start.wrapping_add(index.wrapping_add(1).wrapping_mul(Self::STEP)))
    }

    /// Uniform in `0..1`.
    fn uniform(&self, index: u64) -> f64 {
        (self.bits(index) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal, by the method of Box and Muller on the two halves of the bits.
    fn normal(&self, index: u64) -> f64 {
        let bits = self.bits(index);
        let scale = (1u64 << 32) as f64;
        let radius = (((bits >> 32) + 1) as f64 / scale).ln() * -2.0;
        let angle = (bits & 0xffff_ffff) as f64 / scale * std::f64::consts::TAU;
        radius.sqrt() * angle.cos()
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
