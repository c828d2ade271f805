//! What a run leaves behind for people: figures as text, for TensorBoard, and as a picture.
//!
//! In: figures by step. Out: files. None of them is read to go on with a run.

mod csv;
mod summary;
mod tensorboard;

pub use csv::{CsvLog, Row};
pub use summary::{Curve, Panel, Range, summary_svg};
pub use tensorboard::TensorBoardLog;
