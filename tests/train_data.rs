//! From a data set on disk to batches: what is shown, what is left out, what is an error, and in which order.
#![cfg(all(feature = "train", feature = "eval"))]

mod common;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use candle_detection::Error;
use candle_detection::dataset::CocoDataset;
use candle_detection::structures::{BoxXyxy, ImageSize, TargetKeypoint, TargetNeeds, Visibility};
use candle_detection::train::augment::{Augmentation, ColorJitter, CopyPaste, LargeScaleJitter};
use candle_detection::train::{
    Batch, BatchSource, LeftOut, Loader, LoaderOptions, Part, Position, TrainingSet, Unlabelled,
};
use common::fixtures;
use image::{Rgb, RgbImage};
use serde_json::{Value, json};
use tempfile::TempDir;

fn count(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

/// Writes a data set whose images are plain and 40 × 30 (width × height).
fn write(images: u64, annotations: Value) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("images")).unwrap();
    let entries: Vec<Value> = (1..=images)
        .map(|id| {
            let shade = id as u8 * 10;
            let image = RgbImage::from_pixel(40, 30, Rgb([shade, 0, 255 - shade]));
            image.save(folder.path().join(format!("images/{id}.png"))).unwrap();
            json!({"id": id, "file_name": format!("{id}.png"), "width": 40, "height": 30})
        })
        .collect();
    let categories = json!([{"id": 1, "name": "cat"}, {"id": 3, "name": "dog"}]);
    let text = json!({"images": entries, "annotations": annotations, "categories": categories});
    std::fs::write(folder.path().join("annotations.json"), text.to_string()).unwrap();
    folder
}

fn square(id: u64, image_id: u64, [x, y, side]: [f64; 3]) -> Value {
    let outline = [x, y, x + side, y, x + side, y + side, x, y + side];
    json!({
        "id": id, "image_id": image_id, "category_id": 3, "bbox": [x, y, side, side],
        "area": side * side, "iscrowd": 0, "segmentation": [outline],
    })
}

/// One square in each image.
fn squares(images: u64) -> TempDir {
    let annotations: Vec<Value> =
        (1..=images).map(|id| square(id, id, [3.0 + id as f64, 5.0, 10.0])).collect();
    write(images, annotations.into())
}

fn open(folder: &Path, needs: TargetNeeds, unlabelled: Unlabelled) -> Result<TrainingSet, Error> {
    TrainingSet::new(CocoDataset::open_folder(folder)?, 4, needs, unlabelled)
}

fn usual(folder: &TempDir) -> Arc<TrainingSet> {
    Arc::new(open(folder.path(), TargetNeeds::MASKS, Unlabelled::Skip).unwrap())
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}

fn corners(bbox: &BoxXyxy) -> [f32; 4] {
    [bbox.x1, bbox.y1, bbox.x2, bbox.y2]
}

fn ids(batch: &Batch) -> Vec<u64> {
    batch.targets.iter().map(|target| target.image_id).collect()
}

#[test]
fn what_teaches_nothing_is_left_out_and_listed() {
    let good = square(10, 1, [4.0, 6.0, 12.0]);
    let mut crowd = square(11, 1, [0.0, 0.0, 20.0]);
    crowd["iscrowd"] = 1.into();
    let mut flat = square(12, 1, [5.0, 5.0, 8.0]);
    flat["bbox"] = json!([5, 5, 8, 0]);
    // Beyond the right edge.
    let outside = square(13, 1, [45.0, 5.0, 8.0]);
    // A polygon on one line, with a box that has an area.
    let mut line = square(14, 1, [5.0, 5.0, 8.0]);
    line["segmentation"] = json!([[5, 5, 13, 13, 9, 9]]);
    // The only object of an image.
    let mut lone_crowd = square(15, 2, [0.0, 0.0, 20.0]);
    lone_crowd["iscrowd"] = 1.into();
    let folder = write(3, json!([good, crowd, flat, outside, line, lone_crowd]));

    let set = usual(&folder);
    assert_eq!(set.images(), [1]);
    let expected = LeftOut {
        crowds: vec![11, 15],
        empty_boxes: vec![12, 13],
        empty_masks: vec![14],
        images: vec![2, 3],
        few_keypoints: vec![],
    };
    assert_eq!(set.left_out(), &expected);
    let text = expected.to_string();
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(text.contains("2 annotations of crowds (ids 11, 15)"), "{text}");
    assert_eq!(LeftOut::default().to_string(), "");

    let image = set.load(1).unwrap();
    assert_eq!(image.objects.len(), 1);
    assert_eq!(image.objects[0].label, 3);
    assert_eq!(corners(&image.objects[0].bbox), [4.0, 6.0, 16.0, 18.0]);

    // Without masks the line is an object like any other.
    let boxes = open(folder.path(), TargetNeeds::BOXES, Unlabelled::Keep).unwrap();
    assert_eq!(boxes.images(), [1, 2, 3]);
    assert_eq!(boxes.load(1).unwrap().objects.len(), 2);
    assert!(boxes.load(1).unwrap().objects.iter().all(|object| object.mask.is_none()));
    assert!(boxes.load(2).unwrap().objects.is_empty());
    assert!(boxes.left_out().empty_masks.is_empty());
}

