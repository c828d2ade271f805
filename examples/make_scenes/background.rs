//! What lies behind the things: gradients, noise, stripes, checks, blotches, and clutter that is of no category.

use super::canvas::{Canvas, Color, mix};
use super::random::Random;
use super::raster::{Contour, Point, fill};

#[derive(Clone, Copy)]
enum Texture {
    Gradient,
    Noise,
    Stripes,
    Checks,
    Blotches,
}

const TEXTURES: [Texture; 5] =
    [Texture::Gradient, Texture::Noise, Texture::Stripes, Texture::Checks, Texture::Blotches];

/// Covers the whole canvas.
pub fn paint(canvas: &mut Canvas, random: &mut Random) {
    let first = Color::random(random, 0.6);
    // Most walls, tables and meadows have shades of one color; some have two.
    let second = match random.chance(0.7) {
        true => first.shifted(random, 0.25),
        false => Color::random(random, 0.6),
    };
    let texture = pattern(random.pick(&TEXTURES), canvas, random);
    let grain = pattern(Texture::Noise, canvas, random);
    let strength = random.between(0.0, 0.5);
    canvas.each(|x, y, pixel| {
        let part = texture(x, y) * (1.0 - strength) + grain(x, y) * strength;
        *pixel = mix(first.0, second.0, part);
    });
    if random.chance(0.6) {
        clutter(canvas, random);
    }
}

/// A function of the position to `0..=1`.
fn pattern(texture: Texture, canvas: &Canvas, random: &mut Random) -> Box<dyn Fn(f32, f32) -> f32> {
    let side = canvas.width.min(canvas.height) as f32;
    let angle = random.between(0.0, std::f32::consts::TAU);
    let (sine, cosine) = angle.sin_cos();
    let phase = [random.between(0.0, side), random.between(0.0, side)];
    let period = random.between_log(side * 0.04, side * 0.4);
    let along = move |x: f32, y: f32| (x + phase[0]) * cosine + (y + phase[1]) * sine;
    let across = move |x: f32, y: f32| (y + phase[1]) * cosine - (x + phase[0]) * sine;
    match texture {
        Texture::Gradient => Box::new(move |x, y| {
            (0.5 + ((x - phase[0]) * cosine + (y - phase[1]) * sine) / (1.5 * side)).clamp(0.0, 1.0)
        }),
        Texture::Noise => {
            let seed = random.bits();
            Box::new(move |x, y| {
                let octave = |size: f32, salt: u64| value_noise(seed ^ salt, x / size, y / size);
                let sum = 0.55 * octave(period, 1)
                    + 0.3 * octave(period * 0.4, 2)
                    + 0.15 * octave(period * 0.15, 3);
                ((sum - 0.5) * 1.6 + 0.5).clamp(0.0, 1.0)
            })
        }
        Texture::Stripes => {
            let (sharp, share) = (random.between(2.0, 20.0), random.between(-0.6, 0.6));
            Box::new(move |x, y| {
                let wave = (along(x, y) / period * std::f32::consts::TAU).sin();
                0.5 + 0.5 * ((wave - share) * sharp).clamp(-1.0, 1.0)
            })
        }
        Texture::Checks => Box::new(move |x, y| {
            let odd = (along(x, y) / period).floor() + (across(x, y) / period).floor();
            odd.rem_euclid(2.0)
        }),
        Texture::Blotches => {
            let spots: Vec<(Point, f32)> = (0..random.below(14) + 5)
                .map(|_| {
                    let at = [
                        random.between(0.0, canvas.width as f32),
                        random.between(0.0, canvas.height as f32),
                    ];
                    (at, random.between_log(side * 0.04, side * 0.3))
                })
                .collect();
            Box::new(move |x, y| {
                let shade = spots.iter().map(|&([cx, cy], radius)| {
                    let distance = ((x - cx).powi(2) + (y - cy).powi(2)) / (radius * radius);
                    (1.3 - distance).clamp(0.0, 1.0)
                });
                shade.fold(0.0, f32::max)
            })
        }
    }
}

/// Smooth noise between random values at whole coordinates.
fn value_noise(seed: u64, x: f32, y: f32) -> f32 {
    let (left, top) = (x.floor(), y.floor());
    let corner = |dx: f32, dy: f32| {
        let cell = (((left + dx) as i64 as u64) << 32) ^ ((top + dy) as i64 as u64 & 0xffff_ffff);
        Random::new(seed, cell).between(0.0, 1.0)
    };
    let smooth = |t: f32| t * t * (3.0 - 2.0 * t);
    let (across, down) = (smooth(x - left), smooth(y - top));
    let upper = corner(0.0, 0.0) * (1.0 - across) + corner(1.0, 0.0) * across;
    let lower = corner(0.0, 1.0) * (1.0 - across) + corner(1.0, 1.0) * across;
    upper * (1.0 - down) + lower * down
}

/// Strokes and crumbs: small or thin, so that they are taken for no object.
fn clutter(canvas: &mut Canvas, random: &mut Random) {
    let (width, height) = (canvas.width as f32, canvas.height as f32);
    for _ in 0..random.below(12) + 1 {
        let at = [random.between(0.0, width), random.between(0.0, height)];
        let contour = if random.chance(0.5) {
            stroke(at, random.between(0.1, 0.6) * width, random)
        } else {
            crumb(at, random.between(1.0, 4.0), random)
        };
        let color = Color::random(random, 0.8);
        let opacity = random.between(0.3, 0.9);
        let coverage = fill(&[contour], canvas.width, canvas.height);
        canvas.blend(&coverage.inside, opacity, |_, _, _| color.0);
    }
}

/// A bent line of a pixel or two.
fn stroke([x, y]: Point, length: f32, random: &mut Random) -> Contour {
    let half = random.between(0.4, 1.2);
    let bend = random.between(-0.01, 0.01);
    let mut angle = random.between(0.0, std::f32::consts::TAU);
    let (mut upper, mut lower, mut at) = (Vec::new(), Vec::new(), [x, y]);
    let step = 4.0;
    for _ in 0..(length / step) as usize + 2 {
        let (sine, cosine) = angle.sin_cos();
        upper.push([at[0] - half * sine, at[1] + half * cosine]);
        lower.push([at[0] + half * sine, at[1] - half * cosine]);
        at = [at[0] + step * cosine, at[1] + step * sine];
        angle += bend * step;
    }
    upper.into_iter().chain(lower.into_iter().rev()).collect()
}

fn crumb([x, y]: Point, radius: f32, random: &mut Random) -> Contour {
    (0..7)
        .map(|i| {
            let angle = std::f32::consts::TAU * i as f32 / 7.0;
            let radius = radius * random.between(0.5, 1.2);
            [x + radius * angle.cos(), y + radius * angle.sin()]
        })
        .collect()
}
