//! The drawn data set: the same for the same seed, with masks of exactly what is seen.

#[path = "../examples/make_scenes/background.rs"]
mod background;
#[path = "../examples/make_scenes/canvas.rs"]
mod canvas;
#[path = "../examples/make_scenes/random.rs"]
mod random;
#[path = "../examples/make_scenes/raster.rs"]
mod raster;
#[path = "../examples/make_scenes/scene.rs"]
mod scene;
#[path = "../examples/make_scenes/shapes.rs"]
mod shapes;

use image::GrayImage;
use scene::{Style, Thing};

const WIDTH: usize = 96;
const HEIGHT: usize = 80;
const STYLE: Style = Style { width: WIDTH, height: HEIGHT, least_visible: 0.25 };

fn pixels(mask: &GrayImage) -> usize {
    mask.iter().filter(|&&value| value == 255).count()
}

#[test]
fn a_seed_and_an_index_make_a_scene() {
    let draw = |seed, index| scene::draw(&STYLE, seed, index);
    let (first, again) = (draw(7, 3), draw(7, 3));
    assert_eq!(first.image, again.image);
    assert_eq!(first.things.len(), again.things.len());
    for (a, b) in first.things.iter().zip(&again.things) {
        assert_eq!((a.category, &a.mask), (b.category, &b.mask));
    }
    assert_ne!(first.image, draw(7, 4).image);
    assert_ne!(first.image, draw(8, 3).image);
}

/// A pixel shows one thing at most, and no thing is nearly hidden.
#[test]
fn masks_are_disjoint_and_large_enough() {
    let mut seen = [0; shapes::CATEGORIES.len()];
    for index in 0..60 {
        let things = scene::draw(&STYLE, 1, index).things;
        for (i, thing) in things.iter().enumerate() {
            seen[thing.category] += 1;
            assert!(pixels(&thing.mask) >= 30, "scene {index}, thing {i}");
            for other in &things[..i] {
                let both = thing
                    .mask
                    .iter()
                    .zip(other.mask.iter())
                    .filter(|(a, b)| **a == 255 && **b == 255);
                assert_eq!(both.count(), 0, "scene {index}, thing {i}");
            }
        }
    }
    assert!(seen.iter().all(|&count| count > 5), "{seen:?}");
}

/// Circles show what is hidden: they fill less of the ellipse in their box, or their box is no square.
#[test]
fn things_are_hidden_only_as_far_as_allowed() {
    let broken = |least_visible| {
        let style = Style { least_visible, ..STYLE };
        let scenes = (0..150).map(|index| scene::draw(&style, 5, index));
        let circles = scenes.flat_map(|scene| scene.things).filter(|thing| thing.category == 0);
        let (whole, broken): (Vec<_>, Vec<_>) = circles.partition(is_whole);
        assert!(whole.len() > 10);
        broken.len()
    };
    assert_eq!(broken(1.0), 0);
    assert!(broken(0.25) > 5);
}

fn is_whole(circle: &Thing) -> bool {
    let [_, _, width, height] = circle.extent().map(f64::from);
    let ellipse = std::f64::consts::FRAC_PI_4 * width * height;
    // Drawn circles are flattened by a tenth at most, and small ones are a few pixels wide.
    (width / height - 1.0).abs() < 0.25
        && (pixels(&circle.mask) as f64 / ellipse - 1.0).abs() < 0.15
}

/// Upright and untouched, every silhouette lies in its square and fills a fair part of it.
#[test]
fn silhouettes_fill_their_square() {
    for (index, category) in shapes::CATEGORIES.iter().enumerate() {
        for variant in 0..20 {
            let drawing = (category.draw)(&mut random::Random::new(index as u64, variant));
            let points = drawing.outline.iter().flatten();
            let reach = points.flatten().fold(0f32, |reach, value| reach.max(value.abs()));
            assert!((0.8..1.25).contains(&reach), "{}: {reach}", category.name);
            let place = |&[x, y]: &raster::Point| [50.0 + 40.0 * x, 50.0 + 40.0 * y];
            let placed: Vec<raster::Contour> =
                drawing.outline.iter().map(|one| one.iter().map(place).collect()).collect();
            let share = raster::fill(&placed, 100, 100).whole as f32 / 6400.0;
            assert!((0.12..0.9).contains(&share), "{}: {share}", category.name);
        }
    }
}

/// The label map names what is drawn, and the model file loads.
#[test]
fn the_model_file_knows_the_things() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/maskrcnn_shapes.toml");
    let config = candle_detection::config::ModelConfig::load(&file).unwrap();
    assert_eq!(config.num_classes, shapes::CATEGORIES.len() + 1);
    let names = config.label_map().unwrap();
    for (id, category) in (1..).zip(&shapes::CATEGORIES) {
        assert_eq!(names.name(id), Some(category.name));
    }
}
