//! Reads a pickle into a graph of plain values. Nothing is imported, called or executed.
//!
//! Values live in an arena and refer to each other by index. Shared and cyclic values therefore
//! cost nothing to build, and dropping them does not recurse, however hostile the file is.

use std::collections::HashMap;

use super::globals::{self, Global};

/// Most values in one pickle: a state dict has about 20 per tensor. At 32 bytes each, this bounds
/// what a hostile file can make the reader allocate.
const MAX_VALUES: usize = 1 << 22;
/// Protocols above this don't exist.
const MAX_PROTOCOL: u8 = 5;

/// Index of a value in its [`Pickle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Id(u32);

/// One value.
#[derive(Debug)]
pub(super) enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// An integer beyond 64 bits: its little-endian two's complement.
    BigInt(&'a [u8]),
    Float,
    Str(&'a str),
    Bytes,
    Tuple(Box<[Id]>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global(Global),
    /// What a global would return for some arguments (always a tuple).
    Call(Global, Id),
    /// A reference to something outside the pickle; in checkpoints, a storage.
    Persistent(Id),
}

/// A pickle that was read.
#[derive(Debug)]
pub(super) struct Pickle<'a> {
    values: Vec<Value<'a>>,
    root: Id,
    /// Bytes up to and including the end mark.
    pub(super) length: usize,
}

impl<'a> Pickle<'a> {
    /// Reads the pickle at the start of `bytes`; what follows its end mark is left alone.
    ///
    /// # Errors
    /// A sentence that says what is wrong, and where.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let mut reader = Reader {
            bytes,
            at: 0,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            copied: 0,
        };
        loop {
            let start = reader.at;
            match reader.step() {
                Ok(None) => {}
                Ok(Some(root)) => {
                    return Ok(Self { values: reader.values, root, length: reader.at });
                }
                Err(problem) => {
                    return Err(format!("{problem} (byte {start} of the pickle)"));
                }
            }
        }
    }

    pub(super) fn root(&self) -> &Value<'a> {
        self.get(self.root)
    }

    pub(super) fn get(&self, id: Id) -> &Value<'a> {
        &self.values[id.0 as usize]
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Value<'a>> {
        self.values.iter()
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<Value<'a>>,
    stack: Vec<Id>,
    /// Heights of the stack at which marks were set.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    /// Entries of lists that dicts were made of. One list can be recalled often, so this has its own
    /// bound.
    copied: usize,
}

impl<'a> Reader<'a> {
    /// Performs one instruction; gives the result at the end mark.
    fn step(&mut self) -> Result<Option<Id>, String> {
        let opcode = self.byte()?;
        match opcode {
            b'.' => return self.pop().map(Some),
            0x80 => {
                let protocol = self.byte()?;
                if protocol > MAX_PROTOCOL {
                    return Err(format!("pickle protocol {protocol} is unknown"));
                }
            }
            // A frame only announces how much to read ahead.
            0x95 => drop(self.take(8)?),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.pop_mark()?),
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
            }

            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'K' => {
                let value = self.byte()?.into();
                self.push(Value::Int(value))?;
            }
            b'M' => {
                let value = u16::from_le_bytes(self.array()?).into();
                self.push(Value::Int(value))?;
            }
            b'J' => {
                let value = i32::from_le_bytes(self.array()?).into();
                self.push(Value::Int(value))?;
            }
            0x8a => {
                let length = self.byte()?.into();
                self.long(length)?;
            }
            0x8b => {
                let length = self.length4()?;
                self.long(length)?;
            }
            b'G' => {
                self.take(8)?;
                self.push(Value::Float)?;
            }

            // Strings of Python 3, then those of Python 2, where names of tensors are of the latter.
            0x8c | b'U' => {
                let length = self.byte()?.into();
                self.string(length)?;
            }
            b'X' | b'T' => {
                let length = self.length4()?;
                self.string(length)?;
            }
            0x8d => {
                let length = self.length8()?;
                self.string(length)?;
            }
            b'C' => {
                let length = self.byte()?.into();
                self.raw(length)?;
            }
            b'B' => {
                let length = self.length4()?;
                self.raw(length)?;
            }
            0x8e | 0x96 => {
                let length = self.length8()?;
                self.raw(length)?;
            }

