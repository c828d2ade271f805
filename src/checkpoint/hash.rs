//! SHA-256 of weight files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::checkpoint::PublishedWeights;
use crate::error::{Error, Result};

/// Bytes read at a time.
const BUFFER: usize = 1 << 20;

/// Computes the SHA-256 of a file, as 64 lower-case hexadecimal digits.
///
/// # Errors
/// [`Error::Io`].
pub fn sha256(path: &Path) -> Result<String> {
    let io = |source| Error::Io { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(io)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; BUFFER];
    loop {
        match file.read(&mut buffer).map_err(io)? {
            0 => break,
            length => hasher.update(&buffer[..length]),
        }
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Checks a file against the hash that a model file promises: the whole, or else its start.
///
/// # Errors
/// [`Error::Checksum`] naming both hashes; [`Error::Config`] when none is promised; [`Error::Io`].
pub fn verify_hash(path: &Path, weights: &PublishedWeights) -> Result<()> {
    let promised = promised(weights)?;
    let found = sha256(path)?;
    if matches(promised, &found) {
        return Ok(());
    }
    Err(Error::Checksum { path: path.to_owned(), expected: shown(promised), found })
}

/// The hash, or the start of it, in the model file.
pub(super) fn promised(weights: &PublishedWeights) -> Result<&str> {
    match (&weights.sha256, &weights.sha256_prefix) {
        (Some(digits), _) if digits.len() == 64 => Ok(digits),
        (None, Some(digits)) if (8..=64).contains(&digits.len()) => Ok(digits),
        (whole, prefix) => Err(Error::Config {
            origin: weights.version.clone(),
            field: "weights.sha256".to_owned(),
            found: format!("{:?}", whole.as_ref().or(prefix.as_ref())),
            expected: "64 hexadecimal digits, or sha256_prefix with at least 8".to_owned(),
        }),
    }
}

pub(super) fn matches(promised: &str, found: &str) -> bool {
    found.get(..promised.len()).is_some_and(|start| start.eq_ignore_ascii_case(promised))
}

pub(super) fn shown(promised: &str) -> String {
    if promised.len() == 64 { promised.to_owned() } else { format!("{promised}…") }
}
