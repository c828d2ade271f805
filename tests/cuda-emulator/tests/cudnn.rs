//! cuDNN's convolutions against the definition, and its restrictions.
#![allow(non_snake_case, clippy::too_many_arguments, clippy::not_unsafe_ptr_arg_deref)]
mod common;
use common::*;
use half::{bf16, f16};
use libc::c_void;

api! {
    fn cudnnCreate(h: *mut usize);
    fn cudnnDestroy(h: usize);
    fn cudnnSetStream(h: usize, s: usize);
    fn cudnnCreateTensorDescriptor(d: *mut usize);
    fn cudnnSetTensor4dDescriptor(d: usize, format: i32, ty: i32, n: i32, c: i32, h: i32, w: i32);
    fn cudnnSetTensor4dDescriptorEx(
        d: usize, ty: i32, n: i32, c: i32, h: i32, w: i32, sn: i32, sc: i32, sh: i32, sw: i32,
    );
    fn cudnnCreateFilterDescriptor(d: *mut usize);
    fn cudnnSetFilter4dDescriptor(d: usize, ty: i32, format: i32, k: i32, c: i32, h: i32, w: i32);
    fn cudnnCreateConvolutionDescriptor(d: *mut usize);
    fn cudnnSetConvolution2dDescriptor(
        d: usize, ph: i32, pw: i32, sh: i32, sw: i32, dh: i32, dw: i32, mode: i32, ty: i32,
    );
    fn cudnnSetConvolutionGroupCount(d: usize, groups: i32);
    fn cudnnSetConvolutionMathType(d: usize, math: i32);
    fn cudnnCreateActivationDescriptor(d: *mut usize);
    fn cudnnSetActivationDescriptor(d: usize, mode: i32, nan: i32, coefficient: f64);
    fn cudnnGetConvolutionForwardAlgorithm_v7(
        h: usize, x: usize, w: usize, c: usize, y: usize, wanted: i32, given: *mut i32, out: *mut Perf,
    );
    fn cudnnGetConvolutionForwardWorkspaceSize(
        h: usize, x: usize, w: usize, c: usize, y: usize, algorithm: i32, size: *mut usize,
    );
    fn cudnnConvolutionForward(
        h: usize, alpha: *const c_void, xd: usize, x: u64, wd: usize, w: u64, conv: usize,
        algorithm: i32, space: u64, bytes: usize, beta: *const c_void, yd: usize, y: u64,
    );
    fn cudnnConvolutionBiasActivationForward(
        h: usize, alpha1: *const c_void, xd: usize, x: u64, wd: usize, w: u64, conv: usize,
        algorithm: i32, space: u64, bytes: usize, alpha2: *const c_void, zd: usize, z: u64,
        biasd: usize, bias: u64, act: usize, yd: usize, y: u64,
    );
    fn cudnnGetConvolutionBackwardDataWorkspaceSize(
        h: usize, w: usize, dy: usize, c: usize, dx: usize, algorithm: i32, size: *mut usize,
    );
    fn cudnnConvolutionBackwardData(
        h: usize, alpha: *const c_void, wd: usize, w: u64, dyd: usize, dy: u64, conv: usize,
        algorithm: i32, space: u64, bytes: usize, beta: *const c_void, dxd: usize, dx: u64,
    );
    fn cudnnGetConvolutionBackwardFilterWorkspaceSize(
        h: usize, x: usize, dy: usize, c: usize, dw: usize, algorithm: i32, size: *mut usize,
    );
    fn cudnnConvolutionBackwardFilter(
        h: usize, alpha: *const c_void, xd: usize, x: u64, dyd: usize, dy: u64, conv: usize,
        algorithm: i32, space: u64, bytes: usize, beta: *const c_void, dwd: usize, dw: u64,
    );
    fn cudnnConvolutionBackwardBias(
        h: usize, alpha: *const c_void, dyd: usize, dy: u64, beta: *const c_void, dbd: usize, db: u64,
    );
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Perf {
    algorithm: i32,
    status: i32,
    time: f32,
    memory: usize,
    determinism: i32,
    math: i32,
    reserved: [i32; 3],
}

const BAD_PARAM: i32 = 2000;
const NULL_POINTER: i32 = 2002;
const NOT_SUPPORTED: i32 = 3000;
const EXECUTION_FAILED: i32 = 5000;
const NCHW: i32 = 0;
const NHWC: i32 = 1;
const RELU: i32 = 1;
const IDENTITY: i32 = 5;
const IMPLICIT_GEMM: i32 = 0;
const PRECOMP_GEMM: i32 = 1;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Ty {
    F32 = 0,
    F64 = 1,
    F16 = 2,
    BF16 = 9,
}

impl Ty {
    fn size(self) -> usize {
        match self {
            Ty::F32 => 4,
            Ty::F64 => 8,
            _ => 2,
        }
    }
    fn compute(self) -> Ty {
        if self == Ty::F64 {
            Ty::F64
        } else {
            Ty::F32
        }
    }
    fn bytes(self, v: f64) -> Vec<u8> {
        match self {
            Ty::F32 => (v as f32).to_ne_bytes().to_vec(),
            Ty::F64 => v.to_ne_bytes().to_vec(),
            Ty::F16 => f16::from_f64(v).to_ne_bytes().to_vec(),
            Ty::BF16 => bf16::from_f64(v).to_ne_bytes().to_vec(),
        }
    }
    fn value(self, b: &[u8]) -> f64 {
        match self {
            Ty::F32 => f32::from_ne_bytes(b.try_into().unwrap()) as f64,
            Ty::F64 => f64::from_ne_bytes(b.try_into().unwrap()),
            Ty::F16 => f16::from_ne_bytes(b.try_into().unwrap()).to_f64(),
            Ty::BF16 => bf16::from_ne_bytes(b.try_into().unwrap()).to_f64(),
        }
    }
    /// Largest error of an output of magnitude one.
    fn tolerance(self) -> f64 {
        match self {
            Ty::F32 => 2e-6,
            Ty::F64 => 1e-13,
            Ty::F16 => 1e-3,
            Ty::BF16 => 8e-3,
        }
    }
}

/// A tensor or filter on the device with its values on the host, in the order n, c, h, w.
struct Data {
    ty: Ty,
    format: i32,
    dims: [usize; 4],
    values: Vec<f64>,
    at: u64,
}

fn numbers(n: usize, seed: u32) -> Vec<f64> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as f64 / 32768. - 1.
        })
        .collect()
}

