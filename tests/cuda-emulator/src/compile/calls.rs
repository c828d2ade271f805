//! Calls of device functions, expanded in place.
use super::*;

impl Builder<'_> {
    pub(super) fn call(&mut self, o: &[Op], before: usize) -> R<()> {
        // call{.uni} (ret), name, (args) | call name, (args) | call name
        let (ret, name, args): (&[Op], &str, &[Op]) = match o {
            [Op::List(r), Op::Name(n), Op::List(a), ..] => (r, n, a),
            [Op::List(r), Op::Name(n)] => (r, n, &[]),
            [Op::Name(n), Op::List(a), ..] => (&[], n, a),
            [Op::Name(n)] => (&[], n, &[]),
            _ => return Err("form of this call".into()),
        };
        let _ = before;
        match name {
            "vprintf" => {
                let mut i = plain(ops::vprintf);
                i.kind = Kind::Mem;
                for (k, a) in args.iter().enumerate() {
                    let Op::Name(n) = a else { return Err("argument".into()) };
                    let Some(Place::Local(p)) = self.place(n) else {
                        return Err("argument".into());
                    };
                    i.o[k] = p as u32;
                }
                self.code.push(i);
                return Ok(());
            }
            "__assertfail" => {
                let mut i = plain(ops::assertfail);
                i.kind = Kind::Mem;
                for (k, a) in args.iter().enumerate() {
                    let Op::Name(n) = a else { return Err("argument".into()) };
                    let Some(Place::Local(p)) = self.place(n) else {
                        return Err("argument".into());
                    };
                    i.o[k] = p as u32;
                }
                self.code.push(i);
                return Ok(());
            }
            _ => {}
        }
        let module = self.module;
        let f = module.funcs.get(name).ok_or_else(|| format!("call to unknown function {name}"))?;
        if f.body.is_none() {
            return Err(format!("function {name} has no body in this module"));
        }
        self.calls += 1;
        if self.floor.len() > 24 || self.calls > 5000 {
            return Err("calls nest too deeply (recursion is not emulated)".into());
        }
        // Bind the callee's names: memory parameters to the caller's, registers by moves.
        let mut inner = Scope::default();
        let mut moves_out = vec![];
        for (p, a) in f.params.iter().zip(args).chain(f.rets.iter().zip(ret)) {
            let is_ret = f.rets.iter().any(|r| r.name == p.name);
            if p.reg {
                let w = width(p.ty.trim_start_matches('.'))?;
                let s = self.alloc(w);
                inner.slots.insert(p.name.clone(), s);
                if is_ret {
                    let d = self.dst(a, w)?;
                    moves_out.push((d, s, w));
                } else {
                    let x = self.src(a, p.ty.trim_start_matches('.'))?;
                    self.emit(if w == 1 { ops::mov_pred } else { ops::mov(w) }, s, &[x]);
                }
            } else {
                let Op::Name(n) = a else { return Err("argument of a call".into()) };
                let at = match self.place(n) {
                    Some(p) => p,
                    None => return Err(format!("argument {n} of a call")),
                };
                inner.places.insert(p.name.clone(), at);
            }
        }
        let old_prefix = std::mem::replace(&mut self.prefix, format!("{}#", self.calls));
        let end = format!("{}end", self.prefix);
        let old_ret = self.ret_label.replace(end.clone());
        let old_statement = self.statement;
        // The outer scope holds the parameters; `function` adds the body's own scope.
        self.scopes.push(inner);
        let at = self.scopes.len() - 1;
        let result = self.function(f, at);
        self.scopes.truncate(at);
        self.prefix = old_prefix;
        self.ret_label = old_ret;
        self.statement = old_statement;
        result?;
        self.labels.insert(end, self.code.len() as u32);
        for (d, s, w) in moves_out {
            self.emit(if w == 1 { ops::mov_pred } else { ops::mov(w) }, d, &[s]);
        }
        Ok(())
    }
}
