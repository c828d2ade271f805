//! Losses that are read later than updates are made.
#![cfg(feature = "train")]

mod common;

use candle_detection::Error;
use candle_detection::train::{Ending, Momentum, Position, RunLength, TrainerOptions, UpdateRule};
use common::rectangles::Rectangles;
use common::runs::{Log, assert_same, options, trainer, weights};

/// How often losses are read changes nothing but when an observer hears of them.
#[test]
fn reports_come_in_groups_and_say_the_same() {
    let run = |report_every| {
        let path = tempfile::tempdir().unwrap();
        let options = TrainerOptions { report_every, ..options(3) };
        let mut trainer = trainer(options, Some(path.path()));
        let mut log = Log::default();
        trainer.run(&mut Rectangles::new(2), &mut log).unwrap();
        let heard: Vec<_> = log
            .steps
            .iter()
            .map(|report| {
                (report.step, report.position, report.losses.clone(), report.gradient_norm)
            })
            .collect();
        (heard, weights(&trainer), trainer.average().unwrap())
    };
    let (one_by_one, expected, average) = run(1);
    assert_eq!(one_by_one.len(), 6);
    for report_every in [2, 5, 100] {
        let (heard, found, same) = run(report_every);
        assert_eq!(heard, one_by_one, "{report_every}");
        assert_same(&found, &expected, 0.0);
        assert_same(&same.into_iter().collect(), &average.iter().cloned().collect(), 0.0);
    }
}

/// Updates that were started after the one that failed change nothing: the state is that before it.
#[test]
fn what_is_not_finite_is_found_later_without_harm() {
    let run = |rule, report_every, poisoned, length| {
        let path = tempfile::tempdir().unwrap();
        let options = TrainerOptions { rule, report_every, length, ..options(1) };
        let mut trainer = trainer(options, Some(path.path()));
        let mut source = Rectangles { poisoned, ..Rectangles::new(1) };
        let mut log = Log::default();
        let ending = trainer.run(&mut source, &mut log);
        (ending, log.steps.len(), weights(&trainer), trainer.average().unwrap(), trainer.numbers())
    };
    // Four updates an epoch, of which the third fails and the fourth was started.
    let poisoned = Some(Position { epoch: 0, index: 2 });
    for rule in [UpdateRule::Sgd(Momentum::Heavy(0.9)), UpdateRule::ADAM_W] {
        let (ending, steps, expected, average, numbers) = run(rule, 1, None, RunLength::Updates(2));
        assert_eq!((ending.unwrap(), steps), (Ending::Complete, 2));
        for report_every in [1, 4] {
            let (ending, steps, found, same, at) =
                run(rule, report_every, poisoned, RunLength::Epochs(2));
            let error = ending.unwrap_err();
            let is_named = matches!(&error, Error::NonFinite { images, .. } if images.len() == 1);
            assert!(is_named, "{error}");
            assert_eq!((steps, at), (2, numbers), "{report_every}");
            assert_same(&found, &expected, 0.0);
            assert_same(&same.into_iter().collect(), &average.iter().cloned().collect(), 0.0);
        }
    }
}
