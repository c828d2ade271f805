//! Ops on anchors, scores and boxes.

use candle_core::Device;
use candle_detection::ops::{AnchorGridParams, AnchorLevel, anchor_grid};

use super::counters::{Counts, count};
use super::support::{assert_equal, cuda};

fn pyramid() -> AnchorGridParams {
    let level = |height, width, stride, size| AnchorLevel {
        height,
        width,
        stride_y: stride,
        stride_x: stride + 1,
        sizes: vec![size],
    };
    AnchorGridParams {
        levels: vec![level(25, 42, 8, 32.0), level(13, 21, 16, 64.0), level(1, 2, 100, 512.0)],
        aspect_ratios: vec![0.5, 1.0, 2.0],
    }
}

#[test]
fn anchors_are_made_in_one_launch_without_a_copy() {
    let params = pyramid();
    anchor_grid(&params, &cuda()).unwrap();
    let (anchors, counts) = count(|| anchor_grid(&params, &cuda()).unwrap());
    assert_equal(&anchors, &anchor_grid(&params, &Device::Cpu).unwrap());
    if let Some(counts) = counts {
        let expected = Counts {
            host_to_device: 0,
            device_to_host: 0,
            device_to_device: 0,
            synchronizations: 0,
            launches: 1,
        };
        assert_eq!(counts, expected);
    }
}

#[test]
fn several_sizes_a_level_and_no_anchors_at_all() {
    let level = AnchorLevel {
        height: 3,
        width: 5,
        stride_y: 7,
        stride_x: 9,
        sizes: vec![8.0, 11.3, 200.0],
    };
    let empty = AnchorLevel { height: 0, width: 5, stride_y: 7, stride_x: 9, sizes: vec![8.0] };
    for levels in
        [vec![level.clone(), level.clone()], vec![empty.clone(), level], vec![empty], vec![]]
    {
        let params = AnchorGridParams { levels, aspect_ratios: vec![0.37, 1.9] };
        let expected = anchor_grid(&params, &Device::Cpu).unwrap();
        assert_equal(&anchor_grid(&params, &cuda()).unwrap(), &expected);
    }
}

#[test]
fn a_table_too_long_for_a_launch_is_named() {
    let level = &pyramid().levels[0];
    let params = AnchorGridParams { levels: vec![level.clone(); 9], aspect_ratios: vec![1.0] };
    let message = anchor_grid(&params, &cuda()).unwrap_err().to_string();
    assert!(message.contains("levels") && message.contains("at most 8"), "{message}");
}
