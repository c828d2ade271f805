//! Statements, and what each opcode becomes.
use super::*;

impl Builder<'_> {
    pub(super) fn stmt(&mut self, t: &[Tok]) -> R<()> {
        let mut k = 0;
        let mut guard = None;
        if t[0].is(b'@') {
            k = 1;
            let neg = t[k].is(b'!');
            if neg {
                k += 1;
            }
            let p = t[k].word().ok_or("guard")?;
            k += 1;
            guard = Some((self.find(p).ok_or_else(|| format!("unknown predicate {p}"))?, neg));
        }
        let opcode = t[k].word().ok_or("an opcode was expected")?;
        k += 1;
        if opcode.starts_with('.') {
            return self.declare(&t[k - 1..]);
        }
        let mut ops_ = vec![];
        while k < t.len() {
            ops_.push(operand(t, &mut k)?);
            if k < t.len() && t[k].is(b',') {
                k += 1;
            }
        }
        let before = self.code.len();
        self.instruction(opcode, &ops_, before)?;
        let line = self.statement;
        for i in &mut self.code[before..] {
            if i.line == 0 {
                i.line = line;
            }
            if let Some((s, neg)) = guard {
                if i.guard == NONE {
                    i.guard = s.off;
                    i.gneg = neg;
                } else {
                    return Err("an instruction with two guards".into());
                }
            }
        }
        Ok(())
    }

    pub fn emit(&mut self, h: H, d: Slot, s: &[Slot]) {
        let mut i = plain(h);
        i.o[0] = d.off;
        for (k, s) in s.iter().enumerate() {
            i.o[k + 1] = s.off;
        }
        self.code.push(i);
    }

    pub(super) fn instruction(&mut self, opcode: &str, o: &[Op], before: usize) -> R<()> {
        let parts: Vec<&str> = opcode.split('.').collect();
        let op = parts[0];
        let mods = &parts[1..];
        let ty = *parts.last().unwrap();
        let has = |m: &str| mods.contains(&m);
        match op {
            "bra" => {
                let Some(Op::Name(l)) = o.first() else { return Err("branch target".into()) };
                let mut i = plain(ops::nop);
                i.kind = Kind::Bra;
                self.fixups.push((self.code.len(), format!("{}{l}", self.prefix)));
                self.code.push(i);
            }
            "brx" => {
                let s = self.src(&o[0], "u32")?;
                let Op::Name(l) = &o[1] else { return Err("branch table".into()) };
                let list = self
                    .target_lists
                    .get(&format!("{}{l}", self.prefix))
                    .cloned()
                    .ok_or("branch table is not known yet")?;
                let mut i = plain(ops::nop);
                i.kind = Kind::Brx;
                i.o[0] = s.off;
                i.imm = self.table_fix.len() as i64;
                self.table_fix.push(list);
                self.code.push(i);
            }
            "ret" if self.ret_label.is_some() => {
                let mut i = plain(ops::nop);
                i.kind = Kind::Bra;
                self.fixups.push((self.code.len(), self.ret_label.clone().unwrap()));
                self.code.push(i);
            }
            "ret" | "exit" => {
                let mut i = plain(ops::nop);
                i.kind = Kind::Exit;
                self.code.push(i);
            }
            "trap" | "brkpt" => {
                let mut i = plain(ops::trap);
                i.kind = Kind::Mem;
                self.code.push(i);
            }
            "bar" | "barrier" if has("warp") => {
                let mask = self.src(&o[0], "b32")?;
                let mut i = plain(ops::nop);
                i.kind = Kind::Coll;
                i.o[7] = mask.off;
                self.code.push(i);
            }
            "bar" | "barrier" => {
                self.has_barrier = true;
                let mut i = plain(ops::nop);
                i.kind = Kind::Bar;
                if has("red") {
                    // bar.red.{popc.u32,and.pred,or.pred} d, barrier {, threads}, {!}p
                    let (n, w) = if has("popc") {
                        (1, 4)
                    } else if has("and") {
                        (2, 1)
                    } else {
                        (3, 1)
                    };
                    let d = self.dst(&o[0], w)?;
                    let p = self.src(o.last().unwrap(), "pred")?;
                    i.h = ops::bar_red;
                    i.n = n;
                    i.o[0] = d.off;
                    i.o[1] = p.off;
                } else if has("arrive") {
                    return Err("bar.arrive is not emulated".into());
                } else if o.len() > 1 {
                    return Err("barriers for a part of the block are not emulated".into());
                }
                self.code.push(i);
            }
            "membar" | "fence" | "prefetch" | "prefetchu" | "nanosleep" | "pmevent" | "discard"
            | "applypriority" | "griddepcontrol" => {}
            "call" => self.call(o, before)?,
            "ld" | "ldu" => self.load(mods, ty, o)?,
            "st" => self.store(mods, ty, o)?,
            "atom" | "red" => self.atomic(op, mods, ty, o)?,
            "cvta" => {
                let d = self.dst(&o[0], 8)?;
                let s = self.src(&o[1], ty)?;
                let win = match self.space_of(mods) {
                    SP_SHARED => SHARED_WIN,
                    SP_LOCAL => LOCAL_WIN,
                    SP_PARAM => PARAM_WIN,
                    _ => 0,
                };
                let win = if has("to") { 0u64.wrapping_sub(win) } else { win };
                if d.w == 8 {
                    let c = self.constant(8, win);
                    self.emit(ops::m2(|a: u64, b: u64| a.wrapping_add(b)), d, &[s, c]);
                } else {
                    return Err("32-bit cvta".into());
                }
            }
            "isspacep" => {
                let d = self.dst(&o[0], 1)?;
                let s = self.src(&o[1], "u64")?;
                let (lo, hi) = match self.space_of(mods) {
                    SP_SHARED => (SHARED_WIN, SHARED_WIN + WIN_SIZE),
                    SP_LOCAL => (LOCAL_WIN, LOCAL_WIN + WIN_SIZE),
                    SP_PARAM => (PARAM_WIN, PARAM_WIN + WIN_SIZE),
                    _ => (crate::mem::DEV_BASE, u64::MAX),
                };
                let (lo, hi) = (self.constant(8, lo), self.constant(8, hi));
                self.emit(ops::p3(|a: u64, l: u64, h: u64| a >= l && a < h), d, &[s, lo, hi]);
            }
            "mov" => {
                if let (Op::Vec(v), s) = (&o[0], &o[1]) {
                    let w = width(ty)? / v.len() as u8;
                    let s = self.src(s, ty)?;
                    let mut i = plain(ops::unpack(v.len(), w)?);
                    i.o[1] = s.off;
                    for (k, d) in v.iter().enumerate() {
                        i.o[2 + k] = self.dst(d, w)?.off;
                    }
                    self.code.push(i);
                } else if let Op::Vec(v) = &o[1] {
                    let d = self.dst(&o[0], width(ty)?)?;
                    let w = width(ty)? / v.len() as u8;
                    let part = match w {
                        2 => "b16",
                        4 => "b32",
                        _ => return Err("packing of this width".into()),
                    };
                    let mut i = plain(ops::pack(v.len(), w)?);
                    i.o[0] = d.off;
                    for (k, s) in v.iter().enumerate() {
                        i.o[2 + k] = self.src(s, part)?.off;
                    }
                    self.code.push(i);
                } else {
                    let w = width(ty)?;
                    let d = self.dst(&o[0], w)?;
                    let s = self.src(&o[1], ty)?;
                    // An address taken with mov is one of its own space.
                    self.emit(ops::mov(w.min(s.w).min(d.w)), d, &[s]);
                }
            }
            "shfl" => {
                let (d, p) = match &o[0] {
                    Op::Pair(d, p) => {
                        (self.dst(&Op::Name(d), 4)?, Some(self.dst(&Op::Name(p), 1)?))
                    }
                    x => (self.dst(x, 4)?, None),
                };
                let a = self.src(&o[1], "b32")?;
                let b = self.src(&o[2], "u32")?;
                let c = self.src(&o[3], "u32")?;
                let mask = match o.get(4) {
                    Some(m) => self.src(m, "b32")?,
                    None => self.constant(4, FULL as u64),
                };
                let p = p.unwrap_or_else(|| self.alloc(1));
                let mut i = plain(ops::shfl);
                i.kind = Kind::Coll;
                i.n = if has("up") {
                    0
                } else if has("down") {
                    1
                } else if has("bfly") {
                    2
                } else {
                    3
                };
                i.o = [d.off, a.off, b.off, c.off, p.off, 0, 0, mask.off];
                self.code.push(i);
            }
            "vote" | "match" | "redux" => {
                let mut i = plain(ops::nop);
                i.kind = Kind::Coll;
                let mask = match o.get(2) {
                    Some(m) => self.src(m, "b32")?,
                    None => self.constant(4, FULL as u64),
                };
                i.o[7] = mask.off;
                if op == "vote" {
                    let w = if has("ballot") { 4 } else { 1 };
                    i.o[0] = self.dst(&o[0], w)?.off;
                    i.o[1] = self.src(&o[1], "pred")?.off;
                    i.h = if has("ballot") {
                        ops::vote_ballot
                    } else if has("any") {
                        ops::vote_any
                    } else if has("all") {
                        ops::vote_all
                    } else {
                        ops::vote_uni
                    };
                } else if op == "match" {
                    let (d, p) = match &o[0] {
                        Op::Pair(d, p) => (self.dst(&Op::Name(d), 4)?, self.dst(&Op::Name(p), 1)?),
                        x => (self.dst(x, 4)?, self.alloc(1)),
                    };
                    i.o[0] = d.off;
                    i.o[1] = self.src(&o[1], ty)?.off;
                    i.o[2] = p.off;
                    i.n = has("all") as u8;
                    i.h = if width(ty)? == 8 {
                        ops::match_sync::<u64>
                    } else {
                        ops::match_sync::<u32>
                    };
                } else {
                    i.o[0] = self.dst(&o[0], 4)?.off;
                    i.o[1] = self.src(&o[1], ty)?.off;
                    i.h = ops::redux(mods[1], ty)?;
                }
                self.code.push(i);
            }
            "activemask" => {
                let d = self.dst(&o[0], 4)?;
                self.emit(ops::activemask, d, &[]);
            }
            "cvt" => self.convert(mods, o)?,
            "setp" => {
                // setp.cmp{.bool}{.ftz}.type p{|q}, a, b {, c}
                let (p, q) = match &o[0] {
                    Op::Pair(p, q) => (self.dst(&Op::Name(p), 1)?, self.dst(&Op::Name(q), 1)?),
                    x => (self.dst(x, 1)?, self.alloc(1)),
                };
                let a = self.src(&o[1], ty)?;
                let b = self.src(&o[2], ty)?;
                let comb = mods.iter().find_map(|m| match *m {
                    "and" => Some(1u8),
                    "or" => Some(2),
                    "xor" => Some(3),
                    _ => None,
                });
                let h = ops::compare(mods[0], ty)?;
                if let Some(n) = comb {
                    let c = self.src(&o[3], "pred")?;
                    let t = self.alloc(1);
                    self.emit(h, t, &[a, b]);
                    let mut i = plain(ops::pred_combine);
                    i.n = n;
                    i.o = [p.off, t.off, c.off, q.off, 0, 0, 0, 0];
                    self.code.push(i);
                } else if matches!(&o[0], Op::Pair(..)) {
                    let t = self.alloc(1);
                    self.emit(h, t, &[a, b]);
                    self.emit(ops::mov_pred, p, &[t]);
                    self.emit(ops::not_pred, q, &[t]);
                } else {
                    self.emit(h, p, &[a, b]);
                }
            }
            "set" => {
                // set.cmp{.bool}.dtype.stype d, a, b {, c}
                let dty = mods[mods.len() - 2];
                let a = self.src(&o[1], ty)?;
                let b = self.src(&o[2], ty)?;
                let mut t = self.alloc(1);
                let h = ops::compare(mods[0], ty)?;
                self.emit(h, t, &[a, b]);
                if let Some(c) = o.get(3) {
                    let c = self.src(c, "pred")?;
                    let u = self.alloc(1);
                    let mut i = plain(ops::pred_combine);
                    i.n = if has("and") {
                        1
                    } else if has("or") {
                        2
                    } else {
                        3
                    };
                    i.o = [u.off, t.off, c.off, self.alloc(1).off, 0, 0, 0, 0];
                    self.code.push(i);
                    t = u;
                }
                let w = width(dty)?;
                let d = self.dst(&o[0], w)?;
                let yes = match dty {
                    "f32" => 0x3f80_0000,
                    "f16" => 0x3c00,
                    "bf16" => 0x3f80,
                    _ => u64::MAX,
                };
                let (yes, no) = (self.constant(w, yes), self.constant(w, 0));
                self.emit(ops::selp(w), d, &[yes, no, t]);
            }
            "selp" => {
                let w = width(ty)?;
                let d = self.dst(&o[0], w)?;
                let a = self.src(&o[1], ty)?;
                let b = self.src(&o[2], ty)?;
                let p = self.src(&o[3], "pred")?;
                self.emit(ops::selp(w), d, &[a, b, p]);
            }
            "slct" => {
                let dty = mods[mods.len() - 2];
                let w = width(dty)?;
                let d = self.dst(&o[0], w)?;
                let a = self.src(&o[1], dty)?;
                let b = self.src(&o[2], dty)?;
                let c = self.src(&o[3], ty)?;
                let t = self.alloc(1);
                let zero = self.constant(4, 0);
                let h = ops::compare("ge", ty)?;
                self.emit(h, t, &[c, zero]);
                self.emit(ops::selp(w), d, &[a, b, t]);
            }
            _ => {
                // Arithmetic: destination first, then sources of the type that ends the opcode.
                let a = ops::arith(op, mods, ty)
                    .ok_or_else(|| format!("opcode {opcode} is not emulated"))?;
                let d = self.dst(&o[0], a.dw)?;
                if d.w != a.dw {
                    return Err(format!(
                        "destination of {} bytes where {} were expected",
                        d.w, a.dw
                    ));
                }
                let mut s = vec![];
                for (k, x) in o[1..].iter().enumerate() {
                    let t = a.src.get(k).copied().unwrap_or(ty);
                    let slot = self.src(x, t)?;
                    if slot.w != width(t)? {
                        return Err(format!("source of {} bytes where {t} was expected", slot.w));
                    }
                    s.push(slot);
                }
                self.emit(a.h, d, &s);
                if let Some(then) = a.then {
                    self.emit(then, d, &[d]);
                }
            }
        }
        Ok(())
    }
}
