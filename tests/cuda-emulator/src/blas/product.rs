//! The products themselves, checked and put into the handle's stream.
use super::*;
use crate::driver::capture::{self, By, Kind};
use crate::element::Elements;
use crate::{counters, driver, mem};
use std::time::Instant;

/// A column-major matrix as f32.
unsafe fn widen(p: *mut u8, ty: Ty, rows: usize, cols: usize, ld: usize) -> Vec<f32> {
    let mut out = vec![0f32; rows * cols];
    for (c, column) in out.chunks_mut(rows).enumerate() {
        Elements { base: p, ty }.read(c * ld, 1, column.as_mut_ptr(), 1, rows);
    }
    out
}

unsafe fn scalar(p: *const u8, ty: Ty) -> f64 {
    let mut out = 0f64;
    Elements { base: p as *mut u8, ty }.read(0, 1, &mut out, 1, 1);
    out
}

#[derive(Clone, Copy)]
pub struct Mat {
    pub p: u64,
    pub ty: Ty,
    pub ld: i32,
    pub stride: i64,
}

fn span(rows: usize, cols: usize, ld: usize, size: usize) -> u64 {
    if rows == 0 || cols == 0 {
        0
    } else {
        (((cols - 1) * ld + rows) * size) as u64
    }
}

/// alpha or beta: a number of the host's at the time of the call, or one on the device.
#[derive(Clone, Copy)]
pub enum Factor {
    Host(f64),
    Device(u64, Ty),
}

impl Factor {
    /// As the handle's pointer mode says.
    pub unsafe fn of(h: *mut Handle, p: *const u8, ty: Ty) -> Factor {
        if (*h).pointer_mode == 0 {
            Factor::Host(scalar(p, ty))
        } else {
            Factor::Device(p as u64, ty)
        }
    }

    unsafe fn value(self) -> Option<f64> {
        match self {
            Factor::Host(v) => Some(v),
            Factor::Device(p, ty) => {
                mem::lookup(p, ty.size() as u64).ok()?;
                Some(scalar(mem::host(p), ty))
            }
        }
    }
}

/// One product, or a batch of them: C = alpha op(A) op(B) + beta C.
#[derive(Clone, Copy)]
pub struct Product {
    pub name: &'static str,
    /// Whether A and B are transposed.
    pub turn: (bool, bool),
    pub size: (i32, i32, i32),
    pub alpha: Factor,
    pub a: Mat,
    pub b: Mat,
    pub beta: Factor,
    pub c: Mat,
    pub batch: i32,
}

/// Checks the arguments and puts the product into the handle's stream.
pub unsafe fn enqueue(h: *mut Handle, p: Product) -> i32 {
    let Product { name, turn: (at, bt), size: (m, n, k), a, b, c, batch, .. } = p;
    crate::trace(|| format!("{name} m={m} n={n} k={k} batch={batch} {:?}", c.ty));
    if m < 0 || n < 0 || k < 0 || batch < 0 {
        return INVALID;
    }
    for (what, x, rows) in
        [("A", &a, if at { k } else { m }), ("B", &b, if bt { n } else { k }), ("C", &c, m)]
    {
        if x.ld < rows.max(1) {
            eprintln!(
                "cudaemu: {name}: leading dimension {} of {what} is below its {rows} rows",
                x.ld
            );
            return INVALID;
        }
    }
    if a.ty != b.ty || (a.ty != c.ty && c.ty != Ty::F32) {
        return UNSUPPORTED;
    }
    match capture::enqueue((*h).stream, Kind::Library, move |by| p.run(by)) {
        driver::OK => OK,
        _ => FAILED,
    }
}

impl Product {
    fn run(self, by: By) -> driver::Res {
        let Product { name, turn: (at, bt), size: (m, n, k), alpha, a, b, beta, c, batch } = self;
        let t0 = Instant::now();
        // SAFETY: values on the device are looked up before they are read.
        let (Some(alpha), Some(beta)) = (unsafe { alpha.value() }, unsafe { beta.value() }) else {
            eprintln!("cudaemu: {name}: alpha or beta is not on the device");
            driver::set_error(driver::ILLEGAL_ADDRESS);
            return driver::ILLEGAL_ADDRESS;
        };
        let (m, n, k) = (m as usize, n as usize, k as usize);
        let (ar, ac) = if at { (k, m) } else { (m, k) };
        let (br, bc) = if bt { (n, k) } else { (k, n) };
        for z in 0..batch as usize {
            let at_z =
                |x: &Mat| x.p.wrapping_add((x.stride * z as i64 * x.ty.size() as i64) as u64);
            let (pa, pb, pc) = (at_z(&a), at_z(&b), at_z(&c));
            let parts = [
                ("A", pa, span(ar, ac, a.ld as usize, a.ty.size())),
                ("B", pb, span(br, bc, b.ld as usize, b.ty.size())),
                ("C", pc, span(m, n, c.ld as usize, c.ty.size())),
            ];
            for (what, p, len) in parts {
                if len == 0 {
                    continue;
                }
                if let Err(e) = mem::lookup(p, len) {
                    eprintln!("cudaemu: {name}: matrix {what} at {p:#x} spans {len} bytes: {e}");
                    driver::set_error(driver::ILLEGAL_ADDRESS);
                    return driver::ILLEGAL_ADDRESS;
                }
            }
            if m == 0 || n == 0 {
                continue;
            }
            // SAFETY: the three ranges were looked up above.
            unsafe { self.one(alpha, beta, mem::host(pa), mem::host(pb), mem::host(pc)) };
        }
        let ns = t0.elapsed().as_nanos() as u64;
        counters::with(|x| {
            x.gemms += (by == By::Host) as u64;
            x.gemm_ns += ns;
            x.gemm_flops += 2 * (m * n * k) as u64 * batch as u64;
        });
        driver::OK
    }

