//! Which vector instructions this machine has, found out once while running.
//!
//! A type such as [`Avx512`] is a proof: only [`Isa::available`] makes values of it, after asking the processor. Code that needs the
//! instructions asks for the value, so that calling it without them is impossible. Kernels are written once, generic
//! over [`Simd`](super::cpu::simd::Simd), and [`Isa::run`] compiles them for each instruction set.

use std::sync::OnceLock;

use super::cpu::simd::{Job, Portable, Simd};

/// Proof that the processor has AVX-512 (F, VL, DQ, BW), AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Avx512(());

/// Proof that the processor has what [`Avx512`] says, and products of bf16 pairs.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Avx512Bf16(Avx512);

#[cfg(target_arch = "x86_64")]
impl Avx512Bf16 {
    /// The rest of the instructions.
    pub fn avx512(self) -> Avx512 {
        self.0
    }
}

/// Proof that the processor has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Avx2(());

/// Proof that the processor has NEON.
#[cfg(target_arch = "aarch64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Neon(());

/// An instruction set that this machine can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isa {
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(Avx512Bf16),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
    Portable(Portable),
}

/// Name of the instruction set that the CPU kernels use on this machine: `avx512bf16`, `avx512`, `avx2`, `neon` or
/// `portable`. It is the fastest there is, unless the environment variable `CANDLE_DETECTION_ISA` names another one that
/// the machine has.
pub fn instruction_set() -> &'static str {
    Isa::preferred().name()
}

impl Isa {
    /// All instruction sets of this machine, fastest first; the last is portable.
    pub fn available() -> Vec<Self> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512bw");
            if avx512 {
                if is_x86_feature_detected!("avx512bf16") {
                    found.push(Self::Avx512Bf16(Avx512Bf16(Avx512(()))));
                }
                found.push(Self::Avx512(Avx512(())));
            }
            found.push(Self::Avx2(Avx2(())));
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            found.push(Self::Neon(Neon(())));
        }
        found.push(Self::Portable(Portable));
        found
    }

    /// The instruction set to use: the fastest, or the one named by the environment variable `CANDLE_DETECTION_ISA`
    /// (`avx512bf16`, `avx512`, `avx2`, `neon`, `portable`) if the machine has it.
    pub fn preferred() -> Self {
        static PREFERRED: OnceLock<Isa> = OnceLock::new();
        *PREFERRED.get_or_init(|| {
            let available = Self::available();
            let wanted = std::env::var("CANDLE_DETECTION_ISA").unwrap_or_default();
            let named = available.iter().find(|isa| isa.name() == wanted);
            *named.unwrap_or(&available[0])
        })
    }

    /// The instructions for pairs of bf16, if the processor has them.
    #[cfg(target_arch = "x86_64")]
    pub fn bf16_pairs(self) -> Option<Avx512Bf16> {
        match self {
            Self::Avx512Bf16(simd) => Some(simd),
            _ => None,
        }
    }

    /// Name in lower case, as the environment variable has it.
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16(_) => "avx512bf16",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => "neon",
            Self::Portable(_) => "portable",
        }
    }

    /// Runs a job with this instruction set.
    pub fn run<J: Job>(self, job: J) -> J::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16(simd) => simd.avx512().run(job),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(simd) => simd.run(job),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(simd) => simd.run(job),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(simd) => simd.run(job),
            Self::Portable(simd) => simd.run(job),
        }
    }
}
