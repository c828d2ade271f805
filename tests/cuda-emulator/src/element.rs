//! Floating-point elements in device memory, read and written as f32 or f64.
use half::{bf16, f16};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ty {
    F32,
    F64,
    F16,
    BF16,
}

impl Ty {
    pub fn size(self) -> usize {
        match self {
            Ty::F32 => 4,
            Ty::F64 => 8,
            Ty::F16 | Ty::BF16 => 2,
        }
    }
}

/// The type that sums are made in.
pub trait Real:
    Copy
    + Default
    + PartialOrd
    + Send
    + Sync
    + std::ops::Add<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::AddAssign
    + 'static
{
    fn of32(v: f32) -> Self;
    fn of64(v: f64) -> Self;
    fn to32(self) -> f32;
    fn to64(self) -> f64;
    /// C = A B + beta C, with row and column strides.
    ///
    /// # Safety
    /// The three matrices lie in memory that may be read or written.
    unsafe fn gemm(
        size: (usize, usize, usize),
        a: Matrix<Self>,
        b: Matrix<Self>,
        beta: Self,
        c: Matrix<Self>,
    );
}

/// A matrix by its first element and its row and column strides; C is written through it.
#[derive(Clone, Copy)]
pub struct Matrix<T>(pub *const T, pub isize, pub isize);

macro_rules! real {
    ($t:ty, $gemm:ident) => {
        impl Real for $t {
            fn of32(v: f32) -> Self {
                v as $t
            }
            fn of64(v: f64) -> Self {
                v as $t
            }
            fn to32(self) -> f32 {
                self as f32
            }
            fn to64(self) -> f64 {
                self as f64
            }
            unsafe fn gemm(
                (m, k, n): (usize, usize, usize),
                a: Matrix<$t>,
                b: Matrix<$t>,
                beta: $t,
                c: Matrix<$t>,
            ) {
                matrixmultiply::$gemm(
                    m,
                    k,
                    n,
                    1.0,
                    a.0,
                    a.1,
                    a.2,
                    b.0,
                    b.1,
                    b.2,
                    beta,
                    c.0 as *mut $t,
                    c.1,
                    c.2,
                );
            }
        }
    };
}
real!(f32, sgemm);
real!(f64, dgemm);

/// Elements of one type in host-visible memory, by position.
#[derive(Clone, Copy)]
pub struct Elements {
    pub base: *mut u8,
    pub ty: Ty,
}

// SAFETY: whoever shares it sees to it that threads write to different elements.
unsafe impl Send for Elements {}
unsafe impl Sync for Elements {}

/// Runs `$body` with `$at` a typed pointer to the elements and `$to`/`$from` its conversions.
macro_rules! by_type {
    ($self:expr, $real:ty, |$at:ident, $to:ident, $from:ident| $body:expr) => {
        match $self.ty {
            Ty::F32 => {
                let $at = $self.base as *mut f32;
                let ($to, $from) = (<$real>::of32, |v: $real| v.to32());
                $body
            }
            Ty::F64 => {
                let $at = $self.base as *mut f64;
                let ($to, $from) = (<$real>::of64, |v: $real| v.to64());
                $body
            }
            Ty::F16 => {
                let $at = $self.base as *mut f16;
                let ($to, $from) =
                    (|v: f16| <$real>::of32(v.to_f32()), |v: $real| f16::from_f32(v.to32()));
                $body
            }
            Ty::BF16 => {
                let $at = $self.base as *mut bf16;
                let ($to, $from) =
                    (|v: bf16| <$real>::of32(v.to_f32()), |v: $real| bf16::from_f32(v.to32()));
                $body
            }
        }
    };
}

impl Elements {
    /// Reads `out.len()` elements from position `at` on, `step` apart, into places `gap` apart.
    ///
    /// # Safety
    /// All positions are inside the memory.
    pub unsafe fn read<R: Real>(&self, at: usize, step: usize, out: *mut R, gap: usize, n: usize) {
        by_type!(self, R, |p, to, _from| {
            let p = p.add(at);
            if step == 1 && gap == 1 {
                for i in 0..n {
                    *out.add(i) = to(*p.add(i));
                }
            } else {
                for i in 0..n {
                    *out.add(i * gap) = to(*p.add(i * step));
                }
            }
        })
    }

    /// Writes `n` values, `gap` apart, to positions `step` apart.
    ///
    /// # Safety
    /// All positions are inside the memory, and no other thread uses them.
    pub unsafe fn write<R: Real>(
        &self,
        at: usize,
        step: usize,
        values: *const R,
        gap: usize,
        n: usize,
    ) {
        by_type!(self, R, |p, _to, from| {
            let p = p.add(at);
            for i in 0..n {
                *p.add(i * step) = from(*values.add(i * gap));
            }
        })
    }
}