    /// One matrix of the batch, at host addresses.
    unsafe fn one(self, alpha: f64, beta: f64, ha: *mut u8, hb: *mut u8, hc: *mut u8) {
        let Product { turn: (at, bt), size: (m, n, k), a, b, c, .. } = self;
        let (m, n, k) = (m as usize, n as usize, k as usize);
        let (ar, ac) = if at { (k, m) } else { (m, k) };
        let (br, bc) = if bt { (n, k) } else { (k, n) };
        let strides = |t: bool, ld: usize| if t { (ld as isize, 1) } else { (1, ld as isize) };
        match a.ty {
            Ty::F64 => {
                let (ra, ca) = strides(at, a.ld as usize);
                let (rb, cb) = strides(bt, b.ld as usize);
                matrixmultiply::dgemm(
                    m,
                    k,
                    n,
                    alpha,
                    ha as *const f64,
                    ra,
                    ca,
                    hb as *const f64,
                    rb,
                    cb,
                    beta,
                    hc as *mut f64,
                    1,
                    c.ld as isize,
                );
            }
            Ty::F32 => {
                let (ra, ca) = strides(at, a.ld as usize);
                let (rb, cb) = strides(bt, b.ld as usize);
                sgemm(
                    m,
                    k,
                    n,
                    alpha as f32,
                    ha as *const f32,
                    ra,
                    ca,
                    hb as *const f32,
                    rb,
                    cb,
                    beta as f32,
                    hc as *mut f32,
                    c.ld as isize,
                );
            }
            ty => {
                let wa = widen(ha, ty, ar, ac, a.ld as usize);
                let wb = widen(hb, ty, br, bc, b.ld as usize);
                let (ra, ca) = strides(at, ar);
                let (rb, cb) = strides(bt, br);
                if c.ty == Ty::F32 {
                    sgemm(
                        m,
                        k,
                        n,
                        alpha as f32,
                        wa.as_ptr(),
                        ra,
                        ca,
                        wb.as_ptr(),
                        rb,
                        cb,
                        beta as f32,
                        hc as *mut f32,
                        c.ld as isize,
                    );
                } else {
                    let mut wc = if beta != 0.0 {
                        widen(hc, ty, m, n, c.ld as usize)
                    } else {
                        vec![0f32; m * n]
                    };
                    sgemm(
                        m,
                        k,
                        n,
                        alpha as f32,
                        wa.as_ptr(),
                        ra,
                        ca,
                        wb.as_ptr(),
                        rb,
                        cb,
                        beta as f32,
                        wc.as_mut_ptr(),
                        m as isize,
                    );
                    for col in 0..n {
                        let column = wc[col * m..].as_ptr();
                        Elements { base: hc, ty }.write(col * c.ld as usize, 1, column, 1, m);
                    }
                }
            }
        }
    }
}

/// Splits wide products over the host's cores by columns of C.
unsafe fn sgemm(
    m: usize,
    k: usize,
    n: usize,
    alpha: f32,
    a: *const f32,
    ra: isize,
    ca: isize,
    b: *const f32,
    rb: isize,
    cb: isize,
    beta: f32,
    c: *mut f32,
    ldc: isize,
) {
    // With beta = 0 the old C must not matter, even if it is NaN.
    if beta == 0.0 {
        for col in 0..n as isize {
            std::ptr::write_bytes(c.offset(col * ldc), 0, m);
        }
    }
    let parts = crate::config().threads;
    if parts < 2 || m * n * k < 1 << 21 {
        return matrixmultiply::sgemm(m, k, n, alpha, a, ra, ca, b, rb, cb, beta, c, 1, ldc);
    }
    let by_rows = m > n;
    let len = if by_rows { m } else { n };
    let step = len.div_ceil(parts).next_multiple_of(16);
    let (a, b, c) = (a as usize, b as usize, c as usize);
    std::thread::scope(|s| {
        let mut from = 0;
        while from < len {
            let take = step.min(len - from);
            let job = move || unsafe {
                let f = from as isize;
                let (a, b, c) = (a as *const f32, b as *const f32, c as *mut f32);
                if by_rows {
                    matrixmultiply::sgemm(
                        take,
                        k,
                        n,
                        alpha,
                        a.offset(f * ra),
                        ra,
                        ca,
                        b,
                        rb,
                        cb,
                        beta,
                        c.offset(f),
                        1,
                        ldc,
                    );
                } else {
                    matrixmultiply::sgemm(
                        m,
                        k,
                        take,
                        alpha,
                        a,
                        ra,
                        ca,
                        b.offset(f * cb),
                        rb,
                        cb,
                        beta,
                        c.offset(f * ldc),
                        1,
                        ldc,
                    );
                }
            };
            from += take;
            if from < len {
                s.spawn(job);
            } else {
                job();
            }
        }
    });
}
