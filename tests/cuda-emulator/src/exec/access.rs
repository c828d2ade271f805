//! From the lanes' addresses to checked pointers.
use super::*;

impl Warp<'_> {
    /// Per lane addresses of a memory instruction whose base register is operand `k`.
    #[inline(always)]
    pub unsafe fn addrs(&self, i: &Inst, k: usize) -> [u64; LANES] {
        let mut a = [i.imm as u64; LANES];
        if i.abase == 8 {
            let b = self.r::<u64>(i.o[k]);
            for l in 0..LANES {
                a[l] = b[l].wrapping_add(i.imm as u64);
            }
        } else if i.abase == 4 {
            let b = self.r::<u32>(i.o[k]);
            for l in 0..LANES {
                a[l] = b[l].wrapping_add(i.imm as u32) as u64;
            }
        }
        a
    }

    #[cold]
    unsafe fn lane_name(&self, lane: usize) -> String {
        let blk = &*self.blk;
        let b = self.launch.block;
        let t = self.index as usize * LANES + lane;
        let (x, y) = (b[0] as usize, b[1] as usize);
        format!(
            "block ({},{},{}) thread ({},{},{})",
            blk.ctaid[0],
            blk.ctaid[1],
            blk.ctaid[2],
            t % x,
            t / x % y,
            t / (x * y)
        )
    }

    /// Turns addresses into host pointers, or reports the first bad lane.
    #[inline(always)]
    pub unsafe fn resolve<const SP: u8>(
        &mut self,
        i: &Inst,
        m: u32,
        a: &[u64; LANES],
        size: u64,
    ) -> Option<[*mut u8; LANES]> {
        let mut out = [std::ptr::null_mut::<u8>(); LANES];
        match SP {
            SP_GLOBAL => {
                let (mut lo, mut hi, mut or) = (u64::MAX, 0u64, 0u64);
                if m == FULL {
                    for l in 0..LANES {
                        lo = lo.min(a[l]);
                        hi = hi.max(a[l]);
                        or |= a[l];
                    }
                } else {
                    for l in 0..LANES {
                        if m >> l & 1 == 1 {
                            lo = lo.min(a[l]);
                            hi = hi.max(a[l]);
                            or |= a[l];
                        }
                    }
                }
                let blk = &*self.blk;
                let c = *blk.cache.get_unchecked(i.cache as usize);
                let inside = lo >= c.0 && hi < c.1 && hi + size <= c.1;
                if (!inside || or & (size - 1) != 0) && !self.check_slow(i, m, a, size) {
                    return None;
                }
                let delta = mem::delta();
                for l in 0..LANES {
                    out[l] = a[l].wrapping_add(delta) as *mut u8;
                }
            }
            SP_SHARED => {
                let (base, len) = ((*self.blk).shared, (*self.blk).shared_size as u64);
                for l in 0..LANES {
                    if m >> l & 1 == 1
                        && (a[l] >= len || a[l] + size > len || a[l] & (size - 1) != 0)
                    {
                        self.bad_lane(i, l, a[l], size, "shared", len);
                        return None;
                    }
                    out[l] = base.wrapping_add(a[l] as usize);
                }
            }
            SP_LOCAL => {
                let len = self.local_size as u64;
                for l in 0..LANES {
                    if m >> l & 1 == 1 && (a[l] >= len || a[l] + size > len) {
                        self.bad_lane(i, l, a[l], size, "local", len);
                        return None;
                    }
                    out[l] =
                        self.local.wrapping_add(l * self.local_size).wrapping_add(a[l] as usize);
                }
            }
            SP_PARAM => {
                let len = self.launch.params.len() as u64;
                for l in 0..LANES {
                    if m >> l & 1 == 1 && (a[l] >= len || a[l] + size > len) {
                        self.bad_lane(i, l, a[l], size, "parameter", len);
                        return None;
                    }
                    out[l] = (self.launch.params.as_ptr() as *mut u8).wrapping_add(a[l] as usize);
                }
            }
            _ => {
                let mut win = false;
                for l in 0..LANES {
                    if m >> l & 1 == 1 {
                        win |= a[l].wrapping_sub(SHARED_WIN) < 3 * 0x100_0000_0000;
                    }
                }
                if !win {
                    return self.resolve::<SP_GLOBAL>(i, m, a, size);
                }
                for l in 0..LANES {
                    if m >> l & 1 == 0 {
                        continue;
                    }
                    let mut one = [a[l]; LANES];
                    let bit = 1u32 << l;
                    let p = if a[l].wrapping_sub(SHARED_WIN) < WIN_SIZE {
                        one[l] -= SHARED_WIN;
                        self.resolve::<SP_SHARED>(i, bit, &one, size)
                    } else if a[l].wrapping_sub(LOCAL_WIN) < WIN_SIZE {
                        one[l] -= LOCAL_WIN;
                        self.resolve::<SP_LOCAL>(i, bit, &one, size)
                    } else if a[l].wrapping_sub(PARAM_WIN) < WIN_SIZE {
                        one[l] -= PARAM_WIN;
                        self.resolve::<SP_PARAM>(i, bit, &one, size)
                    } else {
                        self.resolve::<SP_GLOBAL>(i, bit, &one, size)
                    }?;
                    out[l] = p[l];
                }
            }
        }
        Some(out)
    }

    #[cold]
    #[inline(never)]
    unsafe fn bad_lane(&mut self, i: &Inst, lane: usize, a: u64, size: u64, what: &str, len: u64) {
        let code = if a & (size - 1) != 0 && a + size <= len { 716 } else { 700 };
        let text = format!(
            "kernel {}: {size}-byte access to {what} address {a:#x} of {len} bytes by {} (PTX statement {})",
            self.launch.kernel.name, self.lane_name(lane), i.line
        );
        self.fail(code, text);
    }

    #[cold]
    #[inline(never)]
    unsafe fn check_slow(&mut self, i: &Inst, m: u32, a: &[u64; LANES], size: u64) -> bool {
        let mut last = (0u64, 0u64);
        for l in 0..LANES {
            if m >> l & 1 == 0 {
                continue;
            }
            if !(a[l] >= last.0 && a[l] < last.1 && a[l] + size <= last.1) {
                match mem::lookup(a[l], size) {
                    Ok(r) => last = r,
                    Err(why) => {
                        let text = format!(
                            "kernel {}: {size}-byte access to {:#x} by {} (PTX statement {}): {why}",
                            self.launch.kernel.name, a[l], self.lane_name(l), i.line
                        );
                        self.fail(700, text);
                        return false;
                    }
                }
            }
            if a[l] & (size - 1) != 0 {
                let text = format!(
                    "kernel {}: {size}-byte access to {:#x} is not aligned, by {} (PTX statement {})",
                    self.launch.kernel.name, a[l], self.lane_name(l), i.line
                );
                self.fail(716, text);
                return false;
            }
        }
        let blk = &mut *self.blk;
        blk.cache[i.cache as usize] = last;
        true
    }
}
