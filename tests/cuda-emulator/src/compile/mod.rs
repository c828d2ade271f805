//! Takes a kernel's PTX text apart into `Inst`s. Registers, constants and special
//! registers all become slots of one register file, so that handlers see only offsets.
//! Calls to device functions are expanded in place.
use crate::exec::*;
use crate::ops;
use crate::ptx::{parse_bits, parse_int, type_size, Func, Lexer, Module, Param, Space, Tok};
use std::collections::HashMap;

mod access;
mod calls;
mod declare;
mod instruction;
mod operand;

pub use operand::width;
use operand::{operand, Op};

pub struct Kernel {
    pub name: String,
    pub code: Vec<Inst>,
    pub tables: Vec<Vec<u32>>,
    pub rf_size: usize,
    /// Offset, width (2, 4, 8 or 1 for a predicate) and value.
    pub consts: Vec<(u32, u8, u64)>,
    pub specials: Vec<(Special, u32)>,
    pub has_barrier: bool,
    pub caches: usize,
    pub shared_size: usize,
    pub dyn_align: usize,
    pub local_size: usize,
    pub params: Vec<Param>,
    pub param_bytes: usize,
    pub max_threads: Option<usize>,
    pub regs: usize,
}

type R<T> = Result<T, String>;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slot {
    pub off: u32,
    /// Bytes per lane: 2, 4, 8; 1 is a predicate.
    pub w: u8,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Shared(u64),
    Local(u64),
    Global(u64),
    Param(u64),
}

#[derive(Default)]
struct Scope {
    /// prefix -> (count, width): `.reg .b32 %r<10>`
    banks: HashMap<String, u8>,
    names: HashMap<String, u8>,
    slots: HashMap<String, Slot>,
    places: HashMap<String, Place>,
}

pub struct Builder<'m> {
    module: &'m Module,
    globals: &'m HashMap<String, u64>,
    pub code: Vec<Inst>,
    scopes: Vec<Scope>,
    /// The scope at which the function that is being expanded starts.
    floor: Vec<usize>,
    next_off: u32,
    const_map: HashMap<(u8, u64), Slot>,
    consts: Vec<(u32, u8, u64)>,
    special_map: HashMap<Special, Slot>,
    labels: HashMap<String, u32>,
    fixups: Vec<(usize, String)>,
    table_fix: Vec<Vec<String>>,
    target_lists: HashMap<String, Vec<String>>,
    prefix: String,
    calls: usize,
    pub caches: u32,
    pub has_barrier: bool,
    shared_vars: HashMap<String, u64>,
    shared_size: usize,
    dyn_align: usize,
    local_size: usize,
    statement: u32,
    ret_label: Option<String>,
    regs: usize,
    entry_params: &'m [Param],
    entry_name: String,
    /// Where dynamic shared memory was placed.
    dyn_at: Option<usize>,
}

pub fn plain(h: H) -> Inst {
    Inst {
        h,
        kind: Kind::Plain,
        gneg: false,
        n: 0,
        abase: 0,
        guard: NONE,
        o: [0; 8],
        imm: 0,
        cache: 0,
        line: 0,
    }
}

pub fn compile(module: &Module, name: &str, globals: &HashMap<String, u64>) -> R<Kernel> {
    let f = module.funcs.get(name).ok_or("no such function")?;
    let mut b = Builder {
        module,
        globals,
        code: vec![],
        scopes: vec![],
        floor: vec![],
        next_off: 0,
        const_map: HashMap::new(),
        consts: vec![],
        special_map: HashMap::new(),
        labels: HashMap::new(),
        fixups: vec![],
        table_fix: vec![],
        target_lists: HashMap::new(),
        prefix: String::new(),
        calls: 0,
        caches: 0,
        has_barrier: false,
        shared_vars: HashMap::new(),
        shared_size: 0,
        dyn_align: 16,
        local_size: 0,
        statement: 0,
        ret_label: None,
        regs: 0,
        entry_params: &f.params,
        entry_name: name.to_string(),
        dyn_at: None,
    };
    b.function(f, 0)?;
    let mut end = plain(ops::nop);
    end.kind = Kind::Exit;
    b.code.push(end);
    b.finish(f)
}

