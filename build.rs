//! With feature `cuda`: compiles every `src/ops/*/kernel.cu` to PTX, which the library embeds. Without it: nothing.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{env, fs, thread};

/// Folder of the formulas that kernels share.
const INCLUDE: &str = "src/ops/support/cuda";
/// What the PTX is made for where neither a variable nor a GPU says otherwise: runs on every card from Turing on.
const OLDEST_CAPABILITY: u32 = 75;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_CUDA").is_some()
        && let Err(error) = build_kernels()
    {
        for line in error.to_string().lines() {
            println!("cargo::error={line}");
        }
    }
}

fn build_kernels() -> Outcome<()> {
    for variable in ["NVCC", "CUDA_HOME", "CUDA_PATH", "CUDA_COMPUTE_CAP"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rerun-if-changed={INCLUDE}");
    let kernels = find_kernels()?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let compiler = Compiler { nvcc: find_nvcc()?, capability: compute_capability()? };
    compiler.compile_all(&kernels, &out)?;
    fs::write(out.join("ptx.rs"), table(&kernels, &out)?)?;
    Ok(())
}

/// Op and source of every kernel file.
fn find_kernels() -> Outcome<Vec<(String, PathBuf)>> {
    let mut kernels = Vec::new();
    println!("cargo::rerun-if-changed=src/ops");
    for entry in fs::read_dir("src/ops")? {
        let folder = entry?.path();
        let source = folder.join("kernel.cu");
        if let (true, Some(op)) = (source.is_file(), folder.file_name()) {
            println!("cargo::rerun-if-changed={}", source.display());
            kernels.push((op.to_string_lossy().into_owned(), source));
        }
    }
    kernels.sort();
    Ok(kernels)
}

fn find_nvcc() -> Outcome<PathBuf> {
    if let Some(nvcc) = env::var_os("NVCC") {
        return Ok(nvcc.into());
    }
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let usual = ["/usr/local/cuda", "/opt/cuda"].into_iter().map(PathBuf::from);
    let in_homes = homes.chain(usual).map(|home| home.join("bin"));
    let in_path = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect::<Vec<_>>();
    in_homes
        .chain(in_path)
        .flat_map(|folder| ["nvcc", "nvcc.exe"].map(|name| folder.join(name)))
        .find(|nvcc| nvcc.is_file())
        .ok_or_else(|| {
            "feature `cuda` needs NVIDIA's compiler, and no nvcc was found: looked at the variables NVCC, CUDA_HOME \
             and CUDA_PATH, at /usr/local/cuda and /opt/cuda, and in PATH. Install the CUDA toolkit, or point NVCC at \
             its bin/nvcc; or build without the feature to run on the CPU"
                .into()
        })
}

/// From `CUDA_COMPUTE_CAP` (`80` or `8.0`), else that of the first GPU, else the oldest.
fn compute_capability() -> Outcome<u32> {
    let parse = |text: &str| text.trim().replace('.', "").parse::<u32>().ok();
    if let Ok(text) = env::var("CUDA_COMPUTE_CAP") {
        return parse(&text).filter(|capability| *capability >= OLDEST_CAPABILITY).ok_or_else(|| {
            format!(
                "CUDA_COMPUTE_CAP is `{text}`: expected a compute capability such as 80 or 8.0, at least \
                 {OLDEST_CAPABILITY}"
            )
            .into()
        });
    }
    let asked = Command::new("nvidia-smi")
        .args(["--query-gpu=compute_cap", "--format=csv,noheader"])
        .output();
    let of_gpu = asked
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8_lossy(&output.stdout).lines().next().and_then(parse));
    Ok(of_gpu.unwrap_or(OLDEST_CAPABILITY))
}

struct Compiler {
    nvcc: PathBuf,
    capability: u32,
}

impl Compiler {
    /// Compiles on as many threads as cargo allows.
    fn compile_all(&self, kernels: &[(String, PathBuf)], out: &Path) -> Outcome<()> {
        let jobs = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
        let queue = Mutex::new(kernels.iter());
        let failures = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| {
                    loop {
                        let next = queue.lock().ok().and_then(|mut queue| queue.next());
                        let Some((op, source)) = next else { break };
                        if let (Err(error), Ok(mut failures)) =
                            (self.compile(source, &ptx_path(out, op)), failures.lock())
                        {
                            failures.push(error);
                        }
                    }
                });
            }
        });
        match failures.into_inner()?.into_iter().next() {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }

    /// Thresholds must fall as they do on the CPU, so products and sums are not fused, and division and square root
    /// are the exact ones. The kernels are bound by memory.
    fn compile(&self, source: &Path, ptx: &Path) -> Result<(), String> {
        let mut command = Command::new(&self.nvcc);
        command
            .args(["--ptx", "-O3", "-std=c++17", "--fmad=false"])
            .arg(format!("--gpu-architecture=compute_{}", self.capability))
            .args(["-I", INCLUDE, "-o"])
            .arg(ptx)
            .arg(source);
        let output = command
            .output()
            .map_err(|error| format!("{} could not be started: {error}", self.nvcc.display()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!(
            "nvcc failed on {} ({}):\n{}{}",
            source.display(),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ))
    }
}

fn ptx_path(out: &Path, op: &str) -> PathBuf {
    out.join(format!("{op}.ptx"))
}

/// One constant per op: its PTX.
fn table(kernels: &[(String, PathBuf)], out: &Path) -> Outcome<String> {
    let mut table = String::new();
    for (op, _) in kernels {
        let path = ptx_path(out, op);
        writeln!(
            table,
            "pub(crate) const {}: Module = Module {{ op: {op:?}, ptx: include_str!({path:?}) }};",
            op.to_uppercase()
        )?;
    }
    Ok(table)
}
