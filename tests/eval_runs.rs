//! Runs that are interrupted, continued, divided and put together. The model is a stand-in: what it "finds" follows from the
//! pixels, so that every way of running has the same right answer.
#![cfg(feature = "eval")]

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_detection::eval::{
    CocoDataset, CocoEvaluation, CocoReport, CocoResult, IouKind, Journal, MaxDetections, Merged,
    Plan, ResultsFile, RunSettings, Shard, Start, detect_images, evaluate_results,
};
use candle_detection::structures::{BoxXyxy, Detections, Instance, InstanceParts, Mask};
use candle_detection::{Error, Event, ImageInput, Result, Silent};
use image::{Rgb, RgbImage};
use serde_json::json;
use tempfile::TempDir;

const IMAGES: u64 = 23;

/// Writes images and annotations; ids have gaps, some images nothing in them.
fn make_data(folder: &Path) {
    let mut images = Vec::new();
    let mut annotations = Vec::new();
    for n in 0..IMAGES {
        let (id, width, height) = (7 * n + 3, 40 + (n % 3) as u32 * 8, 30 + (n % 4) as u32 * 6);
        let name = format!("{id}.png");
        RgbImage::from_pixel(width, height, Rgb([n as u8, (n * 9) as u8, 128]))
            .save(folder.join(&name))
            .unwrap();
        images.push(json!({"id": id, "file_name": name, "height": height, "width": width}));
        for k in 0..n % 4 {
            let (x, y) = (2.0 + 7.0 * k as f64, 4.0);
            annotations.push(json!({
                "id": annotations.len(), "image_id": id, "category_id": 1 + k % 2, "iscrowd": 0,
                "bbox": [x, y, 10.0, 12.0], "area": 120.0,
                "segmentation": [[x, y, x + 10.0, y, x + 10.0, y + 12.0, x, y + 12.0]],
            }));
        }
    }
    let categories = json!([{"id": 1, "name": "one"}, {"id": 2, "name": "two"}]);
    let file = json!({"images": images, "annotations": annotations, "categories": categories});
    std::fs::write(folder.join("annotations.json"), file.to_string()).unwrap();
}

fn open(folder: &Path) -> CocoDataset {
    CocoDataset::open(&folder.join("annotations.json"), folder).unwrap()
}

/// The stand-in: up to five boxes with masks, from the first pixel.
fn detect(images: &[ImageInput]) -> Result<Vec<Detections>> {
    let one = |image: &ImageInput| -> Result<Detections> {
        let Rgb([n, seed, _]) = *image.to_rgb8()?.get_pixel(0, 0);
        let mut instances = Vec::new();
        for k in 0..u32::from(n) % 6 {
            let wobble = f32::from(seed.wrapping_mul(31 * (k as u8 + 1)) % 50) / 25.0;
            let x1 = 2.0 + 7.0 * k as f32 + wobble;
            let bbox = BoxXyxy { x1, y1: 4.0 - wobble / 3.0, x2: x1 + 10.0, y2: 16.0 };
            let probabilities: Arc<[f32]> = (0..28 * 28)
                .map(|at| if (at + seed as usize) % 9 > 1 { 0.9 } else { 0.2 })
                .collect();
            instances.push(Instance {
                bbox,
                label: 1 + k % 2,
                score: 1.0 / (1.0 + wobble + k as f32 / 7.0),
                mask: Some(Mask::new(28, probabilities, bbox, image.size())?),
                keypoints: None,
            });
        }
        instances.sort_by(|a, b| b.score.total_cmp(&a.score));
        Ok(Detections { image_size: image.size(), instances, parts: InstanceParts::MASKS })
    };
    images.iter().map(one).collect()
}

fn settings() -> RunSettings {
    RunSettings::new().set("model", "stand-in").set("min_size", 256)
}

fn batch(size: usize) -> NonZeroUsize {
    NonZeroUsize::new(size).unwrap()
}

