//! The sections `weights` of a model file.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::section::Checks;

/// A published weight file, and what is claimed of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedWeights {
    /// Name of the version, such as `coco_v1`.
    pub version: String,
    /// File name in the cache folder.
    pub file: String,
    /// Where it is served.
    pub url: String,
    /// The whole SHA-256, 64 hexadecimal digits; preferred to the prefix.
    pub sha256: Option<String>,
    /// The start of the SHA-256, at least 8 digits, where the whole is not known.
    pub sha256_prefix: Option<String>,
    /// Numbers in all tensors, buffers of norms not counted.
    pub parameters: u64,
    /// Percent, AP@[.50:.95] of the boxes.
    pub box_ap: Option<f64>,
    /// Percent, AP@[.50:.95] of the masks.
    pub mask_ap: Option<f64>,
    /// Percent, AP@[.50:.95] of the keypoints.
    pub keypoint_ap: Option<f64>,
    /// The data set of these figures.
    pub evaluated_on: Option<String>,
    /// Licence of the file.
    pub license: String,
}

impl PublishedWeights {
    /// Checks hash and file name.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), naming the field at fault.
    pub fn validate(&self, checks: &Checks) -> Result<()> {
        let (field, digits, enough) = match (&self.sha256, &self.sha256_prefix) {
            (Some(hash), _) => ("sha256", hash, hash.len() == 64),
            (None, Some(prefix)) => ("sha256_prefix", prefix, prefix.len() >= 8),
            (None, None) => {
                let expected = "64 digits, or sha256_prefix with at least 8";
                return Err(checks.fault("sha256", "absent", expected));
            }
        };
        let hexadecimal = digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        checks.require(
            (enough && hexadecimal).into(),
            field,
            format!("`{digits}`"),
            "lower-case hexadecimal digits, 64 of a whole hash or at least 8 of a prefix",
        )?;
        let plain = !self.file.is_empty() && !self.file.contains(['/', '\\']);
        let found = format!("`{}`", self.file);
        checks.require(plain.into(), "file", found, "a file name without folders")
    }
}
