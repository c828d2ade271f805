//! Images with what is in them and what was found, side by side.

use std::fmt::Write;

use image::codecs::jpeg::JpegEncoder;
use image::{Rgb, RgbImage, imageops};

use super::{ReportPage, escape};
use crate::error::Result;
use crate::eval::{
    CocoAnnotation, CocoKeypoint, CocoResult, CocoSample, Fate, ImageOutcome, Judgement,
    Segmentation, Verdict,
};
use crate::structures::{COCO_SKELETON, ImageSize, Rle};

/// Images per part of the gallery.
const IMAGES: usize = 6;

/// Longer side of an embedded picture in pixels: sharp on a phone, small in the file.
const SIDE: u32 = 560;

/// JPEG quality of embedded pictures.
const QUALITY: u8 = 82;

/// How much of a mask's color covers the picture.
const OPACITY: f32 = 0.45;

const GOOD: [u8; 3] = [42, 190, 110];
const BAD: [u8; 3] = [235, 72, 60];
const AMBER: [u8; 3] = [245, 170, 20];
const GREY: [u8; 3] = [150, 160, 175];

/// Writing to a `String` cannot fail; its error type is dropped here, in one place.
macro_rules! put {
    ($html:expr, $($argument:tt)*) => { let _ = write!($html, $($argument)*); };
}

/// Something to draw.
struct Drawn {
    bbox: [f64; 4],
    label: String,
    color: [u8; 3],
    dashed: &'static str,
    mask: Option<Rle>,
    /// Of keypoints that show.
    skeleton: Skeleton,
}

/// Keypoints and the limbs between them.
#[derive(Default)]
struct Skeleton {
    joints: Vec<[f64; 2]>,
    limbs: Vec<[[f64; 2]; 2]>,
}

impl Skeleton {
    /// Of `x, y, v` of each keypoint; those with a `v` of 0 don't show.
    fn new(page: &ReportPage<'_>, category: u64, points: &[[f64; 3]]) -> Self {
        let shown = |at: usize| points.get(at).filter(|point| point[2] > 0.0).map(|p| [p[0], p[1]]);
        let named = page.dataset.category(category).map_or(&[][..], |one| &one.skeleton);
        let limbs = match named {
            [] if points.len() == COCO_KEYPOINTS => &COCO_SKELETON,
            named => named,
        };
        Self {
            joints: (0..points.len()).filter_map(shown).collect(),
            limbs: limbs.iter().filter_map(|&[a, b]| Some([shown(a)?, shown(b)?])).collect(),
        }
    }
}

/// Keypoints of a person in COCO.
const COCO_KEYPOINTS: usize = 17;

/// The three parts of the gallery; an image appears in one of them only.
pub(super) fn sections(page: &ReportPage<'_>) -> String {
    if page.dataset.folder().as_os_str().is_empty() {
        return "<section><h2>Images</h2><p>Not shown: the folder of images was not given.</p></section>"
            .to_owned();
    }
    let mut left: Vec<ImageOutcome> = page.analysis.images.clone();
    let mut take = |wanted: &dyn Fn(&ImageOutcome) -> bool,
                    key: &dyn Fn(&ImageOutcome) -> usize| {
        left.sort_by_key(|image| (std::cmp::Reverse(key(image)), image.image_id));
        let (taken, rest): (Vec<_>, Vec<_>) =
            left.iter().partition(|image| wanted(image) && key(image) > 0);
        let (taken, over) = taken.split_at(taken.len().min(IMAGES));
        let taken = taken.to_vec();
        left = [over, &rest].concat();
        taken
    };
    let alarms = take(&|_| true, &|image| image.wrong);
    let misses = take(&|_| true, &|image| image.missed);
    let best = take(&|image| image.wrong == 0 && image.missed == 0, &|image| image.right);
    let mut html = String::new();
    for (title, note, images) in [
        ("Most false alarms", "Images with the most wrong detections.", alarms),
        ("Most misses", "Images with the most objects that were not found.", misses),
        ("Best results", "Images with the most objects, all found and nothing invented.", best),
    ] {
        if images.is_empty() {
            continue;
        }
        put!(
            html,
            "<section><h2>{title}</h2><p class=\"note\">{note} First what is there, then what was found from score {:.2} on.</p><div class=\"gallery\">",
            page.analysis.threshold
        );
        for outcome in &images {
            html.push_str(&figure(page, outcome));
        }
        html.push_str("</div>");
        html.push_str(&legend());
        html.push_str("</section>");
    }
    html
}