            b')' => self.push(Value::Tuple(Box::new([])))?,
            0x85..=0x87 => self.short_tuple(usize::from(opcode - 0x84))?,
            b't' => {
                let items = self.pop_mark()?;
                self.push(Value::Tuple(items.into()))?;
            }
            b']' | 0x8f => self.push(Value::List(Vec::new()))?,
            b'l' | 0x91 => {
                let items = self.pop_mark()?;
                self.push(Value::List(items))?;
            }
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])?;
            }
            b'e' | 0x90 => {
                let items = self.pop_mark()?;
                self.append(&items)?;
            }
            b'}' => self.push(Value::Dict(Vec::new()))?,
            b'd' => {
                let items = self.pop_mark()?;
                let entries = pairs(&items)?;
                self.push(Value::Dict(entries))?;
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set_items(&[key, value])?;
            }
            b'u' => {
                let items = self.pop_mark()?;
                self.set_items(&items)?;
            }

            b'q' => {
                let slot = self.byte()?.into();
                self.remember(slot)?;
            }
            b'r' => {
                let slot = u32::from_le_bytes(self.array()?);
                self.remember(slot)?;
            }
            0x94 => {
                let slot = u32::try_from(self.memo.len()).map_err(|_| "its memo overflows")?;
                self.remember(slot)?;
            }
            b'h' => {
                let slot = self.byte()?.into();
                self.recall(slot)?;
            }
            b'j' => {
                let slot = u32::from_le_bytes(self.array()?);
                self.recall(slot)?;
            }

            b'c' => {
                let module = self.line()?;
                let name = self.line()?;
                let global = globals::resolve(module, name)?;
                self.push(Value::Global(global))?;
            }
            0x93 => {
                let name = self.pop()?;
                let module = self.pop()?;
                let (Value::Str(module), Value::Str(name)) = (self.value(module), self.value(name))
                else {
                    return Err("the name of a global is not a string".to_owned());
                };
                let global = globals::resolve(module, name)?;
                self.push(Value::Global(global))?;
            }
            // Calling a function, and making an object of a class, are the same to a reader.
            b'R' | 0x81 => {
                let arguments = self.pop()?;
                let callee = self.pop()?;
                self.call(callee, arguments)?;
            }
            // State that an object is given: attributes of a dict such as `_metadata`, or the
            // content of an opaque value. No tensor depends on either.
            b'b' => drop(self.pop()?),
            b'Q' => {
                let id = self.pop()?;
                self.push(Value::Persistent(id))?;
            }
            other => return Err(format!("instruction {other:#04x} has no place in a checkpoint")),
        }
        Ok(None)
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.array::<1>()?[0])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let rest = &self.bytes[self.at..];
        let taken = rest.get(..length).ok_or("its pickle stops early")?;
        self.at += length;
        Ok(taken)
    }

    fn length4(&mut self) -> Result<usize, String> {
        usize::try_from(u32::from_le_bytes(self.array()?)).map_err(|_| "a length overflows".into())
    }

    fn length8(&mut self) -> Result<usize, String> {
        usize::try_from(u64::from_le_bytes(self.array()?)).map_err(|_| "a length overflows".into())
    }

    fn line(&mut self) -> Result<&'a str, String> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|byte| *byte == b'\n').ok_or("its pickle stops early")?;
        let line = self.take(end + 1)?;
        std::str::from_utf8(&line[..end]).map_err(|_| "the name of a global is not text".to_owned())
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), String> {
        if self.values.len() >= MAX_VALUES {
            return Err(format!("its pickle has more than {MAX_VALUES} values"));
        }
        let id = Id(self.values.len() as u32);
        self.values.push(value);
        self.stack.push(id);
        Ok(())
    }

    fn value(&self, id: Id) -> &Value<'a> {
        &self.values[id.0 as usize]
    }

    /// Height of the stack below which only a mark may reach.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<Id, String> {
        match self.stack.last() {
            Some(id) if self.stack.len() > self.floor() => Ok(*id),
            _ => Err("its pickle takes a value from an empty stack".to_owned()),
        }
    }

    fn pop(&mut self) -> Result<Id, String> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn pop_mark(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().ok_or("its pickle lacks a mark")?;
        Ok(self.stack.split_off(mark))
    }

    fn long(&mut self, length: usize) -> Result<(), String> {
        let raw = self.take(length)?;
        if length > 8 {
            return self.push(Value::BigInt(raw));
        }
        let negative = raw.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut extended = [if negative { 0xff } else { 0 }; 8];
        extended[..length].copy_from_slice(raw);
        self.push(Value::Int(i64::from_le_bytes(extended)))
    }

    fn string(&mut self, length: usize) -> Result<(), String> {
        let raw = self.take(length)?;
        let value = std::str::from_utf8(raw).map_or(Value::Bytes, Value::Str);
        self.push(value)
    }

    fn raw(&mut self, length: usize) -> Result<(), String> {
        self.take(length)?;
        self.push(Value::Bytes)
    }

    fn short_tuple(&mut self, length: usize) -> Result<(), String> {
        if self.stack.len() - self.floor() < length {
            return Err("its pickle takes a value from an empty stack".to_owned());
        }
        let items = self.stack.split_off(self.stack.len() - length);
        self.push(Value::Tuple(items.into()))
    }

    fn append(&mut self, items: &[Id]) -> Result<(), String> {
        let target = self.top()?;
        match &mut self.values[target.0 as usize] {
            Value::List(list) => list.extend_from_slice(items),
            Value::Call(Global::Inert, _) => {}
            other => return Err(format!("its pickle appends to {}", other.kind())),
        }
        Ok(())
    }

    fn set_items(&mut self, items: &[Id]) -> Result<(), String> {
        let entries = pairs(items)?;
        let target = self.top()?;
        match &mut self.values[target.0 as usize] {
            Value::Dict(dict) => dict.extend(entries),
            Value::Call(Global::Inert, _) => {}
            other => return Err(format!("its pickle sets entries of {}", other.kind())),
        }
        Ok(())
    }

    fn remember(&mut self, slot: u32) -> Result<(), String> {
        let top = self.top()?;
        self.memo.insert(slot, top);
        Ok(())
    }

    fn recall(&mut self, slot: u32) -> Result<(), String> {
        let id = *self.memo.get(&slot).ok_or("its pickle recalls a value that it never stored")?;
        self.stack.push(id);
        Ok(())
    }

    fn call(&mut self, callee: Id, arguments: Id) -> Result<(), String> {
        let Value::Global(global) = *self.value(callee) else {
            return Err(format!("its pickle calls {}", self.value(callee).kind()));
        };
        let Value::Tuple(items) = self.value(arguments) else {
            return Err("its pickle calls a global without a tuple of arguments".to_owned());
        };
        if global != Global::Mapping {
            return self.push(Value::Call(global, arguments));
        }
        let mut copied = self.copied;
        let entries = match items.first().map(|id| self.value(*id)) {
            // Python 2 hands the entries of an ordered dict over as a list of pairs.
            Some(Value::List(list)) => {
                copied += list.len();
                if copied > MAX_VALUES {
                    return Err(format!("its dicts have more than {MAX_VALUES} entries"));
                }
                let mut entries = Vec::with_capacity(list.len());
                for pair in list.iter() {
                    match self.value(*pair) {
                        Value::Tuple(pair) if pair.len() == 2 => entries.push((pair[0], pair[1])),
                        Value::List(pair) if pair.len() == 2 => entries.push((pair[0], pair[1])),
                        other => return Err(format!("an entry of a dict is {}", other.kind())),
                    }
                }
                entries
            }
            _ => Vec::new(),
        };
        self.copied = copied;
        self.push(Value::Dict(entries))
    }
}

impl Value<'_> {
    /// The kind of value, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Bool(_) => "a bool",
            Self::Int(_) | Self::BigInt(_) => "an integer",
            Self::Float => "a float",
            Self::Str(_) => "a string",
            Self::Bytes => "bytes",
            Self::Tuple(_) => "a tuple",
            Self::List(_) => "a list",
            Self::Dict(_) => "a dict",
            Self::Global(_) => "a class or function",
            Self::Call(Global::RebuildTensor | Global::RebuildParameter, _) => "a tensor",
            Self::Call(..) => "an object",
            Self::Persistent(_) => "a storage",
        }
    }
}

fn pairs(items: &[Id]) -> Result<Vec<(Id, Id)>, String> {
    if !items.len().is_multiple_of(2) {
        return Err("its pickle has a key without a value".to_owned());
    }
    Ok(items.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}
