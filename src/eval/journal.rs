//! Results on disk as they come, so that a crash loses nothing and parts of a run can be put together.
//!
//! Next to the results file `OUT.json` grows `OUT.json.journal`: a first line with the settings of the run, then a line per
//! image, also for those in which nothing was found, then a last line that says it is complete. A line that a crash
//! tore is dropped on resumption. `OUT.json` itself appears at once when everything is there.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::results::write_results;
use super::{CocoResult, Shard};
use crate::dataset::fields::Place;
use crate::error::{Error, Result};

/// Version of the file format; raised when a line changes its meaning.
const FORMAT: u32 = 1;

/// Everything that results depend on, by name: model, weights, sizes, annotations. Runs are continued and parts put together
/// only when all of it is the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunSettings(BTreeMap<String, String>);

impl RunSettings {
    /// No settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one.
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.0.insert(name.to_owned(), value.to_string());
        self
    }

    /// The value of one.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The first setting in which two runs differ: name, here, there.
    fn difference(&self, other: &Self) -> Option<(String, String, String)> {
        let value = |settings: &Self, name: &str| {
            settings.0.get(name).cloned().unwrap_or_else(|| "not set".to_owned())
        };
        let names: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        names
            .into_iter()
            .map(|name| (name.clone(), value(self, name), value(other, name)))
            .find(|(_, here, there)| here != there)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    candle_detection_journal: u32,
    settings: RunSettings,
    shard: [usize; 2],
}

#[derive(Serialize)]
struct Line<'a> {
    image_id: u64,
    results: &'a [CocoResult],
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Footer {
    complete: usize,
}

/// How a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// From the first image. An unfinished run in the same place is an error, a finished one is replaced.
    New,
    /// After the images that are there already; from the first where there are none.
    Resume,
}

/// A journal being written. Another process that opens the same one gets an error.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    results: PathBuf,
    file: File,
    done: HashSet<u64>,
    complete: bool,
}

impl Journal {
    /// Where the journal of a results file lies: `OUT.json.journal`.
    pub fn path_of(results: &Path) -> PathBuf {
        let mut name = results.as_os_str().to_owned();
        name.push(".journal");
        name.into()
    }

    /// Opens the journal of a results file for writing.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Dataset`] when a run in the same place is unfinished ([`Start::New`]), was made with other settings
    /// (named), is being written by another process, or is damaged.
    pub fn open(
        results: &Path,
        settings: &RunSettings,
        shard: Shard,
        start: Start,
    ) -> Result<Self> {
        let path = Self::path_of(results);
        let failed = |source| Error::Io { path: path.clone(), source };
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).read(true).write(true);
        let mut file = file.open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(fault(&path, "the journal", "another process is writing it"));
            }
            // Some network file systems have no locks; the run is no worse off than without this check.
            Err(std::fs::TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {}
            Err(std::fs::TryLockError::Error(source)) => return Err(failed(source)),
        }
        let old = Contents::read(&path)?;
        let mut done = HashSet::new();
        let mut complete = false;
        match (old, start) {
            (Some(old), Start::Resume) => {
                old.check(&path, settings, shard)?;
                file.set_len(old.bytes).map_err(failed)?;
                file.seek(SeekFrom::End(0)).map_err(failed)?;
                done.extend(old.images.iter().map(|(id, _)| *id));
                complete = old.complete;
            }
            (Some(old), Start::New) if !old.complete && !old.images.is_empty() => {
                return Err(fault(
                    &path,
                    "the journal",
                    &format!(
                        "an unfinished run with {} images is here; resume it, or delete the file to begin anew",
                        old.images.len()
                    ),
                ));
            }
            _ => {
                let header = Header {
                    candle_detection_journal: FORMAT,
                    settings: settings.clone(),
                    shard: [shard.index(), shard.count()],
                };
                file.set_len(0).map_err(failed)?;
                file.rewind().map_err(failed)?;
                append(&mut file, &header).map_err(failed)?;
            }
        }
        Ok(Self { path, results: results.to_owned(), file, done, complete })
    }

    /// Whether an image is in it.
    pub fn has(&self, image_id: u64) -> bool {
        self.done.contains(&image_id)
    }

    /// Images in it.
    pub fn len(&self) -> usize {
        self.done.len()
    }

    /// Whether no image is in it.
    pub fn is_empty(&self) -> bool {
        self.done.is_empty()
    }

    /// What is in it: images in the order they came, and what was found in them.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Dataset`] when it is damaged.
    pub fn read(&self) -> Result<Vec<(u64, Vec<CocoResult>)>> {
        Ok(Contents::read(&self.path)?.map(|contents| contents.images).unwrap_or_default())
    }

    /// Adds an image. What was added is safe from the end of this process, however sudden.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Dataset`] when the image is in it already or a score, box or keypoint is NaN or infinite.
    pub fn append(&mut self, image_id: u64, results: &[CocoResult]) -> Result<()> {
        let entry = || format!("image {image_id}");
        if self.complete || !self.done.insert(image_id) {
            return Err(fault(&self.path, &entry(), "it is in the journal already"));
        }
        // JSON has no spelling for these, and would turn them into null.
        let finite = |result: &CocoResult| {
            let keypoints = result.keypoints.iter().flatten().flatten();
            let mut numbers = result.bbox.iter().flatten().chain(keypoints);
            result.score.is_finite() && numbers.all(|value| value.is_finite())
        };
        if let Some(index) = results.iter().position(|result| !finite(result)) {
            let problem = format!(
                "detections[{index}] has score {} and box {:?}{}, expected finite numbers",
                results[index].score,
                results[index].bbox,
                match &results[index].keypoints {
                    Some(keypoints) => format!(" and keypoints {keypoints:?}"),
                    None => String::new(),
                }
            );
            return Err(fault(&self.path, &entry(), &problem));
        }
        append(&mut self.file, &Line { image_id, results })
            .map_err(|source| Error::Io { path: self.path.clone(), source })
    }

    /// Marks the run as complete and writes the results file, by image in the order given, all at once: it has its old content or
    /// its new one, never a part.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Dataset`] when an image of `order` is missing.
    pub fn finish(mut self, order: &[u64]) -> Result<()> {
        if let Some(missing) = order.iter().find(|id| !self.done.contains(id)) {
            return Err(fault(&self.path, &format!("image {missing}"), "it is missing"));
        }
        if !self.complete {
            append(&mut self.file, &Footer { complete: self.done.len() })
                .and_then(|()| self.file.sync_all())
                .map_err(|source| Error::Io { path: self.path.clone(), source })?;
        }
        write_file(&self.results, self.read()?, order)
    }
}

