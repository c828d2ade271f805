//! Declarations of registers and variables.
use super::*;

impl Builder<'_> {
    pub(super) fn declare(&mut self, t: &[Tok]) -> R<()> {
        // Inline assembly may write `.reg.b32 x` as one word.
        let mut split: Vec<Tok> = vec![];
        for x in t {
            match x.word() {
                Some(w) if w.starts_with('.') && w[1..].contains('.') => {
                    for (at, _) in w.match_indices('.') {
                        let end = w[at + 1..].find('.').map_or(w.len(), |e| at + 1 + e);
                        split.push(Tok::Word(&w[at..end]));
                    }
                }
                _ => split.push(*x),
            }
        }
        let t = &split[..];
        match t[0].word().unwrap() {
            ".reg" => {
                let mut k = 1;
                if matches!(t[k].word(), Some(".v2" | ".v4")) {
                    return Err("vector registers".into());
                }
                let ty = t[k].word().ok_or("type")?;
                let w = width(ty)?;
                k += 1;
                while k < t.len() {
                    let n = t[k].word().ok_or("register name")?;
                    k += 1;
                    let sc = self.scopes.last_mut().unwrap();
                    if k < t.len() && t[k].is(b'<') {
                        sc.banks.insert(n.to_string(), w);
                        k += 3;
                    } else {
                        sc.names.insert(n.to_string(), w);
                    }
                    if k < t.len() && t[k].is(b',') {
                        k += 1;
                    }
                }
                Ok(())
            }
            kind @ (".local" | ".shared" | ".param") => {
                let (mut align, mut elem) = (1usize, 1usize);
                let mut k = 1;
                let mut name = "";
                while k < t.len() {
                    let w = t[k].word().ok_or("variable")?;
                    if w == ".align" {
                        align =
                            parse_int(t[k + 1].word().unwrap_or("")).ok_or("alignment")? as usize;
                        k += 2;
                    } else if let Some(s) = type_size(w).filter(|_| w.starts_with('.')) {
                        elem = s;
                        k += 1;
                    } else {
                        name = w;
                        k += 1;
                        break;
                    }
                }
                let mut size = elem;
                while k < t.len() && t[k].is(b'[') {
                    if t[k + 1].is(b']') {
                        k += 2;
                        continue;
                    }
                    size *= parse_int(t[k + 1].word().unwrap_or("")).ok_or("array size")? as usize;
                    k += 3;
                }
                let align = align.max(elem);
                let p = if kind == ".shared" {
                    self.shared_size = self.shared_size.next_multiple_of(align);
                    self.shared_size += size;
                    Place::Shared((self.shared_size - size) as u64)
                } else {
                    // Parameters of calls live in the thread's own memory too.
                    Place::Local(self.local_room(size, align))
                };
                self.scopes.last_mut().unwrap().places.insert(name.to_string(), p);
                Ok(())
            }
            ".pragma" | ".maxntid" => Ok(()),
            w => Err(format!("directive {w}")),
        }
    }

    pub(super) fn local_room(&mut self, size: usize, align: usize) -> u64 {
        self.local_size = self.local_size.next_multiple_of(align.max(1));
        self.local_size += size;
        (self.local_size - size) as u64
    }
}
