use candle_core::Device;

use super::{DefaultBoxLevel, DefaultBoxesParams, default_boxes};

fn level(height: usize, width: usize, sides: &[[f32; 2]]) -> DefaultBoxLevel {
    DefaultBoxLevel {
        height,
        width,
        cells_y: height as f32,
        cells_x: width as f32,
        sides: sides.to_vec(),
    }
}

#[test]
fn boxes_of_a_cell_follow_each_other() {
    let levels = vec![level(1, 2, &[[0.5, 1.0], [0.25, 0.5]]), level(1, 1, &[[1.0, 1.0]])];
    let params = DefaultBoxesParams { levels, image_size: (40, 80) };
    let boxes = default_boxes(&params, &Device::Cpu).unwrap().to_vec2::<f32>().unwrap();
    assert_eq!(
        boxes,
        [
            [0.0, 0.0, 40.0, 40.0],
            [10.0, 10.0, 30.0, 30.0],
            [40.0, 0.0, 80.0, 40.0],
            [50.0, 10.0, 70.0, 30.0],
            [0.0, 0.0, 80.0, 40.0],
        ]
    );
}

#[test]
fn corners_outside_of_the_image_stay() {
    let params =
        DefaultBoxesParams { levels: vec![level(1, 2, &[[1.0, 0.5]])], image_size: (8, 8) };
    let boxes = default_boxes(&params, &Device::Cpu).unwrap().to_vec2::<f32>().unwrap();
    assert_eq!(boxes[0], [-2.0, 2.0, 6.0, 6.0]);
}

#[test]
fn no_levels_and_empty_levels_have_no_box() {
    for levels in [vec![], vec![level(0, 3, &[[1.0, 1.0]])], vec![level(2, 2, &[])]] {
        let params = DefaultBoxesParams { levels, image_size: (8, 8) };
        assert_eq!(default_boxes(&params, &Device::Cpu).unwrap().dims(), [0, 4]);
    }
}