/// A whole run, or what is left of it, into a results file.
fn run(
    folder: &Path,
    out: &Path,
    size: usize,
    shard: Shard,
    start: Start,
    pause: Duration,
) -> Result<usize> {
    let dataset = open(folder);
    let plan = Plan::new(&dataset, batch(size)).part(shard);
    let mut journal = Journal::open(out, &settings(), shard, start)?;
    let kept: Vec<u64> = journal.read()?.into_iter().map(|(id, _)| id).collect();
    let mut seen = 0;
    detect_images(
        &dataset,
        &plan,
        &|id| !kept.contains(&id),
        &mut |images| {
            std::thread::sleep(pause);
            seen += images.len();
            detect(images)
        },
        &mut |id, found| journal.append(id, &CocoResult::from_detections(id, &found)),
        &Silent,
    )?;
    journal.finish(&plan.image_ids())?;
    Ok(seen)
}

fn whole(folder: &Path, out: &Path, size: usize, start: Start) -> Result<usize> {
    run(folder, out, size, Shard::WHOLE, start, Duration::ZERO)
}

fn figures(folder: &Path, out: &Path) -> CocoReport {
    let file = ResultsFile::read(out).unwrap();
    evaluate_results(&open(folder), &file, MaxDetections::default()).unwrap()
}

fn message<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_run_from_memory_and_one_through_files_agree() {
    let folder = TempDir::new().unwrap();
    make_data(folder.path());
    let out = folder.path().join("out.json");
    assert_eq!(whole(folder.path(), &out, 1, Start::New).unwrap(), IMAGES as usize);
    let dataset = open(folder.path());
    let kinds = [IouKind::Box, IouKind::Mask];
    let mut evaluation = CocoEvaluation::new(&dataset, &kinds).unwrap();
    let events = std::sync::Mutex::new(Vec::new());
    detect_images(
        &dataset,
        &Plan::new(&dataset, batch(4)),
        &|_| true,
        &mut |images| detect(images),
        &mut |id, found| evaluation.record(id, &found),
        &|event: Event<'_>| {
            if let Event::Evaluating { image, done, total } = event {
                events.lock().unwrap().push((image, done, total));
            }
            ControlFlow::Continue(())
        },
    )
    .unwrap();
    let report = evaluation.finish().unwrap();
    assert_eq!(report, figures(folder.path(), &out));
    let ap = report.per_kind[&IouKind::Mask].ap.unwrap();
    assert!(ap > 0.05 && ap < 0.95, "a figure that shows differences, not {ap}");
    let events = events.into_inner().unwrap();
    let ids = events.iter().map(|event| event.0);
    assert!(ids.eq(dataset.images().iter().map(|image| image.id)), "in order of ids");
    assert_eq!(events.last(), Some(&(157, IMAGES as usize, IMAGES as usize)));
}

#[test]
fn progress_can_stop_a_run_and_what_was_done_is_kept() {
    let folder = TempDir::new().unwrap();
    make_data(folder.path());
    let (unbroken, out) = (folder.path().join("a.json"), folder.path().join("b.json"));
    whole(folder.path(), &unbroken, 4, Start::New).unwrap();
    let dataset = open(folder.path());
    let mut journal = Journal::open(&out, &settings(), Shard::WHOLE, Start::New).unwrap();
    let stopped = detect_images(
        &dataset,
        &Plan::new(&dataset, batch(4)),
        &|_| true,
        &mut |images| detect(images),
        &mut |id, found| journal.append(id, &CocoResult::from_detections(id, &found)),
        &|event: Event<'_>| match event {
            Event::Evaluating { done: 6, .. } => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        },
    );
    assert!(matches!(stopped, Err(Error::Cancelled)));
    drop(journal);
    assert!(!out.exists(), "no results file before everything is there");
    // Six images are there; the second batch, cut in the middle, is looked at again, with its old neighbours.
    let seen = whole(folder.path(), &out, 4, Start::Resume).unwrap();
    assert_eq!(seen, IMAGES as usize - 4);
    assert_eq!(std::fs::read(&out).unwrap(), std::fs::read(&unbroken).unwrap());
}

/// Not a test of its own: the process that `a_killed_run_goes_on` kills.
#[test]
#[ignore = "is started by another test"]
fn slow_run() {
    let Some(folder) = std::env::var_os("EVAL_RUNS_FOLDER").map(PathBuf::from) else { return };
    let out = folder.join("killed.json");
    run(&folder, &out, 1, Shard::WHOLE, Start::Resume, Duration::from_millis(20)).unwrap();
}

