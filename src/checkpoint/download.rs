//! Downloads that survive bad networks: resumed, retried, checked, and never half there.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;

use ureq::http::{Response, StatusCode, header};
use ureq::{Agent, Body};

use super::cache::Fetcher;
use super::{hash, mapped};
use crate::checkpoint::PublishedWeights;
use crate::error::{Error, Result};
use crate::progress::{Event, Progress};

/// Bytes written, and reported, at a time.
const BUFFER: usize = 1 << 18;
/// Requests for one file, even if each of them gains some bytes.
const MAX_REQUESTS: u32 = 1000;
/// Bytes of a wrong file that are looked at to name it.
const QUOTED: u64 = 512;

/// How one request ended without the whole file.
enum Failure {
    /// Another request may do better.
    Transient(String),
    /// None will.
    Permanent(String),
    /// Not the network's fault.
    Local(Error),
}

impl Fetcher {
    /// Downloads a file that the folder lacks.
    pub(super) fn download(
        &self,
        weights: &PublishedWeights,
        path: PathBuf,
        progress: &dyn Progress,
    ) -> Result<PathBuf> {
        fs::create_dir_all(&self.folder)
            .map_err(|source| Error::Io { path: self.folder.clone(), source })?;
        let _lock = lock(&beside(&path, ".lock"))?;
        if path.is_file() {
            // Another process had the lock and has done the work.
            hash::verify_hash(&path, weights)?;
            return Ok(path);
        }
        let transfer =
            Transfer { agent: self.agent(), weights, part: beside(&path, ".part"), progress };
        match self.run(&transfer) {
            Ok(()) => {}
            Err(Failure::Local(error)) => return Err(error),
            Err(Failure::Transient(problem) | Failure::Permanent(problem)) => {
                return Err(Error::Download { url: weights.url.clone(), path, problem });
            }
        }
        fs::rename(&transfer.part, &path)
            .map_err(|source| Error::Io { path: path.clone(), source })?;
        sync_folder(&self.folder);
        Ok(path)
    }

    fn agent(&self) -> Agent {
        Agent::config_builder()
            .http_status_as_error(false)
            // A file compressed on the way could not be resumed at a byte offset.
            .accept_encoding("identity")
            .user_agent(concat!("candle-detection/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(self.connect_timeout))
            .timeout_connect(Some(self.connect_timeout))
            .timeout_recv_response(Some(self.stall_timeout))
            .timeout_per_read(Some(self.stall_timeout))
            .build()
            .into()
    }

    /// Requests until the whole file is there and right.
    fn run(&self, transfer: &Transfer<'_>) -> Result<(), Failure> {
        let mut failures = 0;
        let mut furthest = transfer.size()?;
        for request in 1.. {
            let problem = match transfer.request().and_then(|origin| transfer.check(origin)) {
                Ok(()) => return Ok(()),
                Err(Failure::Transient(problem)) => problem,
                Err(failure) => return Err(failure),
            };
            let size = transfer.size()?;
            failures = if size > furthest { 0 } else { failures + 1 };
            furthest = furthest.max(size);
            if failures > self.retries || request == MAX_REQUESTS {
                return Err(Failure::Transient(format!(
                    "{problem}; gave up after {request} requests"
                )));
            }
            thread::sleep(self.backoff.saturating_mul(1 << failures.min(6)));
        }
        Ok(())
    }
}

/// Whether a file came in one piece, or on top of what an earlier call had left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Whole,
    Resumed,
}

struct Transfer<'a> {
    agent: Agent,
    weights: &'a PublishedWeights,
    part: PathBuf,
    progress: &'a dyn Progress,
}

