//! What of cuDNN the tests call.
use half::{bf16, f16};
use libc::c_void;

use crate::api;

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
    pub algorithm: i32,
    pub status: i32,
    pub time: f32,
    pub memory: usize,
    pub determinism: i32,
    pub math: i32,
    pub reserved: [i32; 3],
}

pub const BAD_PARAM: i32 = 2000;
pub const NULL_POINTER: i32 = 2002;
pub const NOT_SUPPORTED: i32 = 3000;
pub const EXECUTION_FAILED: i32 = 5000;
pub const NCHW: i32 = 0;
pub const NHWC: i32 = 1;
pub const RELU: i32 = 1;
pub const IDENTITY: i32 = 5;
pub const IMPLICIT_GEMM: i32 = 0;
pub const PRECOMP_GEMM: i32 = 1;

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Ty {
    F32 = 0,
    F64 = 1,
    F16 = 2,
    BF16 = 9,
}

impl Ty {
    pub fn size(self) -> usize {
        match self {
            Ty::F32 => 4,
            Ty::F64 => 8,
            _ => 2,
        }
    }
    pub fn compute(self) -> Ty {
        if self == Ty::F64 {
            Ty::F64
        } else {
            Ty::F32
        }
    }
    pub fn bytes(self, v: f64) -> Vec<u8> {
        match self {
            Ty::F32 => (v as f32).to_ne_bytes().to_vec(),
            Ty::F64 => v.to_ne_bytes().to_vec(),
            Ty::F16 => f16::from_f64(v).to_ne_bytes().to_vec(),
            Ty::BF16 => bf16::from_f64(v).to_ne_bytes().to_vec(),
        }
    }
    pub fn value(self, b: &[u8]) -> f64 {
        match self {
            Ty::F32 => f32::from_ne_bytes(b.try_into().unwrap()) as f64,
            Ty::F64 => f64::from_ne_bytes(b.try_into().unwrap()),
            Ty::F16 => f16::from_ne_bytes(b.try_into().unwrap()).to_f64(),
            Ty::BF16 => bf16::from_ne_bytes(b.try_into().unwrap()).to_f64(),
        }
    }
    /// Largest error of an output of magnitude one.
    pub fn tolerance(self) -> f64 {
        match self {
            Ty::F32 => 2e-6,
            Ty::F64 => 1e-13,
            Ty::F16 => 1e-3,
            Ty::BF16 => 8e-3,
        }
    }
}
