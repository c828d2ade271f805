//! Exact counts of copies, synchronisations, allocations and launches.
use super::{t, Res, Run};
use candle_core::Result;

/// A number from the emulator's counters, named by its path.
fn counter(path: &[&str]) -> f64 {
    let text = unsafe {
        let f = libc::dlsym(libc::RTLD_DEFAULT, c"cudaemu_counters_json".as_ptr());
        if f.is_null() {
            return f64::NAN;
        }
        let f = std::mem::transmute::<*mut libc::c_void, extern "C" fn(*mut u8, usize) -> usize>(f);
        let mut buf = vec![0u8; f(std::ptr::null_mut(), 0) + 1];
        f(buf.as_mut_ptr(), buf.len());
        String::from_utf8_lossy(&buf).into_owned()
    };
    let mut at = &text[..];
    for (k, p) in path.iter().enumerate() {
        // All but the last name an object, which keeps them apart from plain numbers.
        let open = if k + 1 < path.len() { "{" } else { "" };
        match at.split_once(&format!("\"{p}\":{open}")) {
            Some((_, rest)) => at = rest,
            None => return 0.0,
        }
    }
    at.split([',', '}']).next().and_then(|v| v.parse().ok()).unwrap_or(f64::NAN)
}

/// The counts that one is after, for a program whose copies are known.
pub fn check(r: &mut Run) -> Res<()> {
    if !r.wanted("count") {
        return Ok(());
    }
    let d = r.gpu.clone();
    let paths: [&[&str]; 8] = [
        &["h2d", "count"],
        &["h2d", "bytes"],
        &["d2h", "count"],
        &["sync", "count"],
        &["sync", "implicit"],
        &["alloc", "count"],
        &["launch", "count"],
        &["badd_f32"],
    ];
    let read = || paths.map(counter);
    let mut check = |name: &str, want: [f64; 8], f: &dyn Fn() -> Result<()>| -> Res<()> {
        let before = read();
        f()?;
        let after = read();
        let got: Vec<f64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
        let off = got.iter().zip(want).filter(|(g, w)| **g != *w).count();
        if off > 0 {
            println!("      {name}: h2d, bytes, d2h, syncs, implicit, allocations, launches, badd: {got:?}, expected {want:?}");
        }
        r.note(name, Ok(off as f64), 0.0);
        Ok(())
    };
    let (a, b) = (t(&[6, 8], 1, &d)?, t(&[6, 8], 2, &d)?);
    let _ = (&a + &b)?; // loads the module
    check("count-upload", [1., 192., 0., 0., 0., 1., 0., 0.], &|| t(&[6, 8], 1, &d).map(|_| ()))?;
    check("count-add", [0., 0., 0., 0., 0., 1., 1., 1.], &|| (&a + &b).map(|_| ()))?;
    // A view that is not contiguous: candle sends dims and strides, 3 * 2 words of 8 bytes.
    check("count-add-strided", [1., 48., 0., 0., 0., 2., 1., 1.], &|| {
        (a.t()? + b.t()?).map(|_| ())
    })?;
    check("count-download", [0., 0., 1., 1., 1., 0., 0., 0.], &|| a.to_vec2::<f32>().map(|_| ()))?;
    check("count-synchronize", [0., 0., 0., 1., 0., 0., 0., 0.], &|| d.synchronize())?;
    Ok(())
}
