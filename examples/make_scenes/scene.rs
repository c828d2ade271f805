//! One scene: a background, things in front of each other, light, blur and noise, and what is visible of each thing.

use image::{GrayImage, Luma, RgbImage};

use super::background;
use super::canvas::{Canvas, Color, Pixel, blurred, mix};
use super::random::Random;
use super::raster::{Contour, Coverage, Point, fill};
use super::shapes::{CATEGORIES, Detail, Drawing, Tone};

/// A thing stays only when at least this many pixels of it can be seen, however small it is.
const LEAST_PIXELS: usize = 30;

/// Places tried for a thing before the scene goes without it.
const TRIES: usize = 8;

pub struct Scene {
    pub image: RgbImage,
    pub things: Vec<Thing>,
}

/// A thing and the pixels that show it.
pub struct Thing {
    /// Position in the list of categories.
    pub category: usize,
    /// 255 where it is seen, else 0.
    pub mask: GrayImage,
}

impl Thing {
    /// `x, y, width, height` of the pixels that are set; there are some.
    pub fn extent(&self) -> [u32; 4] {
        let (mut low, mut high) = ([u32::MAX; 2], [0; 2]);
        for (x, y, pixel) in self.mask.enumerate_pixels() {
            if pixel.0[0] > 0 {
                low = [low[0].min(x), low[1].min(y)];
                high = [high[0].max(x + 1), high[1].max(y + 1)];
            }
        }
        [low[0], low[1], high[0] - low[0], high[1] - low[1]]
    }
}

/// A thing on the canvas; what comes later hides parts of it.
struct Placed {
    category: usize,
    visible: Vec<f32>,
    /// Pixels of it that have to be seen.
    needed: usize,
}

impl Placed {
    /// A thing with nothing in front of it.
    fn new(category: usize, Coverage { inside, whole }: Coverage, least_visible: f32) -> Self {
        let share = (least_visible * whole as f32).ceil() as usize;
        Self { category, visible: inside, needed: share.max(LEAST_PIXELS) }
    }

    /// Whether enough of it lies in the image.
    fn fits(&self) -> bool {
        self.visible.iter().filter(|&&share| share > 0.5).count() >= self.needed
    }

    /// Whether enough of it is left behind `front`.
    fn stands(&self, front: &[f32]) -> bool {
        let left =
            self.visible.iter().zip(front).filter(|(seen, hidden)| **seen * (1.0 - **hidden) > 0.5);
        left.count() >= self.needed
    }
}

/// Scale, turn and shift of a drawing.
struct Pose {
    scale: f32,
    sine: f32,
    cosine: f32,
    at: Point,
}

impl Pose {
    fn random(canvas: &Canvas, turn: f32, random: &mut Random) -> Self {
        let (width, height) = (canvas.width as f32, canvas.height as f32);
        let scale = random.between_log(0.09, 0.36) * width.min(height);
        let (sine, cosine) = random.between(-turn, turn).to_radians().sin_cos();
        let margin = 0.3 * scale;
        let at = [random.between(margin, width - margin), random.between(margin, height - margin)];
        Self { scale, sine, cosine, at }
    }

    fn apply(&self, contours: &[Contour]) -> Vec<Contour> {
        let place = |&[x, y]: &Point| {
            let (x, y) = (x * self.scale, y * self.scale);
            [
                self.at[0] + x * self.cosine - y * self.sine,
                self.at[1] + x * self.sine + y * self.cosine,
            ]
        };
        contours.iter().map(|contour| contour.iter().map(place).collect()).collect()
    }

    /// From the image back to the drawing.
    fn invert(&self, x: f32, y: f32) -> Point {
        let (x, y) = ((x - self.at[0]) / self.scale, (y - self.at[1]) / self.scale);
        [x * self.cosine + y * self.sine, y * self.cosine - x * self.sine]
    }
}

/// How scenes are drawn.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// Pixels.
    pub width: usize,
    /// Pixels.
    pub height: usize,
    /// Things of which a smaller share can be seen are left out.
    pub least_visible: f32,
}

/// Draws scene `index` of a seed.
pub fn draw(style: &Style, seed: u64, index: u64) -> Scene {
    let Style { width, height, least_visible } = *style;
    let mut random = Random::new(seed, index);
    let mut canvas = Canvas::new(width, height);
    background::paint(&mut canvas, &mut random);
    let mut placed: Vec<Placed> = Vec::new();
    // Few things in most scenes, up to six in some.
    let wanted = 1 + random.below(3) + random.below(4);
    for _ in 0..wanted {
        place(&mut canvas, &mut placed, least_visible, &mut random);
    }
    finish(&mut canvas, &mut random);
    let things = placed.iter().map(|thing| Thing {
        category: thing.category,
        mask: GrayImage::from_fn(width as u32, height as u32, |x, y| {
            let seen = thing.visible[y as usize * width + x as usize] > 0.5;
            Luma([if seen { 255 } else { 0 }])
        }),
    });
    Scene { image: canvas.to_image(), things: things.collect() }
}