impl<'m> Builder<'m> {
    fn finish(mut self, f: &Func) -> R<Kernel> {
        if self.dyn_at.is_some_and(|at| at != self.shared_size.next_multiple_of(self.dyn_align)) {
            return Err("static shared memory declared after dynamic shared memory was used".into());
        }
        for (at, label) in std::mem::take(&mut self.fixups) {
            let pc = *self.labels.get(&label).ok_or_else(|| format!("no label {label}"))?;
            self.code[at].imm = pc as i64;
        }
        let mut tables = vec![];
        for t in &self.table_fix {
            let mut v = vec![];
            for label in t {
                v.push(*self.labels.get(label).ok_or_else(|| format!("no label {label}"))?);
            }
            tables.push(v);
        }
        Ok(Kernel {
            name: f.name.clone(),
            code: self.code,
            tables,
            rf_size: self.next_off as usize,
            consts: self.consts,
            specials: self.special_map.iter().map(|(k, v)| (*k, v.off)).collect(),
            has_barrier: self.has_barrier,
            caches: self.caches as usize,
            shared_size: self.shared_size,
            dyn_align: self.dyn_align,
            local_size: self.local_size,
            params: f.params.clone(),
            param_bytes: f.param_bytes(),
            max_threads: f.max_threads,
            regs: self.regs,
        })
    }

    /// Decodes a body; names are looked up in scopes from `floor` on.
    fn function(&mut self, f: &Func, floor: usize) -> R<()> {
        let (start, end) = f.body.ok_or_else(|| format!("function {} has no body here", f.name))?;
        let module = self.module;
        let text = &module.text[..end];
        let mut lx = Lexer::new(text, start);
        self.floor.push(floor);
        self.scopes.push(Scope::default());
        let depth = self.scopes.len();
        let mut toks: Vec<Tok> = vec![];
        let line0 = module.text[..start].bytes().filter(|&c| c == b'\n').count() as u32 + 1;
        let (mut counted, mut lines) = (start, line0);
        while let Some(t) = lx.next() {
            match t {
                Tok::P(b';') => {
                    if !toks.is_empty() {
                        lines += text.as_bytes()[counted..lx.pos]
                            .iter()
                            .filter(|&&c| c == b'\n')
                            .count() as u32;
                        counted = lx.pos;
                        self.statement = lines;
                        let shown: Vec<Tok> = std::mem::take(&mut toks);
                        self.stmt(&shown).map_err(|e| {
                            let s: Vec<String> = shown
                                .iter()
                                .map(|t| match t {
                                    Tok::Word(w) => w.to_string(),
                                    Tok::Str(s) => format!("{s:?}"),
                                    Tok::P(c) => (*c as char).to_string(),
                                })
                                .collect();
                            format!("{e}; in {} line {lines}: {}", f.name, s.join(" "))
                        })?;
                    }
                }
                Tok::P(b'{') if toks.is_empty() => self.scopes.push(Scope::default()),
                Tok::P(b'}') if toks.is_empty() => {
                    self.scopes.pop();
                    if self.scopes.len() < depth {
                        return Err("braces do not match".into());
                    }
                }
                Tok::P(b':') if toks.len() == 1 => {
                    // A label, unless it names a list of branch targets.
                    let name = toks.pop().unwrap().word().ok_or("bad label")?;
                    let save = lx.pos;
                    match lx.next() {
                        Some(Tok::Word(".branchtargets")) => {
                            let mut v = vec![];
                            loop {
                                match lx.next() {
                                    Some(Tok::Word(w)) => v.push(format!("{}{w}", self.prefix)),
                                    Some(Tok::P(b',')) => {}
                                    _ => break,
                                }
                            }
                            self.target_lists.insert(format!("{}{name}", self.prefix), v);
                        }
                        Some(Tok::Word(".callprototype")) => {
                            while !matches!(lx.next(), Some(Tok::P(b';')) | None) {}
                        }
                        _ => {
                            lx.pos = save;
                            self.labels
                                .insert(format!("{}{name}", self.prefix), self.code.len() as u32);
                        }
                    }
                }
                t => toks.push(t),
            }
        }
        self.scopes.truncate(depth - 1);
        self.floor.pop();
        Ok(())
    }

