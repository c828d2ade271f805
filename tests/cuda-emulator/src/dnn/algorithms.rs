//! Which algorithm can do which convolution, in which order they are recommended, and how much
//! workspace they ask for. The sizes are made up; what matters is that programs respect them.
//!
//! A filter in NHWC is left to the one algorithm that the documentation names for every data type
//! and fusion: implicit precomputed GEMM forward, algorithm 1 backward.
use super::descriptors::{Convolution, Filter, Layout, Slot, Tensor};
use super::problem::Problem;
use super::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    Forward,
    BackwardData,
    BackwardFilter,
}

pub const IMPLICIT_PRECOMP_GEMM: c_int = 1;

/// What an algorithm does, whatever its number in a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    /// Works for everything, except that some leave NHWC to another.
    General {
        nhwc: bool,
    },
    /// Writes the unfolded input to memory.
    Gemm,
    Fft,
    FftTiling,
    Winograd,
    WinogradNonFused,
    Missing,
}

impl Pass {
    fn methods(self) -> &'static [Method] {
        use Method::*;
        match self {
            Pass::Forward => &[
                General { nhwc: false },
                General { nhwc: true },
                Gemm,
                Missing,
                Fft,
                FftTiling,
                Winograd,
                WinogradNonFused,
            ],
            Pass::BackwardData => &[
                General { nhwc: false },
                General { nhwc: true },
                Fft,
                FftTiling,
                Winograd,
                WinogradNonFused,
            ],
            Pass::BackwardFilter => &[
                General { nhwc: false },
                General { nhwc: true },
                Fft,
                General { nhwc: false },
                Missing,
                WinogradNonFused,
                FftTiling,
            ],
        }
    }

    fn method(self, algorithm: c_int) -> Checked<Method> {
        match usize::try_from(algorithm).ok().and_then(|a| self.methods().get(a)) {
            Some(method) => Ok(*method),
            None => bad(format!("algorithm {algorithm} does not exist")),
        }
    }

    /// Refuses an algorithm that cannot do the problem.
    pub fn allows(self, p: &Problem, algorithm: c_int) -> Checked<()> {
        let method = self.method(algorithm)?;
        let no = |why: &str| unsupported(format!("algorithm {algorithm} {why}"));
        if method == Method::Missing {
            return no("is not implemented");
        }
        if let Method::General { nhwc } = method {
            return if p.w.layout == Layout::Nhwc && !nhwc {
                no("is not for filters in NHWC")
            } else {
                Ok(())
            };
        }
        if p.w.layout == Layout::Nhwc {
            return no("is not for filters in NHWC");
        }
        if p.conv.dilation != [1, 1] {
            return no("has no dilation");
        }
        if method == Method::Gemm {
            return Ok(());
        }
        if p.x.ty == Ty::F64 || p.conv.stride != [1, 1] {
            return no("is for stride 1 and not for doubles");
        }
        let kernel = [p.w.dims[2], p.w.dims[3]];
        let fits = match method {
            Method::Winograd => kernel == [3, 3],
            Method::WinogradNonFused => kernel == [3, 3] || kernel == [5, 5],
            _ => {
                let small = (0..2).all(|d| {
                    p.conv.pad[d] < kernel[d]
                        && kernel[d] <= 32
                        && (method == Method::FftTiling
                            || p.x.dims[d + 2] + 2 * p.conv.pad[d] <= 256)
                });
                small && p.x.is_packed(Layout::Nchw) && p.y.is_packed(Layout::Nchw)
            }
        };
        if fits {
            Ok(())
        } else {
            no("is not for this size or layout")
        }
    }

    pub fn workspace(self, p: &Problem, algorithm: c_int) -> Checked<usize> {
        self.allows(p, algorithm)?;
        let [_, c, r, s] = p.w.dims;
        let pixels = p.y.dims[2] * p.y.dims[3];
        let elements = match self.method(algorithm)? {
            Method::General { nhwc: false } | Method::Missing | Method::Winograd => 0,
            Method::General { nhwc: true } => match self {
                Pass::Forward => 2 * r * s + pixels,
                Pass::BackwardData => p.x.dims[2] * p.x.dims[3],
                Pass::BackwardFilter => p.w.len(),
            },
            Method::Gemm => c * r * s * pixels,
            Method::Fft | Method::FftTiling => 2 * (p.x.span() + p.y.span() + p.w.len()),
            Method::WinogradNonFused => 4 * p.w.len() + p.y.span(),
        };
        Ok((elements * 4).next_multiple_of(16))
    }
}

/// `cudnnConvolution*AlgoPerf_t`
#[repr(C)]
pub struct Performance {
    algorithm: c_int,
    status: Status,
    time: f32,
    memory: size_t,
    determinism: c_int,
    math: c_int,
    reserved: [c_int; 3],
}

