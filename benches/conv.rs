//! Every convolution and linear layer of Mask R-CNN R50-FPN at 800×1088 pixels, in f32 and bf16.
//!
//! `cargo bench --bench conv` measures them all, `cargo bench --bench conv -- rpn` those with "rpn" in their name.
//! An "element" of the throughput is a floating-point operation of the direct convolution (two per multiply-add), so
//! that "Gelem/s" are GFLOP/s; Winograd's method needs fewer, and exceeds what the machine can do. What a plain product
//! reaches, such as "stage4 1024-512 1x1", is what to compare with.

use candle_core::{DType, Device, Tensor};
use candle_detection::ops::{
    Activation, Conv2dParams, PreparedConv2d, PreparedConvTranspose2d, PreparedLinear,
    conv_transpose2d, conv2d, linear,
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// A convolution: name, input `[N, H, W, C]`, output channels, window, stride, whether a residual is added.
type Layer = (&'static str, [usize; 4], usize, usize, usize, Residual);

#[derive(Clone, Copy, PartialEq)]
enum Residual {
    No,
    Yes,
}

use Residual::{No, Yes};

const LAYERS: &[Layer] = &[
    ("stem 7x7 s2", [1, 800, 1088, 3], 64, 7, 2, No),
    ("stage1 64-64 1x1", [1, 200, 272, 64], 64, 1, 1, No),
    ("stage1 256-64 1x1", [1, 200, 272, 256], 64, 1, 1, No),
    ("stage1 64-64 3x3", [1, 200, 272, 64], 64, 3, 1, No),
    ("stage1 64-256 1x1", [1, 200, 272, 64], 256, 1, 1, Yes),
    ("stage2 256-128 1x1", [1, 200, 272, 256], 128, 1, 1, No),
    ("stage2 128-128 3x3 s2", [1, 200, 272, 128], 128, 3, 2, No),
    ("stage2 512-128 1x1", [1, 100, 136, 512], 128, 1, 1, No),
    ("stage2 128-128 3x3", [1, 100, 136, 128], 128, 3, 1, No),
    ("stage2 128-512 1x1", [1, 100, 136, 128], 512, 1, 1, Yes),
    ("stage2 256-512 1x1 s2", [1, 200, 272, 256], 512, 1, 2, No),
    ("stage3 512-256 1x1", [1, 100, 136, 512], 256, 1, 1, No),
    ("stage3 256-256 3x3 s2", [1, 100, 136, 256], 256, 3, 2, No),
    ("stage3 1024-256 1x1", [1, 50, 68, 1024], 256, 1, 1, No),
    ("stage3 256-256 3x3", [1, 50, 68, 256], 256, 3, 1, No),
    ("stage3 256-1024 1x1", [1, 50, 68, 256], 1024, 1, 1, Yes),
    ("stage3 512-1024 1x1 s2", [1, 100, 136, 512], 1024, 1, 2, No),
    ("stage4 1024-512 1x1", [1, 50, 68, 1024], 512, 1, 1, No),
    ("stage4 512-512 3x3 s2", [1, 50, 68, 512], 512, 3, 2, No),
    ("stage4 2048-512 1x1", [1, 25, 34, 2048], 512, 1, 1, No),
    ("stage4 512-512 3x3", [1, 25, 34, 512], 512, 3, 1, No),
    ("stage4 512-2048 1x1", [1, 25, 34, 512], 2048, 1, 1, Yes),
    ("stage4 1024-2048 1x1 s2", [1, 50, 68, 1024], 2048, 1, 2, No),
    ("fpn inner 256-256 1x1", [1, 200, 272, 256], 256, 1, 1, No),
    ("fpn inner 512-256 1x1", [1, 100, 136, 512], 256, 1, 1, No),
    ("fpn inner 1024-256 1x1", [1, 50, 68, 1024], 256, 1, 1, No),
    ("fpn inner 2048-256 1x1", [1, 25, 34, 2048], 256, 1, 1, No),
    ("fpn, rpn level 0 3x3", [1, 200, 272, 256], 256, 3, 1, No),
    ("fpn, rpn level 1 3x3", [1, 100, 136, 256], 256, 3, 1, No),
    ("fpn, rpn level 2 3x3", [1, 50, 68, 256], 256, 3, 1, No),
    ("fpn, rpn level 3 3x3", [1, 25, 34, 256], 256, 3, 1, No),
    ("rpn level pool 3x3", [1, 13, 17, 256], 256, 3, 1, No),
    ("rpn deltas 1x1", [1, 200, 272, 256], 12, 1, 1, No),
    ("mask head 3x3", [100, 14, 14, 256], 256, 3, 1, No),
    ("mask logits 1x1", [100, 28, 28, 256], 91, 1, 1, No),
];

fn random(dims: &[usize]) -> Tensor {
    Tensor::rand(-1f32, 1f32, dims, &Device::Cpu).expect("a random tensor")
}

#[global_allocator]
static ALLOCATOR: candle_detection::memory::ReusingAllocator =
    candle_detection::memory::ReusingAllocator::new();

const DTYPES: [DType; 2] = [DType::F32, DType::BF16];

fn random_in(dtype: DType, dims: &[usize]) -> Tensor {
    random(dims).to_dtype(dtype).expect("a cast")
}

fn convolutions(criterion: &mut Criterion) {
    DTYPES.into_iter().for_each(|dtype| convolutions_in(criterion, dtype));
}

fn convolutions_in(criterion: &mut Criterion, dtype: DType) {
    let mut group = criterion.benchmark_group(format!("conv2d {}", dtype.as_str()));
    group.sample_size(10);
    let random_in = |dims: &[usize]| random_in(dtype, dims);
    for &(name, dims, outputs, window, stride, residual) in LAYERS {
        let params = Conv2dParams::new(stride, window / 2);
        let weight = random_in(&[outputs, dims[3], window, window]);
        let weights =
            PreparedConv2d::new(&weight, &random(&[outputs]), params).expect("weights of a layer");
        let input = random_in(&dims);
        let out = conv2d(&input, &weights, None, Activation::Relu).expect("a convolution");
        let residual = (residual == Yes).then(|| random_in(out.dims()));
        let operations = 2 * out.elem_count() * dims[3] * window * window;
        group.throughput(Throughput::Elements(operations as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| conv2d(&input, &weights, residual.as_ref(), Activation::Relu));
        });
    }
    group.finish();
}

fn products(criterion: &mut Criterion) {
    DTYPES.into_iter().for_each(|dtype| products_in(criterion, dtype));
}

fn products_in(criterion: &mut Criterion, dtype: DType) {
    let mut group = criterion.benchmark_group(format!("linear {}", dtype.as_str()));
    group.sample_size(10);
    for [rows, inputs, outputs] in
        [[1000, 12544, 1024], [1000, 1024, 1024], [1000, 1024, 91], [1000, 1024, 364]]
    {
        let weights =
            PreparedLinear::new(&random_in(dtype, &[outputs, inputs]), &random(&[outputs]))
                .expect("weights of a layer");
        let input = random_in(dtype, &[rows, inputs]);
        group.throughput(Throughput::Elements((2 * rows * inputs * outputs) as u64));
        group.bench_function(format!("{rows}x{inputs}-{outputs}"), |bencher| {
            bencher.iter(|| linear(&input, &weights, Activation::Relu));
        });
    }
    group.finish();
}

fn transposed(criterion: &mut Criterion) {
    for dtype in DTYPES {
        let mut group = criterion.benchmark_group(format!("conv_transpose2d {}", dtype.as_str()));
        group.sample_size(10);
        let weights =
            PreparedConvTranspose2d::new(&random_in(dtype, &[256, 256, 2, 2]), &random(&[256]))
                .expect("weights of a layer");
        let input = random_in(dtype, &[100, 14, 14, 256]);
        group.throughput(Throughput::Elements(2 * 100 * 14 * 14 * 4 * 256 * 256));
        group.bench_function("mask head", |bencher| {
            bencher.iter(|| conv_transpose2d(&input, &weights, Activation::Relu));
        });
        group.finish();
    }
}

fn preparation(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("prepare");
    group.sample_size(10);
    let params = Conv2dParams::new(1, 1);
    for channels in [64, 256, 512] {
        let (weight, bias) = (random(&[channels, channels, 3, 3]), random(&[channels]));
        group.bench_function(format!("{channels}-{channels} 3x3"), |bencher| {
            bencher.iter(|| PreparedConv2d::new(&weight, &bias, params));
        });
    }
    group.finish();
}

criterion_group!(benches, convolutions, products, transposed, preparation);
criterion_main!(benches);