    pub fn alloc(&mut self, w: u8) -> Slot {
        let bytes = match w {
            1 | 2 => 64,
            4 => 128,
            _ => 256,
        };
        let off = self.next_off;
        self.next_off += bytes;
        Slot { off, w }
    }

    fn base(&self) -> usize {
        *self.floor.last().unwrap()
    }

    fn find(&mut self, name: &str) -> Option<Slot> {
        let base = self.base();
        for k in (base..self.scopes.len()).rev() {
            if let Some(&s) = self.scopes[k].slots.get(name) {
                return Some(s);
            }
            let w = self.scopes[k].names.get(name).copied().or_else(|| {
                let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
                if stem.len() == name.len() {
                    return None;
                }
                self.scopes[k].banks.get(stem).copied()
            });
            if let Some(w) = w {
                let s = self.alloc(w);
                self.regs += 1;
                self.scopes[k].slots.insert(name.to_string(), s);
                return Some(s);
            }
        }
        None
    }

    fn place(&mut self, name: &str) -> Option<Place> {
        let base = self.base();
        for k in (base..self.scopes.len()).rev() {
            if let Some(&p) = self.scopes[k].places.get(name) {
                return Some(p);
            }
        }
        if base == 0 {
            if let Some(p) = self.entry_params.iter().find(|p| p.name == name) {
                return Some(Place::Param(p.offset as u64));
            }
        }
        if let Some(&off) = self.shared_vars.get(name) {
            return Some(Place::Shared(off));
        }
        if let Some(&a) = self.globals.get(name) {
            return Some(Place::Global(a));
        }
        let v = self.module.vars.iter().find(|v| v.name == name && v.space == Space::Shared)?;
        if v.external && v.size == 0 {
            // Dynamic shared memory starts behind all static variables, whose total is
            // only known at the end; so lay all of them out now.
            self.dyn_align = self.dyn_align.max(v.align);
            let all: Vec<_> = self
                .module
                .vars
                .iter()
                .filter(|v| v.space == Space::Shared && !(v.external && v.size == 0))
                .collect();
            for v in all {
                if !self.shared_vars.contains_key(&v.name) && self.mentions(v.name.as_str()) {
                    self.shared_size = self.shared_size.next_multiple_of(v.align.max(1));
                    self.shared_vars.insert(v.name.clone(), self.shared_size as u64);
                    self.shared_size += v.size;
                }
            }
            let at = self.shared_size.next_multiple_of(self.dyn_align) as u64;
            self.shared_vars.insert(name.to_string(), at);
            self.dyn_at = Some(at as usize);
            return Some(Place::Shared(at));
        }
        self.shared_size = self.shared_size.next_multiple_of(v.align.max(1));
        let off = self.shared_size as u64;
        self.shared_size += v.size;
        self.shared_vars.insert(name.to_string(), off);
        Some(Place::Shared(off))
    }

    /// Whether this kernel, or a device function that it may call, names a variable.
    fn mentions(&self, name: &str) -> bool {
        let text = &self.module.text;
        self.module.funcs.values().any(|f| {
            (f.name == self.entry_name || !f.entry)
                && f.body.is_some_and(|(a, b)| text[a..b].contains(name))
        })
    }

