//! Filling outlines: how much of each pixel they cover.

pub type Point = [f32; 2];

/// A closed outline, without its first point repeated.
pub type Contour = Vec<Point>;

/// Lines per pixel on which an outline is sampled; along a line coverage is exact.
const LINES: usize = 5;

/// The share of each pixel of an image that a figure covers, and how many pixels it has in all.
pub struct Coverage {
    /// `height · width` values in `0..=1`, row by row.
    pub inside: Vec<f32>,
    /// Pixels covered by more than half, those beyond the image's edges too.
    pub whole: usize,
}

/// Fills contours by the even-odd rule.
pub fn fill(contours: &[Contour], width: usize, height: usize) -> Coverage {
    let points = || contours.iter().flatten();
    let (mut low, mut high) = ([f32::INFINITY; 2], [f32::NEG_INFINITY; 2]);
    for point in points() {
        for axis in 0..2 {
            low[axis] = low[axis].min(point[axis]);
            high[axis] = high[axis].max(point[axis]);
        }
    }
    let mut coverage = Coverage { inside: vec![0.0; width * height], whole: 0 };
    if points().next().is_none() {
        return coverage;
    }
    let left = low[0].floor() as i64;
    let columns = (high[0].ceil() as i64 - left).max(1) as usize;
    let mut row = vec![0f32; columns];
    for y in low[1].floor() as i64..high[1].ceil() as i64 {
        row.fill(0.0);
        for line in 0..LINES {
            let at = y as f32 + (line as f32 + 0.5) / LINES as f32;
            for span in crossings(contours, at).chunks_exact(2) {
                add_span(&mut row, span[0] - left as f32, span[1] - left as f32);
            }
        }
        coverage.whole += row.iter().filter(|&&share| share > 0.5).count();
        if (0..height as i64).contains(&y) {
            for (x, share) in (left..).zip(&row).filter(|(x, _)| (0..width as i64).contains(x)) {
                coverage.inside[y as usize * width + x as usize] = share.min(1.0);
            }
        }
    }
    coverage
}

/// Where a horizontal line crosses the contours, from left to right: an even number of places.
fn crossings(contours: &[Contour], y: f32) -> Vec<f32> {
    let mut places = Vec::new();
    for contour in contours {
        for (i, &[ax, ay]) in contour.iter().enumerate() {
            let [bx, by] = contour[(i + 1) % contour.len()];
            // Half open, so that a corner counts once.
            if (ay <= y) != (by <= y) {
                places.push(ax + (y - ay) / (by - ay) * (bx - ax));
            }
        }
    }
    places.sort_by(f32::total_cmp);
    places
}

fn add_span(row: &mut [f32], from: f32, to: f32) {
    for (x, share) in row.iter_mut().enumerate().take(to.ceil() as usize).skip(from as usize) {
        let covered = to.min(x as f32 + 1.0) - from.max(x as f32);
        *share += covered.max(0.0) / LINES as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_pixels_are_areas() {
        let square: Contour = vec![[1.0, 1.0], [3.5, 1.0], [3.5, 3.0], [1.0, 3.0]];
        let hole: Contour = vec![[2.0, 1.0], [3.0, 1.0], [3.0, 2.0], [2.0, 2.0]];
        let coverage = fill(&[square, hole], 4, 3);
        let expected = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.5];
        for (share, wanted) in coverage.inside.iter().zip(expected) {
            assert!((share - wanted).abs() < 1e-5, "{:?}", coverage.inside);
        }
        assert_eq!(coverage.whole, 3);
    }

    #[test]
    fn what_lies_outside_counts_in_the_whole() {
        let square: Contour = vec![[-4.0, 0.0], [4.0, 0.0], [4.0, 4.0], [-4.0, 4.0]];
        let coverage = fill(&[square], 4, 2);
        assert_eq!(coverage.whole, 32);
        assert_eq!(coverage.inside, [1.0; 8]);
    }
}
