//! What the scenes show: outlines of everyday things, drawn from straight lines, arcs and Bézier curves.
//!
//! A drawing lies in about `-1..1` on both axes, y downwards, upright. Proportions vary from one to the next.

use std::f32::consts::{PI, TAU};

use super::random::Random;
use super::raster::{Contour, Point};

/// A thing to draw.
pub struct Drawing {
    /// The silhouette, filled by the even-odd rule: inner contours are holes.
    pub outline: Vec<Contour>,
    /// What is drawn on it, in another tone; nothing beyond the silhouette shows.
    pub details: Vec<Detail>,
}

pub struct Detail {
    pub contours: Vec<Contour>,
    pub tone: Tone,
}

/// The color of a detail, from that of its drawing.
#[derive(Clone, Copy)]
pub enum Tone {
    Darker,
    Lighter,
    /// A color of its own.
    Accent,
}

/// A kind of thing.
pub struct Category {
    pub name: &'static str,
    pub draw: fn(&mut Random) -> Drawing,
    /// How far it may be turned to either side, in degrees.
    pub turn: f32,
}

/// In the order of their ids, which start at 1.
pub const CATEGORIES: [Category; 10] = [
    Category { name: "circle", draw: circle, turn: 180.0 },
    Category { name: "triangle", draw: triangle, turn: 180.0 },
    Category { name: "square", draw: square, turn: 180.0 },
    Category { name: "star", draw: star, turn: 180.0 },
    Category { name: "cup", draw: cup, turn: 40.0 },
    Category { name: "key", draw: key, turn: 180.0 },
    Category { name: "house", draw: house, turn: 25.0 },
    Category { name: "bottle", draw: bottle, turn: 90.0 },
    Category { name: "umbrella", draw: umbrella, turn: 45.0 },
    Category { name: "fish", draw: fish, turn: 60.0 },
];

/// Points of an arc from one angle to another, clockwise as seen when the angle grows.
fn arc(centre: Point, radius: Point, from: f32, to: f32) -> Contour {
    let steps = ((to - from).abs() * 10.0).ceil().max(2.0) as usize;
    (0..=steps)
        .map(|i| {
            let angle = from + (to - from) * i as f32 / steps as f32;
            [centre[0] + radius[0] * angle.cos(), centre[1] + radius[1] * angle.sin()]
        })
        .collect()
}

fn ellipse(centre: Point, radius: Point) -> Contour {
    let mut points = arc(centre, radius, 0.0, TAU);
    points.pop();
    points
}

fn rectangle(left: f32, top: f32, right: f32, bottom: f32) -> Contour {
    vec![[left, top], [right, top], [right, bottom], [left, bottom]]
}

/// Appends a cubic Bézier curve from the last point on.
fn curve(points: &mut Contour, [a, b, end]: [Point; 3]) {
    const STEPS: usize = 12;
    let Some(&start) = points.last() else { return };
    for i in 1..=STEPS {
        let t = i as f32 / STEPS as f32;
        let u = 1.0 - t;
        let weights = [u * u * u, 3.0 * u * u * t, 3.0 * u * t * t, t * t * t];
        let sum = |axis: usize| {
            [start, a, b, end].iter().zip(weights).map(|(point, w)| w * point[axis]).sum::<f32>()
        };
        points.push([sum(0), sum(1)]);
    }
}

/// A contour and its mirror image, as one: the points run from the top to the bottom on the right side.
fn symmetric(right: Contour) -> Contour {
    let left = right.iter().rev().map(|&[x, y]| [-x, y]).collect::<Contour>();
    right.into_iter().chain(left).collect()
}

fn plain(outline: Vec<Contour>) -> Drawing {
    Drawing { outline, details: Vec::new() }
}

fn circle(random: &mut Random) -> Drawing {
    let squash = random.between(0.9, 1.0);
    let outline = vec![ellipse([0.0, 0.0], [1.0, squash])];
    let mut drawing = plain(outline);
    if random.chance(0.3) {
        let inner = random.between(0.35, 0.7);
        let contours = vec![ellipse([0.0, 0.0], [inner, inner * squash])];
        drawing
            .details
            .push(Detail { contours, tone: random.pick(&[Tone::Lighter, Tone::Accent]) });
    }
    drawing
}

fn triangle(random: &mut Random) -> Drawing {
    let lean = random.between(-0.35, 0.35);
    let base = random.between(0.75, 1.0);
    plain(vec![vec![[lean, -0.95], [base, 0.8], [-base, 0.8]]])
}

fn square(random: &mut Random) -> Drawing {
    let half = random.between(0.7, 0.95);
    let mut drawing = plain(vec![rectangle(-0.85, -half, 0.85, half)]);
    if random.chance(0.3) {
        let (x, y) = (0.55, half - 0.3);
        let contours = vec![rectangle(-x, -y, x, y)];
        drawing.details.push(Detail { contours, tone: random.pick(&[Tone::Darker, Tone::Accent]) });
    }
    drawing
}

