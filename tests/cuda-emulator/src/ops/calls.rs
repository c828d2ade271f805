//! The library functions that device code calls.
use super::*;

unsafe fn local_u64(w: &Warp, lane: usize, off: u32) -> u64 {
    (w.local.add(lane * w.local_size + off as usize) as *const u64).read_unaligned()
}

unsafe fn text_at(addr: u64) -> String {
    let mut s = vec![];
    let mut a = addr;
    while let Ok((_, end)) = mem::lookup(a, 1) {
        while a < end {
            let c = *(a.wrapping_add(mem::delta()) as *const u8);
            if c == 0 || s.len() > 4096 {
                return String::from_utf8_lossy(&s).into_owned();
            }
            s.push(c);
            a += 1;
        }
    }
    String::from_utf8_lossy(&s).into_owned()
}

pub unsafe fn vprintf(i: &Inst, w: &mut Warp, m: u32) {
    for l in 0..LANES {
        if m >> l & 1 == 0 {
            continue;
        }
        let fmt = text_at(local_u64(w, l, i.o[0]));
        let list = local_u64(w, l, i.o[1]);
        let mut at = list.wrapping_sub(LOCAL_WIN) as usize;
        let mut take = |size: usize| -> u64 {
            at = at.next_multiple_of(size);
            let mut b = [0u8; 8];
            if at + size <= w.local_size {
                std::ptr::copy_nonoverlapping(
                    w.local.add(l * w.local_size + at),
                    b.as_mut_ptr(),
                    size,
                );
            }
            at += size;
            u64::from_le_bytes(b)
        };
        let mut out = String::new();
        let mut it = fmt.chars().peekable();
        while let Some(c) = it.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut spec = String::new();
            while let Some(&c) = it.peek() {
                spec.push(c);
                it.next();
                if c.is_ascii_alphabetic() && !matches!(c, 'l' | 'h' | 'z' | 'j') || c == '%' {
                    break;
                }
            }
            let long = spec.contains('l') || spec.contains('z') || spec.contains('j');
            let precision = spec.split('.').nth(1).and_then(|p| {
                p.trim_end_matches(|c: char| c.is_ascii_alphabetic()).parse::<usize>().ok()
            });
            match spec.chars().last() {
                Some('%') => out.push('%'),
                Some('d' | 'i') if long => out += &(take(8) as i64).to_string(),
                Some('d' | 'i') => out += &(take(4) as i32).to_string(),
                Some('u') => out += &take(if long { 8 } else { 4 }).to_string(),
                Some('x' | 'X') => out += &format!("{:x}", take(if long { 8 } else { 4 })),
                Some('c') => out.push(take(4) as u8 as char),
                Some('p') => out += &format!("{:#x}", take(8)),
                Some('s') => out += &text_at(take(8)),
                Some('f' | 'F') => {
                    out += &format!("{:.*}", precision.unwrap_or(6), f64::from_bits(take(8)))
                }
                Some('e' | 'g' | 'E' | 'G') => out += &format!("{:e}", f64::from_bits(take(8))),
                _ => out += &spec,
            }
        }
        print!("{out}");
    }
    use std::io::Write;
    let _ = std::io::stdout().flush();
}

pub unsafe fn assertfail(i: &Inst, w: &mut Warp, m: u32) {
    let l = m.trailing_zeros() as usize;
    let text = format!(
        "kernel {}: assertion `{}` failed at {}:{}",
        w.launch.kernel.name,
        text_at(local_u64(w, l, i.o[0])),
        text_at(local_u64(w, l, i.o[1])),
        local_u64(w, l, i.o[2]) as u32
    );
    w.fail(710, text);
}
