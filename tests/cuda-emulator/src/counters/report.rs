//! The counts as JSON: for the program that runs, and as a report in a file.
use super::*;
use std::fmt::Write as _;

fn quote(s: &str) -> String {
    let mut o = String::from("\"");
    for c in s.chars() {
        match c {
            '"' | '\\' => {
                o.push('\\');
                o.push(c);
            }
            c if (c as u32) < 32 => write!(o, "\\u{:04x}", c as u32).unwrap(),
            c => o.push(c),
        }
    }
    o.push('"');
    o
}

fn json(c: &Counters) -> String {
    let copy = |c: &Copy| {
        format!(
            "{{\"count\":{},\"sync\":{},\"async\":{},\"pageable\":{},\"bytes\":{}}}",
            c.sync + c.asyn,
            c.sync,
            c.asyn,
            c.pageable,
            c.bytes
        )
    };
    let map = |m: &BTreeMap<String, u64>| {
        let v: Vec<String> = m.iter().map(|(k, v)| format!("{}:{v}", quote(k))).collect();
        format!("{{{}}}", v.join(","))
    };
    let kernels = |f: fn(&KernelCounts) -> u64| {
        let counts = c.kernels.iter().map(|(k, v)| (k, f(v))).filter(|(_, n)| *n > 0);
        let v: Vec<String> = counts.map(|(k, n)| format!("{}:{n}", quote(k))).collect();
        format!("{{{}}}", v.join(","))
    };
    let g = &c.graph;
    let graph = format!(
        "{{\"captures\":{},\"captured\":{},\"pageable\":{},\"launches\":{},\"nodes\":{},\
         \"kernels\":{},\"library\":{},\"copies\":{},\"memsets\":{},\"allocs\":{},\"frees\":{},\
         \"by_name\":{}}}",
        g.captures,
        g.captured,
        g.pageable,
        g.launches,
        g.nodes,
        g.kernels,
        g.library,
        g.copies,
        g.fills,
        g.allocs,
        g.frees,
        kernels(|k| k.replays),
    );
    let (live, live_bytes, peak) = crate::mem::usage();
    format!(
        "{{\"h2d\":{},\"d2h\":{},\"d2d\":{},\"memset\":{},\
         \"sync\":{{\"count\":{},\"stream\":{},\"context\":{},\"event\":{},\"implicit\":{}}},\
         \"events\":{{\"record\":{},\"stream_wait\":{}}},\
         \"alloc\":{{\"count\":{},\"bytes\":{},\"free\":{},\"live\":{live},\"live_bytes\":{live_bytes},\"peak_bytes\":{peak}}},\
         \"launch\":{{\"count\":{},\"threads\":{},\"warp_instructions\":{},\"cpu_ms\":{},\"by_name\":{},\"us_by_name\":{}}},\
         \"gemm\":{{\"count\":{},\"flops\":{},\"cpu_ms\":{}}},\
         \"conv\":{{\"count\":{},\"flops\":{},\"cpu_ms\":{}}},\"graph\":{graph},\
         \"random\":{},\"modules\":{},\"faults\":{},\"calls\":{}}}",
        copy(&c.h2d), copy(&c.d2h), copy(&c.d2d), copy(&c.memset),
        c.stream_sync + c.context_sync + c.event_sync + c.implicit_sync, c.stream_sync, c.context_sync, c.event_sync, c.implicit_sync,
        c.event_record, c.stream_wait_event,
        c.allocs, c.alloc_bytes, c.frees,
        c.launches, c.threads, c.warp_steps, c.kernel_ns / 1_000_000, kernels(|k| k.launches), kernels(|k| k.ns / 1000),
        c.gemms, c.gemm_flops, c.gemm_ns / 1_000_000, c.convs, c.conv_flops, c.conv_ns / 1_000_000, c.random, c.modules, c.faults, map(&c.apis),
    )
}

fn write_report(final_label: Option<&str>) {
    let Some(path) = &crate::config().report else {
        return;
    };
    let now = snapshot();
    let mut marks = MARKS.lock().unwrap().clone();
    if let Some(l) = final_label {
        let last = LAST.lock().unwrap().clone().unwrap_or_default();
        marks.push(format!(
            "{{\"label\":{},\"since_last\":{},\"copies\":{}}}",
            quote(l),
            json(&minus(&now, &last)),
            copies()
        ));
    }
    let text = format!("{{\"marks\":[\n{}\n],\n\"total\":{}}}\n", marks.join(",\n"), json(&now));
    if let Err(e) = std::fs::write(path, text) {
        eprintln!("cudaemu: {path}: {e}");
    }
}

extern "C" fn at_exit() {
    write_report(Some("exit"));
}

pub fn start() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| unsafe {
        if crate::config().report.is_some() {
            libc::atexit(at_exit);
        }
    });
}

/// All counts since the start or the last reset, as JSON: writes at most `len` bytes with
/// the closing NUL and returns the length of the whole text without it.
#[no_mangle]
pub unsafe extern "C" fn cudaemu_counters_json(
    buf: *mut libc::c_char,
    len: libc::size_t,
) -> libc::size_t {
    hand_out(&json(&snapshot()), buf, len)
}

/// The copies since the last mark or reset, oldest first, as JSON in the same way.
#[no_mangle]
pub unsafe extern "C" fn cudaemu_copies_json(
    buf: *mut libc::c_char,
    len: libc::size_t,
) -> libc::size_t {
    hand_out(&copies(), buf, len)
}

unsafe fn hand_out(text: &str, buf: *mut libc::c_char, len: libc::size_t) -> libc::size_t {
    if !buf.is_null() && len > 0 {
        let n = text.len().min(len - 1);
        std::ptr::copy_nonoverlapping(text.as_ptr(), buf as *mut u8, n);
        *buf.add(n) = 0;
    }
    text.len()
}

fn copies() -> String {
    log(|l| {
        let mut items: Vec<String> = l
            .copies
            .iter()
            .map(|c| {
                format!(
                    "{{\"direction\":\"{}\",\"bytes\":{},\"async\":{},\"pageable\":{},\
                     \"launches_before\":{},\"after\":{}}}",
                    c.direction,
                    c.event.bytes,
                    c.event.asyn,
                    c.event.pageable,
                    c.launches,
                    quote(c.kernel)
                )
            })
            .collect();
        if l.left_out > 0 {
            items.push(format!("{{\"left_out\":{}}}", l.left_out));
        }
        format!("[{}]", items.join(","))
    })
}

/// Sets all counts to zero and forgets an error that had made the context unusable.
#[no_mangle]
pub extern "C" fn cudaemu_reset() {
    with(|c| *c = Default::default());
    log(|l| *l = Default::default());
    for a in APIS.lock().unwrap().iter() {
        a.n.store(0, Relaxed);
    }
    *LAST.lock().unwrap() = None;
    crate::driver::clear_error();
}

/// Ends a stretch of the report and gives it a name.
#[no_mangle]
pub unsafe extern "C" fn cudaemu_mark(label: *const libc::c_char) {
    let label = if label.is_null() {
        String::new()
    } else {
        std::ffi::CStr::from_ptr(label).to_string_lossy().into_owned()
    };
    let now = snapshot();
    {
        let mut last = LAST.lock().unwrap();
        let before = last.take().unwrap_or_default();
        MARKS.lock().unwrap().push(format!(
            "{{\"label\":{},\"since_last\":{},\"copies\":{}}}",
            quote(&label),
            json(&minus(&now, &before)),
            copies()
        ));
        log(|l| *l = Default::default());
        *last = Some(now);
    }
    crate::trace(|| format!("mark {label}"));
    write_report(None);
}
