//! Candle's CUDA backend under the emulator, against its CPU backend: `candle [part-of-a-name]`.
use candle_core::{DType, Device, Result, Tensor};

mod counts;
mod kernels;
mod network;
mod tensors;

type Res<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Run {
    cpu: Device,
    gpu: Device,
    passed: usize,
    failed: Vec<String>,
    only: Option<String>,
}

/// A small deterministic source of numbers.
struct Rng(u64);
impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }
    fn f(&mut self) -> f32 {
        (self.next() % 20001) as f32 / 5000.0 - 2.0
    }
}

fn floats(n: usize, seed: u64) -> Vec<f32> {
    let mut r = Rng(seed);
    (0..n).map(|_| r.f()).collect()
}

fn t(dims: &[usize], seed: u64, d: &Device) -> Result<Tensor> {
    Tensor::from_vec(floats(dims.iter().product(), seed), dims, d)
}

fn ids(n: usize, below: u32, seed: u64, d: &Device) -> Result<Tensor> {
    let mut r = Rng(seed);
    Tensor::from_vec((0..n).map(|_| r.next() as u32 % below).collect::<Vec<_>>(), n, d)
}

fn distance(a: &Tensor, b: &Tensor) -> Result<f64> {
    if a.dims() != b.dims() || a.dtype() != b.dtype() {
        candle_core::bail!("{:?} {:?} against {:?} {:?}", a.dims(), a.dtype(), b.dims(), b.dtype());
    }
    let v = |x: &Tensor| {
        x.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()
    };
    let mut worst = 0f64;
    for (x, y) in v(a)?.into_iter().zip(v(b)?) {
        if x.is_nan() && y.is_nan() || x == y {
            continue;
        }
        let d = (x - y).abs() / (1.0 + y.abs());
        worst = worst.max(if d.is_nan() { f64::INFINITY } else { d });
    }
    Ok(worst)
}

impl Run {
    fn wanted(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|o| name.contains(o.as_str()))
    }
    fn note(&mut self, name: &str, r: std::result::Result<f64, String>, tol: f64) {
        match r {
            Ok(d) if d <= tol => {
                println!("ok    {name} ({d:.1e})");
                self.passed += 1;
            }
            Ok(d) => {
                println!("FAIL  {name}: off by {d:.3e}, allowed {tol:.1e}");
                self.failed.push(name.into());
            }
            Err(e) => {
                println!("FAIL  {name}: {e}");
                self.failed.push(name.into());
            }
        }
    }
    /// The same work on both devices has to give the same numbers.
    fn same(&mut self, name: &str, tol: f64, f: impl Fn(&Device) -> Result<Tensor>) {
        if !self.wanted(name) {
            return;
        }
        let r = (|| distance(&f(&self.gpu)?, &f(&self.cpu)?))();
        self.note(name, r.map_err(|e| e.to_string().lines().next().unwrap_or("").to_string()), tol);
    }
}

fn main() -> Res<()> {
    let mut r = Run {
        cpu: Device::Cpu,
        gpu: Device::new_cuda(0)?,
        passed: 0,
        failed: vec![],
        only: std::env::args().nth(1),
    };
    tensors::check(&mut r);
    kernels::check(&mut r)?;
    kernels::decode_all(&mut r)?;
    counts::check(&mut r)?;
    network::check(&mut r)?;
    println!(
        "{}",
        if r.failed.is_empty() { String::new() } else { format!("failed: {}", r.failed.join(" ")) }
    );
    println!("{} passed, {} failed", r.passed, r.failed.len());
    std::process::exit((!r.failed.is_empty()) as i32)
}