fn star(random: &mut Random) -> Drawing {
    let inner = random.between(0.38, 0.52);
    let points = (0..10).map(|i| {
        let radius = if i % 2 == 0 { 1.0 } else { inner };
        let angle = PI * i as f32 / 5.0 - PI / 2.0;
        [radius * angle.cos(), radius * angle.sin()]
    });
    plain(vec![points.collect()])
}

fn cup(random: &mut Random) -> Drawing {
    let foot = random.between(0.42, 0.6);
    let (top, bottom) = (-random.between(0.65, 0.85), 0.8);
    let mut body = vec![[-0.72, top], [0.62, top]];
    // The handle is a band from the rim's side to the belly's.
    let side = |y: f32| 0.62 + (foot - 0.67) * (y - top) / (bottom - top);
    let (upper, lower) = (top + 0.2, top + 1.05);
    body.push([side(upper), upper]);
    curve(&mut body, [[1.15, upper - 0.05], [1.2, lower + 0.05], [side(lower), lower]]);
    body.extend([[foot - 0.05, bottom], [-foot - 0.05, bottom]]);
    let (hole_top, hole_bottom) = (upper + 0.17, lower - 0.17);
    let mut hole = vec![[side(hole_top) + 0.03, hole_top]];
    let end = [side(hole_bottom) + 0.03, hole_bottom];
    curve(&mut hole, [[0.95, hole_top], [0.95, hole_bottom], end]);
    let band = random.between(-0.1, 0.3);
    let mut details =
        vec![Detail { contours: vec![rectangle(-0.8, top, 0.62, top + 0.12)], tone: Tone::Darker }];
    if random.chance(0.6) {
        let contours = vec![rectangle(-0.8, band, side(band), band + random.between(0.1, 0.3))];
        details.push(Detail { contours, tone: random.pick(&[Tone::Lighter, Tone::Accent]) });
    }
    Drawing { outline: vec![body, hole], details }
}

fn key(random: &mut Random) -> Drawing {
    let (radius, half) = (random.between(0.4, 0.48), random.between(0.14, 0.18));
    let centre = [-0.6, 0.0];
    let opening = (half / radius).asin();
    // Around the bow, from the shaft's upper edge to its lower one, then along the teeth.
    let mut outline = arc(centre, [radius, radius], -opening, opening - TAU);
    let tooth = random.between(0.2, 0.34);
    outline.extend([[0.35, half], [0.35, half + tooth], [0.52, half + tooth], [0.52, half]]);
    outline.extend([[0.7, half], [0.7, half + tooth], [0.88, half + tooth], [0.88, half]]);
    outline.extend([[1.0, half * 0.5], [1.0, -half * 0.5], [0.92, -half]]);
    let hole = radius * random.between(0.4, 0.6);
    plain(vec![outline, ellipse([centre[0] - 0.03, 0.0], [hole, hole])])
}

fn house(random: &mut Random) -> Drawing {
    let eaves = random.between(-0.25, 0.05);
    let wall = random.between(0.66, 0.8);
    let mut outline = vec![[0.0, -0.95]];
    // A chimney on the right slope.
    let slope = |x: f32| -0.95 + (eaves + 0.95) * x / 0.95;
    if random.chance(0.6) {
        outline.extend([[0.42, slope(0.42)], [0.42, -0.9], [0.62, -0.9], [0.62, slope(0.62)]]);
    }
    outline.extend([[0.95, eaves], [wall, eaves], [wall, 0.85], [-wall, 0.85], [-wall, eaves]]);
    outline.push([-0.95, eaves]);
    let roof = vec![[0.0, -0.95], [0.95, eaves], [-0.95, eaves]];
    let door = random.between(-0.35, -0.05);
    let window = random.between(0.15, 0.25);
    let details = vec![
        Detail { contours: vec![roof], tone: random.pick(&[Tone::Darker, Tone::Accent]) },
        Detail { contours: vec![rectangle(door, 0.3, door + 0.3, 0.85)], tone: Tone::Darker },
        Detail { contours: vec![rectangle(window, 0.25, window + 0.3, 0.52)], tone: Tone::Lighter },
    ];
    Drawing { outline: vec![outline], details }
}

fn bottle(random: &mut Random) -> Drawing {
    let (neck, body) = (random.between(0.11, 0.16), random.between(0.3, 0.4));
    let shoulder = random.between(-0.4, -0.15);
    let mut right = vec![[neck * 1.25, -1.0], [neck * 1.25, -0.88], [neck, -0.88]];
    right.push([neck, shoulder - 0.25]);
    curve(&mut right, [[neck, shoulder], [body, shoulder], [body, shoulder + 0.3]]);
    right.push([body, 0.92]);
    curve(&mut right, [[body, 1.0], [body, 1.0], [body - 0.08, 1.0]]);
    let label = shoulder + random.between(0.4, 0.5);
    let mut details = vec![Detail {
        contours: vec![rectangle(-1.0, -1.0, 1.0, -0.88)],
        tone: random.pick(&[Tone::Darker, Tone::Accent]),
    }];
    if random.chance(0.7) {
        let contours = vec![rectangle(-body, label, body, label + random.between(0.3, 0.5))];
        details.push(Detail { contours, tone: random.pick(&[Tone::Lighter, Tone::Accent]) });
    }
    Drawing { outline: vec![symmetric(right)], details }
}

