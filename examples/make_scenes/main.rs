//! A data set of drawn scenes in COCO's format: pictures, and which pixels show which thing.
//!
//! ```text
//! make_scenes --images 6000 --seed 1 --least-visible 0.25 --out scenes/train
//! make_scenes --images 200 --seed 2 --out scenes/val
//! ```
//! The folder gets `images/*.jpg` and `annotations.json`. The same arguments make the same files.

mod background;
mod canvas;
mod random;
mod raster;
mod scene;
mod shapes;

use std::fs;
use std::io::BufWriter;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use candle_detection::structures::Rle;
use clap::Parser;
use image::codecs::jpeg::JpegEncoder;
use rayon::prelude::*;
use serde::Serialize;

use scene::{Scene, Style};
use shapes::CATEGORIES;

/// A data set of drawn scenes in COCO's format.
#[derive(Debug, Parser)]
struct Args {
    /// Scenes to draw.
    #[arg(long, default_value = "1000", value_name = "N")]
    images: u64,
    /// Size of every scene in pixels.
    #[arg(long, default_value = "320x256", value_name = "WxH")]
    size: Size,
    /// The same seed gives the same scenes.
    #[arg(long, default_value = "1", value_name = "N")]
    seed: u64,
    /// Least share of a thing that can be seen, from 0 to 1; the rest is behind other things or beyond the edge.
    #[arg(long, default_value = "0.8", value_name = "SHARE", value_parser = share)]
    least_visible: f32,
    /// File format of the images.
    #[arg(long, value_enum, default_value = "jpg", value_name = "F")]
    format: Format,
    /// Folder to fill; it must not have annotations yet.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Format {
    /// Small files, with the traces of compression that photos have.
    Jpg,
    /// Exactly what was drawn.
    Png,
}

#[derive(Debug, Clone, Copy)]
struct Size {
    width: usize,
    height: usize,
}

/// Pixels of a side.
const SIDES: std::ops::RangeInclusive<usize> = 32..=4096;

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sides = text.split_once('x').and_then(|(width, height)| {
            Some(Self { width: width.parse().ok()?, height: height.parse().ok()? })
        });
        sides
            .filter(|size| SIDES.contains(&size.width) && SIDES.contains(&size.height))
            .ok_or_else(|| format!("`{text}` is no size such as 320x256, sides from 32 to 4096"))
    }
}

fn share(text: &str) -> Result<f32, String> {
    text.parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| format!("`{text}` is no share from 0 to 1"))
}

#[derive(Serialize)]
struct File {
    images: Vec<Image>,
    annotations: Vec<Annotation>,
    categories: Vec<Category>,
}

#[derive(Serialize)]
struct Image {
    id: u64,
    file_name: String,
    width: usize,
    height: usize,
}

#[derive(Serialize)]
struct Annotation {
    id: u64,
    image_id: u64,
    category_id: usize,
    bbox: [u32; 4],
    area: u64,
    iscrowd: u8,
    segmentation: Segmentation,
}

#[derive(Serialize)]
struct Segmentation {
    size: [usize; 2],
    counts: String,
}

#[derive(Serialize)]
struct Category {
    id: usize,
    name: &'static str,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let annotations = args.out.join("annotations.json");
    if annotations.exists() {
        bail!("{} exists; give another --out, or delete it", annotations.display());
    }
    let folder = args.out.join("images");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let drawn: Vec<(Image, Vec<Annotation>)> =
        (1..=args.images).into_par_iter().map(|id| draw(&args, id)).collect::<Result<_>>()?;
    let (images, things): (Vec<Image>, Vec<Vec<Annotation>>) = drawn.into_iter().unzip();
    let annotations_of_all =
        things.into_iter().flatten().zip(1..).map(|(thing, id)| Annotation { id, ..thing });
    let file = File {
        images,
        annotations: annotations_of_all.collect(),
        categories: CATEGORIES
            .iter()
            .zip(1..)
            .map(|(category, id)| Category { id, name: category.name })
            .collect(),
    };
    let out = fs::File::create(&annotations)
        .with_context(|| format!("cannot write {}", annotations.display()))?;
    serde_json::to_writer(BufWriter::new(out), &file)?;
    println!(
        "{} scenes with {} things of {} categories in {}",
        file.images.len(),
        file.annotations.len(),
        file.categories.len(),
        args.out.display()
    );
    Ok(())
}

/// Draws one scene, writes its image, and describes it.
fn draw(args: &Args, id: u64) -> Result<(Image, Vec<Annotation>)> {
    let Size { width, height } = args.size;
    let style = Style { width, height, least_visible: args.least_visible };
    let Scene { image, things } = scene::draw(&style, args.seed, id);
    let ending = match args.format {
        Format::Jpg => "jpg",
        Format::Png => "png",
    };
    let file_name = format!("{id:06}.{ending}");
    let path = args.out.join("images").join(&file_name);
    match args.format {
        Format::Png => image.save(&path)?,
        Format::Jpg => {
            let file = BufWriter::new(fs::File::create(&path)?);
            JpegEncoder::new_with_quality(file, 90).encode_image(&image)?;
        }
    }
    let annotations = things
        .iter()
        .map(|thing| {
            let rle = Rle::from_bitmap(&thing.mask)?;
            Ok(Annotation {
                id: 0,
                image_id: id,
                category_id: thing.category + 1,
                bbox: thing.extent(),
                area: rle.area(),
                iscrowd: 0,
                segmentation: Segmentation { size: [height, width], counts: rle.to_coco_string() },
            })
        })
        .collect::<Result<_>>()?;
    Ok((Image { id, file_name, width, height }, annotations))
}