#[test]
fn boxes_are_clipped_and_an_area_of_zero_is_no_fault() {
    let mut one = square(1, 1, [-4.0, 20.0, 30.0]);
    one["area"] = 0.into();
    let folder = write(1, json!([one]));
    let image = usual(&folder).load(1).unwrap();
    assert_eq!(corners(&image.objects[0].bbox), [0.0, 20.0, 26.0, 30.0]);
    let (input, target) = image.into_input().unwrap();
    target.validate(input.size(), 4, TargetNeeds::MASKS).unwrap();
}

/// The form of an outline says what it is, not the flag for crowds.
#[test]
fn run_lengths_and_polygons_are_masks_alike() {
    let mut runs = square(1, 1, [0.0, 0.0, 10.0]);
    // Two columns of thirty pixels after the first five columns.
    runs["segmentation"] = json!({"size": [30, 40], "counts": [150, 60, 990]});
    runs["bbox"] = json!([5, 0, 2, 30]);
    let folder = write(1, json!([runs, square(2, 1, [20.0, 3.0, 8.0])]));
    let image = usual(&folder).load(1).unwrap();
    let pixels = |at: usize| {
        image.objects[at].mask.as_ref().unwrap().iter().filter(|&&value| value > 0).count()
    };
    assert_eq!([pixels(0), pixels(1)], [60, 64]);
}

#[test]
fn faults_of_a_data_set_are_found_before_the_first_step() {
    let refused = |folder: &TempDir, classes: usize, needs: TargetNeeds| {
        let dataset = CocoDataset::open_folder(folder.path()).unwrap();
        chain(&TrainingSet::new(dataset, classes, needs, Unlabelled::Skip).unwrap_err())
    };
    let folder = squares(2);
    let message = refused(&folder, 3, TargetNeeds::MASKS);
    assert!(message.contains("category 3 (`dog`)") && message.contains("1 to 2"), "{message}");

    let mut bare = square(9, 1, [1.0, 1.0, 9.0]);
    bare.as_object_mut().unwrap().remove("segmentation");
    let folder = write(1, json!([bare]));
    let message = refused(&folder, 4, TargetNeeds::MASKS);
    assert!(message.contains("annotation 9") && message.contains("segmentation"), "{message}");
    open(folder.path(), TargetNeeds::BOXES, Unlabelled::Skip).unwrap();

    let folder = squares(2);
    std::fs::remove_file(folder.path().join("images/2.png")).unwrap();
    let message = refused(&folder, 4, TargetNeeds::MASKS);
    assert!(message.contains("2.png"), "{message}");

    let folder = write(2, json!([]));
    let message = refused(&folder, 4, TargetNeeds::MASKS);
    assert!(message.contains("none of the 2 images"), "{message}");

    let empty = tempfile::tempdir().unwrap();
    let message = chain(&CocoDataset::open_folder(empty.path()).unwrap_err());
    assert!(message.contains("annotations.json"), "{message}");
}

/// A batch that can't be made is an error that names its image; the next one is not affected.
#[test]
fn a_broken_image_is_named() {
    let folder = squares(4);
    std::fs::write(folder.path().join("images/3.png"), "no image").unwrap();
    let mut loader = Loader::new(usual(&folder), LoaderOptions::new(count(1), 1)).unwrap();
    let mut failed = Vec::new();
    for index in 0..4 {
        match loader.batch(Position { epoch: 0, index }) {
            Ok(batch) => assert_eq!(batch.images.len(), 1),
            Err(error) => failed
                .push((matches!(error, Error::TrainingImage { image_id: 3, .. }), chain(&error))),
        }
    }
    assert_eq!(failed.len(), 1);
    let (typed, message) = &failed[0];
    assert!(typed & message.contains("image 3") && message.contains("3.png"), "{message}");
}

