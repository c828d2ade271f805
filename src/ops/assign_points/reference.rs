//! The reference's way: a matrix of all pairs, in which a pair that does not suit is 0.

use super::AssignPointsParams;
use crate::ops::support::matches::Match;

pub(super) fn assign(
    squares: &[[f32; 4]],
    lengths: &[usize],
    objects: &[[f32; 4]],
    params: &AssignPointsParams,
) -> Vec<Match> {
    let levels = lengths.iter().enumerate().flat_map(|(level, n)| std::iter::repeat_n(level, *n));
    squares
        .iter()
        .zip(levels)
        .map(|(square, level)| {
            let stride = square[2] - square[0];
            let (x, y) = ((square[0] + square[2]) / 2.0, (square[1] + square[3]) / 2.0);
            let (mut match_, mut largest) = (Match::Background, 0.0);
            for (index, o) in objects.iter().enumerate() {
                let near = |at: f32, low: f32, high: f32| {
                    (at - (low + high) / 2.0).abs() < params.center_radius * stride
                };
                let inside = x > o[0] && y > o[1] && x < o[2] && y < o[3];
                let size = (x - o[0]).max(y - o[1]).max(o[2] - x).max(o[3] - y);
                let large = level == 0 || size > params.side_range.0 * stride;
                let small = level + 1 == lengths.len() || size < params.side_range.1 * stride;
                let central = near(x, o[0], o[2]) && near(y, o[1], o[3]);
                let value = 1e8 - (o[2] - o[0]) * (o[3] - o[1]);
                if inside && large && small && central && value >= 1e-5 && value > largest {
                    (match_, largest) = (Match::Object(index as u32), value);
                }
            }
            match_
        })
        .collect()
}
