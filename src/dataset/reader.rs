//! Streams the entries of a JSON file, so that memory holds what an entry means and never the file.
//!
//! The file is walked once; every entry of the wanted lists is cut out unread, gathered into chunks, and parsed by all
//! cores. An error can therefore name the entry by its position and id, however deep in the entry the fault lies.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};

use rayon::prelude::*;
use serde::de::{DeserializeSeed, Deserializer as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::{Error, Result};

/// Entries parsed together: enough work for every core, little enough to be forgotten in memory.
const CHUNK: usize = 8192;

/// Chunks that may wait to be parsed.
const AHEAD: usize = 2;

/// Bytes read at a time.
const BUFFER: usize = 1 << 20;

/// A list of entries whose text is still JSON.
pub(crate) struct Chunk {
    /// Position of the first entry in its list.
    pub first: usize,
    /// The entries' text.
    pub entries: Vec<Box<RawValue>>,
}

impl Chunk {
    /// Parses all entries on all cores; the first error in file order wins.
    pub fn parse<T: Send>(
        &self,
        parse: impl Fn(usize, &str) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let parsed: Vec<Result<T>> = self
            .entries
            .par_iter()
            .enumerate()
            .map(|(offset, entry)| parse(self.first + offset, entry.get()))
            .collect();
        parsed.into_iter().collect()
    }
}

/// Takes chunks of the list with the given name.
type Sink<'s> = dyn FnMut(&'static str, Chunk) -> Result<()> + 's;

/// Reads a file whose top level is an object, and hands over the lists named in `wanted`. Returns those it met.
pub(crate) fn read_object(
    path: &Path,
    wanted: &[&'static str],
    sink: &mut Sink<'_>,
) -> Result<Vec<&'static str>> {
    read(path, Top::Object, wanted, sink)
}

/// Reads a file whose top level is a list, called `name` in errors.
pub(crate) fn read_list(path: &Path, name: &'static str, sink: &mut Sink<'_>) -> Result<()> {
    read(path, Top::List(name), &[], sink).map(drop)
}

/// Walks the file on a thread of its own, while the sink works on what was found.
fn read(
    path: &Path,
    top: Top,
    wanted: &[&'static str],
    sink: &mut Sink<'_>,
) -> Result<Vec<&'static str>> {
    std::thread::scope(|scope| {
        let (sender, receiver) = sync_channel(AHEAD);
        let walk = scope.spawn(move || {
            let mut walk = Walk { wanted, sender, met: Vec::new(), entry: String::new() };
            let outcome = walk.over(path, top);
            walk.conclude(path, outcome)
        });
        for (list, chunk) in receiver {
            // Its error drops the receiver, which stops the walk.
            sink(list, chunk)?;
        }
        walk.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// What the file must be at its top level.
#[derive(Clone, Copy)]
enum Top {
    Object,
    List(&'static str),
}

struct Walk<'w> {
    wanted: &'w [&'static str],
    sender: SyncSender<(&'static str, Chunk)>,
    met: Vec<&'static str>,
    /// Where the walk is, for errors.
    entry: String,
}

impl Walk<'_> {
    fn over(&mut self, path: &Path, top: Top) -> Result<(), OpenOrParse> {
        let file = File::open(path).map_err(OpenOrParse::Open)?;
        let mut parser =
            serde_json::Deserializer::from_reader(BufReader::with_capacity(BUFFER, file));
        match top {
            Top::Object => parser.deserialize_map(TopObject(self))?,
            Top::List(name) => parser.deserialize_seq(Entries { walk: self, name })?,
        }
        self.entry = "after the end of the data".to_owned();
        Ok(parser.end()?)
    }

    fn conclude(self, path: &Path, outcome: Result<(), OpenOrParse>) -> Result<Vec<&'static str>> {
        let parse = match outcome {
            Ok(()) => return Ok(self.met),
            Err(OpenOrParse::Open(source)) => {
                return Err(Error::Io { path: path.to_owned(), source });
            }
            Err(OpenOrParse::Parse(parse)) => parse,
        };
        if let Some(kind) = parse.io_error_kind() {
            return Err(Error::Io { path: path.to_owned(), source: kind.into() });
        }
        let entry = if self.entry.is_empty() { "the file".to_owned() } else { self.entry };
        let problem = if parse.is_eof() || ends_in_number(path, &parse) {
            format!(
                "the file ends early, at line {} column {}; it is cut off: copy or download it again",
                parse.line(),
                parse.column()
            )
        } else {
            parse.to_string()
        };
        Err(Error::Dataset { path: path.to_owned(), entry, problem })
    }
}

/// A number cut off after its sign or point counts as a wrong number, though it is the file that ends.
fn ends_in_number(path: &Path, error: &serde_json::Error) -> bool {
    if !error.to_string().starts_with("invalid number") {
        return false;
    }
    let Ok(file) = File::open(path) else { return false };
    let mut rest = BufReader::with_capacity(BUFFER, file).split(b'\n').skip(error.line() - 1);
    let faulty = rest.next().and_then(|line| line.ok()).unwrap_or_default();
    faulty.len() <= error.column() && rest.next().is_none()
}

enum OpenOrParse {
    Open(std::io::Error),
    Parse(serde_json::Error),
}

impl From<serde_json::Error> for OpenOrParse {
    fn from(error: serde_json::Error) -> Self {
        Self::Parse(error)
    }
}

struct TopObject<'a, 'w>(&'a mut Walk<'w>);

impl<'de> Visitor<'de> for TopObject<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with the lists {}", self.0.wanted.join(", "))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match self.0.wanted.iter().find(|&&name| name == key) {
                Some(&name) => {
                    self.0.met.push(name);
                    map.next_value_seed(Entries { walk: self.0, name })?;
                }
                None => {
                    self.0.entry = format!("`{key}`");
                    map.next_value::<IgnoredAny>()?;
                }
            }
            self.0.entry = "the file".to_owned();
        }
        Ok(())
    }
}

struct Entries<'a, 'w> {
    walk: &'a mut Walk<'w>,
    name: &'static str,
}

impl<'de> DeserializeSeed<'de> for Entries<'_, '_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.walk.entry = format!("`{}`", self.name);
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of {}", self.name)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut chunk = Chunk { first: 0, entries: Vec::new() };
        loop {
            let entry = match seq.next_element::<Box<RawValue>>() {
                Ok(entry) => entry,
                Err(error) => {
                    let position = chunk.first + chunk.entries.len();
                    self.walk.entry = format!("{}[{position}]", self.name);
                    return Err(error);
                }
            };
            let ended = entry.is_none();
            chunk.entries.extend(entry);
            if !chunk.entries.is_empty() && (ended || chunk.entries.len() == CHUNK) {
                let next = chunk.first + chunk.entries.len();
                let full =
                    std::mem::replace(&mut chunk, Chunk { first: next, entries: Vec::new() });
                if self.walk.sender.send((self.name, full)).is_err() {
                    // Nobody sees this: the sink's own error is returned.
                    return Err(serde::de::Error::custom("stopped"));
                }
            }
            if ended {
                return Ok(());
            }
        }
    }
}