    pub fn constant(&mut self, w: u8, bits: u64) -> Slot {
        let bits = match w {
            1 => {
                if bits & 1 == 1 {
                    FULL as u64
                } else {
                    0
                }
            }
            2 => bits & 0xffff,
            4 => bits & 0xffff_ffff,
            _ => bits,
        };
        if let Some(&s) = self.const_map.get(&(w, bits)) {
            return s;
        }
        let s = self.alloc(w);
        self.consts.push((s.off, w, bits));
        self.const_map.insert((w, bits), s);
        s
    }

    fn special(&mut self, name: &str) -> Option<Slot> {
        let dim = |n: &str| match n.rsplit('.').next() {
            Some("x") => Some(0u8),
            Some("y") => Some(1),
            Some("z") => Some(2),
            _ => None,
        };
        let sp = if name.starts_with("%tid.") {
            Special::Tid(dim(name)?)
        } else if name.starts_with("%ntid.") {
            Special::Ntid(dim(name)?)
        } else if name.starts_with("%ctaid.") {
            Special::Ctaid(dim(name)?)
        } else if name.starts_with("%nctaid.") {
            Special::Nctaid(dim(name)?)
        } else {
            match name {
                "%laneid" => Special::LaneId,
                "%warpid" => Special::WarpId,
                "%nwarpid" => Special::NWarpId,
                "%smid" | "%gridid" | "%clock" | "%clock_hi" | "%globaltimer_lo"
                | "%globaltimer_hi" => Special::Zero,
                "%nsmid" => Special::NSm,
                "%dynamic_smem_size" => Special::DynShared,
                "%total_smem_size" => Special::TotalShared,
                "%lanemask_eq" => Special::MaskEq,
                "%lanemask_lt" => Special::MaskLt,
                "%lanemask_le" => Special::MaskLe,
                "%lanemask_gt" => Special::MaskGt,
                "%lanemask_ge" => Special::MaskGe,
                "%clock64" | "%globaltimer" => return Some(self.constant(8, 0)),
                "WARP_SZ" => return Some(self.constant(4, 32)),
                _ => return None,
            }
        };
        if let Some(&s) = self.special_map.get(&sp) {
            return Some(s);
        }
        let s = self.alloc(4);
        self.special_map.insert(sp, s);
        Some(s)
    }

    /// Slot of a source operand; `ty` tells how to read a literal, `w` its width.
    pub fn src(&mut self, o: &Op, ty: &str) -> R<Slot> {
        let w = width(ty)?;
        match o {
            Op::Num(n, neg) => {
                let bits = parse_bits(n, *neg, ty).ok_or_else(|| format!("number {n}"))?;
                Ok(self.constant(w, bits))
            }
            Op::Name(n) => {
                if let Some(s) = self.find(n) {
                    return Ok(s);
                }
                if let Some(s) = self.special(n) {
                    if w == 8 && s.w == 4 {
                        let d = self.alloc(8);
                        let mut i = plain(ops::m1(|a: u32| a as u64));
                        (i.o[0], i.o[1]) = (d.off, s.off);
                        self.code.push(i);
                        return Ok(d);
                    }
                    return Ok(s);
                }
                let a = match self.place(n).ok_or_else(|| format!("unknown name {n}"))? {
                    Place::Shared(a) | Place::Local(a) | Place::Global(a) | Place::Param(a) => a,
                };
                Ok(self.constant(w, a))
            }
            Op::NotPred(n) => {
                let s = self.find(n).ok_or_else(|| format!("unknown predicate {n}"))?;
                let d = self.alloc(1);
                let mut i = plain(ops::not_pred);
                (i.o[0], i.o[1]) = (d.off, s.off);
                self.code.push(i);
                Ok(d)
            }
            o => Err(format!("operand {o:?}")),
        }
    }

    pub fn dst(&mut self, o: &Op, w: u8) -> R<Slot> {
        match o {
            Op::Name("_") => Ok(self.alloc(w)),
            Op::Name(n) => self.find(n).ok_or_else(|| format!("unknown register {n}")),
            o => Err(format!("destination {o:?}")),
        }
    }
}
