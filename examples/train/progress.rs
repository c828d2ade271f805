//! The line that tells how a run is doing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use candle_detection::train::StepReport;
use indicatif::{ProgressBar, ProgressStyle};

/// Updates over which the speed is measured.
const WINDOW: usize = 20;

/// Seconds between lines where there is no terminal.
const PAUSE: Duration = Duration::from_secs(15);

/// A bar of updates; where there is no terminal, a line now and then.
pub struct Meter {
    bar: ProgressBar,
    /// When updates ended, and how many images each had.
    ends: VecDeque<(Instant, usize)>,
    last_line: Option<Instant>,
    /// Processes, each with as many images.
    ranks: usize,
}

impl Meter {
    pub fn new(total: u64, done: u64, ranks: usize) -> Self {
        let style = "{bar:24} {pos}/{len} updates · {msg} · {eta} left";
        let style =
            ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(total).with_style(style).with_position(done);
        bar.reset_eta();
        Self { bar, ends: VecDeque::new(), last_line: None, ranks }
    }

    /// Images per second of late; 0 as long as nobody can know.
    pub fn speed(&self) -> f64 {
        let (Some(first), Some(last)) = (self.ends.front(), self.ends.back()) else { return 0.0 };
        let images: usize = self.ends.iter().skip(1).map(|(_, images)| images).sum();
        let seconds = (last.0 - first.0).as_secs_f64();
        if seconds > 0.0 { images as f64 / seconds } else { 0.0 }
    }

    pub fn update(&mut self, report: &StepReport) {
        let StepReport { step, images, losses, .. } = report;
        self.ends.push_back((Instant::now(), *images * self.ranks));
        if self.ends.len() > WINDOW {
            self.ends.pop_front();
        }
        let parts: Vec<String> = losses
            .named()
            .map(|(name, value)| {
                format!("{} {value:.3}", name.trim_start_matches("loss_").replace('_', " "))
            })
            .collect();
        let message = format!(
            "loss {:.3} ({}) · {:.1} images/s",
            losses.total(),
            parts.join(", "),
            self.speed()
        );
        self.bar.set_position(*step);
        let silent = self.last_line.is_some_and(|line| line.elapsed() < PAUSE);
        if self.bar.is_hidden() && !silent {
            self.last_line = Some(Instant::now());
            let left = self.bar.eta().as_secs();
            eprintln!("{step}/{} · {message} · {left} s left", self.bar.length().unwrap_or(0));
        }
        self.bar.set_message(message);
    }

    /// Time that was spent on something else is none of an update.
    pub fn pause(&mut self) {
        self.ends.clear();
    }

    /// Prints a line above the bar.
    pub fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
