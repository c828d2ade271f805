//! cuBLAS: matrix products on the CPU. Matrices are column-major, as cuBLAS has them.
use crate::element::Ty;
use product::{enqueue as gemm, Factor, Mat, Product};

mod product;

const OK: i32 = 0;
const INVALID: i32 = 7;
const FAILED: i32 = 13;
const UNSUPPORTED: i32 = 15;

#[derive(Default)]
struct Handle {
    pointer_mode: i32,
    math_mode: i32,
    stream: usize,
}

#[no_mangle]
pub unsafe extern "C" fn cublasCreate_v2(h: *mut *mut Handle) -> i32 {
    call!("cublasCreate_v2");
    *h = Box::into_raw(Box::default());
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cublasDestroy_v2(h: *mut Handle) -> i32 {
    call!("cublasDestroy_v2");
    if !h.is_null() {
        drop(Box::from_raw(h));
    }
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cublasSetStream_v2(h: *mut Handle, s: usize) -> i32 {
    call!("cublasSetStream_v2");
    (*h).stream = s;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cublasGetStream_v2(h: *mut Handle, s: *mut usize) -> i32 {
    *s = (*h).stream;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cublasSetWorkspace_v2(_: *mut Handle, _: u64, _: usize) -> i32 {
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cublasSetMathMode(h: *mut Handle, m: i32) -> i32 {
    (*h).math_mode = m;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cublasGetMathMode(h: *mut Handle, m: *mut i32) -> i32 {
    *m = (*h).math_mode;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cublasSetPointerMode_v2(h: *mut Handle, m: i32) -> i32 {
    (*h).pointer_mode = m;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cublasGetPointerMode_v2(h: *mut Handle, m: *mut i32) -> i32 {
    *m = (*h).pointer_mode;
    OK
}
#[no_mangle]
pub unsafe extern "C" fn cublasGetVersion_v2(_: *mut Handle, v: *mut i32) -> i32 {
    *v = 130000;
    OK
}

/// The type behind a `cudaDataType_t`.
fn type_of(code: i32) -> Option<Ty> {
    Some(match code {
        0 => Ty::F32,
        1 => Ty::F64,
        2 => Ty::F16,
        14 => Ty::BF16,
        _ => return None,
    })
}

fn scale_type(compute: i32) -> Ty {
    match compute {
        64 | 65 => Ty::F16,
        70 | 71 | 79 => Ty::F64,
        _ => Ty::F32,
    }
}

#[no_mangle]
pub unsafe extern "C" fn cublasGemmStridedBatchedEx(
    h: *mut Handle,
    ta: i32,
    tb: i32,
    m: i32,
    n: i32,
    k: i32,
    alpha: *const u8,
    a: u64,
    aty: i32,
    lda: i32,
    sa: i64,
    b: u64,
    bty: i32,
    ldb: i32,
    sb: i64,
    beta: *const u8,
    c: u64,
    cty: i32,
    ldc: i32,
    sc: i64,
    batch: i32,
    compute: i32,
    _algo: i32,
) -> i32 {
    call!("cublasGemmStridedBatchedEx");
    let (Some(at), Some(bt), Some(ct)) = (type_of(aty), type_of(bty), type_of(cty)) else {
        return UNSUPPORTED;
    };
    let st = scale_type(compute);
    let (alpha, beta) = (Factor::of(h, alpha, st), Factor::of(h, beta, st));
    gemm(
        h,
        Product {
            name: "cublasGemmStridedBatchedEx",
            turn: (ta != 0, tb != 0),
            size: (m, n, k),
            alpha,
            a: Mat { p: a, ty: at, ld: lda, stride: sa },
            b: Mat { p: b, ty: bt, ld: ldb, stride: sb },
            beta,
            c: Mat { p: c, ty: ct, ld: ldc, stride: sc },
            batch,
        },
    )
}

#[no_mangle]
pub unsafe extern "C" fn cublasGemmEx(
    h: *mut Handle,
    ta: i32,
    tb: i32,
    m: i32,
    n: i32,
    k: i32,
    alpha: *const u8,
    a: u64,
    aty: i32,
    lda: i32,
    b: u64,
    bty: i32,
    ldb: i32,
    beta: *const u8,
    c: u64,
    cty: i32,
    ldc: i32,
    compute: i32,
    _algo: i32,
) -> i32 {
    call!("cublasGemmEx");
    let (Some(at), Some(bt), Some(ct)) = (type_of(aty), type_of(bty), type_of(cty)) else {
        return UNSUPPORTED;
    };
    let st = scale_type(compute);
    let (alpha, beta) = (Factor::of(h, alpha, st), Factor::of(h, beta, st));
    gemm(
        h,
        Product {
            name: "cublasGemmEx",
            turn: (ta != 0, tb != 0),
            size: (m, n, k),
            alpha,
            a: Mat { p: a, ty: at, ld: lda, stride: 0 },
            b: Mat { p: b, ty: bt, ld: ldb, stride: 0 },
            beta,
            c: Mat { p: c, ty: ct, ld: ldc, stride: 0 },
            batch: 1,
        },
    )
}

macro_rules! typed {
    ($single:ident, $batched:ident, $ty:expr, $s:literal, $b:literal) => {
        #[no_mangle]
        pub unsafe extern "C" fn $single(
            h: *mut Handle,
            ta: i32,
            tb: i32,
            m: i32,
            n: i32,
            k: i32,
            alpha: *const u8,
            a: u64,
            lda: i32,
            b: u64,
            ldb: i32,
            beta: *const u8,
            c: u64,
            ldc: i32,
        ) -> i32 {
            call!($s);
            let (alpha, beta) = (Factor::of(h, alpha, $ty), Factor::of(h, beta, $ty));
            gemm(
                h,
                Product {
                    name: $s,
                    turn: (ta != 0, tb != 0),
                    size: (m, n, k),
                    alpha,
                    a: Mat { p: a, ty: $ty, ld: lda, stride: 0 },
                    b: Mat { p: b, ty: $ty, ld: ldb, stride: 0 },
                    beta,
                    c: Mat { p: c, ty: $ty, ld: ldc, stride: 0 },
                    batch: 1,
                },
            )
        }
        #[no_mangle]
        pub unsafe extern "C" fn $batched(
            h: *mut Handle,
            ta: i32,
            tb: i32,
            m: i32,
            n: i32,
            k: i32,
            alpha: *const u8,
            a: u64,
            lda: i32,
            sa: i64,
            b: u64,
            ldb: i32,
            sb: i64,
            beta: *const u8,
            c: u64,
            ldc: i32,
            sc: i64,
            batch: i32,
        ) -> i32 {
            call!($b);
            let (alpha, beta) = (Factor::of(h, alpha, $ty), Factor::of(h, beta, $ty));
            gemm(
                h,
                Product {
                    name: $b,
                    turn: (ta != 0, tb != 0),
                    size: (m, n, k),
                    alpha,
                    a: Mat { p: a, ty: $ty, ld: lda, stride: sa },
                    b: Mat { p: b, ty: $ty, ld: ldb, stride: sb },
                    beta,
                    c: Mat { p: c, ty: $ty, ld: ldc, stride: sc },
                    batch,
                },
            )
        }
    };
}
// fwd!(cublasSgemm_v2 fwd!(cublasSgemmStridedBatched fwd!(cublasDgemm_v2
// fwd!(cublasDgemmStridedBatched fwd!(cublasHgemm fwd!(cublasHgemmStridedBatched
typed!(
    cublasSgemm_v2,
    cublasSgemmStridedBatched,
    Ty::F32,
    "cublasSgemm_v2",
    "cublasSgemmStridedBatched"
);
typed!(
    cublasDgemm_v2,
    cublasDgemmStridedBatched,
    Ty::F64,
    "cublasDgemm_v2",
    "cublasDgemmStridedBatched"
);
typed!(cublasHgemm, cublasHgemmStridedBatched, Ty::F16, "cublasHgemm", "cublasHgemmStridedBatched");

/// y = alpha op(A) x + beta y, as a product with a matrix of one column.
unsafe fn gemv(
    h: *mut Handle,
    t: i32,
    m: i32,
    n: i32,
    alpha: *const u8,
    a: u64,
    lda: i32,
    x: u64,
    incx: i32,
    beta: *const u8,
    y: u64,
    incy: i32,
    ty: Ty,
) -> i32 {
    if incx != 1 || incy != 1 {
        return UNSUPPORTED;
    }
    let (alpha, beta) = (Factor::of(h, alpha, ty), Factor::of(h, beta, ty));
    let (rows, inner) = if t != 0 { (n, m) } else { (m, n) };
    gemm(
        h,
        Product {
            name: "gemv",
            turn: (t != 0, false),
            size: (rows, 1, inner),
            alpha,
            a: Mat { p: a, ty, ld: lda, stride: 0 },
            b: Mat { p: x, ty, ld: inner.max(1), stride: 0 },
            beta,
            c: Mat { p: y, ty, ld: rows.max(1), stride: 0 },
            batch: 1,
        },
    )
}
#[no_mangle]
pub unsafe extern "C" fn cublasSgemv_v2(
    h: *mut Handle,
    t: i32,
    m: i32,
    n: i32,
    alpha: *const u8,
    a: u64,
    lda: i32,
    x: u64,
    incx: i32,
    beta: *const u8,
    y: u64,
    incy: i32,
) -> i32 {
    call!("cublasSgemv_v2");
    gemv(h, t, m, n, alpha, a, lda, x, incx, beta, y, incy, Ty::F32)
}
#[no_mangle]
pub unsafe extern "C" fn cublasDgemv_v2(
    h: *mut Handle,
    t: i32,
    m: i32,
    n: i32,
    alpha: *const u8,
    a: u64,
    lda: i32,
    x: u64,
    incx: i32,
    beta: *const u8,
    y: u64,
    incy: i32,
) -> i32 {
    call!("cublasDgemv_v2");
    gemv(h, t, m, n, alpha, a, lda, x, incx, beta, y, incy, Ty::F64)
}