fn umbrella(random: &mut Random) -> Drawing {
    let rise = random.between(0.8, 0.95);
    let half = random.between(0.045, 0.065);
    let scallops = 4;
    // The canopy from left to right, its scalloped rim back to the stick, the crook, and the other half of the rim.
    let mut outline = arc([0.0, 0.0], [1.0, rise], PI, TAU);
    let width = 2.0 / scallops as f32;
    let scallop = |points: &mut Contour, index: usize| {
        let right = 1.0 - width * index as f32;
        let middle = [right - width / 2.0, 0.0];
        points.extend(arc(middle, [width / 2.0, 0.16], 0.0, -PI));
    };
    for index in 0..scallops / 2 {
        scallop(&mut outline, index);
    }
    let crook = 0.16;
    outline.push([half, 0.0]);
    outline.push([half, 0.75]);
    outline.extend(arc([half - crook - 2.0 * half, 0.75], [crook + 2.0 * half; 2], 0.0, PI));
    outline.extend(arc([half - crook - 2.0 * half, 0.75], [crook; 2], PI, 0.0));
    outline.push([-half, 0.0]);
    for index in scallops / 2..scallops {
        scallop(&mut outline, index);
    }
    let panel = |left: f32, right: f32| {
        let mut points = vec![[0.0, -rise]];
        curve(&mut points, [[left * 0.6, -rise * 0.95], [left, -rise * 0.4], [left, 0.0]]);
        points.push([right, 0.0]);
        curve(&mut points, [[right, -rise * 0.4], [right * 0.6, -rise * 0.95], [0.0, -rise]]);
        points
    };
    let tone = random.pick(&[Tone::Darker, Tone::Lighter, Tone::Accent]);
    let details = vec![
        Detail { contours: vec![panel(-0.5, 0.0), panel(0.5, 1.0)], tone },
        Detail { contours: vec![rectangle(-1.0, 0.02, half, 1.0)], tone: Tone::Darker },
    ];
    Drawing { outline: vec![outline], details }
}

fn fish(random: &mut Random) -> Drawing {
    let belly = random.between(0.42, 0.6);
    let facing = random.pick(&[1.0, -1.0]);
    let mut outline = vec![[-0.95, 0.02]];
    curve(&mut outline, [[-0.75, -belly * 0.9], [-0.3, -belly * 1.1], [0.0, -belly * 0.85]]);
    curve(&mut outline, [[0.25, -belly * 0.6], [0.4, -0.16], [0.55, -0.08]]);
    curve(&mut outline, [[0.7, -0.2], [0.8, -0.4], [0.98, -0.5]]);
    curve(&mut outline, [[0.84, -0.2], [0.84, 0.2], [0.98, 0.5]]);
    curve(&mut outline, [[0.8, 0.4], [0.7, 0.2], [0.55, 0.1]]);
    curve(&mut outline, [[0.4, 0.18], [0.25, belly * 0.6], [0.0, belly * 0.85]]);
    curve(&mut outline, [[-0.3, belly * 1.1], [-0.75, belly * 0.9], [-0.95, 0.02]]);
    let mut fin = vec![[-0.2, 0.0]];
    curve(&mut fin, [[0.05, 0.02], [0.2, 0.1], [0.2, 0.28]]);
    curve(&mut fin, [[0.0, 0.26], [-0.15, 0.2], [-0.2, 0.0]]);
    let eye = [-0.62, -0.12];
    let stripes: Vec<Contour> =
        [0.1, 0.35].map(|x| rectangle(x - 0.35, -1.0, x - 0.22, 1.0)).to_vec();
    let mut details = Vec::new();
    if random.chance(0.5) {
        details
            .push(Detail { contours: stripes, tone: random.pick(&[Tone::Darker, Tone::Accent]) });
    }
    details.push(Detail { contours: vec![fin], tone: Tone::Darker });
    details.push(Detail { contours: vec![ellipse(eye, [0.1; 2])], tone: Tone::Lighter });
    details.push(Detail { contours: vec![ellipse(eye, [0.05; 2])], tone: Tone::Darker });
    let mut drawing = Drawing { outline: vec![outline], details };
    let contours = drawing
        .details
        .iter_mut()
        .flat_map(|detail| &mut detail.contours)
        .chain(&mut drawing.outline);
    contours.flatten().for_each(|point| point[0] *= facing);
    drawing
}
