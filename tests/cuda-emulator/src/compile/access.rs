//! Addresses, loads, stores, atomics and conversions.
use super::*;

impl Builder<'_> {
    /// Sets the address fields of `i` from an operand; gives the space if the name tells it.
    pub(super) fn address(&mut self, i: &mut Inst, at: usize, o: &Op) -> R<Option<Place>> {
        let Op::Addr(base, off) = o else {
            return Err(format!("an address was expected: {o:?}"));
        };
        i.imm = *off;
        let Some(b) = base else {
            return Ok(None);
        };
        if let Some(s) = self.find(b) {
            i.abase = s.w;
            i.o[at] = s.off;
            return Ok(None);
        }
        let p = self.place(b).ok_or_else(|| format!("unknown name {b}"))?;
        match p {
            Place::Shared(a) | Place::Local(a) | Place::Global(a) | Place::Param(a) => {
                i.imm += a as i64
            }
        }
        Ok(Some(p))
    }

    pub(super) fn space_of(&self, mods: &[&str]) -> u8 {
        for m in mods {
            match *m {
                "global" | "const" => return SP_GLOBAL,
                "shared" | "shared::cta" | "shared::cluster" => return SP_SHARED,
                "local" => return SP_LOCAL,
                "param" | "param::entry" | "param::func" => return SP_PARAM,
                _ => {}
            }
        }
        SP_GENERIC
    }

    pub(super) fn vec_len(mods: &[&str]) -> usize {
        if mods.contains(&"v2") {
            2
        } else if mods.contains(&"v4") {
            4
        } else if mods.contains(&"v8") {
            8
        } else {
            1
        }
    }

    pub(super) fn load(&mut self, mods: &[&str], ty: &str, o: &[Op]) -> R<()> {
        let n = Self::vec_len(mods);
        let mut i = plain(ops::nop);
        i.kind = Kind::Mem;
        i.n = n as u8;
        let named = self.address(&mut i, 6, &o[1])?;
        let mut sp = self.space_of(mods);
        match (sp, named) {
            (SP_PARAM, Some(Place::Local(_))) => sp = SP_LOCAL,
            (SP_GENERIC, Some(Place::Shared(_))) => i.imm += SHARED_WIN as i64,
            (SP_GENERIC, Some(Place::Local(_))) => i.imm += LOCAL_WIN as i64,
            _ => {}
        }
        let mw = type_size(ty).ok_or("load type")? as u8;
        let one = [o[0].clone()];
        let dests: &[Op] = match &o[0] {
            Op::Vec(v) => v,
            _ => &one,
        };
        if dests.len() != n || n > 4 {
            return Err("vector length".into());
        }
        let mut rw = 0;
        for (k, d) in dests.iter().enumerate() {
            let sink = matches!(d, Op::Name("_"));
            let s = self.dst(d, if rw > 0 { rw } else { mw.max(2) })?;
            if rw > 0 && s.w != rw && !sink {
                return Err("registers of different width in a vector".into());
            }
            rw = s.w;
            i.o[k] = s.off;
        }
        let uniform = sp == SP_PARAM && i.abase == 0;
        i.h = ops::load(sp, mw, ty.starts_with('s'), rw, uniform)?;
        if sp == SP_GLOBAL || sp == SP_GENERIC {
            i.cache = self.caches;
            self.caches += 1;
        }
        self.code.push(i);
        Ok(())
    }

    pub(super) fn store(&mut self, mods: &[&str], ty: &str, o: &[Op]) -> R<()> {
        let n = Self::vec_len(mods);
        let mut i = plain(ops::nop);
        i.kind = Kind::Mem;
        i.n = n as u8;
        let named = self.address(&mut i, 6, &o[0])?;
        let mut sp = self.space_of(mods);
        match (sp, named) {
            (SP_PARAM, Some(Place::Local(_))) => sp = SP_LOCAL,
            (SP_GENERIC, Some(Place::Shared(_))) => i.imm += SHARED_WIN as i64,
            (SP_GENERIC, Some(Place::Local(_))) => i.imm += LOCAL_WIN as i64,
            _ => {}
        }
        let mw = type_size(ty).ok_or("store type")? as u8;
        let one = [o[1].clone()];
        let srcs: &[Op] = match &o[1] {
            Op::Vec(v) => v,
            _ => &one,
        };
        if srcs.len() != n || n > 4 {
            return Err("vector length".into());
        }
        // A literal takes the width of the registers beside it.
        let mut rw = 0;
        for s in srcs {
            if let Op::Name(x) = s {
                if let Some(s) = self.find(x) {
                    rw = s.w;
                }
            }
        }
        if rw == 0 {
            rw = mw.max(2);
        }
        let lit = match rw {
            2 => "b16",
            4 if ty == "f32" => "f32",
            4 => "b32",
            _ if ty == "f64" => "f64",
            _ => "b64",
        };
        for (k, s) in srcs.iter().enumerate() {
            let s = self.src(s, lit)?;
            if s.w != rw {
                return Err("registers of different width in a vector".into());
            }
            i.o[k] = s.off;
        }
        i.h = ops::store(sp, mw, rw)?;
        if sp == SP_GLOBAL || sp == SP_GENERIC {
            i.cache = self.caches;
            self.caches += 1;
        }
        self.code.push(i);
        Ok(())
    }

    pub(super) fn atomic(&mut self, op: &str, mods: &[&str], ty: &str, o: &[Op]) -> R<()> {
        let sp = self.space_of(mods);
        let w = width(ty)?;
        let kind = mods
            .iter()
            .find(|m| {
                matches!(
                    **m,
                    "add" | "min" | "max" | "and" | "or" | "xor" | "exch" | "cas" | "inc" | "dec"
                )
            })
            .ok_or("atomic operation")?;
        let mut i = plain(ops::nop);
        i.kind = Kind::Mem;
        let (d, rest) =
            if op == "atom" { (self.dst(&o[0], w)?, &o[1..]) } else { (self.alloc(w), o) };
        let named = self.address(&mut i, 6, &rest[0])?;
        if let (SP_GENERIC, Some(Place::Shared(_))) = (sp, named) {
            i.imm += SHARED_WIN as i64;
        }
        i.o[0] = d.off;
        i.o[1] = self.src(&rest[1], ty)?.off;
        if let Some(x) = rest.get(2) {
            i.o[2] = self.src(x, ty)?.off;
        }
        i.h = ops::atomic(sp, kind, ty)?;
        i.cache = self.caches;
        self.caches += 1;
        self.code.push(i);
        Ok(())
    }

    pub(super) fn convert(&mut self, mods: &[&str], o: &[Op]) -> R<()> {
        let st = mods[mods.len() - 1];
        let dt = mods[mods.len() - 2];
        if o.len() == 3 {
            // cvt.rn.f16x2.f32 d, hi, lo
            let d = self.dst(&o[0], 4)?;
            let a = self.src(&o[1], st)?;
            let b = self.src(&o[2], st)?;
            let h = ops::convert_pair(dt, mods.contains(&"relu"))?;
            self.emit(h, d, &[a, b]);
            return Ok(());
        }
        let s = self.src(&o[1], st)?;
        let d = self.dst(&o[0], width(dt)?)?;
        let rnd = mods[..mods.len() - 2]
            .iter()
            .copied()
            .find(|m| {
                matches!(*m, "rn" | "rz" | "rm" | "rp" | "rni" | "rzi" | "rmi" | "rpi" | "rna")
            })
            .unwrap_or("");
        let mut i = plain(ops::convert(dt, st, d.w, s.w, rnd, mods.contains(&"sat"))?);
        if mods.contains(&"relu") {
            return Err("cvt with relu".into());
        }
        i.o[0] = d.off;
        i.o[1] = s.off;
        i.imm = ops::convert_bits(dt, st);
        self.code.push(i);
        Ok(())
    }
}
