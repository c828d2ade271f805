//! Instructions that nvcc writes for ordinary kernels, against values worked out on the host.
mod common;
use common::*;
use half::{bf16, f16};

/// Numbers that look random: `n` values below `below`.
fn numbers(n: usize, below: u32, seed: u32) -> Vec<u32> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        })
        .collect()
}

fn floats(n: usize, seed: u32) -> Vec<f32> {
    numbers(n, 4001, seed).iter().map(|&v| v as f32 / 500. - 4.).collect()
}

#[test]
fn shuffles_votes_and_bit_counts() {
    let _session = session();
    let f = function(module(), "warp_ops");
    let x: Vec<i32> = numbers(32, 1 << 20, 3).iter().map(|&v| v as i32).collect();
    let (dx, out) = (upload(&x), upload(&[0u32; 32 * 8]));
    ok(launch(f, 1, 32, 0, vec![dx.into(), out.into()]));
    let odd = (0..32).fold(0u32, |m, t| m | ((x[t] & 1) as u32) << t);
    for (t, got) in download::<u32>(out, 256).chunks(8).enumerate() {
        let v = x[t] as u32;
        let population = ((odd as u64) << 20 | v as u64).count_ones();
        let bytes: [u8; 8] = ((odd as u64) << 32 | v as u64).to_le_bytes();
        let permuted = u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
        // __funnelshift_l(lo, hi, 7): the upper half of the pair shifted left.
        let funnel = (((odd as u64) << 32 | v as u64) << 7 >> 32) as u32;
        let want = [
            odd,
            (odd & ((1u32 << t) - 1)).count_ones(),
            x.iter().sum::<i32>() as u32,
            x[if t < 3 { t } else { t - 3 }] as u32,
            x[t * 7 % 32] as u32,
            x.iter().any(|&v| v > 1000) as u32 | 2,
            population | v.leading_zeros() << 8 | (v.trailing_zeros() + 1) << 16,
            v.reverse_bits() ^ permuted ^ funnel,
        ];
        assert_eq!(got, want, "lane {t}");
    }
}

#[test]
fn lanes_that_went_different_ways_meet_again() {
    let _session = session();
    let f = function(module(), "divergent");
    let x: Vec<i32> = numbers(32, 90, 5).iter().map(|&v| v as i32).collect();
    let (dx, out) = (upload(&x), upload(&[0u32; 32]));
    ok(launch(f, 1, 32, 0, vec![dx.into(), out.into()]));
    let thirds = x.iter().filter(|&&v| v % 3 == 0).count() as u32;
    let total: i32 = x.iter().sum();
    for (t, got) in download::<u32>(out, 32).into_iter().enumerate() {
        let v = x[t];
        let r = match v % 3 {
            0 => (0..v % 5).fold(thirds, |r, i| r * 3 + i as u32),
            1 => 1000 + v as u32,
            _ => 2000 - v as u32,
        };
        assert_eq!(got, r + total as u32, "lane {t}");
    }
}

#[test]
fn shared_atomics_and_barriers_that_count() {
    let _session = session();
    let f = function(module(), "histogram");
    let n = 1000;
    let x = numbers(n, 16, 7);
    let (dx, bins, counts) = (upload(&x), upload(&[0u32; 16]), upload(&[0i32; 4]));
    ok(launch(f, 4, 256, 0, vec![dx.into(), bins.into(), counts.into(), (n as i32).into()]));
    let want: Vec<u32> = (0..16).map(|b| x.iter().filter(|&&v| v == b).count() as u32).collect();
    assert_eq!(download::<u32>(bins, 16), want);
    let want: Vec<i32> = x
        .chunks(256)
        .map(|block| {
            let low = block.iter().filter(|&&v| v < 4).count() as i32;
            low * 4 + block.contains(&15) as i32 * 2 + 1
        })
        .collect();
    assert_eq!(download::<i32>(counts, 4), want);
}

#[test]
fn atomics_of_every_type() {
    let _session = session();
    let f = function(module(), "atomics");
    let n = 640u64;
    let i = upload(&[5i32, -1, 1000, 7]);
    let u = upload(&[1u32, 0, u32::MAX, 0, 1, 0]);
    let (l, x, d) = (upload(&[1u64, 0]), upload(&[1f32]), upload(&[1f64]));
    ok(launch(f, 5, 128, 0, vec![i.into(), u.into(), l.into(), x.into(), d.into()]));
    let got = download::<i32>(i, 4);
    let most = (0..n as i32).map(|t| t * 37 % 101).max().unwrap();
    let least = (0..n as i32).map(|t| -(t * 53 % 97)).min().unwrap();
    assert_eq!(got[..3], [5 + (n * (n - 1) / 2) as i32, most, least]);
    assert!((100..100 + n as i32).contains(&got[3]), "one thread's value: {}", got[3]);
    let xor = (0..n as u32).fold(0, |a, t| a ^ t);
    // atomicInc wraps to zero behind 9.
    assert_eq!(
        download::<u32>(u, 6),
        [1 + 3 * n as u32, u32::MAX, u32::MAX << 5, xor, 11, n as u32 % 10]
    );
    assert_eq!(download::<u64>(l, 2), [1 + ((n * (n - 1) / 2) << 30), (n - 1) << 33]);
    assert_eq!(download::<f32>(x, 1), [1. + 0.5 * n as f32]);
    assert_eq!(download::<f64>(d, 1), [1. + 0.25 * n as f64]);
}

