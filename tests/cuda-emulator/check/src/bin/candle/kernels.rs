//! Kernels of one's own, and whether every kernel of candle's can be decoded.
use super::{floats, Res, Rng, Run};
use candle_core::cuda_backend::cudarc::driver::{
    result, CudaContext, CudaModule, CudaStream, LaunchConfig, PushKernelArg,
};
use candle_core::{DType, Device, Tensor};
use std::sync::Arc;

const PTX: &str = include_str!(concat!(env!("OUT_DIR"), "/candle.ptx"));

fn grid(blocks: u32, threads: u32, shared: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: shared }
}

pub fn check(r: &mut Run) -> Res<()> {
    let ctx = CudaContext::new(0)?;
    let s = ctx.new_stream()?;
    let m = ctx.load_module(PTX.to_string().into())?;
    let mut add =
        |name: &str, tol: f64, f: &dyn Fn(&Arc<CudaStream>, &Arc<CudaModule>) -> Res<f64>| {
            if r.wanted(name) {
                let v = f(&s, &m).map_err(|e| e.to_string());
                r.note(name, v, tol);
            }
        };
    add("kernel-block_sum", 1e-4, &|s, m| {
        let x = floats(10_007, 3);
        let (dx, mut out) = (s.clone_htod(&x)?, s.alloc_zeros::<f32>(1)?);
        let f = m.load_function("block_sum")?;
        let n = x.len() as i32;
        unsafe { s.launch_builder(&f).arg(&dx).arg(&mut out).arg(&n).launch(grid(7, 160, 0))? };
        let want: f64 = x.iter().map(|&v| v as f64).sum();
        Ok((s.clone_dtoh(&out)?[0] as f64 - want).abs() / (1.0 + want.abs()))
    });
    add("kernel-reverse", 0.0, &|s, m| {
        let x: Vec<i32> = (0..600).collect();
        let mut dx = s.clone_htod(&x)?;
        let f = m.load_function("reverse")?;
        unsafe { s.launch_builder(&f).arg(&mut dx).launch(grid(3, 200, 800))? };
        let got = s.clone_dtoh(&dx)?;
        Ok(got
            .iter()
            .enumerate()
            .filter(|(i, &v)| v != (i / 200 * 200 + 199 - i % 200) as i32)
            .count() as f64)
    });
    add("kernel-steps", 0.0, &|s, m| {
        let x: Vec<i32> = (1..=1000).collect();
        let dx = s.clone_htod(&x)?;
        let (mut out, mut peak) = (s.alloc_zeros::<i32>(1000)?, s.alloc_zeros::<i32>(1000)?);
        let f = m.load_function("steps")?;
        let n = 1000i32;
        unsafe {
            s.launch_builder(&f)
                .arg(&dx)
                .arg(&mut out)
                .arg(&mut peak)
                .arg(&n)
                .launch(grid(8, 128, 0))?
        };
        let (got, top) = (s.clone_dtoh(&out)?, s.clone_dtoh(&peak)?);
        let mut bad = 0;
        for (i, &v) in x.iter().enumerate() {
            let (mut k, mut c, mut p) = (v, 0, v);
            while k != 1 {
                k = if k % 2 == 0 { k / 2 } else { 3 * k + 1 };
                p = p.max(k);
                c += 1;
            }
            bad += (got[i] != c || top[i] != p) as i32;
        }
        Ok(bad as f64)
    });
    add("kernel-votes", 0.0, &|s, m| {
        let x: Vec<i32> = floats(192, 9).iter().map(|v| (v * 20.0) as i32 + 30).collect();
        let (dx, mut out) = (s.clone_htod(&x)?, s.alloc_zeros::<u32>(192)?);
        let f = m.load_function("votes")?;
        unsafe { s.launch_builder(&f).arg(&dx).arg(&mut out).launch(grid(2, 96, 0))? };
        let got = s.clone_dtoh(&out)?;
        let mut bad = 0;
        for i in 0..192usize {
            let (w, b) = (i / 32 * 32, i / 96 * 96);
            let ballot = (0..32).fold(0u32, |a, k| a | ((x[w + k] & 1) as u32) << k);
            let any = x[w..w + 32].iter().any(|&v| v > 60) as u32;
            let all = x[w..w + 32].iter().all(|&v| v >= 0) as u32;
            let count = x[b..b + 96].iter().filter(|&&v| v % 3 == 0).count() as u32;
            let below = (ballot & ((1u32 << (i % 32)) - 1)).count_ones();
            bad += (got[i] != ballot ^ any << 1 ^ all << 2 ^ count << 8 ^ below) as i32;
        }
        Ok(bad as f64)
    });
    add("kernel-cas_max", 0.0, &|s, m| {
        let x = floats(5000, 4);
        let (dx, mut out) = (s.clone_htod(&x)?, s.clone_htod(&[-100f32])?);
        let f = m.load_function("cas_max")?;
        let n = 5000i32;
        unsafe { s.launch_builder(&f).arg(&dx).arg(&mut out).arg(&n).launch(grid(20, 256, 0))? };
        let want = x.iter().copied().fold(f32::MIN, f32::max);
        Ok((s.clone_dtoh(&out)?[0] - want).abs() as f64)
    });
    add("kernel-histogram", 0.0, &|s, m| {
        let x: Vec<u8> = floats(30_000, 4).iter().map(|v| (v.abs() * 100.0) as u8).collect();
        let (dx, mut out) = (s.clone_htod(&x)?, s.alloc_zeros::<i32>(16)?);
        let f = m.load_function("histogram")?;
        let n = x.len() as i32;
        unsafe { s.launch_builder(&f).arg(&dx).arg(&mut out).arg(&n).launch(grid(12, 256, 0))? };
        let got = s.clone_dtoh(&out)?;
        Ok((0..16u8)
            .filter(|&k| got[k as usize] != x.iter().filter(|&&v| v & 15 == k).count() as i32)
            .count() as f64)
    });
    add("kernel-mathf", 2e-5, &|s, m| {
        let x = floats(1000, 8);
        let (dx, mut out) = (s.clone_htod(&x)?, s.alloc_zeros::<f32>(1000)?);
        let f = m.load_function("mathf")?;
        let n = 1000i32;
        unsafe { s.launch_builder(&f).arg(&dx).arg(&mut out).arg(&n).launch(grid(4, 256, 0))? };
        let got = s.clone_dtoh(&out)?;
        let mut worst = 0f64;
        for (i, &v32) in x.iter().enumerate() {
            let v = v32 as f64;
            let w3 = (0..8).find(|k| (k + i) & 7 == 3).unwrap() as f64 * v;
            let want = v.exp()
                + (1.0 + v * v).ln()
                + v.sin() * v.cos()
                + v.tanh()
                + (v.abs() + 0.1).powf(1.7)
                + unsafe { libm_erf(v) }
                + [0.5, 1.5, 2.5, 3.5][i & 3]
                + w3
                + v32.floor() as f64
                + (v32 * 1.5).round_ties_even() as f64
                + v.max(0.0)
                + 1.0 / (v * v + 1.0).sqrt()
                + (v32 % 0.7f32) as f64;
            worst = worst.max((got[i] as f64 - want).abs() / (1.0 + want.abs()));
        }
        Ok(worst)
    });
    add("kernel-mathd", 1e-13, &|s, m| {
        let x: Vec<f64> = floats(1000, 8).iter().map(|&v| v as f64 * 1.01).collect();
        let (dx, mut out) = (s.clone_htod(&x)?, s.alloc_zeros::<f64>(1000)?);
        let f = m.load_function("mathd")?;
        let n = 1000i32;
        unsafe { s.launch_builder(&f).arg(&dx).arg(&mut out).arg(&n).launch(grid(4, 256, 0))? };
        let got = s.clone_dtoh(&out)?;
        Ok(x.iter().zip(got).fold(0f64, |a, (&v, g)| {
            let want = v.exp()
                + (1.0 + v * v).ln()
                + v.sin() * v.cos()
                + v.tanh()
                + (v.abs() + 0.1).powf(1.7)
                + (v * v + 2.0).sqrt()
                + v / 3.0
                + v.ceil();
            a.max((g - want).abs() / (1.0 + want.abs()))
        }))
    });
    add("kernel-half2_fma", 1e-3, &|s, m| {
        let dev = Device::Cpu;
        let h = |seed| -> Res<(Vec<u16>, Vec<f32>)> {
            let v = Tensor::from_vec(floats(200, seed), 200, &dev)?.to_dtype(DType::F16)?;
            let f = v.to_dtype(DType::F32)?.to_vec1::<f32>()?;
            let b: Vec<u16> = f.iter().map(|&x| f16_bits(x)).collect();
            Ok((b, f))
        };
        let ((xb, x), (yb, y)) = (h(1)?, h(2)?);
        let (dx, dy, mut out) =
            (s.clone_htod(&xb)?, s.clone_htod(&yb)?, s.alloc_zeros::<u16>(200)?);
        let f = m.load_function("half2_fma")?;
        let n = 100i32;
        unsafe {
            s.launch_builder(&f).arg(&dx).arg(&dy).arg(&mut out).arg(&n).launch(grid(1, 128, 0))?
        };
        let got = s.clone_dtoh(&out)?;
        Ok((0..200).fold(0f64, |a, i| {
            let want = x[i] * y[i] + (x[i] + y[i]);
            a.max((f16_value(got[i]) - want).abs() as f64 / (1.0 + want.abs() as f64))
        }))
    });
    add("kernel-by_struct", 0.0, &|s, m| {
        #[repr(C)]
        struct Args(i32, [i32; 3], i64);
        unsafe impl candle_core::cuda_backend::cudarc::driver::DeviceRepr for Args {}
        let mut out = s.alloc_zeros::<i32>(50)?;
        let f = m.load_function("by_struct")?;
        let (a, n) = (Args(3, [10, 20, 30], 5 << 32), 50i32);
        unsafe { s.launch_builder(&f).arg(&mut out).arg(&a).arg(&n).launch(grid(1, 64, 0))? };
        let got = s.clone_dtoh(&out)?;
        Ok((0..50)
            .filter(|&i| got[i as usize] != i * 3 + [10, 20, 30][i as usize % 3] + 5 + 7)
            .count() as f64)
    });
    add("kernel-integers", 0.0, &|s, m| {
        let mut g = Rng(77);
        let x: Vec<u64> = (0..700).map(|_| g.next() << 33 ^ g.next() << 11 ^ g.next()).collect();
        let (dx, mut out) = (s.clone_htod(&x)?, s.alloc_zeros::<u64>(700)?);
        let f = m.load_function("integers")?;
        let n = 700i32;
        unsafe { s.launch_builder(&f).arg(&dx).arg(&mut out).arg(&n).launch(grid(3, 256, 0))? };
        let got = s.clone_dtoh(&out)?;
        let want = |i: usize, v: u64| -> u64 {
            match i % 7 {
                0 => (v as u128 * 0x9e3779b97f4a7c15u128 >> 64) as u64,
                1 => v / 1000003,
                2 => v % 97 + v.leading_zeros() as u64,
                3 => v.reverse_bits() ^ v.count_ones() as u64,
                4 => (v as i64 >> 13) as u64,
                5 => {
                    let b = v.to_le_bytes();
                    u32::from_le_bytes([b[5], b[1], b[7], b[3]]) as u64
                }
                _ => (((v >> 32) as u32) << 7 | (v as u32) >> 25) as u64 + (v & !(v >> 3)),
            }
        };
        Ok((0..700).filter(|&i| got[i] != want(i, x[i])).count() as f64)
    });
    add("kernel-printf", 0.0, &|s, m| {
        let f = m.load_function("hello")?;
        let n = 42i32;
        unsafe { s.launch_builder(&f).arg(&n).launch(grid(1, 32, 0))? };
        Ok(0.0)
    });
    // Wrong programs have to be caught. Each leaves the context unusable, so reset after it.
    let reset = || unsafe {
        let f = libc::dlsym(libc::RTLD_DEFAULT, c"cudaemu_reset".as_ptr());
        if !f.is_null() {
            std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(f)();
        }
    };
    add("caught-overrun", 0.0, &|s, m| {
        let mut x = s.alloc_zeros::<f32>(100)?;
        let f = m.load_function("overrun")?;
        let n = 100i32;
        let e = unsafe { s.launch_builder(&f).arg(&mut x).arg(&n).launch(grid(1, 128, 0)) };
        let sticky = s.synchronize().is_err();
        reset();
        Ok(if e.is_err_and(|e| e.to_string().contains("ILLEGAL_ADDRESS")) && sticky {
            0.0
        } else {
            1.0
        })
    });
    add("caught-use-after-free", 0.0, &|s, m| {
        let n = 100i32;
        let p = unsafe { result::malloc_sync(400)? };
        unsafe { result::free_sync(p)? };
        let f = m.load_function("overrun")?;
        let e = unsafe { s.launch_builder(&f).arg(&p).arg(&n).launch(grid(1, 64, 0)) };
        reset();
        Ok(if e.is_err() { 0.0 } else { 1.0 })
    });
    add("caught-double-free", 0.0, &|_, _| {
        let p = unsafe { result::malloc_sync(400)? };
        unsafe { result::free_sync(p)? };
        Ok(if unsafe { result::free_sync(p) }.is_err() { 0.0 } else { 1.0 })
    });
    add("caught-copy-overrun", 0.0, &|_, _| {
        let p = unsafe { result::malloc_sync(400)? };
        let e = unsafe { result::memcpy_htod_sync(p, &[0u8; 401]) };
        unsafe { result::free_sync(p)? };
        Ok(if e.is_err() { 0.0 } else { 1.0 })
    });
    Ok(())
}