impl Data {
    fn new(ty: Ty, format: i32, dims: [usize; 4], seed: u32) -> Data {
        // As the device's type holds them.
        let values: Vec<f64> = numbers(dims.iter().product(), seed)
            .into_iter()
            .map(|v| ty.value(&ty.bytes(v)))
            .collect();
        let mut data = Data { ty, format, dims, values, at: 0 };
        let bytes: Vec<u8> =
            data.order().into_iter().flat_map(|i| ty.bytes(data.values[i])).collect();
        data.at = upload(&bytes);
        data
    }

    /// For each element in memory, its place in the order n, c, h, w.
    fn order(&self) -> Vec<usize> {
        let [n, c, h, w] = self.dims;
        let all = (0..n * c * h * w).collect::<Vec<_>>();
        if self.format == NCHW {
            return all;
        }
        let place = |i: usize| {
            let (channel, pixel, image) = (i % c, i / c % (h * w), i / (c * h * w));
            (image * c + channel) * h * w + pixel
        };
        all.into_iter().map(place).collect()
    }

    fn at(&self, [n, c, h, w]: [usize; 4]) -> f64 {
        self.values[((n * self.dims[1] + c) * self.dims[2] + h) * self.dims[3] + w]
    }

    fn fetch(&self) -> Vec<f64> {
        let size = self.ty.size();
        let raw = download::<u8>(self.at, self.values.len() * size);
        let mut out = vec![0.; self.values.len()];
        for (bytes, i) in raw.chunks(size).zip(self.order()) {
            out[i] = self.ty.value(bytes);
        }
        out
    }