/// All algorithms, the ones that can do it first.
unsafe fn recommend(
    pass: Pass,
    p: &Problem,
    requested: c_int,
    returned: *mut c_int,
    out: *mut Performance,
) -> Checked<()> {
    if requested < 1 || returned.is_null() || out.is_null() {
        return bad("nowhere to put a recommendation");
    }
    let count = pass.methods().len() as c_int;
    let mut order: Vec<(c_int, Option<usize>)> =
        (0..count).map(|a| (a, pass.workspace(p, a).ok())).collect();
    // Algorithm 1 of each pass is the one to prefer on tensor cores.
    order.sort_by_key(|(a, memory)| (memory.is_none(), *a != IMPLICIT_PRECOMP_GEMM));
    order.truncate(requested as usize);
    for (at, (algorithm, memory)) in order.iter().enumerate() {
        *out.add(at) = Performance {
            algorithm: *algorithm,
            status: if memory.is_some() { SUCCESS } else { NOT_SUPPORTED },
            time: if memory.is_some() { at as f32 + 1. } else { -1. },
            memory: memory.unwrap_or(0),
            determinism: 1,
            math: p.conv.math,
            reserved: [0; 3],
        };
    }
    *returned = order.len() as c_int;
    Ok(())
}

macro_rules! queries {
    ($pass:ident, $max:ident, $get:ident, $size:ident, $gets:literal, $sizes:literal,
     ($($arg:ident: $t:ty),*) => ($x:ident, $w:ident, $c:ident, $y:ident)) => {
        #[no_mangle]
        pub unsafe extern "C" fn $max(_: *const Handle, count: *mut c_int) -> Status {
            *count = Pass::$pass.methods().len() as c_int;
            SUCCESS
        }
        #[no_mangle]
        pub unsafe extern "C" fn $get(
            h: *const Handle, $($arg: *const Slot<$t>,)* requested: c_int, returned: *mut c_int,
            out: *mut Performance,
        ) -> Status {
            call!($gets);
            let result = given(h, "the handle")
                .and_then(|_| Problem::read($x, $w, $c, $y))
                .and_then(|p| recommend(Pass::$pass, &p, requested, returned, out));
            status($gets, result)
        }
        #[no_mangle]
        pub unsafe extern "C" fn $size(
            h: *const Handle, $($arg: *const Slot<$t>,)* algorithm: c_int, size: *mut size_t,
        ) -> Status {
            call!($sizes);
            let result = given(h, "the handle")
                .and_then(|_| Problem::read($x, $w, $c, $y))
                .and_then(|p| Pass::$pass.workspace(&p, algorithm));
            status($sizes, result.map(|bytes| *size = bytes))
        }
    };
}
// stub!(cudnnGetConvolutionForwardAlgorithmMaxCount
// stub!(cudnnGetConvolutionForwardAlgorithm_v7
// stub!(cudnnGetConvolutionForwardWorkspaceSize
queries!(
    Forward,
    cudnnGetConvolutionForwardAlgorithmMaxCount,
    cudnnGetConvolutionForwardAlgorithm_v7,
    cudnnGetConvolutionForwardWorkspaceSize,
    "cudnnGetConvolutionForwardAlgorithm_v7",
    "cudnnGetConvolutionForwardWorkspaceSize",
    (x: Tensor, w: Filter, c: Convolution, y: Tensor) => (x, w, c, y)
);
// stub!(cudnnGetConvolutionBackwardDataAlgorithmMaxCount
// stub!(cudnnGetConvolutionBackwardDataAlgorithm_v7
// stub!(cudnnGetConvolutionBackwardDataWorkspaceSize
queries!(
    BackwardData,
    cudnnGetConvolutionBackwardDataAlgorithmMaxCount,
    cudnnGetConvolutionBackwardDataAlgorithm_v7,
    cudnnGetConvolutionBackwardDataWorkspaceSize,
    "cudnnGetConvolutionBackwardDataAlgorithm_v7",
    "cudnnGetConvolutionBackwardDataWorkspaceSize",
    (w: Filter, dy: Tensor, c: Convolution, dx: Tensor) => (dx, w, c, dy)
);
// stub!(cudnnGetConvolutionBackwardFilterAlgorithmMaxCount
// stub!(cudnnGetConvolutionBackwardFilterAlgorithm_v7
// stub!(cudnnGetConvolutionBackwardFilterWorkspaceSize
queries!(
    BackwardFilter,
    cudnnGetConvolutionBackwardFilterAlgorithmMaxCount,
    cudnnGetConvolutionBackwardFilterAlgorithm_v7,
    cudnnGetConvolutionBackwardFilterWorkspaceSize,
    "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
    "cudnnGetConvolutionBackwardFilterWorkspaceSize",
    (x: Tensor, dy: Tensor, c: Convolution, dw: Filter) => (x, dw, c, dy)
);

#[no_mangle]
pub unsafe extern "C" fn cudnnGetConvolution2dForwardOutputDim(
    conv: *const Slot<Convolution>,
    x: *const Slot<Tensor>,
    w: *const Slot<Filter>,
    n: *mut c_int,
    c: *mut c_int,
    h: *mut c_int,
    width: *mut c_int,
) -> Status {
    const CALL: &str = "cudnnGetConvolution2dForwardOutputDim";
    let all = Slot::read(conv, "the convolution's descriptor").and_then(|conv| {
        Ok((conv, Slot::read(x, "the input's descriptor")?, Slot::read(w, "the filter's")?))
    });
    let result = all.and_then(|(conv, x, w)| {
        let (Some(height), Some(columns)) = (conv.output(0, &x, &w), conv.output(1, &x, &w)) else {
            return bad("the filter is larger than the padded input");
        };
        (*n, *c) = (x.dims[0] as c_int, w.dims[0] as c_int);
        (*h, *width) = (height as c_int, columns as c_int);
        Ok(())
    });
    status(CALL, result)
}