#[test]
fn a_killed_run_goes_on_to_the_same_bytes() {
    let folder = TempDir::new().unwrap();
    make_data(folder.path());
    let unbroken = folder.path().join("unbroken.json");
    whole(folder.path(), &unbroken, 1, Start::New).unwrap();
    let out = folder.path().join("killed.json");
    let lines = || {
        let journal = std::fs::read(Journal::path_of(&out)).unwrap_or_default();
        journal.iter().filter(|&&byte| byte == b'\n').count()
    };
    let mut kills = 0;
    for target in [5, 12] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "slow_run", "--ignored"])
            .env("EVAL_RUNS_FOLDER", folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while lines() < target && child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the run doesn't get on");
            std::thread::sleep(Duration::from_millis(2));
        }
        // SIGKILL on Unix: no handler, no destructor.
        child.kill().unwrap();
        kills += usize::from(!child.wait().unwrap().success());
        assert!(!out.exists());
    }
    assert_eq!(kills, 2);
    // What a crash of the machine leaves: half a line.
    let path = Journal::path_of(&out);
    let mut torn = std::fs::read(&path).unwrap();
    let kept = torn.iter().filter(|&&byte| byte == b'\n').count() - 1;
    torn.extend_from_slice(br#"{"image_id":150,"results":[{"image_id":150,"cat"#);
    std::fs::write(&path, torn).unwrap();
    assert!(kept >= 11 && kept < IMAGES as usize, "{kept}");
    let seen = whole(folder.path(), &out, 1, Start::Resume).unwrap();
    assert_eq!(seen, IMAGES as usize - kept);
    assert_eq!(std::fs::read(&out).unwrap(), std::fs::read(&unbroken).unwrap());
    assert_eq!(
        std::fs::read(path).unwrap(),
        std::fs::read(Journal::path_of(&unbroken)).unwrap(),
        "the journal too"
    );
}

#[test]
fn a_finished_run_has_nothing_left_to_do() {
    let folder = TempDir::new().unwrap();
    make_data(folder.path());
    let out = folder.path().join("out.json");
    whole(folder.path(), &out, 1, Start::New).unwrap();
    let before = std::fs::read(&out).unwrap();
    assert_eq!(whole(folder.path(), &out, 1, Start::Resume).unwrap(), 0);
    assert_eq!(std::fs::read(&out).unwrap(), before);
    // A new run replaces it.
    assert_eq!(whole(folder.path(), &out, 1, Start::New).unwrap(), IMAGES as usize);
    assert_eq!(std::fs::read(&out).unwrap(), before);
}

#[test]
fn a_run_goes_on_with_its_own_settings_only() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out.json");
    let mut journal = Journal::open(&out, &settings(), Shard::WHOLE, Start::New).unwrap();
    let busy = message(Journal::open(&out, &settings(), Shard::WHOLE, Start::Resume));
    assert!(busy.contains("another process is writing it"), "{busy}");
    journal.append(3, &[]).unwrap();
    let twice = message(journal.append(3, &[]));
    assert!(twice.contains("image 3: it is in the journal already"), "{twice}");
    let nan = CocoResult {
        image_id: 4,
        category_id: 1,
        bbox: Some([0.0, 0.0, f64::NAN, 1.0]),
        score: 0.5,
        segmentation: candle_detection::eval::Segmentation::Absent,
        keypoints: None,
    };
    let nan = message(journal.append(4, &[nan]));
    assert!(nan.contains("image 4: detections[0] has score 0.5 and box"), "{nan}");
    drop(journal);
    let anew = message(Journal::open(&out, &settings(), Shard::WHOLE, Start::New));
    assert!(anew.contains("an unfinished run with 1 images is here; resume it"), "{anew}");
    let other = settings().set("min_size", 800);
    let other = message(Journal::open(&out, &other, Shard::WHOLE, Start::Resume));
    assert!(
        other.contains("setting `min_size`: the run was begun with 256, it cannot go on with 800"),
        "{other}"
    );
    let more = settings().set("weights", "abc");
    let more = message(Journal::open(&out, &more, Shard::WHOLE, Start::Resume));
    assert!(more.contains("setting `weights`: the run was begun with not set"), "{more}");
    let shard = Shard::new(1, 2).unwrap();
    let shard = message(Journal::open(&out, &settings(), shard, Start::Resume));
    assert!(shard.contains("the run was begun as 0/1, it cannot go on as 1/2"), "{shard}");
    let journal = Journal::open(&out, &settings(), Shard::WHOLE, Start::Resume).unwrap();
    assert!(journal.has(3) && journal.len() == 1);
    let unfinished = message(journal.finish(&[3, 10]));
    assert!(unfinished.contains("image 10: it is missing"), "{unfinished}");
}

