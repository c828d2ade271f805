//! Figures in the files that TensorBoard reads.
//!
//! A file is a sequence of records: the length, a checksum of the length, the content, a checksum of the content. The
//! content is an `Event` in the encoding of Protocol Buffers. Reference: TensorFlow `core/lib/io/record_writer.cc`,
//! `core/util/event.proto`, `core/framework/summary.proto`.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};

/// A file of events in a folder. Every figure is on disk when [`Self::scalars`] returns.
#[derive(Debug)]
pub struct TensorBoardLog {
    path: PathBuf,
    file: File,
}

/// Numbers of fields.
mod field {
    pub const EVENT_WALL_TIME: u32 = 1;
    pub const EVENT_STEP: u32 = 2;
    pub const EVENT_FILE_VERSION: u32 = 3;
    pub const EVENT_SUMMARY: u32 = 5;
    pub const EVENT_SESSION_LOG: u32 = 7;
    pub const SESSION_LOG_STATUS: u32 = 1;
    pub const SUMMARY_VALUE: u32 = 1;
    pub const VALUE_TAG: u32 = 1;
    pub const VALUE_SIMPLE: u32 = 2;
}

/// `SessionLog.START`: a reader forgets what earlier files say of this step and later ones.
const SESSION_START: u64 = 1;

impl TensorBoardLog {
    /// Starts a file in a folder, for the figures after `step` steps. Files of an interrupted run may be there.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(folder: &Path, step: u64) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(|source| fault(folder, source))?;
        let now = seconds();
        // Readers go through the files by name.
        let name = format!(
            "events.out.tfevents.{:010}.candle-detection.{}",
            now as u64,
            std::process::id()
        );
        let path = folder.join(name);
        let file = File::create(&path).map_err(|source| fault(&path, source))?;
        let mut log = Self { path, file };
        let mut version = Message::default();
        version.double(field::EVENT_WALL_TIME, now);
        version.bytes(field::EVENT_FILE_VERSION, b"brain.Event:2");
        log.write(&version)?;
        let mut status = Message::default();
        status.number(field::SESSION_LOG_STATUS, SESSION_START);
        let mut start = event(now, step + 1);
        start.bytes(field::EVENT_SESSION_LOG, &status.0);
        log.write(&start)?;
        Ok(log)
    }

    /// Writes figures of a step, by name; a `/` in a name groups it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn scalars<'a>(
        &mut self,
        step: u64,
        figures: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> Result<()> {
        let mut summary = Message::default();
        for (name, value) in figures {
            let mut one = Message::default();
            one.bytes(field::VALUE_TAG, name.as_bytes());
            one.float(field::VALUE_SIMPLE, value as f32);
            summary.bytes(field::SUMMARY_VALUE, &one.0);
        }
        let mut event = event(seconds(), step);
        event.bytes(field::EVENT_SUMMARY, &summary.0);
        self.write(&event)
    }

    fn write(&mut self, event: &Message) -> Result<()> {
        self.file.write_all(&record(&event.0)).map_err(|source| fault(&self.path, source))
    }
}

fn event(time: f64, step: u64) -> Message {
    let mut event = Message::default();
    event.double(field::EVENT_WALL_TIME, time);
    event.number(field::EVENT_STEP, step);
    event
}

fn seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn record(content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(content.len() + 16);
    record.extend(length);
    record.extend(masked_checksum(&length).to_le_bytes());
    record.extend(content);
    record.extend(masked_checksum(content).to_le_bytes());
    record
}

/// A message under construction.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

/// How a field's value is encoded.
mod wire {
    pub const VARINT: u32 = 0;
    pub const FIXED_64: u32 = 1;
    pub const LENGTH: u32 = 2;
    pub const FIXED_32: u32 = 5;
}

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u32, wire: u32) {
        self.varint(u64::from(field << 3 | wire));
    }

    fn number(&mut self, field: u32, value: u64) {
        self.key(field, wire::VARINT);
        self.varint(value);
    }

    fn double(&mut self, field: u32, value: f64) {
        self.key(field, wire::FIXED_64);
        self.0.extend(value.to_le_bytes());
    }

    fn float(&mut self, field: u32, value: f32) {
        self.key(field, wire::FIXED_32);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, value: &[u8]) {
        self.key(field, wire::LENGTH);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }
}

/// The polynomial of Castagnoli, its bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ POLYNOMIAL } else { sum >> 1 };
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
};

fn checksum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, &byte| sum >> 8 ^ TABLE[(sum as u8 ^ byte) as usize])
}

/// Turned and shifted, as the sum of data that holds sums of itself would mean little.
fn masked_checksum(bytes: &[u8]) -> u32 {
    checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn fault(path: &Path, source: std::io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, appendix B.4, and the first bytes of every file that TensorFlow writes.
    #[test]
    fn checksums_are_the_standards() {
        assert_eq!(checksum(b"123456789"), 0xe306_9283);
        assert_eq!(checksum(&[0; 32]), 0x8a91_36aa);
        let first = record(&[0; 24]);
        assert_eq!(first[..12], [24, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22]);
    }

    /// Splits a file into its records.
    fn records(bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut rest = bytes;
        let mut records = Vec::new();
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            let content = &rest[12..12 + length];
            assert_eq!(rest[12 + length..][..4], masked_checksum(content).to_le_bytes());
            records.push(content.to_vec());
            rest = &rest[16 + length..];
        }
        records
    }

    #[test]
    fn a_file_has_its_version_a_start_and_the_figures() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = TensorBoardLog::create(folder.path(), 299).unwrap();
        log.scalars(300, [("loss/total", 0.5), ("rate", 0.25)]).unwrap();
        let records = records(&std::fs::read(&log.path).unwrap());
        assert_eq!(records.len(), 3);
        // After the time, which is nine bytes.
        assert_eq!(records[0][9..], *b"\x1a\x0dbrain.Event:2");
        assert_eq!(records[1][9..], [0x10, 0xac, 0x02, 0x3a, 2, 8, 1]);
        let mut expected = vec![0x10, 0xac, 0x02, 0x2a, 32, 0x0a, 17, 0x0a, 10];
        expected.extend(b"loss/total");
        expected.extend([0x15, 0, 0, 0, 0x3f, 0x0a, 11, 0x0a, 4]);
        expected.extend(b"rate");
        expected.extend([0x15, 0, 0, 0x80, 0x3e]);
        assert_eq!(records[2][9..], expected);
    }
}