/// A turned photo: annotations belong to the size that the data set states, and the mask follows it.
#[test]
fn photos_are_turned_as_their_annotations_are() {
    let photo = fixtures().join("images/exif-6.jpg");
    let stored = image::ImageReader::open(&photo).unwrap().into_dimensions().unwrap();
    let load = |(width, height): (u32, u32)| {
        let folder = write(0, json!([]));
        std::fs::copy(&photo, folder.path().join("images/1.jpg")).unwrap();
        let text = json!({
            "images": [{"id": 1, "file_name": "1.jpg", "width": width, "height": height}],
            "annotations": [square(1, 1, [2.0, 3.0, 9.0])],
            "categories": [{"id": 3, "name": "dog"}],
        });
        std::fs::write(folder.path().join("annotations.json"), text.to_string()).unwrap();
        usual(&folder).load(1)
    };
    let (width, height) = stored;
    assert_ne!(width, height);
    for size in [(width, height), (height, width)] {
        let image = load(size).unwrap();
        assert_eq!(image.pixels.dimensions(), size);
        assert_eq!(image.objects[0].mask.as_ref().unwrap().dimensions(), size);
    }
    assert_ne!(load((width, height)).unwrap().pixels, load((height, width)).unwrap().pixels);
    let message = chain(&load((width + 1, height)).unwrap_err());
    assert!(message.contains("image 1") && message.contains("its size is"), "{message}");
}

fn everything(side: usize) -> Augmentation {
    Augmentation {
        flip: 0.5,
        color: Some(ColorJitter::default()),
        large_scale: Some(LargeScaleJitter {
            size: ImageSize { height: side, width: side },
            scale: (0.5, 2.0),
            fill: [124, 116, 104],
            copy_paste: Some(CopyPaste { probability: 0.7 }),
        }),
    }
}

/// The same pixels and targets, whatever the number of threads, and from wherever a run goes on.
#[test]
fn a_batch_follows_from_its_position() {
    let folder = squares(7);
    let set = usual(&folder);
    let loader = |threads: usize, ahead: usize, seed: u64| {
        let options = LoaderOptions {
            augmentation: everything(32),
            min_sizes: vec![24, 32, 40],
            threads: count(threads),
            ahead,
            ..LoaderOptions::new(count(2), seed)
        };
        Loader::new(Arc::clone(&set), options).unwrap()
    };
    let positions: Vec<Position> =
        (0..3).flat_map(|epoch| (0..3).map(move |index| Position { epoch, index })).collect();
    let look = |loader: &mut Loader, position: Position| {
        let batch = loader.batch(position).unwrap();
        let images: Vec<RgbImage> =
            batch.images.iter().map(|image| image.to_rgb8().unwrap()).collect();
        (images, batch.targets, batch.min_size)
    };
    let mut one = loader(1, 0, 4);
    assert_eq!(one.batches_per_epoch(), 3);
    let all: Vec<_> = positions.iter().map(|&position| look(&mut one, position)).collect();
    let mut many = loader(3, 5, 4);
    for (&position, expected) in positions.iter().zip(&all) {
        assert_eq!(&look(&mut many, position), expected, "{position}");
    }
    let mut resumed = loader(2, 1, 4);
    for (&position, expected) in positions.iter().zip(&all).skip(5) {
        assert_eq!(&look(&mut resumed, position), expected, "{position}");
    }
    assert_ne!(look(&mut loader(1, 0, 5), positions[0]), all[0]);
    let mut sizes: Vec<usize> = all.iter().filter_map(|batch| batch.2).collect();
    sizes.sort_unstable();
    sizes.dedup();
    assert!(sizes.len() > 1 && sizes.iter().all(|size| [24, 32, 40].contains(size)), "{sizes:?}");
    for (images, targets, _) in &all {
        for (image, target) in images.iter().zip(targets) {
            let size = ImageSize { height: image.height() as usize, width: image.width() as usize };
            target.validate(size, 4, TargetNeeds::MASKS).unwrap();
        }
    }
}

#[test]
fn an_epoch_shows_every_image_once_in_an_order_of_its_own() {
    let folder = squares(8);
    let set = usual(&folder);
    let mut loader = Loader::new(set, LoaderOptions::new(count(2), 3)).unwrap();
    let mut orders = Vec::new();
    for epoch in 0..3 {
        let order: Vec<u64> = (0..loader.batches_per_epoch())
            .flat_map(|index| ids(&loader.batch(Position { epoch, index }).unwrap()))
            .collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (1..=8).collect::<Vec<u64>>());
        orders.push(order);
    }
    assert!(orders[0] != orders[1] && orders[1] != orders[2], "{orders:?}");
}

