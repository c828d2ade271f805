//! Figures as comma-separated text.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Figures of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Steps made.
    pub step: u64,
    /// One per column; `None` where there was nothing to say.
    pub values: Vec<Option<f64>>,
}

/// A file with a line per step: `step`, then the columns. Every line is on disk when [`Self::append`] returns.
#[derive(Debug)]
pub struct CsvLog {
    path: PathBuf,
    file: File,
    columns: usize,
}

impl CsvLog {
    /// Starts a file, in place of one that is there.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(path: &Path, columns: &[&str]) -> Result<Self> {
        Self::write(path, columns, &[])
    }

    /// Goes on with a file after `step` steps: lines of later ones, and one that was cut off, are dropped.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Log`] when the file has other columns.
    pub fn resume(path: &Path, columns: &[&str], step: u64) -> Result<Self> {
        let (found, mut rows) = Self::read(path)?;
        if found != columns {
            return Err(Error::Log {
                path: path.to_owned(),
                line: 1,
                problem: format!("its columns are {}, not {}", found.join(","), columns.join(",")),
            });
        }
        rows.retain(|row| row.step <= step);
        Self::write(path, columns, &rows)
    }

    /// Names of the columns after the first, and the lines. A last line without an end is passed over.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Log`] for a line that is none of ours.
    pub fn read(path: &Path) -> Result<(Vec<String>, Vec<Row>)> {
        let text = std::fs::read_to_string(path).map_err(|source| fault(path, source))?;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = whole.lines();
        let header = lines.next().unwrap_or_default();
        let wrong = |line: usize, problem: &str| Error::Log {
            path: path.to_owned(),
            line,
            problem: problem.to_owned(),
        };
        let columns = header
            .strip_prefix("step")
            .ok_or_else(|| wrong(1, "it does not begin with `step`"))?
            .split(',')
            .skip(1)
            .map(str::to_owned)
            .collect::<Vec<_>>();
        let rows = lines
            .zip(2..)
            .map(|(line, number)| {
                let row = parse(line).filter(|row| row.values.len() == columns.len());
                row.ok_or_else(|| wrong(number, "it is not a number per column"))
            })
            .collect::<Result<_>>()?;
        Ok((columns, rows))
    }

    /// Writes a line. Values beyond the columns are dropped, missing ones left empty.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn append(&mut self, row: &Row) -> Result<()> {
        let mut line = row.step.to_string();
        for column in 0..self.columns {
            line.push(',');
            if let Some(value) = row.values.get(column).copied().flatten() {
                line += &value.to_string();
            }
        }
        line.push('\n');
        // One call, so that a line is whole or cut off, but never mixed with another.
        self.file.write_all(line.as_bytes()).map_err(|source| fault(&self.path, source))
    }

    fn write(path: &Path, columns: &[&str], rows: &[Row]) -> Result<Self> {
        let io = |source| fault(path, source);
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path);
        let mut log =
            Self { path: path.to_owned(), file: file.map_err(io)?, columns: columns.len() };
        let header: String = columns.iter().map(|name| format!(",{name}")).collect();
        log.file.write_all(format!("step{header}\n").as_bytes()).map_err(io)?;
        rows.iter().try_for_each(|row| log.append(row))?;
        Ok(log)
    }
}

fn parse(line: &str) -> Option<Row> {
    let mut fields = line.split(',');
    let step = fields.next()?.parse().ok()?;
    let value = |field: &str| match field {
        "" => Some(None),
        text => text.parse().ok().map(Some),
    };
    Some(Row { step, values: fields.map(value).collect::<Option<_>>()? })
}

fn fault(path: &Path, source: std::io::Error) -> Error {
    Error::Io { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(step: u64, values: &[Option<f64>]) -> Row {
        Row { step, values: values.to_vec() }
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.csv");
        let rows = [row(1, &[Some(0.5), None]), row(2, &[Some(1e-7), Some(f64::INFINITY)])];
        let mut log = CsvLog::create(&path, &["loss", "rate"]).unwrap();
        rows.iter().for_each(|row| log.append(row).unwrap());
        let (columns, found) = CsvLog::read(&path).unwrap();
        assert_eq!(columns, ["loss", "rate"]);
        assert_eq!(found, rows);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "step,loss,rate\n1,0.5,\n2,0.0000001,inf\n");
    }

    /// A run that was killed has steps on record that it makes again, and perhaps half a line.
    #[test]
    fn resuming_forgets_what_is_done_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.csv");
        std::fs::write(&path, "step,loss\n1,3\n2,2\n3,1\n4,0.").unwrap();
        let mut log = CsvLog::resume(&path, &["loss"], 2).unwrap();
        log.append(&row(3, &[Some(1.5)])).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "step,loss\n1,3\n2,2\n3,1.5\n");
        let message = CsvLog::resume(&path, &["rate"], 2).unwrap_err().to_string();
        assert!(message.contains("loss") && message.contains("rate"), "{message}");
    }

    #[test]
    fn damage_is_named_by_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.csv");
        for (text, line) in [("step,a\n1,2\n2,x\n", 3), ("step,a\n1,2,3\n", 2), ("a,b\n1,2\n", 1)] {
            std::fs::write(&path, text).unwrap();
            let message = CsvLog::read(&path).unwrap_err().to_string();
            assert!(message.contains(&format!("log.csv:{line}:")), "{message}");
        }
    }
}