    fn tensor(&self) -> usize {
        let d = made(cudnnCreateTensorDescriptor);
        let [n, c, h, w] = self.dims.map(|v| v as i32);
        ok(cudnnSetTensor4dDescriptor(d, self.format, self.ty as i32, n, c, h, w));
        d
    }
    fn filter(&self) -> usize {
        let d = made(cudnnCreateFilterDescriptor);
        let [n, c, h, w] = self.dims.map(|v| v as i32);
        ok(cudnnSetFilter4dDescriptor(d, self.ty as i32, self.format, n, c, h, w));
        d
    }
}

#[track_caller]
fn close(got: &[f64], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let off = (g - w).abs() / (1. + w.abs());
        assert!(off <= tolerance, "{what}: element {i} is {g}, not {w}");
    }
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    pad: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    groups: usize,
    cross: bool,
}

const PLAIN: Shape =
    Shape { pad: [1, 1], stride: [1, 1], dilation: [1, 1], groups: 1, cross: true };

/// A convolution with its data and descriptors.
struct Case {
    shape: Shape,
    x: Data,
    w: Data,
    y: Data,
    handle: usize,
    conv: usize,
}

impl Case {
    fn new(ty: Ty, format: i32, x: [usize; 4], w: [usize; 4], shape: Shape) -> Case {
        let out = |d: usize| {
            let reach = shape.dilation[d] * (w[d + 2] - 1) + 1;
            (x[d + 2] + 2 * shape.pad[d] - reach) / shape.stride[d] + 1
        };
        let conv = made(cudnnCreateConvolutionDescriptor);
        let [p, s, d] = [shape.pad, shape.stride, shape.dilation].map(|v| v.map(|v| v as i32));
        let compute = ty.compute() as i32;
        ok(cudnnSetConvolution2dDescriptor(
            conv,
            p[0],
            p[1],
            s[0],
            s[1],
            d[0],
            d[1],
            shape.cross as i32,
            compute,
        ));
        ok(cudnnSetConvolutionGroupCount(conv, shape.groups as i32));
        ok(cudnnSetConvolutionMathType(conv, 1));
        Case {
            shape,
            y: Data::new(ty, format, [x[0], w[0], out(0), out(1)], 3),
            x: Data::new(ty, format, x, 1),
            w: Data::new(ty, format, w, 2),
            handle: made(cudnnCreate),
            conv,
        }
    }