#[test]
fn damage_in_the_middle_of_a_journal_is_an_error_that_names_the_line() {
    let folder = TempDir::new().unwrap();
    make_data(folder.path());
    let out = folder.path().join("out.json");
    whole(folder.path(), &out, 1, Start::New).unwrap();
    let path = Journal::path_of(&out);
    let good = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = good.lines().collect();
    let mut cases = Vec::new();
    let edited = |at: usize, line: &str| {
        let mut lines = lines.clone();
        lines[at] = line;
        lines.join("\n") + "\n"
    };
    cases.push((edited(4, &lines[4][..20]), "line 5: it is damaged"));
    cases.push((edited(4, lines[3]), "line 5: image 17 is there twice"));
    cases.push((edited(0, "{}"), "line 1: it is not the first line of a journal"));
    cases.push((good.clone() + "{\"image_id\":1,\"results\":[]}\n", "a line follows the one"));
    let last = lines.len() - 1;
    cases.push((edited(last, "{\"complete\":7}"), "has not as many images as it says"));
    let newer =
        lines[0].replace("\"candle_detection_journal\":1", "\"candle_detection_journal\":2");
    cases.push((edited(0, &newer), "another version's format"));
    for (text, expected) in cases {
        std::fs::write(&path, text).unwrap();
        let message = message(whole(folder.path(), &out, 1, Start::Resume));
        assert!(message.contains("out.json.journal") && message.contains(expected), "{message}");
    }
    // Cut anywhere, it goes on from the last whole line.
    for end in [0, 10, lines[0].len(), lines[0].len() + 1, good.len() / 2, good.len() - 1] {
        std::fs::write(&path, &good[..end]).unwrap();
        whole(folder.path(), &out, 1, Start::Resume).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), good, "cut at {end}");
    }
}

/// Runs all parts into files of a folder.
fn divided(folder: &Path, parts: &Path, count: usize, size: usize) {
    std::fs::create_dir(parts).unwrap();
    for index in 0..count {
        let out = parts.join(format!("part-{index}.json"));
        let shard = Shard::new(index, count).unwrap();
        run(folder, &out, size, shard, Start::New, Duration::ZERO).unwrap();
    }
}

#[test]
fn figures_do_not_depend_on_the_number_of_shards() {
    let folder = TempDir::new().unwrap();
    make_data(folder.path());
    for size in [1, 4] {
        let out = folder.path().join(format!("whole-{size}.json"));
        whole(folder.path(), &out, size, Start::New).unwrap();
        let expected = figures(folder.path(), &out);
        for count in [1, 2, 3, 8] {
            let parts = folder.path().join(format!("parts-{size}-{count}"));
            divided(folder.path(), &parts, count, size);
            let merged = Merged::read(&parts).unwrap();
            assert_eq!(merged.image_ids().len(), IMAGES as usize);
            let together = parts.join("together.json");
            merged.write(&together).unwrap();
            assert_eq!(std::fs::read(&together).unwrap(), std::fs::read(&out).unwrap());
            let report = figures(folder.path(), &together);
            assert_eq!(report, expected, "{count} shards of batches of {size}");
        }
    }
}

#[test]
fn a_batch_meets_the_same_neighbours_in_every_division() {
    let folder = TempDir::new().unwrap();
    make_data(folder.path());
    let dataset = open(folder.path());
    let undivided = Plan::new(&dataset, batch(4));
    let mut batches = Vec::new();
    for index in 0..3 {
        let part = Plan::new(&dataset, batch(4)).part(Shard::new(index, 3).unwrap());
        batches.extend(part.batches().to_vec());
    }
    batches.sort();
    assert_eq!(batches, undivided.batches());
    // Image by image, a part depends on ids alone, not on what else is in the data set.
    let shard = Shard::new(1, 3).unwrap();
    let of = |dataset: &CocoDataset| Plan::new(dataset, batch(1)).part(shard).image_ids();
    let all = of(&dataset);
    let half: Vec<u64> = all.iter().copied().filter(|&id| id < 80).collect();
    assert_eq!(of(&dataset.first(11)), half);
    assert!(!half.is_empty() && half.len() < all.len());
    assert!(all.iter().all(|&id| shard.takes(id)));
}