/// Writes a results file through a temporary one beside it.
fn write_file(path: &Path, images: Vec<(u64, Vec<CocoResult>)>, order: &[u64]) -> Result<()> {
    let by_id: BTreeMap<u64, Vec<CocoResult>> = images.into_iter().collect();
    let results = order.iter().filter_map(|id| by_id.get(id)).flatten();
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    let partial = PathBuf::from(name);
    let write = || {
        let mut writer = BufWriter::new(File::create(&partial)?);
        write_results(&mut writer, results)?;
        writer.into_inner().map_err(|error| error.into_error())?.sync_all()?;
        std::fs::rename(&partial, path)
    };
    write().map_err(|source| Error::Io { path: path.to_owned(), source })
}

/// One line in one write, so that a crash tears at most the last.
fn append(file: &mut File, line: &impl Serialize) -> std::io::Result<()> {
    let mut bytes = serde_json::to_vec(line)?;
    bytes.push(b'\n');
    file.write_all(&bytes)
}

/// What a journal holds.
struct Contents {
    settings: RunSettings,
    shard: Shard,
    /// In the order they came.
    images: Vec<(u64, Vec<CocoResult>)>,
    complete: bool,
    /// Length without a torn last line.
    bytes: u64,
}

impl Contents {
    /// Reads a journal; none when not even its first line is whole.
    fn read(path: &Path) -> Result<Option<Self>> {
        let failed = |source| Error::Io { path: path.to_owned(), source };
        let mut reader = BufReader::new(File::open(path).map_err(failed)?);
        let mut contents: Option<Self> = None;
        let mut seen = HashSet::new();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let length = reader.read_until(b'\n', &mut line).map_err(failed)?;
            if line.pop() != Some(b'\n') {
                break;
            }
            let text = String::from_utf8_lossy(&line);
            let entry = format!("line {number}");
            let damaged = |problem: &str| fault(path, &entry, problem);
            match &mut contents {
                None => {
                    let header: Header = serde_json::from_str(&text)
                        .map_err(|_| damaged("it is not the first line of a journal"))?;
                    if header.candle_detection_journal != FORMAT {
                        return Err(damaged("the journal has another version's format"));
                    }
                    let [index, count] = header.shard;
                    contents = Some(Self {
                        settings: header.settings,
                        shard: Shard::new(index, count)?,
                        images: Vec::new(),
                        complete: false,
                        bytes: length as u64,
                    });
                }
                Some(contents) => {
                    if contents.complete {
                        return Err(damaged("a line follows the one that says it is complete"));
                    }
                    contents.bytes += length as u64;
                    if let Ok(footer) = serde_json::from_str::<Footer>(&text) {
                        if footer.complete != contents.images.len() {
                            return Err(damaged("the journal has not as many images as it says"));
                        }
                        contents.complete = true;
                        continue;
                    }
                    let image = parse_line(path, number, &text)?;
                    if !seen.insert(image.0) {
                        return Err(damaged(&format!("image {} is there twice", image.0)));
                    }
                    contents.images.push(image);
                }
            }
        }
        Ok(contents)
    }

    fn check(&self, path: &Path, settings: &RunSettings, shard: Shard) -> Result<()> {
        if let Some((name, here, there)) = self.settings.difference(settings) {
            return Err(fault(
                path,
                &format!("setting `{name}`"),
                &format!(
                    "the run was begun with {here}, it cannot go on with {there}; use the same settings, or delete the file to begin anew"
                ),
            ));
        }
        if self.shard != shard {
            return Err(fault(
                path,
                "setting `shard`",
                &format!("the run was begun as {}, it cannot go on as {shard}", self.shard),
            ));
        }
        Ok(())
    }
}