#[test]
fn packed_halves() {
    let _session = session();
    let m = module();
    let f = function(m, "halves");
    let x = floats(50, 11);
    let (dx, h, b, out) =
        (upload(&x), upload(&[0u32; 50]), upload(&[0u32; 50]), upload(&[0f32; 50]));
    ok(launch(f, 1, 64, 0, vec![dx.into(), h.into(), b.into(), out.into(), 50.into()]));
    let (h, b) = (download::<[u16; 2]>(h, 50), download::<[u16; 2]>(b, 50));
    for (t, got) in download::<f32>(out, 50).into_iter().enumerate() {
        let half = |v: f32| {
            let fused = f16::from_f32(v).to_f64() * 1.5 + 0.25;
            f16::from_f64(fused).max(f16::from_f32(-3.))
        };
        let brain = |v: f32| bf16::from_f32(bf16::from_f32(v).to_f32() * 3.);
        let (low, high) = (half(x[t]), half(-x[t]));
        assert_eq!(h[t], [low.to_bits(), high.to_bits()], "f16 of {}", x[t]);
        assert_eq!(b[t], [brain(x[t]).to_bits(), brain(2. * x[t]).to_bits()], "bf16 of {}", x[t]);
        assert_eq!(got, low.to_f32() + brain(2. * x[t]).to_f32());
    }
    let f = function(m, "half_atomics");
    let (h, b, h2) = (upload(&[0u16; 2]), upload(&[0u16; 2]), upload(&[0u16; 2]));
    ok(launch(f, 2, 32, 0, vec![h.into(), b.into(), h2.into()]));
    assert_eq!(f16::from_bits(download::<u16>(h, 1)[0]).to_f32(), 32.);
    assert_eq!(bf16::from_bits(download::<u16>(b, 1)[0]).to_f32(), 16.);
    let pair: Vec<f32> =
        download::<u16>(h2, 2).into_iter().map(|v| f16::from_bits(v).to_f32()).collect();
    assert_eq!(pair, [64., 128.]);
}

#[test]
fn vectors_division_and_special_functions() {
    let _session = session();
    let f = function(module(), "mixed");
    let n = 200usize;
    let x = floats(4 * n, 13);
    let (dx, out) = (upload(&x), upload(&vec![0f32; n]));
    ok(launch(f, 2, 128, 0, vec![dx.into(), out.into(), 3i64.into(), (n as i32).into()]));
    for (t, got) in download::<f32>(out, n).into_iter().enumerate() {
        let at = t * 3 % n * 4;
        let v: Vec<f64> = x[at..at + 4].iter().map(|&v| v as f64).collect();
        let mut r = v[0].exp() + (v[1].abs() + 1.).ln() + v[2].abs().sqrt() + v[3].sin();
        r += v[0].tanh() + 1. / (v[1] * v[1] + 1.).sqrt() + v[2] * v[3] + v[0] + v[1].floor();
        r += v[2].round_ties_even() + v[3].trunc() + (t / 7 % 5) as f64 + v[0] / 3.;
        r += v[0].min(v[1]) + 1f64.copysign(v[2]);
        assert!((got as f64 - r).abs() < 2e-5 * (1. + r.abs()), "{t}: {got} instead of {r}");
    }
}

#[test]
fn dynamic_shared_memory_and_barriers_in_a_loop() {
    let _session = session();
    let f = function(module(), "strided_sum");
    let n = 5000usize;
    let x = floats(n, 17);
    let (dx, out) = (upload(&x), upload(&[0f32; 3]));
    let mut args = [dx, out, n as u64];
    let mut pointers: Vec<_> =
        args.iter_mut().map(|a| a as *mut u64 as *mut libc::c_void).collect();
    let none = std::ptr::null_mut();
    ok(cuLaunchKernel(f, 3, 1, 1, 128, 1, 1, 512, 0, pointers.as_mut_ptr(), none));
    let got: f64 = download::<f32>(out, 3).iter().map(|&v| v as f64).sum();
    let want: f64 = x.iter().map(|&v| v as f64).sum();
    assert!((got - want).abs() < 1e-2, "{got} instead of {want}");
}
