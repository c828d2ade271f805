//! Runs decoded kernels: one instruction at a time over the 32 lanes of a warp.
//!
//! Lanes that went different ways are kept as groups (program counter, lane mask). The
//! group furthest behind runs first, so groups meet again where the branches join. A
//! block without barriers runs its warps one after the other on one register file; with
//! barriers each warp has its own and runs until all of its lanes wait or are done.
use crate::compile::Kernel;
use crate::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;

mod access;
mod grid;

pub use grid::launch;

pub const LANES: usize = 32;
pub const FULL: u32 = !0;
pub const NONE: u32 = !0;

/// Windows of the generic address space that are not device memory.
pub const SHARED_WIN: u64 = 0x0200_0000_0000;
pub const LOCAL_WIN: u64 = 0x0300_0000_0000;
pub const PARAM_WIN: u64 = 0x0400_0000_0000;
pub const WIN_SIZE: u64 = 0x1_0000_0000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Plain,
    /// May fail: the fault flag is looked at afterwards.
    Mem,
    Bra,
    /// Indexed branch: the operand picks one of `Kernel::tables[imm]`.
    Brx,
    Exit,
    Bar,
    /// Works across lanes: the named lanes have to be here first.
    Coll,
}

pub type H = unsafe fn(&Inst, &mut Warp, u32);

#[derive(Clone)]
pub struct Inst {
    pub h: H,
    pub kind: Kind,
    pub gneg: bool,
    /// Number of vector elements, or another small number that the handler knows.
    pub n: u8,
    /// Base register of an address: 0 none, 4 or 8 its width.
    pub abase: u8,
    pub guard: u32,
    pub o: [u32; 8],
    pub imm: i64,
    /// Slot in the table of recently seen allocations.
    pub cache: u32,
    pub line: u32,
}

pub struct Group {
    pub pc: u32,
    pub mask: u32,
    pub st: St,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum St {
    Ready,
    AtBar,
    Blocked,
}

pub struct Launch<'a> {
    pub kernel: &'a Kernel,
    pub params: &'a [u8],
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dyn_shared: usize,
    pub next: AtomicU64,
    pub stop: AtomicBool,
    pub fault: Mutex<Option<Fault>>,
    pub steps: AtomicU64,
}

#[derive(Clone, Debug)]
pub struct Fault {
    pub code: i32,
    pub text: String,
}

pub struct Warp<'a> {
    pub rf: *mut u8,
    pub groups: Vec<Group>,
    pub exited: u32,
    pub live: u32,
    pub index: u32,
    pub carry: u32,
    pub local: *mut u8,
    pub local_size: usize,
    pub fault: Option<Fault>,
    pub bar_dest: Vec<(u8, u32, u32)>,
    pub blk: *mut Block,
    pub launch: &'a Launch<'a>,
    pub steps: u64,
}

/// What the warps of a block share.
pub struct Block {
    pub shared: *mut u8,
    pub shared_size: usize,
    pub cache: Vec<(u64, u64)>,
    pub ctaid: [u32; 3],
    pub bar_count: u32,
    pub bar_and: bool,
    pub bar_or: bool,
}

impl<'a> Warp<'a> {
    #[inline(always)]
    pub unsafe fn r<T>(&self, off: u32) -> &[T; LANES] {
        &*(self.rf.add(off as usize) as *const [T; LANES])
    }
    #[inline(always)]
    pub unsafe fn rm<T>(&mut self, off: u32) -> &mut [T; LANES] {
        &mut *(self.rf.add(off as usize) as *mut [T; LANES])
    }
    #[inline(always)]
    pub unsafe fn pred(&self, off: u32) -> u32 {
        *(self.rf.add(off as usize) as *const u32)
    }
    #[inline(always)]
    pub unsafe fn set_pred(&mut self, off: u32, m: u32, v: u32) {
        let p = self.rf.add(off as usize) as *mut u32;
        *p = (*p & !m) | (v & m);
    }
    #[inline(always)]
    pub unsafe fn put<T: Copy>(&mut self, off: u32, m: u32, v: &[T; LANES]) {
        let d = self.rf.add(off as usize) as *mut [T; LANES];
        if m == FULL {
            *d = *v;
        } else {
            for l in 0..LANES {
                if m >> l & 1 == 1 {
                    (*d)[l] = v[l];
                }
            }
        }
    }

    #[cold]
    pub fn fail(&mut self, code: i32, text: String) {
        if self.fault.is_none() {
            self.fault = Some(Fault { code, text });
        }
    }

    fn add_group(&mut self, pc: u32, mask: u32, st: St) {
        for g in self.groups.iter_mut() {
            if g.pc == pc && g.st == st {
                g.mask |= mask;
                return;
            }
        }
        self.groups.push(Group { pc, mask, st });
    }