extern "C" {
    #[link_name = "erf"]
    fn libm_erf(x: f64) -> f64;
}

/// For values that a half holds exactly.
fn f16_bits(x: f32) -> u16 {
    let b = x.to_bits();
    let (s, e, m) = ((b >> 16 & 0x8000) as u16, (b >> 23 & 255) as i32 - 127, b & 0x7f_ffff);
    if x == 0.0 {
        return s;
    }
    if e < -14 {
        return s | ((m | 0x80_0000) >> (-14 - e + 13)) as u16;
    }
    s | ((e + 15) as u16) << 10 | (m >> 13) as u16
}
fn f16_value(b: u16) -> f32 {
    let (s, e, m) =
        (if b & 0x8000 != 0 { -1.0 } else { 1.0 }, (b >> 10 & 31) as i32, (b & 1023) as f32);
    s * if e == 0 { m * 2f32.powi(-24) } else { (1.0 + m / 1024.0) * 2f32.powi(e - 15) }
}

/// Every kernel of candle's PTX modules has to be understood, not only those used above.
pub fn decode_all(r: &mut Run) -> Res<()> {
    use candle_core::cuda_backend::kernels as k;
    let ctx = CudaContext::new(0)?;
    let all = [
        ("affine", &k::AFFINE),
        ("binary", &k::BINARY),
        ("cast", &k::CAST),
        ("conv", &k::CONV),
        ("fill", &k::FILL),
        ("indexing", &k::INDEXING),
        ("quantized", &k::QUANTIZED),
        ("reduce", &k::REDUCE),
        ("sort", &k::SORT),
        ("ternary", &k::TERNARY),
        ("unary", &k::UNARY),
    ];
    for (name, module) in all {
        let name = format!("decode-{name}");
        if !r.wanted(&name) {
            continue;
        }
        let m = ctx.load_module(module.ptx().into())?;
        let names: Vec<&str> = module
            .ptx()
            .split(".entry ")
            .skip(1)
            .filter_map(|t| t.split(['(', '\n', ' ']).next())
            .collect();
        let bad: Vec<&&str> = names.iter().filter(|n| m.load_function(n).is_err()).collect();
        if bad.is_empty() {
            println!("      {name}: {} kernels", names.len());
        } else {
            println!("      {name}: {} of {} kernels: {bad:?}", bad.len(), names.len());
        }
        r.note(&name, Ok(bad.len() as f64), 0.0);
    }
    Ok(())
}