impl Transfer<'_> {
    /// Bytes on disk.
    fn size(&self) -> Result<u64, Failure> {
        match fs::metadata(&self.part) {
            Ok(metadata) => Ok(metadata.len()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(source) => Err(self.local(source)),
        }
    }

    /// Asks for what is missing, and appends it.
    fn request(&self) -> Result<Origin, Failure> {
        let have = self.size()?;
        let mut request = self.agent.get(&self.weights.url);
        if have > 0 {
            request = request.header(header::RANGE, format!("bytes={have}-"));
        }
        let response = request.call().map_err(network)?;
        match response.status() {
            StatusCode::OK => {
                let total = number(&response, header::CONTENT_LENGTH);
                self.receive(response, 0, total)?;
                Ok(Origin::Whole)
            }
            StatusCode::PARTIAL_CONTENT => match content_range(&response) {
                Some((start, total)) if start == have && have > 0 => {
                    self.receive(response, have, total)?;
                    Ok(Origin::Resumed)
                }
                _ => {
                    self.discard()?;
                    Err(Failure::Transient("the server sent another part than asked for".into()))
                }
            },
            // All bytes are there already; their hash will tell whether they are the right ones.
            StatusCode::RANGE_NOT_SATISFIABLE if have > 0 => Ok(Origin::Resumed),
            status => {
                let problem = format!("the server answers {status}");
                let again = status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429);
                Err(if again { Failure::Transient(problem) } else { Failure::Permanent(problem) })
            }
        }
    }

    /// Writes the body at `start`, where the file is cut before.
    fn receive(
        &self,
        response: Response<Body>,
        start: u64,
        total: Option<u64>,
    ) -> Result<(), Failure> {
        let local = |source| self.local(source);
        let mut file =
            OpenOptions::new().create(true).append(true).open(&self.part).map_err(local)?;
        file.set_len(start).map_err(local)?;
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; BUFFER];
        let mut done = start;
        self.report(done, total)?;
        loop {
            let length = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(Failure::Transient(format!("the connection broke: {error}")));
                }
            };
            file.write_all(&buffer[..length]).map_err(local)?;
            done += length as u64;
            self.report(done, total)?;
        }
        if let Some(total) = total.filter(|total| *total != done) {
            return Err(Failure::Transient(format!("the server sent {done} of {total} bytes")));
        }
        file.sync_all().map_err(local)
    }

    /// Compares the hash of the complete file; a wrong one is deleted.
    fn check(&self, origin: Origin) -> Result<(), Failure> {
        let promised = hash::promised(self.weights).map_err(Failure::Local)?;
        let found = hash::sha256(&self.part).map_err(Failure::Local)?;
        if hash::matches(promised, &found) {
            return Ok(());
        }
        let mut head = Vec::new();
        let size = self.size()?;
        let file = File::open(&self.part).map_err(|source| self.local(source))?;
        file.take(QUOTED).read_to_end(&mut head).map_err(|source| self.local(source))?;
        self.discard()?;
        let problem = format!(
            "the server sent a wrong file, which was deleted: its sha256 is {found}, expected {}; {}",
            hash::shown(promised),
            mapped::describe(size, &head),
        );
        Err(match origin {
            // The file on the server may have been replaced between the two parts.
            Origin::Resumed => Failure::Transient(problem),
            Origin::Whole => Failure::Permanent(problem),
        })
    }

    fn discard(&self) -> Result<(), Failure> {
        match fs::remove_file(&self.part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.local(error)),
            _ => Ok(()),
        }
    }

    fn report(&self, done: u64, total: Option<u64>) -> Result<(), Failure> {
        let event = Event::Downloading { file: &self.weights.file, done, total };
        match self.progress.report(event) {
            std::ops::ControlFlow::Continue(()) => Ok(()),
            std::ops::ControlFlow::Break(()) => Err(Failure::Local(Error::Cancelled)),
        }
    }

    fn local(&self, source: io::Error) -> Failure {
        Failure::Local(Error::Io { path: self.part.clone(), source })
    }
}

/// Sorts errors of the connection into those that pass and those that stay.
fn network(error: ureq::Error) -> Failure {
    let problem = error.to_string();
    match error {
        ureq::Error::Io(_)
        | ureq::Error::Timeout(_)
        | ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::ConnectProxyFailed(_)
        | ureq::Error::Protocol(_) => Failure::Transient(problem),
        _ => Failure::Permanent(problem),
    }
}

fn number(response: &Response<Body>, name: header::HeaderName) -> Option<u64> {
    response.headers().get(name)?.to_str().ok()?.trim().parse().ok()
}

/// First byte and total length of `bytes FIRST-LAST/TOTAL`.
fn content_range(response: &Response<Body>) -> Option<(u64, Option<u64>)> {
    let value = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    let (range, total) = value.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, _last) = range.split_once('-')?;
    Some((first.trim().parse().ok()?, total.trim().parse().ok()))
}

/// Waits until nobody else fetches the same file. The lock ends with the process, however it ends.
fn lock(path: &Path) -> Result<File> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    let file =
        OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(io)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => file.lock().map_err(io)?,
        // Some network file systems have no locks. Two downloads then cost time, and the check of
        // the hash still keeps a mixture of both from being used.
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
        Err(TryLockError::Error(error)) => return Err(io(error)),
    }
    Ok(file)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

/// Makes a renaming survive a power cut, where the system can do that.
fn sync_folder(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        // Without it, the worst is a second download.
        let _ = folder.sync_all();
    }
}