#[test]
fn processes_share_an_epoch() {
    let folder = squares(9);
    let set = usual(&folder);
    let part = |rank| {
        let part = Part { rank, of: count(2) };
        let options = LoaderOptions { part, ..LoaderOptions::new(count(2), 3) };
        Loader::new(Arc::clone(&set), options)
    };
    let mut seen = Vec::new();
    for rank in 0..2 {
        let mut loader = part(rank).unwrap();
        assert_eq!(loader.batches_per_epoch(), 2);
        for index in 0..2 {
            seen.extend(ids(&loader.batch(Position { epoch: 1, index }).unwrap()));
        }
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 8);
    assert!(chain(&part(2).err().unwrap()).contains("part.rank"));
    let large = Loader::new(Arc::clone(&set), LoaderOptions::new(count(10), 1)).err().unwrap();
    assert!(chain(&large).contains("at most 9"), "{large}");
}

/// Threads end when the loader does, also when nobody takes what they made.
#[test]
fn a_loader_can_be_dropped_at_any_time() {
    let folder = squares(6);
    let set = usual(&folder);
    let mut loader = Loader::new(Arc::clone(&set), LoaderOptions::new(count(2), 1)).unwrap();
    loader.batch(Position::default()).unwrap();
    drop(loader);
    assert_eq!(Arc::strong_count(&set), 1);
}

/// Three keypoints for each object, and their names for the category.
fn with_keypoints(annotations: Vec<(Value, Value)>, names: Value) -> TempDir {
    let annotations = annotations.into_iter().map(|(mut annotation, keypoints)| {
        annotation["keypoints"] = keypoints;
        annotation
    });
    let folder = write(3, annotations.collect());
    let path = folder.path().join("annotations.json");
    let mut file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    file["categories"][1]["keypoints"] = names;
    std::fs::write(&path, file.to_string()).unwrap();
    folder
}

#[test]
fn keypoints_are_handed_on_and_images_with_few_are_left_out() {
    let names = json!(["nose", "left_ear", "right_ear"]);
    let annotations = vec![
        (square(1, 1, [4.0, 6.0, 12.0]), json!([5, 7, 2, 8.5, 9, 1, 3, 3, 0])),
        (square(2, 2, [4.0, 6.0, 12.0]), json!([5, 7, 2, 0, 0, 0, 0, 0, 0])),
    ];
    let folder = with_keypoints(annotations, names);
    let needs = TargetNeeds::keypoints(3);
    let set = open(folder.path(), needs, Unlabelled::Skip).unwrap();
    assert_eq!(set.images(), [1]);
    assert_eq!(set.left_out().few_keypoints, [2]);
    assert!(set.left_out().to_string().contains("1 images with few labelled keypoints (ids 2)"));
    let (image, target) = set.load(1).unwrap().into_input().unwrap();
    target.validate(image.size(), 4, needs).unwrap();
    let point = |x, y, visibility| TargetKeypoint { x, y, visibility };
    let first = point(5.0, 7.0, Visibility::Visible);
    let expected = [first, point(8.5, 9.0, Visibility::Hidden), TargetKeypoint::default()];
    assert_eq!(target.keypoints, [expected.to_vec()]);
    let mut flipped = set.load(1).unwrap();
    flipped.flip();
    let (_, target) = flipped.into_input().unwrap();
    let expected = [
        point(35.0, 7.0, Visibility::Visible),
        TargetKeypoint::default(),
        point(31.5, 9.0, Visibility::Hidden),
    ];
    assert_eq!(target.keypoints, [expected.to_vec()]);

    assert_eq!(open(folder.path(), needs, Unlabelled::Keep).unwrap().images(), [1, 2, 3]);
    // A model that learns none does not look at them.
    let boxes = open(folder.path(), TargetNeeds::BOXES, Unlabelled::Skip).unwrap();
    assert_eq!(boxes.images(), [1, 2]);
    assert!(boxes.load(1).unwrap().into_input().unwrap().1.keypoints.is_empty());
}

#[test]
fn keypoints_that_a_model_cannot_learn_are_refused() {
    let refused = |keypoints: Value, names: Value, count: usize| {
        let annotations = vec![(square(7, 1, [4.0, 6.0, 12.0]), keypoints)];
        let folder = with_keypoints(annotations, names);
        let needs = TargetNeeds::keypoints(count);
        chain(&open(folder.path(), needs, Unlabelled::Skip).unwrap_err())
    };
    let two = json!([5, 7, 2, 8, 9, 2]);
    let message = refused(json!([]), json!(null), 2);
    assert!(message.contains("annotation 7: it has no `keypoints`"), "{message}");
    let message = refused(two.clone(), json!(["left_eye", "right_eye"]), 17);
    assert!(message.contains("it has 2 keypoints, but the model learns 17"), "{message}");
    let message = refused(two, json!(null), 2);
    assert!(message.contains("category 3 has no names of its 2 keypoints"), "{message}");
}