fn legend() -> String {
    let mut html = "<div class=\"legend\">".to_owned();
    for (color, word) in [(GOOD, "found"), (AMBER, "missed"), (BAD, "wrong"), (GREY, "crowd")] {
        put!(html, "<span><i style=\"background:{}\"></i>{word}</span>", css(color));
    }
    html + "</div>"
}

fn figure(page: &ReportPage<'_>, outcome: &ImageOutcome) -> String {
    let Some(image) = page.dataset.image(outcome.image_id) else { return String::new() };
    let caption = format!(
        "<figcaption><b>{}</b> · {} right, {} wrong, {} missed</figcaption>",
        escape(&image.file_name),
        outcome.right,
        outcome.wrong,
        outcome.missed
    );
    let views = match views(page, CocoSample::new(page.dataset, image)) {
        Ok(views) => views,
        Err(error) => {
            return format!(
                "<figure>{caption}<figcaption>Not shown: {}</figcaption></figure>",
                escape(&error.to_string())
            );
        }
    };
    format!("<figure><div class=\"views\">{views}</div>{caption}</figure>")
}

fn views(page: &ReportPage<'_>, sample: CocoSample<'_>) -> Result<String> {
    let results = (page.results_of)(sample.image_id);
    let judgement = Judgement::new(page.dataset, sample.image_id, results, page.analysis.threshold);
    let input = sample.image()?;
    let size = input.size();
    let picture = input.to_rgb8()?;
    let truths: Vec<Drawn> = sample
        .annotations
        .iter()
        .zip(&judgement.fates)
        .map(|(annotation, fate)| {
            let (color, dashed) = match fate {
                Fate::Found => (GOOD, ""),
                Fate::Missed => (AMBER, " stroke-dasharray=\"6 4\""),
                Fate::Crowd => (GREY, " stroke-dasharray=\"2 4\""),
            };
            Drawn {
                bbox: annotation.bbox,
                label: name(page, annotation.category_id),
                color,
                dashed,
                mask: mask(&annotation.segmentation, size),
                skeleton: Skeleton::new(page, annotation.category_id, &points_of(annotation)),
            }
        })
        .collect();
    let found: Vec<Drawn> = judgement
        .verdicts
        .iter()
        .rev()
        .map(|&(at, verdict)| {
            let result: &CocoResult = &results[at];
            let (color, dashed) = match verdict {
                Verdict::Right(_) => (GOOD, ""),
                Verdict::Wrong | Verdict::Confused(_) => (BAD, ""),
                Verdict::InCrowd => (GREY, " stroke-dasharray=\"2 4\""),
            };
            Drawn {
                bbox: result.extent().unwrap_or_default(),
                label: format!("{} {:.2}", name(page, result.category_id), result.score),
                color,
                dashed,
                mask: mask(&result.segmentation, size),
                skeleton: Skeleton::new(
                    page,
                    result.category_id,
                    result.keypoints.as_deref().unwrap_or_default(),
                ),
            }
        })
        .collect();
    Ok(view("there", &picture, size, &truths) + &view("found", &picture, size, &found))
}

fn name(page: &ReportPage<'_>, id: u64) -> String {
    page.dataset
        .category(id)
        .map_or_else(|| format!("category {id}"), |category| category.name.clone())
}

fn points_of(annotation: &CocoAnnotation) -> Vec<[f64; 3]> {
    let numbers = |p: &CocoKeypoint| [p.x, p.y, f64::from(p.visibility.number())];
    annotation.keypoints.iter().map(numbers).collect()
}

fn mask(segmentation: &Segmentation, size: ImageSize) -> Option<Rle> {
    (*segmentation != Segmentation::Absent).then(|| segmentation.to_rle(size))
}

