use super::{AnchorGridParams, AnchorLevel};

/// All anchors, in the order of the op's contract.
pub(super) fn run(params: &AnchorGridParams) -> Vec<[f32; 4]> {
    let total: usize = params
        .levels
        .iter()
        .map(|level| level.height * level.width * level.sizes.len() * level.aspect_ratios.len())
        .sum();
    let mut anchors = Vec::with_capacity(total);
    for level in &params.levels {
        push_level(level, &cell_anchors(&level.sizes, &level.aspect_ratios), &mut anchors);
    }
    anchors
}

fn push_level(level: &AnchorLevel, cell: &[[f32; 4]], anchors: &mut Vec<[f32; 4]>) {
    for row in 0..level.height {
        let y = (row * level.stride_y) as f32;
        for column in 0..level.width {
            let x = (column * level.stride_x) as f32;
            anchors.extend(cell.iter().map(|[x1, y1, x2, y2]| [x + x1, y + y1, x + x2, y + y2]));
        }
    }
}

/// The anchors centred on zero.
fn cell_anchors(sizes: &[f32], aspect_ratios: &[f32]) -> Vec<[f32; 4]> {
    let mut anchors = Vec::with_capacity(sizes.len() * aspect_ratios.len());
    for ratio in aspect_ratios {
        let height_ratio = ratio.sqrt();
        let width_ratio = 1.0 / height_ratio;
        anchors.extend(sizes.iter().map(|size| {
            let (width, height) = (width_ratio * size, height_ratio * size);
            [-width, -height, width, height].map(|corner| (corner / 2.0).round_ties_even())
        }));
    }
    anchors
}
