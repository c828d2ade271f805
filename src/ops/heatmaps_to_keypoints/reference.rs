//! The op by its definition: the whole resized map, value by value.

/// Weight of an entry at a distance: Keys 1981 with a = −0.75.
fn weight(distance: f32) -> f32 {
    let (a, x) = (-0.75, distance.abs());
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    }
}

fn entries(place: usize, places: usize, cells: usize) -> Vec<(usize, f32)> {
    let at = cells as f32 / places as f32 * (place as f32 + 0.5) - 0.5;
    let distance = at - at.floor();
    (-1..=2)
        .map(|i: i32| {
            let index = (at.floor() as i32 + i).clamp(0, cells as i32 - 1) as usize;
            (index, weight(distance - i as f32))
        })
        .collect()
}

/// x, y and score of a map `[M, M']`, in pixels of the resized image.
pub(super) fn find(map: &[f32], width: usize, [x1, y1, x2, y2]: [f32; 4]) -> [f32; 3] {
    let (box_width, box_height) = ((x2 - x1).max(1.0), (y2 - y1).max(1.0));
    let (columns, rows) = (box_width.ceil(), box_height.ceil());
    let mut best = (f32::NEG_INFINITY, 0, 0);
    for y in 0..rows as usize {
        for x in 0..columns as usize {
            let mut value = 0.0;
            for (row, down) in entries(y, rows as usize, map.len() / width) {
                let mut across = 0.0;
                for (column, weight) in entries(x, columns as usize, width) {
                    across += weight * map[row * width + column];
                }
                value += down * across;
            }
            if value > best.0 {
                best = (value, y, x);
            }
        }
    }
    let (value, y, x) = best;
    [
        (x as f32 + 0.5) * (box_width / columns) + x1,
        (y as f32 + 0.5) * (box_height / rows) + y1,
        value,
    ]
}