    /// Visits every product of the convolution: places in x, w and y.
    fn products(&self, mut visit: impl FnMut([usize; 4], [usize; 4], [usize; 4])) {
        let Shape { pad, stride, dilation, groups, cross } = self.shape;
        let [k_all, c_all, rows, columns] = self.w.dims;
        let [images, _, height, width] = self.y.dims;
        for n in 0..images {
            for k in 0..k_all {
                for oy in 0..height {
                    for ox in 0..width {
                        for c in 0..c_all {
                            for r in 0..rows {
                                for s in 0..columns {
                                    let iy = (oy * stride[0] + r * dilation[0]) as isize
                                        - pad[0] as isize;
                                    let ix = (ox * stride[1] + s * dilation[1]) as isize
                                        - pad[1] as isize;
                                    let inside = iy >= 0
                                        && ix >= 0
                                        && (iy as usize) < self.x.dims[2]
                                        && (ix as usize) < self.x.dims[3];
                                    if !inside {
                                        continue;
                                    }
                                    let channel = k / (k_all / groups) * c_all + c;
                                    let tap = if cross {
                                        [k, c, r, s]
                                    } else {
                                        [k, c, rows - 1 - r, columns - 1 - s]
                                    };
                                    visit(
                                        [n, channel, iy as usize, ix as usize],
                                        tap,
                                        [n, k, oy, ox],
                                    );
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    fn expected(&self) -> Vec<f64> {
        let mut out = vec![0.; self.y.values.len()];
        self.products(|x, w, y| {
            out[index(self.y.dims, y)] += self.x.at(x) * self.w.at(w);
        });
        out
    }

    fn workspace(&self, algorithm: i32) -> (u64, usize) {
        let (x, w, y) = (self.x.tensor(), self.w.filter(), self.y.tensor());
        let size = made(|s| {
            cudnnGetConvolutionForwardWorkspaceSize(self.handle, x, w, self.conv, y, algorithm, s)
        });
        (if size > 0 { made(|p| cuMemAlloc_v2(p, size)) } else { 0 }, size)
    }

    fn forward(&self, algorithm: i32, alpha: f64, beta: f64) -> i32 {
        let (space, bytes) = self.workspace(algorithm);
        let ty = self.x.ty.compute();
        let (alpha, beta) = (ty.bytes(alpha), ty.bytes(beta));
        let (x, w, y) = (self.x.tensor(), self.w.filter(), self.y.tensor());
        cudnnConvolutionForward(
            self.handle,
            alpha.as_ptr() as *const c_void,
            x,
            self.x.at,
            w,
            self.w.at,
            self.conv,
            algorithm,
            space,
            bytes,
            beta.as_ptr() as *const c_void,
            y,
            self.y.at,
        )
    }
}

fn index(dims: [usize; 4], [n, c, h, w]: [usize; 4]) -> usize {
    ((n * dims[1] + c) * dims[2] + h) * dims[3] + w
}

/// Shapes that differ in every respect, with an input, a filter and whether NHWC can do them.
fn shapes() -> Vec<([usize; 4], [usize; 4], Shape)> {
    vec![
        ([2, 5, 7, 9], [6, 5, 3, 3], PLAIN),
        ([2, 5, 7, 9], [6, 5, 1, 1], Shape { pad: [0, 0], ..PLAIN }),
        ([1, 3, 23, 19], [8, 3, 7, 7], Shape { pad: [3, 3], stride: [2, 2], ..PLAIN }),
        ([2, 4, 9, 8], [6, 4, 3, 2], Shape { pad: [2, 0], stride: [1, 2], ..PLAIN }),
        ([1, 4, 12, 13], [4, 4, 3, 3], Shape { dilation: [2, 3], ..PLAIN }),
        ([2, 6, 7, 5], [4, 3, 3, 3], Shape { groups: 2, ..PLAIN }),
        ([1, 2, 6, 5], [3, 2, 2, 3], Shape { cross: false, ..PLAIN }),
        ([1, 64, 40, 50], [32, 64, 3, 3], PLAIN),
    ]
}

#[test]
fn forward_follows_the_definition() {
    let _session = session();
    for (ty, format) in [
        (Ty::F32, NHWC),
        (Ty::F16, NHWC),
        (Ty::BF16, NHWC),
        (Ty::F32, NCHW),
        (Ty::F16, NCHW),
        (Ty::F64, NCHW),
    ] {
        for (x, w, shape) in shapes() {
            let case = Case::new(ty, format, x, w, shape);
            let what = format!("{ty:?}, format {format}, {x:?}, {w:?}, {shape:?}");
            let old = case.y.values.clone();
            let sums = case.expected();
            let reach = (w[1] * w[2] * w[3]) as f64;
            ok(case.forward(PRECOMP_GEMM, 1., 0.));
            close(&case.y.fetch(), &sums, ty.tolerance() * reach.sqrt(), &what);
            let case = Case::new(ty, format, x, w, shape);
            ok(case.forward(PRECOMP_GEMM, 0.5, -2.));
            let want: Vec<f64> = sums.iter().zip(&old).map(|(s, o)| 0.5 * s - 2. * o).collect();
            close(&case.y.fetch(), &want, ty.tolerance() * reach.sqrt(), &what);
        }
    }
    assert_eq!(count("conv.count"), 96);
}

#[test]
fn an_input_may_have_strides() {
    let _session = session();
    // The middle columns of a wider picture, rows and columns exchanged.
    let case = Case::new(Ty::F32, NCHW, [2, 3, 6, 5], [4, 3, 3, 3], PLAIN);
    let [n, c, h, w] = case.x.dims;
    let (wide, skip) = (9usize, 2usize);
    let mut values = vec![f32::NAN; n * c * wide * h];
    for (i, v) in case.x.values.iter().enumerate() {
        let (column, row, plane) = (i % w, i / w % h, i / (w * h));
        values[(plane * wide + skip + column) * h + row] = *v as f32;
    }
    let d = made(cudnnCreateTensorDescriptor);
    let [sn, sc] = [c * wide * h, wide * h].map(|v| v as i32);
    ok(cudnnSetTensor4dDescriptorEx(d, 0, 2, 3, 6, 5, sn, sc, 1, h as i32));
    let x = upload(&values) + (skip * h * 4) as u64;
    let (space, bytes) = case.workspace(PRECOMP_GEMM);
    let (one, zero) = (1f32, 0f32);
    let (filter, y) = (case.w.filter(), case.y.tensor());
    ok(cudnnConvolutionForward(
        case.handle,
        &one as *const f32 as *const c_void,
        d,
        x,
        filter,
        case.w.at,
        case.conv,
        PRECOMP_GEMM,
        space,
        bytes,
        &zero as *const f32 as *const c_void,
        y,
        case.y.at,
    ));
    close(&case.y.fetch(), &case.expected(), 1e-5, "strided");
}

/// The fused form, whose pieces a test may replace.
struct Fused {
    case: Case,
    bias: Data,
    z: Data,
    mode: i32,
    algorithm: i32,
    alpha: [f32; 2],
    space: (u64, usize),
}

impl Fused {
    fn new(ty: Ty) -> Fused {
        let case = Case::new(ty, NHWC, [2, 5, 7, 9], [6, 5, 3, 3], PLAIN);
        let bias = Data::new(ty, NHWC, [1, 6, 1, 1], 11);
        let z = Data::new(ty, NHWC, case.y.dims, 13);
        let space = case.workspace(PRECOMP_GEMM);
        let alpha = [1.5, -0.5];
        Fused { case, bias, z, mode: RELU, algorithm: PRECOMP_GEMM, alpha, space }
    }

    fn run(&self) -> i32 {
        let c = &self.case;
        let (x, w, y) = (c.x.tensor(), c.w.filter(), c.y.tensor());
        let (bias, z) = (self.bias.tensor(), self.z.tensor());
        let act = made(cudnnCreateActivationDescriptor);
        ok(cudnnSetActivationDescriptor(act, self.mode, 0, 0.));
        let (space, bytes) = self.space;
        let [a1, a2] = [0, 1].map(|i| &self.alpha[i] as *const f32 as *const c_void);
        cudnnConvolutionBiasActivationForward(
            c.handle,
            a1,
            x,
            c.x.at,
            w,
            c.w.at,
            c.conv,
            self.algorithm,
            space,
            bytes,
            a2,
            z,
            self.z.at,
            bias,
            self.bias.at,
            act,
            y,
            c.y.at,
        )
    }

    fn expected(&self) -> Vec<f64> {
        let pixels = self.case.y.dims[2] * self.case.y.dims[3];
        let sums = self.case.expected();
        sums.iter()
            .enumerate()
            .map(|(i, s)| {
                let bias = self.bias.values[i / pixels % self.case.y.dims[1]];
                let [a1, a2] = self.alpha.map(|v| v as f64);
                let v = a1 * s + a2 * self.z.values[i] + bias;
                if self.mode == RELU {
                    v.max(0.)
                } else {
                    v
                }
            })
            .collect()
    }
}

#[test]
fn bias_residual_and_activation_are_fused() {
    let _session = session();
    for ty in [Ty::F32, Ty::F16, Ty::BF16] {
        for mode in [RELU, IDENTITY] {
            for alpha in [[1., 1.], [1.5, -0.5], [1., 0.]] {
                let fused = Fused { mode, alpha, ..Fused::new(ty) };
                ok(fused.run());
                let what = format!("{ty:?} {mode} {alpha:?}");
                close(&fused.case.y.fetch(), &fused.expected(), 8. * ty.tolerance(), &what);
            }
        }
    }
    // The residual may be the output itself.
    let mut fused = Fused::new(Ty::F32);
    fused.z.values = fused.case.y.values.clone();
    fused.z.at = fused.case.y.at;
    ok(fused.run());
    close(&fused.case.y.fetch(), &fused.expected(), 1e-5, "in place");
}

#[test]
fn gradients_follow_the_definition() {
    let _session = session();
    for (ty, format) in [(Ty::F32, NHWC), (Ty::F16, NHWC), (Ty::F32, NCHW), (Ty::F64, NCHW)] {
        for (x, w, shape) in shapes() {
            let c = Case::new(ty, format, x, w, shape);
            let what = format!("{ty:?}, format {format}, {x:?}, {w:?}, {shape:?}");
            let (mut dx, mut dw) = (vec![0.; c.x.values.len()], vec![0.; c.w.values.len()]);
            let mut db = vec![0.; w[0]];
            let pixels = c.y.dims[2] * c.y.dims[3];
            c.y.values.iter().enumerate().for_each(|(i, v)| db[i / pixels % w[0]] += v);
            c.products(|at, tap, out| {
                let g = c.y.at(out);
                dx[index(c.x.dims, at)] += g * c.w.at(tap);
                dw[index(c.w.dims, tap)] += g * c.x.at(at);
            });
            let (alpha, beta) = (ty.compute().bytes(2.), ty.compute().bytes(1.));
            let (alpha, beta) = (alpha.as_ptr() as *const c_void, beta.as_ptr() as *const c_void);
            let (dxd, dyd, wd) = (c.x.tensor(), c.y.tensor(), c.w.filter());
            let (into_x, into_w) = (Data::new(ty, format, x, 21), Data::new(ty, format, w, 23));
            let into_b = Data::new(ty, format, [1, w[0], 1, 1], 25);

            let bytes = made(|s| {
                cudnnGetConvolutionBackwardDataWorkspaceSize(c.handle, wd, dyd, c.conv, dxd, 1, s)
            });
            let space = made(|p| cuMemAlloc_v2(p, bytes));
            ok(cudnnConvolutionBackwardData(
                c.handle, alpha, wd, c.w.at, dyd, c.y.at, c.conv, 1, space, bytes, beta, dxd,
                into_x.at,
            ));
            let add = |sums: &[f64], old: &[f64]| -> Vec<f64> {
                sums.iter().zip(old).map(|(s, o)| 2. * s + o).collect()
            };
            let scale = |terms: usize| 4. * ty.tolerance() * (terms as f64).sqrt();
            let want = add(&dx, &into_x.values);
            close(&into_x.fetch(), &want, scale(w[0] * w[2] * w[3]), &what);

            let bytes = made(|s| {
                cudnnGetConvolutionBackwardFilterWorkspaceSize(c.handle, dxd, dyd, c.conv, wd, 1, s)
            });
            let space = made(|p| cuMemAlloc_v2(p, bytes));
            ok(cudnnConvolutionBackwardFilter(
                c.handle, alpha, dxd, c.x.at, dyd, c.y.at, c.conv, 1, space, bytes, beta, wd,
                into_w.at,
            ));
            close(&into_w.fetch(), &add(&dw, &into_w.values), scale(x[0] * pixels), &what);

            let dbd = into_b.tensor();
            ok(cudnnConvolutionBackwardBias(c.handle, alpha, dyd, c.y.at, beta, dbd, into_b.at));
            close(&into_b.fetch(), &add(&db, &into_b.values), scale(x[0] * pixels), &what);
        }
    }
}

#[test]
fn the_first_recommendation_works() {
    let _session = session();
    let recommended = |case: &Case| {
        let mut all = [Perf::default(); 8];
        let mut given = 0;
        let (x, w, y) = (case.x.tensor(), case.w.filter(), case.y.tensor());
        ok(cudnnGetConvolutionForwardAlgorithm_v7(
            case.handle,
            x,
            w,
            case.conv,
            y,
            8,
            &mut given,
            all.as_mut_ptr(),
        ));
        assert_eq!(given, 8);
        all
    };
    let nhwc = Case::new(Ty::F16, NHWC, [1, 8, 6, 5], [8, 8, 3, 3], PLAIN);
    let all = recommended(&nhwc);
    assert_eq!((all[0].algorithm, all[0].status), (PRECOMP_GEMM, 0));
    assert!(all[1..].iter().all(|p| p.status == NOT_SUPPORTED), "NHWC leaves one");
    let nchw = Case::new(Ty::F32, NCHW, [1, 8, 6, 5], [8, 8, 3, 3], PLAIN);
    for perf in recommended(&nchw).iter().filter(|p| p.status == 0) {
        assert_eq!(nchw.workspace(perf.algorithm).1, perf.memory);
        ok(nchw.forward(perf.algorithm, 1., 0.));
        close(&nchw.y.fetch(), &nchw.expected(), 1e-5, "algorithm");
    }
}

#[test]
fn restrictions_are_errors() {
    let _session = session();
    ok(Fused::new(Ty::F32).run());
    let run = |change: &dyn Fn(&mut Fused)| {
        let mut fused = Fused::new(Ty::F16);
        change(&mut fused);
        fused.run()
    };
    type Change<'a> = &'a dyn Fn(&mut Fused);
    let cases: [(&str, i32, Change); 12] = [
        ("sigmoid", NOT_SUPPORTED, &|f| f.mode = 0),
        ("an algorithm that is not for NHWC", NOT_SUPPORTED, &|f| f.algorithm = IMPLICIT_GEMM),
        ("an algorithm that does not exist", BAD_PARAM, &|f| f.algorithm = 8),
        ("too small a workspace", BAD_PARAM, &|f| f.space.1 -= 1),
        ("no workspace", BAD_PARAM, &|f| f.space.0 = 0),
        ("bias of another type", NOT_SUPPORTED, &|f| {
            f.bias = Data::new(Ty::F32, NHWC, [1, 6, 1, 1], 1)
        }),
        ("bias of another length", NOT_SUPPORTED, &|f| {
            f.bias = Data::new(Ty::F16, NHWC, [1, 5, 1, 1], 1)
        }),
        ("residual of another size", BAD_PARAM, &|f| {
            f.z = Data::new(Ty::F16, NHWC, [2, 6, 7, 8], 1)
        }),
        ("no residual", NULL_POINTER, &|f| f.z.at = 0),
        ("output over the input", BAD_PARAM, &|f| f.case.y.at = f.case.x.at),
        ("odd address", BAD_PARAM, &|f| f.case.x.at += 1),
        ("output of another type", NOT_SUPPORTED, &|f| {
            f.case.y = Data::new(Ty::F32, NHWC, f.case.y.dims, 1);
            f.z = Data::new(Ty::F32, NHWC, f.case.y.dims, 1);
        }),
    ];
    for (name, want, change) in cases {
        assert_eq!(run(change), want, "{name}");
    }
    // The identity goes with one algorithm only, in NCHW too.
    for (mode, algorithm, want) in [
        (RELU, IMPLICIT_GEMM, OK),
        (IDENTITY, IMPLICIT_GEMM, NOT_SUPPORTED),
        (IDENTITY, PRECOMP_GEMM, OK),
    ] {
        let case = Case::new(Ty::F32, NCHW, [2, 5, 7, 9], [6, 5, 3, 3], PLAIN);
        let z = Data::new(Ty::F32, NCHW, case.y.dims, 13);
        let fused = Fused { case, z, mode, algorithm, ..Fused::new(Ty::F32) };
        assert_eq!(fused.run(), want, "mode {mode}, algorithm {algorithm}");
    }
    // Descriptors that do not fit together.
    let case = Case::new(Ty::F32, NHWC, [2, 5, 7, 9], [6, 5, 3, 3], PLAIN);
    let fails = |change: &dyn Fn(&mut Case), want: i32| {
        let mut other = Case::new(Ty::F32, NHWC, [2, 5, 7, 9], [6, 5, 3, 3], PLAIN);
        change(&mut other);
        let (x, w, y) = (other.x.tensor(), other.w.filter(), other.y.tensor());
        let got = cudnnGetConvolutionForwardWorkspaceSize(
            case.handle,
            x,
            w,
            other.conv,
            y,
            PRECOMP_GEMM,
            &mut 0,
        );
        assert_eq!(got, want);
    };
    fails(&|c| c.x.dims[1] = 4, BAD_PARAM);
    fails(&|c| c.y.dims[3] = 8, BAD_PARAM);
    fails(&|c| c.w.ty = Ty::F16, NOT_SUPPORTED);
    fails(&|c| c.x.format = NCHW, NOT_SUPPORTED);
    fails(&|c| ok(cudnnSetConvolutionGroupCount(c.conv, 5)), BAD_PARAM);
    fails(&|c| c.conv = made(cudnnCreateConvolutionDescriptor), BAD_PARAM);
    ok(cudnnDestroy(case.handle));
}

#[test]
fn memory_is_checked() {
    let _session = session();
    let case = Case::new(Ty::F32, NHWC, [2, 5, 7, 9], [6, 5, 3, 3], PLAIN);
    ok(case.forward(PRECOMP_GEMM, 1., 0.));
    ok(cuMemFree_v2(case.w.at));
    assert_eq!(case.forward(PRECOMP_GEMM, 1., 0.), EXECUTION_FAILED);
    assert_eq!(cuCtxSynchronize(), ILLEGAL_ADDRESS);
    reset();
    let mut short = Case::new(Ty::F32, NHWC, [2, 5, 7, 9], [6, 5, 3, 3], PLAIN);
    short.y.at = made(|p| cuMemAlloc_v2(p, short.y.values.len() * 4 - 4));
    assert_eq!(short.forward(PRECOMP_GEMM, 1., 0.), EXECUTION_FAILED);
    reset();
}

#[test]
fn a_convolution_can_be_captured() {
    let _session = session();
    let s = stream();
    let case = Case::new(Ty::F32, NHWC, [2, 5, 7, 9], [6, 5, 3, 3], PLAIN);
    ok(cudnnSetStream(case.handle, s));
    let (space, bytes) = case.workspace(PRECOMP_GEMM);
    let (x, w, y) = (case.x.tensor(), case.w.filter(), case.y.tensor());
    let old = case.y.fetch();
    reset();
    ok(cuStreamBeginCapture_v2(s, GLOBAL));
    {
        // The factors are read at the call.
        let (alpha, beta) = (2f32, 0f32);
        ok(cudnnConvolutionForward(
            case.handle,
            &alpha as *const f32 as *const c_void,
            x,
            case.x.at,
            w,
            case.w.at,
            case.conv,
            PRECOMP_GEMM,
            space,
            bytes,
            &beta as *const f32 as *const c_void,
            y,
            case.y.at,
        ));
    }
    let graph = made(|g| cuStreamEndCapture(s, g));
    assert_eq!(case.y.fetch(), old, "not yet");
    let exec = made(|e| cuGraphInstantiateWithFlags(e, graph, 0));
    ok(cuGraphLaunch(exec, s));
    let want: Vec<f64> = case.expected().iter().map(|v| 2. * v).collect();
    close(&case.y.fetch(), &want, 1e-5, "replayed");
    assert_eq!((count("conv.count"), count("graph.library")), (0, 1));
    ok(cuGraphExecDestroy(exec));
    ok(cuGraphDestroy(graph));
}
