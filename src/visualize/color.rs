//! Colors of classes.

/// Steps of hue and lightness from one label to the next, in shares of their ranges: powers of the inverse plastic
/// number, whose multiples fill a square evenly however many there are (Roberts, "The R2 sequence", 2018).
const HUE_STEP: f64 = 0.754_877_666_246_693;
const LIGHTNESS_STEP: f64 = 0.569_840_290_998_053;

/// Hue of label 0, in turns; it makes the first label, a person in COCO, red.
const FIRST_HUE: f64 = 0.3;

/// Darker ones are lost in shadows, lighter ones look white.
const LIGHTNESS: std::ops::Range<f64> = 0.57..0.80;

/// Colorfulness, where the screen has it; less for hues such as cyan.
const CHROMA: f64 = 0.19;

/// The color of a class, red, green, blue: the same in every image, and clearly apart from those of nearby labels.
///
/// Colors are spaced in OKLCH, where equal steps look equal.
pub fn class_color(label: u32) -> [u8; 3] {
    let share = |step: f64| (f64::from(label) * step).fract();
    let hue = (FIRST_HUE + share(HUE_STEP)) * std::f64::consts::TAU;
    let (sin, cos) = hue.sin_cos();
    let lightness = LIGHTNESS.start + share(LIGHTNESS_STEP) * (LIGHTNESS.end - LIGHTNESS.start);
    let mut chroma = CHROMA;
    loop {
        let linear = oklab_to_linear_rgb(lightness, chroma * cos, chroma * sin);
        let on_screen = linear.iter().all(|value| (0.0..=1.0).contains(value));
        // Grey is on every screen, up to rounding.
        if on_screen || chroma < 0.01 {
            return linear.map(encode);
        }
        chroma *= 0.95;
    }
}

/// Black or white, whichever reads better on a color.
pub(super) fn text_color(background: [u8; 3]) -> [u8; 3] {
    let [red, green, blue] = background.map(f32::from);
    let luma = 0.299 * red + 0.587 * green + 0.114 * blue;
    if luma > 130.0 { [0; 3] } else { [255; 3] }
}

/// Ottosson, "A perceptual color space for image processing" (2020); colors that sRGB lacks are outside `0..=1`.
fn oklab_to_linear_rgb(lightness: f64, a: f64, b: f64) -> [f64; 3] {
    let long = (lightness + 0.396_337_777_4 * a + 0.215_803_757_3 * b).powi(3);
    let medium = (lightness - 0.105_561_345_8 * a - 0.063_854_172_8 * b).powi(3);
    let short = (lightness - 0.089_484_177_5 * a - 1.291_485_548_0 * b).powi(3);
    [
        4.076_741_662_1 * long - 3.307_711_591_3 * medium + 0.230_969_929_2 * short,
        -1.268_438_004_6 * long + 2.609_757_401_1 * medium - 0.341_319_396_5 * short,
        -0.004_196_086_3 * long - 0.703_418_614_7 * medium + 1.707_614_701_0 * short,
    ]
}

/// The sRGB curve, to 8 bits.
fn encode(linear: f64) -> u8 {
    let linear = linear.clamp(0.0, 1.0);
    let encoded =
        if linear <= 0.003_130_8 { 12.92 * linear } else { 1.055 * linear.powf(1.0 / 2.4) - 0.055 };
    (encoded * 255.0).round() as u8
}
