//! Convolutions with their data, and what the definition makes of them.
use libc::c_void;

use super::api::*;
use super::common::*;

/// A tensor or filter on the device with its values on the host, in the order n, c, h, w.
pub struct Data {
    pub ty: Ty,
    pub format: i32,
    pub dims: [usize; 4],
    pub values: Vec<f64>,
    pub at: u64,
}

pub fn numbers(n: usize, seed: u32) -> Vec<f64> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as f64 / 32768. - 1.
        })
        .collect()
}

impl Data {
    pub fn new(ty: Ty, format: i32, dims: [usize; 4], seed: u32) -> Data {
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
    pub fn order(&self) -> Vec<usize> {
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

    pub fn at(&self, [n, c, h, w]: [usize; 4]) -> f64 {
        self.values[((n * self.dims[1] + c) * self.dims[2] + h) * self.dims[3] + w]
    }

    pub fn fetch(&self) -> Vec<f64> {
        let size = self.ty.size();
        let raw = download::<u8>(self.at, self.values.len() * size);
        let mut out = vec![0.; self.values.len()];
        for (bytes, i) in raw.chunks(size).zip(self.order()) {
            out[i] = self.ty.value(bytes);
        }
        out
    }

    pub fn tensor(&self) -> usize {
        let d = made(cudnnCreateTensorDescriptor);
        let [n, c, h, w] = self.dims.map(|v| v as i32);
        ok(cudnnSetTensor4dDescriptor(d, self.format, self.ty as i32, n, c, h, w));
        d
    }
    pub fn filter(&self) -> usize {
        let d = made(cudnnCreateFilterDescriptor);
        let [n, c, h, w] = self.dims.map(|v| v as i32);
        ok(cudnnSetFilter4dDescriptor(d, self.ty as i32, self.format, n, c, h, w));
        d
    }
}

#[track_caller]
pub fn close(got: &[f64], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let off = (g - w).abs() / (1. + w.abs());
        assert!(off <= tolerance, "{what}: element {i} is {g}, not {w}");
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub pad: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    pub groups: usize,
    pub cross: bool,
}

pub const PLAIN: Shape =
    Shape { pad: [1, 1], stride: [1, 1], dilation: [1, 1], groups: 1, cross: true };

/// A convolution with its data and descriptors.
pub struct Case {
    pub shape: Shape,
    pub x: Data,
    pub w: Data,
    pub y: Data,
    pub handle: usize,
    pub conv: usize,
}

impl Case {
    pub fn new(ty: Ty, format: i32, x: [usize; 4], w: [usize; 4], shape: Shape) -> Case {
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
    pub fn products(&self, mut visit: impl FnMut([usize; 4], [usize; 4], [usize; 4])) {
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

    pub fn expected(&self) -> Vec<f64> {
        let mut out = vec![0.; self.y.values.len()];
        self.products(|x, w, y| {
            out[index(self.y.dims, y)] += self.x.at(x) * self.w.at(w);
        });
        out
    }

    pub fn workspace(&self, algorithm: i32) -> (u64, usize) {
        let (x, w, y) = (self.x.tensor(), self.w.filter(), self.y.tensor());
        let size = made(|s| {
            cudnnGetConvolutionForwardWorkspaceSize(self.handle, x, w, self.conv, y, algorithm, s)
        });
        (if size > 0 { made(|p| cuMemAlloc_v2(p, size)) } else { 0 }, size)
    }

    pub fn forward(&self, algorithm: i32, alpha: f64, beta: f64) -> i32 {
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

pub fn index(dims: [usize; 4], [n, c, h, w]: [usize; 4]) -> usize {
    ((n * dims[1] + c) * dims[2] + h) * dims[3] + w
}

/// Shapes that differ in every respect, with an input, a filter and whether NHWC can do them.
pub fn shapes() -> Vec<([usize; 4], [usize; 4], Shape)> {
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