#[test]
fn parts_that_do_not_belong_together_are_named() {
    let folder = TempDir::new().unwrap();
    make_data(folder.path());
    let parts = folder.path().join("parts");
    divided(folder.path(), &parts, 3, 1);
    let journal = |index: usize| parts.join(format!("part-{index}.json.journal"));
    let second = std::fs::read_to_string(journal(1)).unwrap();
    let check = |change: &dyn Fn(), expected: &[&str]| {
        change();
        let message = message(Merged::read(&parts));
        for expected in expected {
            assert!(message.contains(expected), "{expected}: {message}");
        }
        std::fs::write(journal(1), &second).unwrap();
        let _ = std::fs::remove_file(parts.join("z.journal"));
        Merged::read(&parts).unwrap();
    };
    check(&|| std::fs::remove_file(journal(1)).unwrap(), &["parts: shards: missing: 1/3"]);
    check(
        &|| std::fs::write(parts.join("z.journal"), &second).unwrap(),
        &["z.journal: shard: shard 1/3 is in", "part-1.json.journal too"],
    );
    let unfinished = second.lines().take(3).collect::<Vec<_>>().join("\n") + "\n";
    check(
        &|| std::fs::write(journal(1), &unfinished).unwrap(),
        &["part-1.json.journal: shard: shard 1/3 is unfinished, it has 2 images; resume it"],
    );
    check(
        &|| std::fs::write(journal(1), second.replace("\"256\"", "\"800\"")).unwrap(),
        &["part-1.json.journal: setting `min_size`: it is 800, not 256", "part-0.json.journal"],
    );
    check(
        &|| {
            std::fs::write(journal(1), second.replace("\"shard\":[1,3]", "\"shard\":[1,4]"))
                .unwrap()
        },
        &["part-1.json.journal: shard: it is shard 1/4, not one of 3"],
    );
    check(
        &|| std::fs::write(journal(1), "").unwrap(),
        &["part-1.json.journal: the journal: it is empty"],
    );
    let first = std::fs::read_to_string(journal(0)).unwrap();
    let foreign = first.lines().nth(1).unwrap();
    let mut lines: Vec<&str> = second.lines().collect();
    lines[1] = foreign;
    let mixed = lines.join("\n") + "\n";
    check(
        &|| std::fs::write(journal(1), &mixed).unwrap(),
        &["part-1.json.journal: image", "another shard has it too"],
    );
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert!(message(Merged::read(&empty)).contains("has no `*.journal`"));
    assert!(message(Merged::read(&folder.path().join("nowhere"))).contains("nowhere"));
}

#[test]
fn files_that_are_missing_or_broken_are_named() {
    let folder = TempDir::new().unwrap();
    make_data(folder.path());
    let dataset = open(folder.path());
    dataset.check_files().unwrap();
    std::fs::remove_file(folder.path().join("10.png")).unwrap();
    std::fs::remove_file(folder.path().join("24.png")).unwrap();
    let missing = message(dataset.check_files());
    assert!(missing.contains("image 10: 2 of 23 files are not in"), "{missing}");
    assert!(missing.contains("10.png, 24.png"), "{missing}");
    let out = folder.path().join("out.json");
    let failed = message(whole(folder.path(), &out, 1, Start::New));
    assert!(failed.contains("10.png"), "{failed}");
    // The image before it is kept all the same.
    let journal = Journal::open(&out, &settings(), Shard::WHOLE, Start::Resume).unwrap();
    assert!(journal.has(3) && journal.len() == 1);
    drop(journal);
    std::fs::write(folder.path().join("10.png"), "no image").unwrap();
    let failed = message(whole(folder.path(), &out, 1, Start::Resume));
    assert!(failed.contains("10.png"), "{failed}");
}