fn parse_line(path: &Path, number: usize, text: &str) -> Result<(u64, Vec<CocoResult>)> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Fields<'a> {
        image_id: u64,
        #[serde(borrow)]
        results: Vec<&'a RawValue>,
    }
    let place = Place { path, list: "line", index: number, id: None };
    let fields: Fields<'_> = serde_json::from_str(text).map_err(|error| {
        fault(path, &format!("line {number}"), &format!("it is damaged: {error}"))
    })?;
    let results: Result<Vec<CocoResult>> =
        fields.results.iter().map(|raw| CocoResult::parse(place, raw.get())).collect();
    Ok((fields.image_id, results?))
}

fn fault(path: &Path, entry: &str, problem: &str) -> Error {
    Error::Dataset { path: path.to_owned(), entry: entry.to_owned(), problem: problem.to_owned() }
}

/// All parts of a run, put together.
#[derive(Debug, Clone)]
pub struct Merged {
    /// The settings that all parts share.
    pub settings: RunSettings,
    /// By ascending id: the images looked at and what was found in them.
    pub images: Vec<(u64, Vec<CocoResult>)>,
}

impl Merged {
    /// Reads the journals in a folder, `*.journal`.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Dataset`] naming the files at fault when a part is missing, unfinished, there twice, of a run with
    /// other settings or another number of parts, or when an image is in two parts.
    pub fn read(folder: &Path) -> Result<Self> {
        let failed = |source| Error::Io { path: folder.to_owned(), source };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == "journal") {
                paths.push(path);
            }
        }
        paths.sort();
        let mut parts: Vec<(PathBuf, Contents)> = Vec::new();
        for path in paths {
            let contents = Contents::read(&path)?
                .ok_or_else(|| fault(&path, "the journal", "it is empty; run this shard again"))?;
            parts.push((path, contents));
        }
        let Some((first_path, first)) = parts.first() else {
            return Err(fault(
                folder,
                "shards",
                "the folder has no `*.journal`; give each shard a `--results` file in it",
            ));
        };
        let count = first.shard.count();
        let mut by_index: Vec<Option<&Path>> = vec![None; count];
        for (path, part) in &parts {
            let other = format!("; {} is of another run", first_path.display());
            if part.shard.count() != count {
                let problem = format!("it is shard {}, not one of {count}{other}", part.shard);
                return Err(fault(path, "shard", &problem));
            }
            if let Some((name, here, there)) = part.settings.difference(&first.settings) {
                let problem = format!("it is {here}, not {there}{other}");
                return Err(fault(path, &format!("setting `{name}`"), &problem));
            }
            if let Some(taken) = by_index[part.shard.index()].replace(path) {
                let problem = format!("shard {} is in {} too", part.shard, taken.display());
                return Err(fault(path, "shard", &problem));
            }
            if !part.complete {
                let problem = format!(
                    "shard {} is unfinished, it has {} images; resume it",
                    part.shard,
                    part.images.len()
                );
                return Err(fault(path, "shard", &problem));
            }
        }
        let missing: Vec<String> = (0..count)
            .filter(|&index| by_index[index].is_none())
            .map(|index| format!("{index}/{count}"))
            .collect();
        if !missing.is_empty() {
            return Err(fault(folder, "shards", &format!("missing: {}", missing.join(", "))));
        }
        let settings = first.settings.clone();
        let mut images: BTreeMap<u64, Vec<CocoResult>> = BTreeMap::new();
        for (path, part) in parts {
            for (id, results) in part.images {
                if images.insert(id, results).is_some() {
                    return Err(fault(&path, &format!("image {id}"), "another shard has it too"));
                }
            }
        }
        Ok(Self { settings, images: images.into_iter().collect() })
    }

    /// Ids of all images looked at, ascending.
    pub fn image_ids(&self) -> Vec<u64> {
        self.images.iter().map(|(id, _)| *id).collect()
    }

    /// Writes the results file that an undivided run would have written.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, path: &Path) -> Result<()> {
        write_file(path, self.images.clone(), &self.image_ids())
    }
}