/// Puts one more thing in front of all others, at a place where enough of each stays visible.
fn place(canvas: &mut Canvas, placed: &mut Vec<Placed>, least_visible: f32, random: &mut Random) {
    let category = random.below(CATEGORIES.len());
    let drawing = (CATEGORIES[category].draw)(random);
    for _ in 0..TRIES {
        let pose = Pose::random(canvas, CATEGORIES[category].turn, random);
        let coverage = fill(&pose.apply(&drawing.outline), canvas.width, canvas.height);
        let thing = Placed::new(category, coverage, least_visible);
        if !thing.fits() || !placed.iter().all(|behind| behind.stands(&thing.visible)) {
            continue;
        }
        for behind in placed.iter_mut() {
            for (seen, hidden) in behind.visible.iter_mut().zip(&thing.visible) {
                *seen *= 1.0 - hidden;
            }
        }
        paint(canvas, &drawing, &pose, &thing.visible, random);
        placed.push(thing);
        return;
    }
}

/// How the surface of a thing is colored.
#[derive(Clone, Copy)]
enum Surface {
    Plain,
    Gradient,
    Stripes,
    Dots,
}

fn paint(
    canvas: &mut Canvas,
    drawing: &Drawing,
    pose: &Pose,
    coverage: &[f32],
    random: &mut Random,
) {
    let behind = canvas.mean(coverage);
    let base = contrasting(behind, random);
    let other = base.shifted(random, 0.35);
    let accent = Color::random(random, 0.9);
    if random.chance(0.5) {
        cast_shadow(canvas, coverage, pose.scale, random);
    }
    let surface = random.pick(&[
        Surface::Plain,
        Surface::Plain,
        Surface::Gradient,
        Surface::Gradient,
        Surface::Stripes,
        Surface::Dots,
    ]);
    let (sine, cosine) = random.between(0.0, std::f32::consts::TAU).sin_cos();
    let frequency = random.between(3.0, 9.0);
    let light = random.between(0.0, 0.3);
    let surface_color = move |x: f32, y: f32| -> Pixel {
        let [u, v] = pose.invert(x, y);
        let along = u * cosine + v * sine;
        let part = match surface {
            Surface::Plain => 0.0,
            Surface::Gradient => (0.5 + 0.5 * along).clamp(0.0, 1.0),
            Surface::Stripes => ((along * frequency).sin() * 4.0).clamp(0.0, 1.0),
            Surface::Dots => {
                let wave = (u * frequency * 1.6).sin() * (v * frequency * 1.6).sin();
                ((wave - 0.45) * 8.0).clamp(0.0, 1.0)
            }
        };
        mix(base.0, other.0, part)
    };
    let shaded = move |x: f32, y: f32, color: Pixel| {
        let [u, v] = pose.invert(x, y);
        let brightness = 1.0 - light * (u * sine - v * cosine);
        color.map(|value| (value * brightness).clamp(0.0, 1.0))
    };
    canvas.blend(coverage, 1.0, |x, y, _| shaded(x, y, surface_color(x, y)));
    for Detail { contours, tone } in &drawing.details {
        let tone = match tone {
            Tone::Darker => base.scaled(0.55),
            Tone::Lighter => Color(mix(base.0, [1.0; 3], 0.6)),
            Tone::Accent => accent,
        };
        let mut part = fill(&pose.apply(contours), canvas.width, canvas.height).inside;
        part.iter_mut().zip(coverage).for_each(|(share, &whole)| *share = share.min(whole));
        canvas.blend(&part, 1.0, |x, y, _| shaded(x, y, tone.0));
    }
}

/// A color that stands out from what is behind.
fn contrasting(behind: Pixel, random: &mut Random) -> Color {
    let mut best = Color::random(random, 0.95);
    for _ in 0..6 {
        if best.distance(behind) > 0.22 {
            break;
        }
        let next = Color::random(random, 0.95);
        if next.distance(behind) > best.distance(behind) {
            best = next;
        }
    }
    best
}

/// Darkens what lies behind a thing, a little to the side of it.
fn cast_shadow(canvas: &mut Canvas, coverage: &[f32], scale: f32, random: &mut Random) {
    let shift = [0, 1].map(|_| (random.between(-0.2, 0.2) * scale).round() as i64);
    let (width, height) = (canvas.width as i64, canvas.height as i64);
    let moved: Vec<f32> = (0..width * height)
        .map(|i| {
            let (x, y) = (i % width - shift[0], i / width - shift[1]);
            let inside = (0..width).contains(&x) && (0..height).contains(&y);
            if inside { coverage[(y * width + x) as usize] } else { 0.0 }
        })
        .collect();
    let soft = blurred(&moved, canvas.width, (0.06 * scale).clamp(0.8, 5.0));
    let depth = random.between(0.2, 0.5);
    canvas.blend(&soft, depth, |_, _, pixel| pixel.map(|value| value * 0.2));
}

/// What a camera adds: uneven light, blur, noise.
fn finish(canvas: &mut Canvas, random: &mut Random) {
    if random.chance(0.5) {
        let (sine, cosine) = random.between(0.0, std::f32::consts::TAU).sin_cos();
        let depth = random.between(0.1, 0.45);
        let (width, height) = (canvas.width as f32, canvas.height as f32);
        canvas.each(|x, y, pixel| {
            let along = (x / width - 0.5) * cosine + (y / height - 0.5) * sine;
            *pixel = pixel.map(|value| (value * (1.0 + depth * 1.5 * along)).clamp(0.0, 1.0));
        });
    }
    if random.chance(0.35) {
        canvas.blur(random.between(0.4, 1.1));
    }
    if random.chance(0.6) {
        let sigma = random.between(0.004, 0.04);
        canvas.each(|_, _, pixel| *pixel = pixel.map(|value| value + sigma * random.normal()));
    }
}
