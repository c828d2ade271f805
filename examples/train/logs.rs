//! What the run leaves in its folder for people: `log.csv`, `evaluation.csv`, `tensorboard`, `summary.svg`.

use std::path::{Path, PathBuf};

use candle_detection::train::Losses;
use candle_detection::train::log::{CsvLog, Curve, Panel, Range, Row, TensorBoardLog, summary_svg};
use candle_detection::{Error, Result};

use super::evaluation::{FIGURES, Figures};

/// Columns of `log.csv` before the losses.
const COLUMNS: [&str; 4] = ["epoch", "rate", "images_per_second", "loss"];

pub struct Logs {
    folder: PathBuf,
    losses: Vec<String>,
    steps: CsvLog,
    evaluations: CsvLog,
    board: TensorBoardLog,
}

/// Figures of a few steps.
pub struct StepFigures {
    pub epoch: f64,
    pub rate: f64,
    pub images_per_second: f64,
    pub losses: Losses,
}

impl Logs {
    /// For a run that has made `step` updates.
    pub fn open(folder: &Path, step: u64, losses: &[String]) -> Result<Self> {
        let columns: Vec<&str> =
            COLUMNS.into_iter().chain(losses.iter().map(String::as_str)).collect();
        let evaluation: Vec<&str> = ["epoch"].into_iter().chain(FIGURES).collect();
        let open = |name: &str, columns: &[&str]| {
            let path = folder.join(name);
            match step > 0 && path.exists() {
                true => CsvLog::resume(&path, columns, step),
                false => CsvLog::create(&path, columns),
            }
        };
        Ok(Self {
            folder: folder.to_owned(),
            losses: losses.to_vec(),
            steps: open("log.csv", &columns)?,
            evaluations: open("evaluation.csv", &evaluation)?,
            board: TensorBoardLog::create(&folder.join("tensorboard"), step)?,
        })
    }

    pub fn step(&mut self, step: u64, figures: &StepFigures) -> Result<()> {
        let StepFigures { epoch, rate, images_per_second, losses } = figures;
        let total = f64::from(losses.total());
        let first = [*epoch, *rate, *images_per_second, total].map(Some);
        let parts = losses.named().map(|(_, value)| Some(f64::from(value)));
        self.steps.append(&Row { step, values: first.into_iter().chain(parts).collect() })?;
        let parts = losses.named().map(|(name, value)| (name, f64::from(value)));
        let named: Vec<(String, f64)> = parts
            .map(|(name, value)| (format!("loss/{}", name.trim_start_matches("loss_")), value))
            .collect();
        let all =
            [("loss/total", total), ("rate", *rate), ("images_per_second", *images_per_second)];
        let all = all.into_iter().chain(named.iter().map(|(name, value)| (name.as_str(), *value)));
        self.board.scalars(step, all)
    }

    pub fn evaluation(&mut self, step: u64, epoch: f64, figures: Figures) -> Result<()> {
        let values = [Some(epoch)].into_iter().chain(figures).collect();
        self.evaluations.append(&Row { step, values })?;
        let named: Vec<(String, f64)> = FIGURES
            .iter()
            .zip(figures)
            .filter_map(|(name, value)| Some((format!("evaluation/{name}"), value?)))
            .collect();
        let named = named.iter().map(|(name, value)| (name.as_str(), *value));
        self.board.scalars(step, named)
    }

    /// The figures of a state, where it was evaluated before an interruption.
    pub fn evaluated(&self, step: u64) -> Result<Option<Figures>> {
        let (_, rows) = CsvLog::read(&self.folder.join("evaluation.csv"))?;
        let row = rows.into_iter().find(|row| row.step == step);
        // The first column is the epoch.
        Ok(row.and_then(|row| row.values.get(1..)?.try_into().ok()))
    }

    /// Draws the curves of the whole run, also of what was before an interruption.
    pub fn summarize(&self) -> Result<()> {
        let curves = |name: &str, wanted: &[&str]| -> Result<Vec<Curve>> {
            let (columns, rows) = CsvLog::read(&self.folder.join(name))?;
            let curve = |wanted: &&str| {
                let column = columns.iter().position(|column| column == wanted)?;
                let point = |row: &Row| Some((row.step as f64, row.values[column]?));
                let points: Vec<(f64, f64)> = rows.iter().filter_map(point).collect();
                (!points.is_empty()).then(|| Curve { name: wanted.replace('_', " "), points })
            };
            Ok(wanted.iter().filter_map(curve).collect())
        };
        let names = self.losses.iter().map(String::as_str);
        let losses: Vec<&str> = ["loss"].into_iter().chain(names).collect();
        let short = |mut curves: Vec<Curve>| {
            for curve in &mut curves {
                curve.name = curve.name.trim_start_matches("loss ").to_owned();
            }
            curves
        };
        let mut panels = vec![Panel {
            title: "losses by update".to_owned(),
            range: Range::FromZero,
            curves: short(curves("log.csv", &losses)?),
        }];
        let precision = curves("evaluation.csv", &FIGURES)?;
        if !precision.is_empty() {
            let title = "average precision by update, percent".to_owned();
            panels.push(Panel { title, range: Range::Percent, curves: precision });
        }
        let path = self.folder.join("summary.svg");
        std::fs::write(&path, summary_svg(&panels)).map_err(|source| Error::Io { path, source })
    }
}