/// A picture with masks in its pixels, boxes and labels drawn over it.
fn view(title: &str, picture: &RgbImage, size: ImageSize, drawn: &[Drawn]) -> String {
    let mut pixels = picture.clone();
    for one in drawn {
        if let Some(mask) = &one.mask {
            tint(&mut pixels, mask, one.color);
        }
    }
    let longer = size.width.max(size.height) as f32;
    let scale = (SIDE as f32 / longer).min(1.0);
    let side = |pixels: usize| ((pixels as f32 * scale).round() as u32).max(1);
    let small = imageops::resize(
        &pixels,
        side(size.width),
        side(size.height),
        imageops::FilterType::Triangle,
    );
    let mut jpeg = Vec::new();
    if JpegEncoder::new_with_quality(&mut jpeg, QUALITY).encode_image(&small).is_err() {
        return format!("<div class=\"view\"><span>{title}</span></div>");
    }
    // Labels keep their size on the page, whatever that of the image.
    let font = longer as f64 / 32.0;
    let line = longer as f64 / 220.0;
    let mut html = format!(
        "<div class=\"view\"><span>{title}</span><svg viewBox=\"0 0 {0} {1}\"><image width=\"{0}\" height=\"{1}\" href=\"data:image/jpeg;base64,{2}\"/>",
        size.width,
        size.height,
        base64(&jpeg)
    );
    for one in drawn {
        let [x, y, width, height] = one.bbox;
        let color = css(one.color);
        put!(
            html,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{line:.1}\"{}><title>{}</title></rect>",
            one.dashed,
            escape(&one.label)
        );
        for [[x1, y1], [x2, y2]] in &one.skeleton.limbs {
            put!(
                html,
                "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{color}\" stroke-width=\"{line:.1}\" stroke-linecap=\"round\"/>"
            );
        }
        for [x, y] in &one.skeleton.joints {
            put!(
                html,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{line:.1}\" fill=\"#fff\" stroke=\"{color}\" stroke-width=\"{:.1}\"/>",
                line / 2.0
            );
        }
    }
    for one in drawn {
        let [x, y, ..] = one.bbox;
        let length = one.label.chars().count() as f64 * font * 0.56 + font * 0.5;
        let left = x.clamp(0.0, (size.width as f64 - length).max(0.0));
        // Above the box where there is room, else inside it.
        let top = if y > font * 1.3 { y - font * 1.25 } else { y.max(0.0) };
        put!(
            html,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{length:.1}\" height=\"{:.1}\" fill=\"{}\" opacity=\".85\"/><text x=\"{:.1}\" y=\"{:.1}\" style=\"font-size:{font:.1}px\">{}</text>",
            font * 1.25,
            css(one.color),
            left + font * 0.25,
            top + font * 0.95,
            escape(&one.label)
        );
    }
    html + "</svg></div>"
}

fn css([red, green, blue]: [u8; 3]) -> String {
    format!("rgb({red} {green} {blue})")
}

/// Mixes a color into the pixels of a mask.
fn tint(pixels: &mut RgbImage, mask: &Rle, color: [u8; 3]) {
    let height = mask.size.height.max(1);
    let mut at = 0usize;
    for (index, &run) in mask.counts.iter().enumerate() {
        let end = at + run as usize;
        if index % 2 == 1 {
            for position in at..end {
                let (x, y) = ((position / height) as u32, (position % height) as u32);
                if let Some(Rgb(pixel)) = pixels.get_pixel_mut_checked(x, y) {
                    for (value, target) in pixel.iter_mut().zip(color) {
                        let mixed =
                            f32::from(*value) * (1.0 - OPACITY) + f32::from(target) * OPACITY;
                        *value = mixed.round() as u8;
                    }
                }
            }
        }
        at = end;
    }
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte))
            << (8 * (3 - group.len()));
        for position in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * position)) as usize & 63];
            text.push(if position <= group.len() { digit as char } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }

    #[test]
    fn masks_tint_their_columns() {
        let mut pixels = RgbImage::new(3, 2);
        let size = ImageSize { height: 2, width: 3 };
        tint(&mut pixels, &Rle { size, counts: vec![1, 2, 3] }, [200, 100, 0]);
        let tinted: Vec<(u32, u32)> = pixels
            .enumerate_pixels()
            .filter(|(_, _, pixel)| pixel.0 == [90, 45, 0])
            .map(|(x, y, _)| (x, y))
            .collect();
        assert_eq!(tinted, [(1, 0), (0, 1)]);
    }
}