    /// Runs until each lane has left the kernel or waits at a barrier.
    unsafe fn run(&mut self, code: &[Inst]) {
        loop {
            let mut best = usize::MAX;
            let mut bpc = u32::MAX;
            for (k, g) in self.groups.iter().enumerate() {
                if g.st == St::Ready && g.pc < bpc {
                    bpc = g.pc;
                    best = k;
                }
            }
            let mut forced = false;
            if best == usize::MAX {
                // Lanes that a collective waits for never came: go on without them.
                for (k, g) in self.groups.iter().enumerate() {
                    if g.st == St::Blocked && g.pc < bpc {
                        bpc = g.pc;
                        best = k;
                    }
                }
                if best == usize::MAX {
                    return;
                }
                forced = true;
            }
            let g = self.groups.swap_remove(best);
            let (mut pc, mut mask) = (g.pc, g.mask);
            let mut next = u32::MAX;
            for g in &self.groups {
                if g.st == St::Ready {
                    next = next.min(g.pc);
                }
            }
            let mut steps = 0u64;
            loop {
                if pc >= next {
                    self.add_group(pc, mask, St::Ready);
                    break;
                }
                steps += 1;
                let i = code.get_unchecked(pc as usize);
                let m = if i.guard == NONE {
                    mask
                } else {
                    let p = self.pred(i.guard);
                    mask & if i.gneg { !p } else { p }
                };
                match i.kind {
                    Kind::Plain => {
                        if m != 0 {
                            (i.h)(i, self, m);
                        }
                        pc += 1;
                    }
                    Kind::Mem => {
                        if m != 0 {
                            (i.h)(i, self, m);
                            if self.fault.is_some() {
                                return;
                            }
                        }
                        pc += 1;
                    }
                    Kind::Bra => {
                        let target = i.imm as u32;
                        if m == mask {
                            pc = target;
                        } else if m == 0 || target == pc + 1 {
                            pc += 1;
                        } else {
                            let rest = mask & !m;
                            let (near, nm, far, fm) = if target < pc + 1 {
                                (target, m, pc + 1, rest)
                            } else {
                                (pc + 1, rest, target, m)
                            };
                            self.add_group(far, fm, St::Ready);
                            next = next.min(far);
                            pc = near;
                            mask = nm;
                        }
                        if steps & 0xfffff == 0 && self.launch.stop.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                    Kind::Brx => {
                        let table = &self.launch.kernel.tables[i.imm as usize];
                        for l in 0..LANES {
                            if m >> l & 1 == 1 {
                                let ix = self.r::<u32>(i.o[0])[l] as usize;
                                let Some(&t) = table.get(ix) else {
                                    self.fail(
                                        715,
                                        format!(
                                            "kernel {}: brx.idx out of its table",
                                            self.launch.kernel.name
                                        ),
                                    );
                                    return;
                                };
                                self.add_group(t, 1 << l, St::Ready);
                            }
                        }
                        let rest = mask & !m;
                        if rest != 0 {
                            self.add_group(pc + 1, rest, St::Ready);
                        }
                        break;
                    }
                    Kind::Exit => {
                        self.exited |= m;
                        mask &= !m;
                        if mask == 0 {
                            break;
                        }
                        pc += 1;
                    }
                    Kind::Bar => {
                        if m != 0 {
                            (i.h)(i, self, m);
                            self.add_group(pc + 1, m, St::AtBar);
                            mask &= !m;
                            if mask == 0 {
                                break;
                            }
                        }
                        pc += 1;
                    }
                    Kind::Coll => {
                        let mut m = m;
                        if m != 0 {
                            // Take in lanes that already wait here.
                            if i.guard == NONE {
                                let mut k = 0;
                                while k < self.groups.len() {
                                    let g = &self.groups[k];
                                    if g.st == St::Blocked && g.pc == pc {
                                        mask |= g.mask;
                                        m |= g.mask;
                                        self.groups.swap_remove(k);
                                    } else {
                                        k += 1;
                                    }
                                }
                            }
                            let named = self.r::<u32>(i.o[7])[m.trailing_zeros() as usize];
                            let need = named & self.live & !self.exited;
                            if need & !m != 0 && !forced {
                                self.add_group(pc, mask, St::Blocked);
                                break;
                            }
                            (i.h)(i, self, m);
                            forced = false;
                            if self.fault.is_some() {
                                return;
                            }
                        }
                        pc += 1;
                    }
                }
            }
            self.steps += steps;
        }
    }
}

pub const SP_GLOBAL: u8 = 0;
pub const SP_SHARED: u8 = 1;
pub const SP_LOCAL: u8 = 2;
pub const SP_PARAM: u8 = 3;
pub const SP_GENERIC: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    Zero,
    NSm,
    DynShared,
    TotalShared,
    MaskEq,
    MaskLt,
    MaskLe,
    MaskGt,
    MaskGe,
}
