//! Colors of classes.

/// Successive labels turn the hue by this share of the circle: the golden ratio never comes close to an earlier hue.
const GOLDEN_RATIO: f32 = 0.618_034;

/// Lightness of successive labels, so that labels whose hues are close after all still differ.
const LIGHTNESS: [f32; 3] = [0.70, 0.80, 0.62];

/// Colorfulness, about the most that all hues have at these lightnesses.
const CHROMA: f32 = 0.17;

/// The color of a class, red, green, blue: the same in every image, and clearly apart from those of nearby labels.
///
/// Hues are spaced in OKLCH, where equal steps look equal.
pub fn class_color(label: u32) -> [u8; 3] {
    // f64, as a large label times the ratio would lose its fraction.
    let turns = (f64::from(label) * f64::from(GOLDEN_RATIO)).fract() as f32;
    let (sin, cos) = (turns * std::f32::consts::TAU).sin_cos();
    oklab_to_rgb(LIGHTNESS[label as usize % LIGHTNESS.len()], CHROMA * cos, CHROMA * sin)
}

/// Black or white, whichever reads better on a color.
pub(super) fn text_color(background: [u8; 3]) -> [u8; 3] {
    let [red, green, blue] = background.map(f32::from);
    let luma = 0.299 * red + 0.587 * green + 0.114 * blue;
    if luma > 130.0 { [0; 3] } else { [255; 3] }
}

/// Ottosson, "A perceptual color space for image processing" (2020), to sRGB; colors it lacks are cut.
fn oklab_to_rgb(lightness: f32, a: f32, b: f32) -> [u8; 3] {
    let long = (lightness + 0.396_337_78 * a + 0.215_803_76 * b).powi(3);
    let medium = (lightness - 0.105_561_346 * a - 0.063_854_17 * b).powi(3);
    let short = (lightness - 0.089_484_18 * a - 1.291_485_5 * b).powi(3);
    let linear = [
        4.076_741_7 * long - 3.307_711_6 * medium + 0.230_969_94 * short,
        -1.268_438 * long + 2.609_757_4 * medium - 0.341_319_38 * short,
        -0.004_196_086_3 * long - 0.703_418_6 * medium + 1.707_614_7 * short,
    ];
    linear.map(|value| {
        let value = value.clamp(0.0, 1.0);
        let encoded = if value <= 0.003_130_8 {
            12.92 * value
        } else {
            1.055 * value.powf(1.0 / 2.4) - 0.055
        };
        (encoded * 255.0).round() as u8
    })
}
