//! A whole network, and how long it takes.
use super::{distance, t, Res, Run};
use candle_core::{DType, Device, Result, Tensor};

/// A ResNet-50 with feature pyramid and region proposal head, with made-up weights.
struct Net<'a> {
    d: &'a Device,
    seed: std::cell::Cell<u64>,
    ty: DType,
}
impl Net<'_> {
    fn conv(&self, x: &Tensor, out: usize, k: usize, stride: usize) -> Result<Tensor> {
        let c = x.dim(1)?;
        self.seed.set(self.seed.get() + 1);
        let scale = 1.0 / ((c * k * k) as f64).sqrt();
        let w = (t(&[out, c, k, k], self.seed.get(), self.d)?.to_dtype(self.ty)? * scale)?;
        let bias = (t(&[1, out, 1, 1], self.seed.get() + 1000, self.d)?.to_dtype(self.ty)? * 0.1)?;
        x.conv2d(&w, k / 2, stride, 1, 1)?.broadcast_add(&bias)
    }
    fn forward(&self, h: usize, w: usize) -> Result<Vec<Tensor>> {
        let x = t(&[1, 3, h, w], 99, self.d)?.to_dtype(self.ty)?;
        let x = self.conv(&x, 64, 7, 2)?.relu()?;
        let mut x =
            x.pad_with_same(2, 1, 1)?.pad_with_same(3, 1, 1)?.max_pool2d_with_stride(3, 2)?;
        let mut levels = vec![];
        for (stage, n) in [3usize, 4, 6, 3].into_iter().enumerate() {
            let mid = 64 << stage;
            for block in 0..n {
                let stride = if block == 0 && stage > 0 { 2 } else { 1 };
                let y = self.conv(&x, mid, 1, 1)?.relu()?;
                let y = self.conv(&y, mid, 3, stride)?.relu()?;
                let y = self.conv(&y, mid * 4, 1, 1)?;
                let short = if block == 0 { self.conv(&x, mid * 4, 1, stride)? } else { x };
                x = (y + short)?.relu()?;
            }
            levels.push(x.clone());
        }
        let mut out = vec![];
        let mut top: Option<Tensor> = None;
        for x in levels.iter().rev() {
            let mut y = self.conv(x, 256, 1, 1)?;
            if let Some(t) = &top {
                y = (y.clone() + t.upsample_nearest2d(y.dim(2)?, y.dim(3)?)?)?;
            }
            top = Some(y.clone());
            let p = self.conv(&y, 256, 3, 1)?;
            let r = self.conv(&p, 256, 3, 1)?.relu()?;
            let score = self.conv(&r, 3, 1, 1)?;
            out.push((((score.neg()?.exp()? + 1.0)?).recip())?);
            out.push(self.conv(&r, 12, 1, 1)?);
        }
        Ok(out)
    }
}

fn mark(label: &std::ffi::CStr) {
    unsafe {
        let f = libc::dlsym(libc::RTLD_DEFAULT, c"cudaemu_mark".as_ptr());
        if !f.is_null() {
            std::mem::transmute::<*mut libc::c_void, extern "C" fn(*const libc::c_char)>(f)(
                label.as_ptr(),
            );
        }
    }
}

pub fn check(r: &mut Run) -> Res<()> {
    if !r.wanted("network") {
        return Ok(());
    }
    let (h, w) = (128, 160);
    mark(c"before network");
    let t0 = std::time::Instant::now();
    let net = |d, ty| Net { d, seed: std::cell::Cell::new(0), ty }.forward(h, w);
    let a = net(&r.gpu, DType::F32)?;
    let gpu = t0.elapsed();
    mark(c"network");
    let t0 = std::time::Instant::now();
    let b = net(&r.cpu, DType::F32)?;
    println!("      network {h}x{w}: emulated {gpu:.2?}, candle on the CPU {:.2?}", t0.elapsed());
    // Both against f64 on the CPU: the emulated run may be off by rounding, as the CPU's is.
    let exact = net(&r.cpu, DType::F64)?;
    let off = |x: &[Tensor]| -> Result<f64> {
        let mut worst = 0f64;
        for (x, e) in x.iter().zip(&exact) {
            worst = worst.max(distance(&x.to_dtype(DType::F64)?, e)?);
        }
        Ok(worst)
    };
    let (worst, cpu) = (off(&a)?, off(&b)?);
    println!("      from f64: emulated {worst:.1e}, candle's f32 on the CPU {cpu:.1e}");
    r.note("network", Ok(worst / cpu.max(1e-7)), 4.0);
    Ok(())
}
