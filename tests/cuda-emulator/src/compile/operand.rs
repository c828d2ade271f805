//! Operands, and the widths of types.
use super::*;

#[derive(Clone, Debug)]
pub enum Op<'a> {
    Name(&'a str),
    /// A number in source form with its sign.
    Num(&'a str, bool),
    NotPred(&'a str),
    Vec(Vec<Op<'a>>),
    /// `[base + offset]`
    Addr(Option<&'a str>, i64),
    /// `d|p`
    Pair(&'a str, &'a str),
    /// `(a, b)` of a call
    List(Vec<Op<'a>>),
    Str,
}

pub fn width(ty: &str) -> R<u8> {
    let ty = ty.trim_start_matches('.');
    if ty == "pred" {
        return Ok(1);
    }
    match type_size(ty) {
        Some(1) | Some(2) => Ok(2),
        Some(4) => Ok(4),
        Some(8) => Ok(8),
        _ => Err(format!("type {ty}")),
    }
}

pub fn operand<'a>(t: &[Tok<'a>], k: &mut usize) -> R<Op<'a>> {
    let out = match t[*k] {
        Tok::Word(w) => {
            *k += 1;
            if w.as_bytes()[0].is_ascii_digit() {
                Op::Num(w, false)
            } else if *k < t.len() && t[*k].is(b'|') {
                let q = t[*k + 1].word().ok_or("register after |")?;
                *k += 2;
                Op::Pair(w, q)
            } else if *k + 1 < t.len() && t[*k].is(b'+') {
                return Err("symbol arithmetic in an operand".into());
            } else {
                Op::Name(w)
            }
        }
        Tok::P(b'-') => {
            let w = t[*k + 1].word().ok_or("number after -")?;
            *k += 2;
            Op::Num(w, true)
        }
        Tok::P(b'!') => {
            let w = t[*k + 1].word().ok_or("predicate after !")?;
            *k += 2;
            Op::NotPred(w)
        }
        Tok::P(b'{') => {
            *k += 1;
            let mut v = vec![];
            while !t[*k].is(b'}') {
                v.push(operand(t, k)?);
                if t[*k].is(b',') {
                    *k += 1;
                }
            }
            *k += 1;
            Op::Vec(v)
        }
        Tok::P(b'(') => {
            *k += 1;
            let mut v = vec![];
            while !t[*k].is(b')') {
                v.push(operand(t, k)?);
                if t[*k].is(b',') {
                    *k += 1;
                }
            }
            *k += 1;
            Op::List(v)
        }
        Tok::P(b'[') => {
            *k += 1;
            let mut base = None;
            let mut off = 0i64;
            let mut neg = false;
            while !t[*k].is(b']') {
                match t[*k] {
                    Tok::P(b'+') => neg = false,
                    Tok::P(b'-') => neg = true,
                    Tok::Word(w) if w.as_bytes()[0].is_ascii_digit() => {
                        let v = parse_int(w).ok_or("offset")? as i64;
                        off += if neg { -v } else { v };
                    }
                    Tok::Word(w) => base = Some(w),
                    _ => return Err("address".into()),
                }
                *k += 1;
            }
            *k += 1;
            Op::Addr(base, off)
        }
        Tok::Str(_) => {
            *k += 1;
            Op::Str
        }
        Tok::P(c) => return Err(format!("unexpected '{}'", c as char)),
    };
    Ok(out)
}
