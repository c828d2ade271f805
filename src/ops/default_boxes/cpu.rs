use super::DefaultBoxesParams;

/// All default boxes, in the order of the op's contract.
pub(super) fn run(params: &DefaultBoxesParams) -> Vec<[f32; 4]> {
    let total =
        params.levels.iter().map(|level| level.height * level.width * level.sides.len()).sum();
    let (image_height, image_width) = (params.image_size.0 as f32, params.image_size.1 as f32);
    let mut boxes = Vec::with_capacity(total);
    for level in &params.levels {
        for row in 0..level.height {
            let y = (row as f32 + 0.5) / level.cells_y;
            for column in 0..level.width {
                let x = (column as f32 + 0.5) / level.cells_x;
                boxes.extend(level.sides.iter().map(|[width, height]| {
                    [
                        (x - 0.5 * width) * image_width,
                        (y - 0.5 * height) * image_height,
                        (x + 0.5 * width) * image_width,
                        (y + 0.5 * height) * image_height,
                    ]
                }));
            }
        }
    }
    boxes
}
