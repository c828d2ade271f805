//! The folder in which published weights are kept.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::hash;
use crate::checkpoint::PublishedWeights;
use crate::error::{Error, Result};
use crate::progress::Progress;

/// Names the cache folder itself.
const CACHE: &str = "CANDLE_DETECTION_CACHE";
/// Forbids downloads unless empty or `0`.
const OFFLINE: &str = "CANDLE_DETECTION_OFFLINE";

/// Gives the path of published weights in the cache folder, downloading them on first use.
///
/// The same as [`Fetcher::from_env`] followed by [`Fetcher::fetch`].
///
/// # Errors
/// As those two.
pub fn fetch(weights: &PublishedWeights, progress: &dyn Progress) -> Result<PathBuf> {
    Fetcher::from_env()?.fetch(weights, progress)
}

/// Whether files may be downloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// What the cache folder lacks is downloaded.
    Allowed,
    /// Only the cache folder is used.
    Offline,
}

/// Keeps published weights in a folder.
///
/// # Example
/// ```no_run
/// use candle_detection::checkpoint::Fetcher;
/// use candle_detection::{Silent, config};
///
/// let model = config::get("maskrcnn_resnet50_fpn")?;
/// let path = Fetcher::new("weights-here").fetch(&model.weights[0], &Silent)?;
/// # Ok::<(), candle_detection::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Fetcher {
    pub(super) folder: PathBuf,
    pub(super) network: Network,
    pub(super) connect_timeout: Duration,
    pub(super) stall_timeout: Duration,
    pub(super) retries: u32,
    pub(super) backoff: Duration,
}

impl Fetcher {
    /// A fetcher that keeps its files in `folder`, which is created when needed.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            network: Network::Allowed,
            connect_timeout: Duration::from_secs(20),
            stall_timeout: Duration::from_secs(30),
            retries: 4,
            backoff: Duration::from_secs(1),
        }
    }

    /// A fetcher set up by the environment.
    ///
    /// The folder is `CANDLE_DETECTION_CACHE`, else `candle-detection` in the user's cache folder.
    /// `CANDLE_DETECTION_OFFLINE=1` forbids downloads.
    ///
    /// # Errors
    /// [`Error::Config`] when the variable is not set and there is no home folder either.
    pub fn from_env() -> Result<Self> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let folder = cache_folder(variable).ok_or_else(|| Error::Config {
            origin: "environment".to_owned(),
            field: CACHE.to_owned(),
            found: "not set, and there is no home folder".to_owned(),
            expected: "the folder to keep weights in".to_owned(),
        })?;
        let network = match variable(OFFLINE) {
            Some(value) if value != "0" => Network::Offline,
            _ => Network::Allowed,
        };
        Ok(Self::new(folder).network(network))
    }

    /// Allows or forbids downloads. Allowed by default.
    pub fn network(mut self, network: Network) -> Self {
        self.network = network;
        self
    }

    /// Longest time to wait for a connection. 20 s by default.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Longest time to wait for the next bytes. 30 s by default.
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.stall_timeout = timeout;
        self
    }

    /// How many requests in a row may be repeated that gained no byte, and the pause before the first
    /// repetition, which doubles from one to the next. 4 and 1 s by default.
    pub fn retries(mut self, retries: u32, backoff: Duration) -> Self {
        self.retries = retries;
        self.backoff = backoff;
        self
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where a file is kept, whether it is there or not.
    pub fn path_of(&self, weights: &PublishedWeights) -> PathBuf {
        self.folder.join(&weights.file)
    }

    /// Gives the path of published weights, downloading them when the folder lacks them.
    ///
    /// A file that is there is used as it is, after its hash was checked; this is also how to install
    /// one by hand. A download goes to a file ending in `.part`, is resumed after an interruption,
    /// checked, and renamed when complete. Of several threads or processes that want the same file,
    /// one downloads it and the others wait.
    ///
    /// # Errors
    /// [`Error::Checksum`] when the file in the folder has another hash; [`Error::Download`] when it
    /// can't be fetched, or may not; [`Error::Cancelled`] when `progress` stops it, after which the
    /// next call goes on from there; [`Error::Io`]; [`Error::Config`] when the entry has no hash, or a
    /// file name with folders.
    pub fn fetch(&self, weights: &PublishedWeights, progress: &dyn Progress) -> Result<PathBuf> {
        hash::promised(weights)?;
        let plain = Path::new(&weights.file).file_name().is_some_and(|name| name == &*weights.file);
        if !plain || weights.file.contains('\\') {
            return Err(Error::Config {
                origin: weights.version.clone(),
                field: "weights.file".to_owned(),
                found: format!("`{}`", weights.file),
                expected: "a file name without folders".to_owned(),
            });
        }
        let path = self.path_of(weights);
        if path.is_file() {
            hash::verify_hash(&path, weights)?;
            return Ok(path);
        }
        if self.network == Network::Offline {
            return Err(Error::Download {
                url: weights.url.clone(),
                path,
                problem: format!("downloads are switched off ({OFFLINE})"),
            });
        }
        self.download(weights, path, progress)
    }

    #[cfg(not(feature = "download"))]
    fn download(
        &self,
        weights: &PublishedWeights,
        path: PathBuf,
        _progress: &dyn Progress,
    ) -> Result<PathBuf> {
        Err(Error::Download {
            url: weights.url.clone(),
            path,
            problem: "this build lacks the feature `download`".to_owned(),
        })
    }
}

/// The folder, from environment variables.
fn cache_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(folder) = variable(CACHE) {
        return Some(folder.into());
    }
    let folder: PathBuf = if cfg!(target_os = "windows") {
        variable("LOCALAPPDATA")?.into()
    } else if cfg!(target_os = "macos") {
        Path::new(&variable("HOME")?).join("Library/Caches")
    } else {
        // A relative XDG_CACHE_HOME is to be ignored, by its specification.
        match variable("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute()) {
            Some(folder) => folder,
            None => Path::new(&variable("HOME")?).join(".cache"),
        }
    };
    Some(folder.join("candle-detection"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(unix, not(target_os = "macos")))]
    #[test]
    fn the_folder_follows_the_environment() {
        let with = |set: &[(&str, &str)]| {
            cache_folder(|name| {
                set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            })
        };
        let home = ("HOME", "/home/me");
        assert_eq!(with(&[]), None);
        assert_eq!(with(&[home]), Some("/home/me/.cache/candle-detection".into()));
        assert_eq!(with(&[home, ("XDG_CACHE_HOME", "/x")]), Some("/x/candle-detection".into()));
        assert_eq!(
            with(&[home, ("XDG_CACHE_HOME", "x")]),
            Some("/home/me/.cache/candle-detection".into())
        );
        assert_eq!(with(&[home, ("XDG_CACHE_HOME", "/x"), (CACHE, "/w")]), Some("/w".into()));
    }
    #[cfg(not(feature = "download"))]
    #[test]
    fn without_the_feature_only_the_folder_counts() {
        let mut weights = crate::config::get("maskrcnn_resnet50_fpn").unwrap().weights[0].clone();
        let folder = tempfile::tempdir().unwrap();
        let fetcher = Fetcher::new(folder.path());
        let message = fetcher.fetch(&weights, &crate::Silent).unwrap_err().to_string();
        assert!(
            message.contains("feature `download`") && message.contains(&weights.url),
            "{message}"
        );
        std::fs::write(fetcher.path_of(&weights), "abc").unwrap();
        weights.sha256_prefix = Some("ba7816bf".to_owned());
        assert_eq!(fetcher.fetch(&weights, &crate::Silent).unwrap(), fetcher.path_of(&weights));
    }
}
