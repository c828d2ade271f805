//! Blocks of a launch, spread over the host's threads.
use super::*;

/// Memory that a worker keeps from block to block.
struct Worker {
    rf: Vec<u64>,
    shared: Vec<u64>,
    local: Vec<u64>,
}

thread_local! {
    static KEEP: std::cell::RefCell<Worker> = const {
        std::cell::RefCell::new(Worker { rf: vec![], shared: vec![], local: vec![] })
    };
}

unsafe fn fill<T: Copy>(rf: *mut u8, off: u32, v: T) {
    *(rf.add(off as usize) as *mut [T; LANES]) = [v; LANES];
}

unsafe fn worker(l: &Launch, wk: &mut Worker) {
    let k = l.kernel;
    let threads = (l.block[0] * l.block[1] * l.block[2]) as usize;
    let nwarps = threads.div_ceil(LANES);
    let files = if k.has_barrier { nwarps } else { 1 };
    let rf_bytes = k.rf_size.next_multiple_of(64) + 64;
    let need = (files * rf_bytes + 64) / 8 + 8;
    if wk.rf.len() < need {
        wk.rf = vec![0; need];
    }
    let dyn_at = k.shared_size.next_multiple_of(k.dyn_align.max(16));
    let shared_size = if l.dyn_shared > 0 { dyn_at + l.dyn_shared } else { k.shared_size };
    let need = shared_size / 8 + 16;
    if wk.shared.len() < need {
        wk.shared = vec![0; need];
    }
    let local_size = k.local_size.next_multiple_of(16);
    let need = files * LANES * local_size / 8 + 16;
    if wk.local.len() < need {
        wk.local = vec![0; need];
    }
    let rf0 = {
        let p = wk.rf.as_mut_ptr() as *mut u8;
        p.add(p.align_offset(64))
    };
    let shared = {
        let p = wk.shared.as_mut_ptr() as *mut u8;
        p.add(p.align_offset(16))
    };
    let local = {
        let p = wk.local.as_mut_ptr() as *mut u8;
        p.add(p.align_offset(16))
    };

    // What stays the same for the whole launch.
    for f in 0..files {
        let rf = rf0.add(f * rf_bytes);
        for &(off, width, bits) in &k.consts {
            match width {
                2 => fill(rf, off, bits as u16),
                4 => fill(rf, off, bits as u32),
                8 => fill(rf, off, bits),
                _ => *(rf.add(off as usize) as *mut u32) = bits as u32,
            }
        }
        for &(sp, off) in &k.specials {
            match sp {
                Special::Ntid(d) => fill(rf, off, l.block[d as usize]),
                Special::Nctaid(d) => fill(rf, off, l.grid[d as usize]),
                Special::NWarpId => fill(rf, off, nwarps as u32),
                Special::Zero => fill(rf, off, 0u32),
                Special::NSm => fill(rf, off, 1u32),
                Special::DynShared => fill(rf, off, l.dyn_shared as u32),
                Special::TotalShared => fill(rf, off, shared_size as u32),
                Special::LaneId => {
                    *(rf.add(off as usize) as *mut [u32; LANES]) = std::array::from_fn(|i| i as u32)
                }
                Special::MaskEq => {
                    *(rf.add(off as usize) as *mut [u32; LANES]) =
                        std::array::from_fn(|i| 1u32 << i)
                }
                Special::MaskLt => {
                    *(rf.add(off as usize) as *mut [u32; LANES]) =
                        std::array::from_fn(|i| (1u32 << i) - 1)
                }
                Special::MaskLe => {
                    *(rf.add(off as usize) as *mut [u32; LANES]) =
                        std::array::from_fn(|i| (1u32 << i) | ((1u32 << i) - 1))
                }
                Special::MaskGt => {
                    *(rf.add(off as usize) as *mut [u32; LANES]) =
                        std::array::from_fn(|i| !((1u32 << i) | ((1u32 << i) - 1)))
                }
                Special::MaskGe => {
                    *(rf.add(off as usize) as *mut [u32; LANES]) =
                        std::array::from_fn(|i| !((1u32 << i) - 1))
                }
                Special::Tid(_) | Special::Ctaid(_) | Special::WarpId => {}
            }
        }
    }

    let mut blk = Block {
        shared,
        shared_size,
        cache: vec![(1, 0); k.caches.max(1)],
        ctaid: [0; 3],
        bar_count: 0,
        bar_and: true,
        bar_or: false,
    };
    let mut warps: Vec<Warp> = (0..files)
        .map(|f| Warp {
            rf: rf0.add(f * rf_bytes),
            groups: Vec::with_capacity(8),
            exited: 0,
            live: 0,
            index: 0,
            carry: 0,
            local: local.add(f * LANES * local_size),
            local_size,
            fault: None,
            bar_dest: vec![],
            blk: &mut blk,
            launch: l,
            steps: 0,
        })
        .collect();

    let total = l.grid[0] as u64 * l.grid[1] as u64 * l.grid[2] as u64;
    let chunk = (total / 64).clamp(1, 64);
    let setup = |w: &mut Warp, wi: usize, cta: [u32; 3]| {
        let first = wi * LANES;
        let n = (threads - first).min(LANES);
        w.live = if n == LANES { FULL } else { (1u32 << n) - 1 };
        w.exited = !w.live;
        w.index = wi as u32;
        w.groups.clear();
        w.groups.push(Group { pc: 0, mask: w.live, st: St::Ready });
        for &(sp, off) in &k.specials {
            match sp {
                Special::Tid(d) => {
                    let (bx, by) = (l.block[0] as usize, l.block[1] as usize);
                    let v: [u32; LANES] = std::array::from_fn(|i| {
                        let t = first + i;
                        (match d {
                            0 => t % bx,
                            1 => t / bx % by,
                            _ => t / (bx * by),
                        }) as u32
                    });
                    *(w.rf.add(off as usize) as *mut [u32; LANES]) = v;
                }
                Special::Ctaid(d) => fill(w.rf, off, cta[d as usize]),
                Special::WarpId => fill(w.rf, off, wi as u32),
                _ => {}
            }
        }
    };

    'grid: loop {
        let from = l.next.fetch_add(chunk, Ordering::Relaxed);
        if from >= total || l.stop.load(Ordering::Relaxed) {
            break;
        }
        for b in from..(from + chunk).min(total) {
            let cta = [
                (b % l.grid[0] as u64) as u32,
                (b / l.grid[0] as u64 % l.grid[1] as u64) as u32,
                (b / (l.grid[0] as u64 * l.grid[1] as u64)) as u32,
            ];
            blk.ctaid = cta;
            if shared_size > 0 && crate::config().poison {
                std::ptr::write_bytes(shared, 0xff, shared_size);
            }
            if !k.has_barrier {
                for wi in 0..nwarps {
                    let w = &mut warps[0];
                    setup(w, wi, cta);
                    w.run(&k.code);
                    if w.fault.is_some() {
                        break 'grid;
                    }
                }
            } else {
                for (wi, w) in warps.iter_mut().enumerate() {
                    setup(w, wi, cta);
                }
                loop {
                    let mut waiting = 0;
                    for w in warps.iter_mut() {
                        w.run(&k.code);
                        if w.fault.is_some() {
                            break 'grid;
                        }
                        waiting += w.groups.len();
                    }
                    if waiting == 0 {
                        break;
                    }
                    if l.stop.load(Ordering::Relaxed) {
                        break 'grid;
                    }
                    // All threads that are left have arrived: let them go on.
                    let (count, and, or) = (blk.bar_count, blk.bar_and, blk.bar_or);
                    for w in warps.iter_mut() {
                        for (what, off, m) in std::mem::take(&mut w.bar_dest) {
                            match what {
                                1 => w.put(off, m, &[count; LANES]),
                                2 => w.set_pred(off, m, if and { FULL } else { 0 }),
                                _ => w.set_pred(off, m, if or { FULL } else { 0 }),
                            }
                        }
                        for g in w.groups.iter_mut() {
                            g.st = St::Ready;
                        }
                    }
                    (blk.bar_count, blk.bar_and, blk.bar_or) = (0, true, false);
                }
            }
        }
    }
    let mut steps = 0;
    for w in &mut warps {
        steps += w.steps;
        if let Some(f) = w.fault.take() {
            l.stop.store(true, Ordering::Relaxed);
            let mut slot = l.fault.lock().unwrap();
            if slot.is_none() {
                *slot = Some(f);
            }
        }
    }
    l.steps.fetch_add(steps, Ordering::Relaxed);
}

unsafe fn worker_here(l: &Launch) {
    KEEP.with(|k| match k.try_borrow_mut() {
        Ok(mut wk) => worker(l, &mut wk),
        Err(_) => worker(l, &mut Worker { rf: vec![], shared: vec![], local: vec![] }),
    })
}

/// Runs the whole grid; returns the first fault.
pub fn launch(l: &Launch) -> Option<Fault> {
    let blocks = l.grid[0] as u64 * l.grid[1] as u64 * l.grid[2] as u64;
    let threads = (l.block[0] * l.block[1] * l.block[2]) as u64;
    let work = blocks * threads.div_ceil(32) * l.kernel.code.len() as u64;
    let n = crate::config().threads;
    if n > 1 && blocks > 1 && work > 40_000 {
        std::thread::scope(|s| {
            for _ in 1..n {
                s.spawn(|| unsafe { worker_here(l) });
            }
            unsafe { worker_here(l) };
        });
    } else {
        unsafe { worker_here(l) };
    }
    l.fault.lock().unwrap().take()
}
